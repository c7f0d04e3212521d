"""The bodies of requests and responses about groups: tasks that are counted and followed together."""

from collections.abc import Callable
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import BeforeValidator, ConfigDict, Field

from zndraw_joblib.wire.bodies import JsonObject, Printable, RequestBody, ResponseBody, is_none
from zndraw_joblib.wire.policy import Seconds
from zndraw_joblib.wire.statuses import StatusCounts

MAX_GROUP_NAME = 128
# In a payload of `on_end`, an object with only this key stands for the results or the counts of the group.
GROUP_VALUE = "$group"


def results_reference(value: Any) -> UUID | None:
    """Return the group whose results a value of a payload stands for; None if it is another value."""
    if not (isinstance(value, dict) and value.get(GROUP_VALUE) == "results" and value.keys() == _REFERENCE):
        return None
    try:
        return UUID(value["id"])
    except (ValueError, TypeError, AttributeError):
        return None


def with_results(value: Any, results: Callable[[UUID], Any]) -> Any:
    """Return a payload with the results in the places of references; the same object if it has none."""
    if (group_id := results_reference(value)) is not None:
        return results(group_id)
    if isinstance(value, dict):
        filled = {key: with_results(part, results) for key, part in value.items()}
        return filled if any(filled[key] is not part for key, part in value.items()) else value
    if isinstance(value, list):
        parts = [with_results(part, results) for part in value]
        return parts if any(new is not old for new, old in zip(parts, value, strict=True)) else value
    return value


def referenced_groups(payload: Any) -> list[UUID]:
    """Return the groups whose results a payload has references to."""
    groups: list[UUID] = []
    with_results(payload, groups.append)
    return groups


_REFERENCE = {GROUP_VALUE, "id"}


class OnEndWhen(StrEnum):
    """When the task of `on_end` is submitted: `ended`: at the end of the group, however its tasks ended.

    `completed`: only if all of them have completed.
    """

    ENDED = "ended"
    COMPLETED = "completed"


class OnEndState(StrEnum):
    """What became of `on_end`: `waiting` for the end, `submitted`, `skipped`, because not all have completed.

    `failed`: its task could not be submitted, for instance because the job no longer exists.
    """

    WAITING = "waiting"
    SUBMITTED = "submitted"
    SKIPPED = "skipped"
    FAILED = "failed"


class GroupOnEnd(RequestBody):
    """The task to submit when a group ends, of the job with this full name, in the room of the group.

    In `payload` a value ``{"$group": "counts"}`` is replaced by how many tasks have each status, and
    ``{"$group": "results"}`` by a reference to the results, which Python workers read before they call the
    job: a list in the order of submission, with null for each task that has not completed.
    """

    model_config = ConfigDict(extra="forbid")

    job: str
    payload: JsonObject = Field(default_factory=dict)
    when: OnEndWhen = OnEndWhen.ENDED


class NewGroup(RequestBody):
    """What a group has besides its room: a `name` for people, and a task to submit `on_end`.

    After `expires_in_seconds` no more tasks can be added, and tasks that no worker has claimed fail. Without
    it, a group that is not sealed a week after its creation is sealed.
    """

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Printable, Field(min_length=1, max_length=MAX_GROUP_NAME)] | None = None
    on_end: GroupOnEnd | None = None
    expires_in_seconds: Seconds | None = None


class GroupRequest(NewGroup):
    """Create a group in a room. Submit its tasks with its id as `group`, and seal it after the last one."""

    room: str


class BatchGroup(GroupRequest):
    """The group that a batch makes for its tasks; it is sealed unless `sealed` is false."""

    sealed: bool = True


def _sealing(value: Any) -> Any:
    if value is False:
        raise ValueError("a group cannot be opened again; send true to seal it")
    return value


class GroupUpdate(RequestBody):
    """Seal a group: no more tasks can be added, and it ends when all have ended."""

    model_config = ConfigDict(extra="forbid")

    sealed: Annotated[Literal[True], BeforeValidator(_sealing)]


class GroupFailure(ResponseBody):
    """A failed task of a group. `error` has at most 300 characters."""

    id: UUID
    job_name: str
    error: str | None = None
    error_code: str | None = None


class GroupResponse(ResponseBody):
    """A group of tasks of a room.

    - `parent`: only of a group that the token of a task has made: this task, the parent of all its tasks.
    - `sealed`: no more tasks can be added. A sealed group ends when all its tasks have ended, at `ended_at`.
      A task that is retried afterwards changes the counts, but the group stays ended.
    - `counts`, `total`: how many of its tasks have each status, and how many there are.
    - `progress`: from 0 to 1: the share of ended tasks, and of running ones what they report; null without
      tasks.
    - `failures`: the first ten failed tasks, in the order of submission.
    - `expires_at`: when waiting tasks fail; null if they do not, or the group has ended.
    - `on_end`, `on_end_state`: what to submit at the end, and whether that has happened. `on_end_task`: the
      task that was submitted. `error`: why it could not be submitted.
    """

    id: UUID
    room: str
    name: str | None = None
    created_by: str
    parent: UUID | None = Field(default=None, exclude_if=is_none)
    created_at: datetime
    sealed: bool = False
    expires_at: datetime | None = None
    ended_at: datetime | None = None
    total: int = 0
    counts: StatusCounts
    progress: float | None = None
    failures: list[GroupFailure] = Field(default_factory=list)
    on_end: GroupOnEnd | None = Field(default=None, exclude_if=is_none)
    on_end_state: OnEndState | None = Field(default=None, exclude_if=is_none)
    on_end_task: UUID | None = Field(default=None, exclude_if=is_none)
    error: str | None = Field(default=None, exclude_if=is_none)


class GroupResult(ResponseBody):
    """A line of the results of a group: a task, and its result if it has completed.

    `stored`: the result is kept as bytes, read it at the task's `result`.
    """

    id: UUID
    status: str
    result: Any = None
    stored: bool = Field(default=False, exclude_if=lambda value: not value)
    error: str | None = Field(default=None, exclude_if=is_none)
    error_code: str | None = Field(default=None, exclude_if=is_none)


class GroupCounts(ResponseBody):
    """How far a group is, as in a `GroupResponse`: the event of its stream when this has changed."""

    sealed: bool
    total: int
    counts: StatusCounts
    progress: float | None = None


class GroupEvents(ResponseBody):
    """A group, if it has changed since the state `after`. `next` is the number of its state.

    `ended`: the group has ended, and no further events follow.
    """

    group: GroupResponse | None = Field(default=None, exclude_if=is_none)
    next: int
    ended: bool = False
