"""Live reports: the progress and the log of tasks that run, at most twice a second."""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from uuid import UUID

from pydantic import ValidationError

from zndraw_joblib.client.retry import FailureLog, RequestBackoff, describe, is_missing, problem_of
from zndraw_joblib.jobs.capture import outside_tasks
from zndraw_joblib.jobs.task_channel import REPORT_INTERVAL_SECONDS, TakenReport, TaskChannel, WaitingChannels
from zndraw_joblib.wire.messages import NamedTask, Verdict, WorkerResponse
from zndraw_joblib.wire.problems import InvalidRequest
from zndraw_joblib.worker.reports import is_content_refused, is_gone, report_json
from zndraw_joblib.worker.rest import RestApi

log = logging.getLogger(__name__)

# The server may be replaced by a newer one.
_UNKNOWN_SECONDS = 300.0
_MAX_REQUEST_BYTES = 1024 * 1024
_MAX_REPORTS = 500
# A heartbeat must not take long.
_MAX_HEARTBEAT_BYTES = 256 * 1024


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
        self._waiting = WaitingChannels()
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
        self._waiting.add(channel)
        with self._lock:
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
        carried: dict[int, TakenReport] = {}
        tasks = list(named)
        for index, task, content in _named_with_content(named, taken):
            tasks[index], carried[index] = task, content
        try:
            try:
                response = send(tasks)
            except Exception as error:
                if not (carried and is_content_refused(error)):
                    raise
                return send(named)
            for index, verdict in enumerate(response.tasks):
                if index in carried:
                    channel, report = carried[index]
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
            if not self._stop.wait(REPORT_INTERVAL_SECONDS):
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

    def _take(self, max_bytes: int = _MAX_REQUEST_BYTES) -> list[TakenReport]:
        taken = self._waiting.take(max_bytes, _MAX_REPORTS)
        if self._waiting:
            self._arrived.set()
        return taken

    def _send(self, taken: Sequence[TakenReport]) -> None:
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
                for one in taken:
                    self._send([one])
                return
            results = [error]
        for sent, refusal in zip(taken, results, strict=True):
            _apply(sent, refusal)

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
    named: Sequence[NamedTask], taken: Sequence[TakenReport]
) -> Iterator[tuple[int, NamedTask, TakenReport]]:
    """Yield the named tasks with their content, unless the server would refuse it, and their indexes."""
    indexes = {(str(task.id), task.attempt): index for index, task in enumerate(named)}
    for content in taken:
        channel, report = content
        index = indexes.get((channel.task_id, channel.attempt))
        if index is not None:
            with suppress(ValidationError):
                task = NamedTask(id=named[index].id, attempt=channel.attempt, **report.fields)
                yield index, task, content


def _apply(sent: TakenReport, refusal: Exception | None) -> None:
    """Forget what has arrived or can never arrive; other content is sent again."""
    if refusal is None:
        sent.channel.acknowledge(sent.report)
    elif is_gone(refusal):
        sent.channel.close()
    elif is_content_refused(refusal):
        sent.drop(describe(refusal))


def needs_status(error: BaseException) -> bool:
    """Return whether the server is too old for a report without a status."""
    problem = problem_of(error)
    return isinstance(problem, InvalidRequest) and "status" in str(problem)
