"""Proves from the evidence of a run what is promised, or lists what was broken. ProviderRequests nothing else."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations, pairwise

from chaos.evidence import Evidence, Loss
from chaos.journal import Call, Effect
from zndraw_joblib.contract.messages import TaskHistory, TaskResponse
from zndraw_joblib.contract.status import TERMINAL, TaskStatus

BRAKE_AT_LEAST = 5


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was broken."""

    rule: str
    task: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: task {self.task}: {self.text}"


Found = Iterator[tuple[str, str]]


def check(evidence: Evidence) -> list[Violation]:
    """Return every violation."""
    return [
        Violation(rule.__name__.replace("_", " "), task, text)
        for rule in RULES
        for task, text in rule(evidence)
    ]


def nothing_is_lost(evidence: Evidence) -> Found:
    """Each accepted task is there, and has ended."""
    for submission in evidence.submissions:
        if submission.task is not None and submission.task not in evidence.by_id:
            yield submission.task, f"submit {submission.number} was accepted, and the task is gone"
    for task in evidence.tasks:
        if task.status not in TERMINAL:
            yield str(task.id), f"is still {task.status}, attempt {task.attempt}, worker {task.worker_id}"


def nothing_is_doubled(evidence: Evidence) -> Found:
    """Each submit made one task at most, and each task comes from a submit."""
    listed = Counter(str(task.id) for task in evidence.tasks)
    made: dict[int, list[str]] = defaultdict(list)
    for task in evidence.by_id.values():
        made[task.payload["number"]].append(str(task.id))
    known = {submission.number: submission for submission in evidence.submissions}
    for task_id, times in listed.items():
        if times > 1:
            yield task_id, f"is listed {times} times"
    for number, ids in made.items():
        if len(ids) > 1:
            yield ids[0], f"submit {number} made {len(ids)} tasks: {', '.join(ids)}"
        if number not in known or known[number].task not in {None, *ids}:
            yield ids[0], f"nobody has submitted it (number {number})"


def each_ends_once(evidence: Evidence) -> Found:
    """A history has one end, which is its last step; attempts grow with every claim."""
    for task_id, history in evidence.histories.items():
        steps = history.transitions
        ends = [place for place, step in enumerate(steps) if step.status in TERMINAL]
        if ends != [len(steps) - 1]:
            yield task_id, f"its history does not end once: {_told(history)}"
        elif task_id in evidence.by_id and (steps[-1].status, steps[-1].attempt) != _state(
            evidence.by_id[task_id]
        ):
            yield task_id, f"its history does not end as it stands: {_told(history)}"
        claims = [step.attempt for step in steps if step.status == TaskStatus.CLAIMED]
        if any(later <= earlier for earlier, later in pairwise(claims)):
            yield task_id, f"its attempts do not grow: {_told(history)}"


def an_attempt_has_one_holder(evidence: Evidence) -> Found:
    """Nobody else is given, or begins, the same attempt of a task; nor does anybody begin it twice."""
    holders: dict[tuple[str, int], set[str]] = defaultdict(set)
    for call in evidence.calls:
        if call.kind == "claim" and call.task and call.attempt and call.worker:
            holders[call.task, call.attempt].add(call.worker)
    begun = Counter((it.task, it.attempt) for it in evidence.effects if it.event == "started")
    for (task, attempt), workers in holders.items():
        if len(workers) > 1:
            yield task, f"attempt {attempt} was given to workers {', '.join(sorted(workers))}"
    for (task, attempt), times in begun.items():
        if times > 1:
            yield task, f"attempt {attempt} was begun {times} times"


def one_end_is_accepted(evidence: Evidence) -> Found:
    """At most one attempt's report ended a task; the task stands as it said, with the result it sent."""
    accepted: dict[str, set[tuple[str | None, int | None, str | None]]] = defaultdict(set)
    for call in evidence.ends:
        accepted[call.task or ""].add((call.became, call.attempt, call.worker))
    for task_id, ends in accepted.items():
        task = evidence.by_id.get(task_id)
        if len(ends) > 1:
            yield task_id, f"{len(ends)} reports ended it: {sorted(map(str, ends))}"
        elif task is not None and {(task.status, task.attempt, str(task.worker_id))} != ends:
            yield task_id, f"was ended by {ends}, and is {_state(task)} of worker {task.worker_id}"


def a_result_is_of_its_attempt(evidence: Evidence) -> Found:
    """What is completed was worked on to its end, and reported, by the attempt whose result it has."""
    done = {(it.task, it.attempt, it.pid) for it in evidence.effects if it.event == "finished"}
    told = {(call.task, call.attempt, call.pid) for call in evidence.calls if call.asked == "completed"}
    for task_id, task in evidence.by_id.items():
        if task.status != TaskStatus.COMPLETED:
            continue
        result = task.result if isinstance(task.result, dict) else {}
        mark = (task_id, task.attempt, result.get("pid"))
        if (result.get("task"), result.get("attempt")) != mark[:2]:
            yield task_id, f"attempt {task.attempt} completed it, with the result {task.result}"
        elif mark not in done or mark not in told:
            yield (
                task_id,
                f"is completed, and process {mark[2]} has not finished and reported attempt {mark[1]}",
            )


