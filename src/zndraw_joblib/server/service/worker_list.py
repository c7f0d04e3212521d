"""List workers, and show one with its tasks. What a caller may see of a worker is decided here."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from zndraw_joblib.contract.messages import PaginatedResponse
from zndraw_joblib.contract.names import RESERVED
from zndraw_joblib.contract.operations import WorkerDetail, WorkerState, WorkerSummary
from zndraw_joblib.contract.problems import Forbidden, WorkerNotFound
from zndraw_joblib.contract.searches import FoundTask
from zndraw_joblib.contract.workers import WorkerInfo
from zndraw_joblib.server.ports import Identity, Page
from zndraw_joblib.server.service import serializers
from zndraw_joblib.server.store import worker_list as store
from zndraw_joblib.server.store.database import Transaction
from zndraw_joblib.server.store.tasks import TaskRecord
from zndraw_joblib.server.store.worker_list import HeldTasks, ServedJob, WorkerListing

_MAX_JOBS = 100
_MAX_TASKS = 100
_MAX_ERROR = 300
_SILENT_INTERVALS = 2


async def page(
    tx: Transaction, caller: Identity, room_id: str | None, part: Page, interval: float
) -> PaginatedResponse[WorkerSummary]:
    """Return one page of all workers, or of those that serve a job which a room lists."""
    found, total = await store.page(tx, room_id, part)
    visible = RESERVED if room_id is None else RESERVED | {room_id}
    items = await _summaries(tx, caller, found, visible, interval)
    return serializers.page_response(PaginatedResponse[WorkerSummary], items, total, part)


async def get(tx: Transaction, caller: Identity, worker_id: UUID, interval: float) -> WorkerDetail:
    """Return a worker with its tasks, for its owner or a superuser."""
    worker = await store.by_id(tx, worker_id)
    if worker is None:
        raise WorkerNotFound(f"Worker {worker_id} not found")
    if not _is_own(caller, worker):
        raise Forbidden("Not authorized: the worker belongs to another user")
    [summary] = await _summaries(tx, caller, [worker], RESERVED, interval)
    tasks = await store.held_tasks(tx, worker_id, _MAX_TASKS)
    return WorkerDetail(**dict(summary), tasks=[_found(task) for task in tasks])


async def _summaries(
    tx: Transaction,
    caller: Identity,
    found: Sequence[WorkerListing],
    visible: frozenset[str],
    interval: float,
) -> list[WorkerSummary]:
    ids, now = [worker.id for worker in found], await tx.now()
    if not ids:
        return []
    held = await store.held_counts(tx, ids)
    served: dict[UUID, list[ServedJob]] = {worker_id: [] for worker_id in ids}
    for job in await store.served(tx, ids):
        served[job.worker_id].append(job)
    items = []
    for worker in found:
        is_own = _is_own(caller, worker)
        jobs = [job.full_name for job in served[worker.id] if is_own or job.room_id in visible]
        state = state_of(worker.last_heartbeat, now, interval, is_draining=worker.draining)
        item = WorkerSummary(
            id=worker.id, last_heartbeat=worker.last_heartbeat, job_count=worker.job_count, state=state
        )
        if is_own or jobs:
            hidden = set() if is_own else {"host", "pid", "owner_id"}
            shown = {*WorkerInfo.model_fields, "max_tasks", "created_at", "owner_id"} - hidden
            known = {field: getattr(worker, field) for field in shown}
            known |= held.get(worker.id, HeldTasks())._asdict()
            item = item.model_copy(update={**known, "jobs": jobs[:_MAX_JOBS]})
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
