"""The steps of a sweeper cycle: remove stale workers, recover stuck tasks, fail expired ones.

Each function handles one batch in one transaction and returns its size; the sweeper repeats it until the
batch is not full. `preview` returns what a cycle would do, and changes nothing.
"""

from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple, Protocol
from uuid import UUID

from zndraw_joblib.server.db import runtime_settings
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.queue import (
    rules_answers,
    rules_jobs,
    rules_limits,
    rules_pauses,
    rules_transitions,
    rules_workers,
    sql_expiry,
    sql_jobs,
    sql_transitions,
    sql_workers,
)
from zndraw_joblib.server.queue.rules_workers import Counts, Decide
from zndraw_joblib.server.queue.sql_task_rows import TaskRecord
from zndraw_joblib.wire.messages import PlannedChange, SweeperMode, SweeperPreview
from zndraw_joblib.wire.statuses import TaskStatus

# A batch takes fewer workers if they hold more tasks; a task that may be retried counts as several.
COST_PER_WORKER = 3
TASKS_PER_BATCH = 1000
_MODE = "sweeper_mode"
# A heartbeat that is further ahead of the clock was made before the clock was set back.
_MAX_CLOCK_JITTER = timedelta(seconds=5)


class TooManyTasks(Exception):
    """One worker holds more tasks than a short transaction may move. Nothing was written."""


class Rule(NamedTuple):
    """Which held tasks to recover, by their times compared with `at`, and their new state."""

    reads: sql_expiry.Reads
    at: datetime
    decide: Decide


def batch_size(*, is_sqlite: bool) -> int:
    """Return how many workers to remove in one transaction.

    A heartbeat on SQLite waits for it. On PostgreSQL, each transaction waits for the disk.
    """
    return 40 if is_sqlite else 256


async def mode(tx: Transaction, default: SweeperMode) -> SweeperMode:
    """Return the mode that a superuser has set for all sweepers, or the default."""
    stored = await runtime_settings.get(tx, _MODE)
    return default if stored is None else SweeperMode(stored)


async def set_mode(tx: Transaction, new: SweeperMode) -> None:
    """Set the mode of the sweepers of all servers, from their next cycle on."""
    await runtime_settings.put(tx, _MODE, new.value)


async def count_workers(tx: Transaction, timeout: timedelta) -> tuple[int, int]:
    """Count all workers, and those without a heartbeat for `timeout`."""
    return await sql_workers.count(tx), await sql_workers.count(tx, await tx.now() - timeout)


async def stale_workers(tx: Transaction, timeout: timedelta, but_of: Collection[str] = ()) -> list[UUID]:
    """Lock and return a batch of workers without a heartbeat for `timeout`, but none of these users."""
    size = batch_size(is_sqlite=tx.is_sqlite)
    return list(await sql_workers.lock_if_stale(tx, await tx.now() - timeout, size, but_of=but_of))


async def retire_stale(  # noqa: PLR0913 - one argument per condition
    tx: Transaction,
    timeout: timedelta,
    only: UUID | None = None,
    counts: Counts | None = None,
    *,
    but_of: Collection[str] = (),
    is_first: bool = True,
    is_short: bool = False,
) -> int:
    """Retire a batch of workers without a heartbeat for `timeout`, or only one worker. Return their number.

    Those of the users `but_of` stay. One statement checks and locks them: a worker whose heartbeat commits
    first stays. The first batch of a cycle also corrects heartbeats in the future. Raises `TooManyTasks` if
    it `is_short` and the first worker holds too many tasks.
    """
    if is_first:
        await sql_workers.clamp_future_heartbeats(tx, _MAX_CLOCK_JITTER)
    size = batch_size(is_sqlite=tx.is_sqlite)
    silent = await sql_workers.lock_if_stale(tx, await tx.now() - timeout, size, only, but_of)
    most_cost = COST_PER_WORKER * size
    stale: list[UUID] = []
    total = 0
    for worker_id, (cost, *_) in silent.items():
        if total + cost > most_cost and stale:
            break
        if cost > most_cost and is_short:
            raise TooManyTasks
        stale.append(worker_id)
        total += cost
    if counts is not None:
        counts.add_silent({worker_id: silent[worker_id] for worker_id in stale}, await tx.now())
    await rules_workers.retire(tx, stale, counts, total)
    return len(stale)


