"""Release, retry and fail a task by hand: roles, statuses, fencing and events."""

import asyncio
from typing import Any
from uuid import UUID, uuid4

import pytest
from databases import every_kind
from replica import (
    ADMIN,
    OWNER,
    STRANGER,
    SUBMITTER,
    InternalExecutor,
    ManualClock,
    Replica,
    internal,
    wait_until_waiting,
)
from seeds import add_tasks, task

from recovery.test_time_limits import LONG, SOON, recheck_seconds  # noqa: F401 - a fixture
from zndraw_joblib.server.internal.registry import InternalRegistry
from zndraw_joblib.server.queue import rules_history, rules_task_actions
from zndraw_joblib.wire.events import JobsInvalidate, TaskAvailable, TaskStatusEvent, room_of, workers_of
from zndraw_joblib.wire.messages import TaskResponse, Verdict
from zndraw_joblib.wire.names import INTERNAL
from zndraw_joblib.wire.problems import Forbidden, InvalidTaskTransition, StaleReport, TaskNotFound
from zndraw_joblib.wire.statuses import HELD, TERMINAL, TaskStatus

NO_PAUSE = {"base_seconds": 0}
FROM = {
    rules_task_actions.release: HELD,
    rules_task_actions.retry: {TaskStatus.FAILED, TaskStatus.CANCELLED},
    rules_task_actions.fail: set(TaskStatus) - TERMINAL,
}
MAY = {
    rules_task_actions.release: {OWNER, ADMIN},
    rules_task_actions.retry: {SUBMITTER, ADMIN},
    rules_task_actions.fail: {ADMIN},
}
TO = {
    rules_task_actions.release: TaskStatus.PENDING,
    rules_task_actions.retry: TaskStatus.PENDING,
    rules_task_actions.fail: TaskStatus.FAILED,
}


def events(replica: Replica) -> list[tuple[str, str]]:
    """Return the published events and their rooms."""
    published = []
    for event, room in replica.events:
        status = f" {event.status.value}" if isinstance(event, TaskStatusEvent) else ""
        published.append((f"{type(event).__name__}{status}", room))
    return published


@pytest.mark.parametrize("what", list(FROM), ids=lambda what: what.__name__)
async def test_each_action_by_every_role_from_every_status(replica: Replica, what: Any) -> None:
    """A refused action changes nothing and publishes nothing."""
    job = await replica.register()
    mine = {"worker_id": job.worker_id, "worker_owner_id": OWNER.id, "attempt": 1}
    for status in TaskStatus:
        for by in (OWNER, SUBMITTER, ADMIN, STRANGER):
            fields = {} if status is TaskStatus.PENDING else mine
            [task_id] = await add_tasks(replica, [task(job.id, status, **fields)])
            before = await replica.get(task_id)
            replica.events.clear()
            if by in MAY[what] and status in FROM[what]:
                assert (await replica.act(what, task_id, by=by)).status is TO[what]
                assert replica.statuses(task_id) == [TO[what]]
            else:
                with pytest.raises((Forbidden, InvalidTaskTransition)) as refused:
                    await replica.act(what, task_id, by=by)
                is_holder_no_more = status is TaskStatus.PENDING and by is OWNER
                assert (refused.type is Forbidden) == (by not in MAY[what] or is_holder_no_more)
                assert await replica.get(task_id) == before
                assert replica.events == []
    with pytest.raises(TaskNotFound):
        await replica.act(what, uuid4())


@every_kind
async def test_a_released_task_is_in_its_queue_again(timed: Replica, clock: ManualClock) -> None:
    """It has its old position; its room and the job's workers get events, and no attempt is used up."""
    job = await timed.register(max_attempts=1)
    first, second = await timed.submit(job), await timed.submit(job)
    running = await timed.start(job.worker_id)
    timed.events.clear()
    released = await timed.act(
        rules_task_actions.release, running.id, by=OWNER, attempt=1, worker_id=job.worker_id
    )
    assert (released.id, released.status, released.queue_position) == (first.id, TaskStatus.PENDING, 1)
    assert (released.error, released.error_code, released.worker_id) == (None, "released", None)
    assert events(timed) == [
        ("TaskStatusEvent pending", room_of("lab")),
        ("TaskAvailable", workers_of(job.full_name)),
    ]
    status, available = [event for event, _ in timed.events]
    assert isinstance(status, TaskStatusEvent)
    assert isinstance(available, TaskAvailable)
    assert (status.queue_position, available.task_id) == (1, first.id)
    assert (await timed.get(second.id)).queue_position == 2
    again = await timed.start(job.worker_id)
    assert (again.id, again.attempt) == (first.id, 2)
    assert (await timed.report(again.id, TaskStatus.FAILED, error="oh")).status is TaskStatus.FAILED


