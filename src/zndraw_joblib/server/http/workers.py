"""Endpoints of workers."""

from uuid import UUID

from fastapi import Request, Response

from zndraw_joblib.server.admin import rules_lists
from zndraw_joblib.server.http.dependencies import (
    Caller,
    CurrentRuntime,
    Key,
    NamedJob,
    Paging,
    Queue,
    Room,
    json_response,
)
from zndraw_joblib.server.http.routing import Operations
from zndraw_joblib.server.process.ports import Identity, Page
from zndraw_joblib.server.queue import rules_workers
from zndraw_joblib.server.queue.rules_idempotency import NOTHING, WORKER, once
from zndraw_joblib.server.runtime.runtime import Runtime
from zndraw_joblib.wire import operations as table
from zndraw_joblib.wire.messages import HeartbeatRequest, WorkerInfo

operations = Operations()


@operations.serve(table.CREATE_WORKER)
async def create_worker(
    runtime: CurrentRuntime, caller: Caller, key: Key, body: WorkerInfo | None = None
) -> Response:
    """Create a worker that belongs to the caller. It must send heartbeats."""
    interval = runtime.settings.heartbeat_seconds
    create = once(key, WORKER, rules_workers.create)
    worker = await runtime.write(create, caller=caller, interval=interval, info=body)
    return json_response(worker, 201)


@operations.serve(table.LIST_WORKERS)
async def list_workers(runtime: CurrentRuntime, caller: Caller, page: Paging) -> Response:
    """List all workers, newest first."""
    return await _page(runtime, caller, None, page)


@operations.serve(table.GET_WORKER)
async def get_worker(runtime: CurrentRuntime, caller: Caller, worker_id: UUID) -> Response:
    """Return a worker with its current tasks. Its owner or a superuser may do so."""
    interval = runtime.settings.heartbeat_seconds
    return json_response(await runtime.database.read(rules_lists.get_worker, caller, worker_id, interval))


@operations.serve(table.SEND_HEARTBEAT)
async def send_heartbeat(
    request: Request, queue: Queue, caller: Caller, worker_id: UUID, body: HeartbeatRequest | None = None
) -> Response:
    """Record a worker's heartbeat; return a verdict on each task that it names. Only its owner may do so.

    Tasks of jobs in rooms to which the owner may not write any more are lost.
    """
    runtime = queue.runtime
    body = body or HeartbeatRequest()
    # Without the field, the heartbeat omits no task; an empty list means that the worker holds none.
    named = body.tasks if "tasks" in body.model_fields_set else None
    task_ids = [task.id for task in named or ()]
    refused = await queue.worker_rooms.refused_tasks(request, caller, worker_id, task_ids)
    response = await runtime.heartbeat(caller, worker_id, named, body.max_tasks, refused)
    if body.worker is not None:
        await runtime.write_short(rules_workers.describe, worker_id, body.worker)
    return json_response(response)


@operations.serve(table.DRAIN_WORKER)
async def drain_worker(runtime: CurrentRuntime, caller: Caller, worker_id: UUID, key: Key) -> Response:
    """Ask a worker to stop claiming, finish its tasks and leave. Its owner or a superuser may do so."""
    interval = runtime.settings.heartbeat_seconds
    worker = await runtime.write(once(key, WORKER, rules_workers.drain), caller, worker_id, interval)
    return json_response(worker)


@operations.serve(table.REMOVE_WORKER)
async def remove_worker(runtime: CurrentRuntime, caller: Caller, worker_id: UUID, key: Key) -> Response:
    """Remove a worker: its tasks follow their retry policy; jobs without workers are soft-deleted."""
    await runtime.write(once(key, NOTHING, rules_workers.remove), caller=caller, worker_id=worker_id)
    return Response(status_code=204)


@operations.serve(table.REMOVE_JOB_FROM_WORKER)
async def remove_job_from_worker(
    runtime: CurrentRuntime, caller: Caller, worker_id: UUID, name: NamedJob, key: Key
) -> Response:
    """Remove one job from a worker. Its tasks of that job continue."""
    await runtime.write(
        once(key, NOTHING, rules_workers.unlink_job), caller=caller, worker_id=worker_id, name=name
    )
    return Response(status_code=204)


@operations.serve(table.LIST_ROOM_WORKERS)
async def list_room_workers(runtime: CurrentRuntime, caller: Caller, room_id: Room, page: Paging) -> Response:
    """List the workers of the jobs that are visible in a room."""
    return await _page(runtime, caller, room_id, page)


async def _page(runtime: Runtime, caller: Identity, room_id: str | None, part: Page) -> Response:
    interval = runtime.settings.heartbeat_seconds
    return json_response(
        await runtime.database.read(rules_lists.list_workers, caller, room_id, part, interval)
    )
