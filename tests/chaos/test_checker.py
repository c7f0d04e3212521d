"""Each rule of the checker reports a record that violates it, and no rule reports a correct record."""

from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from uuid import UUID

import pytest
from chaos.checker import RULES, check
from chaos.database import wrong_counts
from chaos.group_rules import events_of
from chaos.receiver import TARGETS
from chaos.records import (
    Arrival,
    ExecutionEvent,
    Fault,
    GraphRecord,
    GroupRecord,
    RunRecord,
    StepRecord,
    Submission,
    WorkerRequest,
)
from sqlalchemy import insert

from zndraw_joblib.server.db import schema
from zndraw_joblib.server.db.engine import open_database
from zndraw_joblib.server.db.tables import RoomCount
from zndraw_joblib.wire.groups import GroupResponse, OnEndState
from zndraw_joblib.wire.history import TaskHistory, Transition
from zndraw_joblib.wire.messages import TaskResponse
from zndraw_joblib.wire.policy import JobPolicy
from zndraw_joblib.wire.statuses import StatusCounts, TaskStatus
from zndraw_joblib.wire.successors import OnFailure

JOB, WORKER, OTHER_WORKER = "@global:modifiers:Ordered", str(UUID(int=9)), str(UUID(int=8))
TASKS = [str(UUID(int=number)) for number in range(2)]
PENDING, CLAIMED, RUNNING, COMPLETED, FAILED, CANCELLED = TaskStatus


def step(at: float, status: TaskStatus, attempt: int = 1, reason: str | None = None) -> Transition:
    """Return a step of a history."""
    when = datetime.fromtimestamp(at, UTC)
    return Transition(at=when, status=status, attempt=attempt, worker_id=UUID(WORKER), reason=reason)


def report(number: int, sent_at: float, status: str) -> WorkerRequest:
    """Return an accepted report."""
    return WorkerRequest("report", 7, sent_at, WORKER, TASKS[number], 1, status, sent_at + 0.01, 200, status)


def correct_record() -> RunRecord:
    """Return the record of two tasks that one worker executed in the order of their submissions."""
    record = RunRecord(
        [], [], [], [], policies={JOB: JobPolicy(max_in_flight=1)}, ordered_jobs=frozenset({JOB})
    )
    record.worker_timeout_seconds, record.sweeper_interval_seconds = 3.0, 0.5
    record.requests.append(WorkerRequest("register", 7, 9, WORKER, response_at=9.1, status_code=200))
    for number, task_id in enumerate(TASKS):
        begin = 20.0 + 10 * number
        record.submissions.append(
            Submission(number, JOB, "lab", sent_at=10.0 + number, response_at=10.5 + number, task_id=task_id)
        )
        steps = [step(begin - 9, PENDING, 0), step(begin, CLAIMED), step(begin + 1, RUNNING)]
        record.histories[task_id] = TaskHistory(
            id=UUID(task_id), transitions=[*steps, step(begin + 4, COMPLETED)]
        )
        attempt = {"pid": 7, "task_id": task_id, "attempt": 1}
        record.executions += [
            ExecutionEvent("started", begin + 2, worker_id=WORKER, **attempt),
            ExecutionEvent("finished", begin + 3, worker_id=WORKER, **attempt),
        ]
        record.requests += [
            WorkerRequest("claim", 7, begin, WORKER, task_id, 1, response_at=begin + 0.5, status_code=200),
            report(number, begin + 0.9, "running"),
            report(number, begin + 3.9, "completed"),
        ]
        record.tasks.append(
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
                result=attempt,
            )
        )
    add_graphs(record)
    add_a_group(record)
    return record


def add_a_group(record: RunRecord) -> None:
    """Add a group of two tasks, the task at its end, and its events at each target, one of them twice."""
    members, group_id, summary_id = [str(UUID(int=n)) for n in (31, 32)], UUID(int=30), UUID(int=33)
    for at, task_id in enumerate([*members, str(summary_id)], start=40):
        attempt = {"pid": 7, "task_id": task_id, "attempt": 1, "worker_id": WORKER}
        record.executions += [
            ExecutionEvent("started", at, **attempt),
            ExecutionEvent("finished", at + 0.5, **attempt),
        ]
    results = [{"task_id": member, "attempt": 1} for member in members]
    when = datetime.fromtimestamp(42, UTC)
    fields = {"id": summary_id, "payload": {"number": 0}, "result": {"members": results}}
    group = GroupRecord(0, str(group_id), members, is_after_recovery=True)
    group.summaries = [record.tasks[0].model_copy(update=fields)]
    group.response = GroupResponse(
        id=group_id,
        room="groups",
        created_by="ada",
        created_at=when,
        ended_at=when,
        total=2,
        counts=StatusCounts(pending=0, claimed=0, running=0, completed=2, failed=0, cancelled=0),
        on_end_state=OnEndState.SUBMITTED,
        on_end_task=summary_id,
    )
    record.groups = [group]
    record.arrivals = [
        Arrival(50 + number, target, f"msg_{subject}", event, subject)
        for target in TARGETS
        for number, (event, subject) in enumerate(events_of(group))
    ]
    record.arrivals.append(record.arrivals[0])


