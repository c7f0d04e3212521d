"""The retry policy of a job decides what happens after a failed attempt: counts and pauses."""

import asyncio
import json
from datetime import timedelta
from math import exp
from typing import Any
from uuid import UUID

import pytest
from pydantic import ValidationError
from replica import STRANGER, SUBMITTER, ManualClock, Replica
from waiting import until

from zndraw_joblib.server.db.tables import AuditRecord
from zndraw_joblib.wire.messages import JobResponse, TaskResponse
from zndraw_joblib.wire.policy import Backoff, JobPolicy
from zndraw_joblib.wire.problems import InvalidTaskTransition, SchemaConflict, StaleReport
from zndraw_joblib.wire.progress import Failure
from zndraw_joblib.wire.statuses import TaskStatus

TIMEOUT = 60.0
AT_ONCE = {"base_seconds": 0}
CAUSES = ["worker_lost", "error", "timeout"]


async def fail_attempt(timed: Replica, clock: ManualClock, job: JobResponse, how: str) -> TaskResponse:
    """Start the next task of a job on a new worker, and end the attempt in one of three ways."""
    worker = (await timed.register(job.name)).worker_id
    running = await timed.start(worker)
    if how == "error":
        return await timed.report(running.id, TaskStatus.FAILED, error="oh", attempt=running.attempt)
    if how == "worker_lost":
        await timed.leave(worker)
    else:
        clock.advance(100)
        assert await timed.recover_overdue() == 1
    return await timed.get(running.id)


async def back_in_queue(timed: Replica, clock: ManualClock, task: TaskResponse) -> None:
    """Advance the time until the task is due."""
    if task.run_at is not None:
        clock.now = task.run_at
        assert await timed.enqueue_due() == 1


async def attempts_until_the_end(timed: Replica, clock: ManualClock, job: JobResponse, how: list[str]) -> int:
    """Fail attempts in these ways, in turn, until the task fails; return the number of attempts."""
    for count, cause in enumerate(how, 1):
        task = await fail_attempt(timed, clock, job, cause)
        if task.status is TaskStatus.FAILED:
            return count
        await back_in_queue(timed, clock, task)
    raise AssertionError("it goes on and on")


@pytest.mark.parametrize(
    ("how", "error", "code"),
    [("worker_lost", "Worker disconnected", "worker-lost"), ("error", "oh", "error")],
)
async def test_there_is_no_retry_by_default(
    timed: Replica, clock: ManualClock, how: str, error: str, code: str
) -> None:
    """A lost worker and a failure fail the task, each with its own code."""
    job = await timed.register()
    submitted = await timed.submit(job)
    ended = await fail_attempt(timed, clock, job, how)
    assert (ended.id, ended.status, ended.attempt) == (submitted.id, TaskStatus.FAILED, 1)
    assert (ended.error, ended.error_code, ended.run_at) == (error, code, None)
    assert await timed.claim(job.worker_id) is None


async def test_retry_on_selects_the_retried_failures(
    timed: Replica, clock: ManualClock, subtests: pytest.Subtests
) -> None:
    """A task is retried after each of the three failures that its job names, and after no other."""
    for retried in CAUSES:
        for how in CAUSES:
            with subtests.test(retried=retried, how=how):
                job = await timed.register(
                    f"{retried}-{how}", max_attempts=2, retry_on=[retried], timeout_seconds=100
                )
                await timed.submit(job)
                returned = await fail_attempt(timed, clock, job, how)
                assert returned.status is (TaskStatus.PENDING if how == retried else TaskStatus.FAILED)
                assert (returned.run_at is not None, returned.queue_position) == (how == retried, None)
                code = {"worker_lost": "worker-lost", "error": "error", "timeout": "run-timeout"}[how]
                assert returned.error_code == code
                if how == retried:
                    assert await timed.claim(job.worker_id) is None
                    await back_in_queue(timed, clock, returned)
                    again = await timed.start(job.worker_id)
                    assert (again.id, again.attempt) == (returned.id, 2)
                    done = await timed.report(again.id, TaskStatus.COMPLETED)
                    assert (done.error, done.error_code) == (None, None)


