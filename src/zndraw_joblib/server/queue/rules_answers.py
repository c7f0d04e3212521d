"""Build models from valid values without pydantic's validation.

`construct` sets the attributes of a model that pydantic keeps, which its documentation does not name. Where
that gives another model than `model_construct`, it is `model_construct`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from pydantic import BaseModel

from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.process.ports import Page, Reaches, before_key, task_key, version_of
from zndraw_joblib.server.queue import rules_details
from zndraw_joblib.server.queue.sql_details import Detail
from zndraw_joblib.server.queue.sql_jobs import JobRecord
from zndraw_joblib.server.queue.sql_task_rows import WAITING, TaskRecord, TaskRow
from zndraw_joblib.wire.events import (
    Emission,
    JobsInvalidate,
    TaskAvailable,
    TaskStatusEvent,
    room_of,
    workers_of,
)
from zndraw_joblib.wire.masks import without_secrets
from zndraw_joblib.wire.messages import JobVersion, PaginatedResponse, TaskResponse
from zndraw_joblib.wire.names import INTERNAL
from zndraw_joblib.wire.progress import StoredResult
from zndraw_joblib.wire.statuses import TERMINAL, TaskStatus

Model = TypeVar("Model", bound=BaseModel)

_set = object.__setattr__


def fast_construct(model: type[Model], values: dict[str, Any], names: set[str]) -> Model:
    """Return what `public_construct` returns, ten times as fast, if pydantic is as expected."""
    instance = object.__new__(model)
    _set(instance, "__dict__", values)
    _set(instance, "__pydantic_fields_set__", names)
    _set(instance, "__pydantic_extra__", None)
    _set(instance, "__pydantic_private__", None)
    return instance


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
_FIELDS, _STATUS_FIELDS, _AVAILABLE_FIELDS = (
    set(model.model_fields) for model in (TaskResponse, TaskStatusEvent, TaskAvailable)
)
_DIGEST = re.compile("[0-9a-f]{64}")
# In the order of the response; those without a default are set for each task.
_DEFAULTS: dict[str, Any] = {
    name: None if field.is_required() else field.default for name, field in TaskResponse.model_fields.items()
}
# What rows have besides.
_INNER = {
    kind: [name for name in kind.__dataclass_fields__ if name not in _FIELDS]
    for kind in (TaskRow, TaskRecord)
}


def page_response(
    model: type[PaginatedResponse[Item]], items: list[Item], total: int, part: Page
) -> PaginatedResponse[Item]:
    """Return the response of a list."""
    return model.model_construct(items=items, total=total, limit=part.limit, offset=part.offset)


def job_versions(versions: Iterable[JobRecord], workers: Mapping[UUID, int]) -> list[JobVersion]:
    """Return the current version of a job, and those with workers or waiting tasks.

    `versions` are all queues of the job. Those for tasks with requirements count for their version.
    """
    listed: dict[int, JobVersion] = {}
    for queue in versions:
        number = version_of(queue.job_version)
        version = listed.setdefault(
            number, JobVersion(version=number, current=False, workers=0, pending=0, scheduled=0)
        )
        version.current = version.current or not queue.superseded
        version.workers = max(version.workers, workers.get(queue.id, 0))
        version.pending += queue.pending
        version.scheduled += queue.scheduled
    return [
        listed[number]
        for number in sorted(listed, reverse=True)
        if (version := listed[number]).current or version.workers or version.pending or version.scheduled
    ]


def task_response(  # noqa: PLR0913 - what answers have besides the row
    task: TaskRow,
    position: int | None = None,
    detail: Detail | None = None,
    stored: StoredResult | None = None,
    traceparent: str | None = None,
    unique_key: str | None = None,
    *,
    reveal: bool = False,
) -> TaskResponse:
    """Return a task as responses contain it: the fields that its row has, and those made of others.

    It has the `detail` of its attempt and its `stored` result, if they were read; the response to a claim
    has its `traceparent`, the response to a submit or a read its `unique_key`. Secret values of the payload
    are masked, except to `reveal` them to the worker of the task.
    """
    values = {**_DEFAULTS, **vars(task)}
    for name in _INNER[type(task)]:
        del values[name]
    values["attempts"], values["version"] = task.attempts, version_of(task.job_version)
    values["priority"] = -task.lane
    values["queue_position"] = position
    values["stored_result"] = stored
    if (group := getattr(task, "group_id", None)) is not None:
        values["group"] = group
    values["traceparent"], values["unique_key"] = traceparent, unique_key
    if not reveal and (masked := getattr(task, "masked", None)) is not None:
        values["payload"] = without_secrets(task.payload, masked)
        # The digest of a payload shows whether a guess of its secrets is right.
        if unique_key is not None and _DIGEST.fullmatch(unique_key):
            values["unique_key"] = None
    if task.status is not TaskStatus.PENDING:
        values["run_at"] = None
    elif task.run_at == WAITING:
        values["run_at"], values["waits"] = None, True
    if detail is not None:
        values["progress"], values["failure"] = (
            rules_details.progress_of(detail),
            rules_details.failure_of(detail),
        )
    return construct(TaskResponse, values, _FIELDS)


_NEW = {**_DEFAULTS, "status": TaskStatus.PENDING}


def new_response(**values: Any) -> TaskResponse:
    """Return a task that was just appended to its queue, without options. `values` are those that differ."""
    return construct(TaskResponse, {**_NEW, **values}, _FIELDS)


def changed(task: TaskResponse, **values: Any) -> TaskResponse:
    """Return a copy of a response with other values."""
    return construct(TaskResponse, vars(task) | values, _FIELDS)


def task_without_body(fields: dict[str, Any]) -> TaskResponse:
    """Return a task from the fields of an earlier response; its payload is None."""
    return changed(TaskResponse.model_validate({**fields, "payload": {}}), payload=None)


def publish_changed(tx: Transaction, tasks: Sequence[TaskResponse | TaskRow]) -> None:
    """Publish new statuses to the tasks' rooms after the commit; wake the waiters of ended tasks."""
    tx.emit_many(lambda reaches: [_status_emission(task) for task in tasks if _has_audience(task, reaches)])
    for task in tasks:
        if task.status in TERMINAL:
            tx.wake(task_key(task.id))


