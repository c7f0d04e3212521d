"""The pipeline: claim tasks ahead, run them in threads, and pass their outcomes to the reporter."""

import asyncio
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

from zndraw_joblib.client.retry import describe, is_transient
from zndraw_joblib.jobs.batches import BatchContext, await_batch, run_batch
from zndraw_joblib.jobs.forks import exit_if_forked
from zndraw_joblib.jobs.logs import task_fields
from zndraw_joblib.jobs.run import Outcome, await_job, failed, run_job
from zndraw_joblib.jobs.traces import RunSpans, TaskSpan, active
from zndraw_joblib.wire.messages import MAX_BATCH
from zndraw_joblib.worker.batches import BatchSizes, Waiting, put_together
from zndraw_joblib.worker.registrations import Registrations
from zndraw_joblib.worker.remote import RemoteExecutor, not_submitted
from zndraw_joblib.worker.reporter import Reporter, TaskReports
from zndraw_joblib.worker.reports import Reports
from zndraw_joblib.worker.task_poller import NOW, Pace, TaskPoller
from zndraw_joblib.worker.task_process import DEFAULT_CANCEL_GRACE, TaskProcess
from zndraw_joblib.worker.tasks import (
    ClaimedTask,
    Coroutines,
    Execute,
    end_task_span,
    log_end,
    log_start,
    start_task_span,
)
from zndraw_joblib.worker.threads import log_defect, make_thread, start_loop

_AHEAD_SECONDS = 0.1
_STUCK_SECONDS = 0.2
_SHORTEST_SECONDS = 1e-6
_WEIGHT_OF_LONGER, _WEIGHT_OF_SHORTER = 0.5, 0.1


class Lookahead:
    """Decides how many tasks to claim, so that those that wait are about 100 ms of work at most.

    The run time of a task is estimated from those of the last ones; longer ones count more. The number grows
    step by step while the server has as many tasks as were claimed, so several idle workers share a short
    queue. Not thread-safe.
    """

    def __init__(self, concurrency: int, prefetch: int) -> None:
        self._concurrency = concurrency
        self._prefetch = prefetch
        self._estimate: float | None = None
        self._window = 1
        self._has_backlog = False
        self._progress_at = 0.0

    def claimable(self, free: int, waiting: int) -> int:
        """Return how many tasks to claim, for `free` slots that no waiting task needs.

        If there are no free slots, it claims ahead only while the queue had enough tasks at the last claim,
        and only once half of the waiting tasks have started.
        """
        limit = self._ahead()
        if free > 0:
            return min(free + limit, MAX_BATCH)
        if self._has_backlog and waiting <= limit // 2:
            return limit - waiting
        return 0

    def _ahead(self) -> int:
        if self._estimate is None:
            return 0
        planned = int(self._concurrency * _AHEAD_SECONDS / max(self._estimate, _SHORTEST_SECONDS))
        return min(self._window, planned, self._prefetch)

    def claimed(self, count: int, now: float, *, is_full: bool) -> None:
        """Notice that a claim got tasks for `count` slots, and whether it `is_full`: there may be more."""
        self._progress_at = now
        self._has_backlog = is_full
        self._window = min(2 * self._window, max(self._prefetch, 1)) if self._has_backlog else max(1, count)

    def handed_back(self) -> None:
        """Notice that the tasks that waited are released: claim none until there is a free slot."""
        self._has_backlog, self._window = False, 1

    def began(self, now: float) -> None:
        """Notice that a task has begun."""
        self._progress_at = now

    def ended(self, seconds: float) -> None:
        """Notice that a task has ended after `seconds`."""
        before = seconds if self._estimate is None else self._estimate
        weight = _WEIGHT_OF_LONGER if seconds > before else _WEIGHT_OF_SHORTER
        self._estimate = before + weight * (seconds - before)

    def is_stuck(self, now: float) -> bool:
        """Return whether the tasks that wait have waited for too long, because those before take longer."""
        return self.seconds_until_stuck(now) <= 0

    def seconds_until_stuck(self, now: float) -> float:
        """Return after how many seconds the tasks that wait have waited for too long."""
        return self._progress_at + _STUCK_SECONDS - now


