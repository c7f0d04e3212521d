"""Operations of jobs, of their limits, of pauses and of workers."""

from datetime import datetime
from functools import partial
from typing import Annotated
from uuid import UUID

from fastapi import Query, Request, Response

from zndraw_joblib.server.admin import rules_lists
from zndraw_joblib.server.http.access import QueueState, check_job, check_operates_job
from zndraw_joblib.server.http.requests import Omissible
from zndraw_joblib.server.http.routing import NamedJob, Paging, json_response, serves
from zndraw_joblib.server.http.schedules import checked_schedule
from zndraw_joblib.server.http.worker_tokens import with_labels
from zndraw_joblib.server.process.ports import Identity, Page, RequestKey
from zndraw_joblib.server.queue import (
    rules_audit,
    rules_jobs,
    rules_limits,
    rules_pauses,
    rules_schedules,
    rules_tasks,
    rules_transitions,
    rules_workers,
)
from zndraw_joblib.server.queue.rules_idempotency import NOTHING, WORKER, Answers, answers_of, once
from zndraw_joblib.server.runtime.runtime import Runtime
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.bodies import Tag
from zndraw_joblib.wire.messages import (
    HeartbeatRequest,
    JobPutRequest,
    JobRegisterRequest,
    JobResponse,
    WorkerInfo,
)
from zndraw_joblib.wire.names import JobName
from zndraw_joblib.wire.operators import LimitEntry, PauseRequest, PauseState
from zndraw_joblib.wire.policy import LimitName, LimitValues
from zndraw_joblib.wire.problems import InvalidRequest
from zndraw_joblib.wire.statuses import TaskStatus

_JOB: Answers[JobResponse] = answers_of(JobResponse)
_LIMIT: Answers[tuple[LimitEntry, bool]] = answers_of(tuple[LimitEntry, bool])
_PAUSE: Answers[PauseState] = answers_of(PauseState)
_REGISTERED: Answers[tuple[JobResponse, bool]] = answers_of(tuple[JobResponse, bool])


@serves(
    ops.REGISTER_JOB, responses={200: {"model": JobResponse, "description": "The job was active already"}}
)
async def register_job(
    runtime: Runtime, caller: Identity, room_id: str, body: JobRegisterRequest, key: RequestKey | None
) -> Response:
    """Register a job and the worker that serves it.

    In ``@global`` only superusers may do so, and workers of a role with this room.
    """
    check_job(caller, JobName(room_id, body.category, body.name))
    item, schema = await _checked_item(runtime, caller, room_id, body)
    schedule = None
    if body.schedule is not None:
        name = JobName(room_id, body.category, body.name)
        schedule = rules_schedules.NewSchedule(caller, room_id, body.name, name, body.schedule)
        try:
            schedule = await checked_schedule(runtime, schedule, schema)
        except InvalidRequest as problem:
            errors = (problem.problem.model_extra or {}).get("errors")
            raise InvalidRequest(f"schedule of job {str(name)!r}: {problem}", errors=errors) from problem
    if body.worker_id is None or body.worker is not None:
        body.worker = with_labels(caller, body.worker)
    if body.worker_id is None:
        await runtime.stored.take(runtime.stored.workers, caller.id, [key])
    await runtime.stored.jobs.prepare(caller.id)
    job, is_new = await runtime.write(once(key, _REGISTERED, rules_schedules.register_job), item, schedule)
    return json_response(job, 201 if is_new else 200)


@serves(
    ops.PUT_JOB,
    responses={201: {"model": JobResponse, "description": "The job is new, or was soft-deleted before"}},
)
async def put_job(
    runtime: Runtime,
    caller: Identity,
    room_id: str,
    name: NamedJob,
    body: JobPutRequest,
    key: RequestKey | None,
) -> Response:
    """Register a job without a worker, or change its schema and policy. Superusers only.

    Its schema changes only while no worker serves it and no task of it is pending.
    """
    check_operates_job(caller, name)
    check_job(caller, name)
    rules_transitions.check_room(name, room_id, cross_room=runtime.settings.cross_room_jobs)
    item = await job_to_put(runtime, caller, name, body)
    job, is_new = await runtime.write(once(key, _REGISTERED, rules_jobs.put), item=item)
    return json_response(job, 201 if is_new else 200)