def add_graphs(record: RunRecord) -> None:
    """Add a chain of two, whose first task is deleted, and one of three, whose first task fails.

    Of another chain a task failed, and was retried.
    """
    parts = [str(UUID(int=number)) for number in (41, 42)]
    record.graphs = [
        GraphRecord(
            0, OnFailure.FAIL, [StepRecord(parts[0], is_kept=False), StepRecord(parts[1], *[parts[:1]] * 2)]
        )
    ]
    failing = [str(UUID(int=number)) for number in (43, 44, 45)]
    steps = [StepRecord(failing[0], fails=True), *[StepRecord(failing[n], [failing[n - 1]]) for n in (1, 2)]]
    record.graphs.append(GraphRecord(1, OnFailure.FAIL, steps))
    for at, task_id in enumerate([*parts, failing[0]], start=60):
        attempt = {"pid": 7, "task_id": task_id, "attempt": 1, "worker_id": WORKER}
        status = FAILED if task_id in failing else COMPLETED
        record.executions += [
            ExecutionEvent("started", at, **attempt),
            ExecutionEvent("finished", at + 0.5, **attempt),
        ]
        sent_at, answer = at + 0.6, (at + 0.7, 200, status)
        record.requests.append(WorkerRequest("report", 7, sent_at, WORKER, task_id, 1, status, *answer))
    payloads = {parts[1]: [{"task_id": parts[0], "attempt": 1}], **{task_id: [] for task_id in failing}}
    for task_id, results in payloads.items():
        fields = {"id": UUID(task_id), "payload": {"number": 0, "results": results}}
        record.steps[task_id] = record.tasks[0].model_copy(update=fields)
        if task_id in failing:
            record.steps[task_id].status, record.steps[task_id].error_code = FAILED, "error"
    held = str(UUID(int=46))
    record.graphs.append(GraphRecord(2, OnFailure.HOLD, [StepRecord(held, fails=True)]))
    fields = {"id": UUID(held), "payload": {"number": 2, "results": []}, "attempt": 2}
    record.steps[held] = record.tasks[0].model_copy(update=fields)
    for number, status in ((1, FAILED), (2, COMPLETED)):
        answer = (63.1 + number, 200, status)
        record.requests.append(WorkerRequest("report", 7, 63 + number, WORKER, held, number, status, *answer))
    for before, task_id in pairwise(failing):
        task = record.steps[task_id]
        task.error, task.error_code = f"Task {before}, which …", "predecessor-failed"


def leave_a_step_waiting(record: RunRecord) -> None:
    """Let a task wait for ever."""
    record.steps[record.graphs[0].steps[1].id].status = PENDING


def leave_an_end_unhandled(record: RunRecord) -> None:
    """Let the end of a predecessor not be handled."""
    record.waves = 1


def delete_a_step(record: RunRecord) -> None:
    """Delete a task that retention keeps."""
    del record.steps[record.graphs[1].steps[2].id]


def refuse_a_step(record: RunRecord) -> None:
    """Refuse a submit, because its predecessor does not exist."""
    record.graphs[1].refusal = "room 'steps' has no task"


def start_a_successor_early(record: RunRecord) -> None:
    """Let a task start while the one that it waits for runs."""
    after = record.graphs[0].steps[1].id
    record.executions = [
        replace(it, at=it.at - 0.9) if it.task_id == after else it for it in record.executions
    ]


def start_a_successor_of_a_running_task(record: RunRecord) -> None:
    """Let a task start although the one that it waits for has not ended."""
    _, step, _ = record.graphs[1].steps
    record.steps[step.after[0]].status = RUNNING
    run_a_failed_successor(record)


def complete_a_successor_twice(record: RunRecord) -> None:
    """Let two attempts complete a task."""
    after = record.graphs[0].steps[1].id
    record.requests += [replace(it, attempt=2) for it in record.requests if it.task_id == after]


def start_a_successor_twice(record: RunRecord) -> None:
    """Let an attempt start on two workers."""
    after = record.graphs[0].steps[1].id
    record.executions += [replace(it, pid=8) for it in record.executions if it.task_id == after]


def fail_a_successor_without_a_reason(record: RunRecord) -> None:
    """Let a task fail although what it waited for has completed."""
    task = record.steps[record.graphs[0].steps[1].id]
    task.status, task.error_code = FAILED, "predecessor-failed"


