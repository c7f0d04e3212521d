"""Search tasks across rooms, and retry, cancel, release or purge all that match a filter."""

import re
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

from zndraw_joblib.server.admin import sql_searches
from zndraw_joblib.server.admin.sql_lists import decode_cursor, encode_cursor
from zndraw_joblib.server.admin.sql_searches import (
    Budget,
    Filter,
    SearchDetail,
    SearchPart,
    SearchPosition,
    SearchRow,
)
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.process.ports import CursorPage, Identity, RequestKey
from zndraw_joblib.server.queue import (
    rules_answers,
    rules_audit,
    rules_jobs,
    rules_successors,
    rules_tasks,
    rules_transitions,
    rules_trees,
    rules_unique,
    rules_versions,
    sql_details,
    sql_jobs,
    sql_pauses,
    sql_tasks,
    sql_transitions,
    sql_trees,
)
from zndraw_joblib.server.queue.rules_idempotency import answers_of, once
from zndraw_joblib.server.queue.rules_tokens import Signer
from zndraw_joblib.server.queue.sql_pauses import Pauses
from zndraw_joblib.server.queue.sql_task_rows import WAITING, Move, TaskRecord
from zndraw_joblib.server.queue.sql_tasks import positions
from zndraw_joblib.wire.operations import FoundTasks
from zndraw_joblib.wire.operators import (
    MAX_BULK_TASKS,
    BulkAction,
    BulkPreview,
    BulkResult,
    FailureGroup,
    FailureGroups,
    FoundTask,
    RefusedTask,
    TagList,
    TaskCounts,
    TaskFilter,
    WaitsFor,
)
from zndraw_joblib.wire.problems import InvalidRequest, ProblemException, Retried
from zndraw_joblib.wire.progress import Progress
from zndraw_joblib.wire.statuses import HELD, TERMINAL, TaskStatus

_KIND, _KIND_OF_ROOMS, _OLDEST_FIRST = "tasks", "tasks of rooms", ", oldest first"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


async def find(
    tx: Transaction,
    task_filter: TaskFilter,
    page: CursorPage,
    budget: Budget | None = None,
    *,
    oldest_first: bool = False,
) -> FoundTasks:
    """Return the tasks that match a filter, newest or oldest first, after a cursor.

    Once the budget is spent, `next` of the response reads on. Raises `InvalidRequest` for a wrong cursor, or
    for one of the other order.
    """
    is_by_time = bool(task_filter.room) and not _is_linked(task_filter)
    order = {"is_by_time": is_by_time, "oldest_first": oldest_first}
    after = None if page.cursor is None else _position(page.cursor, **order)
    resolved = await resolve(tx, task_filter)
    if resolved is None:
        return FoundTasks(items=[])
    ordered = replace(resolved, oldest_first=oldest_first)
    part = await sql_searches.find(tx, ordered, after, page.limit, budget)
    following = None if part.after is None else _cursor(part.after, **order)
    return FoundTasks(items=await described(tx, part.rows), next=following)


def _is_linked(task_filter: TaskFilter) -> bool:
    """Return whether a filter has tags, a tree or a group: its tasks are in the order of their submission."""
    links = (task_filter.parent, task_filter.root, task_filter.group)
    return bool(task_filter.tag) or any(link is not None for link in links)


# The most failed tasks that are grouped, newest first, and the bounds of what is read for it.
_GROUPED, _GROUPED_OF = 2_000, Budget(rows=20_000, seconds=0.5)
_NAME_OF_CLASS = re.compile(r"[^\W\d][\w.]*\Z")


async def group_failures(
    tx: Transaction, task_filter: TaskFilter, limit: int = _GROUPED, budget: Budget = _GROUPED_OF
) -> FailureGroups:
    """Return the newest failed tasks that match a filter, by job, error code and exception."""
    task_filter = task_filter.model_copy(update={"status": [TaskStatus.FAILED]})
    resolved = await resolve(tx, task_filter)
    if resolved is None:
        return FailureGroups(groups=[], count=0)
    part = await sql_searches.find(tx, resolved, None, limit, budget)
    names = await sql_jobs.full_names(tx, {row.job_id for row in part.rows}) if part.rows else {}
    groups: dict[tuple[str, str | None, str | None], list[SearchRow]] = defaultdict(list)
    for row in part.rows:
        groups[names[row.job_id][0], row.error_code, _exception(row.error)].append(row)
    return FailureGroups(
        groups=sorted(
            (_group(*key, rows) for key, rows in groups.items()),
            key=lambda group: (-group.count, group.job_name),
        ),
        count=len(part.rows),
        is_complete=part.after is None,
    )


