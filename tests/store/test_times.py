"""Times are in UTC with a time zone, and each transaction has one time."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from replica import ManualClock, Replica
from seeds import LONG_AGO, add_tasks, task
from sqlalchemy import text

from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.tables import Task
from zndraw_joblib.wire.statuses import TaskStatus


async def test_times_are_aware_on_every_database(replica: Replica) -> None:
    """A time written in any time zone is read as the same instant in UTC."""
    job = await replica.register()
    bombay = timezone(timedelta(hours=5, minutes=30))
    moment = datetime(2026, 3, 29, 2, 30, 0, 123456, tzinfo=bombay)
    [task_id] = await add_tasks(replica, [task(job.id, TaskStatus.FAILED, created_at=moment)])
    found = await replica.get(task_id)
    assert found.created_at == moment
    assert found.created_at.tzinfo is UTC
    assert found.completed_at == LONG_AGO
    [row] = await replica.rows(Task.__table__)
    assert row.created_at.utcoffset() == timedelta(0)


async def test_times_end_in_z_on_the_wire(replica: Replica) -> None:
    """Times in responses and events end in `Z`, so that browsers do not read them as local times."""
    job = await replica.register()
    running = await replica.running(job)
    done = await replica.report(running.id, TaskStatus.COMPLETED)
    published = [event for event, _ in replica.events if hasattr(event, "completed_at")]
    for message in (done, await replica.get(done.id), published[-1]):
        body: dict[str, Any] = message.model_dump(mode="json")
        for name in ("created_at", "started_at", "completed_at"):
            assert body[name].endswith("Z"), name
    beaten = await replica.heartbeat(job.worker_id)
    assert beaten.model_dump(mode="json")["last_heartbeat"].endswith("Z")


async def test_the_times_of_a_task_are_in_order(replica: Replica) -> None:
    """Creation, claim, start and end follow each other."""
    job = await replica.register()
    running = await replica.running(job)
    await replica.report(running.id, TaskStatus.COMPLETED)
    [row] = await replica.rows(Task.__table__)
    assert row.created_at <= row.claimed_at <= row.started_at <= row.completed_at


async def test_a_transaction_has_one_time_of_the_database(replica: Replica) -> None:
    """All times that a transaction writes are equal; on PostgreSQL they come from the server's clock."""

    async def work(tx: Transaction) -> tuple[datetime, datetime, datetime]:
        first = await tx.now()
        clock = "SELECT 1" if tx.is_sqlite else "SELECT now()"
        own = (await tx.execute(text(clock))).scalar_one()
        return first, first if tx.is_sqlite else own, await tx.now()

    (first, own, again), _ = await replica.runtime.database.write(work)
    assert first == own == again
    assert first.utcoffset() == timedelta(0)
    assert abs(first - datetime.now(UTC)) < timedelta(seconds=10)


async def test_the_clock_is_a_parameter(timed: Replica, clock: ManualClock) -> None:
    """With a test's clock, every time that is written is that clock's."""
    job = await timed.register()
    times = []
    await timed.submit(job)
    claimed = await timed.claim(job.worker_id)
    assert claimed is not None
    for status in (TaskStatus.RUNNING, TaskStatus.COMPLETED):
        clock.advance(10)
        times.append(clock.now)
        await timed.report(claimed.id, status)
    found = await timed.get(claimed.id)
    assert [found.started_at, found.completed_at] == times
    assert (await timed.heartbeat(job.worker_id)).last_heartbeat == clock.now
