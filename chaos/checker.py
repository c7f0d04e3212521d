"""Check the record of a run against the documented guarantees."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from chaos.graph_rules import GRAPH_RULES
from chaos.group_rules import GROUP_RULES, Findings
from chaos.records import ExecutionEvent, LostAttempt, RunRecord, WorkerRequest
from zndraw_joblib.wire.history import TaskHistory
from zndraw_joblib.wire.messages import TaskResponse
from zndraw_joblib.wire.statuses import TERMINAL, TaskStatus

Rule = Callable[[RunRecord], Findings]
MASS_EXPIRY_MINIMUM = 2


@dataclass(frozen=True, slots=True)
class Violation:
    """A guarantee that does not hold for a task."""

    rule: str
    task_id: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: task {self.task_id}: {self.text}"


Interval = tuple[float, float, str]


def check(record: RunRecord, rules: Sequence[Rule] | None = None) -> list[Violation]:
    """Return all violations, or those of some rules."""
    return [
        Violation(rule.__name__.replace("_", " "), task_id, text)
        for rule in rules or RULES
        for task_id, text in rule(record)
    ]


def no_task_is_lost(record: RunRecord) -> Findings:
    """Each accepted task exists and has ended."""
    for submission in record.submissions:
        if submission.task_id is not None and submission.task_id not in record.tasks_by_id:
            yield submission.task_id, f"submission {submission.number} was accepted, the task does not exist"
    for task in record.tasks:
        if task.status not in TERMINAL:
            yield str(task.id), f"is still {task.status}, attempt {task.attempt}, worker {task.worker_id}"


def no_task_is_duplicated(record: RunRecord) -> Findings:
    """Each submission created at most one task, and each task belongs to a submission."""
    listed = Counter(str(task.id) for task in record.tasks)
    created: dict[int, list[str]] = defaultdict(list)
    for task in record.tasks_by_id.values():
        created[task.payload["number"]].append(str(task.id))
    known = {submission.number: submission for submission in record.submissions}
    for task_id, times in listed.items():
        if times > 1:
            yield task_id, f"is listed {times} times"
    for number, ids in created.items():
        if len(ids) > 1:
            yield ids[0], f"submission {number} created {len(ids)} tasks: {', '.join(ids)}"
        if number not in known or known[number].task_id not in {None, *ids}:
            yield ids[0], f"belongs to no submission (number {number})"


def each_task_ends_once(record: RunRecord) -> Findings:
    """Only the last step of a history is terminal, and each claim has a higher attempt number."""
    for task_id, history in record.histories.items():
        steps = history.transitions
        ends = [index for index, step in enumerate(steps) if step.status in TERMINAL]
        task = record.tasks_by_id.get(task_id)
        if ends != [len(steps) - 1]:
            yield task_id, f"its history does not end exactly once: {_format_history(history)}"
        elif task is not None and (steps[-1].status, steps[-1].attempt) != (task.status, task.attempt):
            yield task_id, f"is {_format_state(task)}, its history ends with {_format_history(history)}"
        claims = [step.attempt for step in steps if step.status == TaskStatus.CLAIMED]
        if any(later <= earlier for earlier, later in pairwise(claims)):
            yield task_id, f"its attempt numbers do not increase: {_format_history(history)}"


def each_attempt_has_one_worker(record: RunRecord) -> Findings:
    """Only one worker claims an attempt of a task, and starts it only once."""
    workers: dict[tuple[str, int], set[str]] = defaultdict(set)
    for request in record.requests:
        if request.kind == "claim" and request.task_id and request.attempt and request.worker_id:
            workers[request.task_id, request.attempt].add(request.worker_id)
    started = Counter((it.task_id, it.attempt) for it in record.executions if it.event == "started")
    for (task_id, attempt), ids in workers.items():
        if len(ids) > 1:
            yield task_id, f"attempt {attempt} was claimed by workers {', '.join(sorted(ids))}"
    for (task_id, attempt), times in started.items():
        if times > 1:
            yield task_id, f"attempt {attempt} was started {times} times"


def one_final_report_is_accepted(record: RunRecord) -> Findings:
    """At most one attempt's report ended a task, and the task has the status of that report.

    A task that is retried by hand may have failed before.
    """
    retried = record.retried_by_hand
    accepted: dict[str, set[tuple[str | None, int | None, str | None]]] = defaultdict(set)
    for report in record.final_reports:
        if report.task_id in retried and report.status == TaskStatus.FAILED:
            continue
        accepted[report.task_id or ""].add((report.resulting_status, report.attempt, report.worker_id))
    for task_id, ends in accepted.items():
        task = record.tasks_by_id.get(task_id)
        if len(ends) > 1:
            yield task_id, f"{len(ends)} reports ended it: {sorted(map(str, ends))}"
        elif task is not None and {(task.status, task.attempt, str(task.worker_id))} != ends:
            yield task_id, f"{ends} ended it, but it is {_format_state(task)} of worker {task.worker_id}"


def results_belong_to_their_attempt(record: RunRecord) -> Findings:
    """The attempt of a completed task was executed and reported, and the task has its result."""
    finished = {(it.task_id, it.attempt, it.pid) for it in record.executions if it.event == "finished"}
    reported = {
        (it.task_id, it.attempt, it.pid) for it in record.requests if it.status == TaskStatus.COMPLETED
    }
    for task_id, task in record.tasks_by_id.items():
        if task.status != TaskStatus.COMPLETED:
            continue
        result = task.result if isinstance(task.result, dict) else {}
        pid = result.get("pid")
        if (result.get("task_id"), result.get("attempt")) != (task_id, task.attempt):
            yield task_id, f"attempt {task.attempt} completed it, with the result {task.result}"
        elif (task_id, task.attempt, pid) not in finished & reported:
            yield task_id, f"is completed, but process {pid} did not finish and report attempt {task.attempt}"


def stale_reports_are_rejected(record: RunRecord) -> Findings:
    """No report is accepted that was first sent after a newer attempt was claimed or started."""
    known: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for request in record.requests:
        if request.kind == "claim" and request.task_id and request.attempt and request.response_at:
            known[request.task_id].append((request.response_at, request.attempt))
    for execution in record.executions:
        known[execution.task_id].append((execution.at, execution.attempt))
    first_sent: dict[tuple[object, ...], float] = {}
    for request in record.requests:
        identity = (request.task_id, request.attempt, request.worker_id, request.status)
        sent_at = first_sent.setdefault(identity, request.sent_at)
        if request.kind != "report" or not request.is_accepted:
            continue
        newest = max((attempt for at, attempt in known[request.task_id or ""] if at < sent_at), default=0)
        if request.attempt is not None and newest > request.attempt:
            text = (
                f"{request.status!r} of attempt {request.attempt} was accepted after attempt {newest} began"
            )
            yield request.task_id or "", text


def failures_follow_the_retry_policy(record: RunRecord) -> Findings:
    """A task fails only after all its attempts failed, or after a loss that its policy does not retry."""
    planned = {submission.number: submission for submission in record.submissions}
    for task_id, task in record.tasks_by_id.items():
        policy, submission = record.policy_of(task.job_name), planned.get(task.payload["number"])
        if task.status == TaskStatus.CANCELLED:
            yield task_id, "was cancelled without a request"
        if task.status != TaskStatus.FAILED or submission is None:
            continue
        is_lost = any(
            (lost.task_id, lost.attempt) == (task_id, task.attempt) for lost in record.lost_attempts
        )
        may_fail = submission.failures >= policy.max_attempts and not is_lost
        if not may_fail and not (is_lost and policy.max_attempts == 1):
            yield task_id, f"failed in attempt {task.attempt} of job {task.job_name}: {task.error}"


def live_workers_are_kept(record: RunRecord) -> Findings:
    """The server removes no worker within the timeout after a heartbeat or after its own return."""
    timeout = record.worker_timeout_seconds
    heartbeats = _heartbeats(record.requests)
    deleted = {it.worker_id: it.sent_at for it in reversed(record.requests) if it.kind == "delete"}
    for lost in record.lost_attempts:
        if deleted.get(lost.worker_id, math.inf) <= lost.at:
            continue
        recent = [at for at in heartbeats[lost.worker_id] if lost.at - timeout < at < lost.at]
        if recent:
            yield (
                lost.task_id,
                f"worker {lost.worker_id} was removed {lost.at - max(recent):.2f} s after it sent a "
                f"heartbeat that the server accepted; the timeout is {timeout:g} s",
            )
        for fault in record.faults:
            if fault.server_back_at is not None and 0 <= lost.at - fault.server_back_at < timeout:
                yield (
                    lost.task_id,
                    f"worker {lost.worker_id} was removed {lost.at - fault.server_back_at:.2f} s after the "
                    f"server came back ({fault.kind}); the timeout is {timeout:g} s",
                )


def the_mass_expiry_guard_holds(record: RunRecord) -> Findings:
    """The server removes most workers at once only if most were silent one sweeper interval earlier too."""
    silence = record.worker_timeout_seconds + record.sweeper_interval_seconds
    heartbeats = _heartbeats(record.requests)
    sweeps: dict[float, list[LostAttempt]] = defaultdict(list)
    for lost in record.lost_attempts:
        sweeps[lost.at].append(lost)
    for at, losses in sweeps.items():
        removed = {lost.worker_id for lost in losses}
        registered = _registered_workers(record, at)
        last = {
            worker: max([beat for beat in heartbeats[worker] if beat < at], default=0.0)
            for worker in registered
        }
        silent = {worker for worker in registered if last[worker] < at - silence}
        if _is_mass_expiry(removed, registered) and not _is_mass_expiry(silent, registered):
            yield (
                losses[0].task_id,
                f"{len(removed)} of {len(registered)} workers were removed at once; "
                f"{len(silent)} were silent one interval earlier",
            )


def _is_mass_expiry(expired: set[str], registered: set[str]) -> bool:
    return len(expired) >= MASS_EXPIRY_MINIMUM and 2 * len(expired) > len(registered)


def concurrency_limits_hold(record: RunRecord) -> Findings:
    """No more tasks of a job are executed, or claimed, at once than its limit allows."""
    for job, policy in record.policies.items():
        if policy.max_in_flight is None:
            continue
        ids = {task_id for task_id, task in record.tasks_by_id.items() if task.job_name == job}
        for what, intervals in (("executed", _executing(record, ids)), ("claimed", _claimed(record, ids))):
            most, task_id = _max_overlap(intervals)
            if most > policy.max_in_flight:
                yield (
                    task_id,
                    f"{most} tasks of {job} were {what} at once; max_in_flight is {policy.max_in_flight}",
                )


def submission_order_is_kept(record: RunRecord) -> Findings:
    """A worker starts the first attempts of an ordered job in the order of their submissions.

    This holds for two submissions if the first one had its response before the second one was sent, and the
    same worker claimed both.
    """
    submissions = {
        it.task_id: it
        for it in record.submissions
        if it.task_id is not None and it.job in record.ordered_jobs
    }
    started: dict[str, list[ExecutionEvent]] = defaultdict(list)
    for it in record.executions:
        if it.event == "started" and it.attempt == 1 and it.task_id in submissions:
            started[it.worker_id].append(it)
    for worker_id, executions in started.items():
        for earlier, later in combinations(executions, 2):
            response_at = submissions[later.task_id].response_at
            if response_at is not None and response_at < submissions[earlier.task_id].sent_at:
                yield (
                    later.task_id,
                    f"worker {worker_id} started it after {earlier.task_id}, which was submitted later",
                )


def no_deadlock_occurs(record: RunRecord) -> Findings:
    """The database reported no deadlock."""
    if record.deadlocks:
        yield "-", f"{record.deadlocks} deadlocks; see the log of the database"


def kept_counts_are_right(record: RunRecord) -> Findings:
    """The counts that writers of tasks keep are those of the tasks."""
    for text in record.wrong_counts:
        yield "-", f"add to the counts of a {text}"


RULES: tuple[Rule, ...] = (
    no_task_is_lost,
    no_task_is_duplicated,
    each_task_ends_once,
    each_attempt_has_one_worker,
    one_final_report_is_accepted,
    results_belong_to_their_attempt,
    stale_reports_are_rejected,
    failures_follow_the_retry_policy,
    live_workers_are_kept,
    the_mass_expiry_guard_holds,
    concurrency_limits_hold,
    submission_order_is_kept,
    no_deadlock_occurs,
    kept_counts_are_right,
    *GROUP_RULES,
    *GRAPH_RULES,
)


def _format_state(task: TaskResponse) -> str:
    return f"{task.status}#{task.attempt}"


def _format_history(history: TaskHistory) -> str:
    return " → ".join(f"{step.status}#{step.attempt}" for step in history.transitions)


def _heartbeats(requests: Iterable[WorkerRequest]) -> dict[str, list[float]]:
    """Return when each worker sent the heartbeats that the server accepted; it received them no earlier."""
    heartbeats: dict[str, list[float]] = defaultdict(list)
    for it in requests:
        if it.kind in {"heartbeat", "register"} and it.is_accepted and it.worker_id:
            heartbeats[it.worker_id].append(it.sent_at)
    return heartbeats


def _registered_workers(record: RunRecord, at: float) -> set[str]:
    """Return the workers that were registered at a time, according to their own logs."""
    registered = {
        it.worker_id for it in record.requests if it.kind == "register" and (it.response_at or at) < at
    }
    removed = {it.worker_id for it in record.requests if it.kind == "delete" and it.sent_at < at}
    removed |= {lost.worker_id for lost in record.lost_attempts if lost.at < at}
    return {worker_id for worker_id in registered if worker_id is not None} - removed


def _executing(record: RunRecord, ids: set[str]) -> list[Interval]:
    """Return the execution intervals of attempts with an accepted final report."""
    started = {(it.task_id, it.attempt): it.at for it in record.executions if it.event == "started"}
    finished = {(it.task_id, it.attempt): it.at for it in record.executions if it.event == "finished"}
    reported = {
        (it.task_id or "", it.attempt or 0) for it in record.requests if it.ends_task and it.is_accepted
    }
    return [
        (started[attempt], finished[attempt], attempt[0])
        for attempt in reported & started.keys() & finished.keys()
        if attempt[0] in ids
    ]


def _claimed(record: RunRecord, ids: set[str]) -> list[Interval]:
    """Return when the tasks were certainly claimed.

    The server's times are the beginnings of transactions, so the time of a claim may be too early. The task
    was claimed at the latest when the worker had the response, or reported the start.
    """
    responses = {
        (it.task_id, it.attempt): it.response_at
        for it in record.requests
        if it.kind == "claim" and it.task_id and it.response_at
    }
    intervals = []
    for task_id in ids & record.histories.keys():
        since: float | None = None
        for step in record.histories[task_id].transitions:
            if step.status == TaskStatus.CLAIMED:
                since = responses.get((task_id, step.attempt))
            elif step.status == TaskStatus.RUNNING:
                since = min(since or math.inf, step.at.timestamp())
            elif since is not None:
                intervals.append((since, step.at.timestamp(), task_id))
                since = None
    return [interval for interval in intervals if interval[0] < interval[1]]


def _max_overlap(intervals: Iterable[Interval]) -> tuple[int, str]:
    """Return the maximum number of overlapping intervals, and the task that reaches it by its start."""
    steps = sorted(
        step for begin, end, task_id in set(intervals) for step in ((begin, 1, task_id), (end, -1, task_id))
    )
    most, now, reached_by = 0, 0, ""
    for _, change, task_id in steps:
        now += change
        if now > most:
            most, reached_by = now, task_id
    return most, reached_by
