"""The history of a task lists every transition; its explanation has the reasons for its status."""

from functools import partial
from uuid import UUID

import pytest
from databases import every_kind
from replica import ADMIN, OWNER, SUBMITTER, InternalExecutor, ManualClock, Replica, internal

from zndraw_joblib.server.internal.registry import InternalRegistry
from zndraw_joblib.server.queue import rules_history, rules_task_actions, rules_tasks
from zndraw_joblib.wire.history import TaskHistory
from zndraw_joblib.wire.messages import JobResponse, TaskUpdateRequest
from zndraw_joblib.wire.names import INTERNAL
from zndraw_joblib.wire.problems import TaskNotFound
from zndraw_joblib.wire.statuses import TaskStatus

SUBMITTED = ("pending", 0, "submitted")


async def fail_in_every_way(timed: Replica, clock: ManualClock) -> UUID:
    """Return a task to its queue in every possible way, and complete it at last."""
    policy = {"max_attempts": 4, "retry_on": ["error", "timeout", "worker_lost"], "timeout_seconds": 100}
    job = await timed.register(start_timeout_seconds=10, **policy)
    task = await timed.submit(job)
    await timed.claim_task(job.worker_id)
    clock.advance(10)
    await timed.recover_overdue()
    await timed.start(job.worker_id)
    await timed.act(rules_task_actions.release, task.id, error="not now")
    await fail_once(timed, clock, job)
    await timed.start(job.worker_id)
    clock.advance(100)
    await timed.recover_overdue()
    await make_due(timed, clock)
    await timed.start(job.worker_id)
    await timed.leave(job.worker_id)
    await make_due(timed, clock)
    job = await timed.register()
    await timed.start(job.worker_id)
    await timed.act(rules_task_actions.fail, task.id, error="enough")
    await timed.act(rules_task_actions.retry, task.id)
    done = await timed.start(job.worker_id)
    await timed.report(done.id, TaskStatus.COMPLETED)
    return task.id


@every_kind
async def test_the_history_of_a_task_with_every_failure(timed: Replica, clock: ManualClock) -> None:
    """Every return to the queue has its reason, attempt, time and error."""
    task_id = await fail_in_every_way(timed, clock)
    response: TaskHistory = await timed.runtime.database.read(rules_history.history, task_id=task_id)
    expected = [
        (*SUBMITTED, None),
        ("claimed", 1, None, None),
        ("pending", 1, "start-timeout", "The task was not started within 10 s"),
        *ran(2, ("pending", 2, "released", "not now")),
        *ran(3, ("pending", 3, "error", "oh")),
        *ran(4, ("pending", 4, "run-timeout", "The attempt ran for more than 100 s")),
        *ran(5, ("pending", 5, "worker-lost", "Worker disconnected")),
        *ran(6, ("failed", 6, "failed-by-operator", "enough"), ("pending", 6, "retried", None)),
        *ran(7, ("completed", 7, None, None)),
    ]
    found = [(one.status.value, one.attempt, one.reason, one.error) for one in response.transitions]
    assert found == expected
    # The first claim never started, so it was no attempt.
    numbers = {one.attempt: one.attempt_number for one in response.transitions}
    assert numbers == {0: None, 1: None, **{attempt: attempt - 1 for attempt in range(2, 8)}}
    scheduled = [one.reason for one in response.transitions if one.run_at is not None]
    assert scheduled == ["error", "run-timeout", "worker-lost"]
    assert all((one.worker_id is None) == (one.reason in {"submitted"}) for one in response.transitions)
    assert [one.at for one in response.transitions] == sorted(one.at for one in response.transitions)


Entry = tuple[str, int, str | None, str | None]


def ran(attempt: int, *rest: Entry) -> list[Entry]:
    """Return a started attempt and its end."""
    return [("claimed", attempt, None, None), ("running", attempt, None, None), *rest]


async def make_due(timed: Replica, clock: ManualClock) -> None:
    """Advance the time until the next attempt is due."""
    clock.advance(3600)
    assert await timed.enqueue_due() == 1


async def fail_once(timed: Replica, clock: ManualClock, job: JobResponse) -> None:
    """Fail an attempt, and make the next one due."""
    running = await timed.start(job.worker_id)
    await timed.report(running.id, TaskStatus.FAILED, error="oh")
    await make_due(timed, clock)


