"""Metrics in the formats of Prometheus, and the health of the server process."""

import asyncio
import hmac
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from itertools import accumulate
from time import perf_counter
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from prometheus_client import exposition
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString
from pydantic import BaseModel
from pydantic_core import to_json

from zndraw_joblib.server.admin.rules_overview import JobMetrics, QueueMetrics
from zndraw_joblib.server.http.access import QueueState, current_superuser, queue_state
from zndraw_joblib.server.http.openapi import operation_id, route_options
from zndraw_joblib.server.http.requests import header_values
from zndraw_joblib.server.http.routing import JSON_MEDIA_TYPE, Parameter, Route, serves
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.operators import BUCKET_BOUNDS
from zndraw_joblib.wire.statuses import TERMINAL, TaskStatus

_NAME = "zndraw_joblib_"
# prometheus-client's own constant for this format has other names in older versions.
_PLAIN = "text/plain; version=0.0.4; charset=utf-8"
_JOB = ("job_name",)
_PROCESS = ("process",)


class Families(Collector):
    """Families that were made already, for prometheus-client's encoders."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        """Return the families."""
        return self._families


def encode(families: Iterable[Metric], accept: str) -> tuple[bytes, str]:
    """Return the families as text, and its media type: OpenMetrics if the client accepts it."""
    if "application/openmetrics-text" in accept:
        text: bytes = openmetrics.generate_latest(Families(families))  # type: ignore[no-untyped-call]
        return text, openmetrics.CONTENT_TYPE_LATEST
    return exposition.generate_latest(Families(families)), _PLAIN


def _gauge(name: str, text: str, labels: Sequence[str] = ()) -> GaugeMetricFamily:
    return GaugeMetricFamily(_NAME + name, text, labels=labels)


def _counter(name: str, text: str, labels: Sequence[str] = ()) -> CounterMetricFamily:
    return CounterMetricFamily(_NAME + name, text, labels=labels)


def _histogram(name: str, text: str, labels: Sequence[str] = ()) -> HistogramMetricFamily:
    return HistogramMetricFamily(_NAME + name, text, labels=labels)


def queue_families(figures: QueueMetrics) -> Iterator[Metric]:
    """Return the figures of the whole queue, which are the same from every server."""
    yield from _of_jobs(figures.jobs)
    yield from _totals_of_jobs(figures.jobs)
    causes = _counter(
        "attempt_failures", "Attempts of tasks that failed or were lost, by error code.", ["cause"]
    )
    for cause, number in sorted(figures.causes.items()):
        causes.add_metric([cause], number)
    yield causes
    workers = _gauge("workers", "Workers by state: active, silent or draining.", ["state"])
    for state, number in figures.workers.items():
        workers.add_metric([state], number)
    yield workers
    slots = _gauge("worker_slots", "Slots of workers that hold a task, and free ones.", ["state"])
    slots.add_metric(["held"], figures.held_slots)
    slots.add_metric(["free"], figures.free_slots)
    yield slots
    servers = _gauge("servers", "Server processes by state: active or silent.", ["state"])
    servers.add_metric(["active"], figures.active_servers)
    servers.add_metric(["silent"], figures.silent_servers)
    yield servers
    for name, text, at in (
        ("sweeper_last_success", "When a sweeper last had a good cycle.", figures.last_success),
        ("statistics_until", "Until when the counters of tasks are complete.", figures.statistics_until),
    ):
        if at is not None:
            family = _gauge(f"{name}_timestamp_seconds", text)
            family.add_metric([], at.timestamp())
            yield family


def _of_jobs(jobs: Mapping[str, JobMetrics]) -> Iterator[Metric]:
    tasks = _gauge("tasks", "Tasks in the database by job and status.", ["job_name", "status"])
    for name, job in jobs.items():
        for status in TaskStatus:
            tasks.add_metric([name, status], job.tasks[status])
    yield tasks
    for metric, text, field in (
        ("queued_tasks", "Pending tasks that are in the queue of their job.", "queued"),
        ("scheduled_tasks", "Pending tasks that enter the queue later.", "scheduled"),
        ("oldest_waiting_seconds", "How long the first task of the queue has waited.", "oldest_seconds"),
        ("job_workers", "Workers that serve a job and are not draining.", "workers"),
        ("job_paused", "Whether a job is paused.", "is_paused"),
    ):
        family = _gauge(metric, text, _JOB)
        for name, job in jobs.items():
            if (value := getattr(job, field)) is not None:
                family.add_metric([name], value)
        yield family


def _totals_of_jobs(jobs: Mapping[str, JobMetrics]) -> Iterator[Metric]:
    finished = _counter("tasks_finished", "Tasks that ended, by outcome.", ["job_name", "outcome"])
    for name, job in jobs.items():
        for status in sorted(TERMINAL):
            finished.add_metric([name, status], job.totals[status])
    yield finished
    for metric, text, key in (
        ("tasks_submitted", "Tasks that were submitted.", "submitted"),
        ("attempts_retried", "Attempts that failed and whose tasks returned to the queue.", "retried"),
        ("attempts_lost", "Attempts that ended because the worker was lost or a time limit passed.", "lost"),
    ):
        family = _counter(metric, text, _JOB)
        for name, job in jobs.items():
            family.add_metric([name], job.totals[key])
        yield family
    waiting = _histogram("task_waiting_seconds", "From the entry into the queue to the claim.", _JOB)
    running = _histogram("task_running_seconds", "From the start of an attempt to its end.", _JOB)
    for name, job in jobs.items():
        for histogram, durations in ((waiting, job.waiting), (running, job.running)):
            if any(durations.buckets):
                buckets = _cumulative(BUCKET_BOUNDS, durations.buckets)
                histogram.add_metric([name], buckets, durations.sum)
    yield waiting
    yield running


def _cumulative(bounds: Sequence[float], buckets: Sequence[int]) -> list[tuple[str, float]]:
    names = [*map(floatToGoString, bounds), "+Inf"]
    return list(zip(names, accumulate(buckets), strict=True))


def of_process(
    queue: QueueState, routes: Iterable[object], lag: float, *, has_database: bool
) -> Iterator[Metric]:
    """Return the figures of this process since its start."""
    process = f"{socket.gethostname()}:{os.getpid()}"
    for name, text, value in (
        ("database_up", "Whether the figures of the queue could be read.", has_database),
        ("event_loop_lag_seconds", "How late a cycle of the event loop began.", lag),
        (
            "waiting_requests",
            "Requests that wait for a task, an event or a result.",
            len(queue.runtime.waiters),
        ),
        ("event_streams", "Open event streams.", len(queue.streams)),
    ):
        family = _gauge(name, text, _PROCESS)
        family.add_metric([process], float(value))
        yield family
    build = _gauge("build_info", "1; the release is a label.", ["process", "version"])
    build.add_metric([process, version("zndraw-joblib")], 1)
    yield build
    actions = _counter("sweeper_actions", "What the sweeper of this process did.", ["process", "action"])
    for action, number in queue.sweeper.actions.items():
        actions.add_metric([process, action], number)
    yield actions
    batches = _histogram("batch_items", "Requests that were written in one transaction.", _PROCESS)
    sizes = queue.runtime.batch_items
    batches.add_metric([process], _cumulative(sizes.bounds, sizes.buckets), sizes.sum)
    yield batches
    yield from _of_routes(process, [route for route in routes if isinstance(route, Route)])


def _of_routes(process: str, routes: Iterable[Route]) -> Iterator[Metric]:
    labels = ["process", "method", "route"]
    requests = _counter(
        "http_requests", "Requests to the queue by method, route and status.", [*labels, "status"]
    )
    seconds = _histogram(
        "http_request_seconds", "Until the response began, of requests that did not ask to wait.", labels
    )
    for route in routes:
        for (method, status), number in list(route.counts.answered.items()):
            requests.add_metric([process, method, route.path_format, str(status)], number)
        for method, histogram in list(route.counts.seconds.items()):
            buckets = _cumulative(histogram.bounds, histogram.buckets)
            seconds.add_metric([process, method, route.path_format], buckets, histogram.sum)
    yield requests
    yield seconds


# The metrics for Prometheus, for its token and for superusers.


async def metrics_reader(request: Request) -> None:
    """Return if the request has the token `metrics_token`, or a superuser's. Raises a problem otherwise."""
    expected = queue_state(request).runtime.settings.metrics_token
    values = header_values(request, b"authorization")
    scheme, _, token = values[0].partition(" ") if values else ("", "", "")
    if expected is not None and scheme.lower() == "bearer":
        metrics_token = expected.get_secret_value().encode()
        if hmac.compare_digest(token.strip().encode("latin-1"), metrics_token):
            return
    await current_superuser(request)


