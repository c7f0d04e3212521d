"""Register, list and pause jobs, and apply `without_workers` to jobs without workers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any, NamedTuple
from uuid import UUID

from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.process.ports import Identity, Page, job_key, queue_name, version_of, worker_key
from zndraw_joblib.server.queue import (
    rules_answers,
    rules_audit,
    rules_limits,
    rules_queues,
    rules_schemas,
    rules_transitions,
    sql_jobs,
    sql_room_queues,
    sql_workers,
)
from zndraw_joblib.server.queue.sql_jobs import JobRecord
from zndraw_joblib.server.queue.sql_task_rows import TaskRecord
from zndraw_joblib.wire.masks import masked_paths, paths_without
from zndraw_joblib.wire.messages import (
    JobRegisterRequest,
    JobResponse,
    JobSummary,
    PaginatedResponse,
    WorkerInfo,
)
from zndraw_joblib.wire.names import DEFAULT_CATEGORY, GLOBAL, INTERNAL, RESERVED, JobName
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

# The most versions of a job. Beyond it, the oldest one without workers and live tasks is used again.
MAX_VERSIONS = 32
# The most places where schemas differ that the text of an error names.
_SHOWN = 3


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
        if item.room_id == INTERNAL:
            raise Forbidden(f"Only a superuser may register jobs in {INTERNAL}")
        if not item.caller.serves(GLOBAL):
            raise Forbidden(
                f"Only a superuser may register jobs in {GLOBAL}, or a caller with the role worker whose "
                f"rooms include {GLOBAL}. Name a room of yours instead (worker --room ROOM, register(room=…))"
            )
    allowed = dict.fromkeys((*allowed_categories, DEFAULT_CATEGORY))
    if item.request.category not in allowed:
        raise InvalidCategory(
            f"Category {item.request.category!r} is not allowed; allowed are: {', '.join(allowed)}"
        )
    return rules_transitions.check_size("schema", item.request.schema_)


async def register(tx: Transaction, item: JobToRegister) -> tuple[JobResponse, bool]:
    """Register a worker for a job. Return the job, and whether it is new or restored.

    The worker serves the version of its schema, and all others that its schema accepts. Policy fields of an
    active job that differ are updated, and recorded in the audit trail. Raises `WorkerNotFound` for a worker
    that is unknown or not the caller's, `SchemaConflict` as `_set_schema`, and `Conflict` if the room has too
    many jobs.
    """
    caller, room_id, request = item.caller, item.room_id, item.request
    # The worker is locked before the job, but a problem of the job is raised first.
    name = JobName(room_id, request.category, request.name)
    worker_id = None if room_id == INTERNAL else await _worker(tx, caller, request, name)
    saved = await _save(tx, item, JobPolicy(), worker_id)
    job, served = saved.job, saved.served
    if room_id != INTERNAL:
        if worker_id is None:
            raise WorkerNotFound(f"Worker {request.worker_id} not found")
        await _link(tx, worker_id, served, saved.rows)
        await sql_jobs.record_served(tx, job, caller.id)
        # Waiting claims of the worker now include this job.
        tx.wake(worker_key(worker_id))
    response = await _response(tx, job, saved.policy)
    current = {
        "schema_": request.schema_,
        "worker_id": worker_id,
        "version": served.job_version,
        "paused": not saved.was_deleted and job.is_paused(await tx.now()),
        "unserved_since": None,
    }
    return response.model_copy(update=current), saved.is_new


async def _link(tx: Transaction, worker_id: UUID, served: JobRecord, rows: Sequence[JobRecord]) -> None:
    """Link a worker to the queues of the version of its schema and of those that this accepts.

    It is linked to those only whose requirements its labels meet, and to no other.
    """
    others = [row for row in _versions(rows) if row.id != served.id]
    are_accepted = rules_schemas.accepted(served.schema, [version.schema for version in others])
    numbers = {version.job_version for version, is_one in zip(others, are_accepted, strict=True) if is_one}
    await rules_queues.link_worker(tx, worker_id, rows, numbers | {served.job_version})


def _versions(rows: Iterable[JobRecord]) -> list[JobRecord]:
    """Return those rows of a job that are its versions, without the queues of tasks with requirements."""
    return [row for row in rows if row.requires is None]


def _rows_of(rows: Iterable[JobRecord], versions: Iterable[JobRecord]) -> list[UUID]:
    """Return the ids of versions, and of their queues among the rows of their job."""
    numbers = {version.job_version for version in versions}
    return [row.id for row in rows if version_of(row.job_version) in numbers]


async def put(tx: Transaction, item: JobToRegister) -> tuple[JobResponse, bool]:
    """Register a job without a worker, as `register`. Tasks of a new one wait, unless its policy says else.

    Without a schema, a job that exists keeps its own.

    Raises `Conflict` for a job that would be forgotten at once, and for one that the server declares.
    """
    if item.room_id == INTERNAL:
        raise Conflict(f"Jobs of {INTERNAL} are declared by the server: register a job of another room")
    request = item.request
    if "schema_" not in request.model_fields_set:
        name = JobName(item.room_id, request.category, request.name)
        await sql_jobs.lock_versions(tx, name)
        current = await sql_jobs.by_name(tx, name)
        if current is not None:
            item = item._replace(request=request.model_copy(update={"schema_": current.schema}))
    saved = await _save(tx, item, JobPolicy(without_workers=WithoutWorkers.QUEUE), None)
    job = saved.job
    await rules_audit.record(tx, item.caller, "job.put", str(job.name), item.room_id)
    await sql_jobs.lock_with_versions(tx, [job.id])
    if await sql_jobs.record_unserved(tx, [job.id]):
        raise Conflict(
            f"without_workers: no worker serves {str(job.name)!r}, so it would be forgotten at once; set it "
            "to 'queue' or 'reject'"
        )
    return await get(tx, item.room_id, job.name, cross_room=True), saved.is_new


class _Saved(NamedTuple):
    """A registered job: its current version, that of the request's schema, and the rows of all queues."""

    job: JobRecord
    served: JobRecord
    rows: Sequence[JobRecord]
    policy: JobPolicy
    is_new: bool
    was_deleted: bool


