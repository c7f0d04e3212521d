"""One session of a worker, from its first registration until it is removed: its parts and its threads."""

import logging
import math
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any, NamedTuple

from zndraw_joblib.client.connection import Connection
from zndraw_joblib.client.retry import (
    FailureLog,
    RequestBackoff,
    is_unauthorized,
    is_unreachable,
    unexpected_response_of,
)
from zndraw_joblib.jobs.capture import stop_following_threads
from zndraw_joblib.jobs.failures import text_of
from zndraw_joblib.jobs.forks import default_signals_in_forks
from zndraw_joblib.jobs.traces import RunSpans
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.messages import this_process
from zndraw_joblib.wire.problems import Unauthorized
from zndraw_joblib.worker.allocations import UNLIMITED, Activity, Allocation, AllocationWatch
from zndraw_joblib.worker.pipeline import Pipeline, PipelineConfig
from zndraw_joblib.worker.provider_requests import ProviderPoller
from zndraw_joblib.worker.registrations import Registrations
from zndraw_joblib.worker.remote import RemoteExecutor
from zndraw_joblib.worker.reporter import Reporter
from zndraw_joblib.worker.reports import LiveReports, Reports
from zndraw_joblib.worker.rest import RestApi
from zndraw_joblib.worker.subscriptions import Subscriptions
from zndraw_joblib.worker.task_poller import Pace, TaskPoller
from zndraw_joblib.worker.task_process import DEFAULT_CANCEL_GRACE
from zndraw_joblib.worker.tasks import ClaimedTask, Execute, HeldTasks
from zndraw_joblib.worker.threads import start_loop, start_thread

log = logging.getLogger(__name__)

_MAX_LOGGED = 10
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_SECOND_SIGNAL = "A second Ctrl-C or SIGTERM stops at once"

# Less than the time after which the parent of worker processes kills one that drains.
_LAST_RESPONSE_SECONDS, _LAST_REPORT_SECONDS = 0.1, 4.0
_JOIN_SECONDS = 1.0
_SIGNAL_CHECK_SECONDS = 0.5
_EXIT_CODE_BASE = 128
_SHORTEST_TIMEOUT_SECONDS = 2.0
_CLOCK_CHECK_SECONDS = 1.0
_JITTER_SECONDS = 1.0
_FAST_INTERVAL_SECONDS, _FAST_COUNT = 3.0, 4
# For how long the server may refuse the token, with each response: servers may get another secret one by one.
REFUSED_SECONDS = 60.0
_REFUSED_CLOSE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """How a worker works: what runs its tasks (None: nothing), its numbers of threads, its intervals."""

    execute: Execute | None
    concurrency: int
    prefetch: int
    in_processes: bool
    read_concurrency: int
    heartbeat_interval: float | None
    pace: Pace
    limits: dict[str, Any]
    capture_output: bool = True
    run_spans: RunSpans = "link"
    name: str | None = None
    labels: Mapping[str, Any] | None = None
    max_unreachable_seconds: float | None = None
    cancel_grace: float = DEFAULT_CANCEL_GRACE
    allocation: Allocation = UNLIMITED
    remote: RemoteExecutor | None = None


