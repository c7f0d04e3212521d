"""The list of all rooms; superusers only."""

from fastapi import APIRouter, Response

from zndraw_joblib.contract.operations import RoomEntries
from zndraw_joblib.server.http.dependencies import CurrentRuntime, CursorPaging, Superuser, json_response
from zndraw_joblib.server.http.routing import Route
from zndraw_joblib.server.service import room_list

router = APIRouter(route_class=Route, tags=["rooms"])


@router.get("/rooms", response_model=RoomEntries)
async def list_rooms(runtime: CurrentRuntime, caller: Superuser, page: CursorPaging) -> Response:
    """List the rooms that have tasks or jobs, by id, with their counts."""
    return json_response(await runtime.database.read_snapshot(room_list.page, page))
