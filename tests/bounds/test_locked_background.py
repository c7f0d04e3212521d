"""A locked row stops neither sweeper, scheduler nor dispatcher, and leaves no transaction behind."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest
from replica import TIMEOUT, InternalExecutor, Replica, internal
from sqlalchemy import func, select, text, update
from waiting import until

from zndraw_joblib.server.background.sweeper import Sweeper
from zndraw_joblib.server.db.tables import Job, Task
from zndraw_joblib.server.internal.registry import InternalRegistry
from zndraw_joblib.server.process.settings import ServerSettings
from zndraw_joblib.server.queue import rules_internal, rules_jobs, rules_sweep
from zndraw_joblib.wire.policy import JobPolicy
from zndraw_joblib.wire.problems import ServiceUnavailable
from zndraw_joblib.wire.statuses import TaskStatus

pytestmark = pytest.mark.parametrize("kind", ["postgresql", "postgresql-of-a-host"])
# Autovacuum may visit the database at any time.
_OTHERS = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND state <> 'idle'
        AND backend_type = 'client backend'
"""


@pytest.fixture
def settings(database_url: str) -> ServerSettings:
    """Return settings with a short lock timeout."""
    return ServerSettings(database_url=database_url, database_lock_timeout_seconds=0.5)


@asynccontextmanager
async def locked(replica: Replica, table: Any, row_id: UUID) -> AsyncIterator[None]:
    """Hold a row as another session does."""
    async with replica.engine.connect() as other:
        await other.execute(select(table).where(table.c.id == row_id).with_for_update())
        yield
        await other.rollback()


async def open_transactions(replica: Replica) -> int:
    """Count the transactions of all other sessions, with that of `locked`."""
    async with replica.engine.connect() as connection:
        return int((await connection.execute(text(_OTHERS))).scalar_one())


async def make_due(replica: Replica, column: str) -> None:
    """Let the time in a column of all tasks be over."""
    await replica.execute(update(Task.__table__).values({column: func.now() - timedelta(minutes=1)}))


@pytest.mark.parametrize("what", ["task", "job"])
async def test_a_locked_row_stops_no_recovery_of_others(
    replica: Replica, settings: ServerSettings, what: str
) -> None:
    """Other overdue tasks are recovered in the same cycle; the cycle ends in time, and so do its writes."""
    stuck_job = await replica.register("Stuck", timeout_seconds=60)
    other_job = await replica.register("Other", timeout_seconds=60)
    stuck, other = await replica.running(stuck_job), await replica.running(other_job)
    await make_due(replica, "deadline")
    sweeper = Sweeper(replica.runtime.write, settings)
    table, row_id = (Task.__table__, stuck.id) if what == "task" else (Job.__table__, stuck_job.id)
    async with locked(replica, table, row_id):
        async with asyncio.timeout(TIMEOUT):
            await sweeper.cycle()
        assert (await replica.get(other.id)).status == TaskStatus.FAILED
        assert not sweeper.is_late
        assert await open_transactions(replica) == 1
    await sweeper.cycle()
    assert (await replica.get(stuck.id)).status == TaskStatus.FAILED


async def test_a_pass_that_takes_too_long_leaves_no_transaction(
    replica: Replica, settings: ServerSettings
) -> None:
    """What a pass of the sweeper abandons ends in the database too, while the row is still locked."""
    job = await replica.register(timeout_seconds=60)
    await replica.running(job)
    await make_due(replica, "deadline")
    sweeper = Sweeper(replica.runtime.write, settings, pass_seconds=0.1)
    async with locked(replica, Job.__table__, job.id):
        for _ in range(3):
            await sweeper.cycle()

        async def all_ended() -> bool:
            return await open_transactions(replica) == 1

        await until(all_ended, TIMEOUT)


async def test_a_locked_job_stops_no_scheduled_task_of_others(replica: Replica) -> None:
    """The scheduler queues the due tasks of other jobs."""
    stuck_job, other_job = await replica.register("Stuck"), await replica.register("Other")
    for job in (stuck_job, other_job):
        await replica.submit(job, delay_seconds=3600)
    await make_due(replica, "run_at")
    async with locked(replica, Job.__table__, stuck_job.id):
        scheduling = asyncio.create_task(replica.scheduler.run())
        assert await replica.claim(other_job.worker_id, wait=TIMEOUT / 2) is not None
    assert await replica.claim(stuck_job.worker_id, wait=TIMEOUT / 2) is not None
    scheduling.cancel()
    await asyncio.wait([scheduling])


async def test_many_tasks_of_a_locked_job_delay_no_others(replica: Replica) -> None:
    """A whole batch of them is older than the due, overdue and expired tasks of another job."""
    stuck, other = [await replica.register(name, timeout_seconds=60) for name in ("Stuck", "Other")]
    tasks, size = Task.__table__, rules_sweep.TASKS_PER_BATCH
    for job in (stuck, other):
        await replica.running(job)
        await replica.submit(job, delay_seconds=3600)
        await replica.submit(job, expires_in_seconds=3600)
        for column in ("deadline", "run_at", "expires_at"):
            past = func.now() - timedelta(hours=2 if job == stuck else 1)
            wanted = tasks.c.job_id == job.id, tasks.c[column].is_not(None)
            await replica.execute(update(tasks).where(*wanted).values({column: past}))
        for row in await replica.rows(tasks) if job == stuck else ():
            values = {name: value for name, value in row._mapping.items() if name != "seq"}
            await replica.add(tasks, [values | {"id": uuid4()} for _ in range(size)])
    counts = {"pending": size + 1, "scheduled": size + 1}
    await replica.execute(update(Job.__table__).where(Job.__table__.c.id == stuck.id).values(counts))
    async with locked(replica, Job.__table__, stuck.id):
        kinds = rules_sweep.kinds(timedelta(hours=1), None)
        assert await replica.runtime.write(rules_sweep.move_tasks, kinds, skip_locked=True) == 1
    rows = await replica.rows(tasks, tasks.c.job_id == other.id)
    assert sorted(row.status for row in rows) == ["failed", "failed", "pending"]
    assert not any(row.run_at for row in rows)


async def test_a_locked_internal_job_stops_no_dispatch_of_others(replica: Replica) -> None:
    """The dispatcher sends the pending tasks of other internal jobs, and those of the job when it is free."""
    stuck, other, broker = internal("Stuck"), internal("Other"), InternalExecutor()
    offers = [rules_internal.InternalJob(name, {}, JobPolicy()) for name in (stuck, other)]
    await replica.runtime.write(rules_internal.register, jobs=offers)
    replica.registry = InternalRegistry({str(stuck): broker, str(other): broker})
    for name in (stuck, other):
        await replica.runtime.write(partial(rules_jobs.pause, name=name, paused=True))
    tasks = {name: await replica.submit(str(name)) for name in (stuck, other)}
    for name in (stuck, other):
        await replica.runtime.write(partial(rules_jobs.pause, name=name, paused=False))
    assert broker.calls == []
    [row] = await replica.rows(Job.__table__, Job.__table__.c.name == stuck.name)
    async with locked(replica, Job.__table__, row.id), asyncio.timeout(TIMEOUT):
        with pytest.raises(ServiceUnavailable):
            await replica.dispatcher.dispatch()
    assert [call["task_id"] for call in broker.calls] == [str(tasks[other].id)]
    assert await replica.dispatcher.dispatch()
    assert [call["task_id"] for call in broker.calls[1:]] == [str(tasks[stuck].id)]
