"""The small loops of a server process: health checks, metrics, statistics, scheduler, its own report."""

import asyncio
import logging
import os
import random
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from importlib.metadata import version
from typing import Any
from uuid import uuid4

from zndraw_joblib.jobs.logs import ExponentialBackoff, create_shared_task, log_failed_work
from zndraw_joblib.server.admin import rules_overview, rules_servers, rules_statistics
from zndraw_joblib.server.admin.rules_capacity import limits_of
from zndraw_joblib.server.db import schema
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.process.ports import Identity
from zndraw_joblib.server.queue import rules_sweep, rules_tasks
from zndraw_joblib.server.runtime.runtime import Runtime
from zndraw_joblib.wire.messages import SweeperCycle, TaskClaimRequest, TaskUpdateRequest
from zndraw_joblib.wire.names import GLOBAL, JobName
from zndraw_joblib.wire.problems import NotFound, ProblemException, ServiceUnavailable
from zndraw_joblib.wire.statuses import TaskStatus


async def write(tx: Transaction) -> None:
    """Write to the database without a lasting change."""
    await schema.write(tx)


# Health checks: whether requests go through this server.

logger = logging.getLogger(__name__)

_PROBE_SECONDS, _REDIS_SECONDS = 3.0, 1.0
_CACHE_SECONDS = 1.0


# The check of Redis: without it the server still takes requests, and all other servers miss it too.
REDIS = "redis"
# What says that the server has a test clock.
CLOCK = "clock"


def reasons(checks: Mapping[str, str]) -> dict[str, str]:
    """Return the reasons of the checks by which a server is not ready."""
    return {name: check for name, check in checks.items() if check != "ok" and name not in {REDIS, CLOCK}}


class Health:
    """Runs the health checks. Each of `checks` returns `ok` or a reason."""

    def __init__(self, runtime: Runtime, checks: Mapping[str, Callable[[], str]]) -> None:
        self._runtime = runtime
        self._checks = checks
        self._cached: tuple[float, dict[str, str]] | None = None
        self._running: asyncio.Task[dict[str, str]] | None = None
        self._logged: dict[str, str] = {}

    async def check(self) -> dict[str, str]:
        """Return `ok` or a reason for each check, from a cache for one second. One check runs at a time."""
        if self._cached is not None and time.monotonic() <= self._cached[0]:
            return self._cached[1]
        loop = asyncio.get_running_loop()
        if self._running is None or self._running.done() or self._running.get_loop() is not loop:
            self._running = create_shared_task(self._check())
        return await asyncio.shield(self._running)

    async def _check(self) -> dict[str, str]:
        probe, redis = await asyncio.gather(self._probe(), self._probe_redis())
        results = {"work": probe, **{name: run() for name, run in self._checks.items()}, **redis}
        self._cached = time.monotonic() + _CACHE_SECONDS, results
        self._log(reasons(results))
        return results

    def _log(self, failed: dict[str, str]) -> None:
        """Log why the server is not ready, once for each change: the probes of a host respond without it."""
        if failed != self._logged and failed:
            logger.warning("The server is not ready: %s", "; ".join(map(": ".join, failed.items())))
        self._logged = failed

    async def _probe(self) -> str:
        """Return `ok`, or why a request of some kind would not succeed now."""
        try:
            async with asyncio.timeout(_PROBE_SECONDS):
                answers = await asyncio.gather(*self._requests(), return_exceptions=True)
        except TimeoutError:
            return f"a submit, a claim, a report, a heartbeat or a write took more than {_PROBE_SECONDS:g} s"
        for error in answers:
            if isinstance(error, Exception) and not isinstance(error, NotFound):
                logger.warning("The health check of the write path failed: %r", error)
                return str(error) if isinstance(error, ProblemException) else type(error).__name__
        return "ok"

    async def _probe_redis(self) -> dict[str, str]:
        """Return `ok`, or what waits for Redis; nothing for a server without it. The others need no Redis."""
        url = self._runtime.settings.redis_url
        if url is None:
            return {}
        from zndraw_joblib.server.process.redis import open_redis  # noqa: PLC0415 - few servers need it

        client = open_redis(url)
        try:
            async with asyncio.timeout(_REDIS_SECONDS):
                await client.ping()
        except Exception as error:
            waits = "internal tasks, provider results and events of other servers wait"
            return {REDIS: f"unavailable ({type(error).__name__}): {waits}"}
        finally:
            await client.aclose()
        return {REDIS: "ok"}

    def _requests(self) -> list[Awaitable[Any]]:
        """Return a request of each kind that is written in batches, and one that changes the database.

        The requests for a job, a task and a worker that do not exist take the same path as real ones.
        """
        unknown, any_id = Identity("", is_superuser=False), uuid4()
        submission = rules_tasks.Submission(unknown, GLOBAL, JobName(GLOBAL, "health", str(any_id)), {})
        return [
            self._runtime.submit(submission),
            self._runtime.claim(unknown, TaskClaimRequest(worker_id=any_id)),
            self._runtime.report(
                rules_tasks.Report(unknown, any_id, TaskUpdateRequest(status=TaskStatus.RUNNING))
            ),
            self._runtime.heartbeat(unknown, any_id),
            self._runtime.write_short(write),
        ]


