"""Tasks to submit in one call, and the requests for them."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from typing import Any, NamedTuple, Self, TypedDict

from pydantic_core import to_jsonable_python

from zndraw_joblib.client.calls import validated
from zndraw_joblib.contract.batches import MAX_BATCH_BYTES, TaskToSubmit
from zndraw_joblib.contract.messages import MAX_BATCH
from zndraw_joblib.contract.outcomes import encode

# Proxies often refuse bodies of more than a megabyte.
_CHUNK_BYTES = 1_000_000
_OPTIONS = ("priority", "run_at", "delay_seconds", "expires_in_seconds", "max_attempts")


class SubmitOptions(TypedDict, total=False):
    """The options of a submit, see `NewTask`."""

    room: str | None
    job_room: str | None
    priority: int | None
    run_at: datetime | None
    delay_seconds: float | None
    expires_in_seconds: float | None
    max_attempts: int | None


@dataclass(frozen=True, slots=True)
class NewTask:
    """A task to submit; its fields are the arguments of `submit`.

    `job` is an instance of an extension, which is its own payload, or the name of a job: the full name
    (``room:category:name``), or its last part. The client looks up a job without a full name in `job_room`,
    by default the task's `room`: it finds the job of the room, or that of ``@global``. The task's `room` is
    by default that of the client. Without either, it is the job's own room, or ``default`` for a job of
    ``@global``. The other options are those of `TaskSubmitRequest`.
    """

    job: Any
    payload: Mapping[str, Any] | None = None
    _: KW_ONLY
    room: str | None = None
    job_room: str | None = None
    priority: int | None = None
    run_at: datetime | None = None
    delay_seconds: float | None = None
    expires_in_seconds: float | None = None
    max_attempts: int | None = None

    @classmethod
    def of(cls, job: Any, payload: Mapping[str, Any] | None, options: SubmitOptions) -> Self:
        """Return the task of a call. Raises TypeError for an unknown option, with the known ones."""
        unknown = options.keys() - SubmitOptions.__annotations__
        if unknown:
            known = ", ".join(SubmitOptions.__annotations__)
            raise TypeError(
                f"unknown options of a submit: {', '.join(sorted(unknown))}. Known are: {known}. "
                "Pass the job's parameters as one dict: submit(job, {'width': 3})"
            )
        return cls(job, payload, **options)

    def options(self) -> dict[str, Any]:
        """Return the schedule, the priority and the other options that are given."""
        given = {name: getattr(self, name) for name in _OPTIONS}
        return {name: value for name, value in given.items() if value is not None}


class Chunk(NamedTuple):
    """The body of one request, and how many tasks it has."""

    body: bytes
    tasks: int


def task_body(room: str, job: str, payload: Any, options: Mapping[str, Any]) -> bytes:
    """Return a task as JSON. Raises ValueError that names each invalid field."""
    task = validated(TaskToSubmit, {"room_id": room, "job_name": job, "payload": payload, **options})
    body = encode(to_jsonable_python(task.model_dump(exclude_unset=True)))
    if len(body) > MAX_BATCH_BYTES - len(_chunk([]).body):
        raise ValueError(
            f"payload: the task has {len(body):,} bytes; a request has at most {MAX_BATCH_BYTES:,}"
        )
    return body


def chunks(bodies: Iterable[bytes]) -> Iterator[Chunk]:
    """Return requests of up to 1,000 tasks and about a megabyte; a larger task has a request of its own.

    The same tasks are always split at the same places.
    """
    pending: list[bytes] = []
    size = 0
    for body in bodies:
        if pending and (len(pending) == MAX_BATCH or size + len(body) > _CHUNK_BYTES):
            yield _chunk(pending)
            pending, size = [], 0
        pending.append(body)
        size += len(body) + 1
    if pending:
        yield _chunk(pending)


def one_chunk(bodies: list[bytes]) -> Chunk:
    """Return one request that submits all tasks or none. Raises ValueError if it is too large."""
    chunk = _chunk(bodies, b',"atomic":true')
    if chunk.tasks > MAX_BATCH or len(chunk.body) > MAX_BATCH_BYTES:
        raise ValueError(
            f"atomic: {chunk.tasks:,} tasks with {len(chunk.body):,} bytes do not fit into one request of "
            f"{MAX_BATCH:,} tasks and {MAX_BATCH_BYTES:,} bytes; submit fewer, or without atomic"
        )
    return chunk


def _chunk(bodies: list[bytes], options: bytes = b"") -> Chunk:
    return Chunk(b'{"tasks":[' + b",".join(bodies) + b"]" + options + b"}", len(bodies))
