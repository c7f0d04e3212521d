"""Register, list and pause jobs, and decide what becomes of those without workers."""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from zndraw_joblib.jobs.extensions import DEFAULT_CATEGORY
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.process.ports import Identity, Page, job_key, worker_key
from zndraw_joblib.server.queue import (
    rules_answers,
    rules_audit,
    rules_transitions,
    sql_jobs,
    sql_room_queues,
    sql_workers,
)
from zndraw_joblib.server.queue.sql_jobs import JobRecord
from zndraw_joblib.server.queue.sql_task_rows import TaskRecord
from zndraw_joblib.wire.messages import JobRegisterRequest, JobResponse, JobSummary, PaginatedResponse
from zndraw_joblib.wire.names import INTERNAL, RESERVED, JobName
from zndraw_joblib.wire.policy import JobPolicy, WithoutWorkers
from zndraw_joblib.wire.problems import (
    Conflict,
    Forbidden,
    InvalidCategory,
    JobNotFound,
    SchemaConflict,
    WorkerNotFound,
)
from zndraw_joblib.wire.statuses import TaskStatus

_CONFLICT_RULE = (
    "It must be the same, or every worker of the job has to leave and its pending tasks have to end first."
)


class JobToRegister(NamedTuple):
    """The request of a worker to serve a job in a room, which may have `max_jobs` active ones.

    `add_job()`, for a job that is new or restored, raises a problem if the caller may have no further one.
    """

    caller: Identity
    room_id: str
    request: JobRegisterRequest
    max_jobs: int | None = None
    add_job: Callable[[], None] = lambda: None


def check(item: JobToRegister, allowed_categories: Sequence[str]) -> str:
    """Return the schema of a registration as JSON, which must be checked before the transaction.

    Raises the problem of a registration that is invalid whatever the database contains.
    """
    if item.room_id in RESERVED and not item.caller.is_superuser:
        raise Forbidden(f"Only a superuser may register jobs in {item.room_id}")
    allowed = dict.fromkeys((*allowed_categories, DEFAULT_CATEGORY))
    if item.request.category not in allowed:
        raise InvalidCategory(
            f"Category {item.request.category!r} is not allowed; allowed are: {', '.join(allowed)}"
        )
    return rules_transitions.check_size("schema", item.request.schema_)


async def register(tx: Transaction, item: JobToRegister) -> tuple[JobResponse, bool]:
    """Register a worker for a job. Return the job, and whether it is new or restored.

    Policy fields of an active job that differ are updated, and recorded in the audit trail. Raises
    `WorkerNotFound` for a worker that is unknown or not the caller's, `SchemaConflict` for an active job with
    another schema that has a worker or pending tasks, and `Conflict` if the room has too many jobs.
    """
    caller, room_id, request = item.caller, item.room_id, item.request
    # The worker is locked before the job, but a problem of the job is raised first.
    worker_id = None if room_id == INTERNAL else await _worker(tx, caller, request)
    job, policy, is_new = await _save(tx, item, JobPolicy())
    if room_id != INTERNAL:
        if worker_id is None:
            raise WorkerNotFound(f"Worker {request.worker_id} not found")
        await sql_workers.link(tx, worker_id, job.id)
        await sql_jobs.record_served(tx, job, caller.id)
        # Waiting claims of the worker now include this job.
        tx.wake(worker_key(worker_id))
    response = await _response(tx, job, policy)
    current = {
        "schema_": request.schema_,
        "worker_id": worker_id,
        "paused": not job.deleted and job.is_paused(await tx.now()),
        "unserved_since": None,
    }
    return response.model_copy(update=current), is_new


async def put(tx: Transaction, item: JobToRegister) -> tuple[JobResponse, bool]:
    """Register a job without a worker, as `register`. Tasks of a new one wait, unless its policy says else.

    Without a schema, a job that exists keeps its own.

    Raises `Conflict` for a job that would be forgotten at once, and for one that the server declares.
    """
    if item.room_id == INTERNAL:
        raise Conflict(f"Jobs of {INTERNAL} are declared by the server: register a job of another room")
    request = item.request
    if "schema_" not in request.model_fields_set:
        current = await sql_jobs.by_name(tx, JobName(item.room_id, request.category, request.name))
        if current is not None:
            item = item._replace(request=request.model_copy(update={"schema_": current.schema}))
    job, _, is_new = await _save(tx, item, JobPolicy(without_workers=WithoutWorkers.QUEUE))
    await rules_audit.record(tx, item.caller, "job.put", str(job.name), item.room_id)
    if await sql_jobs.record_unserved(tx, [job.id]):
        raise Conflict(
            f"without_workers: no worker serves {str(job.name)!r}, so it would be forgotten at once; set it "
            "to 'queue' or 'reject'"
        )
    return await get(tx, item.room_id, job.name, cross_room=True), is_new


