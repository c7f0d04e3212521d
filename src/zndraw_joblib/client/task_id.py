"""The id of a task as text with the last known state of the task, and a bar that shows how far tasks are."""

import sys
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar
from uuid import UUID

from zndraw_joblib.client import calls
from zndraw_joblib.client.calls import Call
from zndraw_joblib.client.retry import RetryRule
from zndraw_joblib.jobs.logs import one_line
from zndraw_joblib.jobs.outputs import Output
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.groups import GroupResponse
from zndraw_joblib.wire.messages import TaskResponse

if TYPE_CHECKING:
    from rich.progress import Progress

Rest = TypeVar("Rest")


class TaskId(str, Generic[Rest]):
    """The id of a task; `state` is the task as it was read last, `room_id` its room, None before that.

    `duplicate`: its submit made no task, because this one holds the submit's unique key.
    """

    state: TaskResponse | None
    room_id: str | None
    duplicate: bool
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
        handle.duplicate = bool(state is not None and state.duplicate)
        handle.room_id = state.room_id if state else room
        return handle

    @property
    def id(self) -> UUID:
        """The id."""
        return UUID(str(self))

    def output(self, pointer: str = "") -> Any:
        """Return what stands for the task's result, or a part of it, in the payload of a later task.

        The later task waits for this one: ``queue.submit("Relax", {"atoms": build.output("/atoms")})``.
        `pointer` is a JSON pointer (RFC 6901). Raises ValueError for another text.
        """
        return Output(str(self), pointer)

    def __repr__(self) -> str:
        status = f" {self.state.status} {self.state.job_name}" if self.state else ""
        return f"<{type(self).__name__} {self}{status}{' duplicate' if self.duplicate else ''}>"

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

    def _cancel_call(self, key: str, *, tree: bool = False) -> Call[TaskResponse]:
        return calls.cancel_task(self, key, tree=tree)

    def _retry_call(self, key: str) -> Call[TaskResponse]:
        return calls.act_on_task(ops.RETRY_TASK, self, key=key)

    def _run_now_call(self, key: str) -> Call[TaskResponse]:
        return calls.act_on_task(ops.RUN_TASK_NOW, self, key=key)


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


# A bar that shows how far tasks are: in a notebook, or on the standard error of a terminal.

_MAX_TEXT = 200


class Bar:
    """A progress bar, a context manager. Without `shown`, and where no user can see it, it does nothing."""

    SECONDS: ClassVar[float] = 1.0

    def __init__(self, *, shown: bool) -> None:
        self._notebook = _NotebookBar() if shown and _is_notebook() else None
        self.progress = _terminal_bar() if shown and self._notebook is None else None

    def show(self, text: str, current: float, total: float | None) -> None:
        """Show that `current` of `total` are done; an unknown total is None."""
        text = one_line(text[:_MAX_TEXT])
        if self._notebook is not None:
            self._notebook.show(text, current, total)
        elif self.progress is not None:
            self.progress.update(self.progress.task_ids[0], description=text, completed=current, total=total)

    def show_task(self, task: TaskResponse) -> None:
        """Show the status and the progress of a task."""
        progress = task.progress
        message = f"{task.status}: {progress.message}" if progress and progress.message else str(task.status)
        current, total = (progress.current, progress.total) if progress else (None, None)
        self.show(message, current or 0, total)

    def show_group(self, group: GroupResponse) -> None:
        """Show how many tasks of a group have ended."""
        counts = group.counts
        failed = f", {counts.failed:,} failed" if counts.failed else ""
        name = group.name or "group"
        self.show(f"{name}{failed}", counts.completed + counts.failed + counts.cancelled, group.total or None)

    def __enter__(self) -> Self:
        if self.progress is not None:
            self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.progress is not None:
            self.progress.stop()


def _terminal_bar() -> "Progress":
    # Few clients show bars, and rich takes long to load.
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    bar.add_task("", total=None)
    return bar


class _NotebookBar:
    """A bar of HTML below the cell, which is replaced; it needs no widgets."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, text: str, current: float, total: float | None) -> None:
        ipython: Any = import_module("IPython.display")  # only notebooks have it
        limits = f'value="{current:g}" max="{total:g}"' if total else ""
        count = f" {current:g}/{total:g}" if total else ""
        html = ipython.HTML(f"<progress {limits}></progress>{count} {escape(text)}")
        if self._handle is None:
            self._handle = ipython.display(html, display_id=True)
        else:
            self._handle.update(html)


def _is_notebook() -> bool:
    """Return whether this is the kernel of a notebook."""
    shell = sys.modules.get("IPython")
    return shell is not None and getattr(shell.get_ipython(), "kernel", None) is not None