class Session:
    """The parts of a worker; each thread starts when it has something to do.

    `stop` is set when reports are no longer repeated, `closed` once the worker is removed. `refusal` is why
    the worker has ended, if that is because the server refuses its token.
    """

    refusal: Unauthorized | None = None
    # Whether the system had no thread for a drain, which the next heartbeat asks for again.
    _lacks_thread = False

    def __init__(
        self, rest: RestApi, subscriptions: Subscriptions, held: HeldTasks, config: SessionConfig
    ) -> None:
        self._config = config
        self.pid = os.getpid()
        self.stop = threading.Event()
        self.closed = threading.Event()
        self._end_requests: SimpleQueue[None] = SimpleQueue()
        self._close_lock = threading.Lock()
        self._start_lock = threading.Lock()
        self._heartbeat_thread: threading.Thread | None = None
        self._pipeline: Pipeline | None = None
        self._provider_threads: list[threading.Thread] = []
        self._watch_thread: threading.Thread | None = None
        self._heartbeat_due = subscriptions.heartbeat_due
        self._subscriptions = subscriptions
        self._held = held
        self._rest = rest
        self._live = LiveReports(rest, self.stop, captures=config.capture_output)
        about = {**config.limits, "worker": this_process(config.name, config.concurrency, config.labels)}
        self.registrations = Registrations(rest, subscriptions, held, about, self.drain, self._live)
        self.reports = Reports(rest, held, self.stop)
        self.tasks = TaskPoller(rest, self.registrations, self.reports, held, subscriptions.wake, self._live)
        self.providers = ProviderPoller(
            rest, self.registrations, subscriptions.wake_providers, self.stop, config.pace
        )
        self.watch = self._watch()
        self.tasks.remaining = self.watch.seconds_for_tasks

    def _watch(self) -> AllocationWatch:
        """Return what lets the worker leave in time; notice when the server refuses its token."""
        allocation = self._config.allocation
        # A host's own client may get another token at any time.
        is_fixed = isinstance(self._rest.api, Connection)
        if is_fixed:
            self._rest.on_response = RefusedToken(self._end_refused).note
        return AllocationWatch(
            *(allocation, self.registrations, self._activity, self._begin_drain, self._end_allocation),
            self._token_seconds if is_fixed or allocation.ends_at is not None else None,
        )

    def start_heartbeats(self) -> None:
        """Start the heartbeat thread, unless it runs."""
        with self._start_lock:
            if self._heartbeat_thread is None:
                interval = self._config.heartbeat_interval
                longest = self._config.max_unreachable_seconds
                gives_up = GivesUp(math.inf if longest is None else longest, self._give_up)
                loop = HeartbeatLoop(self.registrations, self.stop, self._heartbeat_due, interval, gives_up)
                self._heartbeat_thread = start_loop("heartbeat", loop.run, self.stop)

    def start_tasks(self) -> None:
        """Start the threads that claim and run tasks, unless they run or there is no `execute`."""
        self.start_heartbeats()
        config = self._config
        if config.remote is not None:
            config.remote.on_lost = self._lose_executor
        self.watch.read_token()
        self.watch.leave_jobs()
        self.tasks.add_job()
        with self._start_lock:
            if self.watch.is_needed and self._watch_thread is None:
                self._watch_thread = start_loop(
                    "allocation", lambda: self.watch.run(self.closed), self.closed
                )
            if config.execute is not None and self._pipeline is None:
                settings = PipelineConfig(
                    config.execute,
                    config.concurrency,
                    config.prefetch,
                    config.pace,
                    config.in_processes,
                    config.run_spans,
                    config.cancel_grace,
                    math.inf if config.allocation.max_runs is None else config.allocation.max_runs,
                    self._use_up,
                    config.remote,
                )
                outage = self.registrations.outage
                reporter = Reporter(self._rest, self._held, self.stop, self.tasks.done, outage=outage)
                self._pipeline = Pipeline(settings, self.tasks, self.reports, reporter, self.registrations)
                self._pipeline.start()

    def start_providers(self) -> None:
        """Start the threads that serve provider requests, unless they run."""
        self.start_heartbeats()
        with self._start_lock:
            if not self._provider_threads:
                numbers = range(1, self._config.read_concurrency + 1)
                run, stopping = self.providers.run, self.providers.stopping
                self._provider_threads = [start_loop(f"read-{n}", run, stopping) for n in numbers]

    def request_end(self) -> None:
        """Let `wait` return. Takes no lock: a signal handler may call it."""
        self._end_requests.put(None)

    def wait(self) -> None:
        """Wait until `request_end` is called."""
        while True:
            # With a timeout: Python handles a signal that arrives just before the wait only after the wait.
            with suppress(Empty):
                self._end_requests.get(timeout=_SIGNAL_CHECK_SECONDS)
                self._end_requests.put(None)
                return

    def log_waits(self) -> None:
        """Log which running tasks `close` waits for."""
        waiting = self._pipeline.waiting_ids if self._pipeline is not None else set()
        running = [task_id for task_id in self._held.ids() if task_id not in waiting]
        if running:
            named = ", ".join(running[:_MAX_LOGGED]) + (", …" if len(running) > _MAX_LOGGED else "")
            log.info("Stopping: waiting for %d running task(s) (%s). %s", len(running), named, _SECOND_SIGNAL)

    def close(self, timeout: float | None, *, requeue: bool = False) -> None:
        """Claim no more, wait for running work, remove the worker. A second caller waits for the first.

        With `requeue`, the tasks that run after `timeout` return to their queues.
        """
        waits_for_me = self._pipeline.waits_for_me if self._pipeline else 0
        is_own_thread = waits_for_me > 0 or threading.current_thread() in self._provider_threads
        if not self._close_lock.acquire(blocking=False):
            if not is_own_thread:
                self.closed.wait(timeout)
            return
        deadline = None if timeout is None else time.monotonic() + timeout
        is_idle = False
        try:
            self._stop_claiming()
            providers_are_idle = self._stop_providers(timeout)
            remaining = None if deadline is None else max(0.0, deadline - time.monotonic())
            tasks_are_idle = self.tasks.wait_until_idle(remaining, besides=waits_for_me)
            if not tasks_are_idle and requeue:
                self._requeue("because this worker leaves", _LAST_REPORT_SECONDS)
            elif not tasks_are_idle:
                log.warning("Tasks still run after %.0f s; the server will fail them", timeout)
            is_idle = tasks_are_idle and providers_are_idle
        finally:
            self._leave(is_idle=is_idle)

    def drain(self) -> None:
        """Claim no more, and close once no task is held, including those from `claim`. Returns at once."""
        self._begin_drain("The server drains worker %s")

    def _give_up(self) -> None:
        self._begin_drain(
            "The server is unreachable for too long (max_unreachable_seconds): worker %s leaves"
        )

    def _lose_executor(self) -> None:
        self._begin_drain("The executor is lost: worker %s leaves")

    def _use_up(self) -> None:
        self._begin_drain("All tasks that it may run have begun (max_runs): worker %s leaves")

    def _activity(self) -> Activity:
        begun = self._pipeline.begun if self._pipeline is not None else 0
        return Activity(begun, bool(self._held.ids()), self.tasks.has_time)

    def _token_seconds(self) -> float | None:
        return self._rest.send(ops.GET_CALLER).expires_in_seconds

    def _end_allocation(self, seconds: float) -> None:
        """Release what has not started, requeue what runs if that is wanted, and leave within `seconds`."""
        deadline = time.monotonic() + seconds
        self._stop_claiming()
        if self.watch.ends_with_token:
            self._requeue("before the token of the worker ends", seconds)
        elif self._config.allocation.requeue:
            self._requeue("at the end of the allocation", seconds)
        self.close(max(0.0, deadline - time.monotonic()))

    def _end_refused(self, error: Exception) -> None:
        """End a worker without a valid token: no request of it can succeed, and its tasks are lost to it."""
        reason = text_of(unexpected_response_of(error) or error)
        self.refusal = Unauthorized(
            f"the worker's token was refused, with each response of {REFUSED_SECONDS:g} s: {reason}"
        )
        worker_id = self.registrations.worker_id
        log.warning(
            "The server has refused the token of worker %s for %g s: it ends, and its tasks are lost to it",
            *(worker_id, REFUSED_SECONDS),
            extra={"worker_id": str(worker_id)},
        )

        def end() -> None:
            self.tasks.stop()
            self.providers.stop()
            self.stop.set()
            self.registrations.forget()
            self.close(_REFUSED_CLOSE_SECONDS)

        start_thread("refused", end)

    def _requeue(self, when: str, seconds: float) -> None:
        """Put running tasks back into their queues, and set their events.

        What has ended does not run again: its result and its outcome have some seconds to reach the server.
        """
        self._return(self._held.begin_return(), when)
        self._held.wait_for_reports(seconds)
        self._return(self._held.begin_return(with_ended=True), f"{when}: its result was not uploaded in time")

    def _return(self, tasks: Sequence[ClaimedTask], when: str) -> None:
        if tasks:
            self.reports.try_release(*tasks, when=when)
            for task in tasks:
                task.cancelled.set()

    def _begin_drain(self, reason: str) -> None:
        with self._start_lock:
            if self.tasks.stopped and not self._lacks_thread:
                return
            self.tasks.stop()
            self.providers.stop()
            worker_id = self.registrations.worker_id
            log.info(reason, worker_id, extra={"worker_id": str(worker_id)})
            self._lacks_thread = True
            start_thread("drain", self._drain)
            self._lacks_thread = False

    def _drain(self) -> None:
        try:
            self._stop_claiming()
            self._stop_providers(None)
            self._held.wait_for_none()
        finally:
            self.close(None)

    def _stop_claiming(self) -> None:
        """Claim no more, and release a task that the open long-poll has just got.

        Closing its connection would lose that task. So the server is asked first to give out no more tasks;
        then the long-poll has a moment to receive its response.
        """
        self.tasks.stop()
        self.providers.stop()
        if self._pipeline is not None:
            self._pipeline.wake()
        began = time.monotonic()
        self.registrations.unregister_jobs()
        self.tasks.wait_for_poll(_LAST_RESPONSE_SECONDS + time.monotonic() - began)
        if self._pipeline is not None:
            self._pipeline.release_waiting()

    def _stop_providers(self, timeout: float | None) -> bool:
        """Wait for running provider requests, and unregister the providers; return whether all ended."""
        in_provider = threading.current_thread() in self._provider_threads
        is_idle = self.providers.wait_until_idle(timeout, besides=in_provider)
        if not is_idle:
            log.warning("Provider requests still run after %s s; their results are lost", timeout)
        self.registrations.unregister_providers()
        return is_idle

    def _leave(self, *, is_idle: bool) -> None:
        self.stop.set()
        self._heartbeat_due.set()
        try:
            if self._pipeline is not None:
                self._pipeline.wake()
            self._live.end(_JOIN_SECONDS)
            _join_threads([self._heartbeat_thread] if self._heartbeat_thread else [])
            self.registrations.leave()
            if is_idle:
                _join_threads(self._provider_threads)
                if self._pipeline is not None:
                    self._pipeline.join(_JOIN_SECONDS)
        finally:
            self._subscriptions.close()
            if self._config.remote is not None:
                self._config.remote.close()
            stop_following_threads()
            self.closed.set()
            self.request_end()


