"""The endpoint that finds ids by their first characters."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from zndraw_joblib.contract.searches import PrefixMatches
from zndraw_joblib.server.http.dependencies import Caller, CurrentRuntime, json_response
from zndraw_joblib.server.http.routing import Route
from zndraw_joblib.server.http.searches import GivenRooms, allowed_rooms
from zndraw_joblib.server.service import ids

router = APIRouter(route_class=Route, tags=["overview"])


@router.get("/ids", response_model=PrefixMatches)
async def find_ids(
    request: Request,
    runtime: CurrentRuntime,
    caller: Caller,
    rooms: GivenRooms,
    *,
    prefix: Annotated[str, Query(description="The first 4 to 36 characters of an id.")] = "",
) -> Response:
    """Find tasks and workers by the first characters of their ids, at most ten of each.

    Callers that are no superusers name rooms that they may read; they find their own workers only.
    """
    rooms = await allowed_rooms(request, caller, rooms)
    return json_response(await runtime.database.read(ids.find, caller, ids.parse(prefix), rooms))
