"""The routes of the HTTP API, made from the table of operations, under ``/v1/joblib``."""

from typing import cast

from fastapi import APIRouter, Depends, FastAPI
from fastapi.routing import APIRoute

from zndraw_joblib.server.http import admin, events, jobs, metrics, providers, results, tasks, workers
from zndraw_joblib.server.http.openapi import complete_document, description_of
from zndraw_joblib.server.http.pages import add_type_files
from zndraw_joblib.server.http.routing import Route, make_route
from zndraw_joblib.server.http.state import QueueState
from zndraw_joblib.wire.operations import OPERATIONS, PREFIX

_modules = (tasks, workers, jobs, events, providers, results, admin, metrics)
# In the order of the table. A row without a function is an error here.
_served = {row: work for module in _modules for row, work in module.operations.items()}
_work = [_served[row] for row in OPERATIONS]
router = APIRouter(prefix=PREFIX, route_class=Route)
for _each in _work:
    router.add_api_route(**_each.options())


def add_routes(app: FastAPI, queue: QueueState, namespace: str = "") -> None:
    """Add the routes of a queue's API to an app, below its prefix.

    `namespace` begins the ids and tags of the operations, so that they differ from those of the host.
    """
    prefix, is_first = queue.prefix + PREFIX, not any(isinstance(each, Route) for each in app.router.routes)
    for work in _work:
        options = {**work.options(), **description_of(work, namespace)}
        # Directly into the app: Starlette searches an included router twice for each request.
        app.router.add_api_route(
            prefix + options.pop("path"),
            dependencies=[Depends(queue.identity)],
            route_class_override=cast("type[APIRoute]", make_route),
            **options,
        )
        added = app.router.routes[-1]
        if isinstance(added, Route):
            added.queue = queue
    add_type_files(app, prefix, queue.prefix)
    if is_first:
        complete_document(app)
