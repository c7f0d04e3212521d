"""The OpenAPI document: ids, tags, problems and examples of the operations."""

import inspect
import re
from collections import defaultdict
from functools import cache
from typing import Any

from fastapi import FastAPI, Response
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel

from zndraw_joblib.server.http.routing import Endpoint, Route
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.operations import NO_CONTENT, Operation, Problems
from zndraw_joblib.wire.problems import PROBLEM_MEDIA_TYPE, Problem, ProblemException

PROBLEM_REF = "#/components/schemas/Problem"


@cache
def problem_responses(kinds: Problems) -> dict[int | str, dict[str, Any]]:
    """Return the error responses of an operation, with an example of each problem."""
    by_status: dict[int, list[type[ProblemException]]] = defaultdict(list)
    for kind in kinds:
        by_status[kind.status].append(kind)
    return {
        status: {
            "description": ", ".join(f"`{kind.problem_id()}`" for kind in group),
            "content": {
                PROBLEM_MEDIA_TYPE: {
                    "schema": {"$ref": PROBLEM_REF},
                    "examples": {kind.problem_id(): _example(kind) for kind in group},
                }
            },
        }
        for status, group in by_status.items()
    }


def _example(kind: type[ProblemException]) -> dict[str, Any]:
    summary = (inspect.getdoc(kind) or kind.title).partition("\n")[0]
    return {"summary": summary, "value": kind.create().model_dump(exclude_none=True)}


# The id, summary, tag, responses and examples of each operation in the OpenAPI document.

TAGS = {
    "tasks": "Submit, claim, report, search and change tasks.",
    "results": "The results of tasks, as JSON or as bytes.",
    "events": "Streams of what happens to a task or in a room, by Server-Sent Events or as JSON.",
    "jobs": "Register, list and pause jobs.",
    "rooms": "Rooms and their counts.",
    "workers": "Workers and their heartbeats.",
    "groups": "Tasks that are counted and followed together, and what follows their end.",
    "schedules": "Rules by which the server submits tasks of a job at due times.",
    "webhooks": "URLs that get the events of a room, and the deliveries to them.",
    "providers": "Remote data sources, requests to them, and their results.",
    "overview": "The state of the queue, statistics and metrics.",
    "admin": "For operators: the sweeper, the settings, the audit trail.",
    "server": "The caller, and the release of the server.",
    "problems": "The types of problems.",
    "health": "Liveness and readiness of the server process.",
}
# What FastAPI makes of an answer that is no model.
_CLASSES: dict[Any, type[Response]] = {bytes: Response, str: PlainTextResponse}
# Pydantic's name of the schema if the host has another model of the name `Problem`.
_LONG_REF = f"#/components/schemas/{Problem.__module__.replace('.', '__')}__{Problem.__qualname__}"


def operation_id(name: str, namespace: str = "") -> str:
    """Return the operation id of an endpoint: `submit_task` is `submitTask`, in a host `joblibSubmitTask`."""
    first, *rest = [part for part in f"{namespace}_{name}".split("_") if part]
    return first + "".join(part[0].upper() + part[1:] for part in rest)


def namespace_of(prefix: str, *, is_host: bool) -> str:
    """Return the namespace of a queue below a path prefix, in a host or in the standalone app."""
    return ("joblib" if is_host else "") + re.sub(r"\W+", "_", prefix)


def tag_metadata(namespace: str = "") -> list[dict[str, str]]:
    """Return the tags with their descriptions."""
    return [{"name": tag_of(tag, namespace), "description": text} for tag, text in TAGS.items()]


def tag_of(tag: str, namespace: str = "") -> str:
    """Return the tag of an operation, in a host after the namespace of the queue."""
    return f"{namespace} {tag}".strip()


def route_options(endpoint: Endpoint, namespace: str = "") -> dict[str, Any]:
    """Return the options of `add_api_route` for an operation, all but its path.

    `namespace` keeps ids and tags apart from those of a host.
    """
    row, options = endpoint.operation, dict(endpoint.documented)
    responses = {
        **problem_responses(row.all_problems),
        **_documented_responses(row, options.pop("responses", {})),
    }
    model: dict[str, Any] = {"response_class": _CLASSES.get(row.answer, Response)}
    if issubclass(row.answer, BaseModel):
        model = {"response_model": row.answer}
    elif row.answer is NO_CONTENT:
        model = {"response_model": None}
    return {
        "name": row.name,
        "methods": [row.method],
        "status_code": row.status,
        "operation_id": operation_id(row.name, namespace),
        "summary": row.name.replace("_", " ").capitalize(),
        "tags": [tag_of(row.tag, namespace)],
        "responses": dict(sorted(responses.items(), key=lambda entry: str(entry[0]))),
        "openapi_extra": _with_examples(row, options.pop("openapi_extra", {})),
        **model,
    }


