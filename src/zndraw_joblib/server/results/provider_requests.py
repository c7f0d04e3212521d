"""Provider requests: answered from the cache, or by the worker that is connected for the provider."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import timedelta
from hashlib import sha256
from typing import Any, NamedTuple, Protocol
from uuid import UUID, uuid4

from pydantic import ValidationError
from pydantic_core import from_json, to_json

from zndraw_joblib.jobs.logs import ExponentialBackoff
from zndraw_joblib.server.process.ports import (
    PART_BYTES,
    Identity,
    ResultBackend,
    StreamingBackend,
    Wake,
    claim_key,
    provider_key,
    request_wait_key,
    requests_key,
    worker_key,
)
from zndraw_joblib.server.process.waiters import OPEN, CallerAccess, Disconnected, Waiter
from zndraw_joblib.server.queue import rules_providers
from zndraw_joblib.server.queue.rules_providers import MAX_PENDING_REQUESTS, Asker, ProviderRef
from zndraw_joblib.server.queue.rules_transitions import truncate_error
from zndraw_joblib.server.results import stores
from zndraw_joblib.server.results.database_values import DatabaseResults, Snapshot
from zndraw_joblib.server.results.results import IncomingBytes, etag_of, unavailable
from zndraw_joblib.server.runtime.runtime import Runtime
from zndraw_joblib.wire.names import INTERNAL, JobName
from zndraw_joblib.wire.problems import (
    ContentTooLarge,
    InvalidRequest,
    Problem,
    ProblemException,
    ProviderExecutionFailed,
    ProviderFailed,
    ProviderNotFound,
    ProviderTimeout,
    StaleResult,
)
from zndraw_joblib.wire.providers import (
    MAX_PARAMS_BYTES,
    ClaimedProviderRequest,
    ProviderClaimResponse,
    ProviderError,
    canonical,
    inflight_key,
    request_hash,
    result_key,
)

_ERROR_TTL = 30
# The metadata must outlive the result: a result without metadata counts as stored by the host.
_EXTRA_META_TTL = 60
# A body with one of these is a problem; a `ProviderError` has none of them.
_PROBLEM_MEMBERS = frozenset({"type", "title", "status"})
_MIN_STATUS, _MAX_STATUS = 400, 599
# The size of a problem, and of its title and detail, which are truncated.
_MAX_PROBLEM_BYTES, _MAX_TITLE_BYTES, _MAX_DETAIL_BYTES = 64 * 1024, 1024, 32 * 1024
# The last is the type of a problem that means no more than its status.
_TYPE_BEGINNINGS = ("http://", "https://", "/", "about:blank")
# What these say is about the reader's connection to the server, so a reader would act on it.
_STATUSES_OF_CONNECTION = frozenset({401, 407, 421, 426, 511})


@dataclass(frozen=True, slots=True)
class CachedResult:
    """The result of a request: `size` bytes in `chunks`. `etag` is None if the host stored the bytes."""

    size: int
    chunks: AsyncIterator[bytes]
    content_type: str
    etag: str | None


class CacheKeys(NamedTuple):
    """The names of a request's entries and locks in a result backend."""

    result: str
    inflight: str
    stale_lock: str
    upload: str
    meta: str
    error: str
    problem: str


def cache_keys(name: JobName, request_hash: str) -> CacheKeys:
    """Return the names for a request."""
    rest = f"{name}:{request_hash}"
    return CacheKeys(
        result_key(str(name), request_hash),
        inflight_key(str(name), request_hash),
        f"provider-stale-lock:{rest}",
        f"provider-upload:{rest}",
        f"provider-meta:{rest}",
        f"provider-error:{rest}",
        f"provider-problem:{rest}",
    )


async def snapshot_of(backend: ResultBackend, keys: CacheKeys) -> ResultBackend | Snapshot:
    """Return the values of a request at one time if the backend can read them together, else the backend."""
    if not isinstance(backend, DatabaseResults):
        return backend
    return await backend.snapshot((keys.meta, keys.result, keys.problem, keys.error))


