"""Retention: which rows are deleted once they are old, and the settings that say when."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from zndraw_joblib.server.db import values
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.process.settings import JobLibSettings
from zndraw_joblib.server.queue import (
    rules_answers,
    sql_audit,
    sql_counts,
    sql_groups,
    sql_idempotency,
    sql_jobs,
    sql_limits,
    sql_providers,
    sql_rates,
    sql_room_queues,
    sql_streams,
    sql_webhooks,
    sql_worker_tokens,
)

BATCH = 1000
FIRST_ROOM = sql_room_queues.FIRST
_JOBS_PER_BATCH = 200
# Younger answers to requests with an `Idempotency-Key` stay, however many there are: the client may still
# send its request again.
KEPT_KEY_AGE = timedelta(minutes=10)
# Results of providers may be large.
_RESULT_PARTS = 16


class Pruned(NamedTuple):
    """How many rows a batch deleted, and whether there may be more."""

    deleted: int
    may_be_more: bool


Batch = Callable[[Transaction, datetime, Any], Awaitable[tuple[Pruned, Any]]]


class Retention(NamedTuple):
    """Rows of the table `joblib_{rows}` are deleted when their column `time` is longer ago than `keep`.

    `keep` is a time, or the name of a setting, whose last word is its unit. `delete` gets the transaction,
    the latest such time, and where the last batch ended, at the beginning `first`; it returns where this
    batch ended. Rows `of_tasks` stay while the sweeper only observes.
    """

    rows: str
    time: str | None
    keep: timedelta | str
    delete: Batch
    first: Any = None
    of_tasks: bool = False

    def keep_time(self, settings: JobLibSettings) -> timedelta | None:
        """Return how long rows are kept; None for ever."""
        if isinstance(self.keep, timedelta):
            return self.keep
        number = getattr(settings, self.keep)
        return None if number is None else timedelta(**{self.keep.rpartition("_")[2]: number})


async def prune(tx: Transaction, retention: Retention, keep: timedelta, after: Any) -> tuple[Pruned, Any]:
    """Delete a batch of rows that are older than `keep`; return also where the next batch begins."""
    return await retention.delete(tx, await tx.now() - keep, after)


def _oldest(delete: Callable[[Transaction, datetime, int], Awaitable[int]]) -> Batch:
    """Return a function that deletes the oldest rows, so that no batch needs to know where the last ended."""

    async def delete_batch(tx: Transaction, before: datetime, after: Any) -> tuple[Pruned, Any]:
        deleted = await delete(tx, before, BATCH)
        return Pruned(deleted, deleted == BATCH), after

    return delete_batch


async def _values(tx: Transaction, _: datetime, after: Any) -> tuple[Pruned, Any]:
    deleted = await values.prune(tx, _RESULT_PARTS)
    return Pruned(deleted, deleted > 0), after


async def _blocks(tx: Transaction, _: datetime, limit: int) -> int:
    return await sql_counts.prune_blocks(tx, limit)


async def _groups(tx: Transaction, before: datetime, after: int) -> tuple[Pruned, int]:
    """Delete groups that have ended and have no tasks left, among a batch behind `after`."""
    deleted, following = await sql_groups.prune(tx, before, after, BATCH)
    return Pruned(deleted, following is not None), following or 0


async def _jobs(tx: Transaction, before: datetime, after: UUID) -> tuple[Pruned, UUID]:
    """Delete soft-deleted jobs without tasks and statistics, among a batch behind `after`."""
    deleted, following = await sql_jobs.prune(tx, before, after, _JOBS_PER_BATCH)
    return Pruned(deleted, deleted > 0 and following != sql_jobs.FIRST), following


async def _unserved_jobs(tx: Transaction, before: datetime, after: None) -> tuple[Pruned, None]:
    """Forget jobs that have had no worker for long, and have no pending task."""
    names, may_be_more = await sql_jobs.forget_unserved(tx, before, _JOBS_PER_BATCH)
    for room_id in {name.room_id for name in names}:
        rules_answers.publish_jobs_changed(tx, room_id)
    return Pruned(len(names), may_be_more), after


async def _events(tx: Transaction, before: datetime, after: str) -> tuple[Pruned, str]:
    """Delete old events of the next room after one."""
    deleted, room = await sql_streams.prune(tx, before, after)
    return Pruned(deleted, room is not None), room or ""


async def _targets(tx: Transaction, before: datetime, after: int) -> tuple[Pruned, int]:
    """Delete webhooks that nothing uses, among a batch behind `after`."""
    deleted, following = await sql_webhooks.prune_targets(tx, before, after, BATCH)
    return Pruned(deleted, deleted > 0 and following != 0), following


async def _limit_queues(tx: Transaction, _: datetime, after: Any) -> tuple[Pruned, Any]:
    """Delete queues of keys without tasks, among a batch behind `after`."""
    deleted, following = await sql_limits.prune_queues(tx, after, BATCH)
    return Pruned(deleted, following != sql_limits.FIRST_QUEUE), following


async def _limit_waits(tx: Transaction, before: datetime, after: Any) -> tuple[Pruned, Any]:
    """Delete waits for limits that block no task, among a batch behind `after`."""
    deleted, following = await sql_limits.prune_waits(tx, before, after, BATCH)
    return Pruned(deleted, following != sql_limits.FIRST_WAIT), following


async def _limit_slots(tx: Transaction, _: datetime, after: int) -> tuple[Pruned, int]:
    """Delete freed slots of jobs that have no limits now, among a batch behind `after`."""
    deleted, following = await sql_limits.prune_slots(tx, after, BATCH)
    return Pruned(deleted, following != 0), following


KEYS = Retention("idempotency_key", "created_at", "idempotency_key_hours", _oldest(sql_idempotency.prune))
# A job whose worker restarts keeps its id, also without tasks.
JOBS = Retention("job", "deleted_at", timedelta(days=1), _jobs, sql_jobs.FIRST, of_tasks=True)
# These are soft-deleted, and `JOBS` deletes their rows later.
UNSERVED_JOBS = Retention("job", "unserved_since", "keep_unserved_jobs_days", _unserved_jobs, of_tasks=True)
AUDIT = Retention("audit", "at", "audit_days", _oldest(sql_audit.prune_audit))
DELIVERIES = Retention("outbox", "created_at", timedelta(days=30), _oldest(sql_webhooks.prune_deliveries))
EVENTS = Retention("room_event", "at", "event_retention_seconds", _events, "")
GROUPS = Retention("group", "ended_at", timedelta(days=7), _groups, 0, of_tasks=True)
# Not here: tasks, which `rules_task_retention` deletes, the content of task results and the rows of rooms
# without queued tasks, which need several transactions, and idempotency keys beyond their limit.
RETENTIONS = (
    Retention("provider_call", "expires_at", timedelta(hours=1), _oldest(sql_providers.prune)),
    Retention("result", "expires_at", timedelta(0), _values),
    KEYS,
    Retention("submit_rate", "full_at", timedelta(0), _oldest(sql_rates.prune)),
    Retention("queue_block", None, timedelta(0), _oldest(_blocks), of_tasks=True),
    GROUPS,
    UNSERVED_JOBS,
    JOBS,
    EVENTS,
    AUDIT,
    DELIVERIES,
    Retention("webhook", "used_at", timedelta(days=1), _targets, 0),
    Retention("limit_bucket", "next_at", timedelta(hours=1), _oldest(sql_limits.prune_buckets)),
    Retention("limit_queue", None, timedelta(0), _limit_queues, sql_limits.FIRST_QUEUE, of_tasks=True),
    Retention("limit_wait", "ready_at", timedelta(hours=1), _limit_waits, sql_limits.FIRST_WAIT),
    Retention("limit_slot", None, timedelta(0), _limit_slots, 0),
    Retention("token", "expires_at", timedelta(days=1), _oldest(sql_worker_tokens.prune)),
)


async def empty_room_queues(
    tx: Transaction, after: tuple[UUID, str]
) -> tuple[dict[UUID, list[str]], tuple[UUID, str]]:
    """Return rooms without queued tasks, by job, in a batch that follows a row; and where to continue."""
    return await sql_room_queues.find_empty(tx, after, BATCH)


async def prune_room_queues(tx: Transaction, job_id: UUID, rooms: Sequence[str]) -> int:
    """Delete the rows of rooms of a job without queued tasks, among these. Return how many."""
    return await sql_room_queues.prune(tx, job_id, rooms)


async def restore_room_queues(tx: Transaction, after: UUID) -> UUID | None:
    """Add the missing rows of rooms of the next job without all. Return its id; None at the end."""
    return await sql_room_queues.restore_next(tx, after)


class SurplusKeys(NamedTuple):
    """How many answers of each user are beyond the limit, and the key that was looked at last."""

    counts: dict[str | None, int]
    after: tuple[datetime, UUID] = (datetime.min.replace(tzinfo=UTC), UUID(int=0))


async def surplus_keys(tx: Transaction, limit: int) -> SurplusKeys | None:
    """Return what has to go if more than `limit` answers are stored, so that 95 % of the limit stay.

    The users with the most answers lose some, down to one number for all of them.
    """
    counts = await sql_idempotency.counts_beyond(tx, limit)
    level = _level(counts.values(), limit * 19 // 20)
    surplus = {user_id: count - level for user_id, count in counts.items() if count > level}
    return SurplusKeys(surplus) if surplus else None


def _level(counts: Collection[int], total: int) -> int:
    """Return the number to which counts have to be cut for a sum of at most `total`."""
    for index, count in enumerate(sorted(counts)):
        share = total // (len(counts) - index)
        if count > share:
            return share
        total -= count
    return max(counts, default=0)


async def prune_surplus_keys(tx: Transaction, surplus: SurplusKeys) -> tuple[int, SurplusKeys | None]:
    """Delete the oldest surplus answers among the next thousand that are old enough.

    Return how many, and what is left; None at the end.
    """
    before = await tx.now() - KEPT_KEY_AGE
    counts = dict(surplus.counts)
    rows = await sql_idempotency.oldest(tx, surplus.after, before, BATCH)
    ids = []
    for row in rows:
        if counts.get(row.user_id, 0) > 0:
            counts[row.user_id] -= 1
            ids.append(row.id)
    if ids:
        await sql_idempotency.remove(tx, ids)
    is_last = len(rows) < BATCH or not any(counts.values())
    return len(ids), None if is_last else SurplusKeys(counts, (rows[-1].created_at, rows[-1].id))
