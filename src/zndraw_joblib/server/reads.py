"""The walk of a read: out of the cache, or from whoever is connected for the provider.

Many who ask for the same at once are one read. Nobody who waits holds a database session.
"""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from hashlib import sha256
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from pydantic import ValidationError

from zndraw_joblib.contract.names import JobName
from zndraw_joblib.contract.problems import (
    ContentTooLarge,
    InvalidRequest,
    ProblemException,
    ProviderFailed,
    ProviderTimeout,
    ServiceUnavailable,
)
from zndraw_joblib.contract.providers import (
    ProviderClaimResponse,
    ProviderRead,
    ReadFailure,
    canonical,
    inflight_key,
    request_hash,
    result_key,
)
from zndraw_joblib.server.ports import (
    Identity,
    ResultBackend,
    StreamingBackend,
    claim_key,
    provider_key,
    read_key,
    reads_key,
    worker_key,
)
from zndraw_joblib.server.runtime import Runtime
from zndraw_joblib.server.service import providers
from zndraw_joblib.server.service.providers import Target
from zndraw_joblib.server.service.rules import cut_error
from zndraw_joblib.server.sleepers import Gone

CHUNK = 1024 * 1024
# A wake-up may be lost, and processes on SQLite send each other none.
_RECHECK_FIRST, _RECHECK_GROWTH, _RECHECK_MAX = 1.0, 1.5, 5.0
_DOUBT_SECONDS = 0.1
_RETRY_AFTER = {"Retry-After": "2"}
_FAILURE_SECONDS = 30
# What is known of a result stays longer than the result: without it, the result would pass for a host's own.
_META_SECONDS = 60
# Who has claimed a read and not answered it in so many times the patience of its readers has lost it.
_LEASES = 4
# So many results of the largest size may be on their way in at once.
_UPLOADS = 4


@dataclass(frozen=True, slots=True)
class Found:
    """What a read gives: `size` bytes in `chunks`. `etag` is None where a host has put the bytes there."""

    size: int
    chunks: AsyncIterator[bytes]
    content_type: str
    etag: str | None


class Question(NamedTuple):
    """A read: of which provider, seen from which room, with which parameters."""

    room_id: str
    name: JobName
    params: str
    hash: str


class _Keys(NamedTuple):
    """Under which names a backend keeps what belongs to a read."""

    result: str
    inflight: str
    meta: str
    failure: str


def _keys(name: JobName, hashed: str) -> _Keys:
    rest = f"{name}:{hashed}"
    return _Keys(
        result_key(str(name), hashed),
        inflight_key(str(name), hashed),
        f"provider-meta:{rest}",
        f"provider-failure:{rest}",
    )


def question(room_id: str, name: JobName, params: dict[str, Any]) -> Question:
    """Return a read by its parameters."""
    text = canonical(params)
    return Question(room_id, name, text, request_hash(text))