async def find(
    backend: ResultBackend,
    provider: ProviderRef,
    keys: CacheKeys,
    source: ResultBackend | Snapshot | None = None,
) -> CachedResult | None:
    """Return the result of the provider's current registration; remove one of an earlier registration.

    It reads from `source`, by default a new snapshot. Raises the problem that the provider uploaded in place
    of a result.
    """
    source = source or await snapshot_of(backend, keys)
    meta = await source.get(keys.meta)
    if not _is_current(meta, provider):
        await backend.delete(keys.result)
        await backend.delete(keys.meta)
        return None
    fields = json.loads(meta) if meta is not None else {}
    opened = await _open(source, keys.result)
    if opened is None:
        await _raise_problem(source, provider, keys)
        return None
    return CachedResult(*opened, fields.get("content_type", provider.content_type), fields.get("etag"))


async def _raise_problem(source: ResultBackend | Snapshot, provider: ProviderRef, keys: CacheKeys) -> None:
    stored = await source.get(keys.problem)
    if stored is not None and _is_current(stored, provider):
        problem = Problem.model_validate(json.loads(stored)["problem"])
        error = ProviderExecutionFailed(problem.detail)
        error.problem = problem
        raise error


def _is_current(meta: bytes | None, provider: ProviderRef) -> bool:
    """Return whether a result is of the current registration. One without metadata is the host's own."""
    return meta is None or json.loads(meta)["registration"] == str(provider.registration)


async def _open(source: ResultBackend | Snapshot, key: str) -> tuple[int, AsyncIterator[bytes]] | None:
    if isinstance(source, Snapshot | StreamingBackend):
        return await source.open_stream(key)
    data = await source.get(key)
    return None if data is None else (len(data), stores.stream(data))


async def remove_outdated(backend: ResultBackend, provider: ProviderRef, keys: CacheKeys) -> bool:
    """Remove a result of an earlier registration. Return whether no result is left."""
    meta = await backend.get(keys.meta)
    if not _is_current(meta, provider):
        await backend.delete(keys.result)
        return True
    return meta is None


async def store_meta(
    backend: ResultBackend, provider: ProviderRef, keys: CacheKeys, ttl: int, etag: str | None = None
) -> None:
    """Store the metadata of a result that is stored already or is being uploaded."""
    fields = {"registration": str(provider.registration), "content_type": provider.content_type, "etag": etag}
    await backend.store(keys.meta, json.dumps(fields).encode(), ttl + _EXTRA_META_TTL)


async def store_result(backend: ResultBackend, key: str, chunks: AsyncIterator[bytes], ttl: int) -> None:
    """Store the bytes of a result, as a stream if the backend can."""
    if isinstance(backend, StreamingBackend):
        await backend.store_stream(key, chunks, ttl)
    else:
        await backend.store(key, b"".join([chunk async for chunk in chunks]), ttl)


async def store_problem(
    backend: ResultBackend, provider: ProviderRef, keys: CacheKeys, problem: Problem, ttl: int
) -> None:
    """Store a problem in place of the result of a request, under a key that hosts do not read."""
    fields = {"registration": str(provider.registration), "problem": problem.model_dump(exclude_none=True)}
    await backend.store(keys.problem, json.dumps(fields).encode(), ttl)
    await backend.delete(keys.result)
    await backend.delete(keys.meta)


async def get_error(backend: ResultBackend | Snapshot, keys: CacheKeys) -> bytes | None:
    """Return the latest error of a request, or None. Two errors are never equal."""
    return await backend.get(keys.error)