def _exception(error: str | None) -> str | None:
    name = (error or "").partition(":")[0]
    return name if _NAME_OF_CLASS.match(name) else None


def _group(job: str, code: str | None, exception: str | None, rows: list[SearchRow]) -> FailureGroup:
    ends = [row.completed_at or row.created_at for row in rows]
    newest = rows[ends.index(max(ends))]
    return FailureGroup(
        job_name=job,
        error_code=code,
        exception=exception,
        count=len(rows),
        first_at=min(ends),
        last_at=max(ends),
        example=newest.id,
        error=newest.error,
    )


async def resolve(tx: Transaction, task_filter: TaskFilter, *, superseded: bool = False) -> Filter | None:
    """Return a filter with the ids of its jobs, or of their earlier versions; None if no task can match."""
    numbers = sorted(set(task_filter.version))
    job_ids = []
    if task_filter.job:
        names = sorted(set(task_filter.job))
        job_ids = await sql_searches.job_ids(tx, names, numbers, superseded=superseded)
    if task_filter.job and not job_ids:
        return None
    return Filter(
        statuses=frozenset(task_filter.status),
        jobs=job_ids,
        rooms=sorted(set(task_filter.room)),
        worker=task_filter.worker,
        created_by=task_filter.created_by,
        error_codes=sorted(set(task_filter.error_code)),
        exceptions=sorted(set(task_filter.exception)),
        scheduled=task_filter.scheduled,
        tags=sorted(set(task_filter.tag)),
        parent=task_filter.parent,
        root=task_filter.root,
        text=task_filter.text,
        since=task_filter.since,
        until=task_filter.until,
        group=task_filter.group,
    )


async def described(tx: Transaction, rows: Sequence[SearchRow]) -> list[FoundTask]:
    """Return found tasks with the beginning of their payloads, workers, progress, what they wait for."""
    tasks, now = await entries(tx, rows), await tx.now()
    details = await sql_searches.details(tx, rows, now)
    pauses = await sql_pauses.active(tx) if any(task.status is TaskStatus.PENDING for task in tasks) else None
    for row, task in zip(rows, tasks, strict=True):
        detail = details.get(row.seq)
        if detail is None:
            continue
        task.payload_preview, task.worker_name = detail.preview, detail.worker
        task.has_children = detail.has_children
        if task.status in HELD and detail.progress:
            task.progress = Progress.model_validate(detail.progress)
        if pauses is not None and task.status is TaskStatus.PENDING:
            task.waits_for = _waits_for(row, detail, pauses)
    return tasks


def _waits_for(task: SearchRow, detail: SearchDetail, pauses: Pauses) -> WaitsFor | None:
    if task.run_at == WAITING:
        return WaitsFor.PREDECESSOR
    if task.run_at is not None:
        return WaitsFor.TIME
    if pauses.is_all or task.room_id in pauses.rooms or detail.is_paused:
        return WaitsFor.RESUME
    return None if detail.is_served else WaitsFor.WORKER


async def entries(tx: Transaction, rows: Sequence[SearchRow]) -> list[FoundTask]:
    """Return found tasks as responses contain them."""
    names = await sql_jobs.full_names(tx, {row.job_id for row in rows}) if rows else {}
    return [_entry(row, names[row.job_id]) for row in rows]


def _entry(row: SearchRow, job: tuple[str, int]) -> FoundTask:
    fields = row._asdict()
    for name in ("seq", "job_id", "lane", "unstarted"):
        del fields[name]
    fields |= {
        "job_name": job[0],
        "version": job[1],
        "attempts": row.attempts,
        "status": TaskStatus(row.status),
        "priority": -row.lane,
        "run_at": None if row.run_at == WAITING else row.run_at,
    }
    return FoundTask.model_construct(**fields)


def _kind(*, is_by_time: bool, oldest_first: bool) -> str:
    """Return the kind of a cursor: one that is passed to a search in another order is refused."""
    return (_KIND_OF_ROOMS if is_by_time else _KIND) + (_OLDEST_FIRST if oldest_first else "")


