"""Endpoints that search tasks across rooms, and count them."""

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import ValidationError

from zndraw_joblib.contract.messages import Moment
from zndraw_joblib.contract.names import RESERVED
from zndraw_joblib.contract.problems import Forbidden
from zndraw_joblib.contract.searches import FoundTasks, Name, Names, StatusCounts, TaskFilter, Text
from zndraw_joblib.contract.status import TaskStatus
from zndraw_joblib.server.http.dependencies import Caller, CurrentRuntime, CursorPaging, json_response
from zndraw_joblib.server.http.guards import Guard, verify_readable_room
from zndraw_joblib.server.http.parameters import Omissible
from zndraw_joblib.server.http.routing import RESOLVERS, Route
from zndraw_joblib.server.http.state import queue_state
from zndraw_joblib.server.ports import Identity
from zndraw_joblib.server.problem_responses import invalid_part
from zndraw_joblib.server.service import searches

router = APIRouter(route_class=Route, tags=["tasks"])

_LISTS = ("status", "job", "room", "error_code")
_VALUES = ("worker", "created_by", "text", "since", "until")


async def _task_filter(  # noqa: PLR0913 - one parameter each
    *,
    status: Annotated[list[TaskStatus], Query()] = [],  # noqa: B006 - declarations
    job: Annotated[Names, Query(description="Full names of jobs.")] = [],  # noqa: B006
    room: Annotated[Names, Query()] = [],  # noqa: B006
    worker: Annotated[Omissible[UUID], Query(description="The current or last worker.")] = None,
    created_by: Annotated[Omissible[Name], Query()] = None,
    error_code: Annotated[Names, Query()] = [],  # noqa: B006
    text: Annotated[
        Omissible[Text], Query(description="Part of the payload as JSON, or of the error.")
    ] = None,
    since: Annotated[Omissible[Moment], Query(description="Created at this time or later.")] = None,
    until: Annotated[Omissible[Moment], Query(description="Created before this time.")] = None,
) -> None:
    """Declare the parameters; `RESOLVERS` has their function."""


async def _rooms(room: Annotated[Names, Query()] = []) -> None:  # noqa: B006 - a declaration
    """Declare the parameter; `RESOLVERS` has its function."""


def _read_filter(request: Request) -> TaskFilter:
    query = request.query_params
    given: dict[str, Any] = {name: query.getlist(name) for name in _LISTS if name in query}
    given |= {name: query[name] for name in _VALUES if name in query}
    try:
        return TaskFilter.model_validate(given)
    except ValidationError as error:
        raise invalid_part(error, "query") from error


def _read_rooms(request: Request) -> list[str]:
    try:
        return TaskFilter.model_validate({"room": request.query_params.getlist("room")}).room
    except ValidationError as error:
        raise invalid_part(error, "query") from error


RESOLVERS |= {_task_filter: _read_filter, _rooms: _read_rooms}

GivenFilter = Annotated[TaskFilter, Depends(_task_filter)]
GivenRooms = Annotated[list[str], Depends(_rooms)]


async def allowed_rooms(
    request: Request, caller: Identity, rooms: list[str], guard: Guard = verify_readable_room
) -> list[str]:
    """Return the rooms that a request names after the host's guards have passed; superusers may use all.

    Raises `Forbidden` for other callers that name none, or a reserved one.
    """
    if caller.is_superuser:
        return rooms
    if not rooms:
        raise Forbidden("Not authorized: only superusers may use all rooms; name rooms with `room`")
    if reserved := RESERVED.intersection(rooms):
        raise Forbidden(f"Not authorized: only superusers may use the reserved room {min(reserved)}")
    guards = queue_state(request).guards
    return [await guards.resolve(request, guard, room) for room in rooms]


@router.get("/tasks", response_model=FoundTasks)
async def search_tasks(
    request: Request, runtime: CurrentRuntime, caller: Caller, wanted: GivenFilter, page: CursorPaging
) -> Response:
    """Search tasks, newest first; callers that are no superusers name rooms that they may read.

    A search that reads many tasks to find few returns early: read on with `cursor`, the `next` of the
    response, while that is not null.
    """
    wanted.room = await allowed_rooms(request, caller, wanted.room)
    return json_response(await runtime.database.read(searches.find, wanted, page))


@router.get("/tasks/counts", response_model=StatusCounts)
async def count_tasks(
    request: Request, runtime: CurrentRuntime, caller: Caller, rooms: GivenRooms
) -> Response:
    """Return how many tasks have each status; callers that are no superusers name rooms."""
    rooms = await allowed_rooms(request, caller, rooms)
    return json_response(await runtime.database.read(searches.count, rooms))
