"""Each change of a task of a watched room is in its event log, also beside changes in rooms without one."""

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import uuid4

from databases import every_kind, on_postgresql
from replica import ADMIN, OWNER, SUBMITTER, Replica
from sqlalchemy.ext.asyncio import AsyncSession

from zndraw_joblib import Worker, cleanup_stale_workers, cleanup_worker
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.room_events import events, streams
from zndraw_joblib.server.process.ports import RequestKey
from zndraw_joblib.server.queue import rules_task_actions, rules_tasks, sql_streams
from zndraw_joblib.server.queue.rules_idempotency import Repeat
from zndraw_joblib.server.queue.sql_streams import Bounds
from zndraw_joblib.wire.messages import TaskActionRequest, TaskResponse, TaskSubmitRequest, TaskUpdateRequest
from zndraw_joblib.wire.names import parse_job_name
from zndraw_joblib.wire.progress import LogLine, LogPart, Progress
from zndraw_joblib.wire.statuses import TaskStatus

TWICE: dict[str, Any] = {"max_attempts": 2, "retry_on": ["worker_lost"], "backoff": {"base_seconds": 0}}


async def watch(replica: Replica, *rooms: str) -> None:
    """Record the events of these rooms."""
    for room in rooms:
        await replica.runtime.write(
            sql_streams.watch, room, Bounds(timedelta(hours=1), 1000, 10**6, 1000, 1000)
        )


async def recorded(replica: Replica, room: str = "lab") -> list[str]:
    """Return the kinds of the recorded events of a room, in order; for a status, the status."""
    found = sorted(await replica.rows(events, events.c.room_id == room), key=lambda row: row.n)
    return [
        row.kind if row.kind != "status" else row.data.split('"status":"')[1].split('"')[0] for row in found
    ]


async def test_a_worker_that_leaves_fails_and_requeues(replica: Replica) -> None:
    """One transaction fails a task of a watched room, and requeues one of another room."""
    plain = await replica.register("Plain")
    retried = await replica.register("Retried", worker=plain.worker_id, **TWICE)
    await replica.running(plain)
    await replica.submit(retried, room="elsewhere")
    await replica.start(plain.worker_id)
    await watch(replica, "lab")
    await replica.leave(plain.worker_id)
    assert await recorded(replica) == ["failed"]


async def test_reports_of_several_rooms(replica: Replica) -> None:
    """One transaction has progress and a log of a watched room, and the end of a task of another room."""
    job = await replica.register()
    detailed = await replica.running(job)
    await replica.submit(job, room="elsewhere")
    ended = await replica.start(job.worker_id)
    await watch(replica, "lab")
    line = LogLine(at=datetime(2026, 1, 2, tzinfo=UTC), text="x")
    fields = {"progress": Progress(current=1), "log": LogPart(first=1, lines=[line])}
    items = [
        rules_tasks.Report(OWNER, detailed.id, TaskUpdateRequest(attempt=1, **fields)),
        rules_tasks.Report(OWNER, ended.id, TaskUpdateRequest(attempt=1, status=TaskStatus.COMPLETED)),
    ]
    await replica.runtime.write(partial(rules_tasks.report, items=items))
    assert sorted(await recorded(replica)) == ["log", "progress"]


@on_postgresql
async def test_events_of_several_rooms_are_one_statement(replica: Replica) -> None:
    """It numbers the events of each watched room without a gap, in their order, and counts their bytes."""
    job = await replica.register()
    held = []
    for room in ("lab", "attic", "lab", "hall"):
        await replica.submit(job, room=room)
        held.append(await replica.start(job.worker_id))
    await watch(replica, "lab", "attic")
    items = [
        rules_tasks.Report(OWNER, task.id, TaskUpdateRequest(attempt=1, status=TaskStatus.COMPLETED))
        for task in held
    ]
    statements = replica.record_statements()
    await replica.runtime.write(partial(rules_tasks.report, items=items))
    assert len([sql for sql, _ in statements if "joblib_room_event" in sql]) == 1
    rows = await replica.rows(events)
    for room in await replica.rows(streams):
        numbers = [row.n for row in rows if row.room_id == room.room_id]
        assert numbers == list(range(room.first_n + 1, room.last_n + 1))
        assert room.size == sum(row.size for row in rows if row.room_id == room.room_id) > 0
    of_lab = sorted((row for row in rows if row.room_id == "lab"), key=lambda row: row.n)
    assert [row.task_id for row in of_lab] == [held[0].id, held[2].id]


