"""Follow a task until it ends: its progress, its log, and why it waits."""

import shlex
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from uuid import UUID

from zndraw_joblib.cli.client import AdminClient
from zndraw_joblib.cli.display import CommandError, counted, format_duration, print_note
from zndraw_joblib.cli.task_output import print_lines
from zndraw_joblib.client.retry import is_connection_error, is_missing, is_unreachable
from zndraw_joblib.jobs.logs import ID_CHARACTERS, one_line
from zndraw_joblib.wire.events import TaskStatusEvent
from zndraw_joblib.wire.history import EventKind, NumberedLine, Reason, StreamEvent, TaskExplanation
from zndraw_joblib.wire.messages import TaskResponse
from zndraw_joblib.wire.problems import ProblemException
from zndraw_joblib.wire.progress import LogPart
from zndraw_joblib.wire.progress import Progress as AttemptProgress
from zndraw_joblib.wire.statuses import TERMINAL, TaskStatus

# How often the reason of a pending task is requested; how often a server without streams is polled.
_PENDING_SECONDS, _POLL_SECONDS = 5, 1
_EARLIER_LINES = 10
_STATE = {"status", "started_at", "completed_at", "queue_position", "worker_id", "error"}
# Takes log lines, and the number of the line before them.
Show = Callable[[Sequence[NumberedLine], int], None]


class LogReader:
    """Shows the log of a task from its current attempt on, each line once.

    Of a task that runs already, only the last `earlier` of the lines so far, if that is not None.
    """

    def __init__(self, client: AdminClient, task_id: UUID, show: Show, earlier: int | None = None) -> None:
        self._earlier = earlier
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
        is_first = self._attempt == 0
        self._attempt, self._attempts = task.attempt, task.attempts
        if is_first and self._earlier is not None and task.status == TaskStatus.RUNNING:
            self._read_earlier(self._earlier)
        elif task.attempt:
            self._read()
        self._earlier = None

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

    def _read_earlier(self, count: int) -> None:
        lines: deque[NumberedLine] = deque(maxlen=count)
        for part in self._client.log_parts(self._task_id, self._attempt, 0):
            lines += part
        if lines and (left_out := lines[0].n - 1):
            number = counted(left_out, "earlier line")
            print_note(f"{number} of the log: 'zndraw-joblib task {self._task_id} --logs' prints all.")
            self._after = left_out
        if lines:
            self._add(list(lines))

    def _add(self, lines: Sequence[NumberedLine]) -> None:
        self._show(lines, self._after)
        self._after = lines[-1].n


class TaskStream:
    """A task as its events say, which a lost connection does not interrupt. It is polled without events.

    The first state comes from a request for the task, which is enough for a short one.
    """

    def __init__(self, client: AdminClient, task_id: UUID, show: Show, earlier: int | None = None) -> None:
        self._client = client
        self._task_id = task_id
        self._log = LogReader(client, task_id, show, earlier)
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
            return task.model_copy(
                update={"progress": AttemptProgress.model_validate(event.data["progress"])}
            )
        if event.kind == EventKind.LOG:
            self._log.add(event.data["attempt"], LogPart.model_validate(event.data))
        return task


# What a command shows while it follows a task.