async def test_the_state_of_a_retried_task(timed: Replica, clock: ManualClock) -> None:
    """No worker holds it, its room gets an event, it is scheduled, and claimable when it is due."""
    job = await timed.register(max_attempts=2, retry_on=["error"])
    submitted = await timed.submit(job)
    timed.events.clear()
    returned = await fail_attempt(timed, clock, job, "error")
    assert timed.statuses(submitted.id) == [TaskStatus.CLAIMED, TaskStatus.RUNNING, TaskStatus.PENDING]
    assert (returned.worker_id, returned.started_at, returned.completed_at) == (None, None, None)
    assert await timed.enqueue_due() == 0
    assert [type(event).__name__ for event, _ in timed.events].count("TaskAvailable") == 0
    timed.events.clear()
    await back_in_queue(timed, clock, returned)
    assert [type(event).__name__ for event, _ in timed.events] == ["TaskAvailable"]
    assert (await timed.get(returned.id)).queue_position == 1


async def test_max_attempts_limits_failures_and_timeouts(
    timed: Replica, clock: ManualClock, subtests: pytest.Subtests
) -> None:
    """The limit of the job or of the submit counts failures and timeouts."""
    for of_job, of_task, attempts in [(3, None, 3), (3, 2, 2), (3, 1, 1), (1, 3, 3), (2, 5, 5)]:
        with subtests.test(of_job=of_job, of_task=of_task, attempts=attempts):
            job = await timed.register(
                f"{of_job}-{of_task}", max_attempts=of_job, retry_on=CAUSES, timeout_seconds=100
            )
            await timed.submit(job, max_attempts=of_task)
            how = ["error", "timeout"] * 5
            assert await attempts_until_the_end(timed, clock, job, how) == attempts


async def test_lost_workers_are_counted_apart(
    timed: Replica, clock: ManualClock, subtests: pytest.Subtests
) -> None:
    """Failures and crashes do not use up each other's attempts; the third of either kind ends the task."""
    for how, attempts in [
        (["worker_lost"] * 9, 3),
        (["error", "worker_lost", "worker_lost", "error", "error"], 5),
        (["worker_lost", "worker_lost", "error", "error", "worker_lost"], 5),
        (["error", "error", "worker_lost", "worker_lost", "error"], 5),
    ]:
        with subtests.test(how=how, attempts=attempts):
            job = await timed.register("-".join(how), max_attempts=3, retry_on=CAUSES)
            await timed.submit(job)
            assert await attempts_until_the_end(timed, clock, job, how) == attempts


async def test_with_max_crashes_of_one_a_lost_worker_is_final(timed: Replica, clock: ManualClock) -> None:
    """With `max_crashes` 1 a lost worker ends the task, however often a failure is retried."""
    job = await timed.register(max_attempts=9, max_crashes=1, retry_on=CAUSES)
    await timed.submit(job)
    assert await attempts_until_the_end(timed, clock, job, ["error", "error", "worker_lost"]) == 3


async def test_the_default_backoff(timed: Replica, clock: ManualClock) -> None:
    """2.7 s, 7.4 s, 20 s, … and after the tenth attempt never more than six hours."""
    job = await timed.register(max_attempts=14, retry_on=["error"])
    await timed.submit(job)
    for count in range(1, 14):
        returned = await fail_attempt(timed, clock, job, "error")
        assert returned.run_at is not None
        assert (returned.run_at - clock.now).total_seconds() == pytest.approx(exp(min(10, count)), abs=1e-5)
        await back_in_queue(timed, clock, returned)
    assert (await fail_attempt(timed, clock, job, "error")).status is TaskStatus.FAILED


async def test_a_jobs_own_backoff(timed: Replica, clock: ManualClock, subtests: pytest.Subtests) -> None:
    """Base, factor and cap, counting crashes and failures together."""
    for backoff, pauses in [
        ({"base_seconds": 1, "factor": 1}, [1, 1, 1]),
        ({"base_seconds": 0.5, "factor": 2}, [1, 2, 4]),
        ({"base_seconds": 10, "factor": 3, "cap_seconds": 100}, [30, 90, 100]),
        ({"base_seconds": 5, "factor": 1000, "cap_seconds": 0.25}, [0.25, 0.25, 0.25]),
    ]:
        with subtests.test(backoff=backoff, pauses=pauses):
            job = await timed.register(
                f"after-{len(backoff)}-{pauses[-1]}", max_attempts=9, retry_on=CAUSES, backoff=backoff
            )
            await timed.submit(job)
            for pause, how in zip(pauses, ["error", "worker_lost", "error"], strict=True):
                returned = await fail_attempt(timed, clock, job, how)
                assert returned.run_at is not None
                assert (returned.run_at - clock.now).total_seconds() == pytest.approx(pause, abs=1e-5)
                await back_in_queue(timed, clock, returned)


