"""The list of all jobs; superusers only."""

from fastapi import APIRouter, Response

from zndraw_joblib.contract.messages import Name
from zndraw_joblib.contract.names import validate_room_id
from zndraw_joblib.contract.operations import JobEntries
from zndraw_joblib.server.http.dependencies import CurrentRuntime, CursorPaging, Superuser, json_response
from zndraw_joblib.server.http.parameters import Omissible
from zndraw_joblib.server.http.routing import Route
from zndraw_joblib.server.ports import JobFilter
from zndraw_joblib.server.service import job_list

router = APIRouter(route_class=Route, tags=["jobs"])


@router.get("/jobs", response_model=JobEntries)
async def list_all_jobs(  # noqa: PLR0913 - one parameter for each field of the query
    runtime: CurrentRuntime,
    caller: Superuser,
    page: CursorPaging,
    *,
    room: Omissible[str] = None,
    category: Omissible[Name] = None,
    paused: Omissible[bool] = None,
    deleted: bool = False,
    name: Omissible[Name] = None,
) -> Response:
    """List the jobs of all rooms by full name, with their counts. `deleted` adds soft-deleted jobs."""
    wanted = JobFilter(None if room is None else validate_room_id(room), category, paused, deleted, name)
    return json_response(await runtime.database.read_snapshot(job_list.page, wanted, page))
