"""What becomes of a task whose attempt went wrong is what its job's policy says, counted and paused right."""

import asyncio
from math import exp
from typing import Any
from uuid import UUID

import pytest
from databases import every_kind
from replica import STRANGER, SUBMITTER, HandClock, Replica

from zndraw_joblib.contract.messages import JobResponse, TaskResponse
from zndraw_joblib.contract.policy import Backoff, JobPolicy
from zndraw_joblib.contract.problems import InvalidTaskTransition, SchemaConflict, StaleReport
from zndraw_joblib.contract.status import TaskStatus

TIMEOUT = 60.0
AT_ONCE = {"base_seconds": 0}
CAUSES = ["worker_lost", "error", "timeout"]


async def go_wrong(timed: Replica, clock: HandClock, job: JobResponse, how: str) -> TaskResponse:
    """Let the next task of a job start, on a worker of its own, and go wrong in one of three ways."""
    worker = (await timed.register(job.name)).worker_id
    running = await timed.start(worker)
    if how == "error":
        return await timed.report(running.id, TaskStatus.FAILED, error="oh", attempt=running.attempt)
    if how == "worker_lost":
        await timed.leave(worker)
    else:
        clock.advance(100)
        assert await timed.settle_overdue() == 1
    return await timed.get(running.id)


async def back_in_queue(timed: Replica, clock: HandClock, task: TaskResponse) -> None:
    """Let the time of a task come."""
    if task.run_at is not None:
        clock.now = task.run_at
        assert await timed.queue_due() == 1


async def attempts_until_the_end(timed: Replica, clock: HandClock, job: JobResponse, how: list[str]) -> int:
    """Let a task go wrong, in these ways in turn, until it fails; return in how many attempts."""
    for count, cause in enumerate(how, 1):
        task = await go_wrong(timed, clock, job, cause)
        if task.status is TaskStatus.FAILED:
            return count
        await back_in_queue(timed, clock, task)
    raise AssertionError("it goes on and on")


@every_kind
@pytest.mark.parametrize(
    ("how", "error", "code"),
    [("worker_lost", "Worker disconnected", "worker-lost"), ("error", "oh", "error")],
)
async def test_by_default_nothing_is_tried_again(
    timed: Replica, clock: HandClock, how: str, error: str, code: str
) -> None:
    """As in seed 000: a lost worker fails what it held, and a failure is one; each has its code."""
    job = await timed.register()
    submitted = await timed.submit(job)
    ended = await go_wrong(timed, clock, job, how)
    assert (ended.id, ended.status, ended.attempt) == (submitted.id, TaskStatus.FAILED, 1)
    assert (ended.error, ended.error_code, ended.run_at) == (error, code, None)
    assert await timed.claim(job.worker_id) is None


@every_kind
@pytest.mark.parametrize("retried", CAUSES)
@pytest.mark.parametrize("how", CAUSES)
async def test_a_task_is_tried_again_after_what_its_job_says(
    timed: Replica, clock: HandClock, retried: str, how: str
) -> None:
    """After each of the three causes, and after no other."""
    job = await timed.register(max_attempts=2, retry_on=[retried], timeout_seconds=100)
    await timed.submit(job)
    told = await go_wrong(timed, clock, job, how)
    assert told.status is (TaskStatus.PENDING if how == retried else TaskStatus.FAILED)
    assert (told.run_at is not None, told.queue_position) == (how == retried, None)
    code = {"worker_lost": "worker-lost", "error": "error", "timeout": "run-timeout"}[how]
    assert told.error_code == code
    if how == retried:
        assert await timed.claim(job.worker_id) is None
        await back_in_queue(timed, clock, told)
        again = await timed.start(job.worker_id)
        assert (again.id, again.attempt) == (told.id, 2)
        done = await timed.report(again.id, TaskStatus.COMPLETED)
        assert (done.error, done.error_code) == (None, None)


