"""Endpoints of event streams: of a task, and of a room."""

import time
from math import ceil
from typing import Any
from uuid import UUID

from fastapi import APIRouter, Request, Response
from pydantic_core import to_json

from zndraw_joblib.contract.problems import Unauthorized
from zndraw_joblib.contract.streams import RoomEvents, StreamToken, TaskEvents
from zndraw_joblib.server.http.dependencies import (
    Caller,
    CurrentRuntime,
    DisconnectWatcher,
    JsonResponse,
    Queue,
    ReadableRoom,
    Wait,
    check_task_readable,
    json_response,
)
from zndraw_joblib.server.http.event_stream import EventStream, Subscription
from zndraw_joblib.server.http.parameters import event_stream
from zndraw_joblib.server.http.routing import Route
from zndraw_joblib.server.http.state import QueueState
from zndraw_joblib.server.http.stream_access import (
    Position,
    RoomAccess,
    StreamAccess,
    TaskAccess,
    WantsStream,
    stream_name,
)
from zndraw_joblib.server.service import stream_tokens
from zndraw_joblib.server.service.streams import Part

router = APIRouter(route_class=Route, tags=["events"])
_EVENTS = (
    "Server-Sent Events. `snapshot`: {}, first, and after a `resync`. `status`, `progress`, `log`, `result`: "
    "a `StreamEvent`, its number is the id. `resync`: a `Resync`, events are missing.{} "
    "A comment every 15 s keeps the connection open."
)


def _responses(snapshot: str, end: str) -> dict[int | str, dict[str, Any]]:
    description = "The stream, or with `Accept: application/json` the events so far"
    return {200: {"description": description, "content": event_stream(_EVENTS.format(snapshot, end))}}


_TASK_STREAM = _responses("the `TaskResponse`", " `end`: the task has ended, and the stream closes.")
_ROOM_STREAM = _responses("a `RoomSnapshot`", "")


@router.get("/tasks/{task_id}/events", response_model=TaskEvents, responses=_TASK_STREAM)
async def follow_task(
    request: Request, queue: Queue, access: TaskAccess, after: Position, is_stream: WantsStream, wait: Wait
) -> Response:
    """Return a task and what happens to it: a stream with ``Accept: text/event-stream``, else JSON.

    As JSON it is what has happened since ``after``; with ``Prefer: wait=N``, wait for the next event.
    """
    return await _respond(request, queue, access, after, wait, is_stream=is_stream)


@router.get("/rooms/{room_id}/events", response_model=RoomEvents, responses=_ROOM_STREAM)
async def follow_room(
    request: Request, queue: Queue, access: RoomAccess, after: Position, is_stream: WantsStream, wait: Wait
) -> Response:
    """Return the newest tasks of a room and what happens to its tasks, as the events of a task."""
    return await _respond(request, queue, access, after, wait, is_stream=is_stream)


@router.post("/tasks/{task_id}/events/token", status_code=201, response_model=StreamToken)
async def create_task_stream_token(
    request: Request, runtime: CurrentRuntime, caller: Caller, task_id: UUID
) -> Response:
    """Return a token that reads the events of a task for some minutes, as ``?token=…`` in its URL."""
    room_id = (await runtime.get_task(task_id)).room_id
    await check_task_readable(request, caller, task_id, room_id)
    token = await runtime.write_short(stream_tokens.issue, stream_name(request), caller, room_id)
    return json_response(token, 201)


@router.post("/rooms/{room_id}/events/token", status_code=201, response_model=StreamToken)
async def create_room_stream_token(
    request: Request, runtime: CurrentRuntime, caller: Caller, room_id: ReadableRoom
) -> Response:
    """Return a token that reads the events of a room for some minutes, as ``?token=…`` in its URL."""
    token = await runtime.write_short(stream_tokens.issue, stream_name(request), caller, room_id)
    return json_response(token, 201)


async def _respond(
    request: Request,
    queue: QueueState,
    access: StreamAccess,
    after: int | None,
    wait: float,
    *,
    is_stream: bool,
) -> Response:
    settings = queue.runtime.settings
    if is_stream:
        wanted = Subscription(
            *(access.caller, access.room_id, access.task_id, after, access.is_allowed, access.max_seconds)
        )
        return EventStream(queue.streams, wanted, settings.stream_send_timeout_seconds, queue.prefix)
    wait = min(wait, settings.long_poll_max_wait_seconds)
    headers = {"Preference-Applied": f"wait={ceil(wait)}"} if wait > 0 else None
    return JsonResponse(_json(await _next_part(request, queue, access, after, wait)), 200, headers)


async def _next_part(
    request: Request, queue: QueueState, access: StreamAccess, after: int | None, wait: float
) -> Part:
    deadline = time.monotonic() + wait
    async with queue.streams.reader(access.caller, access.room_id, access.task_id) as reader:
        part = await queue.streams.read(reader, access.room_id, after)
        if _is_news(part) or wait <= 0:
            return part
        async with DisconnectWatcher(request) as watcher:
            if watcher.disconnected is not None:
                watcher.disconnected.add_done_callback(reader.close)
            while not (_is_news(part) or reader.is_closed) and (left := deadline - time.monotonic()) > 0:
                await reader.wait(left)
                part = await queue.streams.read(reader, access.room_id, part.next)
        if not await access.is_allowed():
            raise Unauthorized("The caller's access has ended while the request waited")
    return part


def _is_news(part: Part) -> bool:
    return bool(part.events) or part.ended or part.snapshot is not None


def _json(part: Part) -> bytes:
    """Return a part as JSON, with the events as they are."""
    fields = {"resync": part.resync, "snapshot": part.snapshot}
    head = "".join(
        f'"{name}":{to_json(value).decode()},' for name, value in fields.items() if value is not None
    )
    events = ",".join(item.json for item in part.events)
    ended = "true" if part.ended else "false"
    return f'{{{head}"events":[{events}],"next":{part.next},"ended":{ended}}}'.encode()