async def job_to_put(
    runtime: Runtime, caller: Identity, name: JobName, body: JobPutRequest
) -> rules_jobs.JobToRegister:
    """Return the registration of a job without a worker. Raises the problem of an invalid one."""
    fields = {field: getattr(body, field) for field in body.model_fields_set}
    request = JobRegisterRequest(category=name.category, name=name.name, **fields)
    item, _ = await _checked_item(runtime, caller, name.room_id, request)
    await runtime.stored.jobs.prepare(caller.id)
    return item


async def _checked_item(
    runtime: Runtime, caller: Identity, room_id: str, body: JobRegisterRequest
) -> tuple[rules_jobs.JobToRegister, str]:
    """Return a registration and its schema as JSON. Raises the problem of an invalid one."""
    add_job = partial(runtime.stored.jobs.check, caller.id)
    item = rules_jobs.JobToRegister(caller, room_id, body, runtime.settings.max_jobs_per_room, add_job)
    schema = rules_jobs.check(item, runtime.settings.allowed_categories)
    await runtime.payload_validator.check_schema(schema, caller.id)
    return item, schema


@serves(ops.DELETE_JOB)
async def delete_job(
    runtime: Runtime, caller: Identity, room_id: str, name: NamedJob, key: RequestKey | None
) -> Response:
    """Forget a job that no worker serves and of which no task is pending. Superusers only.

    Its tasks stay readable, and a registration restores it.
    """
    check_operates_job(caller, name)
    rules_transitions.check_room(name, room_id, cross_room=runtime.settings.cross_room_jobs)
    work = rules_audit.recorded(rules_jobs.delete, caller, "job.delete", str(name), name.room_id)
    await runtime.write(once(key, NOTHING, work), name=name)
    return Response(status_code=204)


@serves(ops.LIST_JOBS)
async def list_jobs(runtime: Runtime, caller: Identity, room_id: str, page: Paging) -> Response:
    """List the jobs that are visible in a room: its own and those of the reserved rooms."""
    return json_response(await runtime.database.read(rules_jobs.page, room_id=room_id, part=page))


@serves(ops.LIST_JOB_TASKS)
async def list_job_tasks(  # noqa: PLR0913 - one parameter each
    runtime: Runtime,
    caller: Identity,
    room_id: str,
    name: NamedJob,
    page: Paging,
    status: Omissible[TaskStatus] = None,
    *,
    tag: Omissible[Annotated[Tag, Query(description="A tag of the tasks.")]] = None,
) -> Response:
    """List a room's tasks of one job, newest first, also of a soft-deleted job.

    With `tag`, the newest 10,000 tasks of the room with this tag are looked at.
    """
    cross_room = runtime.settings.cross_room_jobs
    jobs = await runtime.database.read(rules_jobs.ids_of, room_id, name, cross_room=cross_room)
    read = partial(rules_tasks.page, room_id=room_id, status=status, part=page, jobs=jobs, tag=tag)
    return json_response(await runtime.database.read(read))


@serves(ops.PAUSE_JOB)
async def pause_job(
    runtime: Runtime,
    caller: Identity,
    room_id: str,
    name: NamedJob,
    key: RequestKey | None,
    body: PauseRequest | None = None,
) -> Response:
    """Stop claims of a job, with `until` for a time. Claimed and running tasks continue. Superusers only."""
    return await _pause(runtime, caller, room_id, name, key, paused=True, until=body.until if body else None)


@serves(ops.RESUME_JOB)
async def resume_job(
    runtime: Runtime, caller: Identity, room_id: str, name: NamedJob, key: RequestKey | None
) -> Response:
    """Allow claims of a paused job again. Superusers only."""
    return await _pause(runtime, caller, room_id, name, key, paused=False)


