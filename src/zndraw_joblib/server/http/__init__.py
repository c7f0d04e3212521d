"""The HTTP API: one router per noun. `router` includes all of them, under ``/v1/joblib``."""

from collections.abc import Callable
from typing import Any

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
from zndraw_joblib.server.http.problems import PROBLEM_RESPONSES
from zndraw_joblib.server.http.routing import Route

PREFIX = "/v1/joblib"
TAG = "joblib"

# The busiest first: Starlette tries routes one after another. Of two that match, the one with the literal
# path comes first: `/tasks/counts`, then `/tasks/{task_id}`.
_nouns = (
    *(searches, tasks, batches, workers, jobs, events, providers, results, admin),
    *(me, job_list, room_list, provider_list, metrics, overview),
    *(audit, bulk, ids),
)
routes = [route for noun in _nouns for route in noun.router.routes if isinstance(route, APIRoute)]
router = APIRouter(prefix=PREFIX, tags=[TAG])
for _noun in _nouns:
    router.include_router(_noun.router)


def add_routes(app: FastAPI, identity: Callable[..., Any]) -> None:
    """Add the routes of the API to an app; `identity` is the dependency that returns the caller."""
    for route in routes:
        # Directly into the app: Starlette searches an included router twice for each request.
        app.router.add_api_route(
            PREFIX + route.path,
            route.endpoint,
            methods=list(route.methods or ()),
            name=route.name,
            tags=[TAG],
            status_code=route.status_code,
            response_model=route.response_model,
            responses={**PROBLEM_RESPONSES, **route.responses},
            dependencies=[Depends(identity)],
            route_class_override=Route,
        )
