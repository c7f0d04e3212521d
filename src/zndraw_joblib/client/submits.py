"""Submit tasks: which job is meant, from which room, and in which requests. Flows without I/O."""

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID, uuid4, uuid5

from zndraw_joblib.client import operations
from zndraw_joblib.client.batches import Chunk, NewTask, chunks, one_chunk, task_body
from zndraw_joblib.client.calls import Call, validated
from zndraw_joblib.client.flows import Flow, send_once
from zndraw_joblib.client.lookup import all_jobs, find_job
from zndraw_joblib.client.operations import Results
from zndraw_joblib.client.retry import RetryRule, is_repeatable
from zndraw_joblib.contract import codecs
from zndraw_joblib.contract.extensions import category_of, check_task, job_name_of, job_room_of
from zndraw_joblib.contract.idempotency import format_key
from zndraw_joblib.contract.messages import TaskResponse, TaskSubmitRequest
from zndraw_joblib.contract.names import DEFAULT_ROOM, GLOBAL, JobName, parse_job_name, task_room
from zndraw_joblib.contract.near_names import missing_text
from zndraw_joblib.contract.problems import JobNotFound, ProblemException

_NAME_SECONDS = 60.0
# Each request of one call has a key of its own, made from the key of the call.
_CHUNKS = UUID("6f3d1c1e-6c1c-4f0e-9d7d-3a2b8f1e5c47")


class Submitted(NamedTuple):
    """The id of a submitted task, and its room, None if it is not known."""

    id: UUID
    room: str | None

    @classmethod
    def of(cls, result: UUID | ProblemException, room: str | None) -> "Submitted | ProblemException":
        """Return the result of a submit from a room."""
        return result if isinstance(result, ProblemException) else cls(result, room)


class Submits:
    """Submits tasks for one client, from `room` if a call names none.

    `room_of` returns the room whose job a class is, None if it has to be looked up. A name that was looked up
    is kept for a minute.
    """

    def __init__(
        self,
        rule: RetryRule,
        room: str | None = None,
        room_of: Callable[[type[Any]], str | None] = lambda cls: None,
    ) -> None:
        self.rule = rule
        self.room = room
        self._room_of = room_of
        self._found: dict[tuple[str, str | None, str], tuple[JobName, float]] = {}

    def submit(self, task: NewTask, key: str | None) -> Flow[TaskResponse]:
        """Submit a task, and return it. Raises `JobNotFound` with the nearest names."""
        name, payload = yield from self._name_and_payload(task)
        room = task_room(task.room or self.room, name)
        make = partial(operations.submit, room, str(name), payload, **task.options())
        try:
            return (yield from send_once(f"Submitting {name}", make, key, self.rule))
        except JobNotFound as problem:
            self._found.clear()
            seen = [parse_job_name(job.full_name) for job in (yield from all_jobs(room, self.rule))]
            raise JobNotFound(missing_text(str(problem), str(name), room, seen)) from problem

    def submit_many(
        self, tasks: Iterable[Any], room: str | None, key: str | None, *, atomic: bool
    ) -> Flow[list[Submitted | ProblemException]]:
        """Submit tasks in order; return for each its id and its room, or its problem."""
        bodies: list[bytes] = []
        rooms: list[str] = []
        for index, task in enumerate(tasks):
            body, found = yield from self._body_of(task, room, index)
            bodies.append(body)
            rooms.append(found)
        if not bodies:
            return []
        results: Results = []
        used = checked_key(key)
        for number, chunk in enumerate([one_chunk(bodies)] if atomic else chunks(bodies)):
            results += yield from self.submit_chunk(chunk, used, number, len(results))
        return [Submitted.of(result, found) for result, found in zip(results, rooms, strict=True)]

    def submit_chunk(self, chunk: Chunk, key: str, number: int, done: int) -> Flow[Results]:
        """Submit the tasks of a chunk, after `done` others; repeat it while the server is too busy."""
        results: Results = []

        def check(found: Results) -> None:
            results[:] = found
            for result in found:
                if isinstance(result, ProblemException) and is_repeatable(result):
                    raise result

        def make(_: str) -> Call[Results]:
            return operations.submit_many(
                chunk.body, str(uuid5(_CHUNKS, f"{key} {number}")), chunk.tasks, check
            )

        try:
            return (yield from send_once(f"Submitting {chunk.tasks:,} tasks", make, key, self.rule))
        except Exception as error:
            if any(error is result for result in results):
                return results
            if done:
                error.add_note(f"{done:,} tasks were sent before. {self.rule.how_to_repeat(key)}")
            raise

    def find(self, name: str, category: str | None, room: str) -> Flow[JobName]:
        """Return the job that a room means by a name, as it was found up to a minute ago."""
        known, until = self._found.get((name, category, room), (None, 0.0))
        if known is None or time.monotonic() > until:
            known = yield from find_job(name, category, room, self.rule)
            self._found[name, category, room] = known, time.monotonic() + _NAME_SECONDS
        return known

    def _body_of(self, task: Any, room: str | None, index: int) -> Flow[tuple[bytes, str]]:
        new = task if isinstance(task, NewTask) else NewTask(task)
        try:
            name, payload = yield from self._name_and_payload(new, room)
            used = task_room(new.room or room or self.room, name)
            return task_body(used, str(name), payload, new.options()), used
        except TypeError as error:
            raise TypeError(f"tasks.{index}: {error}") from error
        except (ValueError, ProblemException) as error:
            raise ValueError(f"tasks.{index}: {error}") from error

    def _name_and_payload(self, task: NewTask, room: str | None = None) -> Flow[tuple[JobName, Any]]:
        validated(TaskSubmitRequest, task.options())
        job, payload = task.job, task.payload
        searched = task.job_room or task.room or room or self.room or DEFAULT_ROOM
        if isinstance(job, str):
            full = ":" in job
            name = parse_job_name(job) if full else (yield from self.find(job, None, searched))
            return name, codecs.plain_payload(payload)
        check_task(job)
        if payload is not None:
            raise TypeError(
                f"submit() got a payload and an instance of {type(job).__name__}, which is its own payload: "
                "remove one of them"
            )
        cls = type(job)
        known = task.job_room or self._room_of(cls) or job_room_of(cls)
        if task.job_room or known != GLOBAL:
            return job_name_of(cls, known), codecs.payload_of(job)
        return (yield from self.find(cls.__name__, category_of(cls), searched)), codecs.payload_of(job)


def checked_key(key: str | None) -> str:
    """Return the key of a call, by default a new one. Raises `InvalidIdempotencyKey`."""
    used = str(uuid4()) if key is None else key
    format_key(used)
    return used
