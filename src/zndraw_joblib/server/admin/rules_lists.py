"""Lists for operators: what a caller may see of workers and ids. `sql_lists` declares the others."""

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Literal, NamedTuple
from uuid import UUID

from zndraw_joblib.server.admin import sql_figures
from zndraw_joblib.server.admin.sql_figures import HeldCounts, WorkerJob, WorkerListing
from zndraw_joblib.server.admin.sql_lists import LISTS, CursorList, decode_cursor, encode_cursor, read
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.process.ports import CursorPage, Identity, Page, version_of
from zndraw_joblib.server.queue import rules_answers, rules_webhooks, sql_webhooks
from zndraw_joblib.server.queue.sql_task_rows import TaskRecord
from zndraw_joblib.server.queue.sql_webhooks import DeliveryRecord
from zndraw_joblib.wire.messages import PaginatedResponse, WorkerInfo
from zndraw_joblib.wire.names import RESERVED
from zndraw_joblib.wire.operations import Deliveries
from zndraw_joblib.wire.operators import FoundTask, PrefixMatches, WorkerDetail, WorkerState, WorkerSummary
from zndraw_joblib.wire.problems import Forbidden, InvalidRequest, WorkerNotFound

__all__ = ["LISTS", "CursorList", "read"]

_MAX_JOBS = 100
_MAX_TASKS = 100
_MAX_ERROR = 300
_SILENT_INTERVALS = 2


async def list_workers(
    tx: Transaction, caller: Identity, room_id: str | None, part: Page, interval: float
) -> PaginatedResponse[WorkerSummary]:
    """Return one page of all workers, or of those that serve a job which a room lists.

    All are those of the caller's rooms, if it has rights in some rooms only.
    """
    rooms = caller.rooms if room_id is None else [room_id]
    workers, total = await sql_figures.workers_page(tx, rooms, part)
    visible = RESERVED | frozenset(rooms or ())
    items = await _summaries(tx, caller, workers, visible, interval)
    return rules_answers.page_response(PaginatedResponse[WorkerSummary], items, total, part)


async def get_worker(tx: Transaction, caller: Identity, worker_id: UUID, interval: float) -> WorkerDetail:
    """Return a worker with its tasks, for its owner or a superuser."""
    worker = await sql_figures.worker_by_id(tx, worker_id)
    if worker is None:
        raise WorkerNotFound(f"Worker {worker_id} not found")
    if not _is_own(caller, worker):
        raise Forbidden("Not authorized: the worker belongs to another user")
    [summary] = await _summaries(tx, caller, [worker], RESERVED, interval)
    tasks = await sql_figures.held_tasks(tx, worker_id, _MAX_TASKS)
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
    held = await sql_figures.held_counts(tx, ids)
    served: dict[UUID, list[WorkerJob]] = {worker_id: [] for worker_id in ids}
    for job in await sql_figures.served_jobs(tx, ids):
        served[job.worker_id].append(job)
    items = []
    for worker in workers:
        is_own = _is_own(caller, worker)
        jobs = [job.full_name for job in served[worker.id] if is_own or job.room_id in visible]
        state = state_of(worker.last_heartbeat, now, interval, is_draining=worker.draining)
        is_limited = caller.rooms is not None and not is_own
        job_count = len(jobs) if is_limited else worker.job_count
        item = WorkerSummary(
            id=worker.id, last_heartbeat=worker.last_heartbeat, job_count=job_count, state=state
        )
        if is_own or jobs:
            hidden = set() if is_own else {"host", "pid", "owner_id"}
            shown = {*WorkerInfo.model_fields, "max_tasks", "created_at", "owner_id", "ends_at"} - hidden
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
    of_searches = {"payload_preview", "worker_name", "progress", "waits_for", "has_children"}
    fields = set(FoundTask.model_fields) - {"job_name", "priority", "error", "version"} - of_searches
    return FoundTask(
        job_name=str(task.job),
        priority=-task.lane,
        version=version_of(task.job_version),
        error=task.error and task.error[:_MAX_ERROR],
        **{field: getattr(task, field) for field in fields},
    )


# Find tasks and workers by the first characters of their ids.

_MAX_MATCHES = 10
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
    """Return what has ids in a range: tasks and groups of these rooms or of all, a user's own workers."""
    owners = [] if caller.is_superuser else [caller.id]
    return PrefixMatches(
        tasks=await sql_figures.tasks_with(tx, *span, rooms, _MAX_MATCHES),
        workers=await sql_figures.workers_with(tx, *span, owners, _MAX_MATCHES),
        groups=await sql_figures.groups_with(tx, *span, rooms, _MAX_MATCHES),
    )


# The deliveries of a room.

_FIRST_SEQ = 2**63 - 1
_DELIVERIES = "deliveries"
# A request reads up to 20,000 deliveries.
_MAX_WINDOWS = 10


class DeliveryFilter(NamedTuple):
    """Which deliveries of a room a list has."""

    webhook: str | None = None
    task: UUID | None = None
    state: Literal["waiting", "delivered", "failed"] | None = None


async def deliveries(
    tx: Transaction, room_id: str, delivery_filter: DeliveryFilter, page: CursorPage
) -> Deliveries:
    """Return a part of the deliveries of a room, newest first. Raises `InvalidRequest` for a wrong cursor."""
    before = _FIRST_SEQ
    if page.cursor is not None:
        [before] = decode_cursor(_DELIVERIES, page.cursor, [int])
    values = {"webhook": delivery_filter.webhook, "task_id": delivery_filter.task}
    filters = {name: value for name, value in values.items() if value is not None}
    rows: list[DeliveryRecord] = []
    following: int | None = before
    for _ in range(_MAX_WINDOWS):
        part, following = await sql_webhooks.deliveries(
            tx, room_id, before, page.limit - len(rows), filters, delivery_filter.state
        )
        rows += part
        if following is None or len(rows) == page.limit:
            break
        before = following
    return Deliveries(
        items=[rules_webhooks.delivery_response(row) for row in rows],
        next=None if following is None else encode_cursor(_DELIVERIES, following),
    )
