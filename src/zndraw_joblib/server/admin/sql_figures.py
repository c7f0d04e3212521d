"""Figures of jobs and of workers, the workers with their jobs and tasks, and ids that begin with a prefix."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from zndraw_joblib.server.db.bulk import padded
from zndraw_joblib.server.db.column_types import UtcDateTime
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.statements import BOOLEAN, INTEGER, TEXT, UUID_TYPE, statement
from zndraw_joblib.server.process.ports import QUEUES, Page
from zndraw_joblib.server.queue.sql_jobs import visible_rooms
from zndraw_joblib.server.queue.sql_pauses import is_job_paused
from zndraw_joblib.server.queue.sql_task_rows import (
    RECORD_NAMES,
    SELECT_RECORDS,
    TASK_IS_HELD,
    TASK_IS_QUEUED,
    TaskRecord,
    fetch_records,
)
from zndraw_joblib.wire.names import INTERNAL, RESERVED
from zndraw_joblib.wire.operators import WorkerState


class JobTotals(NamedTuple):
    """The numbers of all active jobs, and of the tasks in their queues."""

    jobs: int
    paused: int
    queued: int
    scheduled: int


class QueuedJob(NamedTuple):
    """A job with queued tasks, since when it has no worker, and until when it is paused."""

    id: UUID
    full_name: str
    queued: int
    unserved_since: datetime | None
    paused_until: datetime | None
    # If only another version of it has no worker.
    version: int | None = None
    # What its workers lack: the requirements of the queue, and the policy of the job, as JSON.
    requires: str | None = None
    policy: str | None = None
    # Since when the first task waits, if there are requirements.
    waits_since: datetime | None = None
    # If only the tasks of one room are counted.
    is_of_room: bool = False


class JobFigures(NamedTuple):
    """A job's row."""

    id: UUID
    full_name: str
    room_id: str
    queued: int
    scheduled: int
    is_paused: bool
    is_deleted: bool


_TOTALS = statement(
    f"""
SELECT count(*) FILTER (WHERE NOT superseded),
    count(*) FILTER (WHERE {is_job_paused(":now")} AND NOT superseded),
    coalesce(sum(pending), 0), coalesce(sum(scheduled), 0)
FROM joblib_job WHERE NOT deleted OR superseded AND pending + scheduled > 0
""",
    *JobTotals._fields,
)
IS_SERVED = "EXISTS (SELECT 1 FROM joblib_worker_job WHERE joblib_worker_job.job_id = joblib_job.id)"
_UNSERVED, _PAUSED = (
    statement(
        f"""
SELECT id, full_name, pending, unserved_since, paused_until,
    CASE WHEN unserved_since IS NULL AND (job_version > 1 OR superseded) THEN job_version % {QUEUES} END,
    requires, policy, CASE WHEN requires IS NOT NULL OR unserved_since IS NULL THEN (
        SELECT coalesce(joblib_task.queued_at, joblib_task.created_at) FROM joblib_task
        WHERE joblib_task.job_id >= joblib_job.id AND joblib_task.job_id <= joblib_job.id AND {TASK_IS_QUEUED}
        ORDER BY joblib_task.job_id, joblib_task.lane, joblib_task.seq LIMIT 1
    ) END
FROM joblib_job
WHERE (NOT deleted OR superseded) AND pending > 0 AND {condition}
ORDER BY pending DESC, full_name LIMIT :limit
""",
        *QueuedJob._fields[:-1],
        version=INTEGER,
        waits_since=UtcDateTime(),
    )
    for condition in (f"room_id <> '{INTERNAL}' AND NOT {IS_SERVED}", is_job_paused(":now"))
)
_FIRST = statement(
    f"""
SELECT id, full_name, room_id, pending, scheduled, {is_job_paused(":now")}, deleted FROM joblib_job
ORDER BY room_id IN ({", ".join(f"'{room}'" for room in sorted(RESERVED))}) DESC, created_at, id LIMIT :limit
""",
    *("id", "full_name", "room_id", "pending", "scheduled", "is_paused", "deleted"),
    is_paused=BOOLEAN,
)
_SUMS = statement(
    "SELECT count(*), coalesce(sum(pending), 0), coalesce(sum(scheduled), 0) FROM joblib_job",
    *("jobs", "pending", "scheduled"),
)


