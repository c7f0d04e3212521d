"""Read and lock tasks by id, count held ones, and read earlier attempts and pages."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple
from uuid import UUID

from zndraw_joblib.server.db.bulk import padded
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.statements import BIG_INTEGER, UUID_TYPE, as_sql, statement
from zndraw_joblib.server.process.ports import Page
from zndraw_joblib.server.queue import sql_counts, sql_trees
from zndraw_joblib.server.queue.sql_counts import BLOCK_BITS
from zndraw_joblib.server.queue.sql_task_rows import (
    BODY_SIZE,
    CHUNK,
    RECORD_COLUMNS,
    RECORD_NAMES,
    SELECT_RECORDS,
    TASK_IS_HELD,
    TASK_IS_PENDING,
    TASK_IS_QUEUED,
    TASKS_AND_JOBS,
    TaskRecord,
    TaskState,
    fetch_records,
    of_status,
    record_of,
)
from zndraw_joblib.server.queue.sql_trees import Link
from zndraw_joblib.wire.messages import MAX_JSON_BYTES
from zndraw_joblib.wire.problems import ContentTooLarge
from zndraw_joblib.wire.statuses import TERMINAL, TaskStatus

# SQLite takes 32766 parameters.
_MAX_IDS = 16_384
_BY_ID = statement(f"{SELECT_RECORDS[True]} WHERE joblib_task.id = :id", *RECORD_NAMES)
_LOCKS = {
    bodies: statement(
        f"""
SELECT {RECORD_COLUMNS[bodies]}, CURRENT_TIMESTAMP
FROM {TASKS_AND_JOBS} WHERE joblib_task.id = ANY (:all_id)
ORDER BY joblib_task.seq
FOR UPDATE OF joblib_task
""",
        *(*RECORD_NAMES, "now"),
    )
    for bodies in ("small", False)
}
_LOCK_FREE = statement(
    f"""
{SELECT_RECORDS[False]} WHERE joblib_task.seq = ANY (:all_seq)
ORDER BY joblib_task.seq
FOR UPDATE OF joblib_task SKIP LOCKED
""",
    *RECORD_NAMES,
)
_BODY_SIZES = statement(
    f"SELECT id, {BODY_SIZE} FROM joblib_task WHERE id = ANY (:all_id)", *("id", "body_size")
)
_BODIES = statement(
    f"""
SELECT joblib_task.id, payload_of(joblib_task) AS payload, joblib_task.result, joblib_job.masked
FROM {TASKS_AND_JOBS} WHERE joblib_task.id = ANY (:all_id)
""",
    *("id", "payload", "result", "masked"),
)
_BY_CLAIMS = statement(
    f"""
{SELECT_RECORDS[False]}
WHERE {TASK_IS_HELD} AND joblib_task.worker_id = ANY (:all_worker_id)
    AND joblib_task.claim_id = ANY (:all_claim_id)
""",
    *RECORD_NAMES,
)
_STATES = statement(
    "SELECT id, status, worker_id, attempt FROM joblib_task WHERE id = ANY (:all_id)",
    *("id", "status", "worker_id", "attempt"),
)
_ENDED = statement(
    f"SELECT id FROM joblib_task WHERE id = ANY (:all_id) AND {as_sql(of_status(TERMINAL))}", "id"
)


class AttemptRecord(NamedTuple):
    """An earlier attempt of a task."""

    attempt: int
    status: str
    worker_id: UUID | None
    claimed_at: datetime | None
    started_at: datetime | None
    completed_at: datetime | None
    ended_at: datetime
    run_at: datetime | None
    error_code: str | None
    error: str | None
    reason: str


_ATTEMPTS = statement(
    f"SELECT {', '.join(AttemptRecord._fields)} FROM joblib_attempt WHERE task_seq = :task_seq ORDER BY n",
    *AttemptRecord._fields,
)
_PENDING = statement(
    f"{SELECT_RECORDS[True]} WHERE joblib_task.seq = ANY (:all_seq) AND {TASK_IS_PENDING}", *RECORD_NAMES
)
_COUNT_HELD = {
    column: statement(
        f"""