async def test_a_task_goes_back_with_all_that_belongs_to_it(timed: Replica, clock: HandClock) -> None:
    """Nobody holds it, its room hears of it, it is scheduled, and claimable once its time has come."""
    job = await timed.register(max_attempts=2, retry_on=["error"])
    submitted = await timed.submit(job)
    timed.events.clear()
    told = await go_wrong(timed, clock, job, "error")
    assert timed.statuses(submitted.id) == [TaskStatus.CLAIMED, TaskStatus.RUNNING, TaskStatus.PENDING]
    assert (told.worker_id, told.started_at, told.completed_at) == (None, None, None)
    assert await timed.queue_due() == 0
    assert [type(event).__name__ for event, _ in timed.events].count("TaskAvailable") == 0
    timed.events.clear()
    await back_in_queue(timed, clock, told)
    assert [type(event).__name__ for event, _ in timed.events] == ["TaskAvailable"]
    assert (await timed.get(told.id)).queue_position == 1


@every_kind
@pytest.mark.parametrize(
    ("of_job", "of_task", "attempts"), [(3, None, 3), (3, 2, 2), (3, 1, 1), (1, 3, 3), (2, 5, 5)]
)
async def test_a_task_is_tried_so_often(
    timed: Replica, clock: HandClock, of_job: int, of_task: int | None, attempts: int
) -> None:
    """As often as the job says, or the submitter instead of it; counting failures and timeouts alike."""
    job = await timed.register(max_attempts=of_job, retry_on=CAUSES, timeout_seconds=100)
    await timed.submit(job, max_attempts=of_task)
    how = ["error", "timeout"] * 5
    assert await attempts_until_the_end(timed, clock, job, how) == attempts


@pytest.mark.parametrize(
    ("how", "attempts"),
    [
        (["worker_lost"] * 9, 3),
        (["error", "worker_lost", "worker_lost", "error", "error"], 5),
        (["worker_lost", "worker_lost", "error", "error", "worker_lost"], 5),
        (["error", "error", "worker_lost", "worker_lost", "error"], 5),
    ],
)
async def test_lost_workers_are_counted_apart(
    timed: Replica, clock: HandClock, how: list[str], attempts: int
) -> None:
    """Neither takes a failure a crash's attempt, nor the other way round; the third of either is the end."""
    job = await timed.register(max_attempts=3, retry_on=CAUSES)
    await timed.submit(job)
    assert await attempts_until_the_end(timed, clock, job, how) == attempts


async def test_one_crash_may_be_enough(timed: Replica, clock: HandClock) -> None:
    """With `max_crashes` 1 a lost worker is the end, however often a failure is tried again."""
    job = await timed.register(max_attempts=9, max_crashes=1, retry_on=CAUSES)
    await timed.submit(job)
    assert await attempts_until_the_end(timed, clock, job, ["error", "error", "worker_lost"]) == 3


async def test_the_pauses_grow_by_e(timed: Replica, clock: HandClock) -> None:
    """By default 2.7 s, 7.4 s, 20 s, … and after the tenth never more than six hours."""
    job = await timed.register(max_attempts=14, retry_on=["error"])
    await timed.submit(job)
    for count in range(1, 14):
        told = await go_wrong(timed, clock, job, "error")
        assert told.run_at is not None
        assert (told.run_at - clock.now).total_seconds() == pytest.approx(exp(min(10, count)), abs=1e-5)
        await back_in_queue(timed, clock, told)
    assert (await go_wrong(timed, clock, job, "error")).status is TaskStatus.FAILED


