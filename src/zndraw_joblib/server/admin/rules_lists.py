"""Lists for operators: jobs, rooms, providers, workers, and ids that begin with a prefix."""

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from zndraw_joblib.server.admin import sql_lists
from zndraw_joblib.server.admin.sql_lists import HeldCounts, ServedJob, Service, WorkerListing
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.process import cursors
from zndraw_joblib.server.process.ports import CursorPage, Identity, JobFilter, Page
from zndraw_joblib.server.queue import rules_answers, sql_counts
from zndraw_joblib.server.queue.sql_jobs import JobRecord
from zndraw_joblib.server.queue.sql_task_rows import TaskRecord
from zndraw_joblib.wire.messages import PaginatedResponse, WorkerInfo
from zndraw_joblib.wire.names import RESERVED, JobName
from zndraw_joblib.wire.operators import (
    FoundTask,
    JobEntries,
    JobEntry,
    PrefixMatches,
    ProviderEntries,
    ProviderEntry,
    RoomEntries,
    RoomEntry,
    StatusCounts,
    WorkerDetail,
    WorkerState,
    WorkerSummary,
)
from zndraw_joblib.wire.problems import Forbidden, InvalidRequest, WorkerNotFound

_JOBS = "jobs"


async def list_jobs(tx: Transaction, job_filter: JobFilter, part: CursorPage) -> JobEntries:
    """Return jobs by full name, with their counts. Read it in a snapshot."""
    after = None if part.cursor is None else cursors.decode(_JOBS, part.cursor, [str])[0]
    rows = await sql_lists.jobs_page(tx, job_filter, after, part.limit + 1)
    listed = rows[: part.limit]
    last = str(listed[-1][0].name) if len(rows) > part.limit else None
    return JobEntries(
        items=await entries(tx, listed), next=None if last is None else cursors.encode(_JOBS, last)
    )


async def entries(tx: Transaction, rows: list[tuple[JobRecord, int]]) -> list[JobEntry]:
    """Return jobs with their counts; each is given with its number of scheduled tasks."""
    ids = [job.id for job, _ in rows]
    if not ids:
        return []
    services, counts = await sql_lists.services(tx, ids), await sql_counts.of_jobs(tx, ids)
    waiting = [job.id for job, _ in rows if job.pending]
    oldest: dict[UUID, datetime] = {}
    for task in await sql_counts.of_queues(tx, waiting) if waiting else []:
        oldest[task.job_id] = min(task.created_at, oldest.get(task.job_id, task.created_at))
    return [
        entry(
            job,
            services.get(job.id),
            counts.get(job.id, sql_counts.NO_COUNTS),
            queued=job.pending,
            scheduled=scheduled,
            oldest_waiting_at=oldest.get(job.id),
        )
        for job, scheduled in rows
    ]


def entry(
    job: JobRecord,
    service: Service | None,
    counts: StatusCounts,
    *,
    queued: int,
    scheduled: int = 0,
    oldest_waiting_at: datetime | None = None,
) -> JobEntry:
    """Return a job with its workers and counts."""
    workers, slots = service or (0, 0)
    return JobEntry(
        id=job.id,
        full_name=str(job.name),
        schema_=job.schema,
        paused=job.paused,
        deleted=job.deleted,
        created_at=job.created_at,
        workers=workers,
        slots=slots,
        queued=queued,
        scheduled=scheduled,
        counts=counts,
        oldest_waiting_at=oldest_waiting_at,
        **job.name._asdict(),
        **dict(job.policy),
    )


# List all rooms for operators.

_ROOMS = "rooms"


async def list_rooms(tx: Transaction, part: CursorPage) -> RoomEntries:
    """Return rooms by id, with their counts. Read it in a snapshot."""
    after = "" if part.cursor is None else cursors.decode(_ROOMS, part.cursor, [str])[0]
    room_ids = await sql_lists.rooms_page(tx, after, part.limit + 1)
    rooms = room_ids[: part.limit]
    if not rooms:
        return RoomEntries(items=[])
    jobs, (counts, held) = await sql_lists.job_counts(tx, rooms), await sql_counts.of_rooms(tx, rooms)
    oldest = await sql_counts.oldest_of_rooms(tx, rooms)
    items = []
    for room_id in rooms:
        of_room = counts.get(room_id, sql_counts.NO_COUNTS)
        share = (of_room.claimed + of_room.running) / held if held else 0.0
        entry = RoomEntry(
            id=room_id,
            counts=of_room,
            jobs=jobs.get(room_id, 0),
            share=share,
            oldest_waiting_at=oldest.get(room_id),
        )
        items.append(entry)
    return RoomEntries(
        items=items, next=cursors.encode(_ROOMS, rooms[-1]) if len(room_ids) > part.limit else None
    )


# List all providers for operators.

_PROVIDERS = "providers"


async def list_providers(tx: Transaction, part: CursorPage) -> ProviderEntries:
    """Return providers by full name, each with its number of open requests."""
    after = JobName("", "", "")
    if part.cursor is not None:
        after = JobName(*cursors.decode(_PROVIDERS, part.cursor, [str, str, str]))
    providers = await sql_lists.providers_page(tx, after, part.limit + 1)
    listed = providers[: part.limit]
    if not listed:
        return ProviderEntries(items=[])
    now = await tx.now()
    open_requests = await sql_lists.open_requests(tx, [provider.id for provider in listed], now)
    items = [
        ProviderEntry(
            id=provider.id,
            full_name=str(provider.name),
            schema_=provider.schema,
            content_type=provider.content_type,
            worker_id=provider.worker_id,
            created_at=provider.created_at,
            connected=provider.connected_until > now,
            open_requests=open_requests.get(provider.id, 0),
            **provider.name._asdict(),
        )
        for provider in listed
    ]
    has_more = len(providers) > part.limit
    return ProviderEntries(
        items=items, next=cursors.encode(_PROVIDERS, *listed[-1].name) if has_more else None
    )


