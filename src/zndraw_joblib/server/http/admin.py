"""Operators' endpoints for the sweeper and the settings; superusers only."""

import asyncio

from fastapi import APIRouter, Response

from zndraw_joblib.contract.messages import SweeperPreview, SweeperUpdate
from zndraw_joblib.contract.operations import Settings, SweeperDetail
from zndraw_joblib.server import settings_report
from zndraw_joblib.server.http.dependencies import CurrentRuntime, Queue, Superuser, json_response
from zndraw_joblib.server.http.idempotency import Key
from zndraw_joblib.server.http.routing import Route
from zndraw_joblib.server.http.state import QueueState
from zndraw_joblib.server.service import audit, servers, sweep
from zndraw_joblib.server.service.idempotency import NOTHING, once

router = APIRouter(route_class=Route, tags=["admin"])


@router.get("/admin/sweeper", response_model=SweeperDetail)
async def get_sweeper(queue: Queue, caller: Superuser) -> Response:
    """Return the mode and the last cycles, newest first, of the sweeper of the server that responds.

    `servers` and `history` have all servers and the last cycles of their sweepers.
    """
    return json_response(await _state(queue))


@router.patch("/admin/sweeper", response_model=SweeperDetail)
async def update_sweeper(queue: Queue, caller: Superuser, body: SweeperUpdate, key: Key) -> Response:
    """Change the mode of the sweepers of all servers, from their next cycle on."""
    detail = {"mode": body.mode.value}
    work = audit.recorded(sweep.set_mode, caller, "sweeper.mode", "sweeper", detail=detail)
    await queue.runtime.write(once(key, NOTHING, work), body.mode)
    return json_response(await _state(queue))


@router.get("/admin/settings", response_model=Settings)
async def get_settings(runtime: CurrentRuntime, caller: Superuser) -> Response:
    """Return the settings in force of the server that responds, without secrets, and misspelt variables."""
    return json_response(await asyncio.to_thread(settings_report.report, runtime.settings))


@router.get("/admin/sweeper/preview", response_model=SweeperPreview)
async def preview_sweeper(queue: Queue, caller: Superuser) -> Response:
    """Return what a cycle would do now. It changes nothing."""
    return json_response(await queue.runtime.database.read(queue.sweeper.preview))


async def _state(queue: QueueState) -> SweeperDetail:
    sweeper, settings = queue.sweeper, queue.runtime.settings
    read = queue.runtime.database.read
    return SweeperDetail(
        mode=await read(sweep.mode, default=settings.sweeper_mode),
        interval_seconds=settings.sweeper_interval_seconds,
        grace_remaining_seconds=sweeper.grace_remaining,
        cycles=[cycle.summary for cycle in reversed(sweeper.last_cycles)],
        servers=await read(servers.entries),
        history=await read(servers.history),
    )