async def _save(tx: Transaction, item: JobToRegister, default: JobPolicy, worker_id: UUID | None) -> _Saved:
    """Insert, restore or update a job. Return it.

    `default` is the policy of a new job where the request names no other.
    """
    caller, room_id, request, max_jobs, add_job = item
    name = JobName(room_id, request.category, request.name)
    named = _named_policy(request)
    policy = default.model_copy(update={field: getattr(named, field) for field in named.model_fields_set})
    job, is_new, rows = await _locked(tx, item, policy)
    others = [row for row in rows if row.id != job.id]
    served, was_deleted = job, job.deleted
    if was_deleted:
        await sql_jobs.restore_with(tx, name, policy)
        job = served = await _set_current(tx, job._replace(deleted=False), others, request.schema_, worker_id)
        if (policy.requires, policy.cost) != (job.policy.requires, job.policy.cost):
            await rules_queues.relink(tx, name)
    elif not is_new:
        job, served = await _set_schema(tx, caller, job, others, request.schema_, worker_id)
        policy = await _set_policy(tx, caller, job, named)
    if is_new or was_deleted:
        await rules_limits.change(tx, [version.id for version in (job, *others)], policy.limits)
        add_job()
        if max_jobs is not None:
            await _check_room(tx, room_id, max_jobs)
    rules_answers.publish_jobs_changed(tx, room_id)
    has_others = others or (rows and job.id != rows[0].id) or _is_placed(policy, job.policy)
    rows = await sql_jobs.lock_versions(tx, name) if has_others else [job]
    return _Saved(job, served, rows, policy, is_new or was_deleted, was_deleted)


async def _locked(
    tx: Transaction, item: JobToRegister, policy: JobPolicy
) -> tuple[JobRecord, bool, list[JobRecord]]:
    """Insert the job of a registration unless it exists. Return it, whether it is new, and all its rows."""
    name = JobName(item.room_id, item.request.category, item.request.name)
    rows = await sql_jobs.lock_versions(tx, name)
    job, is_new = await sql_jobs.add_or_lock(tx, name, item.request.schema_, policy, item.caller.id)
    if not (is_new or tx.is_sqlite):
        # The statement may have waited for the commit of a queue or a version, which only the next one sees.
        rows = await sql_jobs.lock_versions(tx, name)
    return job, is_new, rows


def _is_placed(*policies: JobPolicy) -> bool:
    """Return whether a policy decides which workers can run tasks."""
    return any(policy.requires or policy.cost > 1 for policy in policies)


