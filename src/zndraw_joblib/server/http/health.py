"""Liveness and readiness endpoints."""

from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic_core import to_json

from zndraw_joblib.server.http.dependencies import JSON_MEDIA_TYPE
from zndraw_joblib.server.http.state import queue_state

router = APIRouter(prefix="/health", tags=["health"])


@router.get("/live")
async def live() -> dict[str, str]:
    """Return 200 while the process responds."""
    return {"status": "alive"}


_NOT_READY = {"description": "Not ready; `checks` has the reasons", "model": dict[str, Any]}


@router.get("/ready", responses={503: _NOT_READY})
async def ready(request: Request) -> Response:
    """Return 200 while requests of each kind succeed, the database accepts writes and the sweeper runs."""
    checks = await queue_state(request).health.check()
    good = all(check == "ok" for check in checks.values())
    body = {"status": "ready" if good else "not ready", "checks": checks}
    return Response(to_json(body), 200 if good else 503, media_type=JSON_MEDIA_TYPE)
