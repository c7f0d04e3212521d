"""Jobs that take a batch: their options, their base class, and the run of several tasks with one call."""

import inspect
import json
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from zndraw_joblib.jobs.extensions import Extension
from zndraw_joblib.jobs.run import Outcome, failed, settle_code, settle_coroutine, succeeded
from zndraw_joblib.jobs.task_channel import Line, TaskChannel
from zndraw_joblib.jobs.task_context import CancelEvent, TaskContext
from zndraw_joblib.wire.policy import JobBatch
from zndraw_joblib.wire.progress import LogSource


class Batch(JobBatch):
    """How tasks of a job are put together: up to `max` of them in one call.

    If fewer are pending, a worker with a free slot waits for more, until the oldest has waited for
    `wait_seconds`. With `key`, a JSON pointer into the payload, a batch has tasks with equal values only.
    """

    model_config = ConfigDict(extra="forbid")

    def split(self, payloads: Iterable[Mapping[str, Any]]) -> list[list[int]]:
        """Return which of these payloads may be in one batch, as indexes; a batch has at most `max`."""
        groups: dict[str, list[int]] = {}
        for index, payload in enumerate(payloads):
            groups.setdefault(self._value_of(payload), []).append(index)
        return sorted(
            group[start : start + self.max]
            for group in groups.values()
            for start in range(0, len(group), self.max)
        )

    def _value_of(self, payload: Any) -> str:
        """Return the value of the key as canonical JSON; an empty text if the payload has none."""
        value = payload if self.key is not None else None
        for part in (self.key or "").split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(value, Mapping) and name in value:
                value = value[name]
            elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
                value = value[int(name)]
            else:
                return ""
        return json.dumps(value, sort_keys=True)


class BatchExtension(Extension):
    """A job that runs several tasks with one call of `run_batch`. `job_batch` says how many, and which."""

    job_batch: ClassVar[Batch]

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Raise TypeError for a class that cannot run a batch."""
        super().__pydantic_init_subclass__(**kwargs)
        check_no_generator(cls.run_batch)
        if (batch := getattr(cls, "job_batch", None)) is not None:
            check_batch(batch, cls)

    @classmethod
    @abstractmethod
    def run_batch(cls, *args: Any, **kwargs: Any) -> Any:
        """Return a list with one result, or one exception, for each input, in their order.

        Write it as ``run_batch(cls, inputs)`` or ``run_batch(cls, inputs, tasks)``: it gets a list of
        instances of the class, and with `tasks` a list of the `TaskContext` of each. An exception that is
        raised fails all tasks of the batch; one that is returned fails its own.
        """

    def run(self, vis: Any, *, task: TaskContext | None = None, **kwargs: Any) -> Any:
        """Run a batch of this one task, where tasks run one by one; return its result."""
        results = call_batch(type(self), [self], [task], kwargs)
        return _only_of(results) if inspect.iscoroutine(results) else _only(results)


def check_no_generator(function: Callable[..., Any]) -> None:
    """Raise TypeError for a function that yields: the tasks of a batch end together."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(
            f"{function.__qualname__}() takes a batch and has a yield: return a list with one result or "
            "exception for each input"
        )


def check_batch(batch: object, cls: type[BaseModel]) -> None:
    """Raise TypeError for options that are none, and for a key that no payload of the class has."""
    name = cls.__qualname__
    if not isinstance(batch, Batch):
        raise TypeError(f"{name}: the batch must be a Batch(max=…), not {batch!r:.100}")
    fields = {field.alias or name for name, field in cls.model_fields.items()}
    first = "" if batch.key is None else batch.key.split("/")[1].replace("~1", "/").replace("~0", "~")
    if batch.key is not None and first not in fields and cls.model_config.get("extra") != "allow":
        listed = ", ".join(f"/{field}" for field in sorted(fields)) or "no field"
        raise TypeError(f"{name}: no payload has the key {batch.key} of its batch; it has {listed}")


def batch_of(cls: type[Any]) -> Batch | None:
    """Return the options of a job that takes a batch, None of any other job."""
    return cls.job_batch if issubclass(cls, BatchExtension) else None


