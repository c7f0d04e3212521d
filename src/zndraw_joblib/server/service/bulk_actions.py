"""Retry, cancel, release or purge all tasks that match a filter: a preview counts them, a token confirms it.

The tasks are found by a search and changed in batches, each in a transaction of its own.
"""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple

from zndraw_joblib.contract.problems import Retried
from zndraw_joblib.contract.searches import MAX_BULK_TASKS, BulkAction, BulkPreview, BulkResult, TaskFilter
from zndraw_joblib.contract.status import HELD, TERMINAL, TaskStatus
from zndraw_joblib.server.ports import RequestKey
from zndraw_joblib.server.service import audit, bulk_tokens, retry_policy, searches, serializers
from zndraw_joblib.server.service import jobs as job_service
from zndraw_joblib.server.service.bulk_tokens import Confirmed
from zndraw_joblib.server.service.idempotency import answers_of, once
from zndraw_joblib.server.store import jobs as job_store
from zndraw_joblib.server.store import searches as store
from zndraw_joblib.server.store import tasks as task_store
from zndraw_joblib.server.store.database import Transaction
from zndraw_joblib.server.store.searches import Budget, Filter, FoundRow, Part
from zndraw_joblib.server.store.tasks import Move, TaskRecord, details, read, write
from zndraw_joblib.server.store.tasks.positions import positions

Run = Callable[..., Awaitable[Any]]
_EXAMPLES = 10
_BUDGET = Budget(rows=100_000, seconds=0.2)
STATUSES: Mapping[BulkAction, frozenset[TaskStatus]] = MappingProxyType(
    {
        BulkAction.RETRY: frozenset({TaskStatus.FAILED, TaskStatus.CANCELLED}),
        BulkAction.CANCEL: frozenset(TaskStatus) - TERMINAL,
        BulkAction.RELEASE: HELD,
        BulkAction.PURGE: TERMINAL,
    }
)
_RESULT = answers_of(BulkResult)


class BulkLimits(NamedTuple):
    """How many tasks an action affects, how many in one transaction, and how long it searches in seconds."""

    tasks: int = MAX_BULK_TASKS
    batch: int = 500
    seconds: float = 5.0


_LIMITS = BulkLimits()


class _Found(NamedTuple):
    rows: list[FoundRow]
    is_complete: bool


async def preview(
    read_in: Run, write_in: Run, confirmed: Confirmed, limits: BulkLimits = _LIMITS
) -> BulkPreview:
    """Return how many tasks an action would affect now, and the token that confirms it.

    `read_in` and `write_in` run a function in a transaction; `newest` of `confirmed` is not used.
    """
    confirmed = confirmed._replace(newest=await read_in(store.newest))
    count, is_complete = 0, True
    first: list[FoundRow] = []
    async for found in _search(read_in, confirmed, limits):
        count, is_complete = count + len(found.rows), found.is_complete
        first += found.rows[: _EXAMPLES - len(first)]
    token, expires_at = await write_in(bulk_tokens.issue, confirmed)
    return BulkPreview(
        action=confirmed.action,
        count=count,
        limit=limits.tasks,
        is_complete=is_complete,
        examples=await read_in(searches.entries, first),
        token=token,
        expires_at=expires_at,
    )


async def apply(
    read_in: Run, write_in: Run, confirmed: Confirmed, key: RequestKey | None, limits: BulkLimits = _LIMITS
) -> BulkResult:
    """Apply a confirmed action to the tasks that still match, newest first.

    After a kill all committed batches stay; a repeat affects the tasks that are left. `first_result` has the
    result of a request with the same `Idempotency-Key`.
    """
    affected = skipped = 0
    entry: int | None = None
    is_complete = True
    async for found in _search(read_in, confirmed, limits):
        is_complete = found.is_complete
        # Oldest first, as `_apply_batch` handles them: a purge may handle only the first of them.
        rows = sorted(found.rows, key=attrgetter("seq"))
        while rows:
            done = await write_in(_apply_batch, confirmed, rows, affected, skipped, entry)
            affected, skipped, entry = done.affected, done.skipped, done.entry
            rows = rows[done.handled :]
    result = BulkResult(action=confirmed.action, affected=affected, skipped=skipped, is_complete=is_complete)
    finish = once(key, _RESULT, partial(_finish, confirmed=confirmed, result=result, entry=entry))
    finished: BulkResult = await write_in(finish)
    return finished


class _Fresh(Exception):
    """No request with this key has ended."""