def test_jitter_shortens_the_pause() -> None:
    """By at most its share, and not at all with chance 0; too large numbers end at the cap."""
    backoff = Backoff(base_seconds=8, factor=2, jitter=0.5)
    assert [backoff.pause(1, chance) for chance in (0, 0.5, 1)] == [16, 12, 8]
    assert Backoff(jitter=1).pause(3, 1) == 0
    assert Backoff(factor=1000, cap_seconds=60).pause(10_000, 0) == 60


async def test_a_pause_with_jitter_is_within_its_bounds(timed: Replica, clock: ManualClock) -> None:
    """The pauses of many tasks differ, between half and all of the pause."""
    backoff = {"base_seconds": 100, "factor": 1, "jitter": 0.5}
    job = await timed.register(max_attempts=2, retry_on=["error"], backoff=backoff)
    pauses = []
    for _ in range(20):
        await timed.submit(job)
        returned = await fail_attempt(timed, clock, job, "error")
        assert returned.run_at is not None
        pauses.append((returned.run_at - clock.now).total_seconds())
    assert len(set(pauses)) > 15
    assert all(50 <= pause <= 100 for pause in pauses)


async def test_without_a_pause_a_task_is_in_its_queue_at_once(timed: Replica, clock: ManualClock) -> None:
    """With a base of 0 the task is claimable right after the report."""
    job = await timed.register(max_attempts=2, retry_on=["error"], backoff=AT_ONCE)
    submitted = await timed.submit(job)
    returned = await fail_attempt(timed, clock, job, "error")
    assert (returned.run_at, returned.queue_position) == (None, 1)
    again = await timed.claim_task(job.worker_id)
    assert (again.id, again.attempt) == (submitted.id, 2)


async def test_a_failure_may_be_final(timed: Replica) -> None:
    """A report with `retry` false ends the task, whatever the policy is."""
    job = await timed.register(max_attempts=5, retry_on=CAUSES)
    running = await timed.running(job)
    ended = await timed.report(running.id, TaskStatus.FAILED, error="bad input", retry=False)
    assert (ended.status, ended.error, ended.error_code) == (TaskStatus.FAILED, "bad input", "error")


async def test_a_failure_may_set_the_pause_of_its_retry(timed: Replica, clock: ManualClock) -> None:
    """The pause replaces the policy's, and the reason need not be in `retry_on`; the attempts are counted."""
    job = await timed.register(max_attempts=3, retry_on=["worker_lost"])
    await timed.submit(job)
    for pause in (90, 0):
        running = await timed.start(job.worker_id)
        report = {"error": "busy", "attempt": running.attempt, "retry_after_seconds": pause}
        returned = await timed.report(running.id, TaskStatus.FAILED, **report)
        assert returned.run_at == (clock.now + timedelta(seconds=pause) if pause else None)
        assert (returned.status, returned.error) == (TaskStatus.PENDING, "busy")
        assert await timed.report(running.id, TaskStatus.FAILED, **report) == returned
        await back_in_queue(timed, clock, returned)
    running = await timed.start(job.worker_id)
    ended = await timed.report(running.id, TaskStatus.FAILED, error="still busy", retry_after_seconds=90)
    assert (ended.status, ended.error, ended.error_code) == (TaskStatus.FAILED, "still busy", "error")
    once = await timed.register("Once")
    running = await timed.running(once)
    ended = await timed.report(running.id, TaskStatus.FAILED, error="busy", retry_after_seconds=1)
    assert (ended.status, ended.error) == (TaskStatus.FAILED, "busy")