def the_fence_holds(evidence: Evidence) -> Found:
    """No report is accepted that was first sent after a newer attempt had been given out or begun."""
    known: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for call in evidence.calls:
        if call.kind == "claim" and call.task and call.attempt and call.answered_at:
            known[call.task].append((call.answered_at, call.attempt))
    for effect in evidence.effects:
        known[effect.task].append((effect.at, effect.attempt))
    first: dict[tuple[object, ...], float] = {}
    for call in evidence.calls:
        sent_at = first.setdefault((call.task, call.attempt, call.worker, call.asked), call.sent_at)
        if call.kind != "report" or not call.is_accepted:
            continue
        newer = [attempt for at, attempt in known[call.task or ""] if at < sent_at]
        if call.attempt is not None and max(newer, default=0) > call.attempt:
            yield (
                call.task or "",
                f"{call.asked!r} of attempt {call.attempt} was accepted; attempt {max(newer)} had begun",
            )


def ends_are_as_promised(evidence: Evidence) -> Found:
    """A task fails only if it says so as often as it may, or if it is not tried again after a loss."""
    planned = {submission.number: submission for submission in evidence.submissions}
    for task_id, task in evidence.by_id.items():
        policy, submission = evidence.policy(task.job_name), planned.get(task.payload["number"])
        if task.status == TaskStatus.CANCELLED:
            yield task_id, "was cancelled, and nobody asked for it"
        if task.status != TaskStatus.FAILED or submission is None:
            continue
        is_lost = any((loss.task, loss.attempt) == (task_id, task.attempt) for loss in evidence.losses)
        may_fail = submission.failures >= policy.max_attempts and not is_lost
        if not may_fail and not (is_lost and policy.max_attempts == 1):
            yield task_id, f"failed in attempt {task.attempt} of job {task.job_name}: {task.error}"


def the_living_are_spared(evidence: Evidence) -> Found:
    """Nobody is lost who reported within the timeout, nor before a server that was away has watched."""
    timeout = evidence.worker_timeout_seconds
    signs = _signs(evidence.calls)
    left = {call.worker: call.sent_at for call in reversed(evidence.calls) if call.kind == "leave"}
    for loss in evidence.losses:
        if left.get(loss.worker, math.inf) <= loss.at:
            continue
        late = [at for at in signs[loss.worker] if loss.at - timeout < at < loss.at]
        if late:
            yield (
                loss.task,
                f"was taken from worker {loss.worker}, whose sign of life {loss.at - max(late):.2f} s "
                f"before was answered",
            )
        for fault in evidence.faults:
            if fault.back_at is not None and fault.back_at <= loss.at < fault.back_at + timeout:
                yield (
                    loss.task,
                    f"was taken from worker {loss.worker} {loss.at - fault.back_at:.2f} s after the "
                    f"server came back ({fault.kind}); workers have {timeout:g} s",
                )


def the_brake_holds(evidence: Evidence) -> Found:
    """Where most workers are held for lost at once, most were silent a whole interval before already."""
    timeout, interval = evidence.worker_timeout_seconds, evidence.sweeper_interval_seconds
    signs = _signs(evidence.calls)
    sweeps: dict[float, list[Loss]] = defaultdict(list)
    for loss in evidence.losses:
        sweeps[loss.at].append(loss)
    for at, losses in sweeps.items():
        lost = {loss.worker for loss in losses}
        known = _known(evidence, at)
        seen = {worker: max([sign for sign in signs[worker] if sign < at], default=0.0) for worker in known}
        silent = [worker for worker in known if seen[worker] < at - timeout - interval]
        many = len(lost) >= BRAKE_AT_LEAST and 2 * len(lost) > len(known)
        if many and not (len(silent) >= BRAKE_AT_LEAST and 2 * len(silent) > len(known)):
            yield (
                losses[0].task,
                f"{len(lost)} of {len(known)} workers were held for lost at once; "
                f"{len(silent)} were silent one interval before",
            )


def caps_hold(evidence: Evidence) -> Found:
    """No more tasks of a job are worked on, or held, at once than its cap."""
    for job, policy in evidence.policies.items():
        if policy.max_in_flight is None:
            continue
        ids = {task_id for task_id, task in evidence.by_id.items() if task.job_name == job}
        for what, spans in (("worked on", _worked(evidence, ids)), ("held", _held(evidence, ids))):
            most, task = _overlap(spans)
            if most > policy.max_in_flight:
                yield task, f"{most} tasks of {job} were {what} at once; {policy.max_in_flight} may be"


