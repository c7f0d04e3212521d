"""The HTTP API: the routes of the table of operations, under ``/v1/joblib``."""

from types import ModuleType

from fastapi import APIRouter, Depends, FastAPI

from zndraw_joblib.server.http import (
    admin,
    demand,
    events,
    group_events,
    groups,
    jobs,
    metrics,
    results,
    schedules,
    tasks,
    webhooks,
    worker_tokens,
)
from zndraw_joblib.server.http.access import QueueState
from zndraw_joblib.server.http.openapi import complete_document, route_options
from zndraw_joblib.server.http.pages import add_type_files
from zndraw_joblib.server.http.routing import Endpoint, Route
from zndraw_joblib.wire.operations import OPERATIONS, PREFIX


def _endpoints(*modules: ModuleType) -> list[Endpoint]:
    """Return the functions of all operations, in the order of the table."""
    values = [value for module in modules for value in vars(module).values()] + admin.list_endpoints
    by_row = {value.operation: value for value in values if isinstance(value, Endpoint)}
    return [by_row[row] for row in OPERATIONS]


endpoints = _endpoints(
    admin,
    demand,
    events,
    group_events,
    groups,
    jobs,
    metrics,
    results,
    schedules,
    tasks,
    webhooks,
    worker_tokens,
)
# Without a queue: its operations explain how to mount one.
router = APIRouter(prefix=PREFIX)
for _endpoint in endpoints:
    router.add_api_route(_endpoint.path, _endpoint, route_class_override=Route, **route_options(_endpoint))


def add_routes(app: FastAPI, queue: QueueState, namespace: str = "") -> None:
    """Add the routes of a queue's API to an app, below its prefix.

    `namespace` begins the ids and tags of the operations, so that they differ from those of the host.
    """
    prefix, is_first = queue.prefix + PREFIX, not any(isinstance(route, Route) for route in app.router.routes)
    for endpoint in endpoints:
        # Directly into the app: Starlette searches an included router twice for each request.
        app.router.add_api_route(
            prefix + endpoint.path,
            endpoint,
            dependencies=[Depends(queue.identity)],
            route_class_override=Route,
            **route_options(endpoint, namespace),
        )
        added = app.router.routes[-1]
        if isinstance(added, Route):
            added.queue = queue
            if endpoint is endpoints[0]:
                # An identity that FastAPI cannot use fails here, and not with the first document.
                added.derive()
    add_type_files(app, prefix, queue.prefix)
    if is_first:
        complete_document(app)