class Reads:
    """Answers reads, gives them to those who claim them, and takes what they bring.

    `is_blind` tells whether somebody may be connected whom we do not know of: a host may let sockets into the
    rooms of providers by itself.
    """

    def __init__(self, runtime: Runtime, is_blind: Callable[[], bool]) -> None:
        self._runtime = runtime
        self._is_blind = is_blind
        self._incoming = 0
        runtime.looks.append(self._look_for_claims)

    async def read(self, backend: ResultBackend, asked: Question, wait: float, gone: Gone = None) -> Found:
        """Return what is cached, else what is brought within `wait` seconds.

        Raises `ProviderNotFound`, `ProviderNotConnected`, `ProviderTimeout`, and what the provider says that
        went wrong: `ProviderFailed`, or `InvalidRequest` for parameters that do not fit.
        """
        keys, deadline = _keys(asked.name, asked.hash), time.monotonic() + wait
        if (found := await self.cached(backend, asked)) is not None:
            return found
        waits_on = [read_key(asked.name, asked.hash), provider_key(asked.name)]
        # What went wrong before is not of this read.
        known = await _failure(backend, keys)
        pause = _RECHECK_FIRST
        with self._runtime.sleepers.enter(waits_on) as sleeper:
            while True:
                self._runtime.sleepers.look(sleeper)
                target = await self._target(asked)
                found = await _look(backend, target, keys, known)
                found = found or await self._ask_once(backend, target, asked, keys)
                if found is not None:
                    return found
                left = deadline - time.monotonic()
                if left <= 0 or self._runtime.sleepers.is_closed or (gone is not None and gone.done()):
                    raise _timeout(target)
                heard_for = left if self._is_blind() else target.heard_for
                seconds = min(left, pause, heard_for)
                await _first(backend.wait_for_key(keys.result, seconds), sleeper.sleep(seconds, gone))
                pause = min(pause * _RECHECK_GROWTH, _RECHECK_MAX)

    async def cached(self, backend: ResultBackend, asked: Question) -> Found | None:
        """Return what was read before, None if nothing was. Raises `ProviderNotFound`."""
        return await _find(backend, await self._target(asked), _keys(asked.name, asked.hash))

    async def _target(self, asked: Question) -> Target:
        cross_room = self._runtime.settings.cross_room_jobs
        find = partial(providers.find, room_id=asked.room_id, name=asked.name, request_hash=asked.hash)
        return await self._runtime.database.read(partial(find, cross_room=cross_room))

    async def _ask_once(
        self, backend: ResultBackend, target: Target, asked: Question, keys: _Keys
    ) -> Found | None:
        """Ask whoever is connected, unless somebody else has asked the same. Return what came meanwhile."""
        ttl = self._runtime.settings.provider_inflight_ttl_seconds
        if target.heard_for <= 0 and not self._is_blind():
            raise providers.nobody(target)
        if target.is_asked:
            return None
        has_lock = await backend.acquire_inflight(keys.inflight, ttl)
        if not has_lock:
            # The lock may be of a provider of this name that is gone, and was asked in vain.
            if target.age > ttl:
                return None
            await asyncio.sleep(_DOUBT_SECONDS)
            if (await self._target(asked)).is_asked:
                return None
        try:
            # Who gives the lock back has stored the result before.
            found = await _find(backend, target, keys)
            if found is None:
                ask = partial(providers.ask, target=target, request_hash=asked.hash, params=asked.params)
                await self._runtime.write(partial(ask, wanted=timedelta(seconds=ttl)))
                has_lock = False  # until there is an answer
        finally:
            if has_lock:
                await backend.release_inflight(keys.inflight)
        return found

    async def claim(
        self,
        caller: Identity,
        worker_id: UUID,
        wait: float = 0,
        gone: Gone = None,
        claim_id: UUID | None = None,
    ) -> ProviderClaimResponse:
        """Give a worker the oldest read that waits for it; sleep up to `wait` seconds for one."""
        lease = _LEASES * self._runtime.settings.provider_inflight_ttl_seconds
        item = providers.Claim(caller, worker_id, claim_id, timedelta(seconds=wait), timedelta(seconds=lease))
        await self._runtime.note_life(caller, worker_id)
        got = await self._runtime.write(partial(providers.claim, item=item))
        if got is None and wait > 0 and not self._runtime.sleepers.is_closed:
            got = await self._claim_asleep(item, gone)
            if gone is not None and gone.done() and not self._runtime.sleepers.has(reads_key(worker_id)):
                await self._runtime.write(partial(providers.part, worker_id=worker_id))
        return ProviderClaimResponse(request=got)

    async def _claim_asleep(self, item: providers.Claim, gone: Gone) -> ProviderRead | None:
        sleepers, deadline = self._runtime.sleepers, time.monotonic() + item.wait.total_seconds()
        key = reads_key(item.worker_id)
        # A client that lost its connection asks anew, while we take the old one for alive.
        sleepers.make_place(key, self._runtime.settings.max_claims_per_worker)
        marks = [] if item.claim_id is None else [claim_key(item.claim_id)]
        for mark in marks:
            sleepers.make_place(mark, 1)
        with sleepers.enter([key, worker_key(item.worker_id), *marks]) as sleeper:
            self._runtime.start_recheck()
            while True:
                sleepers.look(sleeper)
                got = await self._runtime.write(partial(providers.claim, item=item))
                sleeper.found(key if got else None)
                left = deadline - time.monotonic()
                if got is not None or left <= 0 or sleepers.is_closed:
                    return got
                await sleeper.sleep(left, gone)
                if sleeper.is_dismissed or (gone is not None and gone.done()):
                    return None

    async def _look_for_claims(self, slept_on: list[list[str]]) -> None:
        ids = [UUID(name) for kind, name in slept_on if kind == "reads"]
        if ids:
            awaited = await self._runtime.database.read(partial(providers.awaited_from, worker_ids=ids))
            for worker_id in awaited:
                self._runtime.sleepers.wake(reads_key(worker_id), 1)

    async def bring(
        self, backend: ResultBackend, target: Target, hashed: str, chunks: AsyncIterator[bytes]
    ) -> None:
        """Keep the answer to a read for all who ask for the same, and let those who wait know.

        Raises `ContentTooLarge`, `ServiceUnavailable` while too much is on its way in, and `StaleResult`.
        """
        keys, digest = _keys(target.name, hashed), sha256()
        ttl = self._runtime.settings.provider_result_ttl_seconds
        meta = {"registration": str(target.registration), "content_type": target.content_type}
        if not _is_of(await backend.get(keys.meta), target):
            await backend.delete(keys.result)
        await backend.store(keys.meta, json.dumps(meta).encode(), ttl + _META_SECONDS)
        async with aclosing(self._measured(chunks, digest.update)) as measured:
            await _store(backend, keys.result, measured, ttl)
        meta["etag"] = digest.hexdigest()[:32]
        await backend.store(keys.meta, json.dumps(meta).encode(), ttl + _META_SECONDS)
        await self._settle(backend, target, hashed, keys)

    async def bring_failure(self, backend: ResultBackend, target: Target, hashed: str, body: bytes) -> None:
        """Let those who wait for a read know what went wrong. Who asks later asks the provider again."""
        keys = _keys(target.name, hashed)
        said = {"id": uuid4().hex, **_failure_of(body).model_dump()}
        await backend.store(keys.failure, json.dumps(said).encode(), _FAILURE_SECONDS)
        await self._settle(backend, target, hashed, keys)

    async def _settle(self, backend: ResultBackend, target: Target, hashed: str, keys: _Keys) -> None:
        await backend.release_inflight(keys.inflight)
        await backend.notify_key(keys.result)
        await self._runtime.write(partial(providers.answered, target=target, request_hash=hashed))

    async def _measured(
        self, chunks: AsyncIterator[bytes], note: Callable[[bytes], None]
    ) -> AsyncGenerator[bytes]:
        most, size = self._runtime.settings.max_result_bytes, 0
        try:
            async for chunk in chunks:
                size += len(chunk)
                self._incoming += len(chunk)
                if size > most:
                    raise too_large(most)
                if self._incoming > _UPLOADS * most:
                    raise ServiceUnavailable(
                        "Too many results are on their way in; try again", headers={"Retry-After": "1"}
                    )
                note(chunk)
                yield chunk
        finally:
            self._incoming -= size