async def first_result(write_in: Run, key: RequestKey | None) -> BulkResult | None:
    """Return the result of the first request with a key, also after its token has expired; None without."""
    if key is None:
        return None

    async def refuse(_: Transaction) -> BulkResult:
        raise _Fresh

    try:
        answer: BulkResult = await write_in(once(key, _RESULT, refuse))
    except _Fresh:
        return None
    return answer


async def _search(read_in: Run, confirmed: Confirmed, limits: BulkLimits) -> Any:
    """Yield the tasks that match in batches; the last one states whether the search read to its end."""
    wanted = await read_in(_resolve, confirmed)
    if wanted is None:
        return
    after, left, gives_up = None, limits.tasks, time.monotonic() + limits.seconds
    while left > 0:
        part: Part = await read_in(store.find, wanted, after, min(limits.batch, left), _BUDGET)
        after, left = part.after, left - len(part.rows)
        yield _Found(part.rows, after is None)
        if after is None or time.monotonic() >= gives_up:
            return


async def _resolve(tx: Transaction, confirmed: Confirmed) -> Filter | None:
    statuses = STATUSES[confirmed.action]
    if confirmed.wanted.status:
        statuses = statuses.intersection(confirmed.wanted.status)
    if not statuses:
        return None
    wanted = confirmed.wanted.model_copy(update={"status": sorted(statuses)})
    found = await searches.resolve(tx, wanted)
    return found and found.limited_to(confirmed.newest)


class _Done(NamedTuple):
    handled: int
    affected: int
    skipped: int
    entry: int | None


async def _apply_batch(
    tx: Transaction,
    confirmed: Confirmed,
    rows: Sequence[FoundRow],
    affected: int,
    skipped: int,
    entry: int | None,
) -> _Done:
    """Change the tasks that are as the search found them; record the counts so far in the audit trail."""
    if confirmed.action is BulkAction.PURGE:
        rows = rows[: len(await details.first_to_prune(tx, [row.seq for row in rows]))]
    else:
        await job_store.lock(tx, {row.job_id for row in rows})
    known = {row.seq: (row.status, row.attempt) for row in rows}
    free = await read.lock_free(tx, sorted(known))
    same = [task for task in free if (task.status.value, task.attempt) == known[task.seq]]
    if confirmed.action is BulkAction.PURGE:
        before = await tx.now() + timedelta(seconds=1)
        count = await write.delete_ended(tx, [task.seq for task in same], before)
    else:
        await _move(tx, confirmed.action, same)
        count = len(same)
    affected, skipped = affected + count, skipped + len(rows) - count
    return _Done(len(rows), affected, skipped, await _record(tx, confirmed, affected, skipped, entry))


async def _move(tx: Transaction, action: BulkAction, tasks: Sequence[TaskRecord]) -> None:
    now = await tx.now()
    moves: list[Move] = [(task, _after(action, task, now)) for task in tasks]
    if not moves:
        return
    await task_store.move(tx, moves)
    after = [moved for _, moved in moves]
    await job_service.restore_needed(tx, after)
    found_at = await positions(tx, after)
    for task in after:
        serializers.publish_status(tx, task, found_at.get(task.id))
    emptied = {before.job_id for before, _ in moves if before.status is TaskStatus.PENDING}
    await job_service.soft_delete_orphans(tx, sorted(emptied))


def _after(action: BulkAction, task: TaskRecord, now: datetime) -> TaskRecord:
    if action is BulkAction.RETRY:
        return retry_policy.retried(task, Retried.problem_id())
    if action is BulkAction.RELEASE:
        return retry_policy.released(task)
    return retry_policy.ended(task, TaskStatus.CANCELLED, now, None, None)


async def _record(
    tx: Transaction, confirmed: Confirmed, affected: int, skipped: int, entry: int | None
) -> int | None:
    """Write the counts of an operator's action so far, so that also one that is killed has an entry."""
    if not confirmed.caller.is_superuser:
        return None
    detail = {"affected": affected, "skipped": skipped}
    if entry is not None:
        await audit.update(tx, entry, detail)
        return entry
    rooms = confirmed.wanted.room
    return await audit.record(
        tx,
        confirmed.caller,
        f"bulk.{confirmed.action.value}",
        describe(confirmed.wanted),
        rooms[0] if len(rooms) == 1 else None,
        detail,
    )


def describe(wanted: TaskFilter) -> str:
    """Return a filter as JSON with the fields that it has."""
    return wanted.model_dump_json(exclude_defaults=True)


async def _finish(tx: Transaction, confirmed: Confirmed, result: BulkResult, entry: int | None) -> BulkResult:
    if entry is None:
        await _record(tx, confirmed, 0, 0, None)
    return result
