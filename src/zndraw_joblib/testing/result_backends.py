"""A conformance test of result backends, for hosts that implement their own."""

import asyncio
import inspect
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from math import inf
from typing import Any
from uuid import uuid4

from zndraw_joblib.server.process.ports import PART_BYTES, ResultBackend, StreamingBackend

MakeBackend = Callable[[], ResultBackend | Awaitable[ResultBackend]]
_Check = Callable[["_Checker"], Coroutine[Any, Any, None]]

_TTL = 60  # longer than any check takes
_CALLERS = 200
_SLICES = 50
_AFTER_TTL_SECONDS = 1.35
# How much later than its timeout a wait may end, without the pauses of the event loop.
_LATE_SECONDS = 2.0
_UNUSUAL_KEYS = ("", " ", "a b", "a:b:c", "x*?[y]", "%s{}'\"\\", "line\nbreak", "häß→", "k" * 500)


async def check_result_backend(
    make: MakeBackend, *, check_timeout: float = 30.0, wake_timeout: float = 5.0
) -> None:
    """Check that a result backend meets every requirement of `ResultBackend`.

    `make` returns the backend, or an awaitable of it, and is called once. If the backend is also a
    `StreamingBackend`, its streams are checked too. The test uses new keys only and takes about two seconds.
    Each requirement must be checked within `check_timeout` seconds; a waiting caller that is notified must
    return within `wake_timeout` seconds.

    Raises AssertionError with a sentence that names the broken requirement.
    """
    result = make()
    backend: Any = await result if inspect.isawaitable(result) else result
    checker = _Checker(backend, wake_timeout)
    for check in [*_CHECKS, *(_STREAM_CHECKS if isinstance(backend, StreamingBackend) else ())]:
        requirement = inspect.getdoc(check)
        try:
            async with asyncio.timeout(check_timeout):
                await check(checker)
        except TimeoutError as error:
            raise AssertionError(
                f"The backend hangs or is too slow (over {check_timeout:g} s). Required: {requirement}"
            ) from error
        except AssertionError as error:
            raise AssertionError(f"{error}. Required: {requirement}") from error


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def _new_key(name: str = "") -> str:
    return f"conformance:{uuid4()}:{name}"


def _equals(value: object, expected: bytes | None) -> bool:
    return type(value) is type(expected) and value == expected


async def _still_pending(tasks: Sequence[asyncio.Future[Any]], seconds: float) -> set[asyncio.Future[Any]]:
    """Wait for tasks, and return those that are not done after these seconds.

    The time is measured in slices: however long a busy machine pauses the event loop, it has many cycles.
    """
    pending = set(tasks)
    for _ in range(_SLICES):
        _, pending = await asyncio.wait(pending, timeout=seconds / _SLICES)
        if not pending:
            break
    return pending


class _BrokenStreamError(Exception):
    """The error of an iterator that `store_stream` reads."""


async def _stream(*chunks: bytes, fails: bool = False) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk
    if fails:
        raise _BrokenStreamError


