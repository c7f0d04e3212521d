"""Whether the process lives, and whether work goes through."""

from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic_core import to_json

from zndraw_joblib.server.http.dependencies import JSON_MEDIA_TYPE

router = APIRouter(prefix="/health", tags=["health"])


@router.get("/live")
async def live() -> dict[str, str]:
    """Tell that the process answers."""
    return {"status": "alive"}


@router.get("/ready", responses={503: {"description": "Work does not go through; `checks` says why"}})
async def ready(request: Request) -> Response:
    """Tell whether a claim and a heartbeat go through, and the sweeper does its rounds."""
    checks: dict[str, Any] = await request.app.state.joblib_health.look()
    good = all(check == "ok" for check in checks.values())
    body = {"status": "ready" if good else "not ready", "checks": checks}
    return Response(to_json(body), 200 if good else 503, media_type=JSON_MEDIA_TYPE)
