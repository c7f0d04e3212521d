"""Follow a task until it ends: its progress, its log, and why it waits."""

import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from datetime import timedelta
from uuid import UUID

from rich.console import RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from zndraw_joblib.cli.client import AdminClient
from zndraw_joblib.cli.display import console, format_duration, print_note
from zndraw_joblib.cli.errors import CommandError
from zndraw_joblib.cli.task_output import amount_text, line_text, print_lines
from zndraw_joblib.cli.task_stream import TaskStream
from zndraw_joblib.client.retry import is_unreachable
from zndraw_joblib.contract.history import NumberedLine
from zndraw_joblib.contract.messages import TaskResponse
from zndraw_joblib.contract.status import TERMINAL, TaskStatus
from zndraw_joblib.contract.terminal import one_line

# The exit code of timeout(1).
EXIT_TIMEOUT = 124
_EXPLAIN_SECONDS = 5.0
_SHOWN_LINES = 5
_REMEDIES = {
    "paused": "'zndraw-joblib resume JOB' resumes it",
    "no_worker": "'zndraw-joblib worker FILE' starts one",
    "draining": "'zndraw-joblib worker FILE' starts another one",
    "not_claimed": "'zndraw-joblib worker FILE' starts one that does",
}


class TaskBar(Progress):
    """The last log lines of a task, and its status and progress below them; on a terminal only."""

    def __init__(self) -> None:
        self._lines: deque[Text] = deque(maxlen=_SHOWN_LINES)
        terminal = console(stderr=True)
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[amount]}", markup=False),
        )
        super().__init__(
            *columns,
            TimeElapsedColumn(),
            console=terminal,
            transient=True,
            refresh_per_second=4,
            disable=not terminal.is_terminal,
            # Otherwise lines for a file or a pipe would go to the terminal.
            redirect_stdout=sys.stdout.isatty(),
        )
        self._bar = self.add_task("", total=None, amount="")

    def show(self, task: TaskResponse, reason: str) -> None:
        """Show the state of a task, and why it waits."""
        progress, is_running = task.progress, task.status == TaskStatus.RUNNING
        message = reason if not is_running else progress.message if progress else None
        self.update(
            self._bar,
            description=one_line(f"{task.status}: {message}" if message else task.status),
            completed=(progress.current if progress else None) or 0,
            total=progress.total if progress else None,
            amount=amount_text(progress) if progress else "",
        )

    def add(self, lines: Sequence[NumberedLine], _: int = 0) -> None:
        """Show log lines below the earlier ones."""
        self._lines.extend(line_text(line) for line in lines[-_SHOWN_LINES:])

    def get_renderables(self) -> Iterator[RenderableType]:
        """Return what is shown: each log line in one line of the terminal."""
        for line in list(self._lines):
            shown = line.copy()
            shown.truncate(self.console.width, overflow="ellipsis")
            yield shown
        yield self.make_tasks_table(self.tasks)


class Waiting:
    """Finds out why a task waits."""

    def __init__(self, client: AdminClient) -> None:
        self._client = client
        self._next = 0.0
        self._printed: set[str] = set()
        self.reason = ""

    def update(self, task: TaskResponse) -> None:
        """Ask the server, at intervals, why a task waits. Print each reason with a remedy once."""
        if task.status != TaskStatus.PENDING:
            self.reason = ""
            return
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _EXPLAIN_SECONDS
        try:
            found = self._client.explain(task.id)
        except Exception as error:
            if not is_unreachable(error):
                raise
            return
        self.reason = found.reasons[0].detail if found.reasons else ""
        if found.wait_seconds is not None:
            self.reason = f"about {format_duration(timedelta(seconds=found.wait_seconds))}; {self.reason}"
        for reason in found.reasons:
            if (remedy := _REMEDIES.get(reason.code)) and reason.code not in self._printed:
                self._printed.add(reason.code)
                remedy = remedy.replace("JOB", task.job_name)
                print_note(f"Task {task.id} waits: {one_line(reason.detail)}; {remedy}.")


def follow(
    client: AdminClient, task_id: UUID, *, prints_lines: bool = False, timeout: float | None = None
) -> TaskResponse:
    """Return a task once it has ended; until then show its progress and log on a terminal.

    `prints_lines`: print the log lines on standard output instead. Ctrl-C and `timeout`, in seconds, end only
    the following. Raises `CommandError` with `EXIT_TIMEOUT`.
    """
    task = waiting = None
    try:
        with TaskBar() as bar:
            waiting = Waiting(client)
            is_live = prints_lines or not bar.disable
            stream = TaskStream(client, task_id, print_lines if prints_lines else bar.add)
            for task in client.states(task_id, timeout, stream.read if is_live else None):
                waiting.update(task)
                bar.show(task, waiting.reason)
                if task.status in TERMINAL:
                    return task
            raise AssertionError("the last state of a task is its end")
    except TimeoutError:
        state = f"is {task.status}" if task else "is out of reach"
        reason = f": {one_line(waiting.reason)}" if waiting and waiting.reason else ""
        raise CommandError(
            f"Task {task_id} {state} after {timeout:g} s{reason}. {_how_to_go_on(task_id)}", EXIT_TIMEOUT
        ) from None
    except KeyboardInterrupt:
        print_note(f"Stopped following. {_how_to_go_on(task_id)}.")
        raise


def _how_to_go_on(task_id: UUID) -> str:
    return (
        f"The task goes on: 'zndraw-joblib task {task_id} --follow' follows it, "
        f"'zndraw-joblib cancel {task_id}' cancels it"
    )
