"""Workers: W1-W5 of the contract, and taking one job off a worker."""

from functools import partial
from uuid import UUID

from fastapi import APIRouter, Response

from zndraw_joblib.contract.messages import HeartbeatRequest, PaginatedResponse, WorkerResponse, WorkerSummary
from zndraw_joblib.server.http.dependencies import (
    Caller,
    CurrentRuntime,
    NamedJob,
    Paging,
    ReadableRoom,
    answer,
)
from zndraw_joblib.server.http.routing import Route
from zndraw_joblib.server.service import workers

router = APIRouter(route_class=Route)


@router.post("/workers", status_code=201, response_model=WorkerResponse)
async def create_worker(runtime: CurrentRuntime, caller: Caller) -> Response:
    """Make a worker that belongs to the caller. It lives as long as it reports."""
    interval = runtime.settings.heartbeat_seconds
    return answer(await runtime.write(workers.create, caller=caller, interval=interval), 201)


@router.get("/workers", response_model=PaginatedResponse[WorkerSummary])
async def list_workers(runtime: CurrentRuntime, caller: Caller, page: Paging) -> Response:
    """List all workers, newest first."""
    return answer(await runtime.database.read(workers.page, room_id=None, part=page))


@router.patch("/workers/{worker_id}", response_model=WorkerResponse)
async def beat(
    runtime: CurrentRuntime, caller: Caller, worker_id: UUID, body: HeartbeatRequest | None = None
) -> Response:
    """Show that a worker lives, and learn what became of the tasks that it names; for its owner alone."""
    body = body or HeartbeatRequest()
    return answer(await runtime.beat(caller, worker_id, body.tasks, body.max_tasks))


@router.post("/workers/{worker_id}/drain", response_model=WorkerResponse)
async def drain_worker(runtime: CurrentRuntime, caller: Caller, worker_id: UUID) -> Response:
    """Ask a worker to claim no more, to finish what it runs, and to leave; for its owner and superusers."""
    interval = runtime.settings.heartbeat_seconds
    work = partial(workers.drain, caller=caller, worker_id=worker_id, interval=interval)
    return answer(await runtime.write(work))


@router.delete("/workers/{worker_id}", status_code=204)
async def remove_worker(runtime: CurrentRuntime, caller: Caller, worker_id: UUID) -> Response:
    """Remove a worker: what it holds fails, jobs that nobody serves any more are hidden."""
    await runtime.write(workers.remove, caller=caller, worker_id=worker_id)
    return Response(status_code=204)


@router.delete("/workers/{worker_id}/jobs/{name:path}", status_code=204)
async def remove_job_from_worker(
    runtime: CurrentRuntime, caller: Caller, worker_id: UUID, name: NamedJob
) -> Response:
    """Take one job off a worker. What it holds of that job goes on."""
    await runtime.write(workers.unlink_job, caller=caller, worker_id=worker_id, name=name)
    return Response(status_code=204)


@router.get("/rooms/{room_id}/workers", response_model=PaginatedResponse[WorkerSummary])
async def list_room_workers(
    runtime: CurrentRuntime, caller: Caller, room_id: ReadableRoom, page: Paging
) -> Response:
    """List the workers that serve a job which the room sees."""
    return answer(await runtime.database.read(workers.page, room_id=room_id, part=page))
