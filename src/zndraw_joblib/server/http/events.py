"""Operations of event streams: of a task, and of a room, as Server-Sent Events or as JSON."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from math import ceil
from typing import Annotated, Any, NamedTuple
from uuid import UUID

from fastapi import Header, Query, Request, Response
from pydantic_core import to_json
from starlette.requests import HTTPConnection
from starlette.types import Receive, Scope, Send

from zndraw_joblib.server.http.access import (
    QueueState,
    check_group_room,
    check_task_readable,
    current_identity,
    guarded_room,
    permitted_caller,
    queue_state,
    verify_readable_room,
)
from zndraw_joblib.server.http.middleware import abort
from zndraw_joblib.server.http.requests import (
    QUERY_TOKEN,
    DisconnectWatcher,
    Omissible,
    event_stream,
    fresh_copy,
    header_values,
)
from zndraw_joblib.server.http.routing import JsonResponse, Parameter, Wait, json_response, serves
from zndraw_joblib.server.process.ports import Identity
from zndraw_joblib.server.process.waiters import Expired, in_time
from zndraw_joblib.server.queue import rules_groups, rules_tokens
from zndraw_joblib.server.queue.rules_room_events import Part
from zndraw_joblib.server.realtime.streams import KEEPALIVE_COMMENT, Reader, format_sse_event, item_as_sse
from zndraw_joblib.server.runtime.problem_responses import as_problem, problem_response
from zndraw_joblib.server.runtime.runtime import Runtime
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.problems import InvalidRequest, Unauthorized

_MAX_POSITION = 2**53


class StreamAccess(NamedTuple):
    """The stream that a request names, and its caller.

    `is_allowed` checks again that the caller may read it. A stream opened with a token ends after
    `max_seconds`.
    """

    caller: Identity
    room_id: str
    task_id: UUID | None
    is_allowed: Callable[[], Awaitable[bool]]
    max_seconds: float | None = None
    group_id: UUID | None = None


def stream_name(request: HTTPConnection) -> str:
    """Return the name of the stream in a request's path, to which a token is bound."""
    path = request.path_params
    if "room_id" in path:
        return f"room:{path['room_id']}"
    kind = "task" if "task_id" in path else "group"
    return f"{kind}:{_id(request, kind)}"


def _id(request: HTTPConnection, kind: str) -> UUID | None:
    """Return the id of the task or the group in a request's path; None without one."""
    if f"{kind}_id" not in request.path_params:
        return None
    text = request.path_params[f"{kind}_id"]
    try:
        return UUID(text)
    except ValueError as error:
        raise InvalidRequest(f"path.{kind}_id: {text[:100]!r} is not a UUID") from error


async def resolve_access(request: Request) -> StreamAccess:
    """Return the stream of a request that its caller may read. Raises problems otherwise."""
    queue = queue_state(request)
    token = request.scope.get(QUERY_TOKEN)
    task_id, group_id = _id(request, "task"), _id(request, "group")
    if token is not None:
        read = queue.runtime.database.read_short
        owner = await read(rules_tokens.verify_stream_token, stream_name(request), token)
        find_reader = partial(queue.find_reader, owner.caller, owner.issued_at, owner.room_id)
        reader = await find_reader()
        if reader is None:
            raise Unauthorized("The caller of the stream token no longer has access")

        async def is_valid() -> bool:
            return await find_reader() is not None

        return StreamAccess(reader, owner.room_id, task_id, is_valid, owner.seconds, group_id)
    of_task = ops.FOLLOW_ROOM if task_id is None else ops.FOLLOW_TASK
    caller = await permitted_caller(request, of_task if group_id is None else ops.FOLLOW_GROUP)
    # The room of a task or a group does not change, so the checks while the stream is open do not read it.
    own_room = await _own_room(queue.runtime, task_id, group_id)
    room_id = await _readable_room(request, caller, task_id, own_room)

    async def is_allowed() -> bool:
        copy = fresh_copy(request)
        try:
            is_same = await current_identity(copy) == caller
            return is_same and await _readable_room(copy, caller, task_id, own_room) == room_id
        except Exception as error:
            if as_problem(error).problem.status < 500:
                return False
            raise

    return StreamAccess(caller, room_id, task_id, is_allowed, group_id=group_id)


