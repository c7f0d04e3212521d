"""Report the progress and the log of tasks that run, at most twice a second."""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from uuid import UUID

from pydantic import ValidationError

from zndraw_joblib.client.retry import FailureLog, RequestBackoff, describe, is_missing, problem_of
from zndraw_joblib.jobs.capture import outside_tasks
from zndraw_joblib.jobs.task_channel import LiveReport, TaskChannel
from zndraw_joblib.wire.messages import NamedTask, Verdict, WorkerResponse
from zndraw_joblib.wire.problems import InvalidRequest
from zndraw_joblib.worker.reports import is_content_refused, is_gone, report_json
from zndraw_joblib.worker.rest import RestApi

log = logging.getLogger(__name__)

INTERVAL_SECONDS = 0.5
# The server may be replaced by a newer one.
_UNKNOWN_SECONDS = 300.0
_MAX_REQUEST_BYTES = 1024 * 1024
_MAX_REPORTS = 500
# A heartbeat must not take long.
_MAX_HEARTBEAT_BYTES = 256 * 1024


_Taken = tuple[TaskChannel, LiveReport]


class LiveReports:
    """Sends what channels hold, in one request for all of them, half a second after the request before.

    A heartbeat that is due meanwhile carries it. What belongs to a task that ends is sent with its outcome. A
    server that does not know such reports gets none for 5 minutes. The thread starts with the first content,
    and ends when `stop` is set.
    """

    def __init__(self, rest: RestApi, stop: threading.Event, *, captures: bool = False) -> None:
        self._rest = rest
        self._captures = captures
        self._stop = stop
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._arrived = threading.Event()
        self._waiting: dict[TaskChannel, None] = {}
        self._backoff = RequestBackoff()
        self._failures = FailureLog(log, "Reporting progress", level=logging.INFO)
        self._warned = False
        # An older server accepts a heartbeat with such fields, and ignores them.
        self._is_known = False

    def channel(self, task_id: str, attempt: int, worker_id: UUID) -> TaskChannel:
        """Return the channel of an attempt; with `captures` it also gets what the job prints."""
        return TaskChannel(task_id, attempt, worker_id, captures=self._captures, on_content=self.add)

    def add(self, channel: TaskChannel) -> None:
        """Send the content of a channel soon."""
        with self._lock:
            self._waiting[channel] = None
            if self._thread is None and not self._stop.is_set():
                self._thread = threading.Thread(
                    target=self._run, name="zndraw-joblib-live-reports", daemon=True
                )
                # It starts in a thread of the job, whose output it must not take for its own.
                outside_tasks(self._thread.start)
        self._arrived.set()

    def send_heartbeat(
        self, named: Sequence[NamedTask], send: Callable[[Sequence[NamedTask]], WorkerResponse]
    ) -> WorkerResponse:
        """Send a heartbeat that names tasks, with what waits of them, and return its response.

        If the server refuses the content, the heartbeat is sent without it.
        """
        taken = self._take(_MAX_HEARTBEAT_BYTES) if self._is_known else []
        carried: dict[int, _Taken] = {}
        tasks = list(named)
        for place, task, each in _named_with_content(named, taken):
            tasks[place], carried[place] = task, each
        try:
            try:
                response = send(tasks)
            except Exception as error:
                if not (carried and is_content_refused(error)):
                    raise
                return send(named)
            for place, verdict in enumerate(response.tasks):
                if place in carried:
                    channel, report = carried[place]
                    channel.acknowledge(report)
                    if verdict.verdict != Verdict.CONTINUE:
                        channel.close()
        finally:
            for channel, _ in taken:
                channel.notice_again()
        return response

    def end(self, seconds: float) -> None:
        """Wait for the end of the thread, at most `seconds`; `stop` was set."""
        self._arrived.set()
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join(seconds)

    def _run(self) -> None:
        while not self._stop.is_set():
            self._arrived.wait()
            # Short tasks end meanwhile: what they hold needs no request of its own.
            if not self._stop.wait(INTERVAL_SECONDS):
                self._stop.wait(self.send_once())

    def send_once(self) -> float:
        """Send what waits; return the seconds to wait before the next request, besides the interval."""
        self._arrived.clear()
        taken = self._take()
        pause = 0.0
        try:
            if taken:
                self._send(taken)
                self._backoff.reset()
                self._failures.succeeded()
        # BaseException: the code of a host may call sys.exit().
        except BaseException as error:
            pause = self._pause_after(error)
        for channel, _ in taken:
            channel.notice_again()
        return pause

    def _take(self, max_bytes: int = _MAX_REQUEST_BYTES) -> list[_Taken]:
        """Return one report of each channel, as many as fit into a request; the others wait."""
        taken: list[_Taken] = []
        size = 0
        while size < max_bytes and len(taken) < _MAX_REPORTS:
            with self._lock:
                channel = next(iter(self._waiting), None)
                if channel is None:
                    return taken
                del self._waiting[channel]
            report = channel.take()
            if report is None:
                channel.notice_again()
            else:
                taken.append((channel, report))
                size += len(report.json)
        self._arrived.set()
        return taken

    def _send(self, taken: Sequence[_Taken]) -> None:
        """Send reports; where the server refuses the content of the request, one by one."""
        reports = [report_json(channel, report) for channel, report in taken]
        results: Sequence[Exception | None]
        try:
            results = self._rest.report_tasks(taken[0][0].worker_id, reports)
            self._is_known = True
        except Exception as error:
            if not is_content_refused(error) or needs_status(error):
                raise
            if len(taken) > 1:
                for each in taken:
                    self._send([each])
                return
            results = [error]
        for (channel, report), refusal in zip(taken, results, strict=True):
            _apply(channel, report, refusal)

    def _pause_after(self, error: BaseException) -> float:
        if is_missing(error) or needs_status(error):
            self._is_known = False
            if not self._warned:
                log.warning("The server is too old for the progress and the log of tasks that run")
            self._warned = True
            return _UNKNOWN_SECONDS
        pause = self._backoff.after(error)
        self._failures.failed(error, pause)
        return pause


def _named_with_content(
    named: Sequence[NamedTask], taken: Sequence[_Taken]
) -> Iterator[tuple[int, NamedTask, _Taken]]:
    """Yield the named tasks with their content, unless the server would refuse it, and their places."""
    places = {(str(task.id), task.attempt): place for place, task in enumerate(named)}
    for channel, report in taken:
        place = places.get((channel.task_id, channel.attempt))
        if place is not None:
            with suppress(ValidationError):
                task = NamedTask(id=named[place].id, attempt=channel.attempt, **report.fields)
                yield place, task, (channel, report)


def _apply(channel: TaskChannel, report: LiveReport, refusal: Exception | None) -> None:
    """Forget what has arrived or can never arrive; other content is sent again."""
    if refusal is None:
        channel.acknowledge(report)
    elif is_gone(refusal):
        channel.close()
    elif is_content_refused(refusal):
        log.warning(
            "Dropped log lines of task %s: %s",
            channel.task_id,
            describe(refusal),
            extra={"task_id": channel.task_id},
        )
        channel.acknowledge(report)


def needs_status(error: BaseException) -> bool:
    """Return whether the server is too old for a report without a status."""
    problem = problem_of(error)
    return isinstance(problem, InvalidRequest) and "status" in str(problem)
