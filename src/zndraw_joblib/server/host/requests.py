"""Turn the arguments of a host's call into the requests that the REST API has."""

import hashlib
import inspect
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, TypedDict
from uuid import UUID

from pydantic import ValidationError
from pydantic_core import to_json

from zndraw_joblib.contract import codecs
from zndraw_joblib.contract.batches import TaskToSubmit
from zndraw_joblib.contract.extensions import job_name_of, job_room_of
from zndraw_joblib.contract.idempotency import format_key
from zndraw_joblib.contract.names import HOST, JobName, parse_job_name, task_room, validate_room_id
from zndraw_joblib.contract.problems import InvalidRequest
from zndraw_joblib.server.http.host_identity import NotABoolean, is_superuser
from zndraw_joblib.server.ports import Identity, RequestKey
from zndraw_joblib.server.problem_responses import invalid_part
from zndraw_joblib.server.service import rules

# The caller of a host's calls without an identity: no user of a request can have its id.
HOST_IDENTITY = Identity(HOST, is_superuser=True)


class SubmitOptions(TypedDict, total=False):
    """The options of a submit that `TaskSubmitRequest` explains. Times are seconds or aware datetimes."""

    priority: int | None
    run_at: datetime | None
    delay_seconds: float | None
    expires_in_seconds: float | None
    max_attempts: int | None


def identity_of(user: Any) -> Identity:
    """Return the identity of a host's user, any object with `id` and `is_superuser`; None is the host."""
    if user is None:
        return HOST_IDENTITY
    try:
        return Identity(str(user.id), is_superuser(user))
    except NotABoolean as error:
        raise TypeError(f"identity: {error}") from error
    except AttributeError as error:
        raise TypeError(
            f"identity: {type(user).__name__} has no attribute {error.name!r}. Pass your user object, "
            "zndraw_joblib.Identity(id, is_superuser), or nothing to act as the host"
        ) from error


def new_task(
    job: Any,
    payload: Mapping[str, Any] | None,
    room: str | None,
    job_room: str | None,
    options: Mapping[str, Any],
) -> tuple[JobName, TaskToSubmit]:
    """Return a task to submit, with the name of its job. Raises the problems of a REST request."""
    if isinstance(job, TaskToSubmit):
        validate_room_id(job.room_id)
        rules.check_size("payload", job.payload)
        return parse_job_name(job.job_name), job
    try:
        name, content = _name_and_payload(job, payload, job_room)
    except ValueError as error:  # it is not JSON
        raise InvalidRequest(str(error)) from error
    unknown = options.keys() - SubmitOptions.__annotations__
    if unknown:
        known = ", ".join(SubmitOptions.__annotations__)
        raise TypeError(f"unknown options of a submit: {', '.join(sorted(unknown))}. Known are: {known}")
    given = {field: value for field, value in options.items() if value is not None}
    try:
        fields = {"room_id": validate_room_id(task_room(room, name)), "job_name": str(name), **given}
        task = TaskToSubmit.model_validate({**fields, "payload": content})
    except ValidationError as error:
        raise invalid_part(error) from error
    rules.check_size("payload", task.payload)
    return name, task


def _name_and_payload(
    job: Any, payload: Mapping[str, Any] | None, job_room: str | None
) -> tuple[JobName, Any]:
    if isinstance(job, str):
        if job_room is not None:
            raise TypeError(f"job_room: the full name {job!r} has the room of its job; leave job_room out")
        return parse_job_name(job), codecs.plain_payload(payload)
    cls = job if inspect.isclass(job) else type(job)
    if getattr(cls, "category", None) is None:
        raise TypeError(
            f"job: {job!r:.100} is neither a full name room:category:name, nor an Extension or a function "
            "with @job, nor an instance of one"
        )
    name = job_name_of(cls, job_room or job_room_of(cls))
    if cls is job:
        return name, codecs.plain_payload(payload)
    if payload is not None:
        raise TypeError(f"payload: the instance of {cls.__name__} is its own payload; leave payload out")
    return name, codecs.payload_of(job)


def request_key(
    kind: str, caller: Identity, key: str | None, content: Any, keep_hours: float
) -> RequestKey | None:
    """Return the key of a host's call. Keys of REST requests are others. Raises `InvalidIdempotencyKey`."""
    if key is None:
        return None
    format_key(key)
    fingerprint = kind.encode() + b"\n" + to_json(content)
    return RequestKey(
        _digest(f"{caller.id}\nhost\n{key}".encode()), _digest(fingerprint), timedelta(hours=keep_hours)
    )


def _digest(content: bytes) -> UUID:
    return UUID(bytes=hashlib.sha256(content).digest()[:16])
