"""The bodies of searches across rooms, and of actions on all tasks that match a filter."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated
from uuid import UUID

from pydantic import AfterValidator, ConfigDict, Field

from zndraw_joblib.contract.bodies import RequestBody, ResponseBody
from zndraw_joblib.contract.messages import Moment
from zndraw_joblib.contract.status import TaskStatus

MAX_FILTER_VALUES = 20
MAX_SEARCH_TEXT = 200
MAX_BULK_TASKS = 10_000


def _without_nul(text: str) -> str:
    if "\x00" in text:
        raise ValueError("it must not contain the character U+0000, which no stored text contains")
    return text


Text = Annotated[str, Field(min_length=1, max_length=MAX_SEARCH_TEXT), AfterValidator(_without_nul)]
Name = Annotated[str, Field(min_length=1, max_length=400), AfterValidator(_without_nul)]
Names = Annotated[list[Name], Field(max_length=MAX_FILTER_VALUES)]


class TaskFilter(RequestBody):
    """Which tasks to find: a task has to match every field that is given, and any value of a list.

    `job` has full names of jobs (``room:category:name``), `room` ids of rooms. `worker` is the id of the
    current or last worker. `error_code` is as in a task. `text` is part of the payload as JSON text, or of
    the error; the letters a to z match without regard to case. Times are those of creation: `since` is
    included, `until` is not.
    """

    model_config = ConfigDict(extra="forbid")

    status: Annotated[list[TaskStatus], Field(max_length=len(TaskStatus))] = Field(default_factory=list)
    job: Names = Field(default_factory=list)
    room: Names = Field(default_factory=list)
    worker: UUID | None = None
    created_by: Name | None = None
    error_code: Names = Field(default_factory=list)
    text: Text | None = None
    since: Moment | None = None
    until: Moment | None = None


class FoundTask(ResponseBody):
    """A task in the result of a search, without payload and result. `error` has at most 300 characters."""

    id: UUID
    job_name: str
    room_id: str
    status: TaskStatus
    created_at: datetime
    claimed_at: datetime | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    worker_id: UUID | None = None
    created_by: str | None = None
    attempt: int = 0
    attempts: int = 0
    priority: int = 0
    run_at: datetime | None = None
    error: str | None = None
    error_code: str | None = None


class FoundTasks(ResponseBody):
    """A part of the result of a search, newest first.

    `next` is the `cursor` of the request that reads on, null at the end. A search that reads many tasks to
    find few ends early: then the part has fewer tasks than wanted, even none, and `next` reads on.
    """

    items: list[FoundTask]
    next: str | None = None


class StatusCounts(ResponseBody):
    """How many tasks have each status. They are kept counts, so reading them scans no tasks."""

    pending: int = 0
    claimed: int = 0
    running: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0


class BulkAction(StrEnum):
    """What to do with all tasks that match a filter.

    `retry`: failed and cancelled tasks. `cancel`: tasks that have not ended. `release`: held tasks.
    `purge`: delete tasks that have ended. Tasks in another status are not affected.
    """

    RETRY = "retry"
    CANCEL = "cancel"
    RELEASE = "release"
    PURGE = "purge"


class BulkPreviewRequest(RequestBody):
    """Ask how many tasks an action would affect."""

    action: BulkAction
    filter: TaskFilter


class BulkPreview(ResponseBody):
    """How many tasks an action would affect; `examples` are some of them, newest first.

    `count` is at most `limit`, and `is_complete` is false if there are more: the action affects at most that
    many, the newest ones. `token` confirms the action, for its caller and this filter, until `expires_at`.
    """

    action: BulkAction
    count: int
    limit: int
    is_complete: bool
    examples: list[FoundTask]
    token: str
    expires_at: datetime


class BulkRequest(RequestBody):
    """Apply an action that was previewed: `token` is that of the preview. The filter must be the same."""

    action: BulkAction
    filter: TaskFilter
    token: Annotated[str, Field(max_length=2000)]


class BulkResult(ResponseBody):
    """How many tasks the action has affected, and how many that match it has `skipped`.

    Those had another status by then, were locked, or, for a purge, ended so recently that the statistics
    have not read them yet: a later action affects them.

    Tasks that were created after the preview are not affected. `is_complete` is false if there may be more
    tasks that match: the action affects a limited number; preview it again.
    """

    action: BulkAction
    affected: int
    skipped: int
    is_complete: bool = True


class PrefixMatches(ResponseBody):
    """The ids of tasks or workers that begin with a prefix: at most ten."""

    tasks: list[UUID] = Field(default_factory=list)
    workers: list[UUID] = Field(default_factory=list)