async def _save(
    tx: Transaction, item: JobToRegister, default: JobPolicy
) -> tuple[JobRecord, JobPolicy, bool]:
    """Insert, restore or update a job; return it as it was, its policy, and whether it is new or restored.

    `default` is the policy of a new job where the request names no other.
    """
    caller, room_id, request, max_jobs, add_job = item
    name = JobName(room_id, request.category, request.name)
    fields = request.model_fields_set & JobPolicy.model_fields.keys()
    named = JobPolicy.model_validate({field: getattr(request, field) for field in fields})
    policy = default.model_copy(update={field: getattr(named, field) for field in fields})
    job, is_new = await sql_jobs.add_or_lock(tx, name, request.schema_, policy, caller.id)
    if job.deleted:
        await sql_jobs.restore_with(tx, job.id, request.schema_, policy)
    elif not is_new:
        policy = await _update(tx, caller, job, request.schema_, named)
    if is_new or job.deleted:
        add_job()
        if max_jobs is not None:
            await _check_room(tx, room_id, max_jobs)
    rules_answers.publish_jobs_changed(tx, room_id)
    return job, policy, is_new or job.deleted


async def delete(tx: Transaction, name: JobName) -> None:
    """Soft-delete a job. Raises `JobNotFound`, and `Conflict` if a worker serves it or a task is pending."""
    job = (await sql_jobs.lock_by_names(tx, [name])).get(name)
    job = _existing(job, name)
    if name.room_id == INTERNAL:
        raise Conflict(f"{str(name)!r} is declared by the server: remove it from the server's code")
    if await sql_jobs.served(tx, [job.id]):
        raise Conflict(f"A worker serves {str(name)!r}: stop its workers first")
    if not await sql_jobs.delete_unused(tx, job.id):
        raise Conflict(
            f"Tasks of {str(name)!r} are pending: cancel them first (POST /tasks/bulk, or zndraw-joblib "
            f"tasks bulk cancel --all-rooms --job {name})"
        )
    rules_answers.publish_jobs_changed(tx, name.room_id)


async def _check_room(tx: Transaction, room_id: str, max_jobs: int) -> None:
    """Raise `Conflict` if a room, with the job that was just added, has too many active jobs."""
    if await sql_jobs.count_active(tx, room_id, max_jobs + 1) > max_jobs:
        raise Conflict(
            f"Room {room_id!r} has {max_jobs} jobs, which is the limit (max_jobs_per_room). A job is deleted "
            "once it has no worker and no pending task: stop workers of jobs that are not needed"
        )


async def _update(
    tx: Transaction, caller: Identity, job: JobRecord, schema: dict[str, Any], named: JobPolicy
) -> JobPolicy:
    """Give an active job, which is locked, the schema and the policy fields that are set; return its policy.

    Raises `SchemaConflict` for another schema while a worker serves the job, or a task of it is pending.
    """
    fields = {name: getattr(named, name) for name in named.model_fields_set}
    changed = {name: value for name, value in fields.items() if value != getattr(job.policy, name)}
    policy = job.policy.model_copy(update=changed)
    if job.room_id == INTERNAL and (changed or job.schema != schema):
        raise SchemaConflict(f"{str(job.name)!r} is declared by the server, with another schema or policy")
    if job.schema != schema:
        if not await sql_jobs.replace_unused(tx, job.id, schema, policy):
            raise SchemaConflict(
                f"Schema mismatch: {str(job.name)!r} is active with another schema. {_CONFLICT_RULE}"
            )
    elif changed:
        await sql_jobs.replace(tx, job.id, schema, policy)
    if changed:
        detail = policy.model_dump(mode="json", include=set(changed))
        await rules_audit.record(tx, caller, "job.policy", str(job.name), job.room_id, detail)
    if "max_in_flight" in changed and job.pending:
        tx.wake(job_key(job.name), job.pending)
    return policy


async def _worker(tx: Transaction, caller: Identity, request: JobRegisterRequest) -> UUID | None:
    if request.worker_id is None:
        return await sql_workers.add(tx, caller.id, request.max_tasks, request.worker)
    worker = (await sql_workers.lock(tx, [request.worker_id])).get(request.worker_id)
    if worker is None or worker.owner_id != caller.id:
        return None
    if request.max_tasks is not None:
        await sql_workers.set_max_tasks(tx, worker.id, request.max_tasks)
    return worker.id


