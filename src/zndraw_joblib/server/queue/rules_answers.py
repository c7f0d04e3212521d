"""Build models from valid values without pydantic's validation.

`construct` sets the attributes of a model that pydantic keeps, which its documentation does not name. Where
that gives another model than `model_construct`, it is `model_construct`.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from pydantic import BaseModel

from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.process.ports import Page, job_key, task_key
from zndraw_joblib.server.queue import rules_details
from zndraw_joblib.server.queue.sql_claims import ClaimedTask
from zndraw_joblib.server.queue.sql_details import Detail
from zndraw_joblib.server.queue.sql_reports import ReportedTask
from zndraw_joblib.server.queue.sql_streams import TaskSummary
from zndraw_joblib.server.queue.sql_submit import Appended, NewTask
from zndraw_joblib.server.queue.sql_task_rows import TaskRecord
from zndraw_joblib.server.queue.sql_transitions import LostTask
from zndraw_joblib.wire.events import (
    Emission,
    JobsInvalidate,
    TaskAvailable,
    TaskStatusEvent,
    room_of,
    workers_of,
)
from zndraw_joblib.wire.messages import PaginatedResponse, TaskResponse, TaskUpdateRequest
from zndraw_joblib.wire.names import INTERNAL
from zndraw_joblib.wire.progress import StoredResult
from zndraw_joblib.wire.statuses import TERMINAL, TaskStatus

Model = TypeVar("Model", bound=BaseModel)

_set = object.__setattr__


def fast_construct(model: type[Model], values: dict[str, Any], names: set[str]) -> Model:
    """Return what `public_construct` returns, ten times as fast, if pydantic is as expected."""
    made = object.__new__(model)
    _set(made, "__dict__", values)
    _set(made, "__pydantic_fields_set__", names)
    _set(made, "__pydantic_extra__", None)
    _set(made, "__pydantic_private__", None)
    return made


def public_construct(model: type[Model], values: dict[str, Any], names: set[str]) -> Model:
    """Return a model of the values of all fields; `names` are the names of these fields."""
    return model.model_construct(names, **values)


class _Probe(BaseModel):
    number: int
    text: str | None = None


def is_fast_right() -> bool:
    """Return whether both functions make the same model with this version of pydantic."""
    values, names = {"number": 1, "text": None}, {"number", "text"}
    try:
        fast, public = (
            construct(_Probe, dict(values), set(names)) for construct in (fast_construct, public_construct)
        )
        return (
            fast == public
            and fast.model_fields_set == public.model_fields_set
            and repr(fast) == repr(public)
            and fast.model_dump_json() == public.model_dump_json()
            and fast.model_copy(update={"number": 2}) == public.model_copy(update={"number": 2})
        )
    except Exception:
        return False


# `names` may be shared by the models that it builds.
construct = fast_construct if is_fast_right() else public_construct


# Turn records into messages, and record the events and wake-ups that follow a commit.

Item = TypeVar("Item")
_FIELDS = set(TaskResponse.model_fields)
# In the order of the response; those without a default are set for each task.
_DEFAULTS = {
    name: None if field.is_required() else field.default for name, field in TaskResponse.model_fields.items()
}


def page_response(
    model: type[PaginatedResponse[Item]], items: list[Item], total: int, part: Page
) -> PaginatedResponse[Item]:
    """Return the response of a list."""
    return model.model_construct(items=items, total=total, limit=part.limit, offset=part.offset)


def task_response(
    task: TaskRecord,
    position: int | None = None,
    detail: Detail | None = None,
    stored: StoredResult | None = None,
    traceparent: str | None = None,
) -> TaskResponse:
    """Return a task as responses contain it.

    It has the `detail` of its attempt and its `stored` result, if they were read; the response to a claim
    has its `traceparent`.
    """
    values = {
        "id": task.id,
        "job_name": str(task.job),
        "room_id": task.room_id,
        "status": task.status,
        "created_at": task.created_at,
        "started_at": task.started_at,
        "completed_at": task.completed_at,
        "worker_id": task.worker_id,
        "error": task.error,
        "payload": task.payload,
        "queue_position": position,
        "attempt": task.attempt,
        "attempts": task.attempts,
        "created_by": task.created_by,
        "result": task.result,
        "error_code": task.error_code,
        "priority": -task.lane,
        "run_at": task.run_at if task.status is TaskStatus.PENDING else None,
        "expires_at": task.expires_at,
        "progress": detail and rules_details.progress_of(detail),
        "failure": detail and rules_details.failure_of(detail),
        "stored_result": stored,
        "traceparent": traceparent,
    }
    return construct(TaskResponse, values, _FIELDS)


def task_without_body(fields: dict[str, Any]) -> TaskResponse:
    """Return a task from the fields of an earlier response; its payload is None."""
    found = TaskResponse.model_validate({**fields, "payload": {}})
    return construct(TaskResponse, {**vars(found), "payload": None}, _FIELDS)


def new_task_responses(
    job: str,
    ids: Sequence[UUID],
    new: Sequence[NewTask],
    payloads: Sequence[dict[str, Any]],
    appended: Appended,
) -> list[TaskResponse]:
    """Return plain tasks that were appended to a queue."""
    common = {**_DEFAULTS, "job_name": job, "status": TaskStatus.PENDING, "created_at": appended.at}
    made = []
    for place, (task_id, row, payload) in enumerate(zip(ids, new, payloads, strict=True), appended.ahead + 1):
        fields = {
            **common,
            "id": task_id,
            "room_id": row.room_id,
            "payload": payload,
            "created_by": row.created_by,
            "queue_position": place,
        }
        made.append(construct(TaskResponse, fields, _FIELDS))
    return made


def claimed_response(
    task: ClaimedTask, status: TaskStatus, worker_id: UUID, started_at: datetime | None
) -> TaskResponse:
    """Return a task that was claimed from its queue, and perhaps started."""
    fields = {
        **_DEFAULTS,
        "id": task.id,
        "job_name": task.job_name,
        "room_id": task.room_id,
        "status": status,
        "created_at": task.created_at,
        "started_at": started_at,
        "worker_id": worker_id,
        "error": task.error,
        "payload": task.payload,
        "attempt": task.attempt,
        "attempts": task.attempt - task.unstarted,
        "created_by": task.created_by,
        "error_code": task.error_code,
        "priority": -task.lane,
        "traceparent": task.traceparent,
    }
    return construct(TaskResponse, fields, _FIELDS)


def reported_response(task: ReportedTask, report: TaskUpdateRequest) -> TaskResponse:
    """Return a task after the report of its start or its end. One step may be both."""
    is_end = report.status is TaskStatus.COMPLETED
    values = {
        **_DEFAULTS,
        "id": task.id,
        "job_name": task.job_name,
        "room_id": task.room_id,
        "status": report.status,
        "created_at": task.created_at,
        "started_at": task.started_at,
        "completed_at": task.completed_at if is_end else None,
        "worker_id": task.worker_id,
        "error": None if is_end else task.error,
        "payload": task.payload,
        "attempt": task.attempt,
        "attempts": task.attempt - task.unstarted,
        "created_by": task.created_by,
        "result": report.result if is_end else None,
        "error_code": None if is_end else task.error_code,
        "priority": -task.lane,
    }
    return construct(TaskResponse, values, _FIELDS)


def publish_changed(tx: Transaction, tasks: Sequence[TaskResponse]) -> None:
    """Publish new statuses to the tasks' rooms after the commit; wake the waiters of ended tasks."""
    tx.emit_many(lambda: list(map(_response_emission, tasks)))
    for task in tasks:
        if task.status in TERMINAL:
            tx.wake(task_key(task.id))


