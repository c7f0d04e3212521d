"""The base classes of a worker's code: extensions, which are jobs, and providers, which answer requests."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict

from pydantic import BaseModel, ValidationError, model_validator

from zndraw_joblib.jobs.failures import describe_errors
from zndraw_joblib.jobs.outputs import take_outputs
from zndraw_joblib.wire.names import DEFAULT_CATEGORY, GLOBAL, JobName, unknown_text
from zndraw_joblib.wire.policy import (
    YEAR_SECONDS,
    Backoff,
    JobLimit,
    JobPolicy,
    Keep,
    RetryOn,
    WithoutWorkers,
)

_JOB_METHODS = ("model_json_schema", "model_validate")


class Category(StrEnum):
    """The categories that a server allows by default (setting `allowed_categories`)."""

    MODIFIER = "modifiers"
    SELECTION = "selections"
    ANALYSIS = "analysis"


class Extension(BaseModel, ABC):
    """A job. Its fields are the payload, and its name is the last part of the job's full name.

    A class attribute ``policy: ClassVar[JobPolicy]`` sets fields of the job's policy. `category` and
    `job_room` are the first two parts of its full name, where the registration gives no other room; each
    server allows the default category.
    """

    category: ClassVar[Category | str] = DEFAULT_CATEGORY
    job_room: ClassVar[str] = GLOBAL

    if not TYPE_CHECKING:  # the arguments are the fields

        def __init__(self, /, **data: Any) -> None:
            """Make a task of the job. A field may have an output of another task instead of a value."""
            if not take_outputs(self, data):
                super().__init__(**data)

        # As that of pydantic: `model_validate` need not call it.
        __init__.__pydantic_base_init__ = True

    @abstractmethod
    def run(self, vis: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Do the work and return the task's result: JSON values, arrays, atoms, images, bytes or files.

        `vis` is the context that the worker's host creates for each task, or None. A `run` with an argument
        `task` gets the `TaskContext`, to report progress and to log; `current_task` returns it anywhere.
        """


def check_job(value: object) -> None:
    """Raise TypeError, with the remedy, if `value` is not a class that can be a job: `@job` makes one too."""
    if fault := _fault_of(value):
        raise TypeError(fault)


def check_task(value: object) -> None:
    """Raise TypeError, with the remedy, if `value` is not an instance of a job's class, which is a task."""
    if isinstance(value, type) or inspect.isfunction(value):
        name = value.__qualname__
        call = f"{name}.task(…)" if hasattr(value, "__wrapped__") else f"{name}(…)"
        raise TypeError(_fault_of(value) or f"{name} is a job, not a task of it: pass {call}")
    if not callable(getattr(value, "model_dump", None)):
        raise TypeError(
            f"{value!r:.100} is no task: pass an instance of an Extension, area.task(…) of a function with "
            "@job, or the full name of a job and its payload"
        )


def category_of(cls: type[Any]) -> str:
    """Return the category of a class, whether it is a string or an enum member."""
    return str(getattr(cls.category, "value", cls.category))


def job_name_of(cls: type[Any], room: str) -> JobName:
    """Return the name of the job that a class is in a room."""
    return JobName(room, category_of(cls), cls.__name__)


def job_room_of(cls: type[Any]) -> str:
    """Return the room of a job where neither its registration nor a submit names one."""
    return str(getattr(cls, "job_room", GLOBAL))


class PolicyOptions(TypedDict, total=False):
    """The fields of a `JobPolicy`, as keywords; the server keeps the value of a field that is not given."""

    max_attempts: int
    retry_on: Iterable[RetryOn | str]
    non_retryable: Iterable[type[BaseException] | str]
    backoff: Backoff
    max_crashes: int
    timeout_seconds: float | None
    expected_seconds: float | None
    start_timeout_seconds: float
    max_in_flight: int | None
    max_pending: int | None
    max_pending_per_room: int | None
    limits: Iterable[JobLimit | Mapping[str, Any]]
    priority: int
    without_workers: WithoutWorkers | str | None
    keep: Keep | Mapping[str, Any] | None
    requires: Mapping[str, Any]
    cost: int
    prefer: Mapping[str, Any]


def policy_of(options: PolicyOptions, what: str = "The policy of register()") -> JobPolicy:
    """Return the policy in which only these fields are set. Raises TypeError, ValueError."""
    # A batch is part of the code: `@job(batch=…)`, or `job_batch` of a class.
    known = [name for name in JobPolicy.model_fields if name != "batch"]
    unknown = set(options) - set(known)
    if unknown:
        raise TypeError(unknown_text(what, unknown, known))
    try:
        return JobPolicy.model_validate(options)
    except ValidationError as error:
        raise ValueError(describe_errors(error)) from None


