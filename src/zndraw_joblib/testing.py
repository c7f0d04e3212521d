"""What the queue relies on in a result backend, as checks that a host can run on its own."""

import asyncio
import inspect
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Any
from uuid import uuid4

from zndraw_joblib.server.ports import PART_BYTES, ResultBackend, StreamingBackend

Make = Callable[[], ResultBackend | Awaitable[ResultBackend]]

_LONG = 60  # seconds that nobody waits for
_PATIENCE = 30.0
_SOON = 5.0
_CROWD = 200
_PAST_A_TTL = 1.35
_ODD = ("", " ", "a b", "a:b:c", "x*?[y]", "%s{}'\"\\", "line\nbreak", "häß→", "k" * 500)


async def check_result_backend(make: Make) -> None:
    """Check whether a result backend keeps every promise of `ResultBackend`.

    `make` returns the backend, or an awaitable of it; it is called once. Where the backend is a
    `StreamingBackend` too, that is checked as well. All keys are new ones. It takes about two seconds.

    Raises AssertionError, with a sentence that says what is broken.
    """
    made = make()
    backend: ResultBackend = await made if inspect.isawaitable(made) else made
    for check in [*_CHECKS, *(_STREAMING if isinstance(backend, StreamingBackend) else ())]:
        about = (inspect.getdoc(check) or "").rstrip(".")
        try:
            async with asyncio.timeout(_PATIENCE):
                await check(backend)
        except TimeoutError as error:
            raise AssertionError(f"It hangs, or is far too slow. Promised: {about}.") from error
        except AssertionError as error:
            raise AssertionError(f"{error}. Promised: {about}.") from error


def _hold(holds: bool, sentence: str) -> None:
    if not holds:
        raise AssertionError(sentence)


def _key(name: str = "") -> str:
    return f"conformance:{uuid4()}:{name}"


def _is_bytes(found: object, wanted: bytes | None) -> bool:
    return type(found) is type(wanted) and found == wanted


async def _keeps(backend: ResultBackend) -> None:
    """What is stored is what one gets, whatever the bytes and the key, until the next store."""
    for name in _ODD:
        key, data = _key(name), uuid4().hex.encode()
        _hold(await backend.get(key) is None, f"get of the unknown key {key!r} is not None")
        await backend.store(key, data, _LONG)
        _hold(_is_bytes(await backend.get(key), data), f"get does not return what was stored under {key!r}")
    long = _key("long" * 100)
    alike = [long, long + "1", long + "2", long.upper(), long + " "]
    for key in alike:
        await backend.store(key, key.encode(), _LONG)
    found = [await backend.get(key) for key in alike]
    _hold(found == [key.encode() for key in alike], "keys that are alike are taken for one another")
    key = _key()
    for data in (os.urandom(5 * PART_BYTES + 1), b"", bytes(range(256)) * 5, b"\0", os.urandom(PART_BYTES)):
        await backend.store(key, data, _LONG)
        _hold(
            _is_bytes(await backend.get(key), data), f"get does not return the {len(data)} bytes stored last"
        )


async def _forgets(backend: ResultBackend) -> None:
    """What was deleted is gone, and nothing else; to delete what is not there is no fault."""
    key, other = _key(), _key()
    await backend.store(key, b"1", _LONG)
    await backend.store(other, b"2", _LONG)
    await backend.delete(key)
    await backend.delete(key)
    await backend.delete(_key())
    _hold(await backend.get(key) is None, "get returns what was deleted")
    _hold(await backend.get(other) == b"2", "delete of one key takes another away")


async def _excludes(backend: ResultBackend) -> None:
    """A lock is had by one caller at a time, until it is given back."""
    key, other = _key(), _key()
    for _ in range(3):
        got = await asyncio.gather(*[backend.acquire_inflight(key, _LONG) for _ in range(_CROWD)])
        _hold(sum(got) == 1, f"{sum(got)} of {_CROWD} callers got one lock at the same time")
        _hold(await backend.acquire_inflight(key, _LONG) is False, "acquire_inflight gives a lock twice")
        _hold(await backend.acquire_inflight(other, _LONG) is True, "a lock on one key locks another")
        await backend.release_inflight(other)
        await backend.release_inflight(key)
    await backend.release_inflight(_key())
    await backend.acquire_inflight(key, _LONG)
    await backend.store(other, b"1", _LONG)
    await backend.delete(other)
    _hold(await backend.acquire_inflight(key, _LONG) is False, "a lock is lost when something is stored")
    await backend.release_inflight(key)


async def _expires(backend: ResultBackend) -> None:
    """Values and locks last as long as they were asked for, and no longer."""
    streamed = [_streamed_expires(backend)] if isinstance(backend, StreamingBackend) else []
    await asyncio.gather(_kept_expires(backend), *streamed)