def too_large(most: int) -> ContentTooLarge:
    """Return the problem of a result that has too many bytes."""
    return ContentTooLarge(f"A result may have {most} bytes (setting max_result_bytes)")


async def _store(backend: ResultBackend, key: str, chunks: AsyncIterator[bytes], ttl: int) -> None:
    if isinstance(backend, StreamingBackend):
        await backend.store_stream(key, chunks, ttl)
    else:
        await backend.store(key, b"".join([chunk async for chunk in chunks]), ttl)


def _is_of(meta: bytes | None, target: Target) -> bool:
    """Tell whether bytes are of the registration that holds now. Else a host put them there."""
    return meta is None or json.loads(meta)["registration"] == str(target.registration)


async def _look(backend: ResultBackend, target: Target, keys: _Keys, known: bytes | None) -> Found | None:
    """Return what was read. Raises what went wrong with it, unless that was `known` before."""
    found = await _find(backend, target, keys)
    failure = None if found else await _failure(backend, keys)
    if failure is not None and failure != known:
        raise _problem(target, failure)
    return found


async def _find(backend: ResultBackend, target: Target, keys: _Keys) -> Found | None:
    meta = await backend.get(keys.meta)
    if not _is_of(meta, target):
        await backend.delete(keys.result)
        await backend.delete(keys.meta)
        return None
    said = json.loads(meta) if meta is not None else {}
    opened = await _open(backend, keys.result)
    if opened is None:
        return None
    return Found(*opened, said.get("content_type", target.content_type), said.get("etag"))


async def _open(backend: ResultBackend, key: str) -> tuple[int, AsyncIterator[bytes]] | None:
    if isinstance(backend, StreamingBackend):
        return await backend.open_stream(key)
    data = await backend.get(key)
    return None if data is None else (len(data), _sliced(data))


async def _sliced(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), CHUNK):
        yield data[start : start + CHUNK]


async def _failure(backend: ResultBackend, keys: _Keys) -> bytes | None:
    return await backend.get(keys.failure)


def _failure_of(body: bytes) -> ReadFailure:
    """Return what was said of a failed read, be it the shape that is expected or any text."""
    try:
        said = ReadFailure.model_validate_json(body)
    except ValidationError:
        said = ReadFailure(detail=body.decode("utf-8", "replace"))
    return said.model_copy(update={"detail": cut_error(said.detail) or ""})


def _problem(target: Target, failure: bytes) -> ProblemException:
    said = json.loads(failure)
    detail = f"Provider {str(target.name)!r}: {said['detail'] or said['error']}"
    if said["is_invalid"]:
        return InvalidRequest(detail, error=said["error"])
    return ProviderFailed(detail, error=said["error"])


def _timeout(target: Target) -> ProviderTimeout:
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
