"""The id of a task as text, with the last known state of the task."""

from html import escape
from typing import Any, Generic, Self, TypeVar
from uuid import UUID

from zndraw_joblib.client import operations
from zndraw_joblib.client.calls import Call
from zndraw_joblib.client.retry import RetryRule
from zndraw_joblib.contract.messages import TaskResponse, TaskUpdateRequest
from zndraw_joblib.contract.status import TaskStatus

Rest = TypeVar("Rest")


class TaskId(str, Generic[Rest]):
    """The id of a task; `state` is the task as it was read last, `room_id` its room, None before that."""

    state: TaskResponse | None
    room_id: str | None
    _rest: Rest
    _rule: RetryRule

    def __new__(
        cls,
        task_id: str | UUID,
        rest: Rest,
        rule: RetryRule,
        *,
        state: TaskResponse | None = None,
        room: str | None = None,
    ) -> Self:
        """Return the handle of a task; no request is sent. Raises ValueError for a text that is no UUID."""
        handle = str.__new__(cls, id_of(task_id))
        handle._rest, handle._rule = rest, rule
        handle.state = state
        handle.room_id = state.room_id if state else room
        return handle

    @property
    def id(self) -> UUID:
        """The id."""
        return UUID(str(self))

    def __repr__(self) -> str:
        status = f" {self.state.status} {self.state.job_name}" if self.state else ""
        return f"<{type(self).__name__} {self}{status}>"

    def __reduce_ex__(self, _: Any) -> Any:
        """Copy and pickle the plain text: a connection cannot be copied."""
        return str, (str(self),)

    def _repr_html_(self) -> str:
        """Show the task in a notebook, as it was read last."""
        task = self.state
        rows = {"task": str(self)}
        if task is not None:
            rows |= {"job": task.job_name, "room": task.room_id, "status": str(task.status)}
            if task.progress is not None and task.progress.message:
                rows["progress"] = task.progress.message
            if task.error:
                rows["error"] = task.error[:500]
        return fields_table(rows)

    def _keep(self, task: TaskResponse) -> TaskResponse:
        self.state, self.room_id = task, task.room_id
        return task

    def _what(self, verb: str) -> str:
        return f"{verb} task {self}"

    def _cancel_call(self, key: str) -> Call[TaskResponse]:
        return operations.update_task(self, TaskUpdateRequest(status=TaskStatus.CANCELLED), key)

    def _retry_call(self, key: str) -> Call[TaskResponse]:
        return operations.act_on_task(self, "retry", key=key)


def id_of(task: object) -> UUID:
    """Return the id of a task. Raises TypeError for another type, ValueError for a text that is no UUID."""
    if not isinstance(task, str | UUID):
        raise TypeError(f"{task!r:.99} is not a task: pass handles or ids, those of a list as gather(*tasks)")
    try:
        return UUID(str(task))
    except ValueError:
        raise ValueError(f"task_id: {str(task)!r:.100} is not a UUID") from None


def fields_table(fields: dict[str, str]) -> str:
    """Return fields as a table of escaped HTML, one line each."""
    lines = [f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in fields.items()]
    return f"<table>{''.join(lines)}</table>"


def table(rows: list[dict[str, str]]) -> str:
    """Return rows with the same columns as a table of escaped HTML."""
    head = "".join(f"<th>{escape(name)}</th>" for name in rows[0])
    lines = ["".join(f"<td>{escape(text)}</td>" for text in row.values()) for row in rows]
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"
