"""The HTTP API: one router per noun. `router` includes all of them, under ``/v1/joblib``."""

from typing import cast

from fastapi import APIRouter, Depends, FastAPI
from fastapi.routing import APIRoute

from zndraw_joblib.server.http import (
    admin,
    audit,
    batches,
    bulk,
    events,
    ids,
    job_list,
    jobs,
    me,
    metrics,
    overview,
    provider_list,
    providers,
    results,
    room_list,
    searches,
    tasks,
    workers,
)
from zndraw_joblib.server.http.openapi.operations import complete_document, description_of
from zndraw_joblib.server.http.routing import Route, make_route
from zndraw_joblib.server.http.state import QueueState
from zndraw_joblib.server.http.type_files import add_type_files

PREFIX = "/v1/joblib"

# The busiest first: Starlette tries routes one after another. Of two that match, the one with the literal
# path comes first: `/tasks/counts`, then `/tasks/{task_id}`.
_nouns = (
    *(searches, tasks, batches, workers, jobs, events, providers, results, admin),
    *(me, job_list, room_list, provider_list, metrics, overview),
    *(audit, bulk, ids),
)
routes = [route for noun in _nouns for route in noun.router.routes if isinstance(route, APIRoute)]
router = APIRouter(prefix=PREFIX)
for _noun in _nouns:
    router.include_router(_noun.router)


def add_routes(app: FastAPI, queue: QueueState, namespace: str = "") -> None:
    """Add the routes of a queue's API to an app, below its prefix.

    `namespace` begins the ids and tags of the operations, so that they differ from those of the host.
    """
    prefix, is_first = queue.prefix + PREFIX, not any(isinstance(each, Route) for each in app.router.routes)
    for route in routes:
        # Directly into the app: Starlette searches an included router twice for each request.
        app.router.add_api_route(
            prefix + route.path,
            route.endpoint,
            methods=list(route.methods or ()),
            name=route.name,
            status_code=route.status_code,
            response_model=route.response_model,
            response_class=route.response_class,
            dependencies=[Depends(queue.identity)],
            route_class_override=cast("type[APIRoute]", make_route),
            **description_of(route, namespace),
        )
        added = app.router.routes[-1]
        if isinstance(added, Route):
            added.queue = queue
    add_type_files(app, prefix, queue.prefix)
    if is_first:
        complete_document(app)
