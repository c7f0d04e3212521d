"""Submits of synchronous clients."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, Unpack, overload

from zndraw_joblib.client.batches import Chunk, NewTask, SubmitOptions
from zndraw_joblib.client.handles import TaskHandle
from zndraw_joblib.client.rest import TaskRest
from zndraw_joblib.client.retry import RetryRule
from zndraw_joblib.client.submits import Submits, Submitted, checked_key
from zndraw_joblib.contract.problems import ProblemException


class Submitter:
    """A client that submits tasks."""

    def __init__(self, rest: TaskRest, rule: RetryRule, submits: Submits) -> None:
        self._rest = rest
        self._rule = rule
        self._submits = submits

    def submit(
        self,
        job: Any,
        payload: Mapping[str, Any] | None = None,
        *,
        idempotency_key: str | None = None,
        **options: Unpack[SubmitOptions],
    ) -> TaskHandle:
        """Submit a task; return its handle, which is its id as text.

        The job and the options are those of `NewTask`. Two submits with the same `idempotency_key`, also from
        different processes, submit one task; by default, each call has a new key. Raises ValueError for
        invalid options, and for a payload that is not JSON, and `JobNotFound` with the nearest names.
        """
        task = self._rest.run(self._submits.submit(NewTask.of(job, payload, options), idempotency_key))
        return TaskHandle(task.id, self._rest, self._rule, state=task)

    @overload
    def submit_many(
        self,
        tasks: Iterable[Any],
        *,
        room: str | None = None,
        atomic: Literal[True],
        idempotency_key: str | None = None,
    ) -> list[TaskHandle]: ...

    @overload
    def submit_many(
        self,
        tasks: Iterable[Any],
        *,
        room: str | None = None,
        atomic: bool = False,
        idempotency_key: str | None = None,
    ) -> list[TaskHandle | ProblemException]: ...

    def submit_many(
        self,
        tasks: Iterable[Any],
        *,
        room: str | None = None,
        atomic: bool = False,
        idempotency_key: str | None = None,
    ) -> Any:
        """Submit tasks in order; return for each its handle, or the problem if the server refused it.

        A task is an instance of an extension, or a `NewTask` with the arguments of `submit`; `room` is the
        room of each task without a room of its own. The tasks are sent in requests of up to 1,000 tasks. With
        `atomic`, all tasks (up to 1,000 of 8 MiB in all) are submitted or none, and the problem of the first
        refused one is raised.

        Raises ValueError for invalid options, and for a payload that is not JSON, before anything is sent; it
        names the task, like ``tasks.3``. If the server becomes unreachable in between, the error of the
        connection is raised: the call may be repeated with the same tasks and `idempotency_key`, and submits
        each task once.
        """
        flow = self._submits.submit_many(tasks, room, idempotency_key, atomic=atomic)
        return list(map(self._handle_or_problem, self._rest.run(flow)))

    def submit_chunks(
        self, requests: Iterable[Chunk], key: str | None = None
    ) -> Iterator[list[TaskHandle | ProblemException]]:
        """Send requests one after the other, each repeated with its own key; yield the results of each."""
        used, done = checked_key(key), 0
        for number, chunk in enumerate(requests):
            results = self._rest.run(self._submits.submit_chunk(chunk, used, number, done))
            yield [self._handle_or_problem(Submitted.of(each, None)) for each in results]
            done += chunk.tasks

    def _handle_or_problem(self, result: Submitted | ProblemException) -> TaskHandle | ProblemException:
        if isinstance(result, ProblemException):
            return result
        return TaskHandle(result.id, self._rest, self._rule, room=result.room)
