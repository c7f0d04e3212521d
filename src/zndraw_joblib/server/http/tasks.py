"""Endpoints of tasks."""

from functools import partial
from math import ceil
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response

from zndraw_joblib.contract.history import TaskExplanation, TaskHistory, TaskLog
from zndraw_joblib.contract.logs import fields_here
from zndraw_joblib.contract.messages import (
    EmptyReason,
    TaskActionRequest,
    TaskClaimRequest,
    TaskClaimResponse,
    TaskResponse,
    TaskSubmitRequest,
    TaskUpdateRequest,
)
from zndraw_joblib.contract.progress import MAX_LINE_NUMBER, MAX_LOG_LINES
from zndraw_joblib.contract.status import TERMINAL, TaskStatus
from zndraw_joblib.server.http.dependencies import (
    Caller,
    CurrentRuntime,
    DisconnectWatcher,
    NamedJob,
    Paging,
    Queue,
    ReadableRoom,
    Wait,
    WritableRoom,
    access_of,
    check_task_readable,
    json_response,
)
from zndraw_joblib.server.http.guards import verify_writable_room
from zndraw_joblib.server.http.idempotency import Key, claim_id_of
from zndraw_joblib.server.http.openapi.pages import TaskPage
from zndraw_joblib.server.http.parameters import Omissible
from zndraw_joblib.server.http.routing import Route
from zndraw_joblib.server.http.traces import Traceparent, submit_span
from zndraw_joblib.server.ports import Identity, RequestKey
from zndraw_joblib.server.runtime import Runtime
from zndraw_joblib.server.service import details, rules, task_actions, task_history, tasks
from zndraw_joblib.server.service.idempotency import TASK, once

router = APIRouter(route_class=Route, tags=["tasks"])

Number = Annotated[int, Query(ge=0, le=MAX_LINE_NUMBER)]


@router.post("/rooms/{room_id}/tasks/{name:path}", status_code=202, response_model=TaskResponse)
async def submit_task(  # noqa: PLR0913 - one parameter each
    request: Request,
    queue: Queue,
    caller: Caller,
    room_id: WritableRoom,
    name: NamedJob,
    *,
    body: TaskSubmitRequest,
    key: Key,
    traceparent: Traceparent,
) -> Response:
    """Submit a task of a job. The payload must fit the job's schema."""
    rules.check_size("payload", body.payload)
    with submit_span(request, traceparent, name) as kept:
        item = queue.dispatcher.submission(caller, room_id, name, body, key, kept)
        task = await queue.dispatcher.submit(item)
    headers = {"Location": f"{queue.prefix}/v1/joblib/tasks/{task.id}", "Retry-After": "1"}
    return json_response(task, 202, headers)


@router.post("/tasks/claim", response_model=TaskClaimResponse)
async def claim_task(
    request: Request, queue: Queue, caller: Caller, body: TaskClaimRequest, wait: Wait, key: Key
) -> Response:
    """Claim the oldest pending tasks of the worker's jobs; with ``Prefer: wait=N``, wait for the first.

    Jobs of rooms to which the caller may not write any more are left out; if no others are left, the response
    is the refusal of the room.
    """
    runtime = queue.runtime
    refused_rooms = partial(queue.worker_rooms.refused_jobs, request, caller, body.worker_id)
    access = access_of(request, caller, refused_rooms=refused_rooms)
    wait = min(wait, runtime.settings.long_poll_max_wait_seconds)
    headers = {}
    body.claim_id = claim_id_of(body.claim_id, key)
    if wait <= 0:
        got = await runtime.claim(caller, body, access=access)
    else:
        async with DisconnectWatcher(request) as watcher:
            got = await runtime.claim(caller, body, wait, watcher.disconnected, access)
        headers["Preference-Applied"] = f"wait={ceil(wait)}"
    if got.reason not in {None, EmptyReason.EMPTY}:
        headers["Retry-After"] = "1"
    return json_response(got, headers=headers, exclude={"tasks" if body.max is None else "task"})


@router.get("/tasks/{task_id}", response_model=TaskResponse)
async def get_task(
    request: Request, runtime: CurrentRuntime, caller: Caller, task_id: UUID, wait: Wait
) -> Response:
    """Return a task; with ``Prefer: wait=N``, wait for its end."""
    task = await runtime.get_task(task_id)
    await check_task_readable(request, caller, task_id, task.room_id)
    wait = min(wait, runtime.settings.long_poll_max_wait_seconds)
    if wait <= 0 or task.status in TERMINAL:
        return json_response(task)

    async def recheck(copy: Request) -> None:
        await check_task_readable(copy, caller, task_id, task.room_id)

    access = access_of(request, caller, recheck)
    async with DisconnectWatcher(request) as watcher:
        task = await runtime.get_task(task_id, wait, watcher.disconnected, access)
    return json_response(task, headers={"Preference-Applied": f"wait={ceil(wait)}"})