def _named_policy(request: JobRegisterRequest) -> JobPolicy:
    """Return the policy with the fields that a registration sets."""
    fields = request.model_fields_set & JobPolicy.model_fields.keys()
    return JobPolicy.model_validate({field: getattr(request, field) for field in fields})


async def delete(tx: Transaction, name: JobName) -> None:
    """Soft-delete a job. Raises `JobNotFound`, and `Conflict` if a worker serves it or a task is pending."""
    job = (await sql_jobs.lock_by_names(tx, [name])).get(name)
    job = _existing(job, name)
    if name.room_id == INTERNAL:
        raise Conflict(f"{str(name)!r} is declared by the server: remove it from the server's code")
    versions = await sql_jobs.versions_of(tx, [job.id])
    if await sql_jobs.has_workers(tx, versions[job.id]):
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


async def _set_schema(
    tx: Transaction,
    caller: Identity,
    job: JobRecord,
    others: Sequence[JobRecord],
    schema: dict[str, Any],
    worker_id: UUID | None,
) -> tuple[JobRecord, JobRecord]:
    """Let an active job, which is locked, take the schema of a registration.

    A schema that accepts all that the current one accepts becomes the current one, in a version of its own.
    So does any other while no other worker serves the job and no task is pending. A worker of an earlier
    version may come back, and serves that. Return the current version, and that of the schema.
    Raises `SchemaConflict` for any other schema.
    """
    if job.schema == schema:
        return job, job
    if job.room_id == INTERNAL:
        raise SchemaConflict(f"{str(job.name)!r} is declared by the server, with another schema or policy")
    if rules_schemas.are_same(job.schema, schema):
        await sql_jobs.set_schema(tx, job.id, schema, _masked_by_others(job))
        job = job._replace(schema=schema)
        return job, job
    same = (other for other in _versions(others) if rules_schemas.are_same(other.schema, schema))
    earlier, rows = next(same, None), [job, *others]
    is_growth = rules_schemas.accepts(schema, job.schema)
    if not is_growth and earlier is not None and worker_id is not None:
        # Nothing would change for other workers if none serves the current version.
        is_growth = not job.pending and not await _is_needed(tx, _rows_of(rows, [job]), worker_id)
        if not is_growth:
            return job, earlier
    if not is_growth and await _is_needed(tx, [row.id for row in rows], worker_id):
        differences = rules_schemas.differences(job.schema, schema)
        raise SchemaConflict(
            f"Schema mismatch: {str(job.name)!r} is active with another schema, and the new one does not "
            f"accept all that it accepts: see {_pointers(differences)}. Accept more, stop the other workers "
            "of the job and let its pending tasks end, or use another name",
            differences=differences,
        )
    current = await _set_current(tx, job, others, schema, worker_id)
    detail = {"version": current.job_version, "replaces": job.job_version}
    await rules_audit.record(tx, caller, "job.schema", str(job.name), job.room_id, detail)
    return current, current


def _masked_by_others(job: JobRecord) -> str | None:
    """Return what is masked in the tasks of a version of a job, and not by its schema."""
    return paths_without(job.masked, masked_paths(job.schema))


def _pointers(differences: Sequence[Mapping[str, Any]]) -> str:
    """Return where schemas differ, as a few of the pointers."""
    shown = [str(difference["pointer"])[:100] or "the whole schema" for difference in differences[:_SHOWN]]
    more = len(differences) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


async def _is_needed(tx: Transaction, ids: Sequence[UUID], worker_id: UUID | None) -> bool:
    """Return whether queues have pending tasks or other workers than this one."""
    return await sql_jobs.have_pending(tx, ids) or await sql_jobs.has_workers(tx, ids, worker_id)


