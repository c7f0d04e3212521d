"""`max_pending` of a job, in all and per room: exact on any number of servers; nothing is written beyond."""

import asyncio
from typing import Any

import pytest
from databases import every_kind
from replica import SUBMITTER, ManualClock, OpenReplica, Replica
from schedules.test_job_schedules import tasks

from recovery.test_unique_tasks import submit_batch
from zndraw_joblib.server.background.schedules import Schedules
from zndraw_joblib.server.db.tables import Task
from zndraw_joblib.server.queue import rules_sweep
from zndraw_joblib.wire.messages import JobResponse, TaskResponse, TaskSubmitRequest
from zndraw_joblib.wire.names import parse_job_name
from zndraw_joblib.wire.problems import ContentTooLarge, TooManyRequests
from zndraw_joblib.wire.statuses import TaskStatus


async def submitted(replica: Replica, job: JobResponse, *rooms: str, **options: Any) -> list[bool]:
    """Submit a task from each of these rooms in one transaction; return which were accepted."""
    name = parse_job_name(job.full_name)
    request = TaskSubmitRequest(**options)
    items = [replica.runtime.submission(SUBMITTER, room, name, request) for room in rooms]
    results = await replica.runtime.submit_many(items)
    for result in results:
        assert isinstance(result, TaskResponse | TooManyRequests)
    return [isinstance(result, TaskResponse) for result in results]


async def submit_all(replica: Replica, job: JobResponse, *rooms: str) -> list[TaskResponse]:
    """Submit a task from each of these rooms, or none."""
    name = parse_job_name(job.full_name)
    items = [replica.runtime.submission(SUBMITTER, room, name, TaskSubmitRequest()) for room in rooms]
    results: Any = await replica.runtime.submit_all(items)
    return results


@every_kind
async def test_a_full_job_takes_no_task(replica: Replica) -> None:
    """Single and in batches; what is scheduled counts; a claim makes room. The refusal names the limit."""
    job = await replica.register(max_pending=3, max_pending_per_room=2)
    assert await submitted(replica, job, "a", "a", "a", "b", "b") == [True, True, False, True, False]
    with pytest.raises(TooManyRequests, match="max_pending of its policy is 3") as caught:
        await replica.submit(job, room="c")
    assert caught.value.headers == {"Retry-After": "5"}
    await replica.claim_task(job.worker_id)
    with pytest.raises(TooManyRequests, match=r"tasks\.1"):
        await submit_all(replica, job, "b", "c")
    assert await submitted(replica, job, "a", delay_seconds=100) == [True]
    await replica.register(max_pending=None)
    with pytest.raises(TooManyRequests, match="from room 'a' are pending, and max_pending_per_room of"):
        await replica.submit(job, room="a")
    assert len(await submit_all(replica, job, "d", "d")) == 2
    with pytest.raises(
        ContentTooLarge, match=r"3 tasks of .* from room 'e' .* max_pending_per_room of .* is 2"
    ):
        await submit_all(replica, job, "e", "e", "e")
    await replica.register(max_pending=3)
    with pytest.raises(ContentTooLarge, match="max_pending of its policy is 3: submit at most 3"):
        await submit_all(replica, job, "e", "f", "g", "h")
    assert await submitted(replica, job, "e", "f", "g", "h") == [False] * 4
    assert len(await replica.rows(Task.__table__)) == 6


@every_kind
async def test_servers_never_exceed_the_limits(replica: Replica, open_replica: OpenReplica) -> None:
    """Two submit and claim at the same time; at most so many tasks are pending, and all places are used."""
    other = open_replica()
    job = await replica.register(max_pending=8, max_pending_per_room=5)
    for _ in range(6):
        accepted = await asyncio.gather(
            *(submitted(server, job, *"abab", *"ba") for server in (replica, other) for _ in range(3)),
            *(replica.claim(job.worker_id) for _ in range(2)),
        )
        assert accepted
        pending = [row for row in await replica.rows(Task.__table__) if row.status == TaskStatus.PENDING]
        assert len(pending) <= 8
        assert max(sum(row.room_id == room for row in pending) for room in "ab") <= 5
    await submitted(replica, job, *"abababab")
    pending = [row for row in await replica.rows(Task.__table__) if row.status == TaskStatus.PENDING]
    assert len(pending) == 8


async def test_a_key_that_another_task_holds_needs_no_place(replica: Replica) -> None:
    """Also one that replaces the task. A submit that is refused holds no key."""
    job = await replica.register(max_pending=1)
    unique = {"key": "k", "on_conflict": "replace"}
    first, refused, again = await submit_batch(
        replica,
        job,
        {"unique": unique},
        {"unique": {"key": "other"}},
        {"unique": unique, "payload": {"n": 1}},
    )
    assert isinstance(refused, TooManyRequests)
    assert (again.id, again.duplicate) == (first.id, True)
    await replica.claim_task(job.worker_id)
    assert (await replica.submit(job, unique={"key": "other"})).duplicate is None


async def test_tasks_that_return_are_not_refused(timed: Replica, clock: ManualClock) -> None:
    """They count: while a retried task waits, a full job stays full."""
    job = await timed.register(max_pending=1, max_attempts=3, retry_on=["error"], backoff={"base_seconds": 9})
    running = await timed.running(job)
    await timed.submit(job)
    await timed.report(running.id, TaskStatus.FAILED)
    clock.advance(100)
    assert await timed.runtime.write(rules_sweep.enqueue_due) == 1
    await timed.claim_task(job.worker_id)
    with pytest.raises(TooManyRequests):
        await timed.submit(job)


async def test_a_due_time_waits_for_a_place(
    timed: Replica, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """For a minute; then it has no task, and the schedule says why. Others go on; one line is logged."""
    job, free = await timed.register(max_pending=1), await timed.register("Free")
    await timed.put_schedule(job, "full", every_seconds=600, catch_up="last")
    await timed.put_schedule(free, "free", every_seconds=600)
    await timed.submit(job, room="attic")
    clock.advance(600)
    await timed.submit_due()
    assert [task.schedule for task in await tasks(timed)] == ["free"]
    timed.schedules._failing.clear()
    await timed.submit_due()
    assert (await timed.schedule("full")).error is None
    assert len(caplog.records) == 1
    await timed.claim_task(job.worker_id)
    timed.schedules = Schedules(timed.runtime, timed.dispatcher.configure)  # it does not wait for 10 s
    await timed.submit_due()
    assert [task.schedule for task in await tasks(timed)] == ["free", "full"]
    clock.advance(600)
    await timed.submit_due()
    clock.advance(61)
    timed.schedules = Schedules(timed.runtime, timed.dispatcher.configure)
    await timed.submit_due()
    schedule = await timed.schedule("full")
    assert (schedule.error or "").startswith("too-many-requests: 1 tasks of job")
    assert schedule.next_due_at > clock.now