def problem_of(body: bytes) -> Problem | None:
    """Return the problem (RFC 9457) that a body is; None for a `ProviderError` or a text.

    A member that is missing is that of `provider-execution-failed`. Raises `InvalidRequest`.
    """
    try:
        fields = from_json(body)
    except ValueError:
        return None
    if not isinstance(fields, dict) or _PROBLEM_MEMBERS.isdisjoint(fields):
        return None
    kind = ProviderExecutionFailed
    try:
        problem = Problem.model_validate(
            {"type": kind.type_uri(), "title": kind.title, "status": kind.status, **fields}
        )
    except ValidationError as error:
        fault = error.errors()[0]
        raise InvalidRequest(f"body.{'.'.join(map(str, fault['loc']))}: {fault['msg']}") from error
    if not _MIN_STATUS <= problem.status <= _MAX_STATUS or problem.status in _STATUSES_OF_CONNECTION:
        raise InvalidRequest(
            f"body.status: {problem.status} is not the status of a provider's problem: send one from "
            f"{_MIN_STATUS} to {_MAX_STATUS}, except {', '.join(map(str, sorted(_STATUSES_OF_CONNECTION)))}"
        )
    return _bounded(problem)


def _bounded(problem: Problem) -> Problem:
    """Return a problem with a short title and detail. Raises `InvalidRequest` if other members are large."""
    if not problem.type.startswith(_TYPE_BEGINNINGS):
        raise InvalidRequest(
            f"body.type: {problem.type[:100]!r} is not the type of a provider's problem: send a URL of http "
            "or https, or a path that begins with '/'"
        )
    problem.title = truncate_error(problem.title, _MAX_TITLE_BYTES) or ProviderExecutionFailed.title
    problem.detail = truncate_error(problem.detail, _MAX_DETAIL_BYTES)
    sizes = {name: len(to_json(value)) for name, value in problem.model_dump(exclude_none=True).items()}
    if sum(sizes.values()) > _MAX_PROBLEM_BYTES:
        largest = max(sizes, key=sizes.__getitem__)
        raise InvalidRequest(
            f"body.{largest[:100]}: it has {sizes[largest]} bytes, the problem {sum(sizes.values())}, and at "
            f"most {_MAX_PROBLEM_BYTES} are allowed; send less"
        )
    return problem


async def store_error(
    backend: ResultBackend, keys: CacheKeys, body: bytes, *, is_of_provider: bool = True
) -> None:
    """Store the error of a request: a `ProviderError` as JSON, or any text."""
    try:
        error = ProviderError.model_validate_json(body)
    except ValidationError:
        error = ProviderError(detail=body.decode("utf-8", "replace"))
    fields = {**error.model_dump(), "detail": truncate_error(error.detail) or "", "id": uuid4().hex}
    fields["is_of_provider"] = is_of_provider
    await backend.store(keys.error, json.dumps(fields).encode(), _ERROR_TTL)


def as_problem(provider: ProviderRef, error: bytes) -> ProblemException:
    """Return a stored error as the problem for the caller."""
    fields = json.loads(error)
    detail = f"Provider {str(provider.name)!r}: {fields['detail'] or fields['error']}"
    if fields["is_invalid"]:
        return InvalidRequest(detail, error=fields["error"])
    kind = ProviderExecutionFailed if fields.get("is_of_provider", True) else ProviderFailed
    return kind(detail, error=fields["error"])


# Provider requests: answered from the cache, or by the worker that is connected for the provider.
#
# Concurrent requests with the same parameters are sent to the worker once. A request that waits holds no
# database session.

# A wake-up may be lost, and server processes on SQLite send each other none.
_STALE_LOCK_PAUSE, _STALE_LOCK_TTL = 0.1, 5
_RETRY_AFTER = {"Retry-After": "2"}
# A worker that has claimed a request has lost it after this many times `provider_inflight_ttl_seconds`.
_LEASES = 4


class ProviderRequestKey(NamedTuple):
    """The identity of a request: the room it comes from, the provider and the parameters."""

    room_id: str
    name: JobName
    params: str
    request_hash: str


