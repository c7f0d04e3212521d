"""Liveness and readiness endpoints."""

from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel
from pydantic_core import to_json

from zndraw_joblib.server.http.dependencies import JSON_MEDIA_TYPE
from zndraw_joblib.server.http.state import queue_state

router = APIRouter(prefix="/health", tags=["health"])
# The checks of a container or a proxy have no identity.
_PUBLIC: dict[str, Any] = {"security": []}


@router.get("/live", operation_id="checkLiveness", openapi_extra=_PUBLIC)
async def live() -> dict[str, str]:
    """Return 200 while the process responds."""
    return {"status": "alive"}


class Readiness(BaseModel):
    """Whether the server is ready; `checks` has `ok` or a reason for each part."""

    status: str
    checks: dict[str, str]


_NOT_READY = {"description": "Not ready; `checks` has the reasons", "model": Readiness}


@router.get(
    "/ready",
    operation_id="checkReadiness",
    response_model=Readiness,
    responses={503: _NOT_READY},
    openapi_extra=_PUBLIC,
)
async def ready(request: Request) -> Response:
    """Return 200 while requests of each kind succeed, the database accepts writes and the sweeper runs."""
    checks = await queue_state(request).health.check()
    good = all(check == "ok" for check in checks.values())
    body = {"status": "ready" if good else "not ready", "checks": checks}
    return Response(to_json(body), 200 if good else 503, media_type=JSON_MEDIA_TYPE)
