"""What operators see of the sweeper, and how they change it while servers run; for superusers."""

from fastapi import APIRouter, Request, Response

from zndraw_joblib.contract.messages import SweeperCycle, SweeperPreview, SweeperState, SweeperUpdate
from zndraw_joblib.server.http.dependencies import CurrentRuntime, Superuser, answer
from zndraw_joblib.server.http.routing import Route
from zndraw_joblib.server.runtime import Runtime
from zndraw_joblib.server.service import sweep

router = APIRouter(route_class=Route)


@router.get("/admin/sweeper", response_model=SweeperState)
async def get_sweeper(request: Request, runtime: CurrentRuntime, caller: Superuser) -> Response:
    """Show the sweeper of the server that answers: its mode, and its last cycles, the latest first."""
    return answer(await _state(request, runtime))


@router.patch("/admin/sweeper", response_model=SweeperState)
async def update_sweeper(
    request: Request, runtime: CurrentRuntime, caller: Superuser, body: SweeperUpdate
) -> Response:
    """Change the mode of the sweepers of all servers, from their next cycle on."""
    await runtime.write(sweep.set_mode, wanted=body.mode)
    return answer(await _state(request, runtime))


@router.get("/admin/sweeper/preview", response_model=SweeperPreview)
async def preview_sweeper(request: Request, runtime: CurrentRuntime, caller: Superuser) -> Response:
    """Show what a cycle would do now. Nothing is changed."""
    return answer(await runtime.database.read(request.app.state.joblib_mount.sweeper.preview))


async def _state(request: Request, runtime: Runtime) -> SweeperState:
    sweeper, settings = request.app.state.joblib_mount.sweeper, runtime.settings
    mode = await runtime.database.read(sweep.mode, default=settings.sweeper_mode)
    return SweeperState(
        mode=mode,
        interval_seconds=settings.sweeper_interval_seconds,
        grace_remaining_seconds=sweeper.credit,
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
