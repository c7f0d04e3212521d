"""The walk of a read: out of the cache, or from whoever is connected for the provider.

Many who ask for the same at once are one read. Nobody who waits holds a database session.
"""

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from zndraw_joblib.contract.names import JobName
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
    read_key,
    reads_key,
    worker_key,
)
from zndraw_joblib.server.providers import cache
from zndraw_joblib.server.providers.cache import CachedResult, CacheKeys
from zndraw_joblib.server.runtime import Runtime
from zndraw_joblib.server.service import provider_requests, providers
from zndraw_joblib.server.service.provider_requests import ProviderRef
from zndraw_joblib.server.waiters import Disconnected

# A wake-up may be lost, and processes on SQLite send each other none.
_RECHECK_FIRST, _RECHECK_GROWTH, _RECHECK_MAX = 1.0, 1.5, 5.0
_DOUBT_SECONDS, _DOUBT_TTL = 0.1, 5
_RETRY_AFTER = {"Retry-After": "2"}
# Who has claimed a read and not answered it in so many times the patience of its readers has lost it.
_LEASES = 4


class RequestKey(NamedTuple):
    """A read: of which provider, seen from which room, with which parameters."""

    room_id: str
    name: JobName
    params: str
    hash: str


def request_key(room_id: str, name: JobName, params: dict[str, Any]) -> RequestKey:
    """Return a read by its parameters. Raises `ContentTooLarge` where these are over 32 KiB."""
    text = canonical(params)
    if len(text) > MAX_PARAMS_BYTES:
        raise ContentTooLarge(f"query: the parameters have {len(text)} bytes; {MAX_PARAMS_BYTES} are taken")
    return RequestKey(room_id, name, text, request_hash(text))