def lose_a_result(record: RunRecord) -> None:
    """Let a task not get a result."""
    record.steps[record.graphs[0].steps[1].id].payload["results"][0] = None


def run_a_failed_successor(record: RunRecord) -> None:
    """Let a task start although the one that it waits for has failed."""
    step = record.graphs[1].steps[1]
    record.executions.append(ExecutionEvent("started", 70, 7, step.id, 1, WORKER))


def complete_a_failed_successor(record: RunRecord) -> None:
    """Let a task complete although the one that it waits for has failed."""
    record.steps[record.graphs[1].steps[1].id].status = COMPLETED


def name_no_predecessor(record: RunRecord) -> None:
    """Let the error of a task not name what has failed."""
    record.steps[record.graphs[1].steps[1].id].error = "A task has failed"


def end_a_group_never(record: RunRecord) -> None:
    """Let all tasks of a group end, but not the group."""
    record.groups[0].response.ended_at = None


def submit_a_second_task_at_the_end(record: RunRecord) -> None:
    """Let a group submit its last task twice."""
    first = record.groups[0].summaries[0]
    record.groups[0].summaries.append(first.model_copy(update={"id": UUID(int=34)}))


def send_two_ends_of_a_group(record: RunRecord) -> None:
    """Let the end of a group be two events."""
    ends = [it for it in record.arrivals if it.event == "group.ended"]
    record.arrivals += [replace(end, message="msg_2") for end in ends]


def end_a_group_early(record: RunRecord) -> None:
    """Let the last task of a group start while another one runs."""
    record.executions[-1] = replace(record.executions[-1], at=41.2)
    record.executions[-2] = replace(record.executions[-2], at=41.1)


def delete_a_needed_task(record: RunRecord) -> None:
    """Let the last task of a group miss a result."""
    record.groups[0].summaries[0].result["members"].pop(0)


def lose_a_delivery(record: RunRecord) -> None:
    """Let an event arrive at all targets but one."""
    record.arrivals = [it for it in record.arrivals if (it.target, it.event) != ("hole", "group.ended")]


def reorder_deliveries(record: RunRecord) -> None:
    """Let the end of a group arrive before those of its tasks."""
    record.arrivals.sort(key=lambda it: it.event != "group.ended")


def lose_a_task(record: RunRecord) -> None:
    """Remove an accepted task."""
    record.tasks.pop()


def leave_a_task_running(record: RunRecord) -> None:
    """Let a task never end."""
    record.tasks[0].status = RUNNING


def duplicate_a_submission(record: RunRecord) -> None:
    """Let one submission create both tasks."""
    record.tasks[1].payload["number"] = 0


def end_twice(record: RunRecord) -> None:
    """Add a second terminal step to a history."""
    steps = record.histories[TASKS[0]].transitions
    steps.append(steps[-1])


def repeat_an_attempt_number(record: RunRecord) -> None:
    """Add a claim with the same attempt number."""
    steps = record.histories[TASKS[0]].transitions
    steps[1:1] = [steps[1], steps[0]]


def give_an_attempt_to_two_workers(record: RunRecord) -> None:
    """Let a second worker claim the same attempt."""
    record.requests.append(replace(record.requests[1], worker_id=OTHER_WORKER))


def accept_a_second_final_report(record: RunRecord) -> None:
    """Accept the report of a second attempt too."""
    record.requests.append(replace(report(0, 40, "completed"), attempt=2))


def swap_results(record: RunRecord) -> None:
    """Give a task the result of another task."""
    record.tasks[0].result = record.tasks[1].result


def accept_a_stale_report(record: RunRecord) -> None:
    """Let a newer attempt start before the report."""
    record.executions.append(ExecutionEvent("started", 22.5, 8, TASKS[0], 2, OTHER_WORKER))


def fail_without_a_reason(record: RunRecord) -> None:
    """Let a task fail although its submission requests no failure."""
    record.tasks[0].status = FAILED


def lose_the_worker(record: RunRecord, at: float) -> None:
    """Remove the worker of the first task."""
    record.histories[TASKS[0]].transitions[3:3] = [step(at, PENDING, 1, "worker-lost")]


def remove_a_live_worker(record: RunRecord) -> None:
    """Remove a worker right after an accepted heartbeat."""
    record.requests.append(WorkerRequest("heartbeat", 7, 22.9, WORKER, response_at=22.95, status_code=200))
    lose_the_worker(record, 23)


def remove_a_worker_after_a_pause(record: RunRecord) -> None:
    """Remove a worker right after the server works again."""
    record.faults.append(Fault("server paused", 15, 22, server_back_at=22))
    lose_the_worker(record, 23)


def overlap(record: RunRecord) -> None:
    """Let both tasks be claimed at once."""
    record.histories[TASKS[0]].transitions[-1] = step(35, COMPLETED)


