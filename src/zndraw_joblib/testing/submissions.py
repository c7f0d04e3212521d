"""Find submitted tasks, and list all of them where a test expects others."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zndraw_joblib.contract.messages import TaskResponse
from zndraw_joblib.contract.names import parse_job_name
from zndraw_joblib.testing.job_classes import is_job, shown

_MAX_LISTED = 50
_MAX_PAYLOAD_CHARACTERS = 500


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which tasks a test expects; None matches any value, `payload` any payload with these fields."""

    job: Any
    room: str | None = None
    payload: Mapping[str, Any] | None = None
    created_by: str | None = None

    def matches(self, task: TaskResponse) -> bool:
        """Return whether a task is one of these."""
        return (
            is_job(parse_job_name(task.job_name), self.job)
            and self.room in {None, task.room_id}
            and self.created_by in {None, task.created_by}
            and (self.payload is None or _contains(task.payload, self.payload))
        )

    def __str__(self) -> str:
        """Return the expectation as part of a sentence."""
        parts = [f"of {shown(self.job)}"]
        parts += [] if self.room is None else [f"in room {self.room!r}"]
        parts += [] if self.created_by is None else [f"by {self.created_by!r}"]
        parts += [] if self.payload is None else [f"with {dict(self.payload)} in the payload"]
        return " ".join(parts)


def expect_submitted(wanted: Wanted, tasks: Sequence[TaskResponse], count: int | None) -> list[TaskResponse]:
    """Return the tasks that match. Raises AssertionError if there are none, or not `count`."""
    __tracebackhide__ = True
    found = [task for task in tasks if wanted.matches(task)]
    if count is not None and len(found) != count:
        raise AssertionError(
            f"Tasks {wanted} that were submitted: {len(found)}, expected {count}. {_listed(tasks)}"
        )
    if count is None and not found:
        raise AssertionError(f"No task {wanted} was submitted. {_listed(tasks)}")
    return found


def expect_none(wanted: Wanted, tasks: Sequence[TaskResponse]) -> None:
    """Raise AssertionError if a task matches."""
    __tracebackhide__ = True
    found = [task for task in tasks if wanted.matches(task)]
    if found:
        raise AssertionError(
            f"Tasks {wanted} that were submitted: {len(found)}, expected none. {_listed(tasks)}"
        )


def _listed(tasks: Sequence[TaskResponse]) -> str:
    if not tasks:
        return "No task was submitted at all. A task of a transaction exists after its commit."
    lines = [f"- {_line(task)}" for task in tasks[-_MAX_LISTED:]]
    hidden = len(tasks) - len(lines)
    more = [f"- … and {hidden} before"] if hidden else []
    return "\n".join(["Submitted tasks:", *more, *lines])


def _line(task: TaskResponse) -> str:
    payload = json.dumps(task.payload, ensure_ascii=False)
    if len(payload) > _MAX_PAYLOAD_CHARACTERS:
        payload = payload[:_MAX_PAYLOAD_CHARACTERS] + " …"
    return f"{task.job_name} in room {task.room_id!r} by {task.created_by!r}, {task.status}: {payload}"


def _contains(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, Mapping):
        return isinstance(found, Mapping) and all(
            key in found and _contains(found[key], value) for key, value in wanted.items()
        )
    return bool(found == wanted)