async def test_a_history_starts_with_the_submit(timed: Replica, clock: ManualClock) -> None:
    """It ends with the present status: pending, expired, cancelled, or of an internal task."""
    job = await timed.register()
    waiting, late, gone, back = [await timed.submit(job, expires_in_seconds=s) for s in (None, 9, None, None)]
    await timed.report(gone.id, TaskStatus.CANCELLED, by=SUBMITTER)
    await timed.report(back.id, TaskStatus.CANCELLED, by=SUBMITTER)
    await timed.act(rules_task_actions.retry, back.id)
    clock.advance(9)
    await timed.fail_expired()
    assert await timed.history(waiting.id) == [SUBMITTED]
    assert await timed.history(late.id) == [SUBMITTED, ("failed", 0, "task-expired")]
    assert await timed.history(gone.id) == [SUBMITTED, ("cancelled", 0, None)]
    assert await timed.history(back.id) == [SUBMITTED, ("cancelled", 0, None), ("pending", 0, "retried")]
    await timed.register("Render", INTERNAL, by=ADMIN)
    timed.registry = InternalRegistry({str(internal()): InternalExecutor()})
    inside = await timed.submit(str(internal()))
    assert await timed.history(inside.id) == [SUBMITTED, ("claimed", 1, None)]
    with pytest.raises(TaskNotFound):
        await timed.history(job.id)


async def test_several_steps_of_one_batch_are_all_in_the_history(timed: Replica) -> None:
    """Also if a task starts and fails in one transaction."""
    job = await timed.register(max_attempts=2, retry_on=["error"])
    await timed.submit(job)
    task = await timed.claim_task(job.worker_id)
    explain_task = [TaskUpdateRequest(status=status) for status in (TaskStatus.RUNNING, TaskStatus.FAILED)]
    items = [rules_tasks.Report(OWNER, task.id, update) for update in explain_task]
    await timed.runtime.write(lambda tx: rules_tasks.report(tx, items))
    assert await timed.history(task.id) == [
        SUBMITTED,
        ("claimed", 1, None),
        ("running", 1, None),
        ("pending", 1, "error"),
    ]


async def test_the_reasons_why_a_task_is_pending(timed: Replica, clock: ManualClock) -> None:
    """All reasons that apply, the most important first, and no other."""
    timed.runtime.settings.room_max_in_flight = 1
    job = await timed.register(max_in_flight=1)
    first, second = await timed.submit(job), await timed.submit(job)
    later = await timed.submit(job, delay_seconds=100)
    assert await timed.explain(first.id) == ["queued"]
    assert await timed.explain(later.id) == ["scheduled"]
    await timed.claim_task(job.worker_id)
    assert await timed.explain(second.id) == ["job_at_capacity", "room_at_capacity", "queued"]
    timed.runtime.settings.room_max_in_flight = None
    assert await timed.explain(second.id) == ["job_at_capacity", "queued"]
    await timed.drain(job.worker_id)
    assert await timed.explain(second.id) == ["draining", "job_at_capacity", "queued"]
    await timed.pause(job)
    assert await timed.explain(second.id) == ["paused", "draining", "job_at_capacity", "queued"]
    await timed.leave(job.worker_id)
    assert await timed.explain(second.id) == ["paused", "no_worker", "queued"]
    assert await timed.explain(later.id) == ["paused", "no_worker", "scheduled"]


async def test_the_text_of_an_explanation(timed: Replica, clock: ManualClock) -> None:
    """For a held task, an ended one, and one that waits for another attempt."""
    job = await timed.register(max_attempts=2, retry_on=["error"])
    task = await timed.submit(job)

    async def explain_task() -> list[tuple[str, str]]:
        work = partial(rules_history.explain, task_id=task.id, order=timed.runtime.order)
        response = await timed.runtime.database.read(work)
        return [(why.code, why.detail) for why in response.reasons]

    assert await explain_task() == [("queued", "It is first in its queue")]
    claimed = await timed.claim_task(job.worker_id)
    [(code, detail)] = await explain_task()
    assert code == "claimed"
    assert detail.startswith(f"Worker {job.worker_id} has claimed it, attempt 1, since ")
    await timed.report(task.id, TaskStatus.RUNNING, attempt=claimed.attempt)
    [(code, detail)] = await explain_task()
    assert code == "running"
    assert detail.startswith(f"Worker {job.worker_id} runs it, attempt 1, since ")
    await timed.report(task.id, TaskStatus.FAILED, error="oh")
    [(code, detail)] = await explain_task()
    assert code == "scheduled"
    assert detail.endswith("after: oh")
    clock.advance(3)
    await timed.enqueue_due()
    await timed.start(job.worker_id)
    await timed.report(task.id, TaskStatus.FAILED, error="oh again")
    assert [code for code, _ in await explain_task()] == ["failed", "error"]
    assert (await explain_task())[1] == ("error", "oh again")


async def test_the_explanation_of_an_internal_task(timed: Replica) -> None:
    """The explanation says that the server holds the task."""
    await timed.register("Render", INTERNAL, by=ADMIN)
    timed.registry = InternalRegistry({str(internal()): InternalExecutor()})
    inside = await timed.submit(str(internal()))
    assert await timed.explain(inside.id) == ["claimed"]
    await timed.act(rules_task_actions.fail, inside.id)
    assert await timed.explain(inside.id) == ["failed", "failed-by-operator"]
