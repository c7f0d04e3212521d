"""Operators' endpoints for the sweeper; superusers only."""

from fastapi import APIRouter, Response

from zndraw_joblib.contract.messages import SweeperCycle, SweeperPreview, SweeperState, SweeperUpdate
from zndraw_joblib.server.http.dependencies import Queue, Superuser, json_response
from zndraw_joblib.server.http.idempotency import Key
from zndraw_joblib.server.http.routing import Route
from zndraw_joblib.server.http.state import QueueState
from zndraw_joblib.server.service import sweep
from zndraw_joblib.server.service.idempotency import NOTHING, once

router = APIRouter(route_class=Route)


@router.get("/admin/sweeper", response_model=SweeperState)
async def get_sweeper(queue: Queue, caller: Superuser) -> Response:
    """Return the mode and the last cycles, newest first, of the sweeper of the server that responds."""
    return json_response(await _state(queue))


@router.patch("/admin/sweeper", response_model=SweeperState)
async def update_sweeper(queue: Queue, caller: Superuser, body: SweeperUpdate, key: Key) -> Response:
    """Change the mode of the sweepers of all servers, from their next cycle on."""
    await queue.runtime.write(once(key, NOTHING, sweep.set_mode), body.mode)
    return json_response(await _state(queue))


@router.get("/admin/sweeper/preview", response_model=SweeperPreview)
async def preview_sweeper(queue: Queue, caller: Superuser) -> Response:
    """Return what a cycle would do now. It changes nothing."""
    return json_response(await queue.runtime.database.read(queue.sweeper.preview))


async def _state(queue: QueueState) -> SweeperState:
    sweeper, settings = queue.sweeper, queue.runtime.settings
    mode = await queue.runtime.database.read(sweep.mode, default=settings.sweeper_mode)
    return SweeperState(
        mode=mode,
        interval_seconds=settings.sweeper_interval_seconds,
        grace_remaining_seconds=sweeper.grace_remaining,
        cycles=[
            SweeperCycle(
                at=cycle.at,
                mode=cycle.mode,
                scanned=cycle.scanned,
                stale=cycle.stale,
                expired=cycle.expired,
                released=cycle.counts.released,
                failed=cycle.counts.failed,
                pruned=cycle.pruned,
                errors=cycle.errors,
                elapsed=cycle.elapsed,
                held_back=cycle.is_held_back,
            )
            for cycle in reversed(sweeper.last_cycles)
        ],
    )