def _position(cursor: str, *, is_by_time: bool, oldest_first: bool) -> SearchPosition:
    kind = _kind(is_by_time=is_by_time, oldest_first=oldest_first)
    if not is_by_time:
        return SearchPosition(*decode_cursor(kind, cursor, [int]))
    seq, microseconds = decode_cursor(kind, cursor, [int, int])
    try:
        return SearchPosition(seq, _EPOCH + microseconds * _MICROSECOND)
    except OverflowError as error:
        raise InvalidRequest("query.cursor: it has a time that no task has") from error


def _cursor(position: SearchPosition, *, is_by_time: bool, oldest_first: bool) -> str:
    is_by_time = is_by_time and position.at is not None
    kind = _kind(is_by_time=is_by_time, oldest_first=oldest_first)
    if position.at is None or not is_by_time:
        return encode_cursor(kind, position.seq)
    return encode_cursor(kind, position.seq, (position.at - _EPOCH) // _MICROSECOND)


async def count(tx: Transaction, task_filter: TaskFilter) -> TaskCounts:
    """Return how many tasks of some rooms, or of all, have each status, from kept counts.

    Of a tree or of tags, the newest tasks are counted.
    """
    numbers, is_complete = dict[TaskStatus, int](), True
    if not _is_linked(task_filter):
        numbers = await sql_searches.count(tx, sorted(set(task_filter.room)))
    elif (resolved := await resolve(tx, task_filter)) is not None:
        numbers, is_complete = await sql_searches.count_linked(tx, resolved)
    counts = {status.value: number for status, number in numbers.items()}
    return TaskCounts(**counts, is_complete=is_complete)


_MAX_TAGS = 50


async def tags(tx: Transaction, rooms: Sequence[str], prefix: str) -> TagList:
    """Return tags of tasks of some rooms, or of all, that begin with a text."""
    return TagList(tags=await sql_searches.tags(tx, sorted(set(rooms)), prefix, _MAX_TAGS))


# Tokens that confirm an action on many tasks: for one caller, action and filter, for ten minutes.

LIFETIME = timedelta(minutes=10)
_signer = Signer("bulk_token_key")


class Confirmed(NamedTuple):
    """The action that a token confirms; `newest` is the greatest `seq` of its tasks.

    With `tree` it also cancels the tasks below those.
    """

    caller: Identity
    action: BulkAction
    task_filter: TaskFilter
    newest: int
    tree: bool = False


class Issued(NamedTuple):
    """A new token, and when it expires."""

    token: str
    expires_at: datetime


async def issue(tx: Transaction, confirmed: Confirmed, lifetime: timedelta = LIFETIME) -> Issued:
    """Return a token for an action that was previewed."""
    expires_at = datetime.fromtimestamp(int((await tx.now() + lifetime).timestamp()), UTC)
    return Issued(await _signer.issue(tx, [confirmed.newest], expires_at, _about(confirmed)), expires_at)


async def verify(tx: Transaction, token: str, confirmed: Confirmed) -> Confirmed:
    """Return what a token confirms. Raises `InvalidRequest` if it is for another caller, action or filter."""
    signed = await _signer.verify(tx, token, _about(confirmed))
    if signed is None:
        raise _invalid("it is not the token of a preview of this action with this filter by this caller")
    if signed.seconds <= 0:
        raise _invalid("it has expired")
    return confirmed._replace(newest=signed.fields[0])


def _about(confirmed: Confirmed) -> list[Any]:
    caller, action, task_filter, _, tree = confirmed
    # Lists in any order are the same filter.
    fields = {
        name: sorted(value) if isinstance(value, list) else value
        for name, value in task_filter.model_dump(mode="json").items()
    }
    return [caller.id, caller.is_superuser, action.value, fields, tree]


def _invalid(reason: str) -> InvalidRequest:
    detail = f"body.token: {reason}; request a new preview, and confirm with its token"
    error = {"loc": ["body", "token"], "message": detail, "type": "invalid_token"}
    return InvalidRequest(detail, errors=[error])


# Retry, cancel, release or purge all tasks that match a filter: a preview counts them, a token confirms it.
#
# The tasks are found by a search and changed in batches, each in a transaction of its own.

Run = Callable[..., Awaitable[Any]]
Fault = Callable[[str, dict[str, Any], str], Awaitable[ProblemException | None]]
MAX_REFUSED = 100
# The most tasks whose payloads are in memory at once; one may have 1 MiB.
_VALIDATED = 20
_MAX_DETAIL = 300
_EXAMPLES = 10
_BUDGET = Budget(rows=100_000, seconds=0.2)
STATUSES: Mapping[BulkAction, frozenset[TaskStatus]] = MappingProxyType(
    {
        BulkAction.RETRY: frozenset({TaskStatus.FAILED, TaskStatus.CANCELLED}),
        BulkAction.CANCEL: frozenset(TaskStatus) - TERMINAL,
        BulkAction.RELEASE: HELD,
        BulkAction.PURGE: TERMINAL,
        BulkAction.RETARGET: frozenset({TaskStatus.PENDING}),
    }
)
_RESULT = answers_of(BulkResult)


class BulkLimits(NamedTuple):
    """How many tasks an action affects, how many in one transaction, and how long it searches in seconds."""

    tasks: int = MAX_BULK_TASKS
    batch: int = 500
    seconds: float = 5.0


_LIMITS = BulkLimits()


class _Batch(NamedTuple):
    rows: list[SearchRow]
    is_complete: bool


async def preview(
    read_in: Run, write_in: Run, confirmed: Confirmed, limits: BulkLimits = _LIMITS
) -> BulkPreview:
    """Return how many tasks an action would affect now, and the token that confirms it.

    `read_in` and `write_in` run a function in a transaction; `newest` of `confirmed` is not used. Raises
    `InvalidRequest` for unknown versions.
    """
    is_retarget, filters = confirmed.action is BulkAction.RETARGET, confirmed.task_filter
    # Others do not learn which versions the jobs of other rooms have.
    if confirmed.caller.is_superuser and (is_retarget or filters.version):
        await read_in(rules_versions.check, filters.job, filters.version, earlier=is_retarget)
    confirmed = confirmed._replace(newest=await read_in(sql_searches.newest))
    count, is_complete = 0, True
    first: list[SearchRow] = []
    below, matched = set[UUID](), set[UUID]()
    async for matches in _search(read_in, confirmed, limits):
        if confirmed.tree:
            matched.update(row.id for row in matches.rows)
            for tops in await _tops(read_in, matches.rows):
                async for ids in rules_trees.live_below(read_in, tops):
                    below.update(ids)
        count, is_complete = count + len(matches.rows), matches.is_complete
        first += matches.rows[: _EXAMPLES - len(first)]
    token, expires_at = await write_in(issue, confirmed)
    return BulkPreview(
        action=confirmed.action,
        count=count,
        limit=limits.tasks,
        is_complete=is_complete,
        examples=await read_in(described, first),
        token=token,
        expires_at=expires_at,
        below=len(below - matched),
    )


async def apply(
    read_in: Run,
    write_in: Run,
    confirmed: Confirmed,
    key: RequestKey | None,
    limits: BulkLimits = _LIMITS,
    fault: Fault | None = None,
) -> BulkResult:
    """Apply a confirmed action to the newest tasks that still match, a retry to the oldest.

    `fault(schema, payload, user)` returns why a payload does not match a schema, for tasks to retarget.

    After a kill all committed batches stay; a repeat affects the tasks that are left. `first_result` has the
    result of a request with the same `Idempotency-Key`.
    """
    affected = skipped = 0
    refused: list[RefusedTask] = []
    entry: int | None = None
    is_complete = True
    async for matches in _search(read_in, confirmed, limits):
        is_complete = matches.is_complete
        # Oldest first, as `apply_batch` handles them: a purge may handle only the first of them.
        rows = sorted(matches.rows, key=attrgetter("seq"))
        schemas: dict[int, str] = {}
        if fault is not None and confirmed.action is BulkAction.RETARGET:
            schemas, faults = await _validated(read_in, confirmed, rows, fault)
            refused += faults[: MAX_REFUSED - len(refused)]
        while rows:
            applied = await write_in(apply_batch, confirmed, rows, affected, skipped, entry, schemas)
            affected, skipped, entry = applied.affected, applied.skipped, applied.entry
            rows = rows[applied.handled :]
        if confirmed.tree:
            tops, counts = await _tops(read_in, matches.rows), (affected, skipped, entry)
            affected, entry = await _cancel_trees(read_in, write_in, confirmed, tops, *counts)
    result = BulkResult(
        action=confirmed.action, affected=affected, skipped=skipped, refused=refused, is_complete=is_complete
    )
    finish = once(key, _RESULT, partial(_finish, confirmed=confirmed, result=result, entry=entry))
    finished: BulkResult = await write_in(finish)
    return finished


async def _tops(read_in: Run, rows: Sequence[SearchRow]) -> list[rules_trees.Tops]:
    """Return tasks by their trees, without those below which there never was another."""
    of_root: dict[UUID, list[SearchRow]] = defaultdict(list)
    for row in rows:
        of_root[row.root or row.id].append(row)
    firsts = [row.id for row in rows if row.root is None]
    with_trees: set[UUID] = await read_in(sql_trees.with_trees, firsts)
    return [
        rules_trees.Tops(root, {row.id for row in of_tree}, min(row.seq for row in of_tree))
        for root, of_tree in of_root.items()
        if root in with_trees or of_tree[0].root is not None or len(of_tree) > 1
    ]


async def _cancel_trees(  # noqa: PLR0913, PLR0917 - the counts so far
    read_in: Run,
    write_in: Run,
    confirmed: Confirmed,
    trees: Sequence[rules_trees.Tops],
    affected: int,
    skipped: int,
    entry: int | None,
) -> tuple[int, int | None]:
    """Cancel the tasks below some. Return the number of all affected tasks, and that of the audit entry."""

    async def write(tx: Transaction, ids: Collection[UUID]) -> tuple[int, int | None]:
        number = affected + await rules_tasks.cancel(tx, ids)
        return number, await _record(tx, confirmed, number, skipped, entry)

    async def cancel(ids: Collection[UUID]) -> None:
        nonlocal affected, entry
        affected, entry = await write_in(write, ids)

    for tops in trees:
        await rules_trees.cancel_below(read_in, tops, cancel)
    return affected, entry


# The current schema may not mark the values that are secret in the task's own.
_WITHOUT_VALUES = "The payload, which has secret values, does not match the current schema"


async def _validated(
    read_in: Run, confirmed: Confirmed, rows: Sequence[SearchRow], fault: Fault
) -> tuple[dict[int, str], list[RefusedTask]]:
    """Return the schemas that tasks match, by `seq`, and the tasks that do not match."""
    schemas: dict[int, str] = {}
    refused: list[RefusedTask] = []
    for start in range(0, len(rows), _VALIDATED):
        seqs = [row.seq for row in rows[start : start + _VALIDATED]]
        for task, schema in await read_in(rules_versions.unchecked, seqs):
            problem = await fault(schema, task.payload, confirmed.caller.id)
            if problem is None:
                schemas[task.seq] = schema
            else:
                detail = str(problem) if task.masked is None else _WITHOUT_VALUES
                refused.append(RefusedTask(id=task.id, detail=detail[:_MAX_DETAIL]))
    return schemas, refused


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


async def _search(read_in: Run, confirmed: Confirmed, limits: BulkLimits) -> AsyncIterator[_Batch]:
    """Yield the tasks that match in batches; the last one states whether the search read to its end."""
    resolved = await read_in(_resolve, confirmed)
    if resolved is None:
        return
    after, remaining, gives_up = None, limits.tasks, time.monotonic() + limits.seconds
    while remaining > 0:
        part: SearchPart = await read_in(
            sql_searches.find, resolved, after, min(limits.batch, remaining), _BUDGET
        )
        after, remaining = part.after, remaining - len(part.rows)
        yield _Batch(part.rows, after is None)
        if after is None or time.monotonic() >= gives_up:
            return


async def _resolve(tx: Transaction, confirmed: Confirmed) -> Filter | None:
    statuses = STATUSES[confirmed.action]
    if confirmed.task_filter.status:
        statuses = statuses.intersection(confirmed.task_filter.status)
    if not statuses:
        return None
    task_filter = confirmed.task_filter.model_copy(update={"status": sorted(statuses)})
    resolved = await resolve(tx, task_filter, superseded=confirmed.action is BulkAction.RETARGET)
    # Retried before its predecessor, a task fails again with it; and a repeat goes on behind those of before.
    return resolved and resolved.limited_to(
        confirmed.newest, oldest_first=confirmed.action is BulkAction.RETRY
    )


class _BatchCounts(NamedTuple):
    handled: int
    affected: int
    skipped: int
    entry: int | None


async def apply_batch(  # noqa: PLR0913, PLR0917 - the counts so far, and what a retarget needs
    tx: Transaction,
    confirmed: Confirmed,
    rows: Sequence[SearchRow],
    affected: int,
    skipped: int,
    entry: int | None,
    schemas: Mapping[int, str] = MappingProxyType({}),
) -> _BatchCounts:
    """Change the tasks that are as the search found them; record the counts so far in the audit trail."""
    if confirmed.action is BulkAction.PURGE:
        rows = rows[: len(await sql_details.first_to_prune(tx, [row.seq for row in rows]))]
    else:
        await sql_jobs.lock_with_versions(tx, {row.job_id for row in rows})
    searched = {row.seq: (row.status, row.attempt) for row in rows}
    free = await sql_tasks.lock_free(tx, sorted(searched))
    same = [task for task in free if (task.status.value, task.attempt) == searched[task.seq]]
    if confirmed.action is BulkAction.PURGE:
        before = await tx.now() + timedelta(seconds=1)
        count = await sql_transitions.delete_ended(tx, [task.seq for task in same], before)
    elif confirmed.action is BulkAction.RETARGET:
        count = len(await rules_versions.retarget(tx, same, schemas))
    else:
        if confirmed.tree:
            tx.cancelling.update(task.seq for task in same)
        count = await _move(tx, confirmed.action, same)
    affected, skipped = affected + count, skipped + len(rows) - count
    return _BatchCounts(len(rows), affected, skipped, await _record(tx, confirmed, affected, skipped, entry))


async def _move(tx: Transaction, action: BulkAction, tasks: Sequence[TaskRecord]) -> int:
    """Move the tasks, but none that is retried and whose unique key another task holds. Return how many."""
    now = await tx.now()
    moves: list[Move] = [(task, _after(action, task, now)) for task in tasks]
    if action is BulkAction.RETRY:
        refused = await rules_unique.retake(tx, [after for _, after in moves])
        tasks = [task for task in tasks if task.seq not in refused]
        retried = [after for task, after in moves if task.seq not in refused]
        moves = list(zip(tasks, await rules_successors.wait_again(tx, retried), strict=True))
    if not moves:
        return 0
    await sql_transitions.move(tx, moves)
    after = [moved for _, moved in moves]
    await rules_jobs.restore_needed(tx, after)
    queue_positions = await positions(tx, after)
    for task in after:
        rules_answers.publish_status(tx, task, queue_positions.get(task.id))
    emptied = {before.job_id for before, _ in moves if before.status is TaskStatus.PENDING}
    await rules_jobs.record_unserved(tx, sorted(emptied))
    return len(moves)


def _after(action: BulkAction, task: TaskRecord, now: datetime) -> TaskRecord:
    if action is BulkAction.RETRY:
        return rules_transitions.retried(task, Retried.problem_id())
    if action is BulkAction.RELEASE:
        return rules_transitions.released(task)
    return rules_transitions.ended(task, TaskStatus.CANCELLED, now, None, None)


async def _record(
    tx: Transaction, confirmed: Confirmed, affected: int, skipped: int, entry: int | None
) -> int | None:
    """Write the counts of an operator's action so far, so that also one that is killed has an entry."""
    if not confirmed.caller.is_operator:
        return None
    detail = {"affected": affected, "skipped": skipped}
    if entry is not None:
        await rules_audit.update(tx, entry, detail)
        return entry
    rooms = confirmed.task_filter.room
    return await rules_audit.record(
        tx,
        confirmed.caller,
        f"bulk.{confirmed.action.value}",
        describe(confirmed.task_filter),
        rooms[0] if len(rooms) == 1 else None,
        detail,
    )


def describe(task_filter: TaskFilter) -> str:
    """Return a filter as JSON with the fields that it has."""
    return task_filter.model_dump_json(exclude_defaults=True)


async def _finish(tx: Transaction, confirmed: Confirmed, result: BulkResult, entry: int | None) -> BulkResult:
    if entry is None:
        await _record(tx, confirmed, 0, 0, None)
    return result