SELECT {column}, count(*) FROM joblib_task WHERE {TASK_IS_HELD} AND {column} = ANY (:all_{column})
GROUP BY {column}
""",
        *(column, "number"),
    )
    for column in ("worker_id", "job_id", "room_id")
}


async def by_id(tx: Transaction, task_id: UUID) -> TaskRecord | None:
    """Return one task."""
    records = await fetch_records(tx, _BY_ID, id=task_id)
    return records[0] if records else None


async def by_claims(tx: Transaction, claims: Sequence[tuple[UUID | None, UUID | None]]) -> list[TaskRecord]:
    """Return the held tasks of these (worker, claim) pairs, in the order of their queues, without payload."""
    worker_ids, claim_ids = (padded(list(ids)) for ids in zip(*claims, strict=True))
    records = await fetch_records(tx, _BY_CLAIMS, all_worker_id=worker_ids, all_claim_id=claim_ids)
    pairs = set(claims)
    claimed = [record for record in records if (record.worker_id, record.claim_id) in pairs]
    return sorted(claimed, key=attrgetter("place"))


async def lock(
    tx: Transaction, ids: Sequence[UUID], most_bytes: int = 2 * MAX_JSON_BYTES
) -> dict[UUID, TaskRecord]:
    """Lock tasks until the commit and return those that exist, by id.

    Payload and result are None if they have more than `most_bytes` together; 0 reads none.
    """
    params: dict[str, Any] = {"most_bytes": most_bytes} if most_bytes else {}
    rows = (
        await tx.execute(_LOCKS["small" if most_bytes else False], {**params, "all_id": padded(ids)})
    ).all()
    tx.record_now(rows)
    records = [record_of(row[:-1]) for row in rows]
    return {record.id: record for record in records}


async def lock_free(tx: Transaction, seqs: Sequence[int]) -> list[TaskRecord]:
    """Lock those of these tasks that no other transaction has locked; return them, oldest first.

    They have neither payload nor result.
    """
    return await fetch_records(tx, _LOCK_FREE, all_seq=padded(seqs))


async def body_sizes(tx: Transaction, ids: Sequence[UUID]) -> dict[UUID, int]:
    """Return how many bytes payload and result of each of these tasks have together."""
    rows = await tx.execute(_BODY_SIZES, {"all_id": padded(ids)})
    return {task_id: size for task_id, size in rows}


async def bodies(tx: Transaction, ids: Sequence[UUID]) -> dict[UUID, tuple[dict[str, Any], Any, str | None]]:
    """Return payload and result of these tasks, and the paths to the secret values of the payload."""
    rows = await tx.execute(_BODIES, {"all_id": padded(ids)})
    return {task_id: (payload, result, masked) for task_id, payload, result, masked in rows}


async def states(tx: Transaction, ids: Sequence[UUID]) -> dict[UUID, TaskState]:
    """Return the states of those of these tasks that exist, by id, without a lock."""
    by_id: dict[UUID, TaskState] = {}
    for start in range(0, len(ids), _MAX_IDS):
        rows = await tx.execute(_STATES, {"all_id": padded(ids[start : start + _MAX_IDS])})
        by_id |= {row.id: TaskState(TaskStatus(row.status), row.worker_id, row.attempt) for row in rows}
    return by_id


async def finished(tx: Transaction, ids: Sequence[UUID]) -> list[UUID]:
    """Return those of these tasks that have ended."""
    ended_ids: list[UUID] = []
    for start in range(0, len(ids), CHUNK):
        ended_ids += (await tx.execute(_ENDED, {"all_id": padded(ids[start : start + CHUNK])})).scalars()
    return ended_ids


async def pending(tx: Transaction, seqs: Sequence[int]) -> list[TaskRecord]:
    """Return those of these tasks that are pending, with their payloads."""
    return await fetch_records(tx, _PENDING, all_seq=padded(seqs))


async def attempts_of(tx: Transaction, seq: int) -> list[AttemptRecord]:
    """Return the earlier attempts of a task, oldest first."""
    return [AttemptRecord(*row) for row in await tx.execute(_ATTEMPTS, {"task_seq": seq})]


async def held_by_workers(tx: Transaction, worker_ids: Sequence[UUID]) -> Counter[UUID]:
    """Count the tasks that each of these workers holds."""
    return await _count_held(tx, "worker_id", worker_ids)


async def held_of_jobs(tx: Transaction, job_ids: Sequence[UUID]) -> Counter[UUID]:
    """Count the held tasks of each of these jobs."""
    return await _count_held(tx, "job_id", job_ids)


async def held_in_rooms(tx: Transaction, rooms: Sequence[str]) -> Counter[str]:
    """Count the held tasks of each of these rooms."""
    return await _count_held(tx, "room_id", rooms)


async def _count_held(tx: Transaction, column: str, values: Sequence[Any]) -> Counter[Any]:
    if not values:
        return Counter()
    rows = await tx.execute(_COUNT_HELD[column], {f"all_{column}": padded(values)})
    return Counter({key: count for key, count in rows})


_NO_LINK = Link()
_OF_SEQS = statement(
    f"{SELECT_RECORDS[True]} WHERE joblib_task.seq = ANY (:all_seq) ORDER BY joblib_task.seq DESC",
    *RECORD_NAMES,
)
_SIZE_OF_SEQS = statement(
    f"SELECT coalesce(sum({BODY_SIZE}), 0) FROM joblib_task WHERE seq = ANY (:all_seq)", "size"
)
MAX_PAGE_BYTES = 32 * 1024**2
# A page of so few tasks cannot exceed the bound.
_SMALL_PAGE = MAX_PAGE_BYTES // (2 * MAX_JSON_BYTES)


async def page(
    tx: Transaction,
    room_id: str,
    status: TaskStatus | None,
    *,
    part: Page,
    job_ids: Sequence[UUID] = (),
    link: Link = _NO_LINK,
) -> tuple[list[TaskRecord], int]:
    """Return one page of a room's tasks, and the count of all: of one status, and of one job's versions.

    The newest task comes first. With a link, the count has a bound. Raises `ContentTooLarge` for a page with
    more than 32 MiB of payloads and results.
    """
    if link != _NO_LINK:
        seqs, total = await sql_trees.page(tx, room_id, status, link, part, job_ids)
        return await _of_seqs(tx, seqs, part), total
    params = sql_counts.job_params(room_id, job_ids) | {"limit": part.limit, "offset": part.offset}
    if len(job_ids) > 1 and status in _BACKLOG:
        number = 1 << (len(job_ids) - 1).bit_length()
        ids = [*job_ids, *[_NO_JOB] * (number - len(job_ids))]
        rows, size = _page_of_versions(status, number)
        params |= {f"job_{index}": id_ for index, id_ in enumerate(ids)} | {"most": part.limit + part.offset}
        del params["all_job_id"]
    else:
        rows, size = _page(status, sql_counts.of_job(job_ids))
    if part.limit > _SMALL_PAGE:
        _check_size((await tx.execute(size, params)).scalar_one(), part)
    records = await fetch_records(tx, rows, **params)
    return records, await sql_counts.total(tx, room_id, status, job_ids)


async def _of_seqs(tx: Transaction, seqs: Sequence[int], part: Page) -> list[TaskRecord]:
    if not seqs:
        return []
    params = {"all_seq": padded(seqs)}
    if part.limit > _SMALL_PAGE:
        _check_size((await tx.execute(_SIZE_OF_SEQS, params)).scalar_one(), part)
    return await fetch_records(tx, _OF_SEQS, **params)


def _check_size(size: int, part: Page) -> None:
    if size > MAX_PAGE_BYTES:
        raise ContentTooLarge(
            f"limit: these {part.limit} tasks hold {size} bytes of payloads and results; a page holds at "
            f"most {MAX_PAGE_BYTES}. Request fewer tasks at once"
        )


@cache
def _page(status: TaskStatus | None, of_job: str) -> tuple[Any, Any]:
    """Return the statements for a page and for its size."""
    conditions = _in_room(status)
    if of_job:
        # The newest tasks of a job are pending ones, so its index is slow for others.
        job = "joblib_task.job_id" if status in _BACKLOG else "unindexed(joblib_task.job_id)"
        conditions += f" AND {job} {of_job}"
    return _rows_and_size(f"WHERE {conditions}\n{_ORDER}\nLIMIT :limit OFFSET :offset", {})


@cache
def _page_of_versions(status: TaskStatus | None, number: int) -> tuple[Any, Any]:
    """Return the statements for a page of several jobs: only the first rows of each are read and sorted."""
    heads = "\n    UNION ALL\n".join(
        f"""    SELECT * FROM (
        SELECT joblib_task.created_at, joblib_task.seq FROM joblib_task
        WHERE {_in_room(status)} AND joblib_task.job_id = :job_{index}
        {_ORDER}
        LIMIT :most
    ) AS head_{index}"""
        for index in range(number)
    )
    rest = f"""WHERE joblib_task.seq IN (
    SELECT heads.seq FROM (
{heads}
    ) AS heads
    ORDER BY heads.created_at DESC, heads.seq DESC
    LIMIT :limit OFFSET :offset
)
{_ORDER}"""
    return _rows_and_size(
        rest, {f"job_{index}": UUID_TYPE for index in range(number)} | {"most": BIG_INTEGER}
    )


# The statuses of which the newest tasks of a job are found by its index.
_BACKLOG = frozenset({None, TaskStatus.PENDING})
# The id of no job.
_NO_JOB = UUID(int=0)
_ORDER = "ORDER BY joblib_task.created_at DESC, joblib_task.seq DESC"


def _in_room(status: TaskStatus | None) -> str:
    of_this = "" if status is None else f" AND {as_sql(of_status([status]))}"
    return f"joblib_task.room_id = :room_id{of_this}"


def _rows_and_size(rest: str, types: dict[str, Any]) -> tuple[Any, Any]:
    size = f"""
