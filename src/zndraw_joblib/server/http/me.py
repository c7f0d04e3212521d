"""The caller and what it may do; the release of the server."""

from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from zndraw_joblib.contract.names import validate_room_id
from zndraw_joblib.contract.operations import Me, Permission, Version
from zndraw_joblib.contract.problems import ProblemException
from zndraw_joblib.server.http.dependencies import Caller, CurrentRuntime, Queue, json_response
from zndraw_joblib.server.http.guards import Guard, verify_readable_room, verify_writable_room
from zndraw_joblib.server.http.parameters import Omissible
from zndraw_joblib.server.http.routing import Route
from zndraw_joblib.server.http.state import QueueState
from zndraw_joblib.server.problem_responses import as_problem
from zndraw_joblib.server.service import version

router = APIRouter(route_class=Route, tags=["server"])
_GUARDS = {Permission.READ_ROOM: verify_readable_room, Permission.WRITE_ROOM: verify_writable_room}


@router.get("/me", response_model=Me)
async def get_caller(request: Request, queue: Queue, caller: Caller, room: Omissible[str] = None) -> Response:
    """Return the caller and what it may do; with `room`, also in that room."""
    permissions = [Permission.READ_ALL, Permission.OPERATE] if caller.is_superuser else []
    if room is not None:
        validate_room_id(room)
        for permission, guard in _GUARDS.items():
            if await _passes(request, queue, guard, room):
                permissions.append(permission)
    me = Me(id=caller.id, is_superuser=caller.is_superuser, room=room, permissions=permissions)
    return json_response(me)


async def _passes(request: Request, queue: QueueState, guard: Guard, room_id: str) -> bool:
    """Return whether a guard lets the caller into a room. Raises the error of a guard that has failed."""
    try:
        await queue.guards.resolve(request, guard, room_id)
    except (ProblemException, HTTPException, RequestValidationError) as error:
        if as_problem(error).problem.status >= 500:
            raise
        return False
    return True


@router.get("/version", response_model=Version)
async def get_version(runtime: CurrentRuntime, caller: Caller) -> Response:
    """Return the release of the server that responds, and of its database."""
    return json_response(await runtime.database.read_short(version.get, runtime.settings.build))
