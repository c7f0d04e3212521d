"""Follow the events of a task, and its log, each line once."""

from collections.abc import Callable, Sequence
from uuid import UUID

from zndraw_joblib.cli.client import AdminClient
from zndraw_joblib.cli.display import print_note
from zndraw_joblib.client.retry import is_connection_error, is_missing
from zndraw_joblib.contract.events import TaskStatusEvent
from zndraw_joblib.contract.history import NumberedLine
from zndraw_joblib.contract.messages import TaskResponse
from zndraw_joblib.contract.progress import LogPart, Progress
from zndraw_joblib.contract.status import TERMINAL, TaskStatus
from zndraw_joblib.contract.streams import EventKind, StreamEvent

# How often the reason of a pending task is requested; how often a server without streams is polled.
_PENDING_SECONDS, _POLL_SECONDS = 5, 1
_STATE = {"status", "started_at", "completed_at", "queue_position", "worker_id", "error"}
# Takes log lines, and the number of the line before them.
Show = Callable[[Sequence[NumberedLine], int], None]


class LogReader:
    """Shows the log of a task from its current attempt on, each line once."""

    def __init__(self, client: AdminClient, task_id: UUID, show: Show) -> None:
        self._client = client
        self._task_id = task_id
        self._show = show
        self._attempt = self._attempts = 0
        self._after = 0

    def read(self, task: TaskResponse) -> None:
        """Show the new lines up to the present attempt of a task, those of the earlier attempts first."""
        while 0 < self._attempt < task.attempt:
            self._read()
            self._attempt, self._after = self._attempt + 1, 0
            # Of several claims since the last look, the last ones are taken for those that have started.
            number = task.attempts - (task.attempt - self._attempt)
            if number > self._attempts:
                print_note(f"Attempt {number} begins.")
        self._attempt, self._attempts = task.attempt, task.attempts
        if task.attempt:
            self._read()

    def add(self, attempt: int, part: LogPart) -> None:
        """Show the new lines of a part of an attempt's log; the lines before it were shown."""
        if attempt > self._attempt:
            self.read(self._client.get_task(self._task_id))
        numbered = enumerate(part.lines, part.first)
        new = [NumberedLine(n=n, **dict(line)) for n, line in numbered if n > self._after]
        if attempt == self._attempt and new:
            self._add(new)

    def _read(self) -> None:
        for lines in self._client.log_parts(self._task_id, self._attempt, self._after):
            self._add(lines)

    def _add(self, lines: Sequence[NumberedLine]) -> None:
        self._show(lines, self._after)
        self._after = lines[-1].n


class TaskStream:
    """A task as its events say, which a lost connection does not interrupt. It is polled without events.

    The first state comes from a request for the task, which is enough for a short one.
    """

    def __init__(self, client: AdminClient, task_id: UUID, show: Show) -> None:
        self._client = client
        self._task_id = task_id
        self._log = LogReader(client, task_id, show)
        self._task: TaskResponse | None = None
        self._position: int | None = None
        self._has_events = True

    def read(self, wait: int) -> tuple[TaskResponse, int]:
        """Return the task after its next change, and how many seconds the server agreed to wait for one."""
        if self._task is not None and self._has_events:
            is_pending = self._task.status == TaskStatus.PENDING
            try:
                return self._read_events(self._task, min(wait, _PENDING_SECONDS) if is_pending else wait)
            except Exception as error:
                self._has_events = not is_missing(error)
                if self._has_events and is_connection_error(error):
                    raise
        self._task, applied = self._client.read_task(self._task_id, min(wait, _POLL_SECONDS))
        self._position = None
        self._log.read(self._task)
        return self._task, applied

    def _read_events(self, task: TaskResponse, wait: int) -> tuple[TaskResponse, int]:
        part, applied = self._client.task_events(self._task_id, self._position, wait)
        if part.snapshot is not None:
            task = part.snapshot
            self._log.read(task)
        for event in part.events:
            task = self._apply(task, event)
        if part.ended or task.status in TERMINAL:
            # With its result and its failure; or it was retried since, and the events continue.
            task = self._client.get_task(self._task_id)
        self._task, self._position = task, part.next
        return task, applied

    def _apply(self, task: TaskResponse, event: StreamEvent) -> TaskResponse:
        if event.kind == EventKind.STATUS:
            changes = TaskStatusEvent.model_validate(event.data).model_dump(include=_STATE)
            is_new = changes["status"] == TaskStatus.CLAIMED
            return task.model_copy(update=changes | ({"progress": None} if is_new else {}))
        if event.kind == EventKind.PROGRESS:
            return task.model_copy(update={"progress": Progress.model_validate(event.data["progress"])})
        if event.kind == EventKind.LOG:
            self._log.add(event.data["attempt"], LogPart.model_validate(event.data))
        return task
