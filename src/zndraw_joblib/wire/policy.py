"""The policy of a job: retries after failures and lost workers, time limits, concurrency, priority."""

import re
from collections.abc import Iterable
from datetime import timedelta
from enum import StrEnum
from math import e
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_validator

from zndraw_joblib.wire.bodies import CheckedKeywords, RequestBody
from zndraw_joblib.wire.requirements import Requires

MAX_PRIORITY = 1000
YEAR_SECONDS = 31_536_000
Seconds = Annotated[float, Field(gt=0, le=YEAR_SECONDS, allow_inf_nan=False)]
Delay = Annotated[float, Field(ge=0, le=YEAR_SECONDS, allow_inf_nan=False)]
Priority = Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)]
Attempts = Annotated[int, Field(ge=1, le=1000)]
Cost = Annotated[int, Field(ge=1, le=1000)]


class RetryOn(StrEnum):
    """Why an attempt ended without success: its worker was lost, it failed, or it exceeded its time limit."""

    WORKER_LOST = "worker_lost"
    ERROR = "error"
    TIMEOUT = "timeout"


def _each_once(reasons: tuple[RetryOn, ...]) -> tuple[RetryOn, ...]:
    return tuple(sorted(set(reasons)))


RetryReasons = Annotated[tuple[RetryOn, ...], AfterValidator(_each_once)]
MAX_ERROR_TYPE = 256


def error_type(cls: type[BaseException]) -> str:
    """Return the name of an exception's class: qualified, unless it is built in or of the main program."""
    if cls.__module__ in {"builtins", "__main__"}:
        return cls.__qualname__
    return f"{cls.__module__}.{cls.__qualname__}"


def _name_of(value: Any) -> Any:
    if isinstance(value, type) and issubclass(value, BaseException):
        return error_type(value)
    return value.removeprefix("builtins.") if isinstance(value, str) else value


def _without_spaces(name: str) -> str:
    if not name.isprintable() or " " in name:
        raise ValueError("the name of an exception's class has printable characters without spaces")
    return name


def _sorted_names(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(set(names)))


ErrorType = Annotated[
    str,
    BeforeValidator(_name_of),
    AfterValidator(_without_spaces),
    Field(min_length=1, max_length=MAX_ERROR_TYPE),
]


PendingLimit = Annotated[int, Field(ge=1, le=1_000_000)]


class WithoutWorkers(StrEnum):
    """What happens to a job without workers.

    `forget`: it is soft-deleted with its last worker, or later with its last pending task; a submit then gets
    404. `reject`: it stays, and a submit gets 409 `no-workers-available`. `queue`: it stays, and tasks wait.
    """

    FORGET = "forget"
    REJECT = "reject"
    QUEUE = "queue"


class Backoff(CheckedKeywords, RequestBody):
    """The pause before the next attempt: ``min(cap_seconds, base_seconds * factor ** failed)``.

    `failed` counts the attempts that ended without success. The default is exp(min(10, failed)) seconds:
    2.7 s, 7.4 s, 20 s, 55 s, … 6 h. Each pause is shortened at random by up to the share `jitter`.
    """

    model_config = ConfigDict(frozen=True)

    base_seconds: Delay = 1.0
    factor: Annotated[float, Field(ge=1, le=1000, allow_inf_nan=False)] = e
    cap_seconds: Delay = e**10
    jitter: Annotated[float, Field(ge=0, le=1)] = 0.0

    def pause(self, failed: int, chance: float) -> float:
        """Return the seconds before the next attempt; `chance` is a random number between 0 and 1."""
        try:
            full = self.base_seconds * self.factor**failed
        except OverflowError:
            full = self.cap_seconds
        return min(self.cap_seconds, full) * (1 - self.jitter * chance)


# A hundred years.
_MAX_KEEP_SECONDS = 3_155_760_000
FOREVER: Literal["forever"] = "forever"
_KEEP_TEXT = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")
_UNIT_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}


