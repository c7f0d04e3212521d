"""Metrics in the formats of Prometheus, and the health of the server process."""

import asyncio
import hmac
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib.metadata import version
from itertools import accumulate, chain
from time import perf_counter
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.utils import floatToGoString
from pydantic import BaseModel
from pydantic_core import to_json

from zndraw_joblib.server.admin.rules_overview import JobMetrics, QueueMetrics
from zndraw_joblib.server.background.loops import Health, reasons
from zndraw_joblib.server.http.access import QueueState, permitted_caller, queue_state
from zndraw_joblib.server.http.openapi import operation_id, route_options
from zndraw_joblib.server.http.requests import header_values
from zndraw_joblib.server.http.routing import JSON_MEDIA_TYPE, Parameter, Route, serves
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.operators import BUCKET_BOUNDS
from zndraw_joblib.wire.statuses import TERMINAL, TaskStatus

_NAME = "zndraw_joblib_"
# prometheus-client's own constant for this format has other names in older versions.
_PLAIN = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_FIRST_EXPONENT = 1_000_000


class Family:
    """A family of samples, as text: prometheus-client takes ten times as long for those of many jobs."""

    def __init__(self, kind: str, name: str, text: str) -> None:
        self._kind, self._name, self._text = kind, _NAME + name, text
        self._sample = f"{self._name}_total" if kind == "counter" else self._name
        self._lines: list[str] = []

    def add(self, labels: str, value: float) -> None:
        """Add a sample. The labels are those of `labels_of`, in the order of their names."""
        self._lines.append(f"{self._sample}{f'{{{labels}}}' if labels else ''} {_number(value)}\n")

    def add_histogram(self, labels: str, bounds: Sequence[str], counts: Sequence[int], total: float) -> None:
        """Add a histogram: how many values each bucket has above the one before, and the sum of all."""
        start, numbers = f'{self._name}_bucket{{{labels},le="', list(map(_number, accumulate(counts)))
        self._lines += [
            f'{start}{bound}"}} {number}\n' for bound, number in zip(bounds, numbers, strict=True)
        ]
        self._lines.append(f"{self._name}_count{{{labels}}} {numbers[-1]}\n")
        self._lines.append(f"{self._name}_sum{{{labels}}} {_number(total)}\n")

    def lines(self, *, is_open: bool) -> Iterable[str]:
        """Return the text for OpenMetrics or for Prometheus' older format, in which a counter is a total."""
        name = self._name if is_open else self._sample
        return chain((f"# HELP {name} {self._text}\n# TYPE {name} {self._kind}\n",), self._lines)


def _number(value: float) -> str:
    if type(value) is int and abs(value) < _FIRST_EXPONENT:
        return f"{value}.0"
    return str(floatToGoString(value))  # type: ignore[no-untyped-call]


def labels_of(**values: str) -> str:
    """Return labels as text; their names are in order."""
    return ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in values.items())


def bounds_of(bounds: Iterable[float]) -> list[str]:
    """Return the upper bounds of a histogram's buckets as text, with that of the last."""
    return [*map(floatToGoString, bounds), "+Inf"]


def encode(families: Iterable[Family], accept: str) -> tuple[bytes, str]:
    """Return the families as text, and its media type: OpenMetrics if the client accepts it."""
    is_open = "application/openmetrics-text" in accept
    parts = [family.lines(is_open=is_open) for family in families]
    text = "".join(chain(*parts, ("# EOF\n",) if is_open else ()))
    return text.encode(), openmetrics.CONTENT_TYPE_LATEST if is_open else _PLAIN


_gauge, _counter, _histogram = (partial(Family, kind) for kind in ("gauge", "counter", "histogram"))