def complete_document(app: FastAPI) -> None:
    """Add to the document of an app what its routes cannot declare.

    These are examples with nulls, which FastAPI drops, and the name of the queue's `Problem` if the host has
    another schema of that name.
    """
    build = app.openapi

    def openapi() -> dict[str, Any]:
        document = build()
        paths = document.get("paths", {})
        for route in app.router.routes:
            if isinstance(route, Route):
                for method in route.methods or ():
                    # A host may leave operations out of its document.
                    if operation := paths.get(route.path_format, {}).get(method.lower()):
                        _add_example(route.endpoint.operation, operation.get("responses", {}))
        if _LONG_REF.rpartition("/")[2] in document.get("components", {}).get("schemas", {}):
            _rename_problem(paths)
        return document

    # The way that FastAPI documents for changes of the document.
    app.openapi = openapi  # type: ignore[method-assign]


def _rename_problem(paths: dict[str, dict[str, Any]]) -> None:
    for operations in paths.values():
        for operation in operations.values():
            # A path may have a text or parameters beside its operations.
            for response in operation.get("responses", {}).values() if isinstance(operation, dict) else ():
                content = response.get("content", {}).get(PROBLEM_MEDIA_TYPE, {})
                if content.get("schema") == {"$ref": PROBLEM_REF}:
                    content["schema"] = {"$ref": _LONG_REF}


# Examples of requests and responses of the main operations.

_WORKER_ID = "0198c5a4-7a10-7c31-9d3e-5b8f0f6a2b11"
_TASK_ID = "0198c5a5-0b42-7f20-8a77-3c1d9e4f5a60"
_JOB_ID = "0198c5a4-7a0e-7b02-b6c1-0e2f7d9a8c33"
_CLAIM_ID = "0198c5a5-1c00-7d11-9f42-6a7b8c9d0e1f"
_JOB = "@global:modifiers:Rotate"
_SCHEMA = {
    "type": "object",
    "properties": {"angle": {"type": "number", "description": "In degrees."}},
    "required": ["angle"],
}
_POLICY = {
    "max_attempts": 3,
    "retry_on": ["error", "timeout", "worker_lost"],
    "non_retryable": ["ValueError"],
    "backoff": {"base_seconds": 1.0, "factor": 2.0, "cap_seconds": 60.0, "jitter": 0.0},
    "max_crashes": 3,
    "timeout_seconds": 600.0,
    "expected_seconds": 600.0,
    "start_timeout_seconds": 60.0,
    "max_in_flight": None,
    "max_pending": None,
    "max_pending_per_room": 1000,
    "limits": [{"name": None, "key": "/user_id", "max_in_flight": 2, "rate": None}],
    "priority": 0,
    "without_workers": "queue",
    "keep": {"completed": 604800.0, "failed": "forever", "cancelled": None},
    "requires": {"memory_gb": {">=": 40}},
    "cost": 1,
    "prefer": {"host": "node7"},
    "batch": {"max": 32, "wait_seconds": 0.2, "key": "/model"},
}
_PENDING_TASK: dict[str, Any] = {
    "id": _TASK_ID,
    "job_name": _JOB,
    "room_id": "lab",
    "status": "pending",
    "created_at": "2026-03-01T12:00:00.000000Z",
    "started_at": None,
    "completed_at": None,
    "worker_id": None,
    "error": None,
    "payload": {"angle": 90},
    "queue_position": 1,
    "attempt": 0,
    "attempts": 0,
    "created_by": "ada",
    "result": None,
    "error_code": None,
    "priority": 0,
    "run_at": None,
    "expires_at": None,
    "version": 1,
}
_CLAIMED_TASK = _PENDING_TASK | {
    "status": "claimed",
    "worker_id": _WORKER_ID,
    "queue_position": None,
    "attempt": 1,
    "attempts": 1,
}
_RUNNING_TASK = _CLAIMED_TASK | {"status": "running", "started_at": "2026-03-01T12:00:01.000000Z"}
_COMPLETED_TASK = _RUNNING_TASK | {
    "status": "completed",
    "completed_at": "2026-03-01T12:00:03.000000Z",
    "result": {"rotated": 12},
}
_WORKER = {
    "id": _WORKER_ID,
    "last_heartbeat": "2026-03-01T12:00:00.000000Z",
    "heartbeat_interval_seconds": 20.0,
    "drain": False,
    "tasks": [],
}
_GROUP = {
    "id": "01a21ee2-5777-74cb-b3e8-12732f527a0b",
    "room": "lab",
    "name": "all angles",
    "created_by": "ada",
    "created_at": "2026-03-01T12:00:00.000000Z",
    "sealed": True,
    "expires_at": None,
    "ended_at": None,
    "total": 4,
    "counts": {"pending": 1, "claimed": 0, "running": 1, "completed": 2, "failed": 0, "cancelled": 0},
    "progress": 0.625,
    "failures": [],
}
_HOLDER = {"worker_id": _WORKER_ID, "attempt": 1}
_FILTER = {"status": ["failed"], "room": ["lab"]}

