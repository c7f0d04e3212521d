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

from chaos.jobs import Job, Slow, Step, Summary
from chaos.records import WorkerLog
from zndraw_joblib import ClaimedTask, JobManager
from zndraw_joblib.client.connection import Connection
from zndraw_joblib.wire.operations import PREFIX

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
        if request.url.path.endswith("/tasks/report"):
            del request.headers["Prefer"]  # the checker needs the tasks in the response
        sent = [(next(self._numbers), time.time(), fields) for fields in describe_requests(request)]
        for number, at, fields in sent:
            self._log.write("sent", number=number, at=at, **fields)
        request.extensions["sent"] = sent

    def raise_for_status(self, response: httpx.Response) -> None:
        """Log the response, then raise if it reports an error."""
        if sent := response.request.extensions.get("sent", []):
            answers = describe_responses(response, len(sent))
            _, at, fields = sent[0]
            # A claim is one request, and one record for each task that it gets.
            for _ in answers[len(sent) :]:
                sent.append((next(self._numbers), at, fields))
                self._log.write("sent", number=sent[-1][0], at=at, **fields)
            for (number, _, _), answer in zip(sent, answers, strict=True):
                self._log.write("answered", number=number, **answer)
        super().raise_for_status(response)


def describe_requests(request: httpx.Request) -> list[dict[str, Any]]:
    """Return the fields of each `WorkerRequest`; none for a request that the checker does not need."""
    path = request.url.path.removeprefix(f"{PREFIX}/").split("/")
    body = json.loads(request.content or b"{}")
    match request.method, *path:
        case "POST", "tasks", "claim":
            return [{"kind": "claim", "worker_id": body["worker_id"]}]
        case "POST", "tasks", "report":
            return [_report(each["id"], each, body["worker_id"]) for each in body["reports"]]
        case "PATCH", "tasks", task_id:
            return [_report(task_id, body, body.get("worker_id"))]
        case ("PATCH" | "DELETE") as method, "workers", worker_id:
            return [{"kind": "heartbeat" if method == "PATCH" else "delete", "worker_id": worker_id}]
        case "PUT", "rooms", _, "jobs":
            return [{"kind": "register", "worker_id": body.get("worker_id")}]
    return []


def _report(task_id: str, report: dict[str, Any], worker_id: str | None) -> dict[str, Any]:
    claim = {"worker_id": worker_id, "attempt": report.get("attempt")}
    return {"kind": "report", "task_id": task_id, "status": report["status"], **claim}


def describe_responses(response: httpx.Response, count: int) -> list[dict[str, Any]]:
    """Return the fields of at least `count` `WorkerRequest`s that only the response contains."""
    code = {"status_code": response.status_code}
    if not response.is_success or not response.content:
        return [code] * count
    body = response.json()
    if "results" in body:
        return [
            {"status_code": each["status"], **_task_fields(each.get("task"), with_claim=False)}
            for each in body["results"]
        ]
    if response.request.url.path.endswith("/tasks/claim"):
        tasks = body.get("tasks") or [body.get("task")]
        return [{**code, **_task_fields(task, with_claim=True)} for task in tasks]
    if "payload" in body:
        return [{**code, **_task_fields(body, with_claim=False)}]
    return [{**code, "worker_id": body["worker_id"]} if "worker_id" in body else code]


def _task_fields(task: dict[str, Any] | None, *, with_claim: bool) -> dict[str, Any]:
    if task is None:
        return {}
    if with_claim:
        return {"task_id": task["id"], "attempt": task["attempt"]}
    return {"resulting_status": task["status"]}


def run(url: str, token: str, path: Path, jobs: Sequence[Job], concurrency: int) -> None:
    """Serve `jobs` until SIGTERM."""
    logging.basicConfig(filename=path.with_suffix(".log"), format="%(asctime)s %(threadName)s %(message)s")
    log = WorkerLog(path)

    def execute(task: ClaimedTask) -> dict[str, Any]:
        fields = {"task_id": task.task_id, "attempt": task.attempt, "worker_id": str(task.worker_id)}
        log.write("started", **fields)
        fails = task.attempt <= task.extension.failures
        if isinstance(task.extension, Step) and task.extension.success_file:
            fails = not Path(task.extension.success_file).exists()
        is_overlong = fails and isinstance(task.extension, Slow)
        time.sleep(_OVERLONG_SECONDS if is_overlong else task.extension.seconds)
        while task.extension.release_file and not Path(task.extension.release_file).exists():
            time.sleep(_POLL_SECONDS)
        log.write("finished", **fields)
        if fails:
            raise PlannedFailure(f"attempt {task.attempt} of {task.extension.failures + 1}")
        result = {"task_id": task.task_id, "attempt": task.attempt, "pid": os.getpid()}
        if isinstance(task.extension, Summary):
            result["members"] = task.extension.results
        return result

    with (
        LoggedConnection(url, token, log) as api,
        JobManager(api, execute=execute, concurrency=concurrency) as manager,
    ):

        def register() -> None:
            for job in jobs:
                manager.register(job.cls, room=job.room, **job.policy)

        manager.wait(register)