# List workers, and show one with its tasks. What a caller may see of a worker is decided here.

_MAX_JOBS = 100
_MAX_TASKS = 100
_MAX_ERROR = 300
_SILENT_INTERVALS = 2


async def list_workers(
    tx: Transaction, caller: Identity, room_id: str | None, part: Page, interval: float
) -> PaginatedResponse[WorkerSummary]:
    """Return one page of all workers, or of those that serve a job which a room lists."""
    workers, total = await sql_lists.workers_page(tx, room_id, part)
    visible = RESERVED if room_id is None else RESERVED | {room_id}
    items = await _summaries(tx, caller, workers, visible, interval)
    return rules_answers.page_response(PaginatedResponse[WorkerSummary], items, total, part)


async def get_worker(tx: Transaction, caller: Identity, worker_id: UUID, interval: float) -> WorkerDetail:
    """Return a worker with its tasks, for its owner or a superuser."""
    worker = await sql_lists.worker_by_id(tx, worker_id)
    if worker is None:
        raise WorkerNotFound(f"Worker {worker_id} not found")
    if not _is_own(caller, worker):
        raise Forbidden("Not authorized: the worker belongs to another user")
    [summary] = await _summaries(tx, caller, [worker], RESERVED, interval)
    tasks = await sql_lists.held_tasks(tx, worker_id, _MAX_TASKS)
    return WorkerDetail(**dict(summary), tasks=[_found(task) for task in tasks])


async def _summaries(
    tx: Transaction,
    caller: Identity,
    workers: Sequence[WorkerListing],
    visible: frozenset[str],
    interval: float,
) -> list[WorkerSummary]:
    ids, now = [worker.id for worker in workers], await tx.now()
    if not ids:
        return []
    held = await sql_lists.held_counts(tx, ids)
    served: dict[UUID, list[ServedJob]] = {worker_id: [] for worker_id in ids}
    for job in await sql_lists.served_jobs(tx, ids):
        served[job.worker_id].append(job)
    items = []
    for worker in workers:
        is_own = _is_own(caller, worker)
        jobs = [job.full_name for job in served[worker.id] if is_own or job.room_id in visible]
        state = state_of(worker.last_heartbeat, now, interval, is_draining=worker.draining)
        item = WorkerSummary(
            id=worker.id, last_heartbeat=worker.last_heartbeat, job_count=worker.job_count, state=state
        )
        if is_own or jobs:
            hidden = set() if is_own else {"host", "pid", "owner_id"}
            shown = {*WorkerInfo.model_fields, "max_tasks", "created_at", "owner_id"} - hidden
            fields = {field: getattr(worker, field) for field in shown}
            fields |= held.get(worker.id, HeldCounts())._asdict()
            item = item.model_copy(update={**fields, "jobs": jobs[:_MAX_JOBS]})
        items.append(item)
    return items


def state_of(last_heartbeat: datetime, now: datetime, interval: float, *, is_draining: bool) -> WorkerState:
    """Return the state of a worker that has to send a heartbeat every `interval` seconds."""
    if now - last_heartbeat > timedelta(seconds=_SILENT_INTERVALS * interval):
        return WorkerState.SILENT
    return WorkerState.DRAINING if is_draining else WorkerState.ACTIVE


def _is_own(caller: Identity, worker: WorkerListing) -> bool:
    return caller.is_superuser or worker.owner_id == caller.id


def _found(task: TaskRecord) -> FoundTask:
    fields = set(FoundTask.model_fields) - {"job_name", "priority", "error"}
    return FoundTask(
        job_name=str(task.job),
        priority=-task.lane,
        error=task.error and task.error[:_MAX_ERROR],
        **{field: getattr(task, field) for field in fields},
    )


# Find tasks and workers by the first characters of their ids.

_MOST = 10
_DIGITS = 32
_PREFIX = re.compile(r"[0-9a-f]{4,32}")


def parse_prefix(prefix: str) -> tuple[UUID, UUID]:
    """Return the first and the last id with a prefix. Raises `InvalidRequest`."""
    digits = prefix.replace("-", "").lower()
    if len(prefix) > _DIGITS + 4 or not _PREFIX.fullmatch(digits):
        raise InvalidRequest(
            f"query.prefix: {prefix[:40]!r} is no part of an id; send its first 4 to 36 characters"
        )
    return UUID(digits.ljust(_DIGITS, "0")), UUID(digits.ljust(_DIGITS, "f"))


async def find_ids(
    tx: Transaction, caller: Identity, span: tuple[UUID, UUID], rooms: Sequence[str]
) -> PrefixMatches:
    """Return tasks and workers with ids in a range: tasks of these rooms or of all, a user's own workers."""
    owners = [] if caller.is_superuser else [caller.id]
    return PrefixMatches(
        tasks=await sql_lists.tasks_with(tx, *span, rooms, _MOST),
        workers=await sql_lists.workers_with(tx, *span, owners, _MOST),
    )
