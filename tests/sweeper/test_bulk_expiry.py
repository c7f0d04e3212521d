"""The sweeper removes many workers with few statements; several sweepers run at once without conflicts."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import event, insert
from sqlalchemy.ext.asyncio import AsyncEngine

from sweeper.mounted_queue import MountedQueue, identify
from zndraw_joblib import JobLib, Task, TaskStatusEvent, Worker, WorkerJobLink
from zndraw_joblib.server.queue import rules_sweep, sql_recount

DEAD = 1000


@contextmanager
def recorded_statements(engine: AsyncEngine) -> Iterator[list[str]]:
    """Record the statements that the engine executes."""
    statements: list[str] = []

    def record(*arguments: Any) -> None:
        statements.append(arguments[2])

    event.listen(engine.sync_engine, "before_cursor_execute", record)
    try:
        yield statements
    finally:
        event.remove(engine.sync_engine, "before_cursor_execute", record)


async def add_workers(queue: MountedQueue, job: dict[str, Any], count: int) -> None:
    """Insert workers that serve a job, each with a running task."""
    now, job_id = queue.clock.now, UUID(job["id"])
    ids = [uuid4() for _ in range(count)]
    task = {"job_id": job_id, "room_id": "lab", "created_by": "ada", "payload": {}, "attempt": 1}
    times = {"created_at": now, "claimed_at": now, "started_at": now}
    async with queue.sessions() as session:
        connection = await session.connection()
        await connection.execute(
            insert(Worker.__table__),
            [{"id": i, "owner_id": "ada", "created_at": now, "last_heartbeat": now} for i in ids],
        )
        await connection.execute(
            insert(WorkerJobLink.__table__), [{"worker_id": i, "job_id": job_id} for i in ids]
        )
        await connection.execute(
            insert(Task.__table__),
            [{**task, **times, "id": uuid4(), "worker_id": i, "status": "running"} for i in ids],
        )
        await session.commit()
    await sql_recount.repair(queue.joblib.runtime.database)


async def count_tasks(queue: MountedQueue, status: str) -> int:
    """Count the tasks of a status."""
    page = await queue.request("GET", "/rooms/lab/tasks", params={"status": status, "limit": 0})
    total: int = page["total"]
    return total


async def test_a_thousand_workers_are_removed_with_few_statements(
    queue: MountedQueue, engine: AsyncEngine
) -> None:
    """The sweeper needs a handful of statements for each bounded set of workers."""
    job = await queue.register()
    await add_workers(queue, job, DEAD)
    queue.end_startup_grace()
    await queue.pass_time(alive=[job["worker_id"]])
    assert (await queue.sweep()).is_held_back
    with recorded_statements(engine) as statements:
        cycle = await queue.sweep()
    assert (cycle.scanned, cycle.expired, cycle.errors) == (DEAD + 1, DEAD, 0)
    batches = 1 + DEAD // rules_sweep.batch_size(is_sqlite=engine.dialect.name == "sqlite")
    assert len(statements) < 62 + 14 * batches
    assert await queue.worker_ids() == {job["worker_id"]}
    assert (await count_tasks(queue, "failed"), await count_tasks(queue, "running")) == (DEAD, 0)
    ids = [event.id for event, _ in queue.events.emitted if isinstance(event, TaskStatusEvent)]
    assert len(set(ids)) == len(ids) == DEAD


async def test_a_cycle_without_work_uses_few_statements(queue: MountedQueue, engine: AsyncEngine) -> None:
    """The number does not depend on the number of workers."""
    job = await queue.register()
    queue.end_startup_grace()
    await queue.sweep()
    with recorded_statements(engine) as with_one:
        assert (await queue.sweep()).scanned == 1
    await add_workers(queue, job, 300)
    with recorded_statements(engine) as with_many:
        assert (await queue.sweep()).scanned == 301
    assert len(with_many) == len(with_one) < 66


async def test_abandoned_tasks_fail_with_few_statements(queue: MountedQueue, engine: AsyncEngine) -> None:
    """Running tasks without a worker, more than fit into one transaction."""
    job = await queue.register()
    await add_workers(queue, job, 1100)
    await queue.execute("DELETE FROM joblib_worker_job", "DELETE FROM joblib_worker")
    with recorded_statements(engine) as statements:
        cycle = await queue.sweep()
    assert (cycle.counts.failed, cycle.errors) == (1100, 0)
    assert len(statements) < 78
    assert await count_tasks(queue, "failed") == 1100


@pytest.fixture
async def second(queue: MountedQueue) -> JobLib:
    """Return a second server on the same database, with the same event recorder."""
    return JobLib(
        session_maker=queue.sessions,
        identity=identify,
        settings=queue.joblib.settings,
        tsio=queue.events,
        clock=queue.clock,
        monotonic=queue.monotonic,
    )


async def test_two_sweepers_remove_each_worker_once(queue: MountedQueue, second: JobLib) -> None:
    """At the same time on the same database: no event is sent twice, and no error occurs."""
    job = await queue.register()
    await add_workers(queue, job, 450)
    queue.end_startup_grace()
    await queue.pass_time(alive=[job["worker_id"]])
    sweepers = [queue.joblib.sweeper, second.sweeper]
    await asyncio.gather(*(sweeper.cycle() for sweeper in sweepers))
    cycles = await asyncio.gather(*(sweeper.cycle() for sweeper in sweepers))
    cycles += await asyncio.gather(*(sweeper.cycle() for sweeper in sweepers))
    assert sum(cycle.expired for cycle in cycles) == 450
    assert sum(cycle.errors for cycle in cycles) == 0
    assert await queue.worker_ids() == {job["worker_id"]}
    events = [event for event, _ in queue.events.emitted if isinstance(event, TaskStatusEvent)]
    assert len({event.id for event in events}) == len(events) == 450


async def test_concurrent_claims_and_sweeps_are_consistent(queue: MountedQueue) -> None:
    """Workers claim while others are removed: each task is claimed once or has failed once."""
    job = await queue.register()
    await add_workers(queue, job, 60)
    queue.end_startup_grace()
    await queue.pass_time(alive=[job["worker_id"]])
    rivals = [(await queue.register())["worker_id"] for _ in range(10)]
    await asyncio.gather(*(queue.submit(job) for _ in range(20)))
    assert (await queue.sweep()).is_held_back
    cycle, *claims = await asyncio.gather(
        queue.sweep(), *(queue.claim(worker_id) for worker_id in rivals for _ in range(2))
    )
    assert (cycle.expired, cycle.errors) == (60, 0)
    assert len({task["id"] for task in claims}) == 20
    assert (await count_tasks(queue, "failed"), await count_tasks(queue, "claimed")) == (60, 20)