SELECT coalesce(sum(size), 0) FROM (
    SELECT {BODY_SIZE} AS size FROM joblib_task {rest}
) AS page"""
    rows = statement(f"{SELECT_RECORDS[True]} {rest}", *RECORD_NAMES, limit=BIG_INTEGER, **types)
    return rows, statement(size, "size", limit=BIG_INTEGER, **types)


# Find the queue positions of pending tasks, counted from 1, without ranking whole queues.


async def positions(tx: Transaction, records: Sequence[TaskRecord]) -> dict[UUID, int]:
    """Return the positions of those of these tasks that are in a queue, by id.

    The kept counts of the blocks before a task's block are added to the task's rank in its own block.
    """
    together: dict[tuple[UUID, int, int], list[TaskRecord]] = {}
    for record in records:
        if record.is_queued:
            together.setdefault((record.job_id, record.lane, record.seq >> BLOCK_BITS), []).append(record)
    by_task: dict[UUID, int] = {}
    for (job_id, lane, block), queue in together.items():
        seqs = sorted(record.seq for record in queue)
        params = {"job_id": job_id, "lane": lane, "block": block, "block_first": block << BLOCK_BITS}
        params |= {"first": seqs[0], "last": seqs[-1], "all_seq": padded(seqs)}
        rows = await tx.execute(_POSITIONS, params)
        by_seq = {seq: position for seq, position in rows}
        # A task that left the queue after it was read has no position.
        by_task |= {record.id: by_seq[record.seq] for record in queue if record.seq in by_seq}
    return by_task


# Equality conditions: only with these SQLite finds the first task by the index.
_IN_LANE = f"""joblib_task.job_id = :job_id AND joblib_task.lane = :lane AND {TASK_IS_QUEUED}"""
_POSITIONS = statement(
    f"""
SELECT ranked.seq, CAST((
        SELECT coalesce(sum(joblib_queue_block.queued), 0) FROM joblib_queue_block
        WHERE joblib_queue_block.job_id = :job_id
            AND (joblib_queue_block.lane, joblib_queue_block.block) < (:lane, :block)
    ) + (
        SELECT count(*) FROM joblib_task
        WHERE {_IN_LANE} AND joblib_task.seq >= :block_first AND joblib_task.seq < :first
    ) + ranked.rank AS bigint)
FROM (
    SELECT joblib_task.seq, row_number() OVER (ORDER BY joblib_task.seq) AS rank FROM joblib_task
    WHERE {_IN_LANE} AND joblib_task.seq >= :first AND joblib_task.seq <= :last
) AS ranked
WHERE ranked.seq = ANY (:all_seq)
""",
    *("seq", "position"),
    block_first=BIG_INTEGER,
    first=BIG_INTEGER,
    last=BIG_INTEGER,
)
