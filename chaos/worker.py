"""A worker process: it uses the SDK, and logs every request, response and execution."""

import itertools
import json
import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from chaos.jobs import Job, Slow
from chaos.records import WorkerLog
from zndraw_joblib import ClaimedTask, JobManager
from zndraw_joblib.worker.api import API_PREFIX, Connection

_TIMEOUT_SECONDS = 5.0
_POLL_SECONDS = 0.02
_OVERLONG_SECONDS = 2.5


class PlannedFailure(Exception):
    """The submission requested that this attempt fails."""


class LoggedConnection(Connection):
    """A connection that logs each request before it sends it, and each response."""

    def __init__(self, url: str, token: str, log: WorkerLog) -> None:
        super().__init__(url, token, _TIMEOUT_SECONDS)
        self._log = log
        self._numbers = itertools.count()
        self.http.event_hooks = {"request": [self._log_request]}

    def _log_request(self, request: httpx.Request) -> None:
        if fields := describe_request(request):
            number = request.extensions["number"] = next(self._numbers)
            self._log.write("sent", number=number, **fields)

    def raise_for_status(self, response: httpx.Response) -> None:
        """Log the response, then raise if it reports an error."""
        number = response.request.extensions.get("number")
        if number is not None:
            fields = describe_response(response)
            self._log.write("answered", number=number, status_code=response.status_code, **fields)
        super().raise_for_status(response)


def describe_request(request: httpx.Request) -> dict[str, Any]:
    """Return the fields of a `WorkerRequest`; an empty dict for a request that the checker does not need."""
    path = request.url.path.removeprefix(f"{API_PREFIX}/").split("/")
    body = json.loads(request.content or b"{}")
    match request.method, *path:
        case "POST", "tasks", "claim":
            return {"kind": "claim", "worker_id": body["worker_id"]}
        case "PATCH", "tasks", task_id:
            claim = {"worker_id": body.get("worker_id"), "attempt": body.get("attempt")}
            return {"kind": "report", "task_id": task_id, "status": body["status"], **claim}
        case "PATCH", "workers", worker_id:
            return {"kind": "heartbeat", "worker_id": worker_id}
        case "DELETE", "workers", worker_id:
            return {"kind": "delete", "worker_id": worker_id}
        case "PUT", "rooms", _, "jobs":
            return {"kind": "register", "worker_id": body.get("worker_id")}
    return {}


def describe_response(response: httpx.Response) -> dict[str, Any]:
    """Return the fields of a `WorkerRequest` that only the response contains."""
    if not response.is_success or not response.content:
        return {}
    body = response.json()
    if "task" in body:
        task = body["task"] or {}
        return {"task_id": task.get("id"), "attempt": task.get("attempt")}
    if "payload" in body:
        return {"resulting_status": body["status"]}
    return {"worker_id": body["worker_id"]} if "worker_id" in body else {}


def run(url: str, token: str, path: Path, jobs: Sequence[Job], concurrency: int) -> None:
    """Serve `jobs` until SIGTERM."""
    logging.basicConfig(filename=path.with_suffix(".log"), format="%(asctime)s %(threadName)s %(message)s")
    log = WorkerLog(path)

    def execute(task: ClaimedTask) -> dict[str, Any]:
        fields = {"task_id": task.task_id, "attempt": task.attempt, "worker_id": str(task.worker_id)}
        log.write("started", **fields)
        fails = task.attempt <= task.extension.failures
        is_overlong = fails and isinstance(task.extension, Slow)
        time.sleep(_OVERLONG_SECONDS if is_overlong else task.extension.seconds)
        while task.extension.release_file and not Path(task.extension.release_file).exists():
            time.sleep(_POLL_SECONDS)
        log.write("finished", **fields)
        if fails:
            raise PlannedFailure(f"attempt {task.attempt} of {task.extension.failures + 1}")
        return {"task_id": task.task_id, "attempt": task.attempt, "pid": os.getpid()}

    with (
        LoggedConnection(url, token, log) as api,
        JobManager(api, execute=execute, concurrency=concurrency) as manager,
    ):

        def register() -> None:
            for job in jobs:
                manager.register(job.cls, room=job.room, **job.policy)

        manager.wait(register)