class ProviderRequests:
    """Answers reads, and gives them to those who claim them.

    `has_unknown_subscribers` tells whether somebody may be connected whom we do not know of: a host may let sockets into the
    rooms of providers by itself.
    """

    def __init__(self, runtime: Runtime, has_unknown_subscribers: Callable[[], bool]) -> None:
        self._runtime = runtime
        self._has_unknown_subscribers = has_unknown_subscribers
        runtime.looks.append(self._look_for_claims)

    async def find_cached(self, backend: ResultBackend, asked: RequestKey) -> CachedResult | None:
        """Return what was read before, None if nothing was. Raises `ProviderNotFound`."""
        return await cache.find(backend, await self._target(asked), cache.cache_keys(asked.name, asked.hash))

    async def request(
        self, backend: ResultBackend, asked: RequestKey, wait: float, gone: Disconnected = None
    ) -> CachedResult:
        """Return what is brought within `wait` seconds, after `find_cached` found nothing.

        Raises `ProviderNotFound`, `ProviderNotConnected`, `ProviderTimeout`, and what the provider says that
        went wrong: `ProviderFailed`, or `InvalidRequest` for parameters that do not fit.
        """
        keys, deadline = cache.cache_keys(asked.name, asked.hash), time.monotonic() + wait
        waits_on = [read_key(asked.name, asked.hash), provider_key(asked.name)]
        pause = _RECHECK_FIRST
        with self._runtime.waiters.enter(waits_on) as waiter:
            # What went wrong before is not of this read.
            known = await cache.failure(backend, keys)
            # Of a crowd all but one learn here that the read is asked for already.
            target = await self._target(asked)
            found = await self._ask_once(backend, target, asked, keys)
            while found is None:
                left = deadline - time.monotonic()
                if left <= 0 or self._runtime.waiters.is_closed or (gone is not None and gone.done()):
                    raise _timeout(target)
                connected_for = left if self._has_unknown_subscribers() else target.connected_for
                seconds = min(left, pause, connected_for)
                await _first(backend.wait_for_key(keys.result, seconds), waiter.sleep(seconds, gone))
                pause = min(pause * _RECHECK_GROWTH, _RECHECK_MAX)
                self._runtime.waiters.look(waiter)
                try:
                    target = await self._target(asked)
                except ProviderNotFound:
                    # It may have gone right after its answer.
                    if (found := await _look(backend, target, keys, known)) is None:
                        raise
                    return found
                found = await _look(backend, target, keys, known)
                found = found or await self._ask_once(backend, target, asked, keys)
            return found

    async def _target(self, asked: RequestKey) -> ProviderRef:
        cross_room = self._runtime.settings.cross_room_jobs
        find = partial(
            provider_requests.find, room_id=asked.room_id, name=asked.name, request_hash=asked.hash
        )
        return await self._runtime.database.read_short(find, cross_room=cross_room)

    async def _ask_once(
        self, backend: ResultBackend, target: ProviderRef, asked: RequestKey, keys: CacheKeys
    ) -> CachedResult | None:
        """Ask whoever is connected, unless somebody else has asked the same. Return what came meanwhile."""
        ttl = self._runtime.settings.provider_inflight_ttl_seconds
        if target.connected_for <= 0 and not self._has_unknown_subscribers():
            raise provider_requests.not_connected(target)
        if target.is_pending:
            return None
        has_lock = await backend.acquire_inflight(keys.inflight, ttl)
        if not has_lock:
            if target.age > ttl or not await self._is_doubtful(backend, asked, keys):
                return None
            has_lock = await backend.acquire_inflight(keys.inflight, ttl)  # if it was answered meanwhile
        try:
            # Who gives the lock back has stored the result before.
            found = await cache.find(backend, target, keys)
            if found is None:
                ask = partial(
                    provider_requests.create, target=target, request_hash=asked.hash, params=asked.params
                )
                await self._runtime.write_short(ask, wanted=timedelta(seconds=ttl))
                has_lock = False  # until there is an answer
        finally:
            if has_lock:
                await backend.release_inflight(keys.inflight)
        return found

    async def _is_doubtful(self, backend: ResultBackend, asked: RequestKey, keys: CacheKeys) -> bool:
        """Tell one of a crowd that a lock may be of a provider of this name that is gone, asked in vain."""
        await asyncio.sleep(_DOUBT_SECONDS)
        if (await self._target(asked)).is_pending:
            return False
        return await backend.acquire_inflight(keys.doubt, _DOUBT_TTL)

    async def claim(
        self,
        caller: Identity,
        worker_id: UUID,
        wait: float = 0,
        gone: Disconnected = None,
        claim_id: UUID | None = None,
    ) -> ProviderClaimResponse:
        """Give a worker the oldest read that waits for it; sleep up to `wait` seconds for one."""
        lease = _LEASES * self._runtime.settings.provider_inflight_ttl_seconds
        item = provider_requests.Claim(
            caller, worker_id, claim_id, timedelta(seconds=wait), timedelta(seconds=lease)
        )
        await self._runtime.touch_worker(caller, worker_id)
        got = await self._runtime.write_short(provider_requests.claim, item=item)
        if got is None and wait > 0 and not self._runtime.waiters.is_closed:
            got = await self._claim_asleep(item, gone)
            if gone is not None and gone.done() and not self._runtime.waiters.has(reads_key(worker_id)):
                await self._runtime.write(providers.disconnect, worker_id=worker_id)
        return ProviderClaimResponse(request=got)

    async def _claim_asleep(
        self, item: provider_requests.Claim, gone: Disconnected
    ) -> ClaimedProviderRequest | None:
        waiters, deadline = self._runtime.waiters, time.monotonic() + item.wait.total_seconds()
        key = reads_key(item.worker_id)
        # A client that lost its connection asks anew, while we take the old one for alive.
        waiters.evict_oldest(key, self._runtime.settings.max_claims_per_worker)
        marks = [] if item.claim_id is None else [claim_key(item.claim_id)]
        for mark in marks:
            waiters.evict_oldest(mark, 1)
        with waiters.enter([key, worker_key(item.worker_id), *marks]) as waiter:
            self._runtime.start_recheck()
            while True:
                waiters.look(waiter)
                got = await self._runtime.write_short(provider_requests.claim, item=item)
                waiter.found(key if got else None)
                left = deadline - time.monotonic()
                if got is not None or left <= 0 or waiters.is_closed:
                    return got
                await waiter.sleep(left, gone)
                if waiter.is_dismissed or (gone is not None and gone.done()):
                    return None

    async def _look_for_claims(self, waited_keys: list[list[str]]) -> None:
        ids = [UUID(name) for kind, name in waited_keys if kind == "reads"]
        if ids:
            awaited = await self._runtime.database.read(
                provider_requests.workers_with_requests, worker_ids=ids
            )
            for worker_id in awaited:
                self._runtime.waiters.wake(reads_key(worker_id), 1)


async def _look(
    backend: ResultBackend, target: ProviderRef, keys: CacheKeys, known: bytes | None
) -> CachedResult | None:
    """Return what was read. Raises what went wrong with it, unless that was `known` before."""
    found = await cache.find(backend, target, keys)
    failed = None if found else await cache.failure(backend, keys)
    if failed is not None and failed != known:
        raise cache.problem_of(target, failed)
    return found


def _timeout(target: ProviderRef) -> ProviderTimeout:
    return ProviderTimeout(
        f"Provider {str(target.name)!r} has not answered yet; ask again", headers=_RETRY_AFTER
    )


async def _first(*awaited: Any) -> None:
    """Wait for one of some things, and give up the others. Raises what that one raises."""
    running = [asyncio.ensure_future(each) for each in awaited]
    try:
        done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for each in done:
            each.result()
    finally:
        for each in running:
            each.cancel()
        await asyncio.gather(*running, return_exceptions=True)