async def job_totals(tx: Transaction) -> JobTotals:
    """Return the numbers of all active jobs."""
    return JobTotals(*map(int, (await tx.execute(_TOTALS, {"now": await tx.now()})).one()))


async def unserved_jobs(tx: Transaction, limit: int) -> list[QueuedJob]:
    """Return the jobs with queued tasks that no worker serves, those with most tasks first."""
    return [QueuedJob(*row) for row in await tx.execute(_UNSERVED, {"limit": limit})]


async def paused_jobs(tx: Transaction, limit: int) -> list[QueuedJob]:
    """Return the paused jobs with queued tasks, those with most tasks first."""
    params = {"limit": limit, "now": await tx.now()}
    return [QueuedJob(*row) for row in await tx.execute(_PAUSED, params)]


async def first_jobs(tx: Transaction, limit: int) -> list[JobFigures]:
    """Return the first jobs in an order that does not change: those of reserved rooms, then the oldest."""
    params = {"limit": limit, "now": await tx.now()}
    return [JobFigures(*row) for row in await tx.execute(_FIRST, params)]


async def job_sums(tx: Transaction) -> tuple[int, int, int]:
    """Return how many jobs there are, deleted ones too, and the tasks in their queues and scheduled ones."""
    number, queued, scheduled = map(int, (await tx.execute(_SUMS)).one())
    return number, queued, scheduled


# Workers: what they say about themselves, the jobs that they serve, the tasks that they hold.


class WorkerListing(NamedTuple):
    """A worker in a list, with the count of the jobs that it serves."""

    id: UUID
    last_heartbeat: datetime
    owner_id: str
    created_at: datetime
    draining: bool
    max_tasks: int | None
    name: str | None
    host: str | None
    pid: int | None
    version: str | None
    slots: int | None
    labels: dict[str, Any] | None
    ends_at: datetime | None
    job_count: int


class WorkerJob(NamedTuple):
    """A job that a worker serves."""

    worker_id: UUID
    room_id: str
    full_name: str


class WorkerGroup(NamedTuple):
    """The workers in one state: how many tasks they can run, how many they hold, and in how many slots.

    `running` of the `slots_used` have a task that has started.
    """

    workers: int
    slots: int
    held: int
    slots_used: int
    running: int


class Service(NamedTuple):
    """How many workers serve a job, and how many tasks they can run at once."""

    workers: int
    slots: int


class HeldCounts(NamedTuple):
    """How many tasks a worker holds, and how many of them run."""

    held: int = 0
    running: int = 0


_NO_WORKERS = WorkerGroup(0, 0, 0, 0, 0)
_LISTED = f"""
SELECT {", ".join(WorkerListing._fields[:-1])},
    (
        SELECT count(DISTINCT joblib_job.full_name)
        FROM joblib_worker_job JOIN joblib_job ON joblib_worker_job.job_id = joblib_job.id
        WHERE joblib_worker_job.worker_id = joblib_worker.id
    ) AS job_count
FROM joblib_worker"""
_SERVES_A_ROOM = """
WHERE EXISTS (
    SELECT 1 FROM joblib_worker_job JOIN joblib_job ON joblib_worker_job.job_id = joblib_job.id
    WHERE joblib_worker_job.worker_id = joblib_worker.id
        AND (NOT joblib_job.deleted OR joblib_job.superseded) AND joblib_job.room_id = ANY (:all_room_id)
)"""
_PAGES, _COUNTS = (
    {
        is_of_room: statement(f"{start}{_SERVES_A_ROOM if is_of_room else ''}{end}", *columns)
        for is_of_room in (True, False)
    }
    for start, end, columns in (
        (_LISTED, "\nORDER BY created_at DESC, id DESC LIMIT :limit OFFSET :offset", WorkerListing._fields),
        ("SELECT count(*) FROM joblib_worker", "", ["number"]),
    )
)
_BY_ID = statement(f"{_LISTED} WHERE id = :id", *WorkerListing._fields)
_SERVED = statement(
    """
SELECT DISTINCT joblib_worker_job.worker_id, joblib_job.room_id, joblib_job.full_name
FROM joblib_worker_job JOIN joblib_job ON joblib_worker_job.job_id = joblib_job.id
WHERE joblib_worker_job.worker_id = ANY (:all_worker_id)
ORDER BY joblib_job.full_name
""",
    *WorkerJob._fields,
)
_HELD = statement(
    f"""
SELECT worker_id, count(*), count(started_at) FROM joblib_task
WHERE {TASK_IS_HELD} AND worker_id = ANY (:all_worker_id)
GROUP BY worker_id
""",
    *("worker_id", "held", "running"),
    running=INTEGER,
)
_HELD_BY = statement(
    f"""
{SELECT_RECORDS[False]} WHERE {TASK_IS_HELD} AND joblib_task.worker_id = :worker_id
ORDER BY joblib_task.seq DESC LIMIT :limit
""",
    *RECORD_NAMES,
)

