"""The HTTP API: one router per noun. `router` includes all of them, under ``/v1/joblib``."""

from typing import cast

from fastapi import APIRouter, Depends, FastAPI
from fastapi.routing import APIRoute

from zndraw_joblib.server.http import admin, events, jobs, metrics, providers, results, tasks, workers
from zndraw_joblib.server.http.openapi import complete_document, description_of
from zndraw_joblib.server.http.pages import add_type_files
from zndraw_joblib.server.http.routing import Route, make_route
from zndraw_joblib.server.http.state import QueueState

PREFIX = "/v1/joblib"

# The busiest first: Starlette tries routes one after another. Of two that match, the one with the literal
# path comes first: `/tasks/counts`, then `/tasks/{task_id}`.
_routers = (
    *(admin.searches_router, tasks.router, tasks.batches_router, workers.router, jobs.router, events.router),
    *(providers.router, results.router, admin.router, admin.me_router, admin.job_list_router),
    *(admin.room_list_router, admin.provider_list_router, metrics.router, admin.overview_router),
    *(admin.audit_router, admin.bulk_router, admin.ids_router),
)
routes = [route for each in _routers for route in each.routes if isinstance(route, APIRoute)]
router = APIRouter(prefix=PREFIX)
for _router in _routers:
    router.include_router(_router)


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