def the_line_holds(evidence: Evidence) -> Found:
    """Of a job that is tried once, in a line, a worker begins first attempts in the order of the submits.

    Promised where one submit was answered before the other was sent, and both were given to the same worker.
    """
    sent = {it.task: it for it in evidence.submissions if it.task is not None and it.job in evidence.lines}
    begun: dict[str, list[Effect]] = defaultdict(list)
    for effect in evidence.effects:
        if effect.event == "started" and effect.attempt == 1 and effect.task in sent:
            begun[effect.worker].append(effect)
    for worker, effects in begun.items():
        for earlier, later in combinations(effects, 2):
            answered = sent[later.task].answered_at
            if answered is not None and answered < sent[earlier.task].sent_at:
                yield later.task, f"worker {worker} began it after {earlier.task}, which was submitted later"


def nobody_waits_in_a_circle(evidence: Evidence) -> Found:
    """There is one order of locks: the database found no deadlock."""
    if evidence.deadlocks:
        yield "-", f"{evidence.deadlocks} deadlocks; see the database's log"


RULES: tuple[Callable[[Evidence], Found], ...] = (
    nothing_is_lost,
    nothing_is_doubled,
    each_ends_once,
    an_attempt_has_one_holder,
    one_end_is_accepted,
    a_result_is_of_its_attempt,
    the_fence_holds,
    ends_are_as_promised,
    the_living_are_spared,
    the_brake_holds,
    caps_hold,
    the_line_holds,
    nobody_waits_in_a_circle,
)


def _state(task: TaskResponse) -> tuple[TaskStatus, int]:
    return task.status, task.attempt


def _told(history: TaskHistory) -> str:
    return " → ".join(f"{step.status}#{step.attempt}" for step in history.transitions)


def _signs(calls: Iterable[Call]) -> dict[str, list[float]]:
    """Return when each worker sent heartbeats that were answered: the server had them no sooner."""
    signs: dict[str, list[float]] = defaultdict(list)
    for call in calls:
        if call.kind in {"beat", "register"} and call.is_accepted and call.worker:
            signs[call.worker].append(call.sent_at)
    return signs


def _known(evidence: Evidence, at: float) -> set[str]:
    """Return the workers that were registered at a time, as far as they knew it themselves."""
    known = {
        call.worker for call in evidence.calls if call.kind == "register" and (call.answered_at or at) < at
    }
    gone = {call.worker for call in evidence.calls if call.kind == "leave" and call.sent_at < at}
    gone |= {loss.worker for loss in evidence.losses if loss.at < at}
    return {worker for worker in known if worker is not None} - gone


def _worked(evidence: Evidence, ids: set[str]) -> list[tuple[float, float, str]]:
    """Return when the attempts were worked on whose reports were accepted: they held the task all along."""
    begun = {(it.task, it.attempt): it.at for it in evidence.effects if it.event == "started"}
    ended = {(it.task, it.attempt): it.at for it in evidence.effects if it.event == "finished"}
    told = [(call.task or "", call.attempt or 0) for call in evidence.calls if _ended_well(call)]
    return [
        (begun[one], ended[one], one[0]) for one in told if one[0] in ids and one in begun and one in ended
    ]


def _ended_well(call: Call) -> bool:
    return call.kind == "report" and call.is_accepted and call.asked in TERMINAL


def _held(evidence: Evidence, ids: set[str]) -> list[tuple[float, float, str]]:
    """Return from when to when the tasks were held for sure.

    A time of the server's is that of a transaction's begin: that of a claim may be too early, but the task
    was held when its worker had the answer, or said that it begins.
    """
    answers = {
        (call.task, call.attempt): call.answered_at
        for call in evidence.calls
        if call.kind == "claim" and call.task and call.answered_at
    }
    spans = []
    for task_id in ids & evidence.histories.keys():
        since: float | None = None
        for step in evidence.histories[task_id].transitions:
            if step.status == TaskStatus.CLAIMED:
                since = answers.get((task_id, step.attempt))
            elif step.status == TaskStatus.RUNNING:
                since = min(since or math.inf, step.at.timestamp())
            elif since is not None:
                spans.append((since, step.at.timestamp(), task_id))
                since = None
    return [span for span in spans if span[0] < span[1]]


def _overlap(spans: Iterable[tuple[float, float, str]]) -> tuple[int, str]:
    """Return how many spans overlap at most, and whose begin makes it so many."""
    steps = sorted(step for begin, end, task in set(spans) for step in ((begin, 1, task), (end, -1, task)))
    most, now, whose = 0, 0, ""
    for _, change, task in steps:
        now += change
        if now > most:
            most, whose = now, task
    return most, whose
