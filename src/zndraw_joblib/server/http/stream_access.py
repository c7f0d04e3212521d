"""Access to event streams: by the caller of a request, or the owner of a stream token in the query."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, NamedTuple
from uuid import UUID

from fastapi import Depends, Header, Query, Request
from starlette.requests import HTTPConnection

from zndraw_joblib.contract.problems import InvalidRequest, Unauthorized
from zndraw_joblib.server.http.callers import current_identity
from zndraw_joblib.server.http.dependencies import check_task_readable
from zndraw_joblib.server.http.guards import verify_readable_room
from zndraw_joblib.server.http.headers import header_values
from zndraw_joblib.server.http.host_dependencies import fresh_copy
from zndraw_joblib.server.http.parameters import Omissible
from zndraw_joblib.server.http.routing import QUERY_TOKEN, RESOLVERS
from zndraw_joblib.server.http.state import queue_state
from zndraw_joblib.server.ports import Identity
from zndraw_joblib.server.problem_responses import as_problem
from zndraw_joblib.server.service import stream_tokens

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


def stream_name(request: HTTPConnection) -> str:
    """Return the name of the stream in a request's path, to which a token is bound."""
    path = request.path_params
    return f"room:{path['room_id']}" if "room_id" in path else f"task:{_task_id(request)}"


def _task_id(request: HTTPConnection) -> UUID:
    given = request.path_params["task_id"]
    try:
        return UUID(given)
    except ValueError as error:
        raise InvalidRequest(f"path.task_id: {given[:100]!r} is not a UUID") from error


async def resolve_access(request: Request) -> StreamAccess:
    """Return the stream of a request that its caller may read. Raises problems otherwise."""
    queue = queue_state(request)
    token = request.scope.get(QUERY_TOKEN)
    task_id = None if "room_id" in request.path_params else _task_id(request)
    if token is not None:
        read = queue.runtime.database.read_short
        owner = await read(stream_tokens.verify, stream_name(request), token)
        is_valid = partial(queue.is_valid, owner.caller, owner.issued_at)
        if not await is_valid():
            raise Unauthorized("The caller of the stream token has no access any more")
        return StreamAccess(owner.caller, owner.room_id, task_id, is_valid, owner.seconds)
    caller = await current_identity(request)
    # The room of a task does not change, so the checks while the stream is open read no task.
    task_room = None if task_id is None else (await queue.runtime.get_task(task_id)).room_id

    async def readable_room(request: Request) -> str:
        if task_id is None or task_room is None:
            return await queue.guards.room(request, verify_readable_room)
        await check_task_readable(request, caller, task_id, task_room)
        return task_room

    room_id = await readable_room(request)

    async def is_allowed() -> bool:
        copy = fresh_copy(request)
        try:
            return await current_identity(copy) == caller and await readable_room(copy) == room_id
        except Exception as error:
            if as_problem(error).problem.status < 500:
                return False
            raise

    return StreamAccess(caller, room_id, task_id, is_allowed)


def _position(request: Request) -> int | None:
    """Return the position after which a client continues: a reconnect is newer than the URL."""
    given = [("header.Last-Event-ID", value) for value in header_values(request, b"last-event-id")]
    given += [("query.after", value) for value in request.query_params.getlist("after")[:1]]
    for name, value in given:
        if value:
            if not (value.isascii() and value.isdigit() and len(value) <= 16 and int(value) <= _MAX_POSITION):
                raise InvalidRequest(f"{name}: it must be the id of an event, not {value[:40]!r}")
            return int(value)
    return None


def _wants_stream(request: Request) -> bool:
    return any("text/event-stream" in accepted.lower() for accepted in header_values(request, b"accept"))


async def _declare_task(
    task_id: UUID,
    token: Annotated[Omissible[str], Query(description="A token of `/tasks/{task_id}/events/token`")] = None,
) -> None:
    """Declare the parameters; `RESOLVERS` has their function."""


async def _declare_room(
    room_id: str,
    token: Annotated[Omissible[str], Query(description="A token of `/rooms/{room_id}/events/token`")] = None,
) -> None:
    """Declare the parameters; `RESOLVERS` has their function."""


async def _declare_position(
    after: Annotated[
        Omissible[Annotated[int, Query(ge=0)]], Query(description="Continue after the event with this id")
    ] = None,
    last_event_id: Annotated[
        Omissible[int],
        Header(
            alias="Last-Event-ID",
            description="The same, as browsers send it when they reconnect; it takes precedence over `after`",
        ),
    ] = None,
) -> None:
    """Declare the parameters; `RESOLVERS` has their function."""


async def _declare_stream() -> None:
    """Declare nothing: OpenAPI ignores the header `Accept` as a parameter. `RESOLVERS` has its function."""


RESOLVERS |= {
    _declare_task: resolve_access,
    _declare_room: resolve_access,
    _declare_position: _position,
    _declare_stream: _wants_stream,
}
TaskAccess = Annotated[StreamAccess, Depends(_declare_task)]
RoomAccess = Annotated[StreamAccess, Depends(_declare_room)]
Position = Annotated[int | None, Depends(_declare_position)]
WantsStream = Annotated[bool, Depends(_declare_stream)]
