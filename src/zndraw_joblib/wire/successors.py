"""Successors: tasks that wait for the ends of others, and the results of these in their payloads."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, NamedTuple
from uuid import UUID

from pydantic import ConfigDict, Field, StrictInt, field_validator, model_validator

from zndraw_joblib.wire.bodies import RequestBody, ResponseBody
from zndraw_joblib.wire.pointers import MAX_POINTER, find, pointer_of

# How many predecessors a task may have: tasks and groups together.
MAX_PREDECESSORS = 100
# And all tasks of a batch together.
MAX_BATCH_PREDECESSORS = 10_000
# In a payload, an object with only this key stands for the result of a predecessor.
RESULT_VALUE = "$result"
# A result that is longer as JSON is passed as a reference, which the worker's SDK reads.
MAX_INLINE_BYTES = 64 * 1024
_REFERENCE = {RESULT_VALUE, "id"}
# The response header with which a server vouches that a task has waited for the one whose result it is.
SUCCESSOR = "Successor"


class OnFailure(StrEnum):
    """What a task does if a predecessor ends, but has not completed.

    `fail`: it fails with the code ``predecessor-failed``. `run`: it runs after the last end all the same.
    `hold`: it stays pending until the predecessor was retried and has completed, or it is run by hand.
    """

    FAIL = "fail"
    RUN = "run"
    HOLD = "hold"


Index = Annotated[StrictInt, Field(ge=0, lt=1000)]


class After(RequestBody):
    """What a task waits for: `tasks` by their ids, and `groups` of the same room, together at most 100.

    In a batch that is atomic or makes a group, `tasks` may have indexes of earlier items. `on_failure` says
    what happens if one of them ends, but has not completed. A group has completed if all its tasks have.
    """

    model_config = ConfigDict(extra="forbid")

    tasks: list[UUID | Index] = Field(default_factory=list, max_length=MAX_PREDECESSORS, fail_fast=True)
    groups: list[UUID] = Field(default_factory=list, max_length=MAX_PREDECESSORS, fail_fast=True)
    on_failure: OnFailure = OnFailure.FAIL

    @field_validator("tasks", "groups", mode="before")
    @classmethod
    def _check_length(cls, entries: Any) -> Any:
        # The error of max_length has no remedy.
        if isinstance(entries, Sequence) and len(entries) > MAX_PREDECESSORS:
            raise _too_many("it has", len(entries))
        return entries

    @model_validator(mode="after")
    def _check_number(self) -> "After":
        number = len(self.tasks) + len(self.groups)
        if not number:
            raise ValueError("name at least one of the tasks or groups to wait for, or leave out after")
        if number > MAX_PREDECESSORS:
            raise _too_many("tasks and groups have", number)
        return self


def _too_many(what: str, number: int) -> ValueError:
    return ValueError(
        f"{what} {number} entries, at most {MAX_PREDECESSORS} together are allowed; "
        "submit the tasks to a group, and wait for the group"
    )


def check_batch(afters: Sequence[After | None], *, is_atomic: bool) -> None:
    """Raise ValueError if the tasks of a batch wait for too many, or for items that are not earlier ones."""
    waiting = [(index, after) for index, after in enumerate(afters) if after is not None]
    number = sum(len(after.tasks) + len(after.groups) for _, after in waiting)
    if number > MAX_BATCH_PREDECESSORS:
        raise ValueError(
            f"tasks: they wait for {number} tasks and groups in all; at most "
            f"{MAX_BATCH_PREDECESSORS} in one batch are allowed, so send several, or wait for groups"
        )
    for index, after in waiting:
        earlier = [entry for entry in after.tasks if isinstance(entry, int)]
        if earlier and not is_atomic:
            raise ValueError(
                f"tasks.{index}.after.tasks: indexes need a batch that is atomic or makes a group; set atomic"
            )
        if any(entry >= index for entry in earlier):
            raise ValueError(
                f"tasks.{index}.after.tasks: {max(earlier)} is no earlier item of the batch; a task "
                "waits for items before it"
            )


class TaskAfter(ResponseBody):
    """What a task waits for, or has waited for; `waits_for` are the ids of those that keep it waiting now."""

    tasks: list[UUID] = Field(default_factory=list)
    groups: list[UUID] = Field(default_factory=list)
    on_failure: OnFailure = OnFailure.FAIL
    waits_for: list[UUID] = Field(default_factory=list)


class ResultOf(NamedTuple):
    """A value of a payload that stands for a result: of a task, or of an item of the batch by its index."""

    task: UUID | int
    pointer: str


def result_of(value: Any) -> ResultOf | None:
    """Return which result a value of a payload stands for; None if it is another value.

    Raises ValueError for an object with the key ``$result`` alone that names no result.
    """
    if not (isinstance(value, dict) and value.keys() == {RESULT_VALUE}):
        return None
    return _parsed(value[RESULT_VALUE])


def result_reference(value: Any) -> ResultOf | None:
    """Return the result that a worker's SDK has to read in the place of a value; None if it is another value.

    Such a value is ``{"$result": {"task": …, "pointer": …}, "id": …}``, with the id of the predecessor twice.
    """
    if not (isinstance(value, dict) and value.keys() == _REFERENCE):
        return None
    try:
        return _parsed({**value[RESULT_VALUE], "task": value["id"]})
    except (ValueError, TypeError):
        return None


def reference_to(result: ResultOf) -> dict[str, Any]:
    """Return the value of a payload that refers to a result."""
    task_id = str(result.task)
    return {RESULT_VALUE: {"task": task_id, "pointer": result.pointer}, "id": task_id}


def _parsed(value: Any) -> ResultOf:
    if not isinstance(value, dict) or not {"task"} <= value.keys() <= {"task", "pointer"}:
        raise ValueError('it must be an object with "task", and perhaps "pointer"')
    task, pointer = value["task"], value.get("pointer", "")
    if not isinstance(pointer, str) or (pointer and pointer[0] != "/") or len(pointer) > MAX_POINTER:
        raise ValueError(
            f"pointer: it must be a JSON pointer of at most {MAX_POINTER} characters, empty for the whole "
            'result or beginning with "/"'
        )
    if isinstance(task, str):
        try:
            return ResultOf(UUID(task), pointer)
        except ValueError:
            raise ValueError("task: it must be the id of a task, or an index of the batch") from None
    if isinstance(task, bool) or not isinstance(task, int):
        raise ValueError("task: it must be the id of a task, or an index of the batch")
    return ResultOf(task, pointer)


def value_at(value: Any, pointer: str) -> Any:
    """Return the part of a value at a JSON pointer (RFC 6901). Raises LookupError if it leads nowhere."""
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, list) and name.isascii() and name.isdecimal() and str(int(name)) == name:
            value = value[int(name)]
        elif isinstance(value, Mapping):
            value = value[name]
        else:
            raise LookupError(name)
    return value


def places(payload: Any) -> Iterator[tuple[str, Any]]:
    """Yield the values of a payload that have the key ``$result`` alone, each with its JSON pointer.

    Raises ValueError if a pointer has more than 1,000 characters.
    """
    for way, node in find(payload, _stands_for_result):
        yield pointer_of(way), node


def result_nodes(payload: Any) -> Iterator[Any]:
    """Yield the values of a payload that have the key ``$result`` alone."""
    return (node for _, node in find(payload, _stands_for_result))


def _stands_for_result(node: dict[str, Any]) -> bool:
    return node.keys() == {RESULT_VALUE}


def with_values(payload: Any, value_of: Callable[[Any], Any]) -> Any:
    """Return a payload in which `value_of(node)` replaces each node for which it returns another object.

    Nodes that it replaces are not looked into. The same object is returned if none was replaced.
    """
    if (new := value_of(payload)) is not payload:
        return new
    if isinstance(payload, dict):
        filled = {key: with_values(part, value_of) for key, part in payload.items()}
        return filled if any(filled[key] is not part for key, part in payload.items()) else payload
    if isinstance(payload, list):
        parts = [with_values(part, value_of) for part in payload]
        return parts if any(new is not old for new, old in zip(parts, payload, strict=True)) else payload
    return payload


def with_referenced(payload: Any, read: Callable[[ResultOf], Any]) -> Any:
    """Return a payload with `read(reference)` in the places of references to results."""

    def value_of(node: Any) -> Any:
        reference = result_reference(node)
        return node if reference is None else read(reference)

    return with_values(payload, value_of)


def referenced_results(payload: Any) -> list[ResultOf]:
    """Return the results that a payload has references to."""
    references: list[ResultOf] = []
    with_referenced(payload, references.append)
    return references
