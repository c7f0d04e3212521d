"""What result backends share: nobody misses what came while another was reading."""

import asyncio

from waiting import until

from zndraw_joblib.contract.problems import ServiceUnavailable
from zndraw_joblib.server.ports import PART_BYTES
from zndraw_joblib.server.providers.results.notifier import Bells, SharedReads, parts_of


async def test_a_read_that_began_too_early_is_not_trusted_with_nothing() -> None:
    """Who joins it late reads once more, where it found nothing."""
    kept: bytes | None = None
    began, go_on = asyncio.Event(), asyncio.Event()

    async def read(_: str) -> bytes | None:
        found = kept
        began.set()
        await go_on.wait()
        return found

    shared = SharedReads(read)
    early = asyncio.create_task(shared("a"))
    await began.wait()
    kept = b"1"
    late = asyncio.create_task(shared("a"))
    await asyncio.sleep(0)
    go_on.set()
    assert await asyncio.gather(early, late) == [None, b"1"]
    assert not shared._under_way


async def test_who_looks_again_in_vain_goes_on_waiting() -> None:
    """A store that is away is no reason to end a wait, but for one that was told that something is there."""
    answers: list[bytes | Exception | None] = [None]
    reads = 0

    async def read(_: str) -> bytes | None:
        nonlocal reads
        reads += 1
        if isinstance(answers[0], Exception):
            raise answers[0]
        return answers[0]

    bells = Bells(read)
    waiting = asyncio.create_task(bells.wait("a", 20))
    await until(lambda: reads == 1)
    answers[0] = ServiceUnavailable("away")
    bells.stir()
    await until(lambda: reads == 2)
    answers[0] = b"1"
    bells.stir()
    assert await waiting == b"1"
    assert not bells._bells


async def test_a_stream_is_cut_anew() -> None:
    """Whatever the chunks are: all parts but the last are full."""

    async def chunks(*sizes: int) -> None:
        for number, size in enumerate(sizes):
            yield bytes([number]) * size

    for sizes in ((), (0,), (1, 2), (PART_BYTES,), (1, PART_BYTES), (3 * PART_BYTES + 1, 5), (PART_BYTES, 1)):
        parts = [part async for part in parts_of(chunks(*sizes))]
        assert b"".join(parts) == b"".join([bytes([n]) * size for n, size in enumerate(sizes)])
        assert all(len(part) == PART_BYTES for part in parts[:-1])
        assert all(parts)