# A worker that does not report its slots has one, or as many as it may hold.
SLOTS = "coalesce(joblib_worker.slots, joblib_worker.max_tasks, 1)"
_SERVICES = statement(
    f"""
SELECT joblib_worker_job.job_id, count(*), sum({SLOTS})
FROM joblib_worker_job JOIN joblib_worker ON joblib_worker_job.worker_id = joblib_worker.id
WHERE joblib_worker_job.job_id = ANY (:all_job_id)
GROUP BY joblib_worker_job.job_id
""",
    *("job_id", "workers", "slots"),
)
# Without a join for each link: few workers are draining.
_LINKS = statement(
    "SELECT job_id, count(*) FROM joblib_worker_job WHERE job_id = ANY (:all_job_id) GROUP BY job_id",
    *("job_id", "number"),
)
_DRAINING_LINKS = statement(
    """
SELECT job_id FROM joblib_worker_job WHERE worker_id IN (SELECT id FROM joblib_worker WHERE draining)
""",
    "job_id",
)
_STATE = f"""CASE
        WHEN joblib_worker.last_heartbeat < :silent_since THEN '{WorkerState.SILENT}'
        WHEN joblib_worker.draining THEN '{WorkerState.DRAINING}'
        ELSE '{WorkerState.ACTIVE}'
    END AS state"""
_STATES = statement(
    f"SELECT {_STATE}, count(*), sum({SLOTS}) FROM joblib_worker GROUP BY state",
    *("state", "workers", "slots"),
    silent_since=UtcDateTime(),
)
# The held tasks are in the order of their index, so that no other index and no scan has it.
_BUSY_STATES = statement(
    f"""
SELECT {_STATE}, sum(busy.held),
    sum(CASE WHEN busy.held < {SLOTS} THEN busy.held ELSE {SLOTS} END),
    sum(CASE WHEN busy.running < {SLOTS} THEN busy.running ELSE {SLOTS} END)
FROM (
    SELECT worker_id, count(*) AS held, count(started_at) AS running FROM (
        SELECT worker_id, started_at FROM joblib_task WHERE {TASK_IS_HELD} ORDER BY worker_id LIMIT {2**31}
    ) AS held_tasks
    GROUP BY worker_id
) AS busy JOIN joblib_worker ON joblib_worker.id = busy.worker_id
GROUP BY state
""",
    *("state", "held", "slots_used", "running"),
    silent_since=UtcDateTime(),
    running=INTEGER,
)


async def workers_page(
    tx: Transaction, rooms: Collection[str] | None, part: Page
) -> tuple[list[WorkerListing], int]:
    """Return one page of workers, newest first, and the count of all.

    With rooms, only workers that serve a job which one of these lists.
    """
    params: dict[str, Any] = part._asdict()
    if rooms is not None:
        visible = {job_room for room_id in rooms for job_room in visible_rooms(room_id)}
        params["all_room_id"] = padded(sorted(visible))
    rows = (await tx.execute(_PAGES[rooms is not None], params)).all()
    total: int = (await tx.execute(_COUNTS[rooms is not None], params)).scalar_one()
    return [WorkerListing(*row) for row in rows], total


async def worker_by_id(tx: Transaction, worker_id: UUID) -> WorkerListing | None:
    """Return a worker."""
    row = (await tx.execute(_BY_ID, {"id": worker_id})).first()
    return None if row is None else WorkerListing(*row)


async def served_jobs(tx: Transaction, ids: Sequence[UUID]) -> list[WorkerJob]:
    """Return the jobs that these workers serve, by full name."""
    return [WorkerJob(*row) for row in await tx.execute(_SERVED, {"all_worker_id": padded(ids)})]


async def held_counts(tx: Transaction, ids: Sequence[UUID]) -> dict[UUID, HeldCounts]:
    """Return how many tasks each of these workers holds; a worker without one is missing."""
    rows = await tx.execute(_HELD, {"all_worker_id": padded(ids)})
    return {worker_id: HeldCounts(*numbers) for worker_id, *numbers in rows}