def publish_new(tx: Transaction, tasks: Sequence[TaskResponse]) -> None:
    """Publish new plain tasks after the commit: to their rooms and to the workers of their job."""

    def make(reaches: Reaches) -> list[Emission]:
        emissions = []
        for task in tasks:
            if _has_audience(task, reaches):
                emissions.append(_status_emission(task))
            if reaches(workers_of(task.job_name)):
                emissions.append(_available_emission(task))
        return emissions

    tx.emit_many(make)


def _has_audience(task: TaskResponse | TaskRow, reaches: Reaches) -> bool:
    """Return whether the status of a task may reach a client. A cancellation also goes to its worker."""
    return reaches(room_of(task.room_id)) or task.status is TaskStatus.CANCELLED


def publish_status(
    tx: Transaction,
    task: TaskRow,
    position: int | None = None,
    *,
    is_new: bool = True,
    before: tuple[UUID, ...] = (),
) -> None:
    """Publish a task's status to its room after the commit; `is_new`: this transaction has written it.

    If the task has ended, wake its waiters; if it is in its queue, announce it to the workers of its job,
    and wake claims of the workers `before` first.
    """
    tx.emit((task.id, task.status, task.attempt), partial(_status_emission, task, position), of_task=is_new)
    if task.status in TERMINAL:
        tx.wake(task_key(task.id))
    elif task.is_queued:
        publish_available(tx, task, before)


def publish_available(tx: Transaction, task: TaskRow, before: tuple[UUID, ...] = ()) -> None:
    """Announce a queued task after the commit: to the workers of its job, or to the servers if internal."""
    if task.job.room_id != INTERNAL:
        tx.emit((task.id, "available"), partial(_available_emission, task))
    tx.wake(before_key(task.job_key, before) if before else task.job_key, 1)


def publish_jobs_changed(tx: Transaction, room_id: str) -> None:
    """Publish to a room, after the commit, that its list of jobs or their workers has changed."""
    tx.emit(room_id, lambda: Emission(JobsInvalidate(), room_of(room_id)))


def _available_emission(task: TaskResponse | TaskRow) -> Emission:
    values = {"job_name": task.job_name, "room_id": task.room_id, "task_id": task.id}
    return Emission(construct(TaskAvailable, values, _AVAILABLE_FIELDS), workers_of(task.job_name))


def status_event(task: TaskResponse | TaskRow, position: int | None = None) -> TaskStatusEvent:
    """Return the event with the status of a task; the response to a submit has its position in the queue."""
    values = {
        "id": task.id,
        "name": task.job_name,
        "room_id": task.room_id,
        "status": task.status,
        "created_at": task.created_at,
        "started_at": task.started_at,
        "completed_at": task.completed_at,
        "queue_position": task.queue_position if isinstance(task, TaskResponse) else position,
        "worker_id": task.worker_id,
        "error": task.error,
    }
    return construct(TaskStatusEvent, values, _STATUS_FIELDS)


def _status_emission(task: TaskResponse | TaskRow, position: int | None = None) -> Emission:
    return Emission(status_event(task, position), room_of(task.room_id))
