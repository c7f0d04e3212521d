"""A worker process: the project's own SDK, and a journal of all that it does and is told."""

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
from chaos.journal import Journal
from zndraw_joblib import ClaimedTask, JobManager
from zndraw_joblib.worker.api import API_PREFIX, Connection

_ANSWER_SECONDS = 5.0
_LOOK_SECONDS = 0.02
_HANG_SECONDS = 2.5


class Failed(Exception):
    """The task was submitted to fail."""


class Recorded(Connection):
    """A connection that writes down each request before it goes, and each answer once it is there."""

    def __init__(self, url: str, token: str, journal: Journal) -> None:
        super().__init__(url, token, _ANSWER_SECONDS)
        self._journal = journal
        self._numbers = itertools.count()
        self.http.event_hooks = {"request": [self._note_request]}

    def _note_request(self, request: httpx.Request) -> None:
        said = describe(request)
        if said:
            number = request.extensions["number"] = next(self._numbers)
            self._journal.note("sent", number=number, **said)

    def raise_for_status(self, response: httpx.Response) -> None:
        """Write the answer down, then raise if it is an error."""
        number = response.request.extensions.get("number")
        if number is not None:
            self._journal.note("answered", number=number, code=response.status_code, **heard(response))
        super().raise_for_status(response)


def describe(request: httpx.Request) -> dict[str, Any]:
    """Return what a request is about; nothing, where it is none that counts."""
    path = request.url.path.removeprefix(f"{API_PREFIX}/").split("/")
    body = json.loads(request.content or b"{}")
    match request.method, *path:
        case "POST", "tasks", "claim":
            return {"kind": "claim", "worker": body["worker_id"]}
        case "PATCH", "tasks", task:
            token = {"worker": body.get("worker_id"), "attempt": body.get("attempt")}
            return {"kind": "report", "task": task, "asked": body["status"], **token}
        case "PATCH", "workers", worker:
            return {"kind": "beat", "worker": worker}
        case "DELETE", "workers", worker:
            return {"kind": "leave", "worker": worker}
        case "PUT", "rooms", _, "jobs":
            return {"kind": "register", "worker": body.get("worker_id")}
    return {}


def heard(response: httpx.Response) -> dict[str, Any]:
    """Return what an answer says that its request did not."""
    if not response.is_success or not response.content:
        return {}
    body = response.json()
    if "task" in body:
        task = body["task"] or {}
        return {"task": task.get("id"), "attempt": task.get("attempt")}
    if "payload" in body:
        return {"became": body["status"]}
    return {"worker": body["worker_id"]} if "worker_id" in body else {}


def work(url: str, token: str, path: Path, jobs: Sequence[Job], concurrency: int) -> None:
    """Serve `jobs` until SIGTERM."""
    logging.basicConfig(filename=path.with_suffix(".log"), format="%(asctime)s %(threadName)s %(message)s")
    journal = Journal(path)

    def execute(task: ClaimedTask) -> dict[str, Any]:
        mark = {"task": task.task_id, "attempt": task.attempt, "worker": str(task.worker_id)}
        journal.note("started", **mark)
        fails = task.attempt <= task.extension.failures
        time.sleep(_HANG_SECONDS if fails and isinstance(task.extension, Slow) else task.extension.seconds)
        while task.extension.gate and not Path(task.extension.gate).exists():
            time.sleep(_LOOK_SECONDS)
        journal.note("finished", **mark)
        if fails:
            raise Failed(f"attempt {task.attempt} of {task.extension.failures + 1}")
        return {"task": task.task_id, "attempt": task.attempt, "pid": os.getpid()}

    with (
        Recorded(url, token, journal) as api,
        JobManager(api, execute=execute, concurrency=concurrency) as manager,
    ):

        def register() -> None:
            for job in jobs:
                manager.register(job.cls, room=job.room, **job.policy)

        manager.wait(register)