def class_policy(cls: type[Any], options: JobPolicy) -> JobPolicy:
    """Return the fields that the class sets in its `policy`, with those of `options` over them."""
    own = getattr(cls, "policy", None)
    if not isinstance(own, JobPolicy):
        return options
    return own.model_copy(update={name: getattr(options, name) for name in options.model_fields_set})


def _fault_of(value: object) -> str | None:
    if inspect.isfunction(value):
        what = "A lambda" if value.__name__ == "<lambda>" else f"The function {value.__qualname__}()"
        return f"{what} is no job: define it with def, and decorate it with @job"
    if not isinstance(value, type):
        cls = type(value)
        is_job = _fault_of(cls) is None
        remedy = f"pass {cls.__qualname__} itself" if is_job else "pass a function with @job, or an Extension"
        return f"{value!r:.100} is {'a task of a job' if is_job else 'no job'}: {remedy}"
    fault = _missing_run(value)
    missing = [name for name in _JOB_METHODS if not callable(getattr(value, name, None))]
    if fault is None and missing:
        fault = f"has no {', '.join(missing)}: derive it from Extension"
    if fault is None and not getattr(value, "category", None):
        fault = "has no category: set category, or derive it from Extension"
    return None if fault is None else f"The class {value.__qualname__} {fault}"


def _missing_run(cls: type[Any]) -> str | None:
    if not inspect.isabstract(cls) and callable(getattr(cls, "run", None)):
        if hasattr(cls, "run_batch") and not hasattr(cls, "job_batch"):
            return "has no job_batch: set job_batch = Batch(max=…)"
        return None
    if hasattr(cls, "run_batch"):
        return "has no run_batch, so it is no job: define run_batch(cls, inputs)"
    is_provider = callable(getattr(cls, "read", None))
    remedy = "use register_provider()" if is_provider else "define run(self, vis)"
    return f"has no method run, so it is no job: {remedy}"


class Provider(BaseModel, ABC):
    """A remote data source. Its fields are the parameters of a request; an instance is one request.

    The parameters come from a query as strings, which pydantic converts to the types of the fields. The field
    of a parameter that may be repeated is a list.
    """

    category: ClassVar[str]
    content_type: ClassVar[str] = "application/json"

    @abstractmethod
    def read(self, handler: Any) -> Any:
        """Return the result: bytes, for ``application/json`` a JSON value, or for ``text/…`` a string.

        `handler` is the object given at the registration: an open file system, a database, a universe of
        atoms. An exception is sent to the client that sent the request.
        """

    @model_validator(mode="before")
    @classmethod
    def _take_single_for_list(cls, params: Any) -> Any:
        """Turn a parameter that was given once into a list, if its field is a list."""
        if not isinstance(params, dict):
            return params
        fields = cls.model_json_schema().get("properties", {})
        lists = {name for name, field in fields.items() if field.get("type") == "array"}
        return {
            name: [value] if name in lists and isinstance(value, str) else value
            for name, value in params.items()
        }


class NonRetryable(Exception):
    """A final failure: a job raises it, and the task is not retried, whatever the job's policy is."""


GiveUp = NonRetryable


class Retry(Exception):
    """A request for another attempt: a job raises it, and the task is tried again after `after_seconds`.

    The pause replaces that of the job's policy, whose `retry_on` need not have ``error``. The attempt counts
    as a failed one: after the last of `max_attempts` the task fails, with `reason`. Raises ValueError for a
    pause that is negative or longer than a year.
    """

    def __init__(self, after_seconds: float, reason: str = "") -> None:
        if not isinstance(after_seconds, int | float):
            raise TypeError(
                f"Retry: after_seconds is {after_seconds!r:.100}, and must be a number of seconds: "
                "Retry(60, 'the service is busy')"
            )
        if not 0 <= after_seconds <= YEAR_SECONDS:
            raise ValueError(
                f"Retry: after_seconds is {after_seconds!r}, and must be between 0 and {YEAR_SECONDS}, a year"
            )
        super().__init__(after_seconds, reason)
        self.after_seconds = after_seconds
        self.reason = reason

    def __str__(self) -> str:
        return self.reason or f"after {self.after_seconds:g} s"