async def record_unserved(tx: Transaction, job_ids: Sequence[UUID]) -> None:
    """Record that those of these jobs are without workers that have none.

    Soft-delete those that are to be forgotten and have no pending task, and notify their rooms.
    """
    for name in await sql_jobs.record_unserved(tx, job_ids):
        rules_answers.publish_jobs_changed(tx, name.room_id)


async def restore_needed(tx: Transaction, moved: Iterable[TaskRecord]) -> None:
    """Restore soft-deleted jobs whose tasks were requeued, and notify their rooms.

    Call it after the tasks were moved: that locks the jobs, so that none is deleted meanwhile.
    """
    needed = sorted({task.job_id for task in moved if task.status == TaskStatus.PENDING})
    for room_id in await sql_jobs.restore(tx, needed) if needed else []:
        rules_answers.publish_jobs_changed(tx, room_id)


async def pending_in_rooms(tx: Transaction, room_ids: Sequence[str]) -> list[JobName]:
    """Return jobs whose queues contain tasks of these rooms."""
    return await sql_room_queues.jobs_queued_in(tx, room_ids)


async def pending_counts(tx: Transaction, full_names: Sequence[str]) -> dict[str, int]:
    """Return the jobs with pending tasks among these, and how many of the tasks may be claimed."""
    counts = {str(name): count for name, count in (await sql_jobs.claimable_counts(tx)).items()}
    return {name: counts[name] for name in full_names if name in counts}


async def get(tx: Transaction, room_id: str, name: JobName, *, cross_room: bool) -> JobResponse:
    """Return an active job. Raises `JobNotFound`, also for a job of another room."""
    rules_transitions.check_room(name, room_id, cross_room=cross_room)
    job = _existing(await sql_jobs.by_name(tx, name), name)
    return await _response(tx, job, job.policy)


async def pause(
    tx: Transaction, name: JobName, *, paused: bool, until: datetime | None = None
) -> JobResponse:
    """Pause the claims of a job until a time, or resume them. Raises `JobNotFound`."""
    job = _existing(await sql_jobs.pause(tx, name, paused=paused, until=until), name)
    if not paused:
        wake_resumed(tx, name, job.pending)
    rules_answers.publish_jobs_changed(tx, name.room_id)
    return await _response(tx, job, job.policy)


def wake_resumed(tx: Transaction, name: JobName, pending: int) -> None:
    """Wake claims for the tasks in the queue of a job that is resumed."""
    if pending or name.room_id == INTERNAL:
        # Tasks of an internal job may wait although its queue is empty: they were claimed at their submit.
        tx.wake(job_key(name), pending or 1)


async def id_of(tx: Transaction, room_id: str, name: JobName, *, cross_room: bool) -> UUID:
    """Return a job's id, also if it is soft-deleted: its tasks stay readable. Raises `JobNotFound`."""
    rules_transitions.check_room(name, room_id, cross_room=cross_room)
    return _existing(await sql_jobs.by_name_with_deleted(tx, name), name).id


async def page(tx: Transaction, room_id: str, part: Page) -> PaginatedResponse[JobSummary]:
    """Return one page of the jobs that a room lists."""
    jobs, total = await sql_jobs.page(tx, room_id, part)
    served_by = await sql_workers.serving(tx, [job.id for job in jobs]) if jobs else {}
    items = [
        JobSummary(
            full_name=str(job.name), category=job.category, name=job.short_name, workers=served_by[job.id]
        )
        for job in jobs
    ]
    return rules_answers.page_response(PaginatedResponse[JobSummary], items, total, part)


def _existing(job: JobRecord | None, name: JobName) -> JobRecord:
    if job is None:
        raise JobNotFound(f"Job {str(name)!r} not found")
    return job


async def _response(tx: Transaction, job: JobRecord, policy: JobPolicy) -> JobResponse:
    served_by, now = await sql_workers.serving(tx, [job.id]), await tx.now()
    return JobResponse(
        id=job.id,
        full_name=str(job.name),
        schema_=job.schema,
        workers=served_by[job.id],
        paused=job.is_paused(now),
        paused_until=job.paused_until if job.is_paused(now) else None,
        unserved_since=job.unserved_since,
        **job.name._asdict(),
        **dict(policy),
    )