@pytest.mark.parametrize("most", [1, 2])
async def test_a_claim_that_is_released_before_its_start_is_no_attempt(timed: Replica, most: int) -> None:
    """Every response counts attempts without it; the fencing token grows; no limit counts it."""
    job = await timed.register(max_attempts=most, retry_on=["error"], backoff={"base_seconds": 0})
    task = await timed.submit(job)
    for number in range(1, 4):
        claimed = await timed.claim_task(job.worker_id)
        released = await timed.act(rules_task_actions.release, task.id)
        assert (claimed.attempt, released.attempt) == (number, number)
        assert (claimed.attempts, released.attempts) == (1, 0)
    for number in range(1, most + 1):
        started = await timed.start(job.worker_id)
        ended = await timed.report(task.id, TaskStatus.FAILED, error="oh")
        assert ended.status is (TaskStatus.FAILED if number == most else TaskStatus.PENDING)
        for response in (started, ended, await timed.get(task.id)):
            assert (response.attempt, response.attempts) == (3 + number, number)
    await timed.act(rules_task_actions.retry, task.id)
    await timed.claim_task(job.worker_id)
    failed = await timed.act(rules_task_actions.fail, task.id)
    assert (failed.status, failed.attempts) == (TaskStatus.FAILED, most)
    past = await timed.runtime.database.read(rules_history.history, task_id=task.id)
    assert max(one.attempt_number or 0 for one in past.transitions) == most


async def test_the_reason_of_a_release_is_kept(replica: Replica) -> None:
    """The task keeps the reason until its next attempt has ended."""
    running = await replica.running(await replica.register())
    released = await replica.act(rules_task_actions.release, running.id, error="the disk is full")
    assert (released.error, released.error_code) == ("the disk is full", "released")


async def test_the_former_holder_is_fenced_out(replica: Replica, subtests: pytest.Subtests) -> None:
    """Its reports are refused with a reason; its heartbeat gets the verdict `lost`."""
    for what in (rules_task_actions.release, rules_task_actions.fail):
        with subtests.test(what=what):
            job = await replica.register(what.__name__)
            running = await replica.running(job)
            assert await replica.verdicts(job.worker_id, (running.id, 1)) == [(running.id, Verdict.CONTINUE)]
            after = await replica.act(what, running.id)
            for status in (TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.RUNNING):
                with pytest.raises(InvalidTaskTransition) as refused:
                    await replica.report(running.id, status, attempt=1, worker_id=job.worker_id, error="late")
                body = refused.value.problem.model_dump()
                assert body["reason"] == ("released" if what is rules_task_actions.release else "finished")
                assert body["error_code"] == after.error_code
            assert await replica.verdicts(job.worker_id, (running.id, 1)) == [(running.id, Verdict.LOST)]
            assert await replica.get(running.id) == after


async def test_an_action_may_name_the_claim(replica: Replica, subtests: pytest.Subtests) -> None:
    """An action on an older attempt, or on another worker's, is refused."""
    for what in list(FROM):
        for fence in ("attempt", "worker"):
            with subtests.test(what=what, fence=fence):
                job = await replica.register(f"{what.__name__}-{fence}")
                running = await replica.running(job)
                await replica.act(rules_task_actions.release, running.id)
                again = await replica.start(job.worker_id)
                if what is rules_task_actions.retry:
                    again = await replica.report(again.id, TaskStatus.FAILED)
                wrong = {"attempt": 1} if fence == "attempt" else {"worker_id": uuid4()}
                right = {"attempt": 2} if fence == "attempt" else {"worker_id": job.worker_id}
                replica.events.clear()
                with pytest.raises(StaleReport):
                    await replica.act(what, again.id, **wrong)
                assert replica.events == []
                assert await replica.get(again.id) == again
                assert (await replica.act(what, again.id, **right)).status is TO[what]


async def test_a_worker_releases_its_own_tasks_only(replica: Replica) -> None:
    """It cannot release a task of another owner's worker."""
    job = await replica.register()
    await replica.register(by=STRANGER)
    running = await replica.running(job)
    with pytest.raises(Forbidden):
        await replica.act(rules_task_actions.release, running.id, by=STRANGER)
    assert (await replica.get(running.id)).status is TaskStatus.RUNNING