def call_batch(
    cls: type[BatchExtension],
    inputs: Sequence[Any],
    tasks: Sequence[TaskContext | None],
    run_kwargs: Mapping[str, Any],
) -> Any:
    """Call `run_batch` of a class; it gets `tasks` if it has a parameter of this name."""
    if "tasks" in _parameters_of(cls):
        return cls.run_batch(inputs, tasks=tasks, **run_kwargs)
    return cls.run_batch(inputs, **run_kwargs)


@cache
def _parameters_of(cls: type[BatchExtension]) -> frozenset[str]:
    return frozenset(inspect.signature(cls.run_batch).parameters)


def checked_results(results: Any, count: int) -> list[Any]:
    """Return the results of `count` tasks. Raises TypeError or ValueError if they are not as many."""
    remedy = f"return a list with one result or exception for each of the {count} inputs"
    if isinstance(results, str | bytes | Mapping) or not (
        hasattr(results, "__len__") and hasattr(results, "__getitem__")
    ):
        raise TypeError(f"The job of a batch returned {type(results).__name__}: {remedy}")
    if len(results) != count:
        raise ValueError(f"The job of a batch returned {len(results)} results: {remedy}")
    return list(results)


def _only(results: Any) -> Any:
    [result] = checked_results(results, 1)
    if isinstance(result, BaseException):
        raise result
    return result


async def _only_of(results: Coroutine[Any, Any, Any]) -> Any:
    return _only(await results)


# Run the tasks of a batch, in a worker or in its process.


class _BatchChannel(TaskChannel):
    """Passes what the code of a batch prints, logs and reports to the channel of each task."""

    __slots__ = ("_channels",)

    def __init__(self, channels: Sequence[TaskChannel]) -> None:
        super().__init__(captures=any(channel.captures for channel in channels))
        self._channels = channels

    def set_progress(self, changes: dict[str, Any]) -> None:
        for channel in self._channels:
            channel.set_progress(changes)

    def add(self, lines: Iterable[Line], dropped: int = 0) -> None:
        listed = list(lines)
        for channel in self._channels:
            channel.add(listed, dropped)

    def write(self, text: str, source: LogSource) -> None:
        for channel in self._channels:
            channel.write(text, source)

    def finish(self) -> None:
        for channel in self._channels:
            channel.finish()


class BatchContext(TaskContext):
    """The tasks of a batch as one: what is reported of it is reported of each.

    `cancelled` is set once all tasks are cancelled or lost; the others run on.
    """

    __slots__ = ("cancelled", "channel", "room_id", "task_id", "tasks")

    def __init__(self, tasks: Sequence[Any]) -> None:
        self.tasks = tuple(tasks)
        self.task_id, self.room_id = self.tasks[0].task_id, self.tasks[0].room_id
        self.channel = _BatchChannel([task.channel for task in self.tasks])
        self.cancelled = CancelEvent()
        for task in self.tasks:
            task.cancelled.call_when_set(self._notice)

    def _notice(self) -> None:
        if all(task.cancelled.is_set() for task in self.tasks):
            self.cancelled.set()

    def call(self) -> Any:
        """Call the code of the job with all inputs."""
        first = self.tasks[0]
        inputs = [task.extension for task in self.tasks]
        return call_batch(type(first.extension), inputs, self.tasks, first.run_kwargs)

    def end(self, results: Any) -> list[Outcome]:
        """Return the outcome of each task. Raises TypeError, ValueError for results that are not as many."""
        return [
            failed(task, task.extension, result)
            if isinstance(result, BaseException)
            else succeeded(task, task.extension, result)
            for task, result in zip(self.tasks, checked_results(results, len(self.tasks)), strict=True)
        ]

    def fail(self, error: BaseException) -> list[Outcome]:
        """Return the outcomes of tasks that fail for the same reason."""
        return [failed(task, task.extension, error) for task in self.tasks]


def run_batch(batch: BatchContext, pid: int) -> list[Outcome] | Coroutine[Any, Any, Any]:
    """Run the tasks of a batch; return their outcomes, or the coroutine for `await_batch`."""
    return settle_code(batch.call, batch, batch.end, batch.fail, pid)


async def await_batch(work: Coroutine[Any, Any, Any], batch: BatchContext, pid: int) -> list[Outcome]:
    """Return the outcomes of a coroutine that `run_batch` returned."""
    return await settle_coroutine(work, batch, batch.end, batch.fail, pid)