async def _pause(  # noqa: PLR0913 - the parts of the request
    runtime: Runtime,
    caller: Identity,
    room_id: str,
    name: JobName,
    key: RequestKey | None,
    *,
    paused: bool,
    until: datetime | None = None,
) -> Response:
    check_operates_job(caller, name)
    rules_transitions.check_room(name, room_id, cross_room=runtime.settings.cross_room_jobs)
    work = once(key, _JOB, rules_pauses.pause_job)
    return json_response(await runtime.write(work, caller, name, paused=paused, until=until))


# Pauses of rooms.


@serves(ops.PAUSE_ROOM)
async def pause_room(
    runtime: Runtime, caller: Identity, room_id: str, key: RequestKey | None, body: PauseRequest | None = None
) -> Response:
    """Stop claims of a room's tasks, until a time if there is one, and its schedules. Superusers only.

    Claimed and running tasks continue. What is due meanwhile follows the `catch_up` of its schedule.
    """
    work = once(key, _PAUSE, rules_pauses.pause)
    return json_response(await runtime.write(work, caller, room_id, until=body.until if body else None))


@serves(ops.RESUME_ROOM)
async def resume_room(runtime: Runtime, caller: Identity, room_id: str, key: RequestKey | None) -> Response:
    """Allow claims of a paused room's tasks again. A pause of all rooms stays. Superusers only."""
    work = once(key, _PAUSE, rules_pauses.resume)
    return json_response(await runtime.write(work, caller, room_id))


@serves(ops.PAUSE_ALL_ROOMS)
async def pause_all_rooms(
    runtime: Runtime, caller: Identity, key: RequestKey | None, body: PauseRequest | None = None
) -> Response:
    """Stop claims of all tasks, until a time if there is one, and all schedules. Superusers only.

    Claimed and running tasks continue.
    """
    work = once(key, _PAUSE, rules_pauses.pause)
    return json_response(await runtime.write(work, caller, None, until=body.until if body else None))


@serves(ops.RESUME_ALL_ROOMS)
async def resume_all_rooms(runtime: Runtime, caller: Identity, key: RequestKey | None) -> Response:
    """End the pause of all rooms. Rooms that are paused by themselves stay paused. Superusers only."""
    work = once(key, _PAUSE, rules_pauses.resume)
    return json_response(await runtime.write(work, caller, None))


@serves(ops.GET_JOB)
async def get_job(runtime: Runtime, caller: Identity, room_id: str, name: NamedJob) -> Response:
    """Return an active job."""
    cross_room = runtime.settings.cross_room_jobs
    return json_response(await runtime.database.read(rules_jobs.get, room_id, name, cross_room=cross_room))


# Workers.


@serves(ops.CREATE_WORKER)
async def create_worker(
    runtime: Runtime, caller: Identity, key: RequestKey | None, body: WorkerInfo | None = None
) -> Response:
    """Create a worker that belongs to the caller. It must send heartbeats."""
    interval = runtime.settings.heartbeat_seconds
    await runtime.stored.take(runtime.stored.workers, caller.id, [key])
    create = once(key, WORKER, rules_workers.create)
    worker = await runtime.write(create, caller=caller, interval=interval, info=with_labels(caller, body))
    return json_response(worker, 201)


@serves(ops.LIST_WORKERS)
async def list_workers(runtime: Runtime, caller: Identity, page: Paging) -> Response:
    """List all workers, newest first; for a caller with rooms those of jobs that these rooms list."""
    return await _page(runtime, caller, None, page)


@serves(ops.GET_WORKER)
async def get_worker(runtime: Runtime, caller: Identity, worker_id: UUID) -> Response:
    """Return a worker with its current tasks. Its owner or a superuser may do so."""
    interval = runtime.settings.heartbeat_seconds
    return json_response(await runtime.database.read(rules_lists.get_worker, caller, worker_id, interval))


