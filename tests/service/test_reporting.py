"""A report changes the status as the transition table allows, for the permitted callers, and once."""

import asyncio
from itertools import product
from typing import Any
from uuid import UUID, uuid4

import pytest
from replica import ADMIN, OWNER, STRANGER, SUBMITTER, ManualClock, Replica
from seeds import add_tasks, task
from sqlalchemy import update

from zndraw_joblib.server.db.tables import AuditRecord, Task, Worker
from zndraw_joblib.server.process.ports import Identity
from zndraw_joblib.server.queue import rules_tasks
from zndraw_joblib.wire.events import TaskStatusEvent
from zndraw_joblib.wire.messages import MAX_ERROR_BYTES, TaskResponse, TaskUpdateRequest
from zndraw_joblib.wire.policy import Backoff
from zndraw_joblib.wire.problems import (
    Forbidden,
    InvalidTaskTransition,
    ProblemException,
    StaleReport,
    TaskNotFound,
)
from zndraw_joblib.wire.statuses import HELD, TERMINAL, TRANSITIONS, Role, TaskStatus

CALLERS = {Role.WORKER: OWNER, Role.SUBMITTER: SUBMITTER, Role.SUPERUSER: ADMIN, None: STRANGER}


def report(
    task_id: UUID, status: TaskStatus | str, by: Identity = OWNER, **fields: Any
) -> rules_tasks.Report:
    """Return one item of a batch."""
    return rules_tasks.Report(by, task_id, TaskUpdateRequest(status=TaskStatus(status), **fields))


async def apply(replica: Replica, *items: rules_tasks.Report) -> list[TaskResponse | ProblemException]:
    """Apply all reports in one transaction."""
    return await replica.runtime.write(lambda tx: rules_tasks.report(tx, items))


def expected(role: Role | None, source: TaskStatus, target: TaskStatus) -> type:
    """Return the result of a report by the contract, computed independently of the code."""
    holds = source in HELD | {TaskStatus.COMPLETED, TaskStatus.FAILED}
    if role is None or (role is Role.WORKER and not holds):
        return Forbidden
    if role is Role.SUBMITTER and target is not TaskStatus.CANCELLED:
        return Forbidden
    if source is target and source not in {TaskStatus.PENDING, TaskStatus.CLAIMED}:
        return TaskResponse
    allowed = role in TRANSITIONS.get((source, target), ())
    return TaskResponse if allowed else InvalidTaskTransition


async def test_every_report_from_every_status_by_every_role(replica: Replica) -> None:
    """All 144 combinations of status, report and caller follow the transition table."""
    job = await replica.register()
    cases = list(product(CALLERS, TaskStatus, TaskStatus))
    rows = []
    for _, source, _ in cases:
        held = source in HELD | {TaskStatus.COMPLETED, TaskStatus.FAILED}
        holder = {"worker_id": job.worker_id, "worker_owner_id": OWNER.id} if held else {}
        rows.append(task(job.id, source, **holder))
    ids = await add_tasks(replica, rows)
    replica.events.clear()
    items = [report(id_, target, CALLERS[role]) for id_, (role, _, target) in zip(ids, cases, strict=True)]
    answers = await apply(replica, *items)
    for id_, case, answer in zip(ids, cases, answers, strict=True):
        role, source, target = case
        assert type(answer) is expected(role, source, target), case
        moved = isinstance(answer, TaskResponse) and source is not target
        found = await replica.get(id_)
        assert found.status is (target if moved else source), case
        assert (found.completed_at is not None) == (found.status in TERMINAL), case
        assert replica.statuses(id_) == ([target] if moved else []), case


async def test_the_times_and_events_of_a_task(timed: Replica, clock: ManualClock) -> None:
    """Start and end have timestamps, the result is stored, and each step has one event."""
    job = await timed.register()
    await timed.submit(job)
    claimed = await timed.claim(job.worker_id)
    assert claimed is not None
    clock.advance(1)
    running = await timed.report(claimed.id, TaskStatus.RUNNING, attempt=1, worker_id=job.worker_id)
    assert (running.started_at, running.completed_at) == (clock.now, None)
    clock.advance(1)
    done = await timed.report(claimed.id, TaskStatus.COMPLETED, attempt=1, result={"a": [1, None]})
    assert (done.started_at, done.completed_at) == (running.started_at, clock.now)
    assert (done.result, done.error, done.worker_id) == ({"a": [1, None]}, None, job.worker_id)
    assert timed.statuses(done.id) == [
        TaskStatus.PENDING,
        TaskStatus.CLAIMED,
        TaskStatus.RUNNING,
        TaskStatus.COMPLETED,
    ]
    assert await timed.get(done.id) == done