def change_the_order(record: RunRecord) -> None:
    """Let the first task be submitted last."""
    record.submissions[0].sent_at, record.submissions[0].response_at = 12, 12.5


def remove_most_workers(record: RunRecord) -> None:
    """Remove five workers as soon as their timeout has passed."""
    for number in range(5):
        worker_id, task_id = str(UUID(int=100 + number)), UUID(int=200 + number)
        record.requests += [
            WorkerRequest("heartbeat", 7, 46.9, worker_id, response_at=47, status_code=200),
            WorkerRequest("register", 7, 40, worker_id, response_at=40.1, status_code=200),
        ]
        lost = step(50, PENDING, 1, "worker-lost").model_copy(update={"worker_id": UUID(worker_id)})
        record.histories[str(task_id)] = TaskHistory(id=task_id, transitions=[lost, step(51, COMPLETED)])
        fields = {"id": task_id, "payload": {"number": 10 + number}, "attempt": 1, "status": COMPLETED}
        record.tasks.append(record.tasks[0].model_copy(update=fields))


def report_deadlocks(record: RunRecord) -> None:
    """Let the database report deadlocks."""
    record.deadlocks = 3


def report_a_wrong_count(record: RunRecord) -> None:
    """Let a kept count differ from the tasks."""
    record.wrong_counts = ["job: job_id=…, queued=-1, scheduled=0"]


def test_no_rule_reports_a_correct_record() -> None:
    """Without a fault there is no violation."""
    assert check(correct_record()) == []


VIOLATIONS = [
    (lose_a_task, "no task is lost"),
    (leave_a_task_running, "no task is lost"),
    (duplicate_a_submission, "no task is duplicated"),
    (end_twice, "each task ends once"),
    (repeat_an_attempt_number, "each task ends once"),
    (give_an_attempt_to_two_workers, "each attempt has one worker"),
    (accept_a_second_final_report, "one final report is accepted"),
    (swap_results, "results belong to their attempt"),
    (accept_a_stale_report, "stale reports are rejected"),
    (fail_without_a_reason, "failures follow the retry policy"),
    (remove_a_live_worker, "live workers are kept"),
    (remove_a_worker_after_a_pause, "live workers are kept"),
    (remove_most_workers, "the mass expiry guard holds"),
    (overlap, "concurrency limits hold"),
    (change_the_order, "submission order is kept"),
    (report_deadlocks, "no deadlock occurs"),
    (report_a_wrong_count, "kept counts are right"),
    (end_a_group_never, "a group ends once"),
    (submit_a_second_task_at_the_end, "a group ends once"),
    (send_two_ends_of_a_group, "a group ends once"),
    (end_a_group_early, "a group ends after its last task"),
    (delete_a_needed_task, "retention keeps what is needed"),
    (lose_a_delivery, "each event arrives"),
    (reorder_deliveries, "events arrive in order"),
    (leave_a_step_waiting, "no step is lost"),
    (leave_an_end_unhandled, "no step is lost"),
    (delete_a_step, "no step is lost"),
    (refuse_a_step, "no step is lost"),
    (start_a_successor_early, "a successor starts after its predecessors"),
    (start_a_successor_of_a_running_task, "a successor starts after its predecessors"),
    (complete_a_successor_twice, "a successor runs once"),
    (start_a_successor_twice, "a successor runs once"),
    (fail_a_successor_without_a_reason, "a successor runs once"),
    (lose_a_result, "a successor runs once"),
    (run_a_failed_successor, "a failure reaches successors"),
    (complete_a_failed_successor, "a failure reaches successors"),
    (name_no_predecessor, "a failure reaches successors"),
]


def test_a_violation_is_reported(subtests: pytest.Subtests) -> None:
    """The checker reports the violated rule."""
    for change, rule in VIOLATIONS:
        with subtests.test(change=change, rule=rule):
            record = correct_record()
            change(record)
            assert rule in {violation.rule for violation in check(record)}


async def test_wrong_counts_of_a_database_are_read(database_url: str) -> None:
    """A room with a count and without a task is one."""
    database = open_database(database_url)
    await schema.upgrade(database)
    row = {"room_id": "lab", "job_id": UUID(int=1), "part": 0, "total": 1}
    row |= dict.fromkeys(("pending", "failed", "cancelled"), 0)
    assert await wrong_counts(database_url) == []
    await database.run_sync(lambda connection: connection.execute(insert(RoomCount.__table__), [row]))
    await database.close()
    [text] = await wrong_counts(database_url)
    assert text.startswith("room: room_id=lab")
    assert "total=-1" in text


def test_each_rule_has_a_violation_above() -> None:
    """A new rule needs a record that violates it."""
    assert {rule for _, rule in VIOLATIONS} == {rule.__name__.replace("_", " ") for rule in RULES}
