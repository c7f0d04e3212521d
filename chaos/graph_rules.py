"""The guarantees of tasks that wait for others, checked in the record of a run."""

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

from chaos.group_rules import Findings
from chaos.records import GraphRecord, RunRecord, StepRecord
from zndraw_joblib.wire.problems import PredecessorFailed
from zndraw_joblib.wire.statuses import TERMINAL, TaskStatus
from zndraw_joblib.wire.successors import OnFailure


def no_step_is_lost(record: RunRecord) -> Findings:
    """Each accepted task of a graph has ended; no end of a predecessor is left to be handled."""
    for graph in record.graphs:
        if graph.refusal:
            yield "-", f"a submit of graph {graph.number} was refused: {graph.refusal}"
        for step in graph.steps:
            task = record.steps.get(step.id)
            if task is None and step.is_kept:
                yield step.id, f"was accepted, but does not exist (graph {graph.number})"
            elif task is not None and task.status not in TERMINAL:
                waits = ", and waits for others" if task.waits else ""
                yield step.id, f"is still {task.status}{waits} (graph {graph.number})"
    if record.waves:
        yield "-", f"{record.waves} ends of predecessors were not handled"


def a_successor_starts_after_its_predecessors(record: RunRecord) -> Findings:
    """A task starts after the attempts that ended its predecessors have finished."""
    finished = {(it.task_id, it.attempt): it.at for it in record.executions if it.event == "finished"}
    started = _first_starts(record)
    ends = _ending_attempts(record)
    for graph in record.graphs:
        for step in graph.steps:
            at = started.get(step.id, math.inf)
            for before in step.after:
                task = record.steps.get(before)
                if task is not None and task.status not in TERMINAL and at < math.inf:
                    yield step.id, f"started, but task {before}, which it waits for, is {task.status}"
                elif before in ends and finished.get((before, ends[before]), math.inf) > at:
                    yield step.id, f"started before attempt {ends[before]} of task {before} finished"


def a_successor_runs_once(record: RunRecord) -> Findings:
    """A task whose predecessors completed, or that runs anyway, completes once, with their results."""
    completed = Counter(
        task_id
        for task_id, _, _ in {
            (it.task_id, it.attempt, it.worker_id)
            for it in record.final_reports
            if it.status == TaskStatus.COMPLETED
        }
    )
    started = Counter((it.task_id, it.attempt) for it in record.executions if it.event == "started")
    twice = {task_id for (task_id, _), times in started.items() if times > 1}
    for graph in record.graphs:
        ends = _expected(graph)
        for step in graph.steps:
            if completed[step.id] > 1 or step.id in twice:
                yield step.id, f"ran more than once: {completed[step.id]} attempts completed it"
            task = record.steps.get(step.id)
            if task is None or ends[step.id] != TaskStatus.COMPLETED:
                continue
            results = [_task_id(result) for result in task.payload["results"]]
            if task.status in TERMINAL and task.status is not TaskStatus.COMPLETED:
                yield step.id, f"is {task.status} ({task.error_code}): {task.error}"
            elif task.status is TaskStatus.COMPLETED and results != list(step.fills):
                yield step.id, f"got the results of {results}; it waits for {step.fills}"


def a_failure_reaches_successors(record: RunRecord) -> Findings:
    """With the policy `fail` a task whose predecessor did not complete never runs, and fails with a code."""
    started = _first_starts(record)
    for graph in record.graphs:
        ends = _expected(graph)
        for step in graph.steps:
            task = record.steps.get(step.id)
            if task is None or task.status not in TERMINAL or ends[step.id] == TaskStatus.COMPLETED:
                continue
            code = "error" if ends[step.id] == TaskStatus.FAILED else ends[step.id]
            if (task.status, task.error_code) != (TaskStatus.FAILED, code):
                yield step.id, f"is {task.status} ({task.error_code}), but has to fail with the code {code}"
            if ends[step.id] == TaskStatus.FAILED:
                continue
            failed = [before for before in step.after if ends[before] != TaskStatus.COMPLETED]
            if not any(before in str(task.error) for before in failed):
                yield step.id, f"names no predecessor that failed: {task.error}"
            if step.id in started:
                yield step.id, "was started, but a predecessor failed"


def _first_starts(record: RunRecord) -> dict[str, float]:
    starts: dict[str, float] = {}
    for it in record.executions:
        if it.event == "started":
            starts[it.task_id] = min(it.at, starts.get(it.task_id, math.inf))
    return starts


def _ending_attempts(record: RunRecord) -> dict[str, int]:
    """Return the attempts that ended tasks: by reports, because a lost attempt may go on without a server.

    The attempts of deleted tasks are in the results that their successors got.
    """
    reported = {(it.task_id, it.attempt) for it in record.final_reports}
    ends: dict[str, int] = {}
    for task_id, task in record.steps.items():
        if task.status is TaskStatus.COMPLETED or (task_id, task.attempt) in reported:
            ends[task_id] = task.attempt
        for result in task.payload["results"]:
            if (before := _task_id(result)) is not None and before not in record.steps:
                ends[before] = result["attempt"]
    return ends


def _task_id(result: Any) -> str | None:
    """Return the task that a result in a payload is of; None if the payload has none in its place."""
    return result.get("task_id") if isinstance(result, dict) else None


def _expected(graph: GraphRecord) -> dict[str, str]:
    """Return how the tasks of a graph have to end: `completed`, `failed`, or with the code of successors."""
    ends: dict[str, str] = {}

    def end_of(step: StepRecord) -> str:
        is_failed = any(ends[before] != TaskStatus.COMPLETED for before in step.after)
        if is_failed and graph.on_failure is OnFailure.FAIL:
            return PredecessorFailed.problem_id()
        # What holds others up is retried at the end of the run, and completes.
        fails = step.fails and graph.on_failure is not OnFailure.HOLD
        return TaskStatus.FAILED if fails else TaskStatus.COMPLETED

    for step in graph.steps:
        ends[step.id] = end_of(step)
    return ends


GRAPH_RULES: tuple[Callable[[RunRecord], Findings], ...] = (
    no_step_is_lost,
    a_successor_starts_after_its_predecessors,
    a_successor_runs_once,
    a_failure_reaches_successors,
)
