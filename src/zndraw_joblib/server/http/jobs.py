"""Jobs: J1-J4 of the contract."""

from functools import partial

from fastapi import APIRouter, Response

from zndraw_joblib.contract.messages import (
    JobRegisterRequest,
    JobResponse,
    JobSummary,
    PaginatedResponse,
    TaskResponse,
)
from zndraw_joblib.contract.names import JobName
from zndraw_joblib.contract.status import TaskStatus
from zndraw_joblib.server.http.dependencies import (
    Caller,
    CurrentRuntime,
    NamedJob,
    Paging,
    ReadableRoom,
    Superuser,
    WritableRoom,
    answer,
)
from zndraw_joblib.server.http.routing import Route
from zndraw_joblib.server.runtime import Runtime
from zndraw_joblib.server.service import jobs, rules, tasks

router = APIRouter(route_class=Route)


@router.put(
    "/rooms/{room_id}/jobs",
    status_code=201,
    response_model=JobResponse,
    responses={200: {"model": JobResponse, "description": "The job was active already"}},
)
async def register_job(
    runtime: CurrentRuntime, caller: Caller, room_id: WritableRoom, body: JobRegisterRequest
) -> Response:
    """Register a job and let a worker serve it. In reserved rooms for superusers alone."""
    item = jobs.Registration(caller, room_id, body)
    jobs.check(item, runtime.settings.allowed_categories)
    job, is_new = await runtime.write(jobs.register, item=item)
    return answer(job, 201 if is_new else 200)


@router.get("/rooms/{room_id}/jobs", response_model=PaginatedResponse[JobSummary])
async def list_jobs(runtime: CurrentRuntime, caller: Caller, room_id: ReadableRoom, page: Paging) -> Response:
    """List the jobs that a room sees: its own and those of the reserved rooms."""
    return answer(await runtime.database.read(jobs.page, room_id=room_id, part=page))


@router.get("/rooms/{room_id}/jobs/{name:path}/tasks", response_model=PaginatedResponse[TaskResponse])
async def list_job_tasks(
    runtime: CurrentRuntime,
    caller: Caller,
    room_id: ReadableRoom,
    name: NamedJob,
    page: Paging,
    status: TaskStatus | None = None,
) -> Response:
    """List a room's tasks of one job, newest first, also where the job is not active any more."""
    cross_room = runtime.settings.cross_room_jobs
    find = partial(jobs.id_of, room_id=room_id, name=name, cross_room=cross_room)
    job_id = await runtime.database.read(find)
    work = partial(tasks.page, room_id=room_id, status=status, part=page, job=job_id)
    return answer(await runtime.database.read(work))


@router.post("/rooms/{room_id}/jobs/{name:path}/pause", response_model=JobResponse)
async def pause_job(
    runtime: CurrentRuntime, caller: Superuser, room_id: WritableRoom, name: NamedJob
) -> Response:
    """Let no more tasks of a job be claimed. What is under way goes on; for superusers."""
    return await _pause(runtime, room_id, name, paused=True)


@router.post("/rooms/{room_id}/jobs/{name:path}/resume", response_model=JobResponse)
async def resume_job(
    runtime: CurrentRuntime, caller: Superuser, room_id: WritableRoom, name: NamedJob
) -> Response:
    """Let tasks of a paused job be claimed again; for superusers."""
    return await _pause(runtime, room_id, name, paused=False)


async def _pause(runtime: Runtime, room_id: str, name: JobName, *, paused: bool) -> Response:
    rules.check_room(name, room_id, cross_room=runtime.settings.cross_room_jobs)
    return answer(await runtime.write(jobs.pause, name=name, paused=paused))


@router.get("/rooms/{room_id}/jobs/{name:path}", response_model=JobResponse)
async def get_job(runtime: CurrentRuntime, caller: Caller, room_id: ReadableRoom, name: NamedJob) -> Response:
    """Show an active job."""
    cross_room = runtime.settings.cross_room_jobs
    work = partial(jobs.get, room_id=room_id, name=name, cross_room=cross_room)
    return answer(await runtime.database.read(work))