async def test_a_policy_names_exceptions_that_are_final(timed: Replica, subtests: pytest.Subtests) -> None:
    """By the plain or the qualified name of the class or of a base class, over the pause of a report."""
    names = ["app.errors.Full", "LookupError", "Busy"]
    job = await timed.register(max_attempts=9, retry_on=["error"], backoff=AT_ONCE, non_retryable=names)
    for report, is_final in (
        ({"error_types": ["app.errors.Full", "Exception"]}, True),
        ({"error_types": ["other.Full", "Exception"]}, False),
        ({"error_types": ["KeyError", "LookupError", "Exception"]}, True),
        ({"error_types": ["Exception"], "failure": Failure(type="LookupError")}, False),
        ({"failure": Failure(type="app.LookupError")}, True),
        ({"error_types": ["app.errors.Busy"], "retry_after_seconds": 5}, True),
        ({}, False),
    ):
        with subtests.test(report=report):
            running = await timed.running(job)
            after = await timed.report(running.id, TaskStatus.FAILED, error="oh", **report)
            assert after.status is (TaskStatus.FAILED if is_final else TaskStatus.PENDING)
            if not is_final:
                await timed.report(running.id, TaskStatus.CANCELLED, by=SUBMITTER)


def test_the_names_of_exceptions_in_a_policy() -> None:
    """Classes have their qualified names, built-in ones and those of the main program their plain names."""
    of_program = type("Full", (Exception,), {"__module__": "__main__"})
    names: Any = (ValueError, json.JSONDecodeError, of_program, "builtins.KeyError", "app.Busy")
    policy = JobPolicy(non_retryable=names)
    assert policy.non_retryable == (
        "Full",
        "KeyError",
        "ValueError",
        "app.Busy",
        "json.decoder.JSONDecodeError",
    )
    for name in ("app Busy", "app\nBusy", int, 5):
        with pytest.raises(ValidationError, match=r"printable characters without spaces|valid string"):
            JobPolicy(non_retryable=(name,))  # type: ignore[arg-type]


async def test_a_repeated_failure_changes_nothing(timed: Replica, clock: ManualClock) -> None:
    """A report that is repeated with its token gets the same answer, and no second event is published."""
    job = await timed.register(max_attempts=3, retry_on=["error"])
    running = await timed.running(job)
    first = await timed.report(running.id, TaskStatus.FAILED, error="oh", attempt=1, worker_id=job.worker_id)
    assert first.status is TaskStatus.PENDING
    timed.events.clear()
    clock.advance(1)
    for _ in range(2):
        again = await timed.report(
            running.id, TaskStatus.FAILED, error="oh", attempt=1, worker_id=job.worker_id
        )
        assert again == first
    assert timed.events == []
    await back_in_queue(timed, clock, first)
    queued = await timed.report(running.id, TaskStatus.FAILED, error="oh", attempt=1)
    assert queued == await timed.get(running.id)
    taken = await timed.claim_task(job.worker_id)
    with pytest.raises(StaleReport) as refused:
        await timed.report(running.id, TaskStatus.FAILED, error="oh", attempt=1)
    assert reason(refused.value) == "taken over"
    assert await timed.get(taken.id) == taken
    assert len(await timed.history(running.id)) == 5


async def test_another_failure_of_the_same_attempt_is_no_repeat(timed: Replica) -> None:
    """If the task returned to its queue for another reason, a report of a failure is refused."""
    job = await timed.register(max_attempts=3, retry_on=["error"])
    running = await timed.running(job)
    await timed.report(running.id, TaskStatus.FAILED, error="oh", attempt=1)
    with pytest.raises(InvalidTaskTransition) as refused:
        await timed.report(running.id, TaskStatus.FAILED, error="another", attempt=1)
    assert reason(refused.value) == "released"


def reason(problem: InvalidTaskTransition) -> Any:
    """Return the reason why a report was refused."""
    return problem.problem.model_dump()["reason"]


async def stale(timed: Replica, task_id: UUID, worker: UUID | None) -> list[str]:
    """Send each report of a lost attempt; return the reasons."""
    reasons = []
    for status in (TaskStatus.RUNNING, TaskStatus.COMPLETED, TaskStatus.FAILED):
        with pytest.raises(StaleReport) as refused:
            await timed.report(task_id, status, attempt=1, worker_id=worker, error="late")
        reasons.append(reason(refused.value))
    return reasons