def stuck(now: datetime, timeout: timedelta) -> Rule:
    """Return the rule for tasks of internal jobs that were held for longer than `timeout`."""
    return Rule(
        sql_expiry.STUCK_INTERNAL,
        now - timeout,
        lambda task, at, _: rules_transitions.internal_timeout(task, at),
    )


def paused(now: datetime) -> Rule:
    """Return the rule for claimed tasks of paused internal jobs: they wait in their queues."""
    return Rule(sql_expiry.PAUSED_INTERNAL, now, lambda task, _, __: rules_transitions.released(task))


def abandoned(now: datetime) -> Rule:
    """Return the rule for held tasks of remote jobs whose worker does not exist."""
    return Rule(sql_expiry.ABANDONED, now, rules_transitions.worker_lost)


def overdue(now: datetime) -> Rule:
    """Return the rule for held tasks whose deadline to start or to end has passed."""
    return Rule(sql_expiry.OVERDUE, now, rules_transitions.overdue)


def not_named(now: datetime, limit: timedelta) -> Rule:
    """Return the rule for held tasks that a living worker did not name in its heartbeats for `limit`."""
    return Rule(sql_expiry.UNNAMED, now - limit, rules_transitions.unnamed)


class Find(Protocol):
    """Locks and returns tasks that are due at a time."""

    async def __call__(
        self, tx: Transaction, now: datetime, *, but_of: Collection[UUID] = ()
    ) -> list[TaskRecord]:
        """Lock and return some of these tasks."""


class Kind(NamedTuple):
    """A kind of tasks that a sweep moves: `find` locks some of them, `apply` moves them.

    `find` leaves out the tasks of the jobs `but_of`.
    """

    find: Find
    apply: Callable[[Transaction, list[TaskRecord]], Awaitable[None]]


def kinds(
    internal_timeout: timedelta, unnamed_limit: timedelta | None, counts: Counts | None = None
) -> list[Kind]:
    """Return the kinds of tasks that a sweep moves, in the order in which it reads them."""
    rules: list[Callable[[datetime], Rule]] = [
        partial(stuck, timeout=internal_timeout),
        paused,
        abandoned,
        overdue,
    ]
    if unnamed_limit is not None:
        rules.append(partial(not_named, limit=unnamed_limit))
    return [
        *[_recovered(rule, counts) for rule in rules],
        Kind(partial(sql_expiry.expired, limit=TASKS_PER_BATCH), partial(_fail_expired, counts=counts)),
        _DUE,
    ]


async def move_tasks(tx: Transaction, kinds: Sequence[Kind], *, skip_locked: bool = False) -> int:
    """Move a batch of tasks of each kind. Return the size of the largest batch.

    It locks all tasks first, without waiting, then all versions of their jobs, in order. With `skip_locked`,
    it locks only the versions of the tasks, skips the tasks of those that another transaction has locked, and
    looks for tasks of others instead.
    """
    lock = partial(sql_jobs.lock, skip_locked=True) if skip_locked else sql_jobs.lock_with_versions
    now = await tx.now()
    skipped: set[UUID] = set()
    while True:
        batches = await _find(tx, kinds, now, skipped)
        job_ids = {task.job_id for batch in batches for task in batch}
        busy = job_ids - await lock(tx, job_ids)
        if not (skip_locked and busy):
            break
        skipped |= busy
    for kind, batch in zip(kinds, batches, strict=True):
        if batch:
            await kind.apply(tx, batch)
    return max(map(len, batches))