def queue_families(figures: QueueMetrics) -> Iterator[Family]:
    """Return the figures of the whole queue, which are the same from every server."""
    labeled = [(labels_of(job_name=name), job) for name, job in figures.jobs.items()]
    yield from _of_jobs(labeled)
    yield from _totals_of_jobs(labeled)
    causes = _counter("attempt_failures", "Attempts of tasks that failed or were lost, by error code.")
    for cause, number in sorted(figures.causes.items()):
        causes.add(labels_of(cause=cause), number)
    yield causes
    workers = _gauge("workers", "Workers by state: active, silent or draining.")
    for state, number in figures.workers.items():
        workers.add(labels_of(state=state), number)
    yield workers
    slots = _gauge("worker_slots", "Slots of workers that hold a task, and free ones.")
    slots.add(labels_of(state="held"), figures.held_slots)
    slots.add(labels_of(state="free"), figures.free_slots)
    yield slots
    servers = _gauge("servers", "Server processes by state: active or silent.")
    servers.add(labels_of(state="active"), figures.active_servers)
    servers.add(labels_of(state="silent"), figures.silent_servers)
    yield servers
    yield from (_limits(figures), *_without_labels(figures))
    for name, text, at in (
        ("sweeper_last_success", "When a sweeper last had a good cycle.", figures.last_success),
        ("statistics_until", "Until when the counters of tasks are complete.", figures.statistics_until),
    ):
        if at is not None:
            family = _gauge(f"{name}_timestamp_seconds", text)
            family.add("", at.timestamp())
            yield family


def _limits(figures: QueueMetrics) -> Family:
    family = _gauge("limit_used_ratio", "The used part of a limit of all users, by its setting.")
    for setting, ratio in figures.used_ratios.items():
        family.add(labels_of(limit=setting), ratio)
    return family


def _without_labels(figures: QueueMetrics) -> Iterator[Family]:
    lag = "For how long the {} that is most behind has been due."
    for metric, text, value in (
        ("schedule_lag_seconds", lag.format("schedule"), figures.schedule_lag_seconds),
        ("failed_schedules", "Schedules whose last task failed.", figures.failed_schedules),
        (
            "jobs_without_executor",
            "Internal jobs with tasks that no server runs.",
            figures.jobs_without_executor,
        ),
        ("worker_token_seconds", "Until a token of workers ends, at most a week.", figures.token_seconds),
        ("rate_limited_tasks", "Pending tasks that wait for a rate.", figures.rate_limited_tasks),
        ("paused_rooms", "Rooms that are paused by themselves.", figures.paused_rooms),
        ("queue_paused", "Whether all rooms are paused.", figures.is_paused),
        ("webhook_lag_seconds", lag.format("webhook"), figures.webhook_lag_seconds),
        ("failing_webhooks", "Webhooks that wait after a failure.", figures.failing_webhooks),
        ("disabled_webhooks", "Webhooks of rooms that are disabled.", figures.disabled_webhooks),
        ("stored_result_bytes", "Bytes of stored results.", figures.stored_result_bytes),
    ):
        family = _gauge(metric, text)
        family.add("", value)
        yield family


def _of_jobs(labeled: Sequence[tuple[str, JobMetrics]]) -> Iterator[Family]:
    tasks = _gauge("tasks", "Tasks in the database by job and status.")
    for labels, job in labeled:
        for status in TaskStatus:
            tasks.add(f'{labels},status="{status}"', job.tasks[status])
    yield tasks
    for metric, text, field in (
        ("queued_tasks", "Pending tasks that are in the queue of their job.", "queued"),
        ("scheduled_tasks", "Pending tasks that enter the queue later.", "scheduled"),
        ("oldest_waiting_seconds", "How long the first task of the queue has waited.", "oldest_seconds"),
        ("job_workers", "Workers that serve a job and are not draining.", "workers"),
        ("job_paused", "Whether a job is paused.", "is_paused"),
    ):
        family = _gauge(metric, text)
        for labels, job in labeled:
            if (value := getattr(job, field)) is not None:
                family.add(labels, value)
        yield family


def _totals_of_jobs(labeled: Sequence[tuple[str, JobMetrics]]) -> Iterator[Family]:
    finished = _counter("tasks_finished", "Tasks that ended, by outcome.")
    for labels, job in labeled:
        for status in sorted(TERMINAL):
            finished.add(f'{labels},outcome="{status}"', job.totals[status])
    yield finished
    for metric, text, key in (
        ("tasks_submitted", "Tasks that were submitted.", "submitted"),
        ("attempts_retried", "Attempts that failed and whose tasks returned to the queue.", "retried"),
        ("attempts_lost", "Attempts that ended because the worker was lost or a time limit passed.", "lost"),
    ):
        family = _counter(metric, text)
        for labels, job in labeled:
            family.add(labels, job.totals[key])
        yield family
    waiting = _histogram("task_waiting_seconds", "From the entry into the queue to the claim.")
    running = _histogram("task_running_seconds", "From the start of an attempt to its end.")
    bounds = bounds_of(BUCKET_BOUNDS)
    for labels, job in labeled:
        for histogram, durations in ((waiting, job.waiting), (running, job.running)):
            if any(durations.buckets):
                histogram.add_histogram(labels, bounds, durations.buckets, durations.sum)
    yield waiting
    yield running


