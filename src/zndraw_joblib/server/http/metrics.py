"""The metrics for Prometheus, for its token and for superusers."""

import asyncio
import hmac
from collections.abc import Callable
from time import perf_counter
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.responses import PlainTextResponse
from fastapi.routing import APIRoute
from prometheus_client.metrics_core import Metric

from zndraw_joblib.server.http import exposition
from zndraw_joblib.server.http.dependencies import Queue, current_superuser
from zndraw_joblib.server.http.headers import header_values
from zndraw_joblib.server.http.openapi.operations import description_of, operation_id
from zndraw_joblib.server.http.routing import RESOLVERS, Route
from zndraw_joblib.server.http.state import queue_state
from zndraw_joblib.server.service.metrics import QueueMetrics

router = APIRouter(route_class=Route, tags=["overview"])


async def metrics_reader(request: Request) -> None:
    """Return if the request has the token `metrics_token`, or a superuser's. Raises a problem otherwise."""
    expected = queue_state(request).runtime.settings.metrics_token
    given = header_values(request, b"authorization")
    scheme, _, token = given[0].partition(" ") if given else ("", "", "")
    if expected is not None and scheme.lower() == "bearer":
        wanted = expected.get_secret_value().encode()
        if hmac.compare_digest(token.strip().encode("latin-1"), wanted):
            return
    await current_superuser(request)


RESOLVERS[metrics_reader] = metrics_reader
MetricsReader = Annotated[None, Depends(metrics_reader)]


_TEXT: dict[str, Any] = {"text/plain": {"schema": {"type": "string"}}}
_TEXTS = {**_TEXT, "application/openmetrics-text": _TEXT["text/plain"]}
_RESPONSES: dict[int | str, dict[str, Any]] = {200: {"description": "The metrics", "content": _TEXTS}}


@router.get("/metrics", response_class=PlainTextResponse, responses=_RESPONSES)
async def get_metrics(request: Request, queue: Queue, reader: MetricsReader) -> Response:
    """Return the metrics of the queue, and of the process that responds, in Prometheus' format."""
    started = perf_counter()
    await asyncio.sleep(0)
    lag = perf_counter() - started
    found = await queue.metrics.read()
    accept, routes = ",".join(header_values(request, b"accept")), request.app.router.routes
    families = list(exposition.of_process(queue, routes, lag, has_database=found is not None))
    # In a thread, because the text of 500 jobs takes a while.
    content, media_type = await asyncio.to_thread(_encode, found, families, accept)
    return Response(content, headers={"Content-Type": media_type, "Cache-Control": "no-store"})


def _encode(found: QueueMetrics | None, families: list[Metric], accept: str) -> tuple[bytes, str]:
    of_queue = [] if found is None else exposition.of_queue(found)
    return exposition.encode([*of_queue, *families], accept)


def add_root(app: FastAPI, identity: Callable[..., Any]) -> None:
    """Add the route without the prefix, where Prometheus looks by default."""
    [route] = (route for route in router.routes if isinstance(route, APIRoute))
    described = description_of(route) | {"operation_id": operation_id("get_metrics_at_root")}
    app.router.add_api_route(
        "/metrics",
        get_metrics,
        response_class=PlainTextResponse,
        dependencies=[Depends(identity)],
        name="metrics_at_root",
        route_class_override=Route,
        **described,
    )