async def held_tasks(tx: Transaction, worker_id: UUID, limit: int) -> list[TaskRecord]:
    """Return the tasks that a worker holds, without their bodies, the newest first."""
    return await fetch_records(tx, _HELD_BY, worker_id=worker_id, limit=limit)


async def by_state(tx: Transaction, silent_since: datetime) -> dict[WorkerState, WorkerGroup]:
    """Return the workers by state. Those without a heartbeat since `silent_since` are silent."""
    params = {"silent_since": silent_since}
    busy = {state: map(int, numbers) for state, *numbers in await tx.execute(_BUSY_STATES, params)}
    groups = {
        WorkerState(state): WorkerGroup(number, int(slots), *busy.get(state, (0, 0, 0)))
        for state, number, slots in await tx.execute(_STATES, params)
    }
    return {state: groups.get(state, _NO_WORKERS) for state in WorkerState}


async def services(tx: Transaction, job_ids: Sequence[UUID]) -> dict[UUID, Service]:
    """Return how many workers and slots serve each job; a job without workers is missing."""
    rows = await tx.execute(_SERVICES, {"all_job_id": padded(job_ids)})
    return {job_id: Service(number, int(slots)) for job_id, number, slots in rows}


async def claiming(tx: Transaction, job_ids: Sequence[UUID]) -> dict[UUID, int]:
    """Return how many workers serve each of these jobs and are not draining."""
    workers_of_jobs = dict.fromkeys(job_ids, 0)
    workers_of_jobs |= {
        job_id: number for job_id, number in await tx.execute(_LINKS, {"all_job_id": padded(job_ids)})
    }
    for job_id in (await tx.execute(_DRAINING_LINKS)).scalars():
        if job_id in workers_of_jobs:
            workers_of_jobs[job_id] -= 1
    return workers_of_jobs


# Find tasks, workers and groups by the first characters of their ids.

# Ids of tasks begin with the time, so up to this many may share a short prefix.
_CANDIDATES = 20_000


def _within(table: str, column: str) -> dict[bool, Any]:
    """Return the statements for rows with ids in a range, all or those with some values in a column."""
    return {
        is_filtered: statement(
            f"""
SELECT id FROM (
    SELECT id, {column} FROM {table} WHERE id >= :first AND id <= :last ORDER BY id DESC LIMIT :candidates
) AS near{f" WHERE {column} = ANY (:all_value)" if is_filtered else ""}
ORDER BY id DESC LIMIT :limit
""",
            "id",
            first=UUID_TYPE,
            last=UUID_TYPE,
            candidates=INTEGER,
            value=TEXT,
        )
        for is_filtered in (True, False)
    }


_TASKS_WITHIN = _within("joblib_task", "room_id")
_WORKERS_WITHIN = _within("joblib_worker", "owner_id")
_GROUPS_WITHIN = _within("joblib_group", "room_id")


async def tasks_with(
    tx: Transaction, first: UUID, last: UUID, rooms: Sequence[str], limit: int
) -> list[UUID]:
    """Return up to `limit` tasks with ids in a range, the last first, of these rooms or of all."""
    return await _find(tx, _TASKS_WITHIN, (first, last), rooms, limit)


async def workers_with(
    tx: Transaction, first: UUID, last: UUID, owners: Sequence[str], limit: int
) -> list[UUID]:
    """Return up to `limit` workers with ids in a range, the last first, of these owners or of all."""
    return await _find(tx, _WORKERS_WITHIN, (first, last), owners, limit)


async def groups_with(
    tx: Transaction, first: UUID, last: UUID, rooms: Sequence[str], limit: int
) -> list[UUID]:
    """Return up to `limit` groups with ids in a range, the last first, of these rooms or of all."""
    return await _find(tx, _GROUPS_WITHIN, (first, last), rooms, limit)


async def _find(
    tx: Transaction, within: dict[bool, Any], span: tuple[UUID, UUID], values: Sequence[str], limit: int
) -> list[UUID]:
    params: dict[str, Any] = {"first": span[0], "last": span[1], "limit": limit}
    params["candidates"] = _CANDIDATES if values else limit
    if values:
        params["all_value"] = padded(values)
    return list((await tx.execute(within[bool(values)], params)).scalars())
