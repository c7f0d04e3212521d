"""A thousand dead workers are a handful of statements, and two sweepers are as good as one."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import event, insert
from sqlalchemy.ext.asyncio import AsyncEngine

from sweeper.queue import Queue, somebody
from zndraw_joblib import JobLib, Task, TaskStatusEvent, Worker, WorkerJobLink

DEAD = 1000
pytestmark = pytest.mark.usefixtures("wall")


@contextmanager
def counting(engine: AsyncEngine) -> Iterator[list[str]]:
    """Collect the statements that reach the database."""
    found: list[str] = []

    def note(*arguments: Any) -> None:
        found.append(arguments[2])

    event.listen(engine.sync_engine, "before_cursor_execute", note)
    try:
        yield found
    finally:
        event.remove(engine.sync_engine, "before_cursor_execute", note)


@asynccontextmanager
async def ticking() -> AsyncIterator[list[float]]:
    """Collect how late each tick of the event loop comes, in seconds."""
    late: list[float] = []

    async def tick() -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.005)
            late.append(time.perf_counter() - before - 0.005)

    ticker = asyncio.create_task(tick())
    try:
        yield late
    finally:
        ticker.cancel()


async def add_fleet(queue: Queue, job: dict[str, Any], count: int) -> None:
    """Add workers that serve a job, each with a task in its hands."""
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


async def total(queue: Queue, status: str) -> int:
    """Count the tasks of a status."""
    page = await queue.ask("GET", "/rooms/lab/tasks", params={"status": status, "limit": 0})
    found: int = page["total"]
    return found


async def test_a_thousand_dead_workers_go_as_sets(queue: Queue, engine: AsyncEngine) -> None:
    """Few statements, bounded transactions, and the event loop is never kept for long."""
    job = await queue.register()
    await add_fleet(queue, job, DEAD)
    queue.watch()
    await queue.silence(spare=[job["worker_id"]])
    assert (await queue.sweep()).is_held_back
    with counting(engine) as statements:
        async with ticking() as late:
            cycle = await queue.sweep()
    assert (cycle.scanned, cycle.expired, cycle.errors) == (DEAD + 1, DEAD, 0)
    assert len(statements) < DEAD / 10
    assert max(late) < 0.5
    assert await queue.workers() == {job["worker_id"]}
    assert (await total(queue, "failed"), await total(queue, "running")) == (DEAD, 0)
    told = [told for told in queue.told.sent if isinstance(told[0], TaskStatusEvent)]
    assert len({told[0].id for told in told}) == len(told) == DEAD


async def test_a_cycle_without_work_costs_a_handful_of_statements(queue: Queue, engine: AsyncEngine) -> None:
    """However many workers there are."""
    job = await queue.register()
    await add_fleet(queue, job, 300)
    queue.watch()
    with counting(engine) as statements:
        assert (await queue.sweep()).scanned == 301
    assert len(statements) <= 14


async def test_what_is_abandoned_goes_as_sets_too(queue: Queue, engine: AsyncEngine) -> None:
    """Held tasks without a worker, more than fit into one transaction."""
    job = await queue.register()
    await add_fleet(queue, job, 1100)
    await queue.execute("DELETE FROM joblib_worker_job", "DELETE FROM joblib_worker")
    with counting(engine) as statements:
        cycle = await queue.sweep()
    assert (cycle.counts.failed, cycle.errors) == (1100, 0)
    assert len(statements) < 60
    assert await total(queue, "failed") == 1100


@pytest.fixture
async def second(queue: Queue) -> JobLib:
    """Return a second server on the same database, which tells the same people."""
    return JobLib(
        session_maker=queue.sessions,
        identity=somebody,
        settings=queue.joblib.settings,
        tsio=queue.told,
        clock=queue.clock,
    )


async def test_two_sweepers_do_everything_once(queue: Queue, second: JobLib) -> None:
    """At the same time on the same database: each worker goes once, each event is sent once, no error."""
    job = await queue.register()
    await add_fleet(queue, job, 450)
    queue.watch()
    await queue.silence(spare=[job["worker_id"]])
    sweepers = [queue.joblib.sweeper, second.sweeper]
    await asyncio.gather(*(sweeper.cycle() for sweeper in sweepers))
    cycles = await asyncio.gather(*(sweeper.cycle() for sweeper in sweepers))
    cycles += await asyncio.gather(*(sweeper.cycle() for sweeper in sweepers))
    assert sum(cycle.expired for cycle in cycles) == 450
    assert sum(cycle.errors for cycle in cycles) == 0
    assert await queue.workers() == {job["worker_id"]}
    events = [event for event, _ in queue.told.sent if isinstance(event, TaskStatusEvent)]
    assert len({event.id for event in events}) == len(events) == 450


async def test_a_sweep_beside_claims_loses_and_doubles_nothing(queue: Queue) -> None:
    """Workers claim while others are swept: each task is held once or has failed once."""
    job = await queue.register()
    await add_fleet(queue, job, 60)
    queue.watch()
    await queue.silence(spare=[job["worker_id"]])
    rivals = [(await queue.register())["worker_id"] for _ in range(10)]
    await asyncio.gather(*(queue.submit(job) for _ in range(20)))
    assert (await queue.sweep()).is_held_back
    cycle, *claims = await asyncio.gather(
        queue.sweep(), *(queue.claim(worker_id) for worker_id in rivals for _ in range(2))
    )
    assert (cycle.expired, cycle.errors) == (60, 0)
    assert len({task["id"] for task in claims}) == 20
    assert (await total(queue, "failed"), await total(queue, "claimed")) == (60, 20)