async def test_a_refused_report_has_the_tasks_state(timed: Replica, clock: ManualClock) -> None:
    """Released, taken over, finished by another worker, or cancelled before a new claim."""
    job = await timed.register(start_timeout_seconds=10)
    other = await timed.register()
    await timed.submit(job)
    lost = await timed.claim_task(job.worker_id)
    clock.advance(10)
    assert await timed.recover_overdue() == 1
    assert await stale(timed, lost.id, job.worker_id) == ["released"] * 3
    await timed.start(other.worker_id)
    assert await stale(timed, lost.id, job.worker_id) == ["taken over"] * 3
    await timed.report(lost.id, TaskStatus.COMPLETED, attempt=2, result=7)
    assert await stale(timed, lost.id, job.worker_id) == ["taken over"] * 3
    assert (await timed.get(lost.id)).result == 7
    await timed.submit(job)
    lost = await timed.claim_task(job.worker_id)
    clock.advance(10)
    assert await timed.recover_overdue() == 1
    cancelled = await timed.report(lost.id, TaskStatus.CANCELLED, by=SUBMITTER)
    assert await stale(timed, lost.id, job.worker_id) == ["cancelled"] * 3
    assert await timed.get(lost.id) == cancelled


async def test_a_failure_after_a_release_is_no_repeat(timed: Replica, clock: ManualClock) -> None:
    """Also if an earlier attempt failed with the same text."""
    job = await timed.register(start_timeout_seconds=10, max_attempts=3, retry_on=["error"], backoff=AT_ONCE)
    running = await timed.running(job)
    await timed.report(running.id, TaskStatus.FAILED, error="oh", attempt=1)
    await timed.claim_task(job.worker_id)
    clock.advance(10)
    await timed.recover_overdue()
    with pytest.raises(StaleReport) as refused:
        await timed.report(running.id, TaskStatus.FAILED, error="oh", attempt=2, worker_id=job.worker_id)
    assert reason(refused.value) == "released"


OPINIONS: dict[str, Any] = {
    "max_attempts": 4,
    "retry_on": ["error", "timeout"],
    "non_retryable": ["ValueError"],
    "backoff": {"base_seconds": 2},
    "max_crashes": 7,
    "timeout_seconds": 30,
    "start_timeout_seconds": 5,
    "max_in_flight": 3,
    "priority": 9,
    "without_workers": "queue",
}
OTHERS: dict[str, Any] = {
    "max_attempts": 5,
    "retry_on": ["error"],
    "non_retryable": [],
    "backoff": {"base_seconds": 3},
    "max_crashes": 8,
    "timeout_seconds": None,
    "start_timeout_seconds": 0,
    "max_in_flight": None,
    "priority": 0,
    "without_workers": "reject",
}


def policy_of(job: JobResponse) -> JobPolicy:
    """Return the policy in a response."""
    return JobPolicy(**{field: getattr(job, field) for field in JobPolicy.model_fields})


async def test_omitted_policy_fields_have_their_default(replica: Replica) -> None:
    """Every response shows the policy; a job registered without one has the defaults."""
    assert policy_of(await replica.register("Plain")) == JobPolicy()
    for field, value in OPINIONS.items():
        job = await replica.register(f"J-{field}", **{field: value})
        assert policy_of(job) == JobPolicy(**{field: value})


async def test_a_registration_without_a_policy_keeps_it(replica: Replica) -> None:
    """Another worker with no policy, or the same, serves the job unchanged."""
    await replica.register(**OPINIONS)
    for fields in ({}, {"priority": 9}, {"retry_on": ["timeout", "error", "error"]}, OPINIONS):
        assert policy_of(await replica.register(by=STRANGER, **fields)) == JobPolicy(**OPINIONS)


async def test_the_latest_registration_updates_the_policy(
    replica: Replica, subtests: pytest.Subtests
) -> None:
    """Only the fields that it names and that differ; each update is in the audit trail."""
    job = await replica.register(**OPINIONS)
    current = dict(OPINIONS)
    for field in sorted(OPINIONS):
        with subtests.test(field=field):
            current[field] = OTHERS[field]
            updated = await replica.register(by=STRANGER, **{field: OTHERS[field]})
            again = await replica.register(worker=job.worker_id)
            assert policy_of(updated) == policy_of(again) == JobPolicy(**current)
            [*_, entry] = await replica.rows(AuditRecord.__table__)
            assert (entry.action, entry.actor, entry.target) == ("job.policy", STRANGER.id, job.full_name)
            assert set(entry.detail) == {field}
    assert len(await replica.rows(AuditRecord.__table__)) == len(OPINIONS)