Examples = dict[str, tuple[str, Any]]
# Examples of the body, each with its summary.
REQUESTS: dict[Operation[Any], Examples] = {
    ops.REGISTER_JOB: {
        "job": (
            "A job with a policy",
            {"category": "modifiers", "name": "Rotate", "schema": _SCHEMA, "max_attempts": 3},
        )
    },
    ops.SUBMIT_TASK: {
        "task": ("Run as soon as possible", {"payload": {"angle": 90}}),
        "scheduled": ("Run in a minute", {"payload": {"angle": 90}, "delay_seconds": 60, "priority": 10}),
        "unique": (
            "Run once, 2 s after the last submit with this key",
            {
                "payload": {"angle": 90},
                "unique": {"key": "rotate", "until": "started"},
                "debounce": {"seconds": 2, "max_seconds": 10},
            },
        ),
    },
    ops.SUBMIT_TASKS: {
        "tasks": (
            "Two tasks, both or none",
            {
                "tasks": [
                    {"room_id": "lab", "job_name": _JOB, "payload": {"angle": 90}},
                    {"room_id": "lab", "job_name": _JOB, "payload": {"angle": 180}},
                ],
                "atomic": True,
            },
        )
    },
    ops.CREATE_GROUP: {
        "group": (
            "A group, and a task to submit when all of its tasks have ended",
            {
                "room": "lab",
                "name": "all angles",
                "on_end": {"job": _JOB, "payload": {"counts": {"$group": "counts"}}},
            },
        )
    },
    ops.UPDATE_GROUP: {"seal": ("No more tasks are added", {"sealed": True})},
    ops.CLAIM_TASK: {
        "one": ("The next task", {"worker_id": _WORKER_ID, "claim_id": _CLAIM_ID}),
        "several": ("Up to ten, started at once", {"worker_id": _WORKER_ID, "max": 10, "start": True}),
    },
    ops.UPDATE_TASK: {
        "start": ("Start the task", {"status": "running", **_HOLDER}),
        "progress": (
            "Report progress",
            {"progress": {"current": 3, "total": 12, "unit": "atoms"}, **_HOLDER},
        ),
        "complete": ("Complete the task", {"status": "completed", "result": {"rotated": 12}, **_HOLDER}),
        "fail": ("Fail the task", {"status": "failed", "error": "No atoms are selected", **_HOLDER}),
        "cancel": ("Cancel the task, as its submitter", {"status": "cancelled"}),
    },
    ops.REPORT_TASKS: {
        "reports": (
            "The end of one task",
            {
                "worker_id": _WORKER_ID,
                "reports": [{"id": _TASK_ID, "status": "completed", "attempt": 1, "result": {"rotated": 12}}],
            },
        )
    },
    ops.PUT_JOB: {"waiting": ("Tasks wait for a worker", {"schema": _SCHEMA, "without_workers": "queue"})},
    ops.FAIL_TASK: {"reason": ("With the reason", {"error": "The cluster is shut down"})},
    ops.CREATE_WORKER: {"worker": ("With a name", {"name": "gpu-1", "slots": 4})},
    ops.SEND_HEARTBEAT: {"heartbeat": ("With the held tasks", {"tasks": [{"id": _TASK_ID, "attempt": 1}]})},
    ops.REGISTER_PROVIDER: {
        "folder": (
            "A folder",
            {
                "category": "filesystem",
                "name": "data",
                "schema": {"type": "object", "properties": {"path": {"type": "string"}}},
                "worker_id": _WORKER_ID,
            },
        )
    },
    ops.CLAIM_PROVIDER_REQUEST: {"claim": ("The next request", {"worker_id": _WORKER_ID})},
    ops.PREVIEW_BULK_ACTION: {"retry": ("Failed tasks of a room", {"action": "retry", "filter": _FILTER})},
    ops.APPLY_BULK_ACTION: {
        "retry": (
            "With the token of the preview",
            {"action": "retry", "filter": _FILTER, "token": "token-of-the-preview"},
        )
    },
    ops.UPDATE_SWEEPER: {"observe": ("Log only", {"mode": "observe"})},
}
_RATE = {
    "RateLimit": "How many submits the caller may still make, and the seconds until it has all of them.",
    "RateLimit-Policy": "How many tasks a caller may submit, and in how many seconds, if that is limited.",
}
_CREATED = {
    "Location": "The path of the task.",
    "Retry-After": "Seconds to wait before the task is read.",
    **_RATE,
}
_WAITED = {"Preference-Applied": "`wait=N`, if the request preferred to wait."}
# The status of an example, its body, and the headers of the response.
RESPONSES: dict[Operation[Any], tuple[int, Any, dict[str, str]]] = {
    ops.REGISTER_JOB: (
        201,
        {
            "id": _JOB_ID,
            "room_id": "@global",
            "category": "modifiers",
            "name": "Rotate",
            "full_name": _JOB,
            "schema": _SCHEMA,
            "workers": [_WORKER_ID],
            "worker_id": _WORKER_ID,
            "paused": False,
            "paused_until": None,
            "unserved_since": None,
            "version": 1,
            "versions": [{"version": 1, "current": True, "workers": 1, "pending": 0, "scheduled": 0}],
            **_POLICY,
        },
        {},
    ),
    ops.SUBMIT_TASK: (202, _PENDING_TASK, _CREATED),
    ops.SUBMIT_TASKS: (
        200,
        {"results": [{"status": 202, "id": _TASK_ID, "task": _PENDING_TASK}]},
        {"Preference-Applied": "`return=minimal`, if the request preferred it.", **_RATE},
    ),
    ops.CLAIM_TASK: (
        200,
        {"task": _CLAIMED_TASK, "reason": None},
        {**_WAITED, "Retry-After": "Seconds to wait before the next claim, if a limit or a pause applies."},
    ),
    ops.GET_TASK: (200, _COMPLETED_TASK, _WAITED),
    ops.GET_GROUP: (200, _GROUP, _WAITED),
    ops.UPDATE_TASK: (200, _RUNNING_TASK, {}),
    ops.LIST_TASKS: (200, {"items": [_COMPLETED_TASK], "total": 1, "limit": 50, "offset": 0}, {}),
    ops.CREATE_WORKER: (201, _WORKER, {}),
    ops.SEND_HEARTBEAT: (200, _WORKER | {"tasks": [{"id": _TASK_ID, "verdict": "continue"}]}, {}),
    ops.CREATE_TASK_STREAM_TOKEN: (
        201,
        {"token": "token-of-the-stream", "expires_at": "2026-03-01T12:05:00.000000Z"},
        {},
    ),
}


