"""The loop that removes silent workers and fails or requeues their tasks. No failure ends it.

The decisions of one cycle are in `queue.rules_sweep`. If this server was paused, missing heartbeats do not
show that a worker is lost.
"""

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from zndraw_joblib.jobs.logs import log_failed_work
from zndraw_joblib.server.background.pruner import Batch as PruneBatch
from zndraw_joblib.server.background.pruner import Pruner
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.process.settings import JobLibSettings
from zndraw_joblib.server.queue import rules_groups, rules_sweep
from zndraw_joblib.server.queue.rules_workers import Counts
from zndraw_joblib.wire.messages import SweeperCycle, SweeperMode, SweeperPreview
from zndraw_joblib.wire.statuses import TaskStatus


class AbsenceDetector:
    """Compares the times of successive observations by this process's clock and by the database's.

    The monotonic clock counts while the process is stopped, but not while the machine is suspended. The
    database's clock counts then too; an operator may also set it ahead, with the same effect.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._ignores_database = False
        self.restart()

    def restart(self) -> None:
        """Start to watch for absences now."""
        self.since = self._monotonic()
        self._last: float | None = self.since
        self._last_in_database: tuple[float, datetime] | None = None

    def forget(self) -> None:
        """Forget the last observation, so that the next one is compared with none."""
        self._last = self._last_in_database = None

    def skip(self, seconds: float) -> None:
        """Count these seconds, by which a test advances the clock, as watched.

        From then on the database's time shows no absence.
        """
        self.since -= seconds
        self._ignores_database = True

    @property
    def watched_seconds(self) -> float:
        """Return for how many seconds this server has watched without an absence."""
        return self._monotonic() - self.since

    def observe(self, database_time: datetime | None, longest_gap: float, slack: float) -> float:
        """Record that the server works now. Return the seconds of an absence before; 0 without one.

        A pause longer than `longest_gap` is an absence, and so are more than `slack` seconds by which the
        database's clock went ahead of this process's clock. An absence restarts the watch.
        """
        at = self._monotonic()
        absence = 0.0
        if self._last is not None and at - self._last > longest_gap:
            absence = at - self._last
        self._last = at
        if database_time is not None and not self._ignores_database:
            if self._last_in_database is not None:
                own, database = at - self._last_in_database[0], database_time - self._last_in_database[1]
                ahead = database.total_seconds() - own
                absence = max(absence, ahead if ahead > slack else 0.0)
            self._last_in_database = at, database_time
        if absence:
            self.since = at
        return absence


logger = logging.getLogger(__name__)
Result = TypeVar("Result")
Write = Callable[..., Awaitable[Any]]
Batch = Callable[[Transaction], Awaitable[int]]
# It gets a cycle, the seconds since the last good one, and the seconds of the startup grace that remain.
ReportCycle = Callable[[SweeperCycle, float, float], Awaitable[None]]

PASS_SECONDS = 60.0
# A timer may fire slightly early; that must not cost a whole interval.
TIMER_TOLERANCE = 0.01
_MIN_SLACK_SECONDS = 1.0
_CYCLES_KEPT = 20
# After a batch, the sweeper yields for this many cycles of the event loop, enough to answer a request.
_CYCLES_FOR_REQUESTS = 10


@dataclass(slots=True)
class Cycle:
    """The summary of one cycle; `expired` counts workers, `counts` and `pruned` count tasks."""

    mode: SweeperMode | None = None
    at: datetime = field(default_factory=lambda: datetime.now(UTC))
    scanned: int = 0
    stale: int = 0
    expired: int = 0
    counts: Counts = field(default_factory=Counts)
    pruned: int = 0
    errors: int = 0
    elapsed: float = 0.0
    is_held_back: bool = False
    held_users: frozenset[str] = frozenset()

    @property
    def actions(self) -> dict[str, int]:
        """How many workers and tasks this cycle changed, and how many errors it had."""
        is_enforced = self.mode == SweeperMode.ENFORCE
        return {
            "expire-worker": self.expired if is_enforced else 0,
            "release-task": self.counts.released if is_enforced else 0,
            "fail-task": self.counts.failed if is_enforced else 0,
            "prune-task": self.pruned,
            "error": self.errors,
        }

    @property
    def summary(self) -> SweeperCycle:
        """The summary for operators."""
        return SweeperCycle(
            at=self.at,
            mode=self.mode,
            scanned=self.scanned,
            stale=self.stale,
            expired=self.expired,
            released=self.counts.released,
            failed=self.counts.failed,
            pruned=self.pruned,
            errors=self.errors,
            elapsed=self.elapsed,
            held_back=self.is_held_back,
        )

    def __str__(self) -> str:
        """Return the summary for the log, in words."""
        names = list(self.counts.silent.values())
        more = [f"{self.expired - len(names):,} more"] if self.expired > len(names) else []
        silent = f": {', '.join([*names, *more])}" if names else ""
        would = "" if self.mode == SweeperMode.ENFORCE else "would be "
        spared = self.stale - self.expired
        wait = " until the next cycle" if self.is_held_back else ""
        parts = [
            (self.expired, f"of {_number(self.scanned, 'worker')} {would}removed for silence{silent}"),
            (spared, f"silent {_plural(spared, 'worker')} kept{wait}"),
            (self.counts.failed, f"{_plural(self.counts.failed, 'task')} {would}failed"),
            (self.counts.released, f"{_plural(self.counts.released, 'task')} {would}queued again"),
            (self.pruned, f"old {_plural(self.pruned, 'task')} deleted"),
            (self.errors, _plural(self.errors, "error")),
        ]
        shown = ", ".join(f"{number:,} {text}" for number, text in parts if number > 0)
        return f"{shown or 'nothing to do'} ({self.elapsed:.2f} s)"


def _plural(number: int, noun: str) -> str:
    return noun if number == 1 else f"{noun}s"


def _number(number: int, noun: str) -> str:
    return f"{number:,} {_plural(number, noun)}"


class Sweeper:
    """Runs cycles. `write` runs work in a transaction, commits, and publishes its events.

    `write_short` does the same for work of a few milliseconds. `after_workers` is called in each cycle that
    may act. `monotonic` is the clock, in seconds; a pass may take `pass_seconds`. `prune_content` deletes a
    batch of the content of task results. `report` stores each cycle; it does not raise.
    """

    def __init__(  # noqa: PLR0913 - one argument per part that `mount` connects
        self,
        write: Write,
        settings: JobLibSettings,
        after_workers: Callable[[], None] = lambda: None,
        *,
        write_short: Write | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        pass_seconds: float = PASS_SECONDS,
        prune_content: PruneBatch | None = None,
        report: ReportCycle | None = None,
    ) -> None:
        self._write = write
        self._report = report
        self._write_short = write_short or write
        self._after_workers = after_workers
        self._settings = settings
        self._monotonic = monotonic
        self._pass_seconds = pass_seconds
        self.last_good = monotonic()
        self.absence = AbsenceDetector(monotonic)
        self.pruner = Pruner(self._run, settings, monotonic, pass_seconds, prune_content)
        self.last_cycles: deque[Cycle] = deque(maxlen=_CYCLES_KEPT)
        self._one_cycle = asyncio.Lock()
        # What this process did since its start.
        self.actions: Counter[str] = Counter()

    async def run(self) -> None:
        """Sweep every `sweeper_interval_seconds` until cancelled."""
        self.last_good = self._monotonic()
        self.absence.restart()
        self._warn_of_tight_margin()
        while True:
            await self._sleep(self._settings.sweeper_interval_seconds)
            await self.cycle()

    async def _sleep(self, seconds: float) -> None:
        """Sleep, and detect a pause of this server meanwhile that is shorter than the sleep."""
        while seconds > 0:
            step = min(seconds, self._settings.heartbeat_seconds)
            await asyncio.sleep(step)
            seconds -= step
            self._check_absence()

    async def cycle(self) -> Cycle:
        """Sweep once. Never raises; a failure is logged and counted. A second call waits for the first."""
        async with self._one_cycle:
            return await self._cycle()

    async def _cycle(self) -> Cycle:
        started = self._monotonic()
        cycle = Cycle()
        is_good = await self._sweep(cycle)
        cycle.elapsed = self._monotonic() - started
        if is_good:
            # One worker that cannot be removed is in the log; the server stays ready.
            self.last_good = self._monotonic()
        if cycle.mode is not None:
            cycle.pruned = await self.pruner.cycle(with_tasks=cycle.mode == SweeperMode.ENFORCE)
            cycle.errors += self.pruner.failures
        self.last_cycles.append(cycle)
        self.actions.update(cycle.actions)
        is_busy = cycle.stale or cycle.counts != Counts() or cycle.pruned or cycle.errors
        level, fields = logging.INFO if is_busy else logging.DEBUG, cycle.summary.model_dump(mode="json")
        logger.log(level, "Swept: %s", cycle, extra={"cycle": fields})
        if cycle.elapsed > self._settings.sweeper_interval_seconds:
            logger.warning(
                "A cycle of the sweeper took %.1f s, longer than sweeper_interval_seconds (%g): silent "
                "workers are removed late",
                cycle.elapsed,
                self._settings.sweeper_interval_seconds,
            )
        if self._report is not None:
            await self._report(cycle.summary, self._monotonic() - self.last_good, self.grace_remaining)
        return cycle

    async def _run(self, work: Callable[..., Awaitable[Result]], *args: Any, **kwargs: Any) -> Result:
        """Run `work` in a transaction, and record that this server and its database worked at its start."""
        return await self._run_with(self._write, work, *args, **kwargs)

    async def _run_with(
        self, write: Write, work: Callable[..., Awaitable[Result]], *args: Any, **kwargs: Any
    ) -> Result:
        async def observed(tx: Transaction) -> Result:
            self._check_absence(await tx.now())
            return await work(tx, *args, **kwargs)

        try:
            result: Result = await write(observed)
            return result
        finally:
            self._check_absence()

    def _check_absence(self, database_time: datetime | None = None) -> None:
        settings = self._settings
        slack = max(_MIN_SLACK_SECONDS, settings.worker_timeout_seconds / 4)
        longest_gap = max(
            settings.worker_timeout_seconds - settings.heartbeat_seconds,
            min(settings.sweeper_interval_seconds, settings.heartbeat_seconds) + slack,
        )
        absence = self.absence.observe(database_time, longest_gap, slack)
        if absence:
            logger.warning(
                "This server was paused, or the database's clock was set ahead, for %.1f s: no worker is "
                "removed within the next %g s (worker_timeout_seconds)",
                absence,
                settings.worker_timeout_seconds,
            )

    async def _sweep(self, cycle: Cycle) -> bool:
        """Run the passes of the current mode. Return whether all of them succeeded."""
        swept_workers = await self._guard(cycle, self._sweep_workers(cycle))
        if not swept_workers:
            # While this server could not query, workers may not have been able to report either.
            self.absence.restart()
        if cycle.mode != SweeperMode.ENFORCE:
            return swept_workers
        self._after_workers()
        swept_tasks = await self._guard(cycle, self._until_done(self._sweep_tasks(cycle)))
        if not swept_tasks:
            # A locked job must not stop the tasks of others.
            skipping = self._sweep_tasks(cycle, skip_locked=True)
            swept_tasks = await self._guard(cycle, self._until_done(skipping))
        if not swept_tasks:
            # A failing batch of one kind must not stop those of the others.
            for batch in self._batches(cycle):
                with suppress(Exception):
                    async with asyncio.timeout(self._pass_seconds):
                        await self._until_done(batch)
        swept_groups = await self._guard(cycle, self._seal_groups(cycle))
        return swept_workers and swept_tasks and swept_groups

    async def _seal_groups(self, cycle: Cycle) -> None:
        after = None
        while groups := await self._run(rules_groups.due, after=after):
            for group in groups:
                # A group that cannot end, such as one with a locked job, must not stop the others.
                await self._guard(cycle, self._run(rules_groups.seal_due, group_id=group.id))
            after = groups[-1].due_at, groups[-1].n

    @property
    def is_late(self) -> bool:
        """Whether the last good cycle is longer ago than three intervals."""
        return self._monotonic() - self.last_good > 3 * self._settings.sweeper_interval_seconds + 1

    @property
    def grace_remaining(self) -> float:
        """The seconds until this sweeper may expire workers: until each has had a full timeout to report."""
        return max(0.0, self._settings.worker_timeout_seconds - self.absence.watched_seconds)

    @property
    def _may_expire(self) -> bool:
        return self.grace_remaining <= TIMER_TOLERANCE

    async def _guard(self, cycle: Cycle, work: Awaitable[None]) -> bool:
        try:
            async with asyncio.timeout(self._pass_seconds):
                await work
        except Exception as error:
            cycle.errors += 1
            log_failed_work(logger, error, "A pass of the sweeper failed; the next cycle retries it")
            return False
        return True

    async def _observe(self, tx: Transaction, cycle: Cycle) -> None:
        planned = await self.preview(tx)
        cycle.scanned, cycle.stale, cycle.expired = planned.scanned, planned.stale, len(planned.workers)
        cycle.counts.released = sum(change.after == TaskStatus.PENDING for change in planned.tasks)
        cycle.counts.failed = len(planned.tasks) - cycle.counts.released

    async def preview(self, tx: Transaction) -> SweeperPreview:
        """Return what a cycle would do now, without startup grace and mass-expiry guard."""
        return await rules_sweep.preview(tx, self._timeout(), self._internal_timeout(), self._unnamed_limit())

    async def _sweep_workers(self, cycle: Cycle) -> None:
        timeout = self._timeout()
        while True:
            try:
                more = await self._sweep_batch(cycle, timeout)
            except Exception as error:
                if not self._may_expire or cycle.is_held_back:
                    raise
                text = "Did not remove a batch of silent workers; removing each alone"
                log_failed_work(logger, error, text)
                await self._retire_singly(cycle, timeout)
                return
            if not more:
                return
            for _ in range(_CYCLES_FOR_REQUESTS):
                await asyncio.sleep(0)

    async def _sweep_batch(self, cycle: Cycle, timeout: timedelta) -> bool:
        """Remove a batch of silent workers. Return whether there may be more."""
        work = partial(self._retire_batch, cycle=cycle, timeout=timeout)
        try:
            return await self._run_with(self._write_short, partial(work, is_short=True))
        except rules_sweep.TooManyTasks:
            return await self._run(work)

    async def _retire_batch(
        self, tx: Transaction, cycle: Cycle, timeout: timedelta, *, is_short: bool = False
    ) -> bool:
        if not cycle.expired:
            cycle.mode = await rules_sweep.mode(tx, self._settings.sweeper_mode)
            if cycle.mode == SweeperMode.OBSERVE:
                await self._observe(tx, cycle)
            if cycle.mode != SweeperMode.ENFORCE:
                return False
            cycle.scanned, cycle.stale = await rules_sweep.count_workers(tx, timeout)
            if self._may_expire and self._must_hold_back(cycle):
                await self._hold_back(tx, cycle, timeout)
        if not self._may_expire or cycle.is_held_back:
            return False
        expired = await rules_sweep.retire_stale(
            *(tx, timeout),
            counts=cycle.counts,
            but_of=cycle.held_users,
            is_first=not cycle.expired,
            is_short=is_short,
        )
        cycle.expired += expired
        return expired > 0

    def _must_hold_back(self, cycle: Cycle) -> bool:
        """Return whether the mass-expiry guard applies: most workers would expire at once."""
        is_mass_expiry = cycle.stale >= rules_sweep.MIN_SILENT and 2 * cycle.stale > cycle.scanned
        return is_mass_expiry and not (self.last_cycles and self.last_cycles[-1].is_held_back)

    async def _hold_back(self, tx: Transaction, cycle: Cycle, timeout: timedelta) -> None:
        """Keep the silent workers of all users for one cycle, or those of users that were not kept before."""
        spared = self.last_cycles[-1].held_users if self.last_cycles else frozenset()
        held = await rules_sweep.find(tx, timeout, spared)
        cycle.is_held_back, cycle.held_users = held.of_all, frozenset() if held.of_all else held.users
        if held.of_all or held.users:
            logger.warning(
                "%d of %d workers are silent, which may be the server's fault: waiting one cycle%s",
                *(cycle.stale, cycle.scanned),
                "" if held.of_all else f" for those of {len(held.users)} users",
            )

    async def _retire_singly(self, cycle: Cycle, timeout: timedelta) -> None:
        ids: list[UUID] = await self._run(rules_sweep.stale_workers, timeout, cycle.held_users)
        for worker_id in ids:
            try:
                cycle.expired += await self._run(
                    rules_sweep.retire_stale, timeout=timeout, only=worker_id, counts=cycle.counts
                )
            except Exception as error:
                cycle.errors += 1
                text = f"Did not remove worker_id={worker_id}"
                log_failed_work(logger, error, text, worker_id=str(worker_id))

    def _batches(self, cycle: Cycle) -> list[Batch]:
        limit = self._unnamed_limit() if self._may_expire else None
        return [
            *(
                []
                if limit is None
                else [partial(rules_sweep.recover_unnamed, limit=limit, counts=cycle.counts)]
            ),
            partial(rules_sweep.fail_stuck, timeout=self._internal_timeout(), counts=cycle.counts),
            partial(rules_sweep.release_paused, counts=cycle.counts),
            partial(rules_sweep.recover_abandoned, counts=cycle.counts),
            partial(rules_sweep.recover_overdue, counts=cycle.counts),
            partial(rules_sweep.fail_expired, counts=cycle.counts),
            rules_sweep.enqueue_due,
        ]

    def _sweep_tasks(self, cycle: Cycle, *, skip_locked: bool = False) -> Batch:
        """Return a function that moves a batch of tasks of each kind in one transaction."""

        async def move(tx: Transaction) -> int:
            limit = self._unnamed_limit() if self._may_expire else None
            kinds = rules_sweep.kinds(self._internal_timeout(), limit, cycle.counts)
            await rules_sweep.prune_unnamed(tx, limit or timedelta(days=1))
            return await rules_sweep.move_tasks(tx, kinds, skip_locked=skip_locked)

        return move

    async def _until_done(self, batch: Batch) -> None:
        while await self._run(batch) >= rules_sweep.TASKS_PER_BATCH:
            pass

    def _timeout(self) -> timedelta:
        return timedelta(seconds=self._settings.worker_timeout_seconds)

    def _unnamed_limit(self) -> timedelta | None:
        seconds = self._settings.unnamed_task_seconds
        return None if seconds is None else timedelta(seconds=seconds)

    def _internal_timeout(self) -> timedelta:
        return timedelta(seconds=self._settings.internal_task_timeout_seconds)

    def _warn_of_tight_margin(self) -> None:
        settings = self._settings
        if settings.worker_timeout_seconds < settings.sweeper_interval_seconds:
            logger.warning(
                "sweeper_interval_seconds (%g) is longer than worker_timeout_seconds (%g): silent workers "
                "are removed late",
                settings.sweeper_interval_seconds,
                settings.worker_timeout_seconds,
            )
        if 3 * settings.heartbeat_seconds > settings.worker_timeout_seconds:
            logger.warning(
                "heartbeat_interval_seconds (%g) is more than a third of worker_timeout_seconds (%g): a "
                "worker that misses one or two heartbeats is removed",
                settings.heartbeat_seconds,
                settings.worker_timeout_seconds,
            )
