"""Register jobs, show them, and hide those that nobody serves."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from zndraw_joblib.contract.messages import JobRegisterRequest, JobResponse, JobSummary, PaginatedResponse
from zndraw_joblib.contract.names import INTERNAL, RESERVED, JobName
from zndraw_joblib.contract.policy import JobPolicy
from zndraw_joblib.contract.problems import (
    Forbidden,
    InvalidCategory,
    JobNotFound,
    SchemaConflict,
    WorkerNotFound,
)
from zndraw_joblib.contract.status import TaskStatus
from zndraw_joblib.server.ports import Identity, Page, job_key, worker_key
from zndraw_joblib.server.service import payloads, rules, serializers
from zndraw_joblib.server.store import expiry
from zndraw_joblib.server.store import jobs as store
from zndraw_joblib.server.store import workers as worker_store
from zndraw_joblib.server.store.database import Transaction
from zndraw_joblib.server.store.tasks import TaskRecord


class Registration(NamedTuple):
    """Somebody offers to do a job in a room."""

    caller: Identity
    room_id: str
    request: JobRegisterRequest


def check(item: Registration, allowed_categories: Sequence[str]) -> None:
    """Raise the problem of a registration that no state of the database could mend."""
    if item.room_id in RESERVED and not item.caller.is_superuser:
        raise Forbidden(f"Only a superuser may register jobs in {item.room_id}")
    if item.request.category not in allowed_categories:
        raise InvalidCategory(
            f"Category {item.request.category!r} is not allowed; allowed are: {', '.join(allowed_categories)}"
        )
    payloads.check_schema(rules.check_size("schema", item.request.schema_))


async def register(tx: Transaction, item: Registration) -> tuple[JobResponse, bool]:
    """Let a worker serve a job. Tell whether the job is new, or shown again.

    Raises `WorkerNotFound` for a worker that is unknown or not the caller's, `SchemaConflict`
    for an active job with another schema.
    """
    caller, room_id, request = item
    # Locks are taken in the order worker, job; faults are told in the order of the contract.
    worker_id = None if room_id == INTERNAL else await _worker(tx, caller, request)
    name = JobName(room_id, request.category, request.name)
    said = request.model_fields_set & JobPolicy.model_fields.keys()
    policy = JobPolicy.model_validate({field: getattr(request, field) for field in said})
    job, is_new = await store.add_or_lock(tx, name, request.schema_, policy)
    if job.deleted:
        await store.restore_with(tx, job.id, request.schema_, policy)
    elif not is_new:
        _check_conflict(job, request, said)
        policy = store.policy_of(job.policy)
    if room_id != INTERNAL:
        if worker_id is None:
            raise WorkerNotFound(f"Worker {request.worker_id} not found")
        await worker_store.link(tx, worker_id, job.id)
        # Open claims of the worker look again at what it may claim.
        tx.wake(worker_key(worker_id))
    serializers.publish_jobs_changed(tx, room_id)
    served_by = await worker_store.serving(tx, [job.id])
    answer = _response(job, policy, served_by[job.id])
    shown_as = {"schema_": request.schema_, "worker_id": worker_id, "paused": job.paused and not job.deleted}
    answer = answer.model_copy(update=shown_as)
    return answer, is_new or job.deleted


def _check_conflict(job: Any, request: JobRegisterRequest, said: Iterable[str]) -> None:
    rule = (
        "It must be the same, or every worker of the job has to leave and its pending tasks have to end "
        "first."
    )
    name = f"{job.room_id}:{job.category}:{job.name}"
    if job.schema != request.schema_:
        raise SchemaConflict(f"Schema mismatch: {name!r} is active with another schema. {rule}")
    known = store.policy_of(job.policy)
    for field in sorted(said):
        if getattr(request, field) != getattr(known, field):
            raise SchemaConflict(
                f"{field}: {name!r} is active with {getattr(known, field)!r} and not with "
                f"{getattr(request, field)!r}. {rule}"
            )


async def _worker(tx: Transaction, caller: Identity, request: JobRegisterRequest) -> UUID | None:
    if request.worker_id is None:
        return await worker_store.add(tx, caller.id, request.max_tasks)
    row = (await worker_store.lock(tx, [request.worker_id])).get(request.worker_id)
    if row is None or row.owner_id != caller.id:
        return None
    if request.max_tasks is not None:
        await worker_store.update_row(tx, request.worker_id, max_tasks=request.max_tasks)
    return request.worker_id


async def soft_delete_orphans(tx: Transaction, job_ids: Sequence[UUID]) -> None:
    """Hide those of these jobs that have no worker and no pending task, and tell their rooms."""
    for job in await store.soft_delete_orphans(tx, job_ids):
        serializers.publish_jobs_changed(tx, job.room_id)


async def restore_needed(tx: Transaction, moved: Iterable[TaskRecord]) -> None:
    """Show jobs again that were hidden, and to whose queues tasks came back; and tell their rooms.

    Call it after the move, which holds the jobs' rows: nobody can hide them meanwhile.
    """
    wanted = sorted({task.job_id for task in moved if task.status == TaskStatus.PENDING})
    for room_id in await store.restore(tx, wanted) if wanted else []:
        serializers.publish_jobs_changed(tx, room_id)


async def pending_in_rooms(tx: Transaction, rooms: Sequence[str]) -> list[JobName]:
    """Return jobs in whose queues tasks of these rooms wait."""
    return await expiry.jobs_waiting_in(tx, rooms)


async def pending_counts(tx: Transaction, full_names: Sequence[str]) -> dict[str, int]:
    """Return those of these jobs that have pending tasks, and how many."""
    found = {str(name): count for name, count in (await store.pending_counts(tx)).items()}
    return {name: found[name] for name in full_names if name in found}


async def get(tx: Transaction, room_id: str, name: JobName, *, cross_room: bool) -> JobResponse:
    """Return an active job. Raises `JobNotFound`, also where it belongs to another room."""
    rules.check_room(name, room_id, cross_room=cross_room)
    job = await store.by_name(tx, name)
    if job is None:
        raise JobNotFound(f"Job {str(name)!r} not found")
    served_by = await worker_store.serving(tx, [job.id])
    return _response(job, store.policy_of(job.policy), served_by[job.id])


async def pause(tx: Transaction, name: JobName, *, paused: bool) -> JobResponse:
    """Stop the claims of a job, or let them go on. Raises `JobNotFound`."""
    job = await store.pause(tx, name, paused=paused)
    if job is None:
        raise JobNotFound(f"Job {str(name)!r} not found")
    if not paused and job.pending:
        tx.wake(job_key(name), job.pending)
    serializers.publish_jobs_changed(tx, name.room_id)
    served_by = await worker_store.serving(tx, [job.id])
    return _response(job, store.policy_of(job.policy), served_by[job.id])


async def id_of(tx: Transaction, room_id: str, name: JobName, *, cross_room: bool) -> UUID:
    """Return a job's id, hidden or not, so that its history stays readable. Raises `JobNotFound`."""
    rules.check_room(name, room_id, cross_room=cross_room)
    job = await store.by_name_with_deleted(tx, name)
    if job is None:
        raise JobNotFound(f"Job {str(name)!r} not found")
    found: UUID = job.id
    return found


async def page(tx: Transaction, room_id: str, part: Page) -> PaginatedResponse[JobSummary]:
    """Return one page of the jobs that a room sees."""
    rows, total = await store.page(tx, room_id, part)
    served_by = await worker_store.serving(tx, [row.id for row in rows]) if rows else {}
    items = [
        JobSummary(
            full_name=str(JobName(row.room_id, row.category, row.name)),
            category=row.category,
            name=row.name,
            workers=served_by[row.id],
        )
        for row in rows
    ]
    return PaginatedResponse[JobSummary](items=items, total=total, limit=part.limit, offset=part.offset)


def _response(job: Any, policy: JobPolicy, served_by: list[UUID]) -> JobResponse:
    name = JobName(job.room_id, job.category, job.name)
    return JobResponse(
        id=job.id,
        full_name=str(name),
        schema_=job.schema,
        workers=served_by,
        paused=job.paused,
        **name._asdict(),
        **dict(policy),
    )