_DESCRIPTIONS = {200: "Success", 201: "Created", 202: "Accepted"}


def _with_examples(row: Operation[Any], extra: dict[str, Any]) -> dict[str, Any]:
    """Return the extra fields of an operation, with the examples of its body."""
    if row not in REQUESTS:
        return dict(extra)
    examples = {
        name: {"summary": summary, "value": value} for name, (summary, value) in REQUESTS[row].items()
    }
    return {**extra, "requestBody": {"content": {"application/json": {"examples": examples}}}}


def _documented_responses(
    row: Operation[Any], responses: dict[int | str, dict[str, Any]]
) -> dict[int | str, dict[str, Any]]:
    """Return the successful responses of an operation, one of them with its headers."""
    if row not in RESPONSES:
        return dict(responses)
    status, _, headers = RESPONSES[row]
    texts = {name: {"description": text, "schema": {"type": "string"}} for name, text in headers.items()}
    described = {"description": _DESCRIPTIONS[status], **({"headers": texts} if texts else {})}
    return {**responses, status: {**described, **responses.get(status, {})}}


def _add_example(row: Operation[Any], responses: dict[str, Any]) -> None:
    """Add the example of an operation to its responses in a document."""
    if row in RESPONSES:
        status, body, _ = RESPONSES[row]
        content = responses.get(str(status), {}).get("content", {}).get("application/json")
        if content is not None:
            content["example"] = body
