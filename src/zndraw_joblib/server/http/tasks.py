"""Tasks: T1-T5 of the contract."""

from functools import partial
from math import ceil
from uuid import UUID

from fastapi import APIRouter, Request, Response

from zndraw_joblib.contract.messages import (
    EmptyReason,
    PaginatedResponse,
    TaskActionRequest,
    TaskClaimRequest,
    TaskClaimResponse,
    TaskExplanation,
    TaskHistory,
    TaskResponse,
    TaskSubmitRequest,
    TaskUpdateRequest,
)
from zndraw_joblib.contract.status import TERMINAL, TaskStatus
from zndraw_joblib.server.http.dependencies import (
    Caller,
    CurrentRuntime,
    DisconnectWatcher,
    NamedJob,
    Paging,
    ReadableRoom,
    Wait,
    WritableRoom,
    answer,
    check_readable,
)
from zndraw_joblib.server.http.routing import Route
from zndraw_joblib.server.ports import Identity
from zndraw_joblib.server.runtime import Runtime
from zndraw_joblib.server.service import rules, task_actions, tasks

router = APIRouter(route_class=Route)


@router.post("/rooms/{room_id}/tasks/{name:path}", status_code=202, response_model=TaskResponse)
async def submit_task(
    runtime: CurrentRuntime, caller: Caller, room_id: WritableRoom, name: NamedJob, body: TaskSubmitRequest
) -> Response:
    """Call a job. The payload must fit the job's schema."""
    rules.check_size("payload", body.payload)
    task = await runtime.submit(caller, room_id, name, body)
    headers = {"Location": f"/v1/joblib/tasks/{task.id}", "Retry-After": "1"}
    return answer(task, 202, headers)


@router.post("/tasks/claim", response_model=TaskClaimResponse)
async def claim_task(
    request: Request, runtime: CurrentRuntime, caller: Caller, body: TaskClaimRequest, wait: Wait
) -> Response:
    """Claim the oldest pending task of the worker's jobs; with ``Prefer: wait=N``, wait for one."""
    wait = min(wait, runtime.settings.long_poll_max_wait_seconds)
    headers = {}
    if wait <= 0:
        got = await runtime.claim(caller, body.worker_id, claim_id=body.claim_id)
    else:
        async with DisconnectWatcher(request) as watcher:
            got = await runtime.claim(caller, body.worker_id, wait, watcher.gone, body.claim_id)
        headers["Preference-Applied"] = f"wait={ceil(wait)}"
    if got.reason not in {None, EmptyReason.EMPTY}:
        headers["Retry-After"] = "1"
    return answer(got, headers=headers)


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
    async with DisconnectWatcher(request) as watcher:
        task = await runtime.get_task(task_id, wait, watcher.gone)
    return answer(task, headers={"Preference-Applied": f"wait={ceil(wait)}"})


@router.get("/tasks/{task_id}/history", response_model=TaskHistory)
async def get_history(request: Request, runtime: CurrentRuntime, caller: Caller, task_id: UUID) -> Response:
    """List all that has happened to a task, oldest first."""
    await _check_readable(request, runtime, task_id)
    return answer(await runtime.database.read(task_actions.history, task_id=task_id))


@router.get("/tasks/{task_id}/explain", response_model=TaskExplanation)
async def explain_task(request: Request, runtime: CurrentRuntime, caller: Caller, task_id: UUID) -> Response:
    """Tell why a task waits, or what holds it."""
    await _check_readable(request, runtime, task_id)
    work = partial(task_actions.explain, task_id=task_id, order=runtime.order)
    return answer(await runtime.database.read(work))


async def _check_readable(request: Request, runtime: Runtime, task_id: UUID) -> None:
    await check_readable(request, (await runtime.get_task(task_id)).room_id)


@router.post("/tasks/{task_id}/release", response_model=TaskResponse)
async def release_task(
    runtime: CurrentRuntime, caller: Caller, task_id: UUID, body: TaskActionRequest | None = None
) -> Response:
    """Hand a held task back to its queue; for its worker and superusers. That counts as no failure."""
    return await _act(runtime, caller, task_id, body, task_actions.release)


@router.post("/tasks/{task_id}/retry", response_model=TaskResponse)
async def retry_task(
    runtime: CurrentRuntime, caller: Caller, task_id: UUID, body: TaskActionRequest | None = None
) -> Response:
    """Put a task that failed or was cancelled into its queue again; for its submitter and superusers."""
    return await _act(runtime, caller, task_id, body, task_actions.retry)


@router.post("/tasks/{task_id}/fail", response_model=TaskResponse)
async def fail_task(
    runtime: CurrentRuntime, caller: Caller, task_id: UUID, body: TaskActionRequest | None = None
) -> Response:
    """End a task that has not ended, whoever holds it; for superusers."""
    return await _act(runtime, caller, task_id, body, task_actions.fail)


async def _act(
    runtime: Runtime,
    caller: Identity,
    task_id: UUID,
    body: TaskActionRequest | None,
    work: task_actions.TaskAction,
) -> Response:
    act = partial(work, caller=caller, task_id=task_id, action=body or TaskActionRequest())
    return answer(await runtime.write(act))


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