def request_key(room_id: str, name: JobName, params: dict[str, Any]) -> ProviderRequestKey:
    """Return the key of a request. Raises `ContentTooLarge` if the parameters exceed 32 KiB."""
    text = canonical(params)
    if len(text) > MAX_PARAMS_BYTES:
        raise ContentTooLarge(
            f"query: the parameters have {len(text)} bytes, and at most {MAX_PARAMS_BYTES} are allowed"
        )
    return ProviderRequestKey(room_id, name, text, request_hash(text))


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
        self._shared_provider = stores.SingleFlight(self._read_provider)
        # The locks of the requests that this process is sending.
        self._sending: set[str] = set()

    async def find_cached(self, backend: ResultBackend, key: ProviderRequestKey) -> CachedResult | None:
        """Return the cached result of a request, or None. Raises `ProviderNotFound`."""
        provider = await self.find_provider(key)
        return await find(backend, provider, cache_keys(key.name, key.request_hash))

    async def request(
        self,
        backend: ResultBackend,
        key: ProviderRequestKey,
        wait: float,
        disconnected: Disconnected = None,
        access: CallerAccess = OPEN,
    ) -> CachedResult:
        """Send a request that `find_cached` did not find, and wait up to `wait` seconds for its result.

        Raises `ProviderNotFound`, `ProviderNotConnected` or `ProviderTimeout`, or the error that the
        provider reports: `ProviderExecutionFailed`, or `InvalidRequest` for parameters that it rejects.
        """
        keys, deadline = cache_keys(key.name, key.request_hash), self._runtime.waiters.time() + wait
        # An error that is stored already belongs to an earlier request.
        old_error = await get_error(backend, keys)
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

    async def find_provider(self, key: ProviderRequestKey) -> ProviderRef:
        """Return the provider of a request. Raises `ProviderNotFound`."""
        # SQLite reads it here and now: to share the read would take longer.
        is_alone = self._runtime.database.is_sqlite
        return await (self._read_provider(key) if is_alone else self._shared_provider(key))

    async def _read_provider(self, key: ProviderRequestKey) -> ProviderRef:
        cross_room = self._runtime.settings.cross_room_jobs
        return await self._runtime.database.read_short(
            rules_providers.find, key.room_id, key.name, key.request_hash, cross_room=cross_room
        )

    async def send_once(
        self,
        backend: ResultBackend,
        provider: ProviderRef,
        key: ProviderRequestKey,
        keys: CacheKeys,
        user: str | None,
    ) -> CachedResult | None:
        """Send a user's request to the connected worker unless it is pending. Return a result that exists."""
        self._check_connected(provider)
        if provider.is_pending or keys.inflight in self._sending:
            return None
        self._sending.add(keys.inflight)
        try:
            return await self._send(backend, provider, key, keys, user)
        except BaseException:
            # Another caller that waits sends it.
            self._runtime.waiters.notify([Wake(request_wait_key(key.name, key.request_hash), 1)])
            raise
        finally:
            self._sending.discard(keys.inflight)

    async def _send(
        self,
        backend: ResultBackend,
        provider: ProviderRef,
        key: ProviderRequestKey,
        keys: CacheKeys,
        user: str | None,
    ) -> CachedResult | None:
        settings = self._runtime.settings
        ttl = settings.provider_inflight_ttl_seconds
        has_lock = await backend.acquire_inflight(keys.inflight, ttl)
        if not has_lock:
            if provider.age > ttl or not await self._is_lock_stale(backend, key, keys):
                return None
            # It succeeds if a result came meanwhile.
            has_lock = await backend.acquire_inflight(keys.inflight, ttl)
        try:
            # The result is stored before its lock is released.
            result = await find(backend, provider, keys)
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
        self,
        backend: ResultBackend,
        provider: ProviderRef,
        key: ProviderRequestKey,
        keys: CacheKeys,
        asker: Asker,
    ) -> None:
        """Record a request and send it. If that fails, release its lock."""
        lifetime = timedelta(seconds=self._runtime.settings.provider_inflight_ttl_seconds)
        try:
            if await self._runtime.write_short(
                rules_providers.create, provider, key.request_hash, key.params, lifetime, asker
            ):
                await self._dispatch(provider, key)
        except BaseException:
            await backend.release_inflight(keys.inflight)
            raise

    def _check_connected(self, provider: ProviderRef) -> None:
        if provider.name.room_id == INTERNAL:
            self._internal.find(provider.name)
        elif provider.connected_for <= 0 and not self.has_unknown_subscribers():
            raise rules_providers.not_connected(provider)

    async def _dispatch(self, provider: ProviderRef, key: ProviderRequestKey) -> None:
        """Send a request to an internal provider to the broker. If that fails, it is no longer open."""
        try:
            await self._internal.send(provider.name, provider.id, key.request_hash, key.params)
        except BaseException:
            await self._runtime.write(rules_providers.discard, provider, key.request_hash)
            raise

    async def _is_lock_stale(self, backend: ResultBackend, key: ProviderRequestKey, keys: CacheKeys) -> bool:
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
        access: CallerAccess = OPEN,
    ) -> ProviderClaimResponse:
        """Return the oldest request that is pending for a worker, waiting up to `wait` seconds for one."""
        lease = _LEASES * self._runtime.settings.provider_inflight_ttl_seconds
        item = rules_providers.RequestClaim(
            *(caller, worker_id, claim_id, timedelta(seconds=wait), timedelta(seconds=lease)),
            refused_rooms=await access.check(),
        )
        await self._runtime.touch_worker(caller, worker_id)
        claimed = await self._runtime.write_short(rules_providers.claim, item)
        waiters = self._runtime.waiters
        if claimed is None and wait > 0 and not waiters.is_closed:
            claimed = await self._wait_for_claim(item, disconnected, access)
            is_disconnected = disconnected is not None and disconnected.done()
            if is_disconnected and not waiters.has(requests_key(worker_id)):
                await self._runtime.write(rules_providers.disconnect, worker_id)
        return ProviderClaimResponse(request=claimed)

    async def _wait_for_claim(
        self, item: rules_providers.RequestClaim, disconnected: Disconnected, access: CallerAccess
    ) -> ClaimedProviderRequest | None:
        waiters = self._runtime.waiters
        deadline = waiters.time() + item.wait.total_seconds()
        key = requests_key(item.worker_id)
        # A client that lost its connection claims again before the server notices the loss.
        waiters.evict_oldest(key, self._runtime.settings.max_claims_per_worker)
        keys = [key, worker_key(item.worker_id), *access.keys]
        if item.claim_id is not None:
            keys.append(claim_key(item.claim_id))
            waiters.evict_oldest(keys[-1], 1)

        async def check(waiter: Waiter) -> ClaimedProviderRequest | None:
            current = item._replace(refused_rooms=await access.check())
            claimed = await self._runtime.write_short(rules_providers.claim, current)
            waiter.record(key if claimed else None)
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


