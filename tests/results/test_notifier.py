"""Callers that wait for a key miss no value, also when several of them share one read."""

import asyncio

from waiting import until

from zndraw_joblib.server.process.ports import PART_BYTES
from zndraw_joblib.server.results.stores import Notifier, SingleFlight, rechunk
from zndraw_joblib.wire.problems import ServiceUnavailable


async def test_a_caller_during_a_read_waits_for_the_next() -> None:
    """The first read may have begun before the value was stored."""
    stored: bytes | None = None
    reads, began, proceed = 0, asyncio.Event(), asyncio.Event()

    async def read(_: str) -> bytes | None:
        nonlocal reads
        reads += 1
        found = stored
        began.set()
        await proceed.wait()
        return found

    single_flight = SingleFlight(read)
    early = asyncio.create_task(single_flight("a"))
    await began.wait()
    stored = b"1"
    late = asyncio.create_task(single_flight("a"))
    await asyncio.sleep(0)
    proceed.set()
    assert await asyncio.gather(early, late) == [None, b"1"]
    assert reads == 2
    assert await single_flight("a") == b"1"
    assert reads == 3


async def test_callers_share_the_read_that_begins_after_them() -> None:
    """Also its error. Those that come during a read share the next one."""
    reads, proceed = 0, asyncio.Event()

    async def read(key: str) -> bytes:
        nonlocal reads
        reads += 1
        await proceed.wait()
        raise ServiceUnavailable(f"{key}{reads}")

    single_flight = SingleFlight(read)
    first = [asyncio.create_task(single_flight("a")) for _ in range(20)]
    await until(lambda: reads == 1)
    second = [asyncio.create_task(single_flight("a")) for _ in range(20)]
    second[0].cancel()
    await asyncio.sleep(0)
    proceed.set()
    results = await asyncio.gather(*first, *second[1:], return_exceptions=True)
    assert [str(result) for result in results] == ["a1"] * 20 + ["a2"] * 19


async def test_a_failed_recheck_does_not_end_a_wait() -> None:
    """A caller goes on waiting while the store is unavailable, unless a notification announced its value."""
    answers: list[bytes | Exception | None] = [None]
    reads = 0

    async def read(_: str) -> bytes | None:
        nonlocal reads
        reads += 1
        if isinstance(answers[0], Exception):
            raise answers[0]
        return answers[0]

    notifier = Notifier(read)
    waiting = asyncio.create_task(notifier.wait("a", 20))
    await until(lambda: reads == 1)
    answers[0] = ServiceUnavailable("unreachable")
    notifier.recheck()
    await until(lambda: reads == 2)
    answers[0] = b"1"
    notifier.recheck()
    assert await waiting == b"1"
    assert not notifier.subscriptions("a")


async def test_a_stream_is_cut_into_full_parts() -> None:
    """All parts but the last are full, whatever the size of the chunks."""

    async def chunks(*sizes: int) -> None:
        for number, size in enumerate(sizes):
            yield bytes([number]) * size

    for sizes in ((), (0,), (1, 2), (PART_BYTES,), (1, PART_BYTES), (3 * PART_BYTES + 1, 5), (PART_BYTES, 1)):
        parts = [part async for part in rechunk(chunks(*sizes))]
        assert b"".join(parts) == b"".join([bytes([n]) * size for n, size in enumerate(sizes)])
        assert all(len(part) == PART_BYTES for part in parts[:-1])
        assert all(parts)
