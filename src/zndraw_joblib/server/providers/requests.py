"""Provider requests: answered from the cache, or by the worker that is connected for the provider.

Concurrent requests with the same parameters are sent to the worker once. A request that waits holds no
database session.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from zndraw_joblib.contract.backoff import ExponentialBackoff
from zndraw_joblib.contract.names import INTERNAL, JobName
from zndraw_joblib.contract.problems import ContentTooLarge, ProviderNotFound, ProviderTimeout
from zndraw_joblib.contract.providers import (
    MAX_PARAMS_BYTES,
    ClaimedProviderRequest,
    ProviderClaimResponse,
    canonical,
    request_hash,
)
from zndraw_joblib.server.ports import (
    Identity,
    ResultBackend,
    claim_key,
    provider_key,
    request_wait_key,
    requests_key,
    worker_key,
)
from zndraw_joblib.server.providers import cache
from zndraw_joblib.server.providers.cache import CachedResult, CacheKeys
from zndraw_joblib.server.runtime import Runtime
from zndraw_joblib.server.service import provider_requests, providers
from zndraw_joblib.server.service.provider_requests import Asker, ProviderRef
from zndraw_joblib.server.service.providers import MAX_PENDING_REQUESTS
from zndraw_joblib.server.waiters import OPEN, Access, Disconnected, Waiter

# A wake-up may be lost, and server processes on SQLite send each other none.
_STALE_LOCK_PAUSE, _STALE_LOCK_TTL = 0.1, 5
_RETRY_AFTER = {"Retry-After": "2"}
# A worker that has claimed a request has lost it after this many times `provider_inflight_ttl_seconds`.
_LEASES = 4


class RequestKey(NamedTuple):
    """The identity of a request: the room it comes from, the provider and the parameters."""

    room_id: str
    name: JobName
    params: str
    request_hash: str


def request_key(room_id: str, name: JobName, params: dict[str, Any]) -> RequestKey:
    """Return the key of a request. Raises `ContentTooLarge` if the parameters exceed 32 KiB."""
    text = canonical(params)
    if len(text) > MAX_PARAMS_BYTES:
        raise ContentTooLarge(
            f"query: the parameters have {len(text)} bytes, and at most {MAX_PARAMS_BYTES} are allowed"
        )
    return RequestKey(room_id, name, text, request_hash(text))


class InternalBroker(Protocol):
    """The broker of internal providers."""

    def find(self, name: JobName) -> object:
        """Raise `ProviderNotConnected` if this server has no executor for a provider."""

    async def send(self, name: JobName, provider_id: UUID, request_id: str, params: str) -> None:
        """Send a request. Raises `ServiceUnavailable` if the broker does not accept it."""


class ProviderRequests:
    """The requests to providers, for callers that want a result and for workers that claim requests.

    `internal` sends requests to internal providers. `has_unknown_subscribers` returns whether sockets may be
    connected for a provider that the server does not know of: a host may let sockets into the rooms of
    providers by itself.
    """

    def __init__(
        self, runtime: Runtime, has_unknown_subscribers: Callable[[], bool], internal: InternalBroker
    ) -> None:
        self._runtime, self._internal = runtime, internal
        self.has_unknown_subscribers = has_unknown_subscribers

    async def find_cached(self, backend: ResultBackend, key: RequestKey) -> CachedResult | None:
        """Return the cached result of a request, or None. Raises `ProviderNotFound`."""
        provider = await self.find_provider(key)
        return await cache.find(backend, provider, cache.cache_keys(key.name, key.request_hash))

    async def request(
        self,
        backend: ResultBackend,
        key: RequestKey,
        wait: float,
        disconnected: Disconnected = None,
        access: Access = OPEN,
    ) -> CachedResult:
        """Send a request that `find_cached` did not find, and wait up to `wait` seconds for its result.

        Raises `ProviderNotFound`, `ProviderNotConnected` or `ProviderTimeout`, or the error that the
        provider reports: `ProviderExecutionFailed`, or `InvalidRequest` for parameters that it rejects.
        """
        keys, deadline = cache.cache_keys(key.name, key.request_hash), time.monotonic() + wait
        # An error that is stored already belongs to an earlier request.
        old_error = await cache.get_error(backend, keys)
        waiting = _WaitingRequest(self, backend, key, keys, old_error, disconnected, access)
        result = await self._runtime.waiters.wait_until(
            [request_wait_key(key.name, key.request_hash), provider_key(key.name), *access.keys],
            waiting.check,
            lambda result: result is not None,
            deadline=deadline,
            user=access.user,
            disconnected=disconnected,
            wait=waiting.wait,
        )
        if result is None:
            raise ProviderTimeout(
                f"Provider {str(key.name)!r} has not sent a result yet; repeat the request",
                headers=_RETRY_AFTER,
            )
        return result

    async def find_provider(self, key: RequestKey) -> ProviderRef:
        """Return the provider of a request. Raises `ProviderNotFound`."""
        cross_room = self._runtime.settings.cross_room_jobs
        return await self._runtime.database.read_short(
            provider_requests.find, key.room_id, key.name, key.request_hash, cross_room=cross_room
        )

    async def send_once(
        self,
        backend: ResultBackend,
        provider: ProviderRef,
        key: RequestKey,
        keys: CacheKeys,
        user: str | None,
    ) -> CachedResult | None:
        """Send a user's request to the connected worker unless it is pending. Return a result that exists."""
        settings = self._runtime.settings
        ttl = settings.provider_inflight_ttl_seconds
        self._check_connected(provider)
        if provider.is_pending:
            return None
        has_lock = await backend.acquire_inflight(keys.inflight, ttl)
        if not has_lock:
            if provider.age > ttl or not await self._is_lock_stale(backend, key, keys):
                return None
            # It succeeds if a result came meanwhile.
            has_lock = await backend.acquire_inflight(keys.inflight, ttl)
        try:
            # The result is stored before its lock is released.
            result = await cache.find(backend, provider, keys)
            if result is None:
                asker = Asker(user, settings.share_of(MAX_PENDING_REQUESTS))
                has_lock = False  # the upload of the result releases it
                # A caller that leaves does not stop it: others may wait for this request already.
                opening = self._runtime.start(self._open(backend, provider, key, keys, asker))
                await asyncio.shield(opening)
        finally:
            if has_lock:
                await backend.release_inflight(keys.inflight)
        return result

    async def _open(
        self, backend: ResultBackend, provider: ProviderRef, key: RequestKey, keys: CacheKeys, asker: Asker
    ) -> None:
        """Record a request and send it. If that fails, release its lock."""
        lifetime = timedelta(seconds=self._runtime.settings.provider_inflight_ttl_seconds)
        try:
            if await self._runtime.write_short(
                provider_requests.create, provider, key.request_hash, key.params, lifetime, asker
            ):
                await self._dispatch(provider, key)
        except BaseException:
            await backend.release_inflight(keys.inflight)
            raise

    def _check_connected(self, provider: ProviderRef) -> None:
        if provider.name.room_id == INTERNAL:
            self._internal.find(provider.name)
        elif provider.connected_for <= 0 and not self.has_unknown_subscribers():
            raise provider_requests.not_connected(provider)

    async def _dispatch(self, provider: ProviderRef, key: RequestKey) -> None:
        """Send a request to an internal provider to the broker. If that fails, it is no longer open."""
        try:
            await self._internal.send(provider.name, provider.id, key.request_hash, key.params)
        except BaseException:
            await self._runtime.write(provider_requests.discard, provider, key.request_hash)
            raise

    async def _is_lock_stale(self, backend: ResultBackend, key: RequestKey, keys: CacheKeys) -> bool:
        """Return whether a removed provider may have left the lock; of many callers, only one gets True."""
        await asyncio.sleep(_STALE_LOCK_PAUSE)
        if (await self.find_provider(key)).is_pending:
            return False
        return await backend.acquire_inflight(keys.stale_lock, _STALE_LOCK_TTL)

    async def claim(
        self,
        caller: Identity,
        worker_id: UUID,
        wait: float = 0,
        disconnected: Disconnected = None,
        claim_id: UUID | None = None,
        access: Access = OPEN,
    ) -> ProviderClaimResponse:
        """Return the oldest request that is pending for a worker, waiting up to `wait` seconds for one."""
        lease = _LEASES * self._runtime.settings.provider_inflight_ttl_seconds
        item = provider_requests.Claim(
            *(caller, worker_id, claim_id, timedelta(seconds=wait), timedelta(seconds=lease)),
            refused_rooms=await access.check(),
        )
        await self._runtime.touch_worker(caller, worker_id)
        claimed = await self._runtime.write_short(provider_requests.claim, item)
        waiters = self._runtime.waiters
        if claimed is None and wait > 0 and not waiters.is_closed:
            claimed = await self._wait_for_claim(item, disconnected, access)
            is_disconnected = disconnected is not None and disconnected.done()
            if is_disconnected and not waiters.has(requests_key(worker_id)):
                await self._runtime.write(providers.disconnect, worker_id)
        return ProviderClaimResponse(request=claimed)

    async def _wait_for_claim(
        self, item: provider_requests.Claim, disconnected: Disconnected, access: Access
    ) -> ClaimedProviderRequest | None:
        waiters, deadline = self._runtime.waiters, time.monotonic() + item.wait.total_seconds()
        key = requests_key(item.worker_id)
        # A client that lost its connection claims again before the server notices the loss.
        waiters.evict_oldest(key, self._runtime.settings.max_claims_per_worker)
        keys = [key, worker_key(item.worker_id), *access.keys]
        if item.claim_id is not None:
            keys.append(claim_key(item.claim_id))
            waiters.evict_oldest(keys[-1], 1)

        async def check(waiter: Waiter) -> ClaimedProviderRequest | None:
            current = item._replace(refused_rooms=await access.check())
            claimed = await self._runtime.write_short(provider_requests.claim, current)
            waiter.found(key if claimed else None)
            return claimed

        self._runtime.recheck.start()
        return await waiters.wait_until(
            keys,
            check,
            lambda claimed: claimed is not None,
            deadline=deadline,
            user=item.caller.id,
            disconnected=disconnected,
        )