@router.get("/tasks/{task_id}/history", response_model=TaskHistory)
async def get_task_history(
    request: Request, runtime: CurrentRuntime, caller: Caller, task_id: UUID
) -> Response:
    """List all transitions of a task, and the details of its last 20 attempts, oldest first."""
    await _check_readable(request, runtime, caller, task_id)
    return json_response(await runtime.database.read(task_history.history, task_id=task_id))


@router.get("/tasks/{task_id}/log", response_model=TaskLog)
async def get_task_log(  # noqa: PLR0913 - one parameter each
    request: Request,
    runtime: CurrentRuntime,
    caller: Caller,
    task_id: UUID,
    *,
    attempt: Omissible[Number] = None,
    after: Number = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_LOG_LINES)] = MAX_LOG_LINES,
) -> Response:
    """Return lines of the log of an attempt, by default the current or last one, oldest first.

    The lines after the number `after`: at most `limit`, and about 1 MiB.
    """
    await _check_readable(request, runtime, caller, task_id)
    return json_response(await runtime.database.read(details.log, task_id, attempt, after, limit))


@router.get("/tasks/{task_id}/explain", response_model=TaskExplanation)
async def explain_task(request: Request, runtime: CurrentRuntime, caller: Caller, task_id: UUID) -> Response:
    """Explain why a task is pending, or which worker holds it; the most important reason first."""
    await _check_readable(request, runtime, caller, task_id)
    return json_response(await runtime.database.read(task_history.explain, task_id, runtime.order))


async def _check_readable(request: Request, runtime: Runtime, caller: Identity, task_id: UUID) -> None:
    await check_task_readable(request, caller, task_id, (await runtime.get_task(task_id)).room_id)


@router.post("/tasks/{task_id}/release", response_model=TaskResponse)
async def release_task(
    runtime: CurrentRuntime, caller: Caller, task_id: UUID, key: Key, body: TaskActionRequest | None = None
) -> Response:
    """Put a held task back into its queue without counting a failure. Its worker or a superuser may do so."""
    return await _act(runtime, caller, task_id, body, key, task_actions.release)


@router.post("/tasks/{task_id}/retry", response_model=TaskResponse)
async def retry_task(
    request: Request,
    queue: Queue,
    caller: Caller,
    task_id: UUID,
    key: Key,
    body: TaskActionRequest | None = None,
) -> Response:
    """Put a failed or cancelled task into its queue again.

    Its submitter, who must be able to write to its room as for a submit, or a superuser may do so.
    """
    if not caller.is_superuser and queue.guards.has(request, verify_writable_room):
        room_id = (await queue.runtime.get_task(task_id)).room_id
        await queue.guards.check(request, verify_writable_room, room_id)
    return await _act(queue.runtime, caller, task_id, body, key, task_actions.retry)


@router.post("/tasks/{task_id}/fail", response_model=TaskResponse)
async def fail_task(
    runtime: CurrentRuntime, caller: Caller, task_id: UUID, key: Key, body: TaskActionRequest | None = None
) -> Response:
    """Fail a task that has not ended, also while a worker holds it. Superusers only."""
    return await _act(runtime, caller, task_id, body, key, task_actions.fail)


async def _act(
    runtime: Runtime,
    caller: Identity,
    task_id: UUID,
    body: TaskActionRequest | None,
    key: RequestKey | None,
    work: task_actions.TaskAction,
) -> Response:
    task = await runtime.write(once(key, TASK, work), caller, task_id, body or TaskActionRequest())
    return json_response(task)


@router.patch("/tasks/{task_id}", response_model=TaskResponse)
async def update_task(
    request: Request, queue: Queue, caller: Caller, task_id: UUID, body: TaskUpdateRequest, key: Key
) -> Response:
    """Report on a task, or cancel it. A repeated report changes nothing."""
    rules.check_size("result", body.result)
    # The batch of reports knows no request.
    request_id = fields_here.get().get("request_id")
    report = tasks.Report(caller, task_id, body, key, request_id=request_id)
    refusals = await queue.worker_rooms.refused_reports(request, caller, [report])
    if refusals:
        raise refusals[task_id]
    return json_response(await queue.runtime.report(report))


@router.get("/rooms/{room_id}/tasks", response_model=TaskPage)
async def list_tasks(
    runtime: CurrentRuntime,
    caller: Caller,
    room_id: ReadableRoom,
    page: Paging,
    status: Omissible[TaskStatus] = None,
) -> Response:
    """List a room's tasks, newest first."""
    return json_response(await runtime.database.read(tasks.page, room_id=room_id, status=status, part=page))
