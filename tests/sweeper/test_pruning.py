"""Old rows are deleted in the background, within a budget per cycle."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import func, insert, select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from sweeper.mounted_queue import MountedQueue
from zndraw_joblib.server.background.sweeper import Sweeper
from zndraw_joblib.server.db.tables import Job, QueueBlock, RoomCount, Statistic, Task, metadata
from zndraw_joblib.server.process.settings import JobLibSettings
from zndraw_joblib.server.queue import sql_recount
from zndraw_joblib.server.queue.rules_retention import RETENTIONS

Sessions = async_sessionmaker[AsyncSession]
tasks = Task.__table__
OLD = 3500


@pytest.fixture
async def old_tasks(queue: MountedQueue, sessions: Sessions) -> None:
    """Add thousands of tasks that ended two days ago, and turn on their removal."""
    job = await queue.register()
    at = queue.clock.now - timedelta(days=2)
    row = {
        "job_id": UUID(job["id"]),
        "room_id": "lab",
        "status": "failed",
        "created_by": "ada",
        "payload": {},
        "created_at": at,
        "completed_at": at,
        "attempt": 0,
        "lane": 0,
        "failures": 0,
        "crashes": 0,
    }
    async with sessions() as session:
        await (await session.connection()).execute(insert(tasks), [row | {"id": uuid4()} for _ in range(OLD)])
        await session.commit()
    await sql_recount.repair(queue.joblib.runtime.database)
    queue.joblib.settings.keep_finished_days = 1


async def count(sessions: Sessions) -> int:
    """Count all tasks."""
    async with sessions() as session:
        found: int = (await session.execute(select(func.count()).select_from(tasks))).scalar_one()
        return found


@pytest.mark.usefixtures("old_tasks")
async def test_a_cycle_deletes_a_limited_number_of_rows(queue: MountedQueue, sessions: Sessions) -> None:
    """The next cycle continues; a task that ended lately stays."""
    queue.joblib.settings.prune_max_rows = 1000
    job = await queue.register()
    recent = await queue.submit_and_claim(job, running=True)
    await queue.report(recent, "completed")
    assert [(await queue.sweep()).pruned for _ in range(5)] == [1000, 1000, 1000, 500, 0]
    assert await count(sessions) == 1


@pytest.mark.usefixtures("old_tasks")
async def test_a_cycle_prunes_for_a_limited_time(queue: MountedQueue) -> None:
    """The sweep itself is not late, and the server is ready before the first row is deleted."""

    async def slow(work: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any) -> Any:
        result = await queue.joblib.runtime.write(work, *args, **kwargs)
        queue.run_for(2)
        return result

    queue.joblib.sweeper = Sweeper(slow, queue.joblib.settings, monotonic=queue.monotonic)
    # Workers, tasks and groups take 6 s. Three transactions begin within the 5 s for old rows, one a kind.
    first = await queue.sweep()
    assert (first.pruned, first.elapsed) == (0, 6)
    assert queue.monotonic.now - queue.joblib.sweeper.last_good == 6
    queue.joblib.settings.prune_max_seconds = 13
    assert 0 < (await queue.sweep()).pruned < OLD


@pytest.mark.usefixtures("old_tasks")
@pytest.mark.parametrize("kind", ["postgresql"])
async def test_a_locked_task_does_not_block_the_others(queue: MountedQueue, sessions: Sessions) -> None:
    """It is deleted by a later cycle."""
    async with sessions() as foreign:
        first = select(tasks.c.seq).order_by(tasks.c.seq).limit(1).with_for_update()
        await (await foreign.connection()).execute(first)
        cycle = await queue.sweep()
        assert (cycle.pruned, cycle.errors) == (OLD - 1, 0)
        await foreign.rollback()
    assert (await queue.sweep()).pruned == 1
    assert await count(sessions) == 0


@pytest.mark.usefixtures("old_tasks")
async def test_a_failure_of_one_kind_stops_neither_the_others_nor_the_server(
    queue: MountedQueue, caplog: pytest.LogCaptureFixture
) -> None:
    """Each cycle logs and counts it; the server stays ready."""
    await queue.execute("ALTER TABLE joblib_result RENAME TO joblib_result_away")
    queue.monotonic.advance(30)
    cycle = await queue.sweep()
    assert (cycle.pruned, cycle.errors) == (OLD, 1)
    assert queue.joblib.sweeper.last_good == queue.monotonic.now
    assert "A batch of old rows was not deleted" in caplog.text
    await queue.execute("ALTER TABLE joblib_result_away RENAME TO joblib_result")
    assert (await queue.sweep()).errors == 0


@pytest.mark.usefixtures("old_tasks")
async def test_a_backlog_that_does_not_shrink_is_logged(
    queue: MountedQueue, caplog: pytest.LogCaptureFixture
) -> None:
    """The warning names the settings of the budget; a single full cycle logs nothing."""
    queue.joblib.sweeper.pruner.max_cycles_behind = 3
    queue.joblib.settings.prune_max_rows = 1000
    for warnings in (0, 0, 1, 1, 1):
        await queue.sweep()
        assert len([r for r in caplog.records if "prune_max_rows" in r.message]) == warnings
    assert "prune_max_seconds" in caplog.text


async def jobs_and_rest(sessions: Sessions) -> list[int]:
    """Count all jobs, and the rows that belong to no task: counts and statistics of single jobs."""
    no_job = Statistic.__table__.c.job_id != UUID(int=0)
    rest = (select(func.count()).select_from(table.__table__) for table in (Job, RoomCount, QueueBlock))
    async with sessions() as session:
        statements = [*rest, select(func.count()).select_from(Statistic.__table__).where(no_job)]
        return [(await session.execute(statement)).scalar_one() for statement in statements]


async def end_worker(queue: MountedQueue, job: dict[str, Any]) -> None:
    """Remove the worker of a job."""
    await queue.request("DELETE", f"/workers/{job['worker_id']}")


async def test_soft_deleted_jobs_without_tasks_are_deleted(queue: MountedQueue, sessions: Sessions) -> None:
    """A job with a task or a worker stays, and one of the last day; the name of a deleted one is free."""
    used, unused, active = [await queue.register(name=name) for name in ("Used", "Unused", "Active")]
    task = await queue.submit_and_claim(used, running=True)
    await queue.report(task, "completed")
    for job in (used, unused):
        await end_worker(queue, job)
    await queue.sweep()
    assert (await jobs_and_rest(sessions))[0] == 3
    queue.clock.advance(2 * 86_400)
    await queue.heartbeat(active["worker_id"])
    await queue.sweep()
    assert (await jobs_and_rest(sessions))[0] == 2
    assert [await queue.is_active(job) for job in (used, unused, active)] == [False, False, True]
    assert (await queue.register(name="Unused"))["id"] != unused["id"]
    assert (await queue.register(name="Used"))["id"] == used["id"]
    assert (await queue.get_task(task))["job_name"] == used["full_name"]


async def test_a_job_keeps_its_id_for_a_day_after_it_was_deleted(
    queue: MountedQueue, sessions: Sessions
) -> None:
    """An old job too, and again after it was restored. A deletion without a time counts from a cycle on."""
    old = await queue.register()
    for _ in range(2):
        queue.clock.advance(2 * 86_400)
        await end_worker(queue, old)
        await queue.sweep()
        queue.clock.advance(86_000)
        await queue.sweep()
        restored = await queue.register()
        assert restored["id"] == old["id"]
        old = restored
    await end_worker(queue, old)
    await queue.execute("UPDATE joblib_job SET deleted_at = NULL")
    for seconds, jobs in ((0, 1), (86_000, 1), (1_000, 0)):
        queue.clock.advance(seconds)
        await queue.sweep()
        assert (await jobs_and_rest(sessions))[0] == jobs


async def test_the_counts_of_a_deleted_job_are_deleted_in_batches(
    queue: MountedQueue, sessions: Sessions
) -> None:
    """They are part of the budget of a cycle; a restored job has right counts in between."""
    jobs = [await queue.register(name=name) for name in ("Long", "Short")]
    for job in jobs:
        await end_worker(queue, job)
    none = dict.fromkeys(("pending", "failed", "cancelled"), 0)
    parts = [
        {**none, "room_id": f"room-{number:04}", "job_id": UUID(job["id"]), "part": part, "total": part - 1}
        for job, rooms in zip(jobs, (1250, 125), strict=True)
        for number in range(rooms)
        for part in (0, 2)
    ]
    async with sessions() as session:
        await (await session.connection()).execute(insert(RoomCount.__table__), parts)
        await session.commit()
    queue.clock.advance(2 * 86_400)
    queue.joblib.settings.prune_max_rows = 1
    cycles = 0
    while (await jobs_and_rest(sessions))[0]:
        left = (await jobs_and_rest(sessions))[1]
        await queue.sweep()
        cycles += 1
        assert left - (await jobs_and_rest(sessions))[1] <= 2000
        assert await queue.joblib.runtime.database.run_sync(sql_recount.wrong) == []
    assert 3 <= cycles <= 5
    assert await jobs_and_rest(sessions) == [0, 0, 0, 0]


async def test_a_soft_deleted_job_stays_as_long_as_its_statistics(
    queue: MountedQueue, sessions: Sessions
) -> None:
    """With those of minutes and hours the rest goes: its counts, and its totals since the first start."""
    job = await queue.register()
    await queue.report(await queue.submit_and_claim(job, running=True), "completed")
    await end_worker(queue, job)
    zero = dict.fromkeys(("submitted", "completed", "failed", "cancelled", "retried", "lost"), 0)
    row = {"job_id": UUID(job["id"]), "start": queue.clock.now, "waiting": [], "running": [], "causes": {}}
    row |= {**zero, "waiting_seconds": 0, "running_seconds": 0}
    async with sessions() as session:
        both = [{**row, "resolution": resolution} for resolution in (0, 3600)]
        await (await session.connection()).execute(insert(Statistic.__table__), both)
        await session.commit()
    queue.joblib.settings.keep_finished_days = 1
    queue.clock.advance(2 * 86_400)
    for _ in range(2):
        await queue.sweep()
    assert await count(sessions) == 0
    assert (await jobs_and_rest(sessions))[0] == 1
    await queue.execute("DELETE FROM joblib_statistic WHERE resolution = 3600")
    await queue.sweep()
    assert await jobs_and_rest(sessions) == [0, 0, 0, 0]


async def test_a_job_may_be_registered_while_it_is_deleted(queue: MountedQueue) -> None:
    """Its registration succeeds, whatever comes first."""
    for _ in range(10):
        job = await queue.register(name="Again")
        await end_worker(queue, job)
        queue.clock.advance(2 * 86_400)
        _, again = await asyncio.gather(queue.sweep(), queue.register(name="Again"))
        assert await queue.is_active(again)
        await end_worker(queue, again)


async def test_a_job_without_workers_is_forgotten_after_a_time(queue: MountedQueue) -> None:
    """Unless a worker serves it, or a task of it is pending; the time counts from the last worker's end."""
    queue.joblib.settings.keep_unserved_jobs_days = 3
    names = ("Left", "Waiting", "Served", "Back")
    left, waiting, served, back = [await queue.register(name=name, without_workers="queue") for name in names]
    await queue.submit(waiting)
    for job in (left, waiting, back):
        await end_worker(queue, job)
    queue.clock.advance(2 * 86_400)
    await queue.heartbeat(served["worker_id"])
    again = await queue.register(name="Back")
    await queue.sweep()
    assert all([await queue.is_active(job) for job in (left, waiting, served, back)])
    await end_worker(queue, again)
    queue.clock.advance(1.5 * 86_400)
    await queue.heartbeat(served["worker_id"])
    await queue.sweep()
    assert [await queue.is_active(job) for job in (left, waiting, served, back)] == [False, True, True, True]
    queue.joblib.settings.keep_unserved_jobs_days = None
    queue.clock.advance(9 * 86_400)
    await queue.heartbeat(served["worker_id"])
    await queue.sweep()
    assert await queue.is_active(back)


def test_each_kind_of_old_rows_has_its_table_column_and_setting() -> None:
    """Only rows without a time of their own have no column, and each time to keep them is at least 0."""
    for retention in RETENTIONS:
        columns = metadata.tables[f"joblib_{retention.rows}"].c
        assert retention.time is None or retention.time in columns
        keep = retention.keep_time(JobLibSettings())
        assert keep is not None
        assert keep >= timedelta(0)