async def _set_current(
    tx: Transaction,
    job: JobRecord,
    others: Sequence[JobRecord],
    schema: dict[str, Any],
    worker_id: UUID | None,
) -> JobRecord:
    """Make the version of a schema the current one. Return it. `others` are the other rows of the job."""
    rows, others = [job, *others], _versions(others)
    is_same = rules_schemas.are_same(job.schema, schema)
    for other in () if is_same else others:
        if rules_schemas.are_same(other.schema, schema):
            return await sql_jobs.make_current(tx, job, other, schema, other.job_version)
    own = _rows_of(rows, [job])
    if is_same or not any([await sql_jobs.is_used(tx, row_id, worker_id) for row_id in own]):
        for row_id in own:
            [row] = [row for row in rows if row.id == row_id]
            await sql_jobs.set_schema(tx, row_id, schema, _masked_by_others(row))
        return job._replace(schema=schema)
    number = 1 + max(version.job_version for version in (job, *others))
    if len(others) + 1 < MAX_VERSIONS:
        return await sql_jobs.add_version(tx, job, schema, number)
    for other in sorted(others, key=attrgetter("job_version")):
        # A retried task must not get to workers of another schema.
        ids = _rows_of(rows, [other])
        may_run = any([await sql_jobs.may_run(tx, row_id) for row_id in ids])
        if len(ids) == 1 and not may_run and not await _is_needed(tx, ids, None):
            return await sql_jobs.make_current(tx, job, other, schema, number)
    raise Conflict(
        f"{str(job.name)!r} has {MAX_VERSIONS} versions with workers, or with tasks that may run or be "
        "retried, which is the limit: stop workers of old versions, retarget their pending tasks, and purge "
        "those that failed or were cancelled"
    )


async def _set_policy(tx: Transaction, caller: Identity, job: JobRecord, named: JobPolicy) -> JobPolicy:
    """Give an active job, which is locked, the policy fields that are set; return its policy."""
    fields = {name: getattr(named, name) for name in named.model_fields_set}
    changed = {name: value for name, value in fields.items() if value != getattr(job.policy, name)}
    policy = job.policy.model_copy(update=changed)
    if changed:
        if job.room_id == INTERNAL:
            raise SchemaConflict(
                f"{str(job.name)!r} is declared by the server, with another schema or policy"
            )
        await sql_jobs.set_policy(tx, job.name, policy)
        detail = policy.model_dump(mode="json", include=set(changed))
        await rules_audit.record(tx, caller, "job.policy", str(job.name), job.room_id, detail)
    if changed.keys() & {"requires", "cost"}:
        await rules_queues.relink(tx, job.name, has_new_cost="cost" in changed)
    if changed.keys() & {"max_in_flight", "limits"}:
        versions = await sql_jobs.lock_versions(tx, job.name)
        if "limits" in changed:
            await rules_limits.change(tx, [version.id for version in versions], policy.limits)
        for version in versions:
            if version.pending:
                tx.wake(job_key(version.name, version.job_version), version.pending)
    return policy


async def _worker(
    tx: Transaction, caller: Identity, request: JobRegisterRequest, name: JobName
) -> UUID | None:
    if request.worker_id is None:
        return await sql_workers.add(tx, caller.id, request.max_tasks, request.worker)
    worker = (await sql_workers.lock(tx, [request.worker_id])).get(request.worker_id)
    if worker is None or worker.owner_id != caller.id:
        return None
    if request.max_tasks is not None:
        await sql_workers.set_max_tasks(tx, worker.id, request.max_tasks)
    if request.worker is not None and request.worker.labels is not None:
        await describe(tx, worker.id, request.worker, [name])
    return worker.id


async def describe(tx: Transaction, worker_id: UUID, info: WorkerInfo, names: Sequence[JobName] = ()) -> None:
    """Record what a worker, which is locked, says about itself.

    New labels or slots change which queues it serves. Then the jobs of these `names` are locked
    with its others, in one order.
    """
    labels, slots = await sql_workers.placement_of(tx, worker_id)
    has_changed = info.labels not in (None, labels) or info.slots not in (None, slots)
    await sql_workers.describe(tx, worker_id, info)
    if has_changed:
        await rules_queues.relabel(tx, worker_id, names)


async def record_unserved(tx: Transaction, job_ids: Sequence[UUID]) -> None:
    """Record that those of these jobs are without workers that have none.

    Soft-delete those that are to be forgotten and have no pending task, and notify their rooms. The caller
    has locked all their versions.
    """
    for name in await sql_jobs.record_unserved(tx, job_ids):
        rules_answers.publish_jobs_changed(tx, name.room_id)


async def restore_needed(tx: Transaction, moved: Iterable[TaskRecord]) -> None:
    """Restore soft-deleted jobs whose tasks were requeued, and notify their rooms.

    Call it after the tasks were moved: that locks the jobs, so that none is deleted meanwhile.
    """
    needed = sorted({task.job_id for task in moved if task.status == TaskStatus.PENDING})
    if needed:
        await restore(tx, needed)


