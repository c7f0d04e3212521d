"""The HTTP API: one router per noun. `router` includes all of them, under ``/v1/joblib``."""

from fastapi import APIRouter
from fastapi.routing import APIRoute

from zndraw_joblib.server.http import admin, batches, events, jobs, providers, results, tasks, workers

PREFIX = "/v1/joblib"
TAG = "joblib"

# The busiest first: Starlette tries routes one after another.
routes = [
    route
    for noun in (tasks, batches, workers, jobs, events, providers, results, admin)
    for route in noun.router.routes
    if isinstance(route, APIRoute)
]
router = APIRouter(prefix=PREFIX, tags=[TAG])
for _noun in (tasks, batches, workers, jobs, events, providers, results, admin):
    router.include_router(_noun.router)