# Read the figures of the whole queue for metrics: one read at a time, at most one each second.

_READ_SECONDS = 5.0
Read = tuple[float, rules_overview.QueueMetrics | None]


class Metrics:
    """The figures of the queue for any number of readers."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._cached: Read | None = None
        self._running: asyncio.Task[Read] | None = None

    async def read(self) -> rules_overview.QueueMetrics | None:
        """Return the figures, at most a second old; None if the database did not answer within 5 s."""
        if self._cached is not None and time.monotonic() <= self._cached[0]:
            return self._cached[1]
        loop = asyncio.get_running_loop()
        if self._running is None or self._running.done() or self._running.get_loop() is not loop:
            self._running = create_shared_task(self._read())
        return (await asyncio.shield(self._running))[1]

    async def _read(self) -> Read:
        figures, settings = None, self._runtime.settings
        try:
            async with asyncio.timeout(_READ_SECONDS):
                figures = await self._runtime.database.read_snapshot(
                    rules_overview.read_metrics, settings.heartbeat_seconds, limits_of(settings)
                )
        except Exception as error:
            log_failed_work(logger, error, "The metrics of the queue cannot be read")
        self._cached = time.monotonic() + _CACHE_SECONDS, figures
        return self._cached


# The loop that keeps the statistics of tasks up to date. Each server runs it; one at a time has work.

_PAUSE_SECONDS, _SHORTEST_PAUSE_SECONDS = 5.0, 0.25
_CATCH_UP_SECONDS = 0.05
# A pass keeps other writers waiting on SQLite, for about 15 ms with this many occurrences.
_FEW = 1000


class Rollups:
    """Adds what happened to tasks to the statistics, every 5 s, or more often if much happens.

    After a long absence it reads one part of the time after the other, and pauses after each for as long as
    the part took. A pass that has begun when the loop is cancelled goes on: `Runtime.finish` waits for it.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._is_failing = False

    async def run(self) -> None:
        """Update the statistics until cancelled."""
        pause = _PAUSE_SECONDS
        while True:
            started = asyncio.get_running_loop().time()
            latest = await self._try()
            if latest.is_behind:
                seconds = max(_CATCH_UP_SECONDS, asyncio.get_running_loop().time() - started)
            else:
                pause = min(
                    _PAUSE_SECONDS, max(_SHORTEST_PAUSE_SECONDS, pause * _FEW / max(1, latest.number))
                )
                # Servers that started together take turns.
                seconds = pause * random.uniform(0.8, 1.2)  # noqa: S311
            await asyncio.sleep(seconds)

    async def _try(self) -> rules_statistics.Pass:
        try:
            latest = await self.update()
        except Exception as error:
            if not self._is_failing:
                text = "The statistics are not updated; a later pass reads the same time (logged once)"
                log_failed_work(logger, error, text)
            self._is_failing = True
            return rules_statistics.Pass(0, is_behind=False)
        self._is_failing = False
        return latest

    async def update(self, settle: timedelta = rules_statistics.SETTLE) -> rules_statistics.Pass:
        """Run one pass."""
        settings = self._runtime.settings
        retention = rules_statistics.StatisticsRetention(
            timedelta(days=settings.statistics_minutes_days), timedelta(days=settings.statistics_hours_days)
        )
        return await self._runtime.write(rules_statistics.advance, retention, settle)


# The scheduler: it puts scheduled tasks into their queues when they are due.

Write = Callable[..., Awaitable[Any]]

_RETRY_SECONDS = 1.0
# It queries again after this time, in case the database's clock runs faster than this process's clock.
_MAX_SLEEP_SECONDS = 3600.0
_FIRST_LOCKED_PAUSE, _LONGEST_LOCKED_PAUSE = 0.01, 1.0