async def restore(tx: Transaction, job_ids: Sequence[UUID]) -> None:
    """Restore those of these jobs that are soft-deleted, which the caller has locked; notify their rooms."""
    for room_id in await sql_jobs.restore(tx, job_ids):
        rules_answers.publish_jobs_changed(tx, room_id)


async def pending_in_rooms(tx: Transaction, room_ids: Sequence[str]) -> list[str]:
    """Return the names of queues that contain tasks of these rooms."""
    return await sql_room_queues.jobs_queued_in(tx, room_ids)


async def get(tx: Transaction, room_id: str, name: JobName, *, cross_room: bool) -> JobResponse:
    """Return an active job. Raises `JobNotFound`, also for a job of another room."""
    rules_transitions.check_room(name, room_id, cross_room=cross_room)
    job = _existing(await sql_jobs.by_name(tx, name), name)
    return await _response(tx, job, job.policy)


async def pause(
    tx: Transaction, name: JobName, *, paused: bool, until: datetime | None = None
) -> JobResponse:
    """Pause the claims of a job until a time, or resume them. Raises `JobNotFound`."""
    versions = await sql_jobs.pause(tx, name, paused=paused, until=until)
    job = _existing(next((version for version in versions if not version.superseded), None), name)
    for version in versions if not paused else ():
        wake_resumed(tx, name.room_id, queue_name(name, version.job_version), version.pending)
    rules_answers.publish_jobs_changed(tx, name.room_id)
    return await _response(tx, job, job.policy)


def wake_resumed(tx: Transaction, room_id: str, queue: str, pending: int) -> None:
    """Wake claims for the tasks in a queue of a job that is resumed; `room_id` is that of the job."""
    if pending or room_id == INTERNAL:
        # Tasks of an internal job may wait although its queue is empty: they were claimed at their submit.
        tx.wake(job_key(queue), pending or 1)


async def ids_of(tx: Transaction, room_id: str, name: JobName, *, cross_room: bool) -> list[UUID]:
    """Return the ids of a job's versions, also if it is soft-deleted: its tasks stay readable.

    Raises `JobNotFound`.
    """
    rules_transitions.check_room(name, room_id, cross_room=cross_room)
    versions = await sql_jobs.versions(tx, name)
    _existing(next(iter(versions), None), name)
    return [version.id for version in versions]


async def page(tx: Transaction, room_id: str, part: Page) -> PaginatedResponse[JobSummary]:
    """Return one page of the jobs that a room lists."""
    jobs, total = await sql_jobs.page(tx, room_id, part)
    ids_of = await sql_jobs.versions_of(tx, [job.id for job in jobs]) if jobs else {}
    served_by = await sql_workers.serving(tx, [id_ for ids in ids_of.values() for id_ in ids]) if jobs else {}
    paused = {job.id for job in jobs if job.paused and job.is_paused(await tx.now())}
    items = [
        JobSummary(
            full_name=str(job.name),
            category=job.category,
            name=job.short_name,
            workers=sorted({worker for id_ in ids_of[job.id] for worker in served_by[id_]}),
            paused=job.id in paused,
            paused_until=job.paused_until if job.id in paused else None,
            unserved_since=job.unserved_since,
        )
        for job in jobs
    ]
    return rules_answers.page_response(PaginatedResponse[JobSummary], items, total, part)


def _existing(job: JobRecord | None, name: JobName) -> JobRecord:
    if job is None:
        raise JobNotFound(f"Job {str(name)!r} not found")
    return job


async def _response(tx: Transaction, job: JobRecord, policy: JobPolicy) -> JobResponse:
    versions, now = await sql_jobs.versions(tx, job.name), await tx.now()
    served_by = await sql_workers.serving(tx, [version.id for version in versions])
    return JobResponse(
        id=job.stable_id,
        full_name=str(job.name),
        schema_=job.schema,
        workers=sorted({worker for version in versions for worker in served_by[version.id]}),
        paused=job.is_paused(now),
        paused_until=job.paused_until if job.is_paused(now) else None,
        unserved_since=job.unserved_since,
        version=job.job_version,
        versions=rules_answers.job_versions(
            versions, {version_id: len(workers) for version_id, workers in served_by.items()}
        ),
        **job.name._asdict(),
        **dict(policy),
    )
