"""Submit tasks: which job is meant, from which room, and in which requests. Flows without I/O."""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple, Self
from uuid import UUID, uuid4, uuid5

from pydantic_core import to_jsonable_python

from zndraw_joblib.client import calls
from zndraw_joblib.client.calls import Call, Results, SubmittedTask, validated
from zndraw_joblib.client.connection import canonical_url
from zndraw_joblib.client.flows import Flow, all_jobs, find_job, send_once
from zndraw_joblib.client.older_servers import check_after, check_costs, check_requirements
from zndraw_joblib.client.retry import RetryRule, is_repeatable
from zndraw_joblib.jobs import codecs
from zndraw_joblib.jobs.extensions import category_of, check_job, check_task, job_name_of, job_room_of
from zndraw_joblib.jobs.failures import encode
from zndraw_joblib.jobs.outputs import EarlierTasks, Output, after_of
from zndraw_joblib.jobs.task_context import current_task
from zndraw_joblib.wire.messages import (
    MAX_BATCH,
    MAX_BATCH_BYTES,
    SubmitOptions,
    TaskResponse,
    TaskSubmitRequest,
    TaskToSubmit,
)
from zndraw_joblib.wire.names import (
    DEFAULT_ROOM,
    GLOBAL,
    JobName,
    format_key,
    missing_text,
    near_text,
    parse_job_name,
    parse_reference,
    task_room,
)
from zndraw_joblib.wire.problems import JobNotFound, ProblemException
from zndraw_joblib.wire.unique import Debounce, Unique
from zndraw_joblib.wire.webhooks import TaskWebhook

# Proxies often refuse bodies of more than a megabyte.
_CHUNK_BYTES = 1_000_000
# Values of an option that servers of earlier releases need not know.
_NOT_GIVEN: tuple[Any, ...] = (None, {}, 1)
_AFTER, _REQUIRES, _COST = b'"after":', b'"requires":', b'"cost":'


# The parent of a submit in the code of a job, by default.
RUNNING = "running"


class TaskOptions(SubmitOptions, total=False):
    """The options of a submit, see `NewTask`."""

    room: str | None
    job_room: str | None


def _with_near_name(option: str) -> str:
    """Return an unknown option, with the one that it begins or resembles."""
    return f"{option}{near_text(option, TaskOptions.__annotations__)}"


