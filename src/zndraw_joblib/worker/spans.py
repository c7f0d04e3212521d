"""Spans of a worker, if the program has set up OpenTelemetry: of claims that got tasks, and of runs."""

import logging
from collections.abc import Sequence
from uuid import UUID

from zndraw_joblib.contract.messages import TaskResponse
from zndraw_joblib.contract.traces import RunSpans, TaskSpan, start_run, start_span
from zndraw_joblib.worker.execution import Outcome
from zndraw_joblib.worker.tasks import ClaimedTask

log = logging.getLogger(__name__)


def record_claim(worker_id: UUID, tasks: Sequence[TaskResponse], sent_at: float) -> None:
    """Record the span of a claim that got tasks, linked to their submits. `sent_at` is a wall-clock time."""
    about = {
        "messaging.operation.type": "receive",
        "messaging.operation.name": "claim",
        "messaging.client.id": str(worker_id),
        "messaging.batch.message_count": len(tasks),
    }
    given = [task.traceparent for task in tasks]
    span = start_span("claim", "CONSUMER", about, given=given, started_ns=int(sent_at * 1e9))
    if span is not None:
        span.end()


def start_task_span(task: ClaimedTask, how: RunSpans) -> TaskSpan | None:
    """Start the span of a task's run. A failure is logged: the task runs without a span."""
    worker, context = str(task.worker_id), task.traceparent
    try:
        return start_run(task.job_name, task.task_id, worker, task.attempt, traceparent=context, how=how)
    except Exception:
        log.exception("Task %s runs without a span: the tracer provider of the program failed", task.task_id)
        return None


def end_task_span(span: TaskSpan | None, task: ClaimedTask, outcome: Outcome) -> None:
    """End the span of a task's run with its outcome."""
    if span is not None:
        error = None if task.cancelled.is_set() else outcome.error
        span.end_run(error, outcome.failure, is_cancelled=task.cancelled.is_set())
