"""The bodies of requests and responses about schedules, which submit tasks of a job at due times."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Self, TypedDict
from uuid import UUID

from pydantic import ConfigDict, Field, model_validator

from zndraw_joblib.wire.bodies import (
    CheckedKeywords,
    JsonObject,
    Moment,
    Name,
    RequestBody,
    ResponseBody,
    Tags,
    is_none,
)
from zndraw_joblib.wire.policy import Attempts, Cost, Priority, Seconds
from zndraw_joblib.wire.requirements import Requires
from zndraw_joblib.wire.unique import Debounce, Unique, check_debounce

MAX_NEXT = 100
MAX_CATCH_UP = 1000
_YEAR_SECONDS = 31_536_000


class Overlap(StrEnum):
    """What happens at a due time while earlier tasks of the schedule have not ended.

    `allow`: its task is submitted. `skip`: it is not. `queue_one`: it is, unless one waits already.
    """

    ALLOW = "allow"
    SKIP = "skip"
    QUEUE_ONE = "queue_one"


class CatchUp(StrEnum):
    """Which missed due times run later: none, the last one, or all, up to `max_catch_up`."""

    NONE = "none"
    LAST = "last"
    ALL = "all"


class ScheduleTimes(CheckedKeywords, RequestBody):
    """When a task is due, by exactly one of `cron`, `every_seconds` and `at`, and how it is submitted.

    - `cron`: five fields (minute, hour, day, month, weekday), or six with the second first, in `time_zone`.
      A time that does not exist because clocks go forward is due at the next minute that does; one that
      exists twice is due once. If minute or hour begin with ``*``, times are those of UTC's minutes instead.
    - `every_seconds`: counted from `starts_at`, or from when the schedule got this interval.
    - `at`: once.
    - `jitter_seconds`: each task enters its queue up to so much later, at random.
    - `catch_up`, `max_catch_up`: for due times that no server submitted within a minute, because all were
      down or the schedule was paused.
    - `starts_at`, `ends_at`: the first and the last time that may be due.
    - `payload`, `priority`, `expires_in_seconds`, `max_attempts`, `unique`, `debounce`, `tags`, `requires`,
      `cost`, `prefer`: of each task, as in a submit. A due time whose key another task holds has no task of
      its own.
    """

    model_config = ConfigDict(extra="forbid")

    cron: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    every_seconds: Annotated[float, Field(ge=1, le=_YEAR_SECONDS, allow_inf_nan=False)] | None = None
    at: Moment | None = None
    time_zone: Annotated[str, Field(min_length=1, max_length=64)] = "UTC"
    jitter_seconds: Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)] = 0.0
    overlap: Overlap = Overlap.ALLOW
    catch_up: CatchUp = CatchUp.LAST
    max_catch_up: Annotated[int, Field(ge=1, le=MAX_CATCH_UP)] = 100
    starts_at: Moment | None = None
    ends_at: Moment | None = None
    payload: JsonObject = Field(default_factory=dict)
    priority: Priority | None = None
    expires_in_seconds: Seconds | None = None
    max_attempts: Attempts | None = None
    unique: Unique | None = None
    debounce: Debounce | None = None
    tags: Tags | None = None
    requires: Requires | None = None
    cost: Cost | None = None
    prefer: Requires | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        kinds = [name for name in ("cron", "every_seconds", "at") if getattr(self, name) is not None]
        if len(kinds) != 1:
            raise ValueError(f"give one of cron, every_seconds and at, not {' and '.join(kinds) or 'none'}")
        if self.starts_at is not None and self.ends_at is not None and self.ends_at < self.starts_at:
            raise ValueError("ends_at is before starts_at")
        check_debounce(self, "jitter_seconds")
        return self


class ScheduleFields(TypedDict, total=False):
    """The fields of `ScheduleTimes` without the payload, as keywords."""

    cron: str | None
    every_seconds: float | None
    at: datetime | None
    time_zone: str
    jitter_seconds: float
    overlap: Overlap | str
    catch_up: CatchUp | str
    max_catch_up: int
    starts_at: datetime | None
    ends_at: datetime | None
    priority: int | None
    expires_in_seconds: float | None
    max_attempts: int | None
    unique: Unique | Mapping[str, Any] | None
    debounce: Debounce | Mapping[str, Any] | None
    tags: Sequence[str] | None
    requires: Mapping[str, Any] | None
    cost: int | None
    prefer: Mapping[str, Any] | None


class ScheduleRequest(ScheduleTimes):
    """Create a schedule of a job, or replace it. `job` is the job's full name.

    Without `paused`, a schedule that exists stays paused or not.
    """

    job: Annotated[str, Field(max_length=400)]
    paused: bool | None = None


class ScheduleUpdate(RequestBody):
    """Pause or resume a schedule. After a pause, its due times meanwhile follow `catch_up`."""

    model_config = ConfigDict(extra="forbid")

    paused: bool


class ScheduleResponse(ResponseBody):
    """A schedule. Its tasks are those of `created_by`, who has written it last.

    - `next_due_at`: null after the last due time. `next`: the due times that the request asked for.
    - `last_due_at`, `last_task_id`: of the last task that was submitted at a due time, or that held its key.
    - `error`, `error_at`: why the last due time has no task; null if it has one, if `overlap` skipped it, or
      if another task held its key, unless `unique` rejects duplicates.
    """

    model_config = ConfigDict(json_schema_serialization_defaults_required=True)

    room_id: str
    name: Name
    job: str
    paused: bool
    created_by: str
    created_at: datetime
    updated_at: datetime
    cron: str | None = None
    every_seconds: float | None = None
    at: datetime | None = None
    time_zone: str = "UTC"
    jitter_seconds: float = 0.0
    overlap: Overlap = Overlap.ALLOW
    catch_up: CatchUp = CatchUp.LAST
    max_catch_up: int = 100
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    payload: dict[str, Any] = Field(default_factory=dict)
    priority: int | None = None
    expires_in_seconds: float | None = None
    max_attempts: int | None = None
    unique: Unique | None = None
    debounce: Debounce | None = None
    tags: Tags | None = None
    requires: Requires | None = None
    cost: int | None = None
    prefer: Requires | None = None
    next_due_at: datetime | None = None
    last_due_at: datetime | None = None
    last_task_id: UUID | None = None
    error: str | None = None
    error_at: datetime | None = None
    next: list[datetime] | None = Field(default=None, exclude_if=is_none)