@dataclass(frozen=True, slots=True)
class NewTask:
    """A task to submit; its fields are the arguments of `submit`.

    `job` is an instance of an extension, which is its own payload, the class of one, or the name of a job:
    the full name (``room:category:name``), ``category:name`` or ``name``. The client looks up the latter two
    in `job_room`, by default the task's `room`: it finds the job of the room, or that of ``@global``. The
    task's `room` is by default that of the client. Without either, it is the job's own room, or ``default``
    for a job of ``@global``. The other options are those of `TaskSubmitRequest`.

    `parent` is by default the task that runs here (``"running"``), if the new one goes to its server and
    room; with None it has none.

    `after` is what it waits for: a task or a group, a list of them, or an `After`, which also says what
    happens if they do not complete. A task is a handle, an id, or a `NewTask` that the same `submit_many`
    with `atomic` submits before. The payload may have their results: `Output`, or `output` of a handle.
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
    unique: Unique | Mapping[str, Any] | None = None
    debounce: Debounce | Mapping[str, Any] | None = None
    tags: Sequence[str] | None = None
    parent: UUID | str | None = RUNNING
    group: UUID | None = None
    webhook: TaskWebhook | Mapping[str, Any] | str | None = None
    after: Any = None
    requires: Mapping[str, Any] | None = None
    cost: int | None = None
    prefer: Mapping[str, Any] | None = None

    def output(self, pointer: str = "") -> Any:
        """Return what stands for the task's result, or a part of it, in the payload of a later task.

        Submit both with one `submit_many` with `atomic`.
        """
        return Output(self, pointer)

    @classmethod
    def of(cls, job: Any, payload: Mapping[str, Any] | None, options: TaskOptions) -> Self:
        """Return the task of a call. Raises TypeError for an unknown option, with the known ones."""
        if isinstance(job, cls):
            if payload is not None or options:
                raise TypeError(
                    "submit() got a NewTask, which has its payload and options: remove the others"
                )
            return job
        unknown = options.keys() - TaskOptions.__annotations__
        if unknown:
            names = ", ".join(TaskOptions.__annotations__)
            raise TypeError(
                f"unknown options of a submit: {', '.join(map(_with_near_name, sorted(unknown)))}. "
                f"Known are: {names}. "
                "Pass the job's parameters as one dict: submit(job, {'width': 3})"
            )
        return cls(job, payload, **options)

    def options(self, running: str | None = None) -> dict[str, Any]:
        """Return the schedule, the priority and the other options that are given, without `after`.

        `running` is the id of the task that runs here.
        """
        options = {name: getattr(self, name) for name in SubmitOptions.__annotations__ if name != "after"}
        if self.parent == RUNNING:
            options["parent"] = running
        if isinstance(self.webhook, str):
            options["webhook"] = {"url": self.webhook}
        return {name: value for name, value in options.items() if value is not None}


class Chunk(NamedTuple):
    """The body of one request, how many tasks it has, and the indexes of those that wait for others.

    `required` are the indexes of those that require labels of their worker, `costly` of those with a cost.
    """

    body: bytes
    tasks: int
    waiting: Sequence[int] = ()
    required: Sequence[int] = ()
    costly: Sequence[int] = ()


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
    waiting, required, costly = (
        [
            index
            for index, body in enumerate(bodies)
            if text in body and json.loads(body).get(name) not in _NOT_GIVEN
        ]
        for name, text in (("after", _AFTER), ("requires", _REQUIRES), ("cost", _COST))
    )
    return Chunk(
        b'{"tasks":[' + b",".join(bodies) + b"]" + options + b"}", len(bodies), waiting, required, costly
    )


_NAME_SECONDS = 60.0
# Each request of one call has a key of its own, made from the key of the call.
_CHUNKS = UUID("6f3d1c1e-6c1c-4f0e-9d7d-3a2b8f1e5c47")


class Submitted(NamedTuple):
    """A submitted task: its id, whether it is a duplicate, and its room, None if it is not known."""

    id: UUID
    is_duplicate: bool
    room: str | None

    @classmethod
    def of(cls, result: SubmittedTask | ProblemException, room: str | None) -> "Submitted | ProblemException":
        """Return the result of a submit from a room."""
        if isinstance(result, ProblemException):
            return result
        return cls(result.id, result.is_duplicate, room)


class Submits:
    """Submits tasks for one client, from `room` if a call names none.

    `url()` returns the address of its server. `room_of` returns the room of the job of a class, None if it
    has to be looked up. A looked-up name is kept for a minute.
    """

    def __init__(
        self,
        rule: RetryRule,
        room: str | None = None,
        room_of: Callable[[type[Any]], str | None] = lambda cls: None,
        url: Callable[[], str] = str,
    ) -> None:
        self.rule = rule
        self._url = url
        self.room = room
        self._room_of = room_of
        # Whether its server is known to keep what tasks require, and their costs.
        self._keeps_requirements = self._keeps_costs = False
        self._found: dict[tuple[str, str | None, str], tuple[JobName, float]] = {}

    def submit(self, task: NewTask, key: str | None) -> Flow[TaskResponse]:
        """Submit a task, and return it. Raises `JobNotFound` with the nearest names."""
        name, payload = yield from self.name_and_payload(task)
        room = task_room(task.room or self.room, name)
        options = task.options(self._running_in(room))
        if after := after_of(task.after, payload, EarlierTasks()):
            options["after"] = after
        make = partial(calls.submit, room, str(name), payload, **options)
        try:
            response = yield from send_once(f"Submitting {name}", make, key, self.rule)
        except JobNotFound as problem:
            self._found.clear()
            seen = [parse_job_name(job.full_name) for job in (yield from all_jobs(room, self.rule))]
            raise JobNotFound(missing_text(str(problem), str(name), room, seen)) from problem
        if after:
            submitted = SubmittedTask(response.id, response.duplicate is True, response.waits is True)
            yield from check_after([submitted], [0], self.rule)
        if task.requires and response.requires is None:
            submitted = SubmittedTask(response.id, response.duplicate is True)
            yield from check_requirements([submitted], [0], self.rule)
        if (task.cost or 1) > 1 and response.cost is None:
            submitted = SubmittedTask(response.id, response.duplicate is True)
            yield from check_costs([submitted], [0], self.rule)
        return response

    def submit_many(
        self, tasks: Iterable[Any], room: str | None, key: str | None, *, atomic: bool
    ) -> Flow[list[Submitted | ProblemException]]:
        """Submit tasks in order; return for each its id and its room, or its problem."""
        bodies: list[bytes] = []
        rooms: list[str] = []
        earlier = EarlierTasks(is_atomic=atomic)
        for index, task in enumerate(tasks):
            body, task_room_id = yield from self._body_of(task, room, index, earlier)
            earlier.add(task)
            bodies.append(body)
            rooms.append(task_room_id)
        if not bodies:
            return []
        results: Results = []
        call_key = checked_key(key)
        for number, chunk in enumerate([one_chunk(bodies)] if atomic else chunks(bodies)):
            results += yield from self.submit_chunk(chunk, call_key, number, len(results))
        return [Submitted.of(result, room_id) for result, room_id in zip(results, rooms, strict=True)]

    def submit_chunk(self, chunk: Chunk, key: str, number: int, submitted: int) -> Flow[Results]:
        """Submit the tasks of a chunk, after `submitted` others; repeat it while the server is too busy."""
        results: Results = []

        def check(response: Results) -> None:
            results[:] = response
            for result in response:
                if isinstance(result, ProblemException) and is_repeatable(result):
                    raise result

        def make(_: str) -> Call[Results]:
            return calls.submit_many(chunk.body, str(uuid5(_CHUNKS, f"{key} {number}")), chunk.tasks, check)

        try:
            answered = yield from send_once(f"Submitting {chunk.tasks:,} tasks", make, key, self.rule)
            yield from self._check_options(chunk, answered)
            return answered
        except Exception as error:
            if any(error is result for result in results):
                return results
            if submitted:
                error.add_note(f"{submitted:,} tasks were sent before. {self.rule.how_to_repeat(key)}")
            raise

    def _check_options(self, chunk: Chunk, results: Results) -> Flow[None]:
        """Raise `OptionIgnored` if the server does not know options of the tasks."""
        yield from check_after(results, chunk.waiting, self.rule)
        if chunk.required and not self._keeps_requirements:
            self._keeps_requirements = yield from check_requirements(results, chunk.required, self.rule)
        if chunk.costly and not self._keeps_costs:
            self._keeps_costs = yield from check_costs(results, chunk.costly, self.rule)

    def find(self, name: str, category: str | None, room: str) -> Flow[JobName]:
        """Return the job that a room means by a name, as it was found up to a minute ago."""
        job, until = self._found.get((name, category, room), (None, 0.0))
        if job is None or time.monotonic() > until:
            job = yield from find_job(name, category, room, self.rule)
            self._found[name, category, room] = job, time.monotonic() + _NAME_SECONDS
        return job

    def _body_of(
        self, task: Any, room: str | None, index: int, earlier: EarlierTasks
    ) -> Flow[tuple[bytes, str]]:
        new = task if isinstance(task, NewTask) else NewTask(task)
        try:
            name, payload = yield from self.name_and_payload(new, room)
            room_id = task_room(new.room or room or self.room, name)
            options = new.options(self._running_in(room_id))
            if after := after_of(new.after, payload, earlier):
                options["after"] = after
            return task_body(room_id, str(name), payload, options), room_id
        except TypeError as error:
            raise TypeError(f"tasks.{index}: {error}") from error
        except (ValueError, ProblemException) as error:
            raise ValueError(f"tasks.{index}: {error}") from error

    def _running_in(self, room: str) -> str | None:
        """Return the task that runs here, if it is of this server and room."""
        task = current_task()
        if task is None or task.room_id != room or not task.server_url:
            return None
        return task.task_id if canonical_url(task.server_url) == canonical_url(self._url()) else None

    def job_name(self, job: Any) -> JobName:
        """Return the full name of a job: a text, or a class in its own room. Raises TypeError."""
        if isinstance(job, str):
            return parse_job_name(job)
        check_job(job)
        return job_name_of(job, self._room_of(job) or job_room_of(job))

    def name_and_payload(self, task: NewTask, room: str | None = None) -> Flow[tuple[JobName, Any]]:
        """Return the name of a task's job, which may be looked up, and its payload."""
        validated(TaskSubmitRequest, task.options())
        job, payload = task.job, task.payload
        searched = task.job_room or task.room or room or self.room or DEFAULT_ROOM
        if isinstance(job, str):
            reference = parse_reference(job)
            if not isinstance(reference, JobName):
                category, short = reference
                reference = yield from self.find(short, category, searched)
            return reference, codecs.plain_payload(payload)
        if isinstance(job, type) and payload is not None:
            check_job(job)
            cls, content = job, codecs.plain_payload(payload)
        else:
            cls, content = type(job), self._own_payload(job, payload)
        job_room = task.job_room or self._room_of(cls) or job_room_of(cls)
        if task.job_room or job_room != GLOBAL:
            return job_name_of(cls, job_room), content
        return (yield from self.find(cls.__name__, category_of(cls), searched)), content

    @staticmethod
    def _own_payload(job: Any, payload: Mapping[str, Any] | None) -> Any:
        """Return the payload of an instance, which has to be its only one."""
        check_task(job)
        if payload is not None:
            raise TypeError(
                f"submit() got a payload and an instance of {type(job).__name__}, which is its own payload: "
                "remove one of them"
            )
        return codecs.payload_of(job)


def checked_key(key: str | None) -> str:
    """Return the key of a call, by default a new one. Raises `InvalidIdempotencyKey`."""
    checked = str(uuid4()) if key is None else key
    format_key(checked)
    return checked