async def test_a_retried_task_gets_all_its_attempts(
    timed: Replica, clock: ManualClock, subtests: pytest.Subtests
) -> None:
    """Its counters restart, its attempt number continues, its former end is cleared; then it is claimed."""
    backoff, retry_on = {"base_seconds": 0}, ["error", "worker_lost"]
    for how in ("failed", "lost", "cancelled", "cancelled while pending"):
        with subtests.test(how=how):
            job = await timed.register(max_attempts=2, max_crashes=2, retry_on=retry_on, backoff=backoff)
            ended = await end(timed, await timed.submit(job, expires_in_seconds=100), job.worker_id, how)
            claims = ended.attempt
            clock.advance(1000)
            timed.events.clear()
            retried = await timed.act(rules_task_actions.retry, ended.id, by=SUBMITTER)
            assert (retried.status, retried.queue_position, retried.attempt) == (
                TaskStatus.PENDING,
                1,
                claims,
            )
            assert (retried.completed_at, retried.error, retried.error_code, retried.worker_id) == (None,) * 4
            assert (await timed.history(ended.id))[-1] == ("pending", claims, "retried")
            assert events(timed) == [
                ("TaskStatusEvent pending", room_of("lab")),
                ("TaskAvailable", workers_of(job.full_name)),
            ]
            assert await timed.fail_expired() == 0
            for attempt in (claims + 1, claims + 2):
                failed = await fail(timed, how)
                assert (failed.id, failed.attempt) == (ended.id, attempt)
            assert failed.status is TaskStatus.FAILED


async def fail(timed: Replica, how: str) -> TaskResponse:
    """Start the next task on a new worker, which then reports a failure or is lost."""
    worker = (await timed.register()).worker_id
    running = await timed.start(worker)
    if how != "lost":
        await timed.report(running.id, TaskStatus.FAILED, error="oh")
    await timed.leave(worker)
    return await timed.get(running.id)


async def end(timed: Replica, submitted: TaskResponse, worker: UUID | None, how: str) -> TaskResponse:
    """End a task without success: after two attempts, during one, or before the first."""
    if how in {"failed", "lost"}:
        for _ in range(2):
            await fail(timed, how)
    elif how == "cancelled":
        await timed.start(worker)
    if how.startswith("cancelled"):
        await timed.report(submitted.id, TaskStatus.CANCELLED, by=SUBMITTER)
    return await timed.get(submitted.id)


async def test_a_retry_restores_a_soft_deleted_job(replica: Replica) -> None:
    """The job's room gets an event; the next worker gets the task; then the job may be deleted again."""
    job = await replica.register()
    running = await replica.running(job)
    await replica.leave(job.worker_id)
    replica.events.clear()
    await replica.act(rules_task_actions.retry, running.id, by=SUBMITTER)
    assert (JobsInvalidate.__name__, room_of("@global")) in events(replica)
    back, is_new = await replica.register_job()
    assert not is_new
    assert (await replica.claim_task(back.worker_id)).attempt == 2
    await replica.leave(back.worker_id)
    _, is_new = await replica.register_job()
    assert is_new


async def test_cancelling_a_retried_task_deletes_its_job_again(replica: Replica) -> None:
    """The job then has no worker and no pending task."""
    job = await replica.register()
    running = await replica.running(job)
    await replica.leave(job.worker_id)
    for what in (SUBMITTER, ADMIN):
        await replica.act(rules_task_actions.retry, running.id, by=SUBMITTER)
        replica.events.clear()
        if what is ADMIN:
            await replica.act(rules_task_actions.fail, running.id)
        else:
            await replica.report(running.id, TaskStatus.CANCELLED, by=what)
        assert (JobsInvalidate.__name__, room_of("@global")) in events(replica)


async def test_an_operator_fails_any_task_that_has_not_ended(
    timed: Replica, clock: ManualClock, subtests: pytest.Subtests
) -> None:
    """With or without a reason; waiters are woken, and the retry policy does not apply."""
    for how in ("pending", "scheduled", "claimed", "running"):
        with subtests.test(how=how):
            job = await timed.register(max_attempts=9, retry_on=["error", "timeout", "worker_lost"])
            submitted = await timed.submit(job, delay_seconds=100 if how == "scheduled" else None)
            if how in {"claimed", "running"}:
                await timed.claim_task(job.worker_id)
            if how == "running":
                await timed.report(submitted.id, TaskStatus.RUNNING)
            waiter = asyncio.create_task(timed.get(submitted.id, wait=LONG))
            await wait_until_waiting(timed, 1)
            error = "it is stuck" if how == "running" else None
            failed = await timed.act(rules_task_actions.fail, submitted.id, error=error)
            assert (failed.status, failed.error_code) == (TaskStatus.FAILED, "failed-by-operator")
            assert failed.error == (error or "An operator ended the task")
            async with asyncio.timeout(SOON):
                assert await waiter == failed
            clock.advance(1000)
            assert await timed.enqueue_due() == await timed.recover_overdue() == 0
            assert await timed.claim(job.worker_id) is None


