"""HTTP: one router a noun. `router` is all of them, under ``/v1/joblib``."""

from fastapi import APIRouter

from zndraw_joblib.server.http import jobs, tasks, workers

PREFIX = "/v1/joblib"

router = APIRouter(prefix=PREFIX, tags=["joblib"])
for _noun in (workers, jobs, tasks):
    router.include_router(_noun.router)