async def _kept_expires(backend: ResultBackend) -> None:
    gone, kept, longer, shorter, lock, held = [_key(name) for name in "gklsLh"]
    await backend.store(kept, b"1", _LONG)
    await backend.store(longer, b"1", 1)
    await backend.store(longer, b"2", _LONG)
    await backend.store(shorter, b"1", _LONG)
    await backend.acquire_inflight(held, _LONG)
    began = asyncio.get_running_loop().time()
    await backend.acquire_inflight(lock, 1)
    await backend.store(gone, b"1", 1)
    await backend.store(shorter, b"2", 1)
    early = await backend.acquire_inflight(lock, _LONG), await backend.get(gone), await backend.get(shorter)
    _hold(early == (False, b"1", b"2") or _is_late(began), "what was asked for a second is gone before")
    await asyncio.sleep(_PAST_A_TTL)
    _hold(await backend.get(gone) is None, "get returns what has expired: `ttl` is ignored")
    _hold(await backend.get(shorter) is None, "a store with a shorter ttl does not shorten the time")
    _hold(await backend.wait_for_key(gone, 0) is None, "wait_for_key returns what has expired")
    _hold(await backend.get(kept) == b"1", f"what was stored for {_LONG} s is gone after a second")
    _hold(await backend.get(longer) == b"2", "a store with a longer ttl does not lengthen the time")
    got = await asyncio.gather(*[backend.acquire_inflight(lock, _LONG) for _ in range(_CROWD)])
    _hold(sum(got) == 1, f"{sum(got)} of {_CROWD} callers got a lock that had expired")
    _hold(await backend.acquire_inflight(held, 1) is False, f"a lock for {_LONG} s is free after a second")
    await backend.release_inflight(held)


async def _returns_at_once(backend: ResultBackend) -> None:
    """`wait_for_key` returns at once what is there already."""
    key = _key()
    await backend.store(key, b"1", _LONG)
    found = await _soon(backend.wait_for_key(key, _LONG), "wait_for_key waits for what is there already")
    _hold(found == b"1", "wait_for_key does not return what is there already")
    _hold(
        await backend.wait_for_key(key, 0) == b"1", "wait_for_key without time does not return what is there"
    )


async def _soon(waiting: Awaitable[bytes | None], sentence: str) -> bytes | None:
    try:
        async with asyncio.timeout(_SOON):
            return await waiting
    except TimeoutError:
        raise AssertionError(sentence) from None