async def test_a_higher_concurrency_limit_wakes_waiting_claims(timed: Replica) -> None:
    """A claim that waits gets a task as soon as a registration has raised `max_in_flight`."""
    job = await timed.register(max_in_flight=1)
    for _ in range(2):
        await timed.submit(job)
    await timed.claim_task(job.worker_id)
    other = await timed.register()
    waiting = asyncio.create_task(timed.claim(other.worker_id, wait=30))
    await until(lambda: len(timed.runtime.waiters) == 1)
    await timed.register(max_in_flight=2)
    assert await waiting is not None


async def test_a_restored_job_has_a_new_policy(timed: Replica, clock: ManualClock) -> None:
    """Neither the former policy nor a pause is kept."""
    job = await timed.register(**OPINIONS | {"without_workers": "forget"})
    await timed.pause(job)
    await timed.leave(job.worker_id)
    back, is_new = await timed.register_job(max_attempts=2)
    assert is_new
    assert (policy_of(back), back.paused) == (JobPolicy(max_attempts=2), False)
    again = await timed.register(worker=back.worker_id)
    assert (policy_of(again), again.paused) == (JobPolicy(max_attempts=2), False)


async def test_pending_tasks_keep_a_job_and_its_policy(timed: Replica, clock: ManualClock) -> None:
    """A job without workers stays while a task waits for another attempt."""
    job = await timed.register(max_attempts=3)
    submitted = await timed.submit(job)
    await timed.start(job.worker_id)
    await timed.leave(job.worker_id)
    returned = await timed.get(submitted.id)
    assert returned.status is TaskStatus.PENDING
    with pytest.raises(SchemaConflict, match="another schema"):
        await timed.register(schema={"type": "object"})
    back, is_new = await timed.register_job()
    assert (is_new, back.max_attempts) == (False, 3)
    await back_in_queue(timed, clock, returned)
    assert (await timed.claim_task(back.worker_id)).id == submitted.id


@pytest.mark.parametrize("how", CAUSES)
async def test_a_returning_task_restores_its_job(timed: Replica, clock: ManualClock, how: str) -> None:
    """A worker that no longer serves the job still held a task of it."""
    job = await timed.register(max_attempts=2, retry_on=CAUSES, timeout_seconds=100)
    running = await timed.running(job)
    await timed.unlink_job(job.worker_id, job)
    timed.events.clear()
    if how == "error":
        await timed.report(running.id, TaskStatus.FAILED, error="oh")
    elif how == "worker_lost":
        await timed.leave(job.worker_id)
    else:
        clock.advance(100)
        assert await timed.recover_overdue() == 1
    returned = await timed.get(running.id)
    assert returned.status is TaskStatus.PENDING
    assert "JobsInvalidate" in [type(event).__name__ for event, _ in timed.events]
    back, is_new = await timed.register_job()
    assert not is_new
    await back_in_queue(timed, clock, returned)
    assert (await timed.claim_task(back.worker_id)).id == running.id


async def test_a_task_returns_while_its_job_is_deleted(pair: list[Replica]) -> None:
    """In either order the job is active while its task is pending, and the next worker gets it."""
    for _ in range(8):
        job = await pair[0].register(max_attempts=9, retry_on=CAUSES, backoff=AT_ONCE)
        running = await pair[0].running(job)
        await asyncio.gather(
            pair[0].unlink_job(job.worker_id, job),
            pair[1].report(running.id, TaskStatus.FAILED, error="oh", attempt=running.attempt),
        )
        back, is_new = await pair[0].register_job()
        assert not is_new
        again = await pair[1].start(back.worker_id)
        assert (again.id, again.attempt) == (running.id, 2)
        await asyncio.gather(
            pair[0].unlink_job(back.worker_id, back),
            pair[1].report(again.id, TaskStatus.COMPLETED, attempt=2),
        )
