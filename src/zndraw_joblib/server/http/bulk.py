"""Endpoints that act on all tasks that match a filter, after a preview."""

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Request, Response

from zndraw_joblib.contract.problems import Forbidden
from zndraw_joblib.contract.searches import (
    BulkAction,
    BulkPreview,
    BulkPreviewRequest,
    BulkRequest,
    BulkResult,
    TaskFilter,
)
from zndraw_joblib.server.http.dependencies import Caller, CurrentRuntime, json_response
from zndraw_joblib.server.http.guards import verify_writable_room
from zndraw_joblib.server.http.idempotency import Key
from zndraw_joblib.server.http.routing import Route
from zndraw_joblib.server.http.searches import allowed_rooms
from zndraw_joblib.server.ports import Identity
from zndraw_joblib.server.service import bulk_actions, bulk_tokens
from zndraw_joblib.server.service.bulk_actions import BulkLimits
from zndraw_joblib.server.service.bulk_tokens import Confirmed

router = APIRouter(route_class=Route, tags=["tasks"])

_OWN_ACTIONS = {BulkAction.RETRY, BulkAction.CANCEL}


@router.post("/tasks/bulk/preview", response_model=BulkPreview)
async def preview_bulk_action(
    request: Request, runtime: CurrentRuntime, caller: Caller, body: BulkPreviewRequest
) -> Response:
    """Count the tasks that an action would affect. It changes nothing; its `token` confirms the action.

    Callers that are no superusers may retry and cancel their own tasks, in rooms that they name.
    """
    wanted = await _allowed_filter(request, caller, body.action, body.filter)
    confirmed = Confirmed(caller, body.action, wanted, 0)
    return json_response(await bulk_actions.preview(runtime.database.read, runtime.write, confirmed))


@router.post("/tasks/bulk", response_model=BulkResult)
async def apply_bulk_action(
    request: Request, runtime: CurrentRuntime, caller: Caller, body: BulkRequest, key: Key
) -> Response:
    """Apply an action to up to 10,000 tasks that match the filter of its preview, newest first.

    Tasks that another request changes meanwhile, or that are newer than the preview, are not affected.
    """
    wanted = await _allowed_filter(request, caller, body.action, body.filter)
    if (first := await bulk_actions.first_result(runtime.write, key)) is not None:
        return json_response(first)
    confirmed = await runtime.database.read(bulk_tokens.verify, body.token, caller, body.action, wanted)

    async def write(work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        async with runtime.events.room(BulkLimits().batch):
            return await runtime.write(work, *args, **kwargs)

    return json_response(await bulk_actions.apply(runtime.database.read, write, confirmed, key))


async def _allowed_filter(
    request: Request, caller: Identity, action: BulkAction, wanted: TaskFilter
) -> TaskFilter:
    """Return the filter that the caller may use. Raises `Forbidden`."""
    rooms = await allowed_rooms(request, caller, wanted.room, verify_writable_room)
    if caller.is_superuser:
        return wanted
    if action not in _OWN_ACTIONS:
        raise Forbidden(f"Not authorized: only superusers may {action} tasks in bulk")
    if wanted.created_by not in {None, caller.id}:
        raise Forbidden("Not authorized: only superusers may act on tasks of others; omit `created_by`")
    return wanted.model_copy(update={"room": rooms, "created_by": caller.id})