@pytest.mark.parametrize(
    ("backoff", "pauses"),
    [
        ({"base_seconds": 1, "factor": 1}, [1, 1, 1]),
        ({"base_seconds": 0.5, "factor": 2}, [1, 2, 4]),
        ({"base_seconds": 10, "factor": 3, "cap_seconds": 100}, [30, 90, 100]),
        ({"base_seconds": 5, "factor": 1000, "cap_seconds": 0.25}, [0.25, 0.25, 0.25]),
    ],
)
async def test_the_pauses_are_what_the_job_says(
    timed: Replica, clock: HandClock, backoff: dict[str, float], pauses: list[float]
) -> None:
    """Base, factor and cap, counting crashes and failures together."""
    job = await timed.register(max_attempts=9, retry_on=CAUSES, backoff=backoff)
    await timed.submit(job)
    for pause, how in zip(pauses, ["error", "worker_lost", "error"], strict=True):
        told = await go_wrong(timed, clock, job, how)
        assert told.run_at is not None
        assert (told.run_at - clock.now).total_seconds() == pytest.approx(pause, abs=1e-5)
        await back_in_queue(timed, clock, told)


def test_jitter_takes_a_share_of_the_pause_away() -> None:
    """Never more than its share, and nothing at no chance; numbers that are too large end at the cap."""
    backoff = Backoff(base_seconds=8, factor=2, jitter=0.5)
    assert [backoff.pause(1, chance) for chance in (0, 0.5, 1)] == [16, 12, 8]
    assert Backoff(jitter=1).pause(3, 1) == 0
    assert Backoff(factor=1000, cap_seconds=60).pause(10_000, 0) == 60


async def test_a_pause_with_jitter_is_within_its_bounds(timed: Replica, clock: HandClock) -> None:
    """The pauses of many tasks differ, and are between the half and the whole."""
    backoff = {"base_seconds": 100, "factor": 1, "jitter": 0.5}
    job = await timed.register(max_attempts=2, retry_on=["error"], backoff=backoff)
    pauses = []
    for _ in range(20):
        await timed.submit(job)
        told = await go_wrong(timed, clock, job, "error")
        assert told.run_at is not None
        pauses.append((told.run_at - clock.now).total_seconds())
    assert len(set(pauses)) > 15
    assert all(50 <= pause <= 100 for pause in pauses)


async def test_without_a_pause_a_task_is_in_its_queue_at_once(timed: Replica, clock: HandClock) -> None:
    """With a base of 0 the next attempt needs no clock: the task is claimable after the report."""
    job = await timed.register(max_attempts=2, retry_on=["error"], backoff=AT_ONCE)
    submitted = await timed.submit(job)
    told = await go_wrong(timed, clock, job, "error")
    assert (told.run_at, told.queue_position) == (None, 1)
    again = await timed.claim_task(job.worker_id)
    assert (again.id, again.attempt) == (submitted.id, 2)


async def test_a_failure_may_be_final(timed: Replica) -> None:
    """Whoever reports with `retry` false ends the task, whatever the policy says."""
    job = await timed.register(max_attempts=5, retry_on=CAUSES)
    running = await timed.running(job)
    ended = await timed.report(running.id, TaskStatus.FAILED, error="bad input", retry=False)
    assert (ended.status, ended.error, ended.error_code) == (TaskStatus.FAILED, "bad input", "error")


@every_kind
async def test_a_repeated_failure_changes_nothing(timed: Replica, clock: HandClock) -> None:
    """Whose answer was lost reports again, with its token: it hears the same, and nothing is told twice."""
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
    """The task is back in its queue for another reason: who reports a failure of its own learns of it."""
    job = await timed.register(max_attempts=3, retry_on=["error"])
    running = await timed.running(job)
    await timed.report(running.id, TaskStatus.FAILED, error="oh", attempt=1)
    with pytest.raises(InvalidTaskTransition) as refused:
        await timed.report(running.id, TaskStatus.FAILED, error="another", attempt=1)
    assert reason(refused.value) == "released"


def reason(problem: InvalidTaskTransition) -> Any:
    """Return why a report was refused."""
    return problem.problem.model_dump()["reason"]


async def stale(timed: Replica, task_id: UUID, worker: UUID | None) -> list[str]:
    """Report an attempt that was taken away, each step of it; return the reasons it hears."""
    reasons = []
    for status in (TaskStatus.RUNNING, TaskStatus.COMPLETED, TaskStatus.FAILED):
        with pytest.raises(StaleReport) as refused:
            await timed.report(task_id, status, attempt=1, worker_id=worker, error="late")
        reasons.append(reason(refused.value))
    return reasons


