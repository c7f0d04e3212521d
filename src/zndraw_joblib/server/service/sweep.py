"""One cycle of the sweeper, in bounded transactions: who is silent, what is stuck, what was abandoned.

Source: seeds 000 and 003. Each function does one batch and tells how much it did; call it until that is
nothing. `preview` shows what they would do, by the same decisions, and touches nothing.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from zndraw_joblib.contract.messages import PlannedChange, SweeperMode, SweeperPreview
from zndraw_joblib.contract.status import TaskStatus
from zndraw_joblib.server.service import jobs as job_service
from zndraw_joblib.server.service import retry_policy, serializers, workers
from zndraw_joblib.server.service.workers import Counts
from zndraw_joblib.server.store import expiry, providers, results, runtime_settings
from zndraw_joblib.server.store import tasks as task_store
from zndraw_joblib.server.store import workers as store
from zndraw_joblib.server.store.database import Transaction
from zndraw_joblib.server.store.expiry import Wanted
from zndraw_joblib.server.store.tasks import TaskRecord

WORKERS_PER_BATCH = 128
TASKS_PER_BATCH = 1000
_MODE = "sweeper_mode"
# A heartbeat this far ahead of the clock is jitter; beyond it the clock was set back.
_UNREAD = timedelta(hours=1)
_RESULT_PARTS = 16
_FUTURE = timedelta(seconds=5)

Decide = Callable[[TaskRecord, datetime, float], TaskRecord]


class Rule(NamedTuple):
    """Which held tasks cannot stay as they are, and what becomes of them."""

    wanted: Wanted
    decide: Decide


async def mode(tx: Transaction, default: SweeperMode) -> SweeperMode:
    """Return how sweepers shall work: as a superuser said, else as the settings say."""
    said = await runtime_settings.get(tx, _MODE)
    return default if said is None else SweeperMode(said)


async def set_mode(tx: Transaction, wanted: SweeperMode) -> None:
    """Let the sweepers of all servers work so from their next cycle on."""
    await runtime_settings.put(tx, _MODE, wanted.value)


async def count_workers(tx: Transaction, timeout: timedelta) -> tuple[int, int]:
    """Count all workers, and those that are silent for longer than `timeout`."""
    return await store.count(tx), await store.count(tx, await tx.now() - timeout)


async def stale_workers(tx: Transaction, timeout: timedelta) -> list[UUID]:
    """Return a batch of workers that are silent for longer than `timeout`."""
    return await store.lock_if_stale(tx, await tx.now() - timeout, WORKERS_PER_BATCH)


async def retire_stale(
    tx: Transaction, timeout: timedelta, only: UUID | None = None, counts: Counts | None = None
) -> int:
    """Retire a batch of workers that are silent for longer than `timeout`, or one of them.

    They are judged and locked in one statement: a beat that arrives first saves its worker.
    """
    await store.clamp_future_heartbeats(tx, _FUTURE)
    stale = await store.lock_if_stale(tx, await tx.now() - timeout, WORKERS_PER_BATCH, only)
    await workers.retire(tx, stale, counts)
    return len(stale)


def stuck(now: datetime, timeout: timedelta) -> Rule:
    """Tasks of internal jobs that are held for longer than `timeout`."""
    return Rule(
        expiry.stuck_inside(now - timeout), lambda task, at, _: retry_policy.internal_timeout(task, at)
    )


def abandoned() -> Rule:
    """Held tasks of remote jobs whose worker is gone without a trace."""
    return Rule(expiry.abandoned(), retry_policy.lost)


def overdue(now: datetime) -> Rule:
    """Held tasks that were not started in time, or run for too long."""
    return Rule(expiry.overdue(now), retry_policy.overdue)


async def fail_stuck(tx: Transaction, timeout: timedelta, counts: Counts | None = None) -> int:
    """End internal tasks that are held for longer than `timeout`."""
    return await _settle(tx, stuck(await tx.now(), timeout), counts)


async def recover_abandoned(tx: Transaction, counts: Counts | None = None) -> int:
    """Settle tasks whose worker does not exist."""
    return await _settle(tx, abandoned(), counts)


async def recover_overdue(tx: Transaction, counts: Counts | None = None) -> int:
    """Settle tasks that were not started in time, or run for too long."""
    return await _settle(tx, overdue(await tx.now()), counts)


async def _settle(tx: Transaction, rule: Rule, counts: Counts | None) -> int:
    found = await expiry.held(tx, rule.wanted, limit=TASKS_PER_BATCH)
    return await workers.recover_tasks(tx, found, rule.decide, counts)


async def fail_expired(tx: Transaction, counts: Counts | None = None) -> int:
    """Fail pending tasks that nobody claimed in time."""
    now = await tx.now()
    moves = [
        (task, retry_policy.expired(task, now)) for task in await expiry.expired(tx, now, TASKS_PER_BATCH)
    ]
    await task_store.move(tx, moves)
    for _, after in moves:
        serializers.publish_status(tx, after)
    await job_service.soft_delete_orphans(tx, sorted({task.job_id for task, _ in moves}))
    if counts is not None:
        counts.failed += len(moves)
    return len(moves)


async def enqueue_due(tx: Transaction) -> int:
    """Let tasks into their queues whose time has come."""
    now = await tx.now()
    moves = [(task, retry_policy.due(task)) for task in await expiry.due(tx, now, TASKS_PER_BATCH)]
    await task_store.move(tx, moves)
    for _, after in moves:
        serializers.publish_available(tx, after)
    return len(moves)


async def prune_provider_requests(tx: Transaction) -> int:
    """Forget reads that nobody waits for, and results that have expired."""
    calls = await providers.prune_requests(tx, await tx.now() - _UNREAD, TASKS_PER_BATCH)
    # A batch of results is small, for they may be large: if there was one, there may be more.
    return TASKS_PER_BATCH if await results.prune(tx, _RESULT_PARTS) else calls


async def next_due(tx: Transaction) -> float | None:
    """Return in how many seconds the time of the next task comes, None if none waits for its time."""
    at = await expiry.next_due(tx)
    return None if at is None else (at - await tx.now()).total_seconds()


async def prune(tx: Transaction, keep: timedelta, after: int) -> tuple[int, int | None]:
    """Remove tasks that ended longer ago than `keep`, from among the thousand that follow `after` by `seq`.

    Tell how many, and the `seq` to go on from; None at the end.
    """
    return await task_store.prune(tx, await tx.now() - keep, after, TASKS_PER_BATCH)


async def preview(tx: Transaction, timeout: timedelta, internal_timeout: timedelta) -> SweeperPreview:
    """Return what a cycle would do now, of each kind at most one batch."""
    now = await tx.now()
    silent = await store.silent(tx, now - timeout, WORKERS_PER_BATCH)
    rules = [stuck(now, internal_timeout), abandoned(), overdue(now)]
    if silent:
        rules.append(Rule(expiry.held_by(silent), retry_policy.lost))
    changes: dict[UUID, PlannedChange] = {}
    for rule in rules:
        for task in await expiry.held(tx, rule.wanted, limit=TASKS_PER_BATCH, lock=False):
            changes.setdefault(task.id, _planned(task, rule.decide(task, now, 0.0)))
    for task in await expiry.expired(tx, now, TASKS_PER_BATCH, lock=False):
        changes.setdefault(task.id, _planned(task, retry_policy.expired(task, now)))
    scanned, stale = await count_workers(tx, timeout)
    return SweeperPreview(scanned=scanned, stale=stale, workers=silent, tasks=list(changes.values()))


def _planned(task: TaskRecord, after: TaskRecord) -> PlannedChange:
    is_back = after.status == TaskStatus.PENDING
    return PlannedChange(
        id=task.id,
        before=task.status,
        after=after.status,
        reason=(after.reason if is_back else after.error_code) or "",
        run_at=after.run_at,
    )