async def _readable_room(
    request: Request, caller: Identity, task_id: UUID | None, own_room: str | None
) -> str:
    """Return the room of a stream after the host's guard has passed: that of its task or group, if any."""
    if own_room is None:
        return await guarded_room(request, verify_readable_room)
    if task_id is None:
        group_id = _id(request, "group")
        assert group_id is not None  # noqa: S101 - only tasks and groups have a room of their own
        await check_group_room(request, group_id, own_room)
    else:
        await check_task_readable(request, caller, task_id, own_room)
    return own_room


async def _own_room(runtime: Runtime, task_id: UUID | None, group_id: UUID | None) -> str | None:
    """Return the room of a task or a group; None without one. Raises `TaskNotFound` and `GroupNotFound`."""
    if task_id is not None:
        return (await runtime.get_task(task_id, with_position=False)).room_id
    if group_id is not None:
        return (await runtime.database.read_short(rules_groups.record, group_id)).room_id
    return None


def _position(request: Request) -> int | None:
    """Return the position after which a client continues: a reconnect is newer than the URL."""
    values = [("header.Last-Event-ID", value) for value in header_values(request, b"last-event-id")]
    values += [("query.after", value) for value in request.query_params.getlist("after")[:1]]
    for name, value in values:
        if value:
            if not (value.isascii() and value.isdigit() and len(value) <= 16 and int(value) <= _MAX_POSITION):
                raise InvalidRequest(f"{name}: it must be the id of an event, not {value[:40]!r}")
            return int(value)
    return None


def _wants_stream(request: Request) -> bool:
    return any("text/event-stream" in accepted.lower() for accepted in header_values(request, b"accept"))


_TASK_TOKEN = Query(description=f"A token of `{ops.CREATE_TASK_STREAM_TOKEN.template}`")
_ROOM_TOKEN = Query(description=f"A token of `{ops.CREATE_ROOM_STREAM_TOKEN.template}`")
_GROUP_TOKEN = Query(description=f"A token of `{ops.CREATE_GROUP_STREAM_TOKEN.template}`")
_AFTER = Annotated[
    Omissible[Annotated[int, Query(ge=0)]], Query(description="Continue after the event with this id")
]
_LAST_EVENT_ID = Annotated[
    Omissible[int],
    Header(
        alias="Last-Event-ID",
        description="The same, as browsers send it when they reconnect; it takes precedence over `after`",
    ),
]
TaskAccess = Annotated[
    StreamAccess,
    Parameter(
        resolve_access,
        checks_access=True,
        task_id=(UUID,),
        token=(Annotated[Omissible[str], _TASK_TOKEN], None),
    ),
]
RoomAccess = Annotated[
    StreamAccess,
    Parameter(
        resolve_access,
        checks_access=True,
        room_id=(str,),
        token=(Annotated[Omissible[str], _ROOM_TOKEN], None),
    ),
]
GroupAccess = Annotated[
    StreamAccess,
    Parameter(
        resolve_access,
        checks_access=True,
        group_id=(UUID,),
        token=(Annotated[Omissible[str], _GROUP_TOKEN], None),
    ),
]
Position = Annotated[
    int | None, Parameter(_position, after=(_AFTER, None), last_event_id=(_LAST_EVENT_ID, None))
]
# OpenAPI ignores the header `Accept` as a parameter.
WantsStream = Annotated[bool, Parameter(_wants_stream)]


# The response that sends the events of a room or of a task as they happen: Server-Sent Events.

logger = logging.getLogger(__name__)

# An idle stream of the token of a task is checked as often, so that it ends soon after the task.
_TASK_CHECK_SECONDS = 3.0
# Clients that lost the connection connect again after this time.
_RETRY = format_sse_event(retry=1000)


class Subscription(NamedTuple):
    """What a client wants to read: the events of a room or of one task, from a position on.

    `is_allowed` checks again that the caller may read them; the stream ends after `max_seconds`.
    """

    caller: Identity
    room_id: str
    task_id: UUID | None
    after: int | None
    is_allowed: Callable[[], Awaitable[bool]]
    max_seconds: float | None


class _ClientStopped(Exception):
    """The client takes no bytes."""


