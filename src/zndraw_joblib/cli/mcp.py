"""The command mcp: tools for agents, by the Model Context Protocol, on standard input and output.

Its tools read. With ``--changes`` others preview a change, and one applies what was previewed: it takes the
confirmation of a preview once, within five minutes. All rights are those of the token.
"""

import json
import secrets
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer
from pydantic import BaseModel

from zndraw_joblib.cli.client import AdminClient, open_client, parse_id
from zndraw_joblib.cli.display import CommandError
from zndraw_joblib.cli.options import Url
from zndraw_joblib.client.calls import validated
from zndraw_joblib.client.connection import DEFAULT_URL
from zndraw_joblib.client.queue import Queue
from zndraw_joblib.client.submits import NewTask
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.names import DEFAULT_ROOM, validate_room_id
from zndraw_joblib.wire.operators import BulkAction, TaskFilter
from zndraw_joblib.wire.problems import ProblemException

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

MAX_ITEMS = 100
# An agent pays for each character that it reads.
MAX_CHARACTERS = 20_000
CONFIRMATION_SECONDS = 300.0
MAX_CONFIRMATIONS = 100
_INSTRUCTIONS = (
    "A job queue: workers run the tasks of jobs. A task belongs to a room; its id may be shortened. "
    "`explain_task` says why a task waits or has failed, `list_failures` which failures are frequent."
)
_TO_CHANGE = (
    " A change needs two calls: one that previews it, and `confirm` with the confirmation that this returns. "
    "Show the preview to your user before you confirm."
)

WithChanges = Annotated[
    bool, typer.Option("--changes", help="Also offer tools that change tasks, each with a preview first.")
]
Apply = Callable[[AdminClient], Any]


def shown(value: Any) -> Any:
    """Return a message as plain data; if it has more than 20,000 characters, the first of them as a text."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json", by_alias=True, exclude_none=True)
    text = json.dumps(value, ensure_ascii=False)
    if len(text) <= MAX_CHARACTERS:
        return value
    return {"begins": text[:MAX_CHARACTERS], "characters": len(text)}


class Confirmations:
    """Changes that were previewed and wait for their confirmation: 100 at most, the newest ones."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waiting: dict[str, tuple[float, Apply]] = {}

    def add(self, apply: Apply) -> str:
        """Return the confirmation of a change."""
        while len(self._waiting) >= MAX_CONFIRMATIONS:
            del self._waiting[next(iter(self._waiting))]
        confirmation = secrets.token_urlsafe(12)
        self._waiting[confirmation] = self._clock() + CONFIRMATION_SECONDS, apply
        return confirmation

    def take(self, confirmation: str) -> Apply:
        """Return the change of a confirmation, which is used up. Raises `CommandError`."""
        until, apply = self._waiting.pop(confirmation, (0.0, None))
        if apply is None or self._clock() > until:
            raise CommandError(
                "There is no change with this confirmation: it was applied, is older than 5 minutes, or was "
                "never previewed. Preview the change again"
            )
        return apply