MetricsReader = Annotated[None, Parameter(metrics_reader, checks_access=True)]


_TEXT: dict[str, Any] = {"text/plain": {"schema": {"type": "string"}}}
_TEXTS = {**_TEXT, "application/openmetrics-text": _TEXT["text/plain"]}
_RESPONSES: dict[int | str, dict[str, Any]] = {200: {"description": "The metrics", "content": _TEXTS}}


@serves(ops.GET_METRICS, responses=_RESPONSES)
async def get_metrics(request: Request, queue: QueueState, reader: MetricsReader) -> Response:
    """Return the metrics of the queue, and of the process that responds, in Prometheus' format."""
    started = perf_counter()
    await asyncio.sleep(0)
    lag = perf_counter() - started
    figures = await queue.metrics.read()
    accept, routes = ",".join(header_values(request, b"accept")), request.app.router.routes
    families = list(of_process(queue, routes, lag, has_database=figures is not None))
    # In a thread, because the text of 500 jobs takes a while.
    content, media_type = await asyncio.to_thread(_encode, figures, families, accept)
    return Response(content, headers={"Content-Type": media_type, "Cache-Control": "no-store"})


def _encode(figures: QueueMetrics | None, families: list[Metric], accept: str) -> tuple[bytes, str]:
    of_queue = [] if figures is None else queue_families(figures)
    return encode([*of_queue, *families], accept)


def add_root(app: FastAPI, identity: Callable[..., Any]) -> None:
    """Add the route without the prefix, where Prometheus looks by default."""
    options = route_options(get_metrics) | {"operation_id": operation_id("get_metrics_at_root")}
    app.router.add_api_route(
        ops.GET_METRICS.template,
        get_metrics,
        dependencies=[Depends(identity)],
        route_class_override=Route,
        **options | {"name": "metrics_at_root"},
    )


# Liveness and readiness endpoints.

health_router = APIRouter(prefix="/health", tags=["health"])
# The checks of a container or a proxy have no identity.
_PUBLIC: dict[str, Any] = {"security": []}


@health_router.get("/live", operation_id="checkLiveness", openapi_extra=_PUBLIC)
async def live() -> dict[str, str]:
    """Return 200 while the process responds."""
    return {"status": "alive"}


class Readiness(BaseModel):
    """Whether the server is ready; `checks` has `ok` or a reason for each part."""

    status: str
    checks: dict[str, str]


_NOT_READY = {"description": "Not ready; `checks` has the reasons", "model": Readiness}


@health_router.get(
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