def of_process(
    queue: QueueState, routes: Iterable[object], lag: float, *, has_database: bool
) -> Iterator[Family]:
    """Return the figures of this process since its start."""
    process = labels_of(process=f"{socket.gethostname()}:{os.getpid()}")
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
        family = _gauge(name, text)
        family.add(process, value)
        yield family
    build = _gauge("build_info", "1; the release is a label.")
    build.add(f"{process},{labels_of(version=version('zndraw-joblib'))}", 1)
    yield build
    actions = _counter("sweeper_actions", "What the sweeper of this process did.")
    for action, number in queue.sweeper.actions.items():
        actions.add(f"{labels_of(action=action)},{process}", number)
    yield actions
    deliveries = _counter("webhook_deliveries", "Attempts to deliver to webhooks, by outcome.")
    for outcome, number in queue.webhooks.outcomes.items():
        deliveries.add(f"{labels_of(outcome=outcome)},{process}", number)
    yield deliveries
    batches = _histogram("batch_items", "Requests that were written in one transaction.")
    sizes = queue.runtime.batch_items
    batches.add_histogram(process, bounds_of(sizes.bounds), sizes.buckets, sizes.sum)
    yield batches
    yield from _of_routes(process, [route for route in routes if isinstance(route, Route)])


def _of_routes(process: str, routes: Iterable[Route]) -> Iterator[Family]:
    requests = _counter("http_requests", "Requests to the queue by method, route and status.")
    seconds = _histogram(
        "http_request_seconds", "Until the response began, of requests that did not ask to wait."
    )
    for route in routes:
        for (method, status), number in list(route.counts.answered.items()):
            labels = labels_of(route=route.path_format, status=str(status))
            requests.add(f"{labels_of(method=method)},{process},{labels}", number)
        for method, histogram in list(route.counts.seconds.items()):
            labels = f"{labels_of(method=method)},{process},{labels_of(route=route.path_format)}"
            seconds.add_histogram(labels, bounds_of(histogram.bounds), histogram.buckets, histogram.sum)
    yield requests
    yield seconds


# The metrics for Prometheus, for its token, for superusers and the scope `metrics`.


async def metrics_reader(request: Request) -> None:
    """Return for the token `metrics_token`, and for one with the scope. Raises a problem otherwise."""
    expected = queue_state(request).runtime.settings.metrics_token
    values = header_values(request, b"authorization")
    scheme, _, token = values[0].partition(" ") if values else ("", "", "")
    if expected is not None and scheme.lower() == "bearer":
        metrics_token = expected.get_secret_value().encode()
        if hmac.compare_digest(token.strip().encode("latin-1"), metrics_token):
            return
    await permitted_caller(request, ops.GET_METRICS)


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


def _encode(figures: QueueMetrics | None, families: list[Family], accept: str) -> tuple[bytes, str]:
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
    """Return 200 while requests of each kind succeed, the database accepts writes and the sweeper runs.

    The check `redis` of a server that uses Redis changes no status: the server works without it, but internal
    tasks and provider results wait. Nor does `clock`, which only a server with a test clock has.
    """
    return _readiness(await queue_state(request).health.check())


def _readiness(checks: dict[str, str], *, is_brief: bool = False) -> Response:
    """Return the response of a probe; a brief one has no reasons."""
    good = not reasons(checks)
    if is_brief:
        checks = {name: "ok" if check == "ok" else "failed" for name, check in checks.items()}
    body = {"status": "ready" if good else "not ready", "checks": checks}
    headers = {"Cache-Control": "no-store"}
    return Response(to_json(body), 200 if good else 503, headers, JSON_MEDIA_TYPE)


def add_probes(app: FastAPI, path: str, health: Health) -> None:
    """Add the probes of a queue to a host's app, below `path`: the same checks, without the reasons.

    Dependencies of the whole app do not apply to them, because a container's probe has no identity.
    """

    async def send_live(_: Request) -> Response:
        return Response(to_json({"status": "alive"}), media_type=JSON_MEDIA_TYPE)

    async def send_ready(_: Request) -> Response:
        return _readiness(await health.check(), is_brief=True)

    for name, endpoint in (("live", send_live), ("ready", send_ready)):
        app.add_route(f"{path}/{name}", endpoint, methods=["GET"], include_in_schema=False)