async def test_an_end_and_a_retry_in_one_transaction(replica: Replica) -> None:
    """Events have the order in which they happened, if a task ends and returns to its queue twice."""
    task = await replica.running(await replica.register(), by=OWNER)
    await watch(replica, "lab")
    line = LogLine(at=datetime(2026, 1, 2, tzinfo=UTC), text="x")
    failed = TaskUpdateRequest(
        attempt=1, status=TaskStatus.FAILED, error="no", log=LogPart(first=1, lines=[line])
    )

    async def work(tx: Transaction) -> None:
        await rules_tasks.report(tx, [rules_tasks.Report(OWNER, task.id, failed)])
        for what in (rules_task_actions.retry, rules_task_actions.fail, rules_task_actions.retry):
            await what(tx, ADMIN, task.id, TaskActionRequest())

    await replica.runtime.write(work)
    assert await recorded(replica) == ["log", "failed", "pending", "failed", "pending"]


@every_kind
async def test_the_functions_of_a_host_record(replica: Replica) -> None:
    """What a host changes in its own sessions is recorded with it."""
    first, second = await replica.register(), await replica.register()
    await replica.running(first)
    await replica.running(second)
    await watch(replica, "lab")
    async with AsyncSession(replica.engine) as session:
        worker = await session.get(Worker, first.worker_id)
        assert worker is not None
        await cleanup_worker(session, worker)
        await session.commit()
    assert await recorded(replica) == ["failed"]
    async with AsyncSession(replica.engine) as session:
        await cleanup_stale_workers(session, timedelta(seconds=-60))
    assert await recorded(replica) == ["failed", "failed"]


@on_postgresql
async def test_plain_requests_in_a_watched_room_take_two_statements(replica: Replica) -> None:
    """Once there were events, their statement writes in watched rooms too, and the events follow it.

    After some requests without events, it is a transaction of its own again.
    """
    job = await replica.register()
    await watch(replica, "lab")
    statements = replica.record_statements()

    async def run_task(room: str = "lab") -> list[bool]:
        statements.clear()
        await replica.submit(job, room=room)
        task = await replica.claim_task(job.worker_id)
        for status in (TaskStatus.RUNNING, TaskStatus.COMPLETED):
            await replica.report(task.id, status)
        return [statement.is_alone for statement in statements]

    for _ in range(3):
        taken = await run_task()
    assert taken == 8 * [False]
    assert await recorded(replica) == 3 * ["pending", "claimed", "running", "completed"]
    assert await run_task("elsewhere") == 4 * [False]
    for _ in range(20):
        taken = await run_task("elsewhere")
    assert taken == 4 * [True]
    assert len(await run_task()) > 8
    assert (await recorded(replica))[-4:] == ["pending", "claimed", "running", "completed"]


@on_postgresql
async def test_keys_of_submits_to_a_watched_room_are_applied_once(replica: Replica) -> None:
    """Batches of tasks with and without keys, to watched and other rooms, take the same statement."""
    job = await replica.register()
    await watch(replica, "lab")
    for _ in range(2):
        await replica.submit(job)
    statements = replica.record_statements()
    key = RequestKey(uuid4(), uuid4(), timedelta(days=1), SUBMITTER.id)

    def submission(room: str) -> rules_tasks.Submission:
        name, keyed = parse_job_name(job.full_name), key if room == "lab" else None
        return replica.runtime.submission(SUBMITTER, room, name, TaskSubmitRequest(), keyed)

    rooms = ["elsewhere", "lab", "attic"]
    results = await replica.runtime.submits.put_many(list(map(submission, rooms)))
    assert [task.room_id for task in results if isinstance(task, TaskResponse)] == rooms
    assert [statement.is_alone for statement in statements] == [False, False]
    [repeated] = await replica.runtime.submits.put_many([submission("lab")])
    assert isinstance(repeated, Repeat)
    assert repeated.result == results[1]
    assert await recorded(replica) == 3 * ["pending"]