class EventStream(Response):
    """Sends a snapshot, or what follows the client's position, and then each new event.

    A client that does not take bytes for `stream_send_timeout_seconds` is cut off. It may connect again, and
    continues after the last event that it got.
    """

    def __init__(self, queue: QueueState, subscription: Subscription) -> None:
        self._queue = queue
        self.status_code, self.background = 200, None
        self.raw_headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),
        ]
        self._own_headers = len(self.raw_headers)
        self._streams = queue.streams
        self._subscription = subscription
        self._send_seconds = queue.runtime.settings.stream_send_timeout_seconds
        self._has_started = False
        self.idle_seconds = queue.keep_alive_seconds
        if subscription.caller.task is not None:
            self.idle_seconds = min(self.idle_seconds, _TASK_CHECK_SECONDS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream until the task ends, the client disconnects or the server stops."""
        try:
            await self._serve(receive, send)
        except _ClientStopped:
            await self._cut_off(scope, send)
        except Exception as error:
            if not self._has_started:
                problem = problem_response(as_problem(error), self._queue.prefix)
                # Those that were added to this response, such as a request id.
                problem.raw_headers += self.raw_headers[self._own_headers :]
                await problem(scope, receive, send)
                return
            logger.warning("Closed an event stream; its client may connect again: %r", error)
            with suppress(_ClientStopped):
                await self._send(send, b"", more_body=False)
        if self.background is not None:
            await self.background()

    async def _serve(self, receive: Receive, send: Send) -> None:
        subscription = self._subscription
        async with self._streams.reader(
            subscription.caller, subscription.room_id, subscription.task_id
        ) as reader:
            disconnect = asyncio.ensure_future(wait_for_disconnect(receive))
            disconnect.add_done_callback(reader.close)
            try:
                await self._stream(reader, send)
                if not disconnect.done():
                    await self._send(send, b"", more_body=False)
            finally:
                disconnect.cancel()

    async def _cut_off(self, scope: Scope, send: Send) -> None:
        logger.info(
            "Cut off a client that did not read its event stream for %g s (stream_send_timeout_seconds): "
            "user=%s room=%s",
            *(self._send_seconds, self._subscription.caller.id, self._subscription.room_id),
        )
        abort(scope, send)
        # Then uvicorn knows that the connection is lost, and logs no incomplete response.
        await asyncio.sleep(0)

    async def _stream(self, reader: Reader, send: Send) -> None:
        text, is_over = await self._read(reader, self._subscription.after)
        await self._start(send)
        opened = checked = time.monotonic()
        while True:
            if text:
                now = time.monotonic()
                if now >= checked + self._queue.trusted_seconds:
                    checked = now
                    if not await self.may_continue(now - opened):
                        return
                await self._send(send, text)
            text = b""  # an idle stream keeps no snapshot in memory
            if is_over or reader.is_closed:
                return
            text, is_over = await self._next(reader)

    async def may_continue(self, seconds: float) -> bool:
        """Return whether the caller may read on, `seconds` after the stream was opened."""
        limit = self._subscription.max_seconds
        return (limit is None or seconds < limit) and await self._subscription.is_allowed()

    async def _next(self, reader: Reader) -> tuple[bytes, bool]:
        """Return what to send next, and whether it is the end of the stream."""
        if not reader.has_new:
            await reader.wait(self.idle_seconds)
            return (b"" if reader.has_new or reader.is_closed else KEEPALIVE_COMMENT), False
        entries = reader.take()
        if entries is None:
            return await self._read(reader, reader.position)
        is_end = reader.task_id is not None and bool(entries) and entries[-1].is_end
        end = [_end(reader.position)] if is_end else []
        return b"".join([*(entry.sse for entry in entries), *end]), is_end

    async def _read(self, reader: Reader, after: int | None) -> tuple[bytes, bool]:
        return _sent(reader, await self._streams.read(reader, self._subscription.room_id, after))

    async def _start(self, send: Send) -> None:
        self._has_started = True
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await self._send(send, _RETRY)

    async def _send(self, send: Send, body: bytes, *, more_body: bool = True) -> None:
        until = asyncio.get_running_loop().time() + self._send_seconds
        try:
            await in_time(send({"type": "http.response.body", "body": body, "more_body": more_body}), until)
        except Expired:
            raise _ClientStopped from None


def _sent(reader: Reader, part: Part) -> tuple[bytes, bool]:
    """Return what a client gets of a part from the database, and whether it is the end of the stream."""
    if not part.is_last:
        reader.must_read()
    texts = []
    if part.resync is not None:
        texts.append(format_sse_event(event="resync", data_str=part.resync.model_dump_json()))
    if part.snapshot is not None:
        data = to_json(part.snapshot).decode()
        texts.append(format_sse_event(event="snapshot", data_str=data, id=str(part.next)))
    texts += map(item_as_sse, part.events)
    if part.ended:
        texts.append(_end(part.next))
    return b"".join(texts), part.ended


def _end(position: int) -> bytes:
    return format_sse_event(event="end", data_str=f'{{"next":{position}}}', id=str(position))


async def wait_for_disconnect(receive: Receive) -> None:
    """Wait until the client has disconnected."""
    with suppress(asyncio.CancelledError):
        while (await receive())["type"] != "http.disconnect":
            pass


# Endpoints of event streams: of a task, and of a room.

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


@serves(ops.FOLLOW_TASK, responses=_TASK_STREAM)
async def follow_task(
    request: Request,
    queue: QueueState,
    access: TaskAccess,
    after: Position,
    is_stream: WantsStream,
    wait: Wait,
) -> Response:
    """Return a task and what happens to it: a stream with ``Accept: text/event-stream``, else JSON.

    As JSON it is what has happened since ``after``; with ``Prefer: wait=N``, wait for the next event.
    """
    return await _respond(request, queue, access, after, wait, is_stream=is_stream)


@serves(ops.FOLLOW_ROOM, responses=_ROOM_STREAM)
async def follow_room(
    request: Request,
    queue: QueueState,
    access: RoomAccess,
    after: Position,
    is_stream: WantsStream,
    wait: Wait,
) -> Response:
    """Return the newest tasks of a room and what happens to its tasks, as the events of a task."""
    return await _respond(request, queue, access, after, wait, is_stream=is_stream)


@serves(ops.CREATE_TASK_STREAM_TOKEN)
async def create_task_stream_token(
    request: Request, runtime: Runtime, caller: Identity, task_id: UUID
) -> Response:
    """Return a token that reads the events of a task for some minutes, as ``?token=…`` in its URL."""
    room_id = (await runtime.get_task(task_id, with_position=False)).room_id
    await check_task_readable(request, caller, task_id, room_id)
    token = await runtime.write_short(rules_tokens.issue_stream_token, stream_name(request), caller, room_id)
    return json_response(token, 201)


@serves(ops.CREATE_GROUP_STREAM_TOKEN)
async def create_group_stream_token(
    request: Request, runtime: Runtime, caller: Identity, group_id: UUID
) -> Response:
    """Return a token that reads the events of a group for some minutes, as ``?token=…`` in its URL."""
    room_id = (await runtime.database.read_short(rules_groups.record, group_id)).room_id
    await check_group_room(request, group_id, room_id)
    token = await runtime.write_short(rules_tokens.issue_stream_token, stream_name(request), caller, room_id)
    return json_response(token, 201)


@serves(ops.CREATE_ROOM_STREAM_TOKEN)
async def create_room_stream_token(
    request: Request, runtime: Runtime, caller: Identity, room_id: str
) -> Response:
    """Return a token that reads the events of a room for some minutes, as ``?token=…`` in its URL."""
    token = await runtime.write_short(rules_tokens.issue_stream_token, stream_name(request), caller, room_id)
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
        subscription = Subscription(
            *(access.caller, access.room_id, access.task_id, after, access.is_allowed, access.max_seconds)
        )
        return EventStream(queue, subscription)
    wait = min(wait, settings.long_poll_max_wait_seconds)
    headers = {"Preference-Applied": f"wait={ceil(wait)}"} if wait > 0 else None
    return JsonResponse(_json(await _next_part(request, queue, access, after, wait)), 200, headers)


async def _next_part(
    request: Request, queue: QueueState, access: StreamAccess, after: int | None, wait: float
) -> Part:
    time = queue.runtime.waiters.time
    deadline = time() + wait
    async with queue.streams.reader(access.caller, access.room_id, access.task_id) as reader:
        part = await queue.streams.read(reader, access.room_id, after)
        if _is_news(part) or wait <= 0:
            return part
        async with DisconnectWatcher(request) as watcher:
            if watcher.disconnected is not None:
                watcher.disconnected.add_done_callback(reader.close)
            while not (_is_news(part) or reader.is_closed) and (seconds := deadline - time()) > 0:
                await reader.wait(seconds)
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
