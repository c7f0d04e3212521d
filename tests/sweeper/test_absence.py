"""The server's own absence, and jumps of the database's clock, remove no live worker."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from waiting import until

from sweeper.mounted_queue import MountedQueue
from zndraw_joblib.server.background.sweeper import Sweeper

INTERVAL = 30.0
TIMEOUT = 60.0


async def create_workers(queue: MountedQueue, count: int) -> list[str]:
    """Create workers; return their ids."""
    return [(await queue.request("POST", "/workers"))["id"] for _ in range(count)]


async def beat(queue: MountedQueue, ids: list[str]) -> None:
    """Send a heartbeat of each worker."""
    for worker_id in ids:
        assert (await queue.heartbeat(worker_id)).is_success


@pytest.fixture(autouse=True)
def after_startup_grace(queue: MountedQueue) -> None:
    """End the grace period."""
    queue.end_startup_grace()


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("jump", [3600, 10**6])
async def test_a_suspended_server_removes_no_live_worker(
    queue: MountedQueue, caplog: pytest.LogCaptureFixture, count: int, jump: float
) -> None:
    """The monotonic clock stands still during a suspend; the database's clock does not."""
    ids = await create_workers(queue, count)
    await queue.sweep()
    queue.clock.advance(jump)
    assert (await queue.sweep()).expired == 0
    assert [r.levelno for r in caplog.records if "server was paused" in r.message] == [logging.WARNING]
    await beat(queue, ids)
    for _ in range(3):
        queue.run_for(INTERVAL)
        await beat(queue, ids)
        assert (await queue.sweep()).expired == 0
    assert await queue.worker_ids() == set(ids)


async def test_after_an_absence_each_worker_has_a_full_timeout(queue: MountedQueue) -> None:
    """A worker that is still silent after it is removed, not before."""
    [dead] = await create_workers(queue, 1)
    await queue.sweep()
    queue.clock.advance(3600)
    for seconds, expired in ((0, 0), (INTERVAL, 0), (INTERVAL - 1, 0), (1, 1)):
        queue.run_for(seconds)
        assert (await queue.sweep()).expired == expired
    assert (await queue.heartbeat(dead)).status_code == 404


@pytest.mark.parametrize("jump", [-3600, -10])
async def test_a_clock_that_is_set_back_makes_no_worker_immortal(queue: MountedQueue, jump: float) -> None:
    """A live worker stays, a silent one is removed within its timeout and one interval."""
    _, *alive = await create_workers(queue, 3)
    await queue.sweep()
    queue.clock.advance(jump)
    await beat(queue, alive)
    expired = []
    for _ in range(4):
        expired.append((await queue.sweep()).expired)
        queue.run_for(INTERVAL)
        await beat(queue, alive)
    assert sum(expired) == 1
    assert await queue.worker_ids() == set(alive)


async def test_a_small_correction_of_the_clock_is_no_absence(queue: MountedQueue) -> None:
    """A step of ten seconds restarts no grace period, and removes no live worker."""
    _, alive = await create_workers(queue, 2)
    await queue.sweep()
    for _ in range(2):
        queue.run_for(INTERVAL)
        queue.clock.advance(10)
        await beat(queue, [alive])
        await queue.sweep()
    assert await queue.worker_ids() == {alive}


def slow(queue: MountedQueue, seconds: float) -> Callable[..., Awaitable[Any]]:
    """Return a function that writes like the queue's, with transactions that take a while."""

    async def write(work: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any) -> Any:
        result = await queue.joblib.runtime.write(work, *args, **kwargs)
        queue.run_for(seconds)
        return result

    return write


async def test_cycles_that_exceed_an_interval_remove_workers(
    queue: MountedQueue, caplog: pytest.LogCaptureFixture
) -> None:
    """A slow sweeper is not an absent one: it works, and logs that it is late."""
    await create_workers(queue, 1)
    queue.joblib.sweeper = Sweeper(slow(queue, 20), queue.joblib.settings, monotonic=queue.monotonic)
    expired = 0
    for _ in range(3):
        cycle = await queue.sweep()
        assert cycle.elapsed > INTERVAL
        expired += cycle.expired
        queue.run_for(INTERVAL)
    assert expired == 1
    late = [r for r in caplog.records if "longer than sweeper_interval_seconds (30)" in r.message]
    assert len(late) == 3


async def test_a_database_that_hangs_counts_as_an_absence(
    queue: MountedQueue, caplog: pytest.LogCaptureFixture
) -> None:
    """Transactions that take almost a timeout: heartbeats may not have been written either. It is logged."""
    await create_workers(queue, 1)
    queue.joblib.sweeper = Sweeper(slow(queue, TIMEOUT), queue.joblib.settings, monotonic=queue.monotonic)
    for _ in range(3):
        assert (await queue.sweep()).expired == 0
    assert any("server was paused" in record.message for record in caplog.records)


async def test_a_small_installation_has_the_mass_expiry_guard_too(queue: MountedQueue) -> None:
    """Two of two, and two of three, wait one cycle; one worker, and one of two, do not."""
    for dead, alive, held in ((2, 0, True), (2, 1, True), (1, 0, False), (1, 1, False)):
        ids = await create_workers(queue, dead + alive)
        await queue.pass_time(alive=ids[dead:])
        cycle = await queue.sweep()
        assert (cycle.is_held_back, cycle.expired) == (held, 0 if held else dead)
        if held:
            queue.run_for(INTERVAL)
            await beat(queue, ids[dead:])
            assert (await queue.sweep()).expired == dead
        await queue.execute("DELETE FROM joblib_worker")


async def test_a_pause_while_the_sweeper_sleeps_is_an_absence(
    queue: MountedQueue, caplog: pytest.LogCaptureFixture
) -> None:
    """Even if the pause is shorter than the sleep: it observes its clock at least once per heartbeat."""
    settings = queue.joblib.settings
    settings.sweeper_interval_seconds = settings.worker_timeout_seconds = TIMEOUT
    settings.heartbeat_interval_seconds = 0.05
    sweeping = asyncio.create_task(queue.joblib.sweeper.run())
    try:
        await asyncio.sleep(0)
        queue.monotonic.advance(TIMEOUT)
        await until(lambda: "server was paused" in caplog.text)
    finally:
        sweeping.cancel()
        await asyncio.wait([sweeping])