async def _find(
    tx: Transaction, kinds: Sequence[Kind], now: datetime, skipped: Collection[UUID]
) -> list[list[TaskRecord]]:
    """Lock a batch of tasks of each kind; each task is in one batch."""
    seqs: set[int] = set()
    batches: list[list[TaskRecord]] = []
    for kind in kinds:
        batch = [task for task in await kind.find(tx, now, but_of=skipped) if task.seq not in seqs]
        seqs |= {task.seq for task in batch}
        batches.append(batch)
    return batches


async def fail_stuck(tx: Transaction, timeout: timedelta, counts: Counts | None = None) -> int:
    """Fail internal tasks that were held for longer than `timeout`."""
    return await move_tasks(tx, [_recovered(partial(stuck, timeout=timeout), counts)])


async def keep_alive(tx: Transaction, since: datetime) -> None:
    """Let the heartbeats of workers that were alive at the last time of a test clock count as sent now."""
    await sql_workers.heartbeat_since(tx, since)


async def release_paused(tx: Transaction, counts: Counts | None = None) -> int:
    """Requeue claimed tasks of paused internal jobs that have not started."""
    return await move_tasks(tx, [_recovered(paused, counts)])


async def recover_unnamed(tx: Transaction, limit: timedelta, counts: Counts | None = None) -> int:
    """Fail or requeue tasks that their living workers did not name in their heartbeats for `limit`."""
    return await move_tasks(tx, [_recovered(partial(not_named, limit=limit), counts)])


async def prune_unnamed(tx: Transaction, limit: timedelta) -> None:
    """Delete the records of unnamed tasks whose attempts have ended."""
    await sql_expiry.forget_ended(tx, await tx.now() - limit)


async def recover_abandoned(tx: Transaction, counts: Counts | None = None) -> int:
    """Fail or requeue tasks whose worker does not exist."""
    return await move_tasks(tx, [_recovered(abandoned, counts)])


async def recover_overdue(tx: Transaction, counts: Counts | None = None) -> int:
    """Fail or requeue tasks whose deadline to start or to end has passed."""
    return await move_tasks(tx, [_recovered(overdue, counts)])


async def fail_expired(tx: Transaction, counts: Counts | None = None) -> int:
    """Fail pending tasks whose `expires_at` has passed."""
    find = partial(sql_expiry.expired, limit=TASKS_PER_BATCH)
    return await move_tasks(tx, [Kind(find, partial(_fail_expired, counts=counts))])


async def enqueue_due(tx: Transaction, *, skip_locked: bool = False) -> int:
    """Move scheduled tasks whose `run_at` has passed into their queues; see `move_tasks`."""
    return await move_tasks(tx, [_DUE], skip_locked=skip_locked)


def _recovered(rule: Callable[[datetime], Rule], counts: Counts | None) -> Kind:
    async def find(tx: Transaction, now: datetime, *, but_of: Collection[UUID] = ()) -> list[TaskRecord]:
        reads, at, _ = rule(now)
        return await sql_expiry.held(tx, reads, at, TASKS_PER_BATCH, but_of=but_of)

    async def apply(tx: Transaction, tasks: list[TaskRecord]) -> None:
        await rules_workers.recover_tasks(tx, tasks, rule(await tx.now()).decide, counts)

    return Kind(find, apply)


async def _fail_expired(tx: Transaction, expired: list[TaskRecord], counts: Counts | None) -> None:
    now = await tx.now()
    moves = [(task, rules_transitions.expired(task, now)) for task in expired]
    await sql_transitions.move(tx, moves)
    for _, after in moves:
        rules_answers.publish_status(tx, after)
    await rules_jobs.record_unserved(tx, sorted({task.job_id for task in expired}))
    if counts is not None:
        counts.failed += len(moves)


async def _enqueue(tx: Transaction, due: list[TaskRecord]) -> None:
    moves = [(task, rules_transitions.due(task)) for task in due]
    await sql_transitions.move(tx, moves)
    for _, after in moves:
        rules_answers.publish_available(tx, after)