class _Checker:
    """The checks of one backend; the docstring of each states the requirement."""

    def __init__(self, backend: Any, wake_timeout: float) -> None:
        self.backend = backend
        self.wake_timeout = wake_timeout

    async def returns_what_was_stored(self) -> None:
        """`get` returns the bytes that were stored last under exactly this key."""
        backend = self.backend
        for name in _UNUSUAL_KEYS:
            key, data = _new_key(name), uuid4().hex.encode()
            _require(await backend.get(key) is None, f"get of the unknown key {key!r} is not None")
            await backend.store(key, data, _TTL)
            _require(
                _equals(await backend.get(key), data), f"get does not return what was stored under {key!r}"
            )
        long = _new_key("long" * 100)
        similar = [long, long + "1", long + "2", long.upper(), long + " "]
        for key in similar:
            await backend.store(key, key.encode(), _TTL)
        stored = [await backend.get(key) for key in similar]
        _require(stored == [key.encode() for key in similar], "similar keys are taken for one another")
        key, values = _new_key(), (b"", bytes(range(256)) * 5, b"\0", os.urandom(PART_BYTES))
        for data in (os.urandom(5 * PART_BYTES + 1), *values):
            await backend.store(key, data, _TTL)
            _require(
                _equals(await backend.get(key), data),
                f"get does not return the {len(data)} bytes stored last",
            )

    async def deletes_one_key(self) -> None:
        """`delete` removes one key and no other; deleting an unknown key is not an error."""
        backend, key, other = self.backend, _new_key(), _new_key()
        await backend.store(key, b"1", _TTL)
        await backend.store(other, b"2", _TTL)
        await backend.delete(key)
        await backend.delete(key)
        await backend.delete(_new_key())
        _require(await backend.get(key) is None, "get returns a deleted value")
        _require(await backend.get(other) == b"2", "delete of one key removes another")

    async def locks_exclude(self) -> None:
        """One caller at a time holds a lock, until it is released."""
        backend, key, other = self.backend, _new_key(), _new_key()
        for _ in range(3):
            acquired = await asyncio.gather(*[backend.acquire_inflight(key, _TTL) for _ in range(_CALLERS)])
            _require(
                sum(acquired) == 1, f"{sum(acquired)} of {_CALLERS} callers got one lock at the same time"
            )
            _require(await backend.acquire_inflight(key, _TTL) is False, "a lock is acquired twice")
            _require(await backend.acquire_inflight(other, _TTL) is True, "a lock on one key locks another")
            await backend.release_inflight(other)
            await backend.release_inflight(key)
        await backend.release_inflight(_new_key())
        await backend.acquire_inflight(key, _TTL)
        await backend.store(other, b"1", _TTL)
        await backend.delete(other)
        _require(await backend.acquire_inflight(key, _TTL) is False, "a lock is lost when a value is stored")
        await backend.release_inflight(key)

    async def expires(self) -> None:
        """Values and locks last for their `ttl`, and no longer."""
        streams = [self._streams_expire()] if isinstance(self.backend, StreamingBackend) else []
        await asyncio.gather(self._values_expire(), self._locks_expire(), *streams)

    async def _values_expire(self) -> None:
        backend = self.backend
        expired, lasting, longer, shorter = [_new_key(name) for name in "ekls"]
        await backend.store(lasting, b"1", _TTL)
        await backend.store(longer, b"1", 1)
        await backend.store(longer, b"2", _TTL)
        await backend.store(shorter, b"1", _TTL)
        began = asyncio.get_running_loop().time()
        await backend.store(expired, b"1", 1)
        await backend.store(shorter, b"2", 1)
        early = await backend.get(expired), await backend.get(shorter)
        _require(early == (b"1", b"2") or _is_late(began), "a value with a ttl of 1 s expires too early")
        await asyncio.sleep(_AFTER_TTL_SECONDS)
        _require(await backend.get(expired) is None, "get returns an expired value: `ttl` is ignored")
        _require(await backend.get(shorter) is None, "a store with a shorter ttl does not shorten the ttl")
        _require(await backend.wait_for_key(expired, 0) is None, "wait_for_key returns an expired value")
        _require(await backend.get(lasting) == b"1", f"a value with a ttl of {_TTL} s is gone after a second")
        _require(await backend.get(longer) == b"2", "a store with a longer ttl does not lengthen the ttl")

    async def _locks_expire(self) -> None:
        backend, lock, held = self.backend, _new_key(), _new_key()
        await backend.acquire_inflight(held, _TTL)
        began = asyncio.get_running_loop().time()
        await backend.acquire_inflight(lock, 1)
        is_free = await backend.acquire_inflight(lock, 1)
        _require(not is_free or _is_late(began), "a lock with a ttl of 1 s expires too early")
        await asyncio.sleep(_AFTER_TTL_SECONDS)
        acquired = await asyncio.gather(*[backend.acquire_inflight(lock, _TTL) for _ in range(_CALLERS)])
        _require(sum(acquired) == 1, f"{sum(acquired)} of {_CALLERS} callers got an expired lock")
        _require(
            await backend.acquire_inflight(held, 1) is False,
            f"a lock with a ttl of {_TTL} s is free after a second",
        )
        await backend.release_inflight(held)

    async def _streams_expire(self) -> None:
        backend, key, lasting = self.backend, _new_key(), _new_key()
        for large in (b"1", b"1" * PART_BYTES, b"1"):
            await backend.store_stream(lasting, _stream(large, large), _TTL)
        await backend.store_stream(key, _stream(b"1"), _TTL)
        began = asyncio.get_running_loop().time()
        await backend.store_stream(key, _stream(b"1", b"2"), 1)
        early = await backend.get(key)
        _require(early == b"12" or _is_late(began), "a stream with a ttl of 1 s expires too early")
        await asyncio.sleep(_AFTER_TTL_SECONDS)
        _require(await backend.get(key) is None, "store_stream ignores `ttl`")
        _require(await backend.open_stream(key) is None, "open_stream returns an expired value")
        _require(
            await backend.get(lasting) == b"11", f"a stream with a ttl of {_TTL} s is gone after a second"
        )

    async def returns_at_once(self) -> None:
        """`wait_for_key` returns a stored value at once."""
        backend, key = self.backend, _new_key()
        await backend.store(key, b"1", _TTL)
        value = await self._within_wake_timeout(
            backend.wait_for_key(key, _TTL), "wait_for_key waits although the value is stored"
        )
        _require(value == b"1", "wait_for_key does not return the stored value")
        _require(
            await backend.wait_for_key(key, 0) == b"1",
            "wait_for_key with a timeout of 0 does not return the stored value",
        )

    async def _within_wake_timeout(
        self, waiting: Awaitable[bytes | None], message: str, longest: float = inf
    ) -> bytes | None:
        task = asyncio.ensure_future(waiting)
        try:
            _require(not await _still_pending([task], min(self.wake_timeout, longest)), message)
            return task.result()
        finally:
            task.cancel()

    async def misses_no_notification(self) -> None:
        """A value that is stored and notified at any moment of a wait ends the wait."""

        async def attempt(number: int) -> bytes | None:
            key = _new_key()
            waiting = asyncio.create_task(self.backend.wait_for_key(key, _TTL))
            for _ in range(number % 20):
                await asyncio.sleep(0)
            await asyncio.sleep(0.0005 * (number // 20))
            await self.backend.store(key, b"%d" % number, _TTL)
            for _ in range(number % 3):
                await asyncio.sleep(0)
            await self.backend.notify_key(key)
            message = f"wait_for_key misses a value that is stored while the wait begins (attempt {number})"
            return await self._within_wake_timeout(waiting, message)

        for start in range(0, 300, 100):
            numbers = range(start, start + 100)
            values = await asyncio.gather(*[attempt(number) for number in numbers])
            _require(
                values == [b"%d" % number for number in numbers],
                "wait_for_key returns the value of another key",
            )

    async def ends_a_wait_without_a_value(self) -> None:
        """A notification of a key without a value ends the wait with None."""
        key = _new_key()
        waiting = asyncio.create_task(self.backend.wait_for_key(key, _TTL))
        for _ in range(_SLICES):
            await self.backend.notify_key(key)
            if not await _still_pending([waiting], self.wake_timeout / _SLICES):
                break
        if waiting.cancel():
            raise AssertionError("wait_for_key goes on waiting after a notification without a value")
        _require(waiting.result() is None, "wait_for_key returns a value although none is stored")

    async def wakes_all_callers(self) -> None:
        """One notification wakes all callers that wait for its key, and no caller of another key."""
        backend, key, other = self.backend, _new_key(), _new_key()
        waiting = [asyncio.create_task(backend.wait_for_key(key, _TTL)) for _ in range(_CALLERS + 20)]
        elsewhere = asyncio.create_task(backend.wait_for_key(other, _TTL))
        await asyncio.sleep(0.1)
        for cancelled in waiting[::11]:
            cancelled.cancel()
        await asyncio.sleep(0)
        await backend.store(key, b"1", _TTL)
        await backend.notify_key(key)
        pending = await _still_pending(waiting, 2 * self.wake_timeout)
        _require(not pending, f"a notification leaves {len(pending)} of {_CALLERS} callers waiting")
        values = [task.result() for task in waiting if not task.cancelled()]
        _require(values == [b"1"] * _CALLERS, "a notified caller does not get the stored value")
        _require(not elsewhere.done(), "a notification ends a wait for another key")
        await backend.store(other, b"2", _TTL)
        await backend.notify_key(other)
        message = "the notification of one key is lost after that of another"
        _require(
            await self._within_wake_timeout(elsewhere, message) == b"2",
            "wait_for_key returns the value of another key",
        )

    async def respects_the_timeout(self) -> None:
        """A wait ends after its timeout, with None."""
        loop = asyncio.get_running_loop()
        for seconds in (0, 0.3):
            began = loop.time()
            waiting = self.backend.wait_for_key(_new_key(), seconds)
            value = await self._within_wake_timeout(
                waiting, f"a wait of {seconds} s takes too long", seconds + _LATE_SECONDS
            )
            took = loop.time() - began
            _require(value is None, "wait_for_key returns a value although none is stored")
            _require(took >= 0.9 * seconds, f"a wait of {seconds} s ends after {took:.2f} s")

    async def streams(self) -> None:
        """A stream returns the size and the bytes of a value in chunks of at most 1 MiB."""
        backend = self.backend
        _require(await backend.open_stream(_new_key()) is None, "open_stream of an unknown key is not None")
        large = os.urandom(3 * PART_BYTES + 7)
        for chunks in ((), (b"",), (b"abc", b"", b"d"), (large,), (large[:10], large[10:]), (b"x",) * 1000):
            data = b"".join(chunks)
            streamed, whole = _new_key(), _new_key()
            await backend.store_stream(streamed, _stream(*chunks), _TTL)
            await backend.store(whole, data, _TTL)
            for key in (streamed, whole):
                await self._check_stream(key, data)

    async def _check_stream(self, key: str, data: bytes) -> None:
        opened = await self.backend.open_stream(key)
        if opened is None:
            raise AssertionError("open_stream does not find a stored value")
        async with aclosing(opened[1]) as stream:
            size, chunks = opened[0], [bytes(chunk) async for chunk in stream]
        _require(size == len(data), f"open_stream returns the size {size} for {len(data)} stored bytes")
        _require(b"".join(chunks) == data, "open_stream returns other bytes than were stored")
        _require(
            max(map(len, chunks), default=0) <= PART_BYTES, "open_stream returns more than 1 MiB at once"
        )
        _require(await self.backend.get(key) == data, "get does not return what store_stream stored")

    async def stores_streams_atomically(self) -> None:
        """A stream is visible after its last chunk, and not at all if its iterator raises."""
        for before in (None, b"before"):
            for fails in (True, False):
                key = _new_key()
                if before is not None:
                    await self.backend.store(key, before, _TTL)
                await self._store_observed(key, before, fails)
                after = before if fails else b"12" * PART_BYTES
                _require(
                    await self.backend.get(key) == after, "a stream that breaks off changes the stored value"
                )

    async def _store_observed(self, key: str, before: bytes | None, fails: bool) -> None:
        async def observed() -> AsyncIterator[bytes]:
            async for chunk in _stream(b"12" * PART_BYTES, b"", fails=fails):
                yield chunk
                _require(
                    await self.backend.get(key) == before,
                    "a stream is visible before its last chunk is stored",
                )

        try:
            await self.backend.store_stream(key, observed(), _TTL)
        except _BrokenStreamError:
            return
        _require(not fails, "store_stream ignores an error of its iterator")

    async def never_mixes_values(self) -> None:
        """A reader gets the bytes of the moment when it opened the stream, or an error."""
        backend, old, new = self.backend, b"o" * (4 * PART_BYTES), b"n" * (4 * PART_BYTES)
        for replacement in (new, b"n", None):
            key = _new_key()
            await backend.store(key, old, _TTL)
            _, stream = await backend.open_stream(key)
            async with aclosing(stream):
                values = [bytes(await anext(stream))]
                if replacement is None:
                    await backend.delete(key)
                else:
                    await backend.store(key, replacement, _TTL)
                try:
                    values += [bytes(chunk) async for chunk in stream]
                except Exception:  # noqa: S112 - the backend may raise any error
                    continue
            _require(
                b"".join(values) == old, "a stream returns other or fewer bytes after its key is written"
            )


def _is_late(began: float) -> bool:
    return asyncio.get_running_loop().time() - began > 0.9


_CHECKS: tuple[_Check, ...] = (
    _Checker.returns_what_was_stored,
    _Checker.deletes_one_key,
    _Checker.locks_exclude,
    _Checker.returns_at_once,
    _Checker.misses_no_notification,
    _Checker.ends_a_wait_without_a_value,
    _Checker.wakes_all_callers,
    _Checker.respects_the_timeout,
    _Checker.expires,
)
_STREAM_CHECKS: tuple[_Check, ...] = (
    _Checker.streams,
    _Checker.stores_streams_atomically,
    _Checker.never_mixes_values,
)