async def test_only_a_completed_task_has_a_result(replica: Replica, subtests: pytest.Subtests) -> None:
    """A completed task may have an error text as a warning; a failed or cancelled one has no result."""
    for status in sorted(TERMINAL):
        with subtests.test(status=status):
            running = await replica.running(await replica.register())
            ended = await replica.report(running.id, status, error="oh", result=1)
            assert ended.error == "oh"
            assert ended.result == (1 if status is TaskStatus.COMPLETED else None)


async def test_a_long_error_text_is_truncated_and_marked(replica: Replica) -> None:
    """It has at most 64 KiB, no partial character, and no byte that PostgreSQL cannot store."""
    job, mark = await replica.register(), "\n[cut: the text was longer than 64 KiB]"
    longest = "x" * MAX_ERROR_BYTES
    for error, stored in (
        ("\x00ä", "\ufffdä"),
        ("\ud800", "?"),
        (longest, longest),
        ("ä" * MAX_ERROR_BYTES, "ä" * ((MAX_ERROR_BYTES - len(mark)) // 2) + mark),
        ("x" + "ä" * MAX_ERROR_BYTES, "x" + "ä" * ((MAX_ERROR_BYTES - len(mark) - 1) // 2) + mark),
    ):
        running = await replica.running(job)
        ended = await replica.report(running.id, TaskStatus.FAILED, error=error)
        assert ended.error == stored
        assert (await replica.get(running.id)).error == stored


async def test_a_repeated_report_changes_nothing(timed: Replica, clock: ManualClock) -> None:
    """A repeated report gets the task as it is, and publishes no event."""
    job = await timed.register()
    running = await timed.running(job)
    for status, fields in ((TaskStatus.RUNNING, {}), (TaskStatus.COMPLETED, {"result": 1})):
        first = await timed.report(running.id, status, attempt=1, **fields)
        clock.advance(5)
        timed.events.clear()
        assert await timed.report(running.id, status, attempt=1, **fields) == first
        assert timed.events == []


async def test_a_failure_with_another_error_is_no_repeat(replica: Replica) -> None:
    """A worker whose task failed for another reason gets a conflict with that reason."""
    running = await replica.running(await replica.register())
    failed = await replica.report(running.id, TaskStatus.FAILED, error="mine")
    assert await replica.report(running.id, TaskStatus.FAILED, error="mine") == failed
    with pytest.raises(InvalidTaskTransition):
        await replica.report(running.id, TaskStatus.FAILED, error="other")


async def test_a_report_of_another_holder_is_stale(replica: Replica, subtests: pytest.Subtests) -> None:
    """A report with another token or worker is refused with a reason, and changes nothing."""
    for fields in ({"attempt": 1}, {"attempt": 3}, {"worker_id": uuid4()}):
        with subtests.test(fields=fields):
            job = await replica.register()
            running = await replica.running(job)
            await replica.execute(update(Task.__table__).values(attempt=2))
            replica.events.clear()
            for status in (TaskStatus.RUNNING, TaskStatus.COMPLETED, TaskStatus.FAILED):
                with pytest.raises(StaleReport) as refused:
                    await replica.report(running.id, status, **fields)
                body = refused.value.problem.model_dump()
                assert (body["reason"], body["current_attempt"]) == ("taken over", 2)
            assert replica.events == []
            done = await replica.report(running.id, TaskStatus.COMPLETED, attempt=2, worker_id=job.worker_id)
            assert done.status is TaskStatus.COMPLETED


async def test_a_refused_report_has_a_reason(replica: Replica) -> None:
    """A worker can distinguish a cancelled task, a finished one, and a report out of order."""
    job = await replica.register()
    reasons = []
    for ending, by in ((TaskStatus.CANCELLED, SUBMITTER), (TaskStatus.FAILED, OWNER)):
        running = await replica.running(job)
        await replica.report(running.id, ending, by=by)
        with pytest.raises(InvalidTaskTransition, match=f"'{ending}'") as refused:
            await replica.report(running.id, TaskStatus.COMPLETED, attempt=1)
        reasons.append(refused.value.problem.model_dump()["reason"])
    await replica.submit(job)
    claimed = await replica.claim(job.worker_id)
    assert claimed is not None
    with pytest.raises(InvalidTaskTransition) as refused:
        await replica.report(claimed.id, TaskStatus.COMPLETED)
    reasons.append(refused.value.problem.model_dump()["reason"])
    assert reasons == ["cancelled", "finished", "wrong order"]


async def test_a_report_without_a_worker_id_is_a_heartbeat_of_the_holder(
    timed: Replica, clock: ManualClock
) -> None:
    """Workers of version 0.1.x name no worker. A cancel is no sign of life of the worker."""
    job = await timed.register()
    running, cancelled = [await timed.running(job) for _ in range(2)]
    clock.advance(50)
    timed.runtime.force_heartbeat(job.worker_id)
    await timed.report(cancelled.id, TaskStatus.CANCELLED)
    [worker] = await timed.rows(Worker)
    assert worker.last_heartbeat < clock()
    await timed.report(running.id, TaskStatus.COMPLETED)
    [worker] = await timed.rows(Worker)
    assert worker.last_heartbeat == clock()


async def test_the_audit_names_the_task_that_an_operator_cancelled(replica: Replica) -> None:
    """With its room and the operator. What users cancel of their own is not recorded."""
    job = await replica.register()
    own, other = [await replica.submit(job) for _ in range(2)]
    await replica.report(own.id, TaskStatus.CANCELLED, by=SUBMITTER)
    await replica.report(other.id, TaskStatus.CANCELLED, by=ADMIN)
    await replica.report(other.id, TaskStatus.CANCELLED, by=ADMIN)
    [record] = await replica.rows(AuditRecord)
    assert (record.action, record.target) == ("task.cancel", str(other.id))
    assert (record.actor, record.room_id) == (ADMIN.id, "lab")


async def test_reports_of_a_batch_apply_in_order(replica: Replica) -> None:
    """Reports on one task build on each other; invalid ones are refused alone."""
    job = await replica.register()
    await replica.submit(job)
    other = (await replica.submit(job)).id
    claimed = await replica.claim(job.worker_id)
    assert claimed is not None
    replica.events.clear()
    answers = await apply(
        replica,
        report(claimed.id, TaskStatus.COMPLETED),
        report(claimed.id, TaskStatus.RUNNING),
        report(uuid4(), TaskStatus.RUNNING),
        report(claimed.id, TaskStatus.COMPLETED, result=1),
        report(other, TaskStatus.CANCELLED, STRANGER),
        report(claimed.id, TaskStatus.COMPLETED, result=2),
        report(claimed.id, TaskStatus.FAILED),
        report(other, TaskStatus.CANCELLED, SUBMITTER),
        report(other, TaskStatus.CANCELLED, ADMIN),
    )
    assert [type(answer) for answer in answers] == [
        InvalidTaskTransition,
        TaskResponse,
        TaskNotFound,
        TaskResponse,
        Forbidden,
        TaskResponse,
        InvalidTaskTransition,
        TaskResponse,
        TaskResponse,
    ]
    assert replica.statuses() == [TaskStatus.RUNNING, TaskStatus.COMPLETED, TaskStatus.CANCELLED]
    assert (await replica.get(claimed.id)).result == 1


async def test_a_report_that_breaks_its_batch_fails_alone(replica: Replica) -> None:
    """A result that the database cannot store does not affect the other reports."""
    job = await replica.register()
    held = [await replica.running(job) for _ in range(5)]
    results = [1, 2, object(), 4, 5]
    answers = await asyncio.gather(
        *[
            replica.report(task.id, TaskStatus.COMPLETED, result=result)
            for task, result in zip(held, results, strict=True)
        ],
        return_exceptions=True,
    )
    assert [isinstance(answer, TaskResponse) for answer in answers] == [True, True, False, True, True]
    assert (await replica.get(held[2].id)).status is TaskStatus.RUNNING


async def test_only_the_owner_of_its_worker_reports_on_a_task(replica: Replica) -> None:
    """Other users may not report; another worker of the same owner may, without a token."""
    job = await replica.register()
    await replica.register(by=STRANGER)
    running = await replica.running(job)
    with pytest.raises(Forbidden, match="Not authorized to update this task"):
        await replica.report(running.id, TaskStatus.COMPLETED, by=STRANGER)
    waiting = await replica.submit(job)
    with pytest.raises(Forbidden, match="Task not claimed by any worker"):
        await replica.report(waiting.id, TaskStatus.RUNNING, by=STRANGER)
    assert (await replica.report(running.id, TaskStatus.COMPLETED)).status is TaskStatus.COMPLETED


async def test_a_cancelled_task_is_not_claimed(replica: Replica) -> None:
    """A task that is cancelled while it is pending leaves the queue at once."""
    job = await replica.register()
    first, second = await replica.submit(job), await replica.submit(job)
    cancelled = await replica.report(first.id, TaskStatus.CANCELLED, by=SUBMITTER)
    assert (cancelled.queue_position, cancelled.worker_id) == (None, None)
    assert (await replica.get(second.id)).queue_position == 1
    claimed = await replica.claim(job.worker_id)
    assert claimed is not None
    assert claimed.id == second.id


async def test_the_position_of_a_task_that_is_tried_again(replica: Replica) -> None:
    """The answer and the event of its failure have the position in the queue, as a read has."""
    job = await replica.register(max_attempts=2, retry_on=["error"], backoff=Backoff(base_seconds=0))
    running = await replica.running(job)
    await replica.submit(job, priority=5)
    await replica.submit(job)
    replica.events.clear()
    failed = await replica.report(running.id, TaskStatus.FAILED, error="oh")
    assert (failed.status, failed.queue_position) == (TaskStatus.PENDING, 2)
    events = [event for event, _ in replica.events if isinstance(event, TaskStatusEvent)]
    assert [event.queue_position for event in events] == [2]
    assert await replica.get(running.id) == failed
