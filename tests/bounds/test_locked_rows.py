"""A row that another session holds delays only the requests that need it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import pytest
from replica import TIMEOUT, Replica
from sqlalchemy import select

from zndraw_joblib.server.db.tables import Job, Task, Worker
from zndraw_joblib.server.process.settings import ServerSettings
from zndraw_joblib.wire.problems import ServiceUnavailable

pytestmark = pytest.mark.parametrize("kind", ["postgresql", "postgresql-of-a-host"])


@pytest.fixture
def settings(database_url: str) -> ServerSettings:
    """Return settings with a short lock timeout."""
    return ServerSettings(database_url=database_url, database_lock_timeout_seconds=1)


@asynccontextmanager
async def locked(replica: Replica, table: Any, row_id: UUID | None) -> AsyncIterator[None]:
    """Hold a row as another session does, such as a psql with an open transaction."""
    async with replica.engine.connect() as other:
        await other.execute(select(table).where(table.c.id == row_id).with_for_update())
        yield
        await other.rollback()


async def start_two(request: Any) -> list[asyncio.Task[Any]]:
    """Start two requests, one after the other, so that they are in different batches."""
    started = []
    for _ in range(2):
        started.append(asyncio.create_task(request()))
        await asyncio.sleep(0.1)
    return started


async def refused(requests: list[asyncio.Task[Any]]) -> list[ServiceUnavailable]:
    """Return the problems of requests, all of which must be refused with 503."""
    async with asyncio.timeout(TIMEOUT):
        answers = await asyncio.gather(*requests, return_exceptions=True)
    assert [type(answer) for answer in answers if not isinstance(answer, ServiceUnavailable)] == []
    return [answer for answer in answers if isinstance(answer, ServiceUnavailable)]


async def succeeds(request: Awaitable[Any]) -> Any:
    """Return the result of a request that must not wait."""
    async with asyncio.timeout(TIMEOUT / 2):
        return await request


async def test_submits_to_a_locked_job_stop_no_other_submit(replica: Replica) -> None:
    """Submits to a locked job are refused with the cause; those of another job succeed meanwhile."""
    locked_job, other_job = await replica.register("Locked"), await replica.register("Other")
    async with locked(replica, Job.__table__, locked_job.id):
        stuck = await start_two(lambda: replica.submit(locked_job))
        for _ in range(3):
            await succeeds(replica.submit(other_job))
        for problem in await refused(stuck):
            assert "lock" in str(problem)
            assert locked_job.full_name in str(problem)
            assert "database_lock_timeout_seconds" in str(problem)
            assert "Retry-After" in problem.headers
        await succeeds(replica.submit(other_job))
    await succeeds(replica.submit(locked_job))


async def test_reports_of_a_locked_task_stop_no_other_report(replica: Replica) -> None:
    """Reports of a locked task are refused; those of another task succeed meanwhile."""
    job = await replica.register()
    stuck_task, other_task = await replica.running(job), await replica.running(job)
    async with locked(replica, Task.__table__, stuck_task.id):
        stuck = await start_two(lambda: replica.report(stuck_task.id, "completed"))
        await succeeds(replica.report(other_task.id, "completed"))
        assert {str(stuck_task.id) in str(problem) for problem in await refused(stuck)} == {True}
    await succeeds(replica.report(stuck_task.id, "completed"))


@pytest.mark.parametrize("what", ["claim", "heartbeat"])
async def test_a_locked_worker_stops_no_other_worker(replica: Replica, what: str) -> None:
    """Claims and heartbeats of a locked worker are refused; those of another succeed meanwhile."""
    job = await replica.register()
    stuck_worker, other_worker = job.worker_id, (await replica.register()).worker_id
    assert stuck_worker is not None
    for _ in range(4):  # a claim that finds no task needs no lock
        await replica.submit(job)
    act: Any = getattr(replica, what)
    async with locked(replica, Worker.__table__, stuck_worker):
        stuck = await start_two(lambda: act(stuck_worker))
        assert await succeeds(act(other_worker)) is not None
        await refused(stuck)
    assert await succeeds(act(stuck_worker)) is not None


async def test_many_requests_for_a_locked_row_leave_connections_for_others(replica: Replica) -> None:
    """More single writes than the pool has connections wait for one row; reads and other writes succeed."""
    job, other = await replica.register("Locked"), await replica.register("Other")
    task = await replica.submit(other)
    async with locked(replica, Job.__table__, job.id):
        stuck = [asyncio.create_task(replica.pause(job)) for _ in range(40)]
        await asyncio.sleep(0.2)
        await succeeds(replica.get(task.id))
        await succeeds(replica.pause(other))
        await succeeds(replica.submit(other))
        await refused(stuck)