def _keep_seconds(value: Any) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if not isinstance(value, str) or value == FOREVER:
        return value
    match = _KEEP_TEXT.fullmatch(value)
    if match is None:
        raise ValueError(
            f"{value[:100]!r} is no time to keep tasks: pass seconds, or 90s, 15m, 12h, 30d, or forever"
        )
    return float(match[1]) * _UNIT_SECONDS[match[2]]


KeepTime = Annotated[
    Annotated[float, Field(gt=0, le=_MAX_KEEP_SECONDS, allow_inf_nan=False)] | Literal["forever"],
    BeforeValidator(_keep_seconds),
]


class Keep(CheckedKeywords, RequestBody):
    """How long ended tasks are kept, by their status, with their payloads, results, logs and attempts.

    In seconds, or as text with a unit, such as `90s`, `15m`, `12h` or `30d`; `forever` keeps them. A status
    that is left out has the time of the server's settings.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    completed: KeepTime | None = None
    failed: KeepTime | None = None
    cancelled: KeepTime | None = None


MAX_LIMITS = 8
_LIMIT_NAME = r"^[A-Za-z0-9_.-]{1,64}$"


def checked_limit_name(name: str) -> str:
    """Return the name of a limit. Raises ValueError for one that it cannot have."""
    if re.fullmatch(_LIMIT_NAME, name) is None:
        raise ValueError(
            f"{name[:100]!r} is no name of a limit: write 1 to 64 letters, digits, '_', '-' and '.'"
        )
    return name


LimitName = Annotated[
    str, Field(json_schema_extra={"pattern": _LIMIT_NAME}), AfterValidator(checked_limit_name)
]
_LIMIT_KEY = r"^(room|submitter|(/([^/~]|~[01])*)+)$"


def _limit_key(key: str) -> str:
    if re.fullmatch(_LIMIT_KEY, key) is None:
        raise ValueError("write room, submitter, or a JSON pointer into the payload, like /user_id")
    return key


LimitKey = Annotated[
    str,
    Field(
        max_length=256,
        description="`room`, `submitter`, or a JSON pointer into the payload",
        json_schema_extra={"pattern": _LIMIT_KEY},
    ),
    AfterValidator(_limit_key),
]
InFlight = Annotated[int, Field(ge=1, le=1_000_000)]


class Rate(CheckedKeywords, RequestBody):
    """How often tasks may be claimed: `count` in each `per_seconds`, at even distances.

    After a pause up to `burst` tasks may be claimed at once. In a period of s seconds at most
    ``burst + s * count / per_seconds`` are.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    count: InFlight
    per_seconds: Seconds
    burst: InFlight = 1

    @property
    def interval(self) -> float:
        """The seconds from one claim to the next."""
        return self.per_seconds / self.count