async def _misses_nothing(backend: ResultBackend) -> None:
    """What is stored and told of at any moment of a wait ends the wait."""

    async def one(number: int) -> bytes | None:
        key = _key()
        waiting = asyncio.create_task(backend.wait_for_key(key, _LONG))
        for _ in range(number % 20):
            await asyncio.sleep(0)
        await asyncio.sleep(0.0005 * (number // 20))
        await backend.store(key, b"%d" % number, _LONG)
        for _ in range(number % 3):
            await asyncio.sleep(0)
        await backend.notify_key(key)
        missed = f"wait_for_key misses what is stored and told of while it begins to wait (try {number})"
        return await _soon(waiting, missed)

    for start in range(0, 300, 100):
        numbers = range(start, start + 100)
        found = await asyncio.gather(*[one(number) for number in numbers])
        _hold(found == [b"%d" % number for number in numbers], "wait_for_key returns something else")


async def _tells_of_nothing(backend: ResultBackend) -> None:
    """A notice where nothing is kept ends the wait with None."""
    key = _key()
    waiting = asyncio.create_task(backend.wait_for_key(key, _LONG))
    loop = asyncio.get_running_loop()
    patience = loop.time() + _SOON
    while not waiting.done() and loop.time() < patience:
        await backend.notify_key(key)
        await asyncio.wait([waiting], timeout=0.02)
    if not waiting.cancel():
        _hold(waiting.result() is None, "wait_for_key returns something where nothing is kept")
        return
    raise AssertionError("wait_for_key goes on waiting after a notice, where nothing is kept")


async def _wakes_all(backend: ResultBackend) -> None:
    """One notice wakes all who wait for the key; who gave up, or waits for another key, takes none of it."""
    key, other = _key(), _key()
    waiting = [asyncio.create_task(backend.wait_for_key(key, _LONG)) for _ in range(_CROWD + 20)]
    elsewhere = asyncio.create_task(backend.wait_for_key(other, _LONG))
    await asyncio.sleep(0.1)
    for given_up in waiting[::11]:
        given_up.cancel()
    await asyncio.sleep(0)
    await backend.store(key, b"1", _LONG)
    await backend.notify_key(key)
    done, pending = await asyncio.wait(waiting, timeout=2 * _SOON)
    _hold(not pending, f"a notice leaves {len(pending)} of {_CROWD} waiting")
    found = [task.result() for task in done if not task.cancelled()]
    _hold(found == [b"1"] * _CROWD, "some who were woken do not get what is kept")
    _hold(not elsewhere.done(), "a notice ends a wait for another key")
    await backend.store(other, b"2", _LONG)
    await backend.notify_key(other)
    _hold(
        await _soon(elsewhere, "a notice for one key uses up that for another") == b"2", "a wait mixes keys"
    )


async def _gives_up(backend: ResultBackend) -> None:
    """A wait ends after its time, with None."""
    loop = asyncio.get_running_loop()
    for seconds in (0, 0.3):
        began = loop.time()
        found = await _soon(backend.wait_for_key(_key(), seconds), f"a wait of {seconds} s takes too long")
        took = loop.time() - began
        _hold(found is None, "wait_for_key returns something where nothing is kept")
        _hold(took >= 0.9 * seconds, f"a wait of {seconds} s is over after {took:.2f} s")
        _hold(took <= seconds + 2, f"a wait of {seconds} s takes {took:.2f} s")


async def _chunks(*chunks: bytes, fails: bool = False) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk
    if fails:
        raise _BrokenStreamError


class _BrokenStreamError(Exception):
    """What the iterator raises that a store is given."""


async def _drained(backend: Any, key: str) -> tuple[int, list[bytes]] | None:
    opened = await backend.open_stream(key)
    if opened is None:
        return None
    async with aclosing(opened[1]) as chunks:
        return opened[0], [bytes(chunk) async for chunk in chunks]


async def _streams(backend: Any) -> None:
    """A stream gives the size and the bytes that were kept, in chunks of at most 1 MiB, however they came."""
    _hold(await backend.open_stream(_key()) is None, "open_stream of an unknown key is not None")
    large = os.urandom(3 * PART_BYTES + 7)
    for given in ((), (b"",), (b"abc", b"", b"d"), (large,), (large[:10], large[10:]), (b"x",) * 1000):
        for as_stream in (True, False):
            key, data = _key(), b"".join(given)
            if as_stream:
                await backend.store_stream(key, _chunks(*given), _LONG)
            else:
                await backend.store(key, data, _LONG)
            found = await _drained(backend, key)
            _hold(found is not None, "open_stream finds nothing of what was stored")
            size, chunks = found or (0, [])
            _hold(size == len(data), f"open_stream says {size} where {len(data)} bytes were stored")
            _hold(b"".join(chunks) == data, "open_stream gives other bytes than were stored")
            _hold(max(map(len, chunks), default=0) <= PART_BYTES, "open_stream gives more than 1 MiB at once")
            _hold(await backend.get(key) == data, "get does not return what store_stream was given")


async def _shows_the_whole(backend: Any) -> None:
    """A stream that is stored is seen once its last chunk is there, and not at all if it breaks off."""
    for before in (None, b"before"):
        for fails in (True, False):
            key = _key()
            if before is not None:
                await backend.store(key, before, _LONG)
            await _store_watched(backend, key, before, fails)
            after = before if fails else b"12" * PART_BYTES
            _hold(await backend.get(key) == after, "a stream that breaks off changes what is kept")


async def _store_watched(backend: Any, key: str, before: bytes | None, fails: bool) -> None:
    async def watched() -> AsyncIterator[bytes]:
        async for chunk in _chunks(b"12" * PART_BYTES, b"", fails=fails):
            yield chunk
            _hold(await backend.get(key) == before, "a stream is seen before its last chunk is there")

    try:
        await backend.store_stream(key, watched(), _LONG)
    except _BrokenStreamError:
        return
    _hold(not fails, "store_stream passes over what its iterator raises")


async def _mixes_nothing(backend: Any) -> None:
    """Who reads gets the bytes of the moment when the stream was opened, or an error; never others."""
    old, new = b"o" * (4 * PART_BYTES), b"n" * (4 * PART_BYTES)
    changes = (partial(backend.store, data=new, ttl=_LONG), partial(backend.store, data=b"n", ttl=_LONG))
    for change in (*changes, backend.delete):
        key = _key()
        await backend.store(key, old, _LONG)
        _, chunks = await backend.open_stream(key)
        async with aclosing(chunks):
            found = [bytes(await anext(chunks))]
            await change(key)
            try:
                found += [bytes(chunk) async for chunk in chunks]
            except Exception:  # noqa: S112 - any error says that it cannot
                continue
        _hold(b"".join(found) == old, "a stream gives other bytes, or fewer, once the key is written again")


def _is_late(began: float) -> bool:
    return asyncio.get_running_loop().time() - began > 0.9


async def _streamed_expires(backend: Any) -> None:
    key, kept = _key(), _key()
    for large in (b"1", b"1" * PART_BYTES, b"1"):
        await backend.store_stream(kept, _chunks(large, large), _LONG)
    await backend.store_stream(key, _chunks(b"1"), _LONG)
    began = asyncio.get_running_loop().time()
    await backend.store_stream(key, _chunks(b"1", b"2"), 1)
    early = await backend.get(key)
    _hold(early == b"12" or _is_late(began), "what was asked for a second is gone before")
    await asyncio.sleep(_PAST_A_TTL)
    _hold(await backend.get(key) is None, "store_stream ignores `ttl`")
    _hold(await backend.open_stream(key) is None, "open_stream gives what has expired")
    _hold(await backend.get(kept) == b"11", f"what was streamed for {_LONG} s is gone after a second")


_CHECKS = (
    _keeps,
    _forgets,
    _excludes,
    _returns_at_once,
    _misses_nothing,
    _tells_of_nothing,
    _wakes_all,
    _gives_up,
    _expires,
)
_STREAMING = (_streams, _shows_the_whole, _mixes_nothing)