def _recheck_backoff() -> ExponentialBackoff:
    return ExponentialBackoff(1.0, 5.0, jitter=0, growth=1.5)


@dataclass(slots=True)
class _WaitingRequest:
    """One caller's wait for the result of a request."""

    requests: ProviderRequests
    backend: ResultBackend
    key: RequestKey
    keys: CacheKeys
    old_error: bytes | None
    disconnected: Disconnected
    access: Access
    provider: ProviderRef | None = None
    recheck: ExponentialBackoff = field(
        default_factory=lambda: ExponentialBackoff(1.0, 5.0, jitter=0, growth=1.5)
    )

    async def check(self, _: Waiter) -> CachedResult | None:
        """Return the result; without one, send the request unless it is pending."""
        previous = self.provider
        await self.access.check()
        try:
            provider = self.provider = await self.requests.find_provider(self.key)
        except ProviderNotFound:
            # It may have been removed right after it uploaded the result.
            result = await self._find_result(previous) if previous else None
            if result is None:
                raise
            return result
        result = await self._find_result(provider) if previous else None
        user = self.access.user
        return result or await self.requests.send_once(self.backend, provider, self.key, self.keys, user)

    async def wait(self, waiter: Waiter, seconds: float) -> None:
        """Wait for the result, a change of the provider, or the next re-check."""
        has_worker = self.provider is not None and self.provider.worker_id is not None
        if self.provider is not None and has_worker and not self.requests.has_unknown_subscribers():
            seconds = min(seconds, self.provider.connected_for)
        seconds = min(seconds, self.recheck.next())
        result_stored = self.backend.wait_for_key(self.keys.result, seconds)
        await _first(result_stored, waiter.wait(seconds, self.disconnected))

    async def _find_result(self, provider: ProviderRef) -> CachedResult | None:
        """Return the result of the request. Raises its error, unless that is `old_error`."""
        result = await cache.find(self.backend, provider, self.keys)
        error = None if result else await cache.get_error(self.backend, self.keys)
        if error is not None and error != self.old_error:
            raise cache.as_problem(provider, error)
        return result


async def _first(*awaitables: Any) -> None:
    """Wait for the first awaitable and cancel the others. Raises the error of the first."""
    tasks = [asyncio.ensure_future(each) for each in awaitables]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