@dataclass(slots=True)
class _WaitingRequest:
    """One caller's wait for the result of a request."""

    requests: ProviderRequests
    backend: ResultBackend
    key: ProviderRequestKey
    keys: CacheKeys
    old_error: bytes | None
    disconnected: Disconnected
    access: CallerAccess
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
        source = await snapshot_of(self.backend, self.keys)
        result = await find(self.backend, provider, self.keys, source)
        error = None if result else await get_error(source, self.keys)
        if error is not None and error != self.old_error:
            raise as_problem(provider, error)
        return result


async def _first(*awaitables: Any) -> None:
    """Wait for the first awaitable and cancel the others. Raises the error of the first."""
    tasks = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    try:
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# Uploads of provider results: into the result backend, and from there to all callers that wait.

_UPLOAD_LOCK_SECONDS = 30


class Uploads:
    """The uploads of provider results that this server process receives."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._incoming = IncomingBytes(runtime.settings, "max_result_bytes")

    async def upload(
        self,
        backend: ResultBackend,
        provider: ProviderRef,
        request_hash: str,
        chunks: AsyncIterator[bytes],
        content_length: int = 0,
    ) -> None:
        """Store the result of a request and wake the callers that wait for it.

        `content_length` is 0 if it is unknown. Raises `ContentTooLarge`, which the waiting callers get too,
        `StaleResult`, `UploadStalled`, and `ServiceUnavailable` or `TooManyRequests` while the same result or
        too many bytes are being uploaded. The bytes count for the owner of the provider. A result that cannot
        be stored is requested again.
        """
        keys, limit = cache_keys(provider.name, request_hash), self._runtime.settings.max_result_bytes
        # The lock keeps the bytes of one registration from being stored with the metadata of another.
        if not await backend.acquire_inflight(keys.upload, _UPLOAD_LOCK_SECONDS):
            raise unavailable("The result of this request is being uploaded already")
        try:
            await self._runtime.database.read_short(rules_providers.check_current, provider)
            if content_length > limit:
                raise self._incoming.too_large()
            await self._store(backend, provider, keys, chunks)
        except ContentTooLarge as problem:
            await self._report_too_large(backend, provider, request_hash, problem)
            raise
        except StaleResult:
            raise
        except Exception:
            await backend.release_inflight(keys.inflight)
            await self._runtime.write(rules_providers.discard, provider, request_hash)
            raise
        else:
            await self._complete(backend, provider, request_hash, keys)
        finally:
            await backend.release_inflight(keys.upload)

    async def _report_too_large(
        self, backend: ResultBackend, provider: ProviderRef, request_hash: str, problem: ContentTooLarge
    ) -> None:
        keys = cache_keys(provider.name, request_hash)
        error = ProviderError(error=type(problem).__name__, detail=str(problem))
        await store_error(backend, keys, error.model_dump_json().encode(), is_of_provider=False)
        await self._complete(backend, provider, request_hash, keys)

    async def upload_error(
        self, backend: ResultBackend, provider: ProviderRef, request_hash: str, body: bytes
    ) -> None:
        """Report an error to the callers that wait for a request. A later caller repeats the request.

        A body that is a problem (RFC 9457) is stored like a result: later callers get it too.
        """
        keys = cache_keys(provider.name, request_hash)
        problem = problem_of(body)
        if problem is None:
            await store_error(backend, keys, body)
        else:
            await self._runtime.database.read_short(rules_providers.check_current, provider)
            ttl = self._runtime.settings.provider_result_ttl_seconds
            await store_problem(backend, provider, keys, problem, ttl)
        await self._complete(backend, provider, request_hash, keys)

    async def _store(
        self, backend: ResultBackend, provider: ProviderRef, keys: CacheKeys, chunks: AsyncIterator[bytes]
    ) -> None:
        ttl, digest = self._runtime.settings.provider_result_ttl_seconds, sha256()
        is_removed = await remove_outdated(backend, provider, keys)
        async with aclosing(self._incoming.limited(chunks, digest.update, provider.owner_id)) as limited:
            head = await _read_head(limited)
            is_whole = len(head) <= PART_BYTES
            # The ETag is stored before the bytes only if no older bytes can be taken for them.
            has_etag = is_whole and is_removed
            await store_meta(backend, provider, keys, ttl, etag_of(digest) if has_etag else None)
            if is_whole:
                await backend.store(keys.result, head, ttl)
            else:
                await store_result(backend, keys.result, _prepend(head, limited), ttl)
        if not has_etag:
            await store_meta(backend, provider, keys, ttl, etag_of(digest))

    async def _complete(
        self, backend: ResultBackend, provider: ProviderRef, request_hash: str, keys: CacheKeys
    ) -> None:
        await backend.release_inflight(keys.inflight)
        await backend.notify_key(keys.result)
        await self._runtime.write_short(rules_providers.complete, provider, request_hash)


async def _read_head(chunks: AsyncIterator[bytes]) -> bytes:
    """Read the whole stream if it fits into one part, else until it exceeds one."""
    head = bytearray()
    async for chunk in chunks:
        head += chunk
        if len(head) > PART_BYTES:
            break
    return bytes(head)


async def _prepend(head: bytes, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield head
    async for chunk in chunks:
        yield chunk
