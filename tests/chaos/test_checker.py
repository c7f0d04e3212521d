"""Each rule of the checker, broken once in the evidence of a run that was good."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

import pytest
from chaos.checker import RULES, check
from chaos.evidence import Evidence, Fault, Submission
from chaos.journal import Call, Effect

from zndraw_joblib.contract.messages import TaskHistory, TaskResponse, Transition
from zndraw_joblib.contract.policy import JobPolicy
from zndraw_joblib.contract.status import TaskStatus

JOB, WORKER, OTHER = "@global:modifiers:Line", str(UUID(int=9)), str(UUID(int=8))
TASKS = [str(UUID(int=number)) for number in range(2)]
PENDING, CLAIMED, RUNNING, COMPLETED, FAILED, CANCELLED = TaskStatus


def step(at: float, status: TaskStatus, attempt: int = 1, reason: str | None = None) -> Transition:
    """Return a step of a history."""
    when = datetime.fromtimestamp(at, UTC)
    return Transition(at=when, status=status, attempt=attempt, worker_id=UUID(WORKER), reason=reason)


def report(number: int, begin: float, asked: str) -> Call:
    """Return an accepted report."""
    return Call("report", 7, begin, WORKER, TASKS[number], 1, asked, begin + 0.01, 200, asked)


def good() -> Evidence:
    """Return the evidence of two tasks that a worker did one after the other, as they were submitted."""
    evidence = Evidence([], [], [], [], policies={JOB: JobPolicy(max_in_flight=1)}, lines=frozenset({JOB}))
    evidence.worker_timeout_seconds, evidence.sweeper_interval_seconds = 3.0, 0.5
    evidence.calls.append(Call("register", 7, 9, WORKER, answered_at=9.1, code=200))
    for number, task_id in enumerate(TASKS):
        begin = 20.0 + 10 * number
        evidence.submissions.append(
            Submission(number, JOB, "lab", sent_at=10.0 + number, answered_at=10.5 + number, task=task_id)
        )
        steps = [step(begin - 9, PENDING, 0), step(begin, CLAIMED), step(begin + 1, RUNNING)]
        evidence.histories[task_id] = TaskHistory(
            id=UUID(task_id), transitions=[*steps, step(begin + 4, COMPLETED)]
        )
        mark = {"pid": 7, "task": task_id, "attempt": 1}
        evidence.effects += [
            Effect("started", begin + 2, worker=WORKER, **mark),
            Effect("finished", begin + 3, worker=WORKER, **mark),
        ]
        claim = Call("claim", 7, begin, WORKER, task_id, 1, answered_at=begin + 0.5, code=200)
        evidence.calls += [
            claim,
            report(number, begin + 0.9, "running"),
            report(number, begin + 3.9, "completed"),
        ]
        evidence.tasks.append(
            TaskResponse(
                id=UUID(task_id),
                job_name=JOB,
                room_id="lab",
                status=COMPLETED,
                created_at=steps[0].at,
                completed_at=datetime.fromtimestamp(begin + 4, UTC),
                worker_id=UUID(WORKER),
                payload={"number": number},
                attempt=1,
                result=mark,
            )
        )
    return evidence


def lose_a_task(evidence: Evidence) -> None:
    """Forget one that was accepted."""
    evidence.tasks.pop()


def leave_one_running(evidence: Evidence) -> None:
    """Let one never end."""
    evidence.tasks[0].status = RUNNING


def double_a_submit(evidence: Evidence) -> None:
    """Let one submit have made both."""
    evidence.tasks[1].payload["number"] = 0


def end_twice(evidence: Evidence) -> None:
    """Let a history go on after its end."""
    steps = evidence.histories[TASKS[0]].transitions
    steps.append(steps[-1])


def repeat_an_attempt(evidence: Evidence) -> None:
    """Give the same attempt out again."""
    steps = evidence.histories[TASKS[0]].transitions
    steps[1:1] = [steps[1], steps[0]]


def give_to_two(evidence: Evidence) -> None:
    """Give one attempt to two workers."""
    evidence.calls.append(replace(evidence.calls[1], worker=OTHER))


def accept_another_end(evidence: Evidence) -> None:
    """Accept the report of a second attempt too."""
    evidence.calls.append(replace(report(0, 40, "completed"), attempt=2))


def mix_results(evidence: Evidence) -> None:
    """Give a task the result of another."""
    evidence.tasks[0].result = evidence.tasks[1].result


def accept_a_late_report(evidence: Evidence) -> None:
    """Let a newer attempt begin before the report."""
    evidence.effects.append(Effect("started", 22.5, 8, TASKS[0], 2, OTHER))


def fail_for_no_reason(evidence: Evidence) -> None:
    """Let one fail that was to go well."""
    evidence.tasks[0].status = FAILED


def lose(evidence: Evidence, at: float) -> None:
    """Take the first task from its worker."""
    evidence.histories[TASKS[0]].transitions[3:3] = [step(at, PENDING, 1, "worker-lost")]


def remove_a_living_worker(evidence: Evidence) -> None:
    """Let its heartbeat have been answered just before."""
    evidence.calls.append(Call("beat", 7, 22.9, WORKER, answered_at=22.95, code=200))
    lose(evidence, 23)


def judge_after_an_absence(evidence: Evidence) -> None:
    """Let the server have come back just before."""
    evidence.faults.append(Fault("server stopped", 15, 22, back_at=22))
    lose(evidence, 23)


def overlap(evidence: Evidence) -> None:
    """Let both have been held at once."""
    evidence.histories[TASKS[0]].transitions[-1] = step(35, COMPLETED)


def change_the_order(evidence: Evidence) -> None:
    """Let the first have been submitted last."""
    evidence.submissions[0].sent_at, evidence.submissions[0].answered_at = 12, 12.5


def remove_most_workers(evidence: Evidence) -> None:
    """Hold five workers for lost as soon as they are silent."""
    for number in range(5):
        worker, task = str(UUID(int=100 + number)), UUID(int=200 + number)
        evidence.calls.append(Call("beat", 7, 49.9 - 3, worker, answered_at=47, code=200))
        evidence.calls.append(Call("register", 7, 40, worker, answered_at=40.1, code=200))
        lost = step(50, PENDING, 1, "worker-lost").model_copy(update={"worker_id": UUID(worker)})
        evidence.histories[str(task)] = TaskHistory(id=task, transitions=[lost, step(51, COMPLETED)])
        fields = {"id": task, "payload": {"number": 10 + number}, "attempt": 1, "status": COMPLETED}
        evidence.tasks.append(evidence.tasks[0].model_copy(update=fields))


def find_deadlocks(evidence: Evidence) -> None:
    """Let the database have found some."""
    evidence.deadlocks = 3


def test_a_good_run_is_good() -> None:
    """Nothing is found where nothing is wrong."""
    assert check(good()) == []


@pytest.mark.parametrize(
    ("spoil", "rule"),
    [
        (lose_a_task, "nothing is lost"),
        (leave_one_running, "nothing is lost"),
        (double_a_submit, "nothing is doubled"),
        (end_twice, "each ends once"),
        (repeat_an_attempt, "each ends once"),
        (give_to_two, "an attempt has one holder"),
        (accept_another_end, "one end is accepted"),
        (mix_results, "a result is of its attempt"),
        (accept_a_late_report, "the fence holds"),
        (fail_for_no_reason, "ends are as promised"),
        (remove_a_living_worker, "the living are spared"),
        (judge_after_an_absence, "the living are spared"),
        (remove_most_workers, "the brake holds"),
        (overlap, "caps hold"),
        (change_the_order, "the line holds"),
        (find_deadlocks, "nobody waits in a circle"),
    ],
)
def test_what_is_wrong_is_found(spoil: Callable[[Evidence], None], rule: str) -> None:
    """The rule that is broken is among those that the checker names."""
    evidence = good()
    spoil(evidence)
    assert rule in {violation.rule for violation in check(evidence)}


def test_each_rule_is_broken_somewhere_above() -> None:
    """A new rule comes with evidence that breaks it."""
    [marks] = [mark for mark in test_what_is_wrong_is_found.pytestmark if mark.name == "parametrize"]
    assert {rule for _, rule in marks.args[1]} == {rule.__name__.replace("_", " ") for rule in RULES}