# Run tasks: claim some ahead, run them in threads, and report those that have ended together.

log = logging.getLogger(__name__)

_CHECK_SECONDS = 0.05
# After a pause of the process, a task that waited here may be another worker's.
SURE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class PipelineConfig:
    """What runs the tasks, how many at once, and how many may wait in this process.

    With `in_processes`, each task runs in a process of its own, which has `cancel_grace` seconds to end a
    cancelled one. With `remote`, tasks run on an executor. `run_spans`: how the spans of runs relate to those
    of their submits.
    After `max_runs` tasks have begun it claims no more, and calls `on_used_up`.
    """

    execute: Execute
    concurrency: int
    prefetch: int
    pace: Pace
    in_processes: bool
    run_spans: RunSpans = "link"
    cancel_grace: float = DEFAULT_CANCEL_GRACE
    max_runs: float = inf
    on_used_up: Callable[[], None] = lambda: None
    remote: RemoteExecutor | None = None


class Pipeline:
    """Claims tasks, runs up to `concurrency` at once, and reports them, each step in threads of its own.

    A task that waits here for longer than planned, because the tasks before it take long, is released; so
    are all that wait when the worker stops.
    """

    def __init__(
        self,
        config: PipelineConfig,
        poller: TaskPoller,
        reports: Reports,
        reporter: Reporter,
        registrations: Registrations,
    ) -> None:
        self._config = config
        self._poller = poller
        self._reporter = reporter
        self._reports = reports
        self._registrations = registrations
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)
        self._waiting: deque[Waiting] = deque()
        # How many slots the running tasks take.
        self._running = 0
        self.begun = 0
        self._lookahead = Lookahead(config.concurrency, config.prefetch)
        self._sizes = BatchSizes()
        self._coroutines = Coroutines()
        # The jobs whose last task was a coroutine.
        self._coroutine_jobs: set[str] = set()
        self._service_threads: list[threading.Thread] = []
        self._threads: list[threading.Thread] = []
        # Those that have taken a task and not handed it to the event loop or ended it yet.
        self._busy: set[threading.Thread] = set()

    def start(self) -> None:
        """Start the threads that claim and report; those that run tasks start with the first tasks."""
        self._service_threads = [
            start_loop(
                "claim", lambda: self._poller.repeat(self._claim_once, "Claiming"), self._poller.stopping
            ),
            start_loop("report", self._report, self._reporter.stop),
        ]

    @property
    def waits_for_me(self) -> int:
        """Return how many tasks cannot end while the calling thread waits."""
        if self._coroutines.is_current_thread:
            return self._coroutines.running
        return int(threading.current_thread() in self._threads)

    def join(self, seconds: float) -> None:
        """Wait for the threads of a worker that has stopped, at most `seconds`."""
        deadline = time.monotonic() + seconds
        for thread in (*self._service_threads, *self._threads):
            if thread is not threading.current_thread() and thread.is_alive():
                thread.join(max(0.0, deadline - time.monotonic()))

    def wake(self) -> None:
        """Notice that the worker claims no more, or that reports are no longer repeated."""
        with self._lock:
            self._work.notify_all()
            self._room.notify_all()
        self._reporter.wake()

    @property
    def waiting_ids(self) -> set[str]:
        """Return the ids of the tasks that wait here."""
        with self._lock:
            return {task.task_id for entry in self._waiting for task in entry.tasks}

    def release_waiting(self) -> None:
        """Put the tasks that wait here back into their queues."""
        with self._lock:
            waiting = list(self._waiting)
            self._waiting.clear()
            self._sizes.released(self._registrations.batches, waiting)
        if waiting:
            self._hand_back(*[task for entry in waiting for task in entry.tasks])

    def _hand_back(self, *tasks: ClaimedTask) -> None:
        try:
            self._reports.try_release(*tasks)
        finally:
            self._poller.done(len(tasks))

    def _report(self) -> None:
        self._reporter.run()
        self._coroutines.close()

    def _claim_once(self) -> None:
        """Wait until more tasks are needed, and claim them."""
        limit, may_wait = self._wait_for_room()
        if not limit:
            return
        batches = self._registrations.batches
        claimable = self._sizes.claimable(batches, may_wait=may_wait) if batches else ()
        tasks, claimed_at = self._poller.claim_many(self._config.pace if may_wait else NOW, limit, claimable)
        waiting = (
            put_together(tasks, claimed_at, batches)
            if batches
            else [Waiting((task,), claimed_at) for task in tasks]
        )
        with self._lock:
            is_full = self._sizes.is_full(batches, tasks, limit)
            self._lookahead.claimed(len(waiting), time.monotonic(), is_full=is_full)
            self._waiting.extend(waiting)
            self._work.notify(len(waiting))
        self._add_thread()
        if self._poller.stopped:
            self.release_waiting()

    def _wait_for_room(self) -> tuple[int, bool]:
        """Return how many tasks to claim, and whether the server may wait for the first one."""
        with self._lock:
            while not self._poller.stopped:
                now = time.monotonic()
                if self._waiting and self._is_blocked and self._lookahead.is_stuck(now):
                    self._lookahead.handed_back()
                    break
                limit = min(self._wanted, self._left)
                if limit and not self._reporter.is_full:
                    return limit, self._free > 0
                timeout = max(self._lookahead.seconds_until_stuck(now), _CHECK_SECONDS)
                self._room.wait(_CHECK_SECONDS if limit else timeout if self._waiting else None)
        self.release_waiting()
        return 0, False

    @property
    def _free(self) -> int:
        """Return how many slots no waiting task needs."""
        return self._config.concurrency - self._running - sum(entry.cost for entry in self._waiting)

    @property
    def _left(self) -> int:
        """Return how many more tasks it may claim."""
        if self._config.max_runs == inf:
            return MAX_BATCH
        held = self.begun + sum(len(entry.tasks) for entry in self._waiting)
        return max(0, min(int(self._config.max_runs) - held, MAX_BATCH))

    @property
    def _wanted(self) -> int:
        limit = self._lookahead.claimable(self._free, len(self._waiting))
        if limit and self._registrations.batches and self._free <= 0:
            held = sum(len(entry.tasks) for entry in self._waiting)
            return limit if held < self._config.prefetch else 0
        return limit

    @property
    def _is_blocked(self) -> bool:
        """Return whether no thread is about to take a waiting task."""
        return not self._may_begin or len(self._busy) >= len(self._threads)

    @property
    def _may_begin(self) -> bool:
        """Return whether the first waiting task fits into the free slots; a task alone always does."""
        free = self._config.concurrency - self._running
        return bool(self._waiting) and (self._waiting[0].cost <= free or not self._running)

    def _add_thread(self) -> None:
        """Start a thread if tasks wait and each thread is busy; it starts the next one."""
        with self._lock:
            has_idle = len(self._busy) < len(self._threads)
            if not self._waiting or has_idle or len(self._threads) >= self._config.concurrency:
                return
            thread = make_thread(f"run-{len(self._threads) + 1}", self._run)
            self._threads.append(thread)
        try:
            thread.start()
        except RuntimeError as error:
            log.warning("No thread for another task, of %d: %s", self._config.concurrency, error)
            with self._lock:
                self._threads.remove(thread)

    def _run(self) -> None:
        config = self._config
        process = TaskProcess(config.execute, config.cancel_grace) if config.in_processes else None
        while (waiting := self._take()) is not None:
            try:
                self._run_waiting(waiting, process)
            # BaseException: the code of a host may call sys.exit().
            except BaseException as error:
                exit_if_forked(self._pid, error)
                log_defect("Running task %s failed in the worker", waiting.tasks[0].task_id)
        if process is not None:
            process.close()

    def _run_waiting(self, waiting: Waiting, process: TaskProcess | None) -> None:
        # A thread is free again at once after it has handed a coroutine to the event loop.
        if self._waiting and waiting.tasks[0].job_name not in self._coroutine_jobs:
            self._add_thread()
        began = time.monotonic()
        is_sure = 0 <= time.time() - waiting.claimed_at < SURE_SECONDS
        begun = [self._begin_or_fail(task, is_sure=is_sure) for task in waiting.tasks]
        entries = [entry for entry in begun if entry is not None]
        if self.begun >= self._config.max_runs:
            self._use_up()
        if not entries:
            if not self._free_slots(began, waiting.cost):
                self._reporter.wake()
        else:
            spans = [start_task_span(entry.task, self._config.run_spans) for entry in entries]
            with active(spans[0]):
                end = partial(self._end, entries, began, waiting.cost, spans)
                self._run_entries(entries, process, end, is_batch=waiting.is_batch)

    def _use_up(self) -> None:
        try:
            self._config.on_used_up()
        except Exception:
            log_defect("A worker that has begun all of its tasks (max_runs) could not begin to leave")

    def _begin_or_fail(self, task: ClaimedTask, *, is_sure: bool) -> TaskReports | None:
        """Do what `_begin` does; fail the task if that fails: else it would stay held, and never end."""
        try:
            return self._begin(task, is_sure=is_sure)
        except BaseException as error:
            exit_if_forked(self._pid, error)
            log_defect("Task %s could not begin", task.task_id)
            self._reporter.refuse(task, failed(task, None, error))
            return None

    def _run_entries(
        self,
        entries: Sequence[TaskReports],
        process: TaskProcess | None,
        on_end: Callable[[Sequence[Outcome]], None],
        *,
        is_batch: bool,
    ) -> None:
        """Run tasks; `on_end` gets their outcomes, also if that fails here: else they would never end."""
        try:
            if self._config.remote is not None:
                self._run_remotely(self._config.remote, entries, on_end, is_batch=is_batch)
            elif is_batch:
                self._run_batch(entries, process, on_end)
            else:
                self._run_task(entries[0], process, on_end)
        except BaseException as error:
            exit_if_forked(self._pid, error)
            if any(entry.outcome is not None for entry in entries):
                raise
            log.exception("Task %s could not be run", entries[0].task.task_id)
            if process is not None:
                process.close(kills=True)
            on_end([failed(entry.task, entry.task.extension, error) for entry in entries])

    def _run_task(
        self, entry: TaskReports, process: TaskProcess | None, on_end: Callable[[Sequence[Outcome]], None]
    ) -> None:
        """Run a task; `on_end` gets the outcome, perhaps later in another thread."""
        task = entry.task
        log_start(task)
        if process is not None:
            outcome: Outcome | Coroutine[Any, Any, Any] = process.run(task)
        else:
            call = partial(self._config.execute, task)
            outcome = run_job(call, task, task.extension, self._pid)
        if isinstance(outcome, Outcome):
            self._coroutine_jobs.discard(task.job_name)
            on_end([self._reports.upload(task, outcome)])
            return

        async def settle(work: Coroutine[Any, Any, Any]) -> Sequence[Outcome]:
            settled = await await_job(work, task, task.extension, self._pid)
            return await self._uploaded([entry], [settled])

        self._coroutine_jobs.add(task.job_name)
        self._coroutines.run(outcome, settle, on_end, lambda error: [failed(task, task.extension, error)])

    def _run_batch(
        self,
        entries: Sequence[TaskReports],
        process: TaskProcess | None,
        on_end: Callable[[Sequence[Outcome]], None],
    ) -> None:
        """Run the tasks of a batch; `on_end` gets the outcome of each, perhaps later in another thread."""
        tasks = [entry.task for entry in entries]
        for task in tasks:
            log_start(task)
        batch = BatchContext(tasks)
        if process is not None:
            outcomes: list[Outcome] | Coroutine[Any, Any, Any] = process.run_batch(tasks)
        else:
            outcomes = run_batch(batch, self._pid)
        if isinstance(outcomes, list):
            self._coroutine_jobs.discard(tasks[0].job_name)
            upload = self._reports.upload
            on_end([upload(task, outcome) for task, outcome in zip(tasks, outcomes, strict=True)])
            return

        async def settle(work: Coroutine[Any, Any, Any]) -> Sequence[Outcome]:
            return await self._uploaded(entries, await await_batch(work, batch, self._pid))

        self._coroutine_jobs.add(tasks[0].job_name)
        self._coroutines.run(outcomes, settle, on_end, batch.fail)

    def _run_remotely(
        self,
        remote: RemoteExecutor,
        entries: Sequence[TaskReports],
        on_end: Callable[[Sequence[Outcome]], None],
        *,
        is_batch: bool,
    ) -> None:
        """Run a task or a batch on an executor; `on_end` gets the outcomes later in another thread."""
        tasks = [entry.task for entry in entries]
        for task in tasks:
            log_start(task)
        try:
            future = remote.submit(tasks, self._poller.stopping, is_batch=is_batch)
        except Exception as error:
            on_end(not_submitted(tasks, error))
            return

        async def settle(work: Coroutine[Any, Any, Any]) -> Sequence[Outcome]:
            return await self._uploaded(entries, await work)

        self._coroutine_jobs.add(tasks[0].job_name)
        outcomes = remote.outcomes(tasks, future)
        self._coroutines.run(outcomes, settle, on_end, partial(not_submitted, tasks))

    async def _uploaded(
        self, entries: Sequence[TaskReports], outcomes: Sequence[Outcome]
    ) -> Sequence[Outcome]:
        """Upload the contents of outcomes in other threads."""
        upload = self._reports.upload
        return [
            outcome if outcome.content is None else await asyncio.to_thread(upload, entry.task, outcome)
            for entry, outcome in zip(entries, outcomes, strict=True)
        ]

    def _end(
        self,
        entries: Sequence[TaskReports],
        began: float,
        cost: int,
        spans: Sequence[TaskSpan | None],
        outcomes: Sequence[Outcome],
    ) -> None:
        seconds = time.monotonic() - began
        try:
            for entry, span, outcome in zip(entries, spans, outcomes, strict=True):
                end_task_span(span, entry.task, outcome)
                log_end(entry.task, outcome, seconds, of=len(entries))
        except Exception:
            log_defect("The end of task %s could not be logged", entries[0].task.task_id)
        is_busy = self._free_slots(began, cost)
        # Those before the last go into its request.
        for entry, outcome in zip(entries[:-1], outcomes, strict=False):
            self._reporter.end(entry, outcome, is_busy=True)
        self._reporter.end(entries[-1], outcomes[-1], is_busy=is_busy)

    def _free_slots(self, began: float, cost: int) -> bool:
        """Free the slots of a task; return whether another one waits for them."""
        with self._lock:
            self._running -= cost
            self._busy.discard(threading.current_thread())
            self._lookahead.ended(time.monotonic() - began)
            if not self._may_begin:
                self._room.notify()
                return False
            self._work.notify(cost)
            return True

    def _take(self) -> Waiting | None:
        thread = threading.current_thread()
        with self._lock:
            self._busy.discard(thread)
            while not self._poller.stopped:
                if self._may_begin:
                    first = self._waiting.popleft()
                    self._running += first.cost
                    self._busy.add(thread)
                    self._lookahead.began(time.monotonic())
                    self.begun += len(first.tasks)
                    if self._wanted:
                        self._room.notify()
                    return first
                self._work.wait()
        return None

    def _begin(self, task: ClaimedTask, *, is_sure: bool) -> TaskReports | None:
        """Return what to report of a task that can run now, with its extension; None if it cannot."""
        if task.cancelled.is_set():
            log.info("Task %s ended before it started here", task.task_id, extra=task_fields(task))
            self._poller.done()
            return None
        task, refusal = self._poller.prepare(task)
        if refusal is not None:
            self._reporter.refuse(task, refusal)
            return None
        if self._poller.stopped:
            self._hand_back(task)
            return None
        if not (is_sure or self._start(task)):
            return None
        return self._reporter.begin(task, started=not is_sure)

    def _start(self, task: ClaimedTask) -> bool:
        """Report the start and wait for the answer; release the task when the worker stops meanwhile."""
        try:
            self._reports.start(task, self._poller.stopping)
        # BaseException: the code of a host may call sys.exit().
        except BaseException as error:
            if self._poller.stopped and is_transient(error):
                self._hand_back(task)
            else:
                log.info(
                    "Task %s does not start here: %s", task.task_id, describe(error), extra=task_fields(task)
                )
                self._reports.drop(task)
                self._poller.done()
            return False
        return True