@every_kind
async def test_a_fenced_report_learns_what_became_of_its_task(timed: Replica, clock: HandClock) -> None:
    """It was released, taken over, and finished by another; or cancelled before anybody took it over."""
    job = await timed.register(start_timeout_seconds=10)
    other = await timed.register()
    await timed.submit(job)
    lost = await timed.claim_task(job.worker_id)
    clock.advance(10)
    assert await timed.settle_overdue() == 1
    assert await stale(timed, lost.id, job.worker_id) == ["released"] * 3
    await timed.start(other.worker_id)
    assert await stale(timed, lost.id, job.worker_id) == ["taken over"] * 3
    await timed.report(lost.id, TaskStatus.COMPLETED, attempt=2, result=7)
    assert await stale(timed, lost.id, job.worker_id) == ["taken over"] * 3
    assert (await timed.get(lost.id)).result == 7
    await timed.submit(job)
    lost = await timed.claim_task(job.worker_id)
    clock.advance(10)
    assert await timed.settle_overdue() == 1
    cancelled = await timed.report(lost.id, TaskStatus.CANCELLED, by=SUBMITTER)
    assert await stale(timed, lost.id, job.worker_id) == ["cancelled"] * 3
    assert await timed.get(lost.id) == cancelled


async def test_an_attempt_that_was_released_is_no_failure_to_repeat(timed: Replica, clock: HandClock) -> None:
    """Also where the attempt before it failed with the same words: nobody has heard of this one."""
    job = await timed.register(start_timeout_seconds=10, max_attempts=3, retry_on=["error"], backoff=AT_ONCE)
    running = await timed.running(job)
    await timed.report(running.id, TaskStatus.FAILED, error="oh", attempt=1)
    await timed.claim_task(job.worker_id)
    clock.advance(10)
    await timed.settle_overdue()
    with pytest.raises(StaleReport) as refused:
        await timed.report(running.id, TaskStatus.FAILED, error="oh", attempt=2, worker_id=job.worker_id)
    assert reason(refused.value) == "released"


OPINIONS: dict[str, Any] = {
    "max_attempts": 4,
    "retry_on": ["error", "timeout"],
    "backoff": {"base_seconds": 2},
    "max_crashes": 7,
    "timeout_seconds": 30,
    "start_timeout_seconds": 5,
    "max_in_flight": 3,
    "priority": 9,
}
OTHERS: dict[str, Any] = {
    "max_attempts": 5,
    "retry_on": ["error"],
    "backoff": {"base_seconds": 3},
    "max_crashes": 8,
    "timeout_seconds": None,
    "start_timeout_seconds": 0,
    "max_in_flight": None,
    "priority": 0,
}


def policy_of(job: JobResponse) -> JobPolicy:
    """Return the policy that an answer shows."""
    return JobPolicy(**{field: getattr(job, field) for field in JobPolicy.model_fields})


async def test_a_policy_is_what_was_said_and_the_rest_is_by_default(replica: Replica) -> None:
    """The answer shows it, whoever asks; a job that nobody has an opinion of is as by default."""
    assert policy_of(await replica.register("Plain")) == JobPolicy()
    for field, value in OPINIONS.items():
        job = await replica.register(f"J-{field}", **{field: value})
        assert policy_of(job) == JobPolicy(**{field: value})


async def test_who_has_no_opinion_leaves_the_policy_as_it_is(replica: Replica) -> None:
    """Another worker that says nothing, or the same, serves the job as it is."""
    await replica.register(**OPINIONS)
    for said in ({}, {"priority": 9}, {"retry_on": ["timeout", "error", "error"]}, OPINIONS):
        assert policy_of(await replica.register(by=STRANGER, **said)) == JobPolicy(**OPINIONS)