class Scheduler:
    """Sleeps until the next task is due, and queries the database only then, and once at the start.

    Each server wakes for the tasks that it scheduled itself; the sweeper handles all of them, because a
    server may have crashed. All times are those of the database's clock: this process only measures how long
    it sleeps. While another transaction holds a lock on a due task, the scheduler retries after growing
    pauses.
    """

    def __init__(self, write: Write) -> None:
        self._write = write
        self._next = float("inf")
        self._earlier: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._locked = ExponentialBackoff(_FIRST_LOCKED_PAUSE, _LONGEST_LOCKED_PAUSE, jitter=0)

    def add(self, seconds: float) -> None:
        """Wake up for a task that is due in `seconds`. Any thread may call it."""
        self._wake_at(time.monotonic() + seconds)

    def _wake_at(self, due: float) -> None:
        due = min(due, time.monotonic() + _MAX_SLEEP_SECONDS)
        if due >= self._next or self._loop is None or self._earlier is None or self._loop.is_closed():
            return
        self._next = due
        self._loop.call_soon_threadsafe(self._earlier.set)

    async def run(self) -> None:
        """Queue due tasks until cancelled."""
        self._loop, self._earlier = asyncio.get_running_loop(), asyncio.Event()
        self._next = time.monotonic()
        while True:
            await self._sleep(self._earlier)
            if self._next > time.monotonic():
                continue
            self._next = float("inf")
            try:
                seconds = await self._queue_due()
            except Exception as error:
                log_failed_work(logger, error, "Scheduled tasks wait")
                seconds = _RETRY_SECONDS
            if seconds is not None:
                self._wake_at(time.monotonic() + seconds)

    async def _queue_due(self) -> float | None:
        """Queue the due tasks. Return the seconds until the next one is due; None without one."""
        try:
            while await self._write(rules_sweep.enqueue_due) == rules_sweep.TASKS_PER_BATCH:
                pass
        except ServiceUnavailable:
            # A job may be locked: the due tasks of others must not wait for it.
            while await self._write(rules_sweep.enqueue_due, skip_locked=True) == rules_sweep.TASKS_PER_BATCH:
                pass
        next_due: rules_sweep.NextDue = await self._write(rules_sweep.next_due)
        if not next_due.is_locked:
            self._locked.reset()
            return next_due.seconds
        pause = self._locked.next()
        return pause if next_due.seconds is None else min(pause, next_due.seconds)

    async def _sleep(self, earlier: asyncio.Event) -> None:
        seconds = self._next - time.monotonic()
        try:
            async with asyncio.timeout(max(0.0, seconds) if seconds <= _MAX_SLEEP_SECONDS else None):
                await earlier.wait()
        except TimeoutError:
            return
        earlier.clear()


# This server process reports itself to operators after each cycle of its sweeper.

_REPORT_SECONDS = 5.0
_LEAVE_SECONDS = 1.0
# Old rows are deleted with the fifth report, and then with each twentieth.
_REPORTS_PER_PRUNE, _FIRST_PRUNE = 20, 5


class ServerReports:
    """Stores the state of this server. A failure is logged, and never fails a cycle or a stop.

    `internal_jobs` returns those for which it has executors, None while it does not know.
    """

    def __init__(self, runtime: Runtime, internal_jobs: Callable[[], Sequence[str] | None]) -> None:
        self._runtime, self._internal_jobs = runtime, internal_jobs
        self._started = time.monotonic()
        self.process = rules_servers.Process(
            uuid4(), socket.gethostname()[:255], os.getpid(), version("zndraw-joblib")[:64]
        )
        self._is_known = False
        self._reports = 0

    async def report(self, cycle: SweeperCycle, last_good_ago: float, grace_seconds: float) -> None:
        """Store a cycle, and that this server works."""
        state = rules_servers.SweepReport(
            started_ago=time.monotonic() - self._started,
            last_good_ago=last_good_ago,
            grace_remaining_seconds=grace_seconds,
            sweep_interval_seconds=self._runtime.settings.sweeper_interval_seconds,
            internal_jobs=self._internal_jobs(),
        )
        self._is_known = True
        self._reports += 1
        is_pruning = self._reports % _REPORTS_PER_PRUNE == _FIRST_PRUNE
        try:
            async with asyncio.timeout(_REPORT_SECONDS):
                await self._runtime.write(rules_servers.report, self.process, state, cycle, prune=is_pruning)
        except Exception as error:
            log_failed_work(logger, error, "This server did not report its cycle; the next cycle does so")

    async def leave(self) -> None:
        """Delete this server, which stops: others do not take it for a silent one."""
        if not self._is_known:
            return
        self._is_known = False
        try:
            async with asyncio.timeout(_LEAVE_SECONDS):
                await self._runtime.write(rules_servers.leave, self.process)
        except Exception as error:
            logger.info("This server stays listed for an hour, because it could not sign off: %r", error)