class Tools:
    """The tools, as methods; each opens a connection of its own."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.confirmations = Confirmations()

    def _do(self, work: Callable[[AdminClient], Any]) -> Any:
        """Return what `work` returns, as plain data. Raises the error of an agent's call."""
        from mcp.server.mcpserver.exceptions import ToolError  # noqa: PLC0415 - an extra

        try:
            with open_client(self._url) as client:
                return shown(work(client))
        except (CommandError, ProblemException, typer.BadParameter, ValueError, TypeError) as error:
            raise ToolError(str(error)) from error

    def overview(self, room: str | None = None) -> Any:
        """How much waits, runs and fails, and what is wrong with remedies; of all rooms without `room`."""
        if room is None:
            return self._do(lambda client: client.read(ops.GET_OVERVIEW, "the overview"))
        return self._do(
            lambda client: client.read(ops.GET_ROOM_OVERVIEW, "overviews of rooms", room_id=room_id(room))
        )

    def list_jobs(self, room: str = DEFAULT_ROOM) -> Any:
        """The jobs that a room sees: full name, workers and numbers of tasks."""
        return self._do(
            lambda client: {
                "jobs": [
                    job.model_dump(mode="json", by_alias=True, exclude={"schema_"}, exclude_none=True)
                    for job in client.all_jobs(room_id(room))[:MAX_ITEMS]
                ]
            }
        )

    def show_job(self, job: str, room: str = DEFAULT_ROOM) -> Any:
        """A job by its name: the JSON Schema of its payload, its policy, its workers."""
        return self._do(lambda client: client.job(client.find_job(job, room_id(room)), room))

    def find_tasks(
        self,
        room: str | None = DEFAULT_ROOM,
        status: str | None = None,
        job: str | None = None,
        error_code: str | None = None,
        text: str | None = None,
        limit: int = 20,
    ) -> Any:
        """Tasks, newest first; `text` is a part of payload or error. Only superusers leave out the room."""

        def work(client: AdminClient) -> Any:
            filters = task_filter(client, room, status, job, error_code, text)
            items, has_more = client.search(filters, min(max(limit, 1), MAX_ITEMS))
            tasks = [task.model_dump(mode="json", by_alias=True, exclude_none=True) for task in items]
            return {"tasks": tasks, "there_may_be_more": has_more}

        return self._do(work)

    def show_task(self, task: str) -> Any:
        """A task: its status, payload, progress, and result or error."""
        return self._do(lambda client: client.get_task(task_id(client, task)))

    def task_history(self, task: str) -> Any:
        """Each change of a task's status: when, by whom and why."""
        return self._do(lambda client: client.history(task_id(client, task)))

    def task_log(self, task: str, lines: int = 100) -> Any:
        """The last lines of the log of a task's last attempt."""

        def work(client: AdminClient) -> Any:
            last_lines: deque[Any] = deque(maxlen=min(max(lines, 1), 1000))
            for part in client.log_parts(task_id(client, task), None, 0):
                last_lines.extend(part)
            return {
                "lines": [
                    line.model_dump(mode="json", by_alias=True, exclude_none=True) for line in last_lines
                ]
            }

        return self._do(work)

    def explain_task(self, task: str) -> Any:
        """Why a task has its status, most important reason first, each with a remedy."""
        return self._do(lambda client: client.explain(task_id(client, task)))

    def list_workers(self, room: str | None = None) -> Any:
        """Workers, newest first: name, host, state, slots, labels."""
        return self._do(
            lambda client: client.workers(None if room is None else room_id(room), limit=MAX_ITEMS)
        )

    def list_failures(self, room: str | None = DEFAULT_ROOM, job: str | None = None) -> Any:
        """Failed tasks, counted by job and exception, the most frequent first."""
        return self._do(lambda client: client.failures(task_filter(client, room, None, job, None, None)))

    def preview_submit(self, job: str, payload: dict[str, Any], room: str = DEFAULT_ROOM) -> Any:
        """Say what `confirm` would submit: a task of a job, with its payload."""

        def work(client: AdminClient) -> Any:
            name = str(client.find_job(job, room_id(room)))
            task = NewTask(name, payload, room=room)

            def apply(_: AdminClient) -> Any:
                with Queue(self._url) as queue:
                    return queue.submit(task).refresh()

            return {
                "would_submit": {"job": name, "room": room, "payload": payload},
                "confirmation": self.confirmations.add(apply),
            }

        return self._do(work)

    def preview_change(
        self,
        action: str,
        room: str = DEFAULT_ROOM,
        status: str | None = None,
        job: str | None = None,
        error_code: str | None = None,
        text: str | None = None,
    ) -> Any:
        """Count the tasks that `confirm` would change. `action` is cancel, retry or release."""

        def work(client: AdminClient) -> Any:
            if action not in _ACTIONS:
                raise CommandError(f"action: {action!r:.100} is none of {', '.join(_ACTIONS)}")
            filters = task_filter(client, room, status, job, error_code, text)
            preview = client.preview_bulk(BulkAction(action), filters)
            confirmation = self.confirmations.add(lambda other: other.apply_bulk(preview, filters))
            fields = preview.model_dump(mode="json", by_alias=True, exclude={"token", "expires_at"})
            return {**fields, "examples": fields["examples"][:5], "confirmation": confirmation}

        return self._do(work)

    def confirm(self, confirmation: str) -> Any:
        """Apply a change that was previewed up to 5 minutes ago, once."""

        def work(client: AdminClient) -> Any:
            return self.confirmations.take(confirmation)(client)

        return self._do(work)


# What an agent may do to many tasks. A purge deletes for good.
_ACTIONS = ("cancel", "retry", "release")


def room_id(room: str) -> str:
    """Return a room. Raises `InvalidRoomId`."""
    return validate_room_id(room)


def task_id(client: AdminClient, text: str) -> UUID:
    """Return the id of the task that begins with a text. Raises `CommandError`, `typer.BadParameter`."""
    return client.find_task(parse_id(text))


def task_filter(
    client: AdminClient,
    room: str | None,
    status: str | None,
    job: str | None,
    error_code: str | None,
    text: str | None,
) -> TaskFilter:
    """Return a filter of tasks. Raises ValueError that names the wrong argument, and `CommandError`."""
    lists: dict[str, str | None] = {"room": room, "status": status, "error_code": error_code}
    if job is not None:
        lists["job"] = str(client.find_job(job, room))
    fields: dict[str, Any] = {name: [value] for name, value in lists.items() if value is not None}
    return validated(TaskFilter, fields if text is None else {**fields, "text": text})


def new_server(url: str, *, has_changes: bool) -> "MCPServer[Any]":
    """Return the server of the protocol with its tools. Raises ImportError without the extra ``mcp``."""
    from importlib.metadata import version  # noqa: PLC0415 - it takes longer than the help

    from mcp.server.mcpserver import MCPServer  # noqa: PLC0415 - an extra
    from mcp.types import ToolAnnotations  # noqa: PLC0415 - an extra

    tools = Tools(url)
    server: MCPServer[Any] = MCPServer(
        "zndraw-joblib",
        instructions=_INSTRUCTIONS + (_TO_CHANGE if has_changes else ""),
        version=version("zndraw-joblib"),
        log_level="WARNING",
    )
    reads = (
        *(tools.overview, tools.list_jobs, tools.show_job, tools.find_tasks, tools.show_task),
        *(tools.task_history, tools.task_log, tools.explain_task, tools.list_workers, tools.list_failures),
    )
    previews = (tools.preview_submit, tools.preview_change)
    for tool in (*reads, *(previews if has_changes else ())):
        server.tool(annotations=ToolAnnotations(read_only_hint=True), structured_output=False)(tool)
    if has_changes:
        changes = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=False)
        server.tool(annotations=changes, structured_output=False)(tools.confirm)
    return server


def mcp(*, changes: WithChanges = False, url: Url = DEFAULT_URL) -> None:
    """Offer the queue to agents, on standard input and output.

    An agent's program starts it, by the Model Context Protocol. The rights are those of the token.
    """
    try:
        server = new_server(url, has_changes=changes)
    except ImportError as error:
        raise CommandError(
            "mcp needs the package of that name: run pip install 'zndraw-joblib[mcp]'"
        ) from error
    server.run()