@pytest.mark.parametrize("field", sorted(OPINIONS))
async def test_another_opinion_of_an_active_job_is_a_conflict(replica: Replica, field: str) -> None:
    """It is refused, names the field, and leaves no worker behind."""
    job = await replica.register(**OPINIONS)
    with pytest.raises(SchemaConflict, match=f"^{field}:"):
        await replica.register(by=STRANGER, **{field: OTHERS[field]})
    again = await replica.register(worker=job.worker_id)
    assert (again.workers, policy_of(again)) == ([job.worker_id], JobPolicy(**OPINIONS))


async def test_a_job_that_is_shown_again_has_a_new_policy(timed: Replica, clock: HandClock) -> None:
    """Of what was said before nothing is left: neither the policy nor a pause."""
    job = await timed.register(**OPINIONS)
    await timed.pause(job)
    await timed.leave(job.worker_id)
    back, is_new = await timed.register_anew(max_attempts=2)
    assert is_new
    assert (policy_of(back), back.paused) == (JobPolicy(max_attempts=2), False)
    again = await timed.register(worker=back.worker_id)
    assert (policy_of(again), again.paused) == (JobPolicy(max_attempts=2), False)


async def test_tasks_that_wait_keep_a_job_and_its_policy(timed: Replica, clock: HandClock) -> None:
    """A job whose last worker is gone stays as it is while a task waits for another attempt of it."""
    job = await timed.register(max_attempts=3)
    submitted = await timed.submit(job)
    await timed.start(job.worker_id)
    await timed.leave(job.worker_id)
    told = await timed.get(submitted.id)
    assert told.status is TaskStatus.PENDING
    with pytest.raises(SchemaConflict, match="max_attempts"):
        await timed.register(max_attempts=2)
    back, is_new = await timed.register_anew()
    assert (is_new, back.max_attempts) == (False, 3)
    await back_in_queue(timed, clock, told)
    assert (await timed.claim_task(back.worker_id)).id == submitted.id


@pytest.mark.parametrize("how", CAUSES)
async def test_a_task_may_come_back_to_a_job_that_was_hidden(
    timed: Replica, clock: HandClock, how: str
) -> None:
    """Its worker serves the job no more, and still held a task of it: for that the job is shown again."""
    job = await timed.register(max_attempts=2, retry_on=CAUSES, timeout_seconds=100)
    running = await timed.running(job)
    await timed.leave_job(job.worker_id, job)
    timed.events.clear()
    if how == "error":
        await timed.report(running.id, TaskStatus.FAILED, error="oh")
    elif how == "worker_lost":
        await timed.leave(job.worker_id)
    else:
        clock.advance(100)
        assert await timed.settle_overdue() == 1
    told = await timed.get(running.id)
    assert told.status is TaskStatus.PENDING
    assert "JobsInvalidate" in [type(event).__name__ for event, _ in timed.events]
    back, is_new = await timed.register_anew()
    assert not is_new
    await back_in_queue(timed, clock, told)
    assert (await timed.claim_task(back.worker_id)).id == running.id


async def test_a_task_comes_back_while_its_job_is_let_go(pair: list[Replica]) -> None:
    """Whatever is first: the job is shown as long as its task waits, and the next worker gets it."""
    for _ in range(8):
        job = await pair[0].register(max_attempts=9, retry_on=CAUSES, backoff=AT_ONCE)
        running = await pair[0].running(job)
        await asyncio.gather(
            pair[0].leave_job(job.worker_id, job),
            pair[1].report(running.id, TaskStatus.FAILED, error="oh", attempt=running.attempt),
        )
        back, is_new = await pair[0].register_anew()
        assert not is_new
        again = await pair[1].start(back.worker_id)
        assert (again.id, again.attempt) == (running.id, 2)
        await asyncio.gather(
            pair[0].leave_job(back.worker_id, back),
            pair[1].report(again.id, TaskStatus.COMPLETED, attempt=2),
        )