class LimitValues(CheckedKeywords, RequestBody):
    """What a limit allows: `max_in_flight` tasks claimed or running at once, and a `rate` of claims."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_in_flight: InFlight | None = None
    rate: Rate | None = None

    @property
    def is_empty(self) -> bool:
        """Whether it limits nothing."""
        return self.max_in_flight is None and self.rate is None


class JobLimit(LimitValues):
    """A limit of a job: for all its tasks, or with `key` for all tasks with the same value of that key.

    With `name` it is the limit of this name, which other jobs may share: its values are there.
    """

    name: LimitName | None = None
    key: LimitKey | None = None

    @model_validator(mode="after")
    def _check_values(self) -> Self:
        if self.name is None and self.is_empty:
            raise ValueError("a limit without a name has max_in_flight, or rate, or both")
        if self.name is not None and not self.is_empty:
            raise ValueError(
                f"limit {self.name!r} has its values where it is defined (PUT /limits/{self.name}): "
                "leave out max_in_flight and rate, or the name"
            )
        return self


BatchSize = Annotated[int, Field(ge=1, le=1000)]
BatchWait = Annotated[float, Field(ge=0, le=60, allow_inf_nan=False)]
_BATCH_KEY = r"^(/([^/~]|~[01])*)+$"


def _batch_key(key: str) -> str:
    if re.fullmatch(_BATCH_KEY, key) is None:
        raise ValueError(f"{key[:100]!r} is no JSON pointer into the payload: write it like /model")
    return key


class JobBatch(CheckedKeywords, RequestBody):
    """How workers put tasks of a job together: up to `max` of them in one call.

    If fewer are pending, a worker with a free slot waits for more, until the oldest has waited for
    `wait_seconds`. With `key`, a JSON pointer into the payload, a batch has tasks with equal values only.
    """

    model_config = ConfigDict(frozen=True)

    max: BatchSize
    wait_seconds: BatchWait = 0.1
    key: (
        Annotated[
            str, Field(max_length=256, json_schema_extra={"pattern": _BATCH_KEY}), AfterValidator(_batch_key)
        ]
        | None
    ) = None


class JobPolicy(CheckedKeywords, RequestBody):
    """The policy of a job, set at registration. Omitted fields keep their registered or default value.

    - `max_attempts`: how many attempts of a task may fail or exceed `timeout_seconds`; with 1 there is no
      retry, also not after a lost worker.
    - `retry_on`: the reasons after which a task is tried again; by default all of them.
    - `non_retryable`: the names of exceptions, plain or qualified, after which a task is not tried again, as
      after exceptions of their subclasses.
    - `max_crashes`: a task fails when it has lost this many workers. They are counted apart from failures:
      so a task that kills its workers ends, and a restart of workers does not use up attempts.
    - `timeout_seconds`: the time limit of an attempt.
    - `expected_seconds`: how long its tasks run. A worker that has less time is given none of them; null for
      `timeout_seconds`, or without that for the 95th percentile of the runs of the last day.
    - `start_timeout_seconds`: a claimed task that is not started in time goes back to its queue; 0 for never.
    - `max_in_flight`: the concurrency limit, how many tasks of the job may be claimed or running.
    - `max_pending`, `max_pending_per_room`: how many tasks of the job may be pending, in all and from one
      room, with those that are scheduled; a further submit gets 429. Tasks that return to the queue count.
    - `limits`: further limits of concurrency and rate, of which all must hold.
    - `priority`: of the job's tasks; a higher one is claimed first.
    - `without_workers`: what happens to the job when no worker serves it; null for the server's default,
      which is the setting of that name.
    - `keep`: how long its ended tasks are kept; null for the times of the server's settings.
    - `requires`: conditions on the labels of the workers that may run its tasks, by label: a value, or
      operators with values.
    - `cost`: how many slots of its worker a task takes. A worker is given it when it has as many free ones.
    - `prefer`: conditions as in `requires` on the labels of workers that get its tasks first, if they wait
      for one when it is submitted; any other worker may get it too.
    - `batch`: how its workers put tasks together, as they have said at their registration; null if they run
      them one by one. It is shown, and changes no worker.
    """

    max_attempts: Attempts = 1
    retry_on: RetryReasons = tuple(sorted(RetryOn))
    non_retryable: Annotated[
        tuple[ErrorType, ...], Field(max_length=100, fail_fast=True), AfterValidator(_sorted_names)
    ] = ()
    backoff: Backoff = Backoff()
    max_crashes: Attempts = 3
    timeout_seconds: Seconds | None = None
    expected_seconds: Seconds | None = None
    start_timeout_seconds: Delay = 60.0
    max_in_flight: InFlight | None = None
    max_pending: PendingLimit | None = None
    max_pending_per_room: PendingLimit | None = None
    limits: Annotated[tuple[JobLimit, ...], Field(max_length=MAX_LIMITS, fail_fast=True)] = ()
    priority: Priority = 0
    without_workers: WithoutWorkers | None = None
    keep: Keep | None = None
    requires: Requires = Field(default_factory=dict)
    cost: Cost = 1
    prefer: Requires = Field(default_factory=dict)
    batch: JobBatch | None = None

    def is_final(self, error_types: Iterable[str]) -> bool:
        """Return whether `non_retryable` names one of these classes of an exception."""
        return bool(self.non_retryable) and any(
            name in self.non_retryable or name.rpartition(".")[2] in self.non_retryable
            for name in error_types
        )