async def test_only_a_superuser_acts_on_a_claimed_internal_task(replica: Replica) -> None:
    """Its submitter may not act on it; a superuser may fail it."""
    await replica.register("Render", INTERNAL, by=ADMIN)
    replica.registry = InternalRegistry({str(internal()): InternalExecutor()})
    submitted = await replica.submit(str(internal()))
    for what in FROM:
        with pytest.raises(Forbidden):
            await replica.act(what, submitted.id, by=SUBMITTER)
    assert (await replica.act(rules_task_actions.fail, submitted.id)).status is TaskStatus.FAILED


@pytest.mark.parametrize(
    "what", [rules_task_actions.release, rules_task_actions.retry], ids=lambda what: what.__name__
)
async def test_a_released_internal_task_is_dispatched_again(replica: Replica, what: Any) -> None:
    """No remote worker is woken; the broker gets it as another attempt."""
    await replica.register("Render", INTERNAL, by=ADMIN)
    executor = InternalExecutor()
    replica.registry = InternalRegistry({str(internal()): executor})
    submitted = await replica.submit(str(internal()), {"x": 1})
    if what is rules_task_actions.retry:
        await replica.act(rules_task_actions.fail, submitted.id)
    replica.events.clear()
    back = await replica.act(what, submitted.id)
    assert (back.status, back.attempt, back.queue_position) == (TaskStatus.PENDING, 1, 1)
    assert not [event for event, _ in replica.events if isinstance(event, TaskAvailable)]
    assert await replica.dispatcher.dispatch()
    again = await replica.get(submitted.id)
    assert (again.status, again.attempt, again.worker_id) == (TaskStatus.CLAIMED, 2, None)
    assert executor.calls == [{"task_id": str(back.id), "room_id": "lab", "payload": {"x": 1}}] * 2
    await replica.dispatcher.dispatch()
    assert len(executor.calls) == 2


async def test_an_internal_task_follows_its_retry_policy(replica: Replica) -> None:
    """It waits for its backoff first."""
    await replica.register("Render", INTERNAL, by=ADMIN, max_attempts=2, retry_on=["error"], backoff=NO_PAUSE)
    executor = InternalExecutor()
    replica.registry = InternalRegistry({str(internal()): executor})
    later = await replica.submit(str(internal()), delay_seconds=100)
    assert (later.status, later.run_at is not None, executor.calls) == (TaskStatus.PENDING, True, [])
    submitted = await replica.submit(str(internal()))
    for status in (TaskStatus.PENDING, TaskStatus.FAILED):
        await replica.report(submitted.id, TaskStatus.RUNNING, by=ADMIN)
        failed = await replica.report(submitted.id, TaskStatus.FAILED, by=ADMIN, error="oh")
        assert (failed.status, failed.error) == (status, "oh")
        await replica.dispatcher.dispatch()
    assert [call["task_id"] for call in executor.calls] == [str(submitted.id)] * 2


async def test_a_release_and_a_report_exclude_each_other(pair: list[Replica]) -> None:
    """Either the task has ended and is not released, or it is released and the report is refused."""
    job = await pair[0].register()
    for _ in range(6):
        running = await pair[0].running(job)
        answers = await asyncio.gather(
            pair[0].act(rules_task_actions.release, running.id, by=OWNER, attempt=1),
            pair[1].report(running.id, TaskStatus.COMPLETED, attempt=1, worker_id=job.worker_id),
            return_exceptions=True,
        )
        [won] = [answer for answer in answers if isinstance(answer, TaskResponse)]
        assert sum(isinstance(answer, InvalidTaskTransition) for answer in answers) == 1
        assert (await pair[0].get(running.id)).status is won.status
        if won.status is TaskStatus.PENDING:
            await pair[0].report(running.id, TaskStatus.CANCELLED, by=SUBMITTER)
