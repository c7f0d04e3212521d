"""The results of tasks: the rules of an upload, and which result a task has."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.room_events import NewEvent
from zndraw_joblib.server.process.ports import Identity
from zndraw_joblib.server.queue import rules_transitions, sql_results, sql_tasks
from zndraw_joblib.server.queue.rules_retention import Pruned
from zndraw_joblib.server.queue.sql_results import (
    RESULT_BYTES,
    Deletable,
    NewResult,
    NewUpload,
    NoRoom,
    Quota,
    ResultRecord,
    Unconfirmed,
)
from zndraw_joblib.server.queue.sql_task_rows import TaskRecord
from zndraw_joblib.wire.history import EventKind
from zndraw_joblib.wire.messages import TaskActionRequest
from zndraw_joblib.wire.problems import (
    ContentTooLarge,
    Forbidden,
    ProblemException,
    ResultExpired,
    ResultNotFound,
    ResultStoreFull,
    ServiceUnavailable,
    TaskNotFound,
)
from zndraw_joblib.wire.progress import StoredResult
from zndraw_joblib.wire.statuses import Role, TaskStatus

# An upload reserves its bytes in steps, the first of this size, as they arrive.
STEP_BYTES = 1024 * 1024
# An upload whose server has ended is deleted after this time; one that is under way extends it.
LEASE = timedelta(minutes=10)
PER_BATCH = 64
# Content that a task still needs, and that expires so soon, is kept so much longer.
_SOON, _POSTPONED = timedelta(hours=1), timedelta(days=1)


class Upload(NamedTuple):
    """An upload of the result of an attempt."""

    caller: Identity
    task_id: UUID
    attempt: int


class FoundResult(NamedTuple):
    """The result of a task: `stored` content, whose key is None after it has expired, or a `value`."""

    task_id: UUID
    room_id: str
    status: TaskStatus
    stored: ResultRecord | None
    value: Any


def check_possible(size: int, quota: Quota) -> None:
    """Raise `ContentTooLarge` for a result that never fits, however much is deleted."""
    needed, name = size + RESULT_BYTES, "max_stored_result_bytes"
    if needed <= min(quota.max_total, quota.max_share):
        return
    limit = f"all stored results may have {quota.max_total} bytes (setting {name})"
    if quota.max_share < quota.max_total:
        limit = f"those of one user's tasks may have {quota.max_share} bytes (max_share_per_user of {name})"
    raise ContentTooLarge(
        f"The result never fits: it has {size} bytes or more, counts as {RESULT_BYTES} more, and {limit}. "
        f"Return less, or ask the operator to raise {name}"
    )


async def begin(tx: Transaction, upload: Upload, key: str, size: int, quota: Quota) -> int:
    """Return the number of a new upload of `size` bytes, 0 if that is unknown; few of them are reserved.

    Raises `TaskNotFound`, `Forbidden` or `StaleReport` unless the caller's attempt
    holds the task, `ContentTooLarge` if it never fits, and `ResultStoreFull` or `ServiceUnavailable` without
    room for it.
    """
    task = _check_held(upload, await sql_tasks.by_id(tx, upload.task_id))
    check_possible(size, quota)
    new = NewUpload(key, task.created_by, min(size, STEP_BYTES), size)
    try:
        return await sql_results.begin(tx, new, quota, LEASE)
    except NoRoom as error:
        raise _full(error, quota) from error


async def reserve(tx: Transaction, n: int, more: int, quota: Quota) -> None:
    """Reserve more bytes for an upload. Raises `ResultStoreFull` or `ServiceUnavailable`."""
    try:
        await sql_results.reserve(tx, n, more, quota)
    except LookupError as error:
        raise _interrupted() from error
    except NoRoom as error:
        raise _full(error, quota) from error


async def extend(tx: Transaction, n: int) -> None:
    """Keep an upload that is under way. Raises `ServiceUnavailable` if it has expired."""
    if not await sql_results.extend(tx, n, LEASE):
        raise _interrupted()


async def finish(tx: Transaction, upload: Upload, n: int, new: NewResult, quota: Quota) -> StoredResult:
    """Make an upload the result of its task. Raises the same as `begin`."""
    task = (await sql_tasks.lock(tx, [upload.task_id])).get(upload.task_id)
    held = _check_held(upload, task)
    try:
        record = await sql_results.finish(tx, n, held.seq, held.attempt, new, quota)
    except LookupError as error:
        raise _interrupted() from error
    except NoRoom as error:
        raise _full(error, quota) from error
    stored = record.as_message()
    data = stored.model_dump_json(exclude_none=True)
    tx.record_event(lambda: NewEvent(held.room_id, held.id, EventKind.RESULT, data))
    return stored


def _check_held(upload: Upload, task: TaskRecord | None) -> TaskRecord:
    if task is None:
        raise TaskNotFound(f"Task {upload.task_id} not found")
    if rules_transitions.roles_of(upload.caller, task).isdisjoint({Role.WORKER, Role.SUPERUSER}):
        raise Forbidden("Not authorized to upload the result of this task: its worker may do so")
    rules_transitions.check_fence(task, TaskActionRequest(attempt=upload.attempt))
    rules_transitions.check_held(task)
    return task


async def find(tx: Transaction, task_id: UUID) -> FoundResult:
    """Return the result of a task, which `check` checks. Raises `TaskNotFound`."""
    task = await sql_tasks.by_id(tx, task_id)
    if task is None:
        raise TaskNotFound(f"Task {task_id} not found")
    record = (await sql_results.of_tasks(tx, [task.seq])).get(task.seq)
    if record is not None and (record.attempt, TaskStatus.COMPLETED) != (task.attempt, task.status):
        record = None
    elif record is not None and record.expires_at <= await tx.now():
        record = record._replace(content_key=None)
    return FoundResult(task.id, task.room_id, task.status, record, task.result)


def check(result: FoundResult) -> None:
    """Raise `ResultNotFound` or `ResultExpired` for a task without a result."""
    if result.status != TaskStatus.COMPLETED:
        raise ResultNotFound(f"Task {result.task_id} is {result.status}: it has no result")
    if result.stored is not None and result.stored.content_key is None:
        raise expired(result.stored)


def expired(record: ResultRecord) -> ResultExpired:
    """Return the problem of a result whose content is gone."""
    return ResultExpired(
        f"The result ({record.content_type}, {record.size} bytes) was kept until "
        f"{record.expires_at.isoformat(timespec='seconds')}, or its store has lost it; run the task again"
    )


async def abandon(tx: Transaction, n: int) -> bool:
    """Let the content of an upload that failed be deleted. Return False if the upload is a task's result.

    Its store may complete the upload after the deletion, as a bucket does a request that it has received. So
    the sweeper deletes the content once more, after `LEASE`.
    """
    return await sql_results.abandon(tx, n, LEASE)


async def uncount(tx: Transaction, n: int) -> None:
    """Count no bytes for an abandoned upload whose content was deleted."""
    await sql_results.uncount(tx, n)


async def to_check(tx: Transaction) -> list[Unconfirmed]:
    """Return a batch of results whose attempts may be over without having completed."""
    return await sql_results.to_check(tx, PER_BATCH)


async def checked(tx: Transaction, results: list[Unconfirmed]) -> Pruned:
    """Keep the results of attempts that have completed or run; take away the others."""
    await sql_results.checked(tx, results)
    return Pruned(0, len(results) == PER_BATCH)


async def needed_content(tx: Transaction) -> list[int]:
    """Return a batch of content that expires soon and that tasks which wait for others will need."""
    return await sql_results.needed(tx, await tx.now() + _SOON, PER_BATCH)


async def postpone(tx: Transaction, numbers: list[int]) -> Pruned:
    """Keep content that is needed for another day."""
    await sql_results.postpone(tx, numbers, await tx.now() + _POSTPONED)
    return Pruned(0, may_be_more=True)


async def expired_content(tx: Transaction, but: Sequence[int] = ()) -> list[Deletable]:
    """Return a batch of content to delete, without that of the rows `but`."""
    return await sql_results.expired(tx, PER_BATCH, but)


async def forget(tx: Transaction, deleted: list[Deletable]) -> None:
    """Record that content was deleted."""
    await sql_results.forget(tx, [item.n for item in deleted])


def _full(error: NoRoom, quota: Quota) -> ProblemException:
    name = "max_stored_result_bytes"
    limit = f"All stored results may have {quota.max_total} bytes (setting {name})"
    if error.is_share:
        limit = (
            f"The results of one user's tasks may have {quota.max_share} bytes (max_share_per_user of {name})"
        )
    if error.is_passing:
        return ServiceUnavailable(
            f"{limit}, and other uploads hold the rest; try again", headers={"Retry-After": "5"}
        )
    return ResultStoreFull(f"{limit}: wait until some have expired, or ask the operator to raise the limit")


def _interrupted() -> ServiceUnavailable:
    return ServiceUnavailable(
        "The upload took a pause that is too long; try again", headers={"Retry-After": "1"}
    )
