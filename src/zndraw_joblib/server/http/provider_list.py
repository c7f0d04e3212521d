"""The list of all providers; superusers only."""

from fastapi import APIRouter, Response

from zndraw_joblib.contract.operations import ProviderEntries
from zndraw_joblib.server.http.dependencies import CurrentRuntime, CursorPaging, Superuser, json_response
from zndraw_joblib.server.http.routing import Route
from zndraw_joblib.server.service import provider_list

router = APIRouter(route_class=Route, tags=["providers"])


@router.get("/providers", response_model=ProviderEntries)
async def list_all_providers(runtime: CurrentRuntime, caller: Superuser, page: CursorPaging) -> Response:
    """List the providers of all rooms by full name, with their open requests."""
    return json_response(await runtime.database.read(provider_list.page, page))
