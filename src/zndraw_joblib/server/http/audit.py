"""The endpoint of the audit trail."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from zndraw_joblib.contract.operations import AuditTrail
from zndraw_joblib.contract.searches import Name
from zndraw_joblib.server.http.dependencies import Caller, CurrentRuntime, CursorPaging, json_response
from zndraw_joblib.server.http.parameters import Omissible
from zndraw_joblib.server.http.routing import Route
from zndraw_joblib.server.http.searches import allowed_rooms
from zndraw_joblib.server.service import audit

router = APIRouter(route_class=Route, tags=["admin"])


@router.get("/audit", response_model=AuditTrail)
async def list_audit_entries(  # noqa: PLR0913 - one parameter for each field of the query
    request: Request,
    runtime: CurrentRuntime,
    caller: Caller,
    page: CursorPaging,
    *,
    room: Omissible[Name] = None,
    actor: Omissible[Name] = None,
    action: Annotated[Omissible[Name], Query(description="Such as `job.pause`.")] = None,
) -> Response:
    """List operators' actions, newest first; other callers name a room that they may read."""
    rooms = await allowed_rooms(request, caller, [] if room is None else [room])
    return json_response(
        await runtime.database.read(audit.trail, page, rooms[0] if rooms else None, actor, action)
    )