def _join_threads(threads: list[threading.Thread]) -> None:
    deadline = time.monotonic() + _JOIN_SECONDS
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(max(0.0, deadline - time.monotonic()))


@contextmanager
def stop_signals(stop: Callable[[], None], *, with_user_signal: bool = False) -> Iterator[None]:
    """Let the first SIGINT or SIGTERM call `stop` in this block, and each later one raise in the main thread.

    `stop` runs inside the signal handler, so it must take no lock. A later SIGINT raises KeyboardInterrupt, a
    later SIGTERM SystemExit. The block does nothing on a thread other than the main one, and does not
    change signals that the process ignores. `with_user_signal`: SIGUSR1 calls `stop` too, and never raises.
    It restores the former handlers at the end. A process that is
    forked in the block gets the default handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    is_first = True

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal is_first
        if is_first:
            is_first = False
            stop()
        elif number not in _SIGNALS:
            return
        elif number == signal.SIGINT:
            raise KeyboardInterrupt
        else:
            raise SystemExit(_EXIT_CODE_BASE + number)

    user_signals = [signal.SIGUSR1] if with_user_signal and sys.platform != "win32" else []
    handled = [n for n in (*_SIGNALS, *user_signals) if signal.getsignal(n) is not signal.SIG_IGN]
    former = {number: signal.signal(number, handle) for number in handled}
    try:
        with default_signals_in_forks():
            yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


class RefusedToken:
    """Calls `act` once each response of a minute was a 401. Thread-safe."""

    def __init__(self, act: Callable[[Exception], None]) -> None:
        self._act = act
        self._lock = threading.Lock()
        self._since: float | None = None
        self._has_acted = False

    def note(self, error: Exception | None) -> None:
        """Note a response, or why there was none."""
        if error is None or not is_unauthorized(error):
            self._since = None
            return
        now = time.monotonic()
        with self._lock:
            self._since = now if self._since is None else self._since
            if self._has_acted or now - self._since < REFUSED_SECONDS:
                return
            # Not before: if there is no thread for it, the next refusal tries again.
            self._act(error)
            self._has_acted = True


class GivesUp(NamedTuple):
    """After how many seconds without a response the heartbeats call `act`, and go on."""

    seconds: float
    act: Callable[[], None]


class HeartbeatLoop:
    """Sends heartbeats until `stop` is set.

    The server sets the interval, unless `interval` does; a failed heartbeat is repeated sooner. When `due` is
    set, a heartbeat follows within a second, and four more, 3 s apart: the server may notice later than the
    worker that their Socket.IO connection is gone, and needs a heartbeat that is newer than that.
    """

    def __init__(
        self,
        registrations: Registrations,
        stop: threading.Event,
        due: threading.Event,
        interval: float | None = None,
        gives_up: GivesUp | None = None,
    ) -> None:
        self._gives_up = gives_up
        self._registrations = registrations
        self._stop = stop
        self._due = due
        self._fast_left = 0
        self._given_interval = interval
        self._warned = False
        self.interval = interval or _SHORTEST_TIMEOUT_SECONDS

    def run(self) -> None:
        """Send heartbeats until it is stopped, whatever fails; set `due` too, so that it notices at once."""
        backoff = RequestBackoff()
        failures = FailureLog(log, "Heartbeat", outage=self._registrations.outage)
        reached = time.monotonic()
        while not self._stop.is_set():
            try:
                self.send_once()
            # BaseException: the code of a host may call sys.exit().
            except BaseException as error:
                pause = min(backoff.after(error), self.interval)
                failures.failed(error, pause)
                if not is_unreachable(error):
                    reached = time.monotonic()
                elif self._gives_up and time.monotonic() - reached > self._gives_up.seconds:
                    self._gives_up.act()
            else:
                backoff.reset()
                failures.succeeded()
                pause, reached = self.interval, time.monotonic()
            self._rest(pause)

    def send_once(self) -> None:
        """Send a heartbeat and learn the interval; register a worker that the server does not know again."""
        response = self._registrations.heartbeat(max(self.interval, _SHORTEST_TIMEOUT_SECONDS))
        if response is None:
            return
        asked = response.heartbeat_interval_seconds
        self.interval = self._given_interval or asked
        if self.interval > asked and not self._warned:
            self._warned = True
            log.warning(
                "heartbeat_interval is %g s, longer than the %g s that the server asks for; the server may "
                "remove this worker between two heartbeats",
                self.interval,
                asked,
            )

    def _rest(self, pause: float) -> None:
        if self._fast_left:
            self._fast_left -= 1
            pause = min(pause, _FAST_INTERVAL_SECONDS)
        sleep_until(self._due, pause)
        if self._due.is_set():
            # Many workers lose their connections at the same moment.
            self._stop.wait(min(pause, _JITTER_SECONDS) * random.random())  # noqa: S311 - jitter
            self._due.clear()
            self._fast_left = _FAST_COUNT


def sleep_until(event: threading.Event, seconds: float, clock: Callable[[], float] = time.time) -> None:
    """Sleep until `event` is set, at most `seconds`.

    The wall clock counts too: the sleep ends within a second after a suspended machine resumes.
    """
    since, wall = time.monotonic(), clock()
    while True:
        remaining = seconds - max(time.monotonic() - since, clock() - wall)
        if remaining <= 0 or event.wait(min(remaining, _CLOCK_CHECK_SECONDS)):
            return
