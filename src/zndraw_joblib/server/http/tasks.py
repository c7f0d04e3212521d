"""Tasks: T1-T5 of the contract."""

from functools import partial
from math import ceil
from uuid import UUID

from fastapi import APIRouter, Request, Response

from zndraw_joblib.contract.messages import (
    PaginatedResponse,
    TaskClaimRequest,
    TaskClaimResponse,
    TaskResponse,
    TaskSubmitRequest,
    TaskUpdateRequest,
)
from zndraw_joblib.contract.status import TERMINAL, TaskStatus
from zndraw_joblib.server.http.deps import (
    Caller,
    CurrentRuntime,
    Hangup,
    NamedJob,
    Paging,
    ReadableRoom,
    Wait,
    WritableRoom,
    answer,
    check_readable,
)
from zndraw_joblib.server.http.routing import Route
from zndraw_joblib.server.service import rules, tasks

router = APIRouter(route_class=Route)


@router.post("/rooms/{room_id}/tasks/{name:path}", status_code=202, response_model=TaskResponse)
async def submit_task(
    runtime: CurrentRuntime, caller: Caller, room_id: WritableRoom, name: NamedJob, body: TaskSubmitRequest
) -> Response:
    """Call a job. The payload must fit the job's schema."""
    rules.check_size("payload", body.payload)
    task = await runtime.submit(caller, room_id, name, body.payload)
    headers = {"Location": f"/v1/joblib/tasks/{task.id}", "Retry-After": "1"}
    return answer(task, 202, headers)


@router.post("/tasks/claim", response_model=TaskClaimResponse)
async def claim_task(
    request: Request, runtime: CurrentRuntime, caller: Caller, body: TaskClaimRequest, wait: Wait
) -> Response:
    """Claim the oldest pending task of the worker's jobs; with ``Prefer: wait=N``, wait for one."""
    wait = min(wait, runtime.settings.long_poll_max_wait_seconds)
    if wait <= 0:
        return answer(TaskClaimResponse(task=await runtime.claim(caller, body.worker_id)))
    async with Hangup(request) as hangup:
        task = await runtime.claim(caller, body.worker_id, wait, hangup.gone)
    return answer(TaskClaimResponse(task=task), headers={"Preference-Applied": f"wait={ceil(wait)}"})


@router.get("/tasks/{task_id}", response_model=TaskResponse)
async def get_task(
    request: Request, runtime: CurrentRuntime, caller: Caller, task_id: UUID, wait: Wait
) -> Response:
    """Show a task; with ``Prefer: wait=N``, wait for its end."""
    task = await runtime.get_task(task_id)
    await check_readable(request, task.room_id)
    wait = min(wait, runtime.settings.long_poll_max_wait_seconds)
    if wait <= 0 or task.status in TERMINAL:
        return answer(task)
    async with Hangup(request) as hangup:
        task = await runtime.get_task(task_id, wait, hangup.gone)
    return answer(task, headers={"Preference-Applied": f"wait={ceil(wait)}"})


@router.patch("/tasks/{task_id}", response_model=TaskResponse)
async def update_task(
    runtime: CurrentRuntime, caller: Caller, task_id: UUID, body: TaskUpdateRequest
) -> Response:
    """Report on a task, or cancel it. A repeat of one's own report changes nothing."""
    rules.check_size("result", body.result)
    return answer(await runtime.report(caller, task_id, body))


@router.get("/rooms/{room_id}/tasks", response_model=PaginatedResponse[TaskResponse])
async def list_tasks(
    runtime: CurrentRuntime,
    caller: Caller,
    room_id: ReadableRoom,
    page: Paging,
    status: TaskStatus | None = None,
) -> Response:
    """List a room's tasks, newest first."""
    work = partial(tasks.page, room_id=room_id, status=status, part=page)
    return answer(await runtime.database.read(work))