@serves(ops.SEND_HEARTBEAT)
async def send_heartbeat(
    request: Request,
    queue: QueueState,
    caller: Identity,
    worker_id: UUID,
    body: HeartbeatRequest | None = None,
) -> Response:
    """Record a worker's heartbeat; return a verdict on each task that it names. Only its owner may do so.

    Tasks of jobs in rooms to which the owner may no longer write are lost.
    """
    runtime = queue.runtime
    body = body or HeartbeatRequest()
    # Without the field, the heartbeat omits no task; an empty list means that the worker holds none.
    named = body.tasks if "tasks" in body.model_fields_set else None
    task_ids = [task.id for task in named or ()]
    refused = await queue.worker_rooms.refused_tasks(request, caller, worker_id, task_ids)
    response = await runtime.heartbeat(caller, worker_id, named, body.max_tasks, refused)
    if body.tokens:
        await runtime.task_tokens.renew(caller, zip(body.tasks, response.tasks, strict=True))
    if (info := body.worker and with_labels(caller, body.worker)) is not None:
        await runtime.write_short(rules_workers.describe, worker_id, info)
    return json_response(response)


@serves(ops.DRAIN_WORKER)
async def drain_worker(
    runtime: Runtime, caller: Identity, worker_id: UUID, key: RequestKey | None
) -> Response:
    """Ask a worker to stop claiming, finish its tasks and leave. Its owner or a superuser may do so."""
    interval = runtime.settings.heartbeat_seconds
    worker = await runtime.write(once(key, WORKER, rules_workers.drain), caller, worker_id, interval)
    return json_response(worker)


@serves(ops.REMOVE_WORKER)
async def remove_worker(
    runtime: Runtime, caller: Identity, worker_id: UUID, key: RequestKey | None
) -> Response:
    """Remove a worker: its tasks follow their retry policy; jobs without workers are soft-deleted."""
    await runtime.write(once(key, NOTHING, rules_workers.remove), caller=caller, worker_id=worker_id)
    return Response(status_code=204)


@serves(ops.REMOVE_JOB_FROM_WORKER)
async def remove_job_from_worker(
    runtime: Runtime, caller: Identity, worker_id: UUID, name: NamedJob, key: RequestKey | None
) -> Response:
    """Remove one job from a worker. Its tasks of that job continue."""
    await runtime.write(
        once(key, NOTHING, rules_workers.unlink_job), caller=caller, worker_id=worker_id, name=name
    )
    return Response(status_code=204)


@serves(ops.LIST_ROOM_WORKERS)
async def list_room_workers(runtime: Runtime, caller: Identity, room_id: str, page: Paging) -> Response:
    """List the workers of the jobs that are visible in a room."""
    return await _page(runtime, caller, room_id, page)


async def _page(runtime: Runtime, caller: Identity, room_id: str | None, part: Page) -> Response:
    interval = runtime.settings.heartbeat_seconds
    return json_response(
        await runtime.database.read(rules_lists.list_workers, caller, room_id, part, interval)
    )


# Limits that jobs share.


@serves(ops.PUT_LIMIT, responses={200: {"model": LimitEntry, "description": "The limit was replaced"}})
async def put_limit(
    runtime: Runtime, caller: Identity, limit: LimitName, body: LimitValues, key: RequestKey | None
) -> Response:
    """Define a limit that jobs share by its name, for all claims from now on. Superusers only."""
    work = once(key, _LIMIT, rules_limits.put)
    entry, is_new = await runtime.write(work, caller, limit, body)
    return json_response(entry, 201 if is_new else 200)


@serves(ops.LIST_LIMITS)
async def list_limits(runtime: Runtime, caller: Identity, page: Paging) -> Response:
    """List the limits that jobs share, by name. Superusers only."""
    return json_response(await runtime.database.read(rules_limits.page, page))


@serves(ops.GET_LIMIT)
async def get_limit(runtime: Runtime, caller: Identity, limit: LimitName) -> Response:
    """Return a limit that jobs share. Superusers only."""
    return json_response(await runtime.database.read(rules_limits.get, limit))


@serves(ops.DELETE_LIMIT)
async def delete_limit(
    runtime: Runtime, caller: Identity, limit: LimitName, key: RequestKey | None
) -> Response:
    """Delete a limit that no job has. Superusers only."""
    await runtime.write(once(key, NOTHING, rules_limits.delete), caller, limit)
    return Response(status_code=204)
