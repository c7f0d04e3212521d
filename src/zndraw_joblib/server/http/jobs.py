"""Endpoints of jobs."""

from fastapi import Response

from zndraw_joblib.server.http.dependencies import (
    Caller,
    CurrentRuntime,
    Key,
    NamedJob,
    Paging,
    Room,
    json_response,
)
from zndraw_joblib.server.http.requests import Omissible
from zndraw_joblib.server.http.routing import Operations
from zndraw_joblib.server.process.ports import Identity, RequestKey
from zndraw_joblib.server.queue import rules_audit, rules_jobs, rules_tasks, rules_transitions
from zndraw_joblib.server.queue.rules_idempotency import Answers, answers_of, once
from zndraw_joblib.server.runtime.runtime import Runtime
from zndraw_joblib.wire import operations as table
from zndraw_joblib.wire.messages import JobRegisterRequest, JobResponse
from zndraw_joblib.wire.names import JobName
from zndraw_joblib.wire.statuses import TaskStatus

operations = Operations()

_JOB: Answers[JobResponse] = answers_of(JobResponse)
_REGISTERED: Answers[tuple[JobResponse, bool]] = answers_of(tuple[JobResponse, bool])


@operations.serve(
    table.REGISTER_JOB, responses={200: {"model": JobResponse, "description": "The job was active already"}}
)
async def register_job(
    runtime: CurrentRuntime, caller: Caller, room_id: Room, body: JobRegisterRequest, key: Key
) -> Response:
    """Register a job and the worker that serves it. Only superusers may do so in reserved rooms."""
    item = rules_jobs.Registration(caller, room_id, body, runtime.settings.max_jobs_per_room)
    schema = rules_jobs.check(item, runtime.settings.allowed_categories)
    await runtime.payload_validator.check_schema(schema, caller.id)
    job, is_new = await runtime.write(once(key, _REGISTERED, rules_jobs.register), item=item)
    return json_response(job, 201 if is_new else 200)


@operations.serve(table.LIST_JOBS)
async def list_jobs(runtime: CurrentRuntime, caller: Caller, room_id: Room, page: Paging) -> Response:
    """List the jobs that are visible in a room: its own and those of the reserved rooms."""
    return json_response(await runtime.database.read(rules_jobs.page, room_id=room_id, part=page))


@operations.serve(table.LIST_JOB_TASKS)
async def list_job_tasks(
    runtime: CurrentRuntime,
    caller: Caller,
    room_id: Room,
    name: NamedJob,
    page: Paging,
    status: Omissible[TaskStatus] = None,
) -> Response:
    """List a room's tasks of one job, newest first, also of a soft-deleted job."""
    cross_room = runtime.settings.cross_room_jobs
    job_id = await runtime.database.read(rules_jobs.id_of, room_id, name, cross_room=cross_room)
    return json_response(
        await runtime.database.read(rules_tasks.page, room_id, status, part=page, job=job_id)
    )


@operations.serve(table.PAUSE_JOB)
async def pause_job(
    runtime: CurrentRuntime, caller: Caller, room_id: Room, name: NamedJob, key: Key
) -> Response:
    """Stop claims of a job. Claimed and running tasks continue. Superusers only."""
    return await _pause(runtime, caller, room_id, name, key, paused=True)


@operations.serve(table.RESUME_JOB)
async def resume_job(
    runtime: CurrentRuntime, caller: Caller, room_id: Room, name: NamedJob, key: Key
) -> Response:
    """Allow claims of a paused job again. Superusers only."""
    return await _pause(runtime, caller, room_id, name, key, paused=False)


async def _pause(
    runtime: Runtime, caller: Identity, room_id: str, name: JobName, key: RequestKey | None, *, paused: bool
) -> Response:
    rules_transitions.check_room(name, room_id, cross_room=runtime.settings.cross_room_jobs)
    action = "job.pause" if paused else "job.resume"
    work = rules_audit.recorded(rules_jobs.pause, caller, action, str(name), name.room_id)
    job = await runtime.write(once(key, _JOB, work), name=name, paused=paused)
    return json_response(job)


@operations.serve(table.GET_JOB)
async def get_job(runtime: CurrentRuntime, caller: Caller, room_id: Room, name: NamedJob) -> Response:
    """Return an active job."""
    cross_room = runtime.settings.cross_room_jobs
    return json_response(await runtime.database.read(rules_jobs.get, room_id, name, cross_room=cross_room))