# The exit code of timeout(1).
EXIT_TIMEOUT = 124
_EXPLAIN_SECONDS = 5.0
# The commands print these reasons without an option.
_NEEDS_HELP = frozenset(
    {
        *("paused", "no_worker", "no_matching_worker", "no_worker_with_enough_time", "draining"),
        "not_claimed",
        "not_dispatched",
    }
)
_REMEDIES = {
    "no_worker": "'zndraw-joblib worker FILE' starts one",
    "no_matching_worker": "'zndraw-joblib worker FILE --label KEY=VALUE' starts one with these labels, and "
    "--concurrency N one with N slots",
    "no_worker_with_enough_time": "'zndraw-joblib worker FILE --walltime DURATION' starts one with more "
    "time; expected_seconds of the job's policy says how long its tasks run",
    "draining": "'zndraw-joblib worker FILE' starts another one",
    "not_claimed": "'zndraw-joblib worker FILE' starts one that does",
    "not_dispatched": "start an app with JobLib(jobs=…) of this job, or a server with internal_extensions; a "
    "worker runs other jobs: cancel this task, and submit it to the worker's",
    "no_free_slots": "start another worker, or one with a larger --concurrency",
    "workers_busy": "start another worker, or one with a larger --concurrency",
    "predecessor": "'zndraw-joblib task {id}' lists all; 'zndraw-joblib retry ID' repeats one that failed",
    "scheduled": "'zndraw-joblib run-now {id}' queues it now",
    "job_at_capacity": "it starts when one of them ends; the job's policy has max_in_flight",
    "limit_at_capacity": "it starts when one of them ends; 'zndraw-joblib jobs {job}' shows the job's limits",
    "rate_limited": "it starts then; 'zndraw-joblib jobs {job}' shows the job's limits",
    "room_at_capacity": "it starts when one of them ends; the server's setting is room_max_in_flight",
    "claimed": "'zndraw-joblib task {id} --follow' follows it",
    "running": "'zndraw-joblib task {id} --follow' follows it",
    "completed": "'zndraw-joblib task {id} --result' writes its result",
    "failed": "'zndraw-joblib task {id} --logs' prints its log; 'zndraw-joblib retry {id}' queues it again",
    "cancelled": "'zndraw-joblib retry {id}' queues it again",
    "worker-lost": "its worker was killed, or left it; with worker_lost in retry_on and more max_attempts, "
    "the job's policy repeats such tasks",
}


def remedy_of(reason: Reason, task: TaskResponse) -> str:
    """Return what a user can do about a reason why a task waits or has its status; "" if there is nothing."""
    if reason.code == "paused":
        what = task.job_name if reason.detail.startswith("Job ") else f"--room {shlex.quote(task.room_id)}"
        what = "--all-rooms" if reason.detail.startswith("All rooms ") else what
        return f"'zndraw-joblib resume {what}' resumes it"
    return _REMEDIES.get(reason.code, "").format(id=str(task.id)[:ID_CHARACTERS], job=task.job_name)


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
            explanation = self._client.explain(task.id)
        except Exception as error:
            if not is_unreachable(error):
                raise
            return
        self.reason = explanation.reasons[0].detail if explanation.reasons else ""
        if explanation.wait_seconds is not None:
            self.reason = (
                f"about {format_duration(timedelta(seconds=explanation.wait_seconds))}; {self.reason}"
            )
        print_reasons(explanation, task, self._printed)


def print_reasons(explanation: TaskExplanation, task: TaskResponse, printed: set[str]) -> None:
    """Print each reason that an operator has to remove, with its remedy, unless its code is in `printed`."""
    for reason in explanation.reasons:
        if reason.code in _NEEDS_HELP - printed:
            printed.add(reason.code)
            print_note(f"Task {explanation.id} waits: {one_line(reason.detail)}; {remedy_of(reason, task)}.")


def note_reasons(client: AdminClient, task_id: UUID) -> None:
    """Print why a new task does not run soon: no worker serves its job, or the job is paused.

    A server that does not answer is no error: the task was submitted.
    """
    try:
        explanation = client.explain(task_id)
        if _NEEDS_HELP & {reason.code for reason in explanation.reasons}:
            print_reasons(explanation, client.get_task(task_id), set())
    except Exception as error:
        if not (is_unreachable(error) or is_missing(error) or isinstance(error, ProblemException)):
            raise


def follow(
    client: AdminClient, task_id: UUID, *, prints_lines: bool = False, timeout: float | None = None
) -> TaskResponse:
    """Return a task once it has ended; until then show its progress and log on a terminal.

    `prints_lines`: print the log lines on standard output instead. Ctrl-C and `timeout`, in seconds, end only
    the following. Raises `CommandError` with `EXIT_TIMEOUT`.
    """
    from zndraw_joblib.cli import terminal  # noqa: PLC0415 - see `terminal`

    task = waiting = None
    try:
        with terminal.FollowBar() as bar:
            waiting = Waiting(client)
            is_live = prints_lines or not bar.disable
            # On a terminal old lines would look as if they were new.
            earlier = _EARLIER_LINES if prints_lines and sys.stdout.isatty() else None
            stream = TaskStream(client, task_id, print_lines if prints_lines else bar.add, earlier)
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