_DUE = Kind(partial(sql_expiry.lock_due, limit=TASKS_PER_BATCH), _enqueue)


class NextDue(NamedTuple):
    """The seconds until the next scheduled task is due, or a pause or wait ends; None without one.

    `is_locked`: an earlier one is due, and another transaction holds a lock on it.
    """

    seconds: float | None
    is_locked: bool


async def next_due(tx: Transaction) -> NextDue:
    """End the pauses that are over and the waits for rates.

    Return when the next of these ends, or the next scheduled task is due. Call `enqueue_due` first.
    """
    now = await tx.now()
    at = await sql_expiry.next_due(tx)
    is_locked = at is not None and at <= now
    if is_locked:
        at = await sql_expiry.next_due(tx, after=now)
    ready_at, is_wait_locked = await rules_limits.next_ready(tx)
    ends = (at, await rules_pauses.end_due(tx), ready_at)
    times = [moment for moment in ends if moment is not None]
    is_locked = is_locked or is_wait_locked
    return NextDue((min(times) - now).total_seconds() if times else None, is_locked)


async def preview(
    tx: Transaction, timeout: timedelta, internal_timeout: timedelta, unnamed_limit: timedelta | None
) -> SweeperPreview:
    """Return what a cycle would do now, at most one batch of each kind."""
    now = await tx.now()
    stale = await sql_workers.stale(tx, now - timeout, batch_size(is_sqlite=tx.is_sqlite))
    rules = [stuck(now, internal_timeout), paused(now), abandoned(now), overdue(now)]
    if unnamed_limit is not None:
        rules.append(not_named(now, unnamed_limit))
    changes: dict[UUID, PlannedChange] = {}
    for reads, at, decide in rules:
        for task in await sql_expiry.held(tx, reads, at, TASKS_PER_BATCH, lock=False):
            changes.setdefault(task.id, _planned(task, decide(task, now, 0.0)))
    for task in await sql_expiry.held_by(tx, stale, TASKS_PER_BATCH) if stale else []:
        changes.setdefault(task.id, _planned(task, rules_transitions.worker_lost(task, now, 0.0)))
    for task in await sql_expiry.expired(tx, now, TASKS_PER_BATCH, lock=False):
        changes.setdefault(task.id, _planned(task, rules_transitions.expired(task, now)))
    scanned, stale_count = await count_workers(tx, timeout)
    return SweeperPreview(scanned=scanned, stale=stale_count, workers=stale, tasks=list(changes.values()))


def _planned(task: TaskRecord, after: TaskRecord) -> PlannedChange:
    is_requeued = after.status == TaskStatus.PENDING
    return PlannedChange(
        id=task.id,
        before=task.status,
        after=after.status,
        reason=(after.reason if is_requeued else after.error_code) or "",
        run_at=after.run_at,
    )


# The mass-expiry guard: it keeps silent workers for one cycle, if the server may be at fault.
#
# A fault of the server concerns the workers of most users. The workers of one user delay the recovery of no
# other user's.

# Fewer silent workers of a user are no sign of a fault.
MIN_SILENT = 2


class HeldBack(NamedTuple):
    """The silent workers to keep: those of all users, or those of `users`."""

    of_all: bool
    users: frozenset[str]


async def find(tx: Transaction, timeout: timedelta, spared: Collection[str]) -> HeldBack:
    """Return the users that keep their workers when most workers are silent, but none of the users `spared`.

    They are all users if the workers of most users are mostly silent, and otherwise the users with mostly
    silent workers. Users in `spared` kept theirs in an earlier cycle.
    """
    owners = await sql_workers.count_by_owner(tx, await tx.now() - timeout)
    silent = [one for one in owners if 2 * one.silent > one.total and one.owner_id not in spared]
    of_all = 2 * len(silent) > len(owners)
    return HeldBack(of_all, frozenset(one.owner_id for one in silent if one.silent >= MIN_SILENT))