def publish_new(tx: Transaction, tasks: Sequence[TaskResponse]) -> None:
    """Publish new plain tasks after the commit: to their rooms and to the workers of their job."""

    def make() -> list[Emission]:
        found = []
        for task in tasks:
            found.append(_response_emission(task))
            available = TaskAvailable.model_construct(
                job_name=task.job_name, room_id=task.room_id, task_id=task.id
            )
            found.append(Emission(available, workers_of(task.job_name)))
        return found

    tx.emit_many(make)


def publish_status(
    tx: Transaction, task: TaskRecord, position: int | None = None, *, is_new: bool = True
) -> None:
    """Publish a task's status to its room after the commit; `is_new`: this transaction has written it.

    If the task has ended, wake its waiters; if it is in its queue, announce it to the workers of its job.
    """
    tx.emit((task.id, task.status, task.attempt), partial(_status_emission, task, position), of_task=is_new)
    if task.status in TERMINAL:
        tx.wake(task_key(task.id))
    elif task.is_queued:
        publish_available(tx, task)


def publish_lost(tx: Transaction, lost: Sequence[LostTask], names: Mapping[UUID, str], error: str) -> None:
    """Do what `publish_status` does for tasks that have failed with their workers."""
    tx.emit_many(lambda: [_lost_emission(task, names, error) for task in lost])
    for task in lost:
        tx.wake(task_key(task.id))


def publish_available(tx: Transaction, task: TaskRecord) -> None:
    """Announce a queued task after the commit: to the workers of its job, or to the servers if internal."""
    if task.job.room_id != INTERNAL:
        tx.emit((task.id, "available"), partial(_available_emission, task))
    tx.wake(job_key(task.job), 1)


def publish_jobs_changed(tx: Transaction, room_id: str) -> None:
    """Publish to a room, after the commit, that its list of jobs or their workers has changed."""
    tx.emit(room_id, lambda: Emission(JobsInvalidate(), room_of(room_id)))


def _available_emission(task: TaskRecord) -> Emission:
    event = TaskAvailable.model_construct(job_name=str(task.job), room_id=task.room_id, task_id=task.id)
    return Emission(event, workers_of(str(task.job)))


def status_event(
    task: TaskResponse | TaskRecord | TaskSummary, name: str, room_id: str, position: int | None
) -> TaskStatusEvent:
    """Return the event with the status of a task, which has this position in its queue."""
    return TaskStatusEvent.model_construct(
        id=task.id,
        name=name,
        room_id=room_id,
        status=task.status,
        created_at=task.created_at,
        started_at=task.started_at,
        completed_at=task.completed_at,
        queue_position=position,
        worker_id=task.worker_id,
        error=task.error,
    )


def _response_emission(task: TaskResponse) -> Emission:
    event = status_event(task, task.job_name, task.room_id, task.queue_position)
    return Emission(event, room_of(task.room_id))


def _status_emission(task: TaskRecord, position: int | None) -> Emission:
    return Emission(status_event(task, str(task.job), task.room_id, position), room_of(task.room_id))


def _lost_emission(task: LostTask, names: Mapping[UUID, str], error: str) -> Emission:
    event = TaskStatusEvent.model_construct(
        id=task.id,
        name=names[task.job_id],
        room_id=task.room_id,
        status=TaskStatus.FAILED,
        created_at=task.created_at,
        started_at=task.started_at,
        completed_at=task.completed_at,
        worker_id=task.worker_id,
        error=error,
    )
    return Emission(event, room_of(task.room_id))
