"""Examples of requests and responses of the main operations."""

from typing import Any

from zndraw_joblib.server.http.routing import Work

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
    "retry_on": ["worker_lost"],
    "backoff": {"base_seconds": 1.0, "factor": 2.0, "cap_seconds": 60.0, "jitter": 0.0},
    "max_crashes": 3,
    "timeout_seconds": 600.0,
    "start_timeout_seconds": 60.0,
    "max_in_flight": None,
    "priority": 0,
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
_HOLDER = {"worker_id": _WORKER_ID, "attempt": 1}
_FILTER = {"status": ["failed"], "room": ["lab"]}

Examples = dict[str, tuple[str, Any]]
# By the name of the endpoint: examples of the body, each with its summary.
REQUESTS: dict[str, Examples] = {
    "register_job": {
        "job": (
            "A job with a policy",
            {"category": "modifiers", "name": "Rotate", "schema": _SCHEMA, "max_attempts": 3},
        )
    },
    "submit_task": {
        "task": ("Run as soon as possible", {"payload": {"angle": 90}}),
        "scheduled": ("Run in a minute", {"payload": {"angle": 90}, "delay_seconds": 60, "priority": 10}),
    },
    "submit_tasks": {
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
    "claim_task": {
        "one": ("The next task", {"worker_id": _WORKER_ID, "claim_id": _CLAIM_ID}),
        "several": ("Up to ten, started at once", {"worker_id": _WORKER_ID, "max": 10, "start": True}),
    },
    "update_task": {
        "start": ("Start the task", {"status": "running", **_HOLDER}),
        "progress": (
            "Report progress",
            {"progress": {"current": 3, "total": 12, "unit": "atoms"}, **_HOLDER},
        ),
        "complete": ("Complete the task", {"status": "completed", "result": {"rotated": 12}, **_HOLDER}),
        "fail": ("Fail the task", {"status": "failed", "error": "No atoms are selected", **_HOLDER}),
        "cancel": ("Cancel the task, as its submitter", {"status": "cancelled"}),
    },
    "report_tasks": {
        "reports": (
            "The end of one task",
            {
                "worker_id": _WORKER_ID,
                "reports": [{"id": _TASK_ID, "status": "completed", "attempt": 1, "result": {"rotated": 12}}],
            },
        )
    },
    "fail_task": {"reason": ("With the reason", {"error": "The cluster is shut down"})},
    "create_worker": {"worker": ("With a name", {"name": "gpu-1", "slots": 4})},
    "send_heartbeat": {"heartbeat": ("With the held tasks", {"tasks": [{"id": _TASK_ID, "attempt": 1}]})},
    "register_provider": {
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
    "claim_provider_request": {"claim": ("The next request", {"worker_id": _WORKER_ID})},
    "preview_bulk_action": {"retry": ("Failed tasks of a room", {"action": "retry", "filter": _FILTER})},
    "apply_bulk_action": {
        "retry": (
            "With the token of the preview",
            {"action": "retry", "filter": _FILTER, "token": "token-of-the-preview"},
        )
    },
    "update_sweeper": {"observe": ("Log only", {"mode": "observe"})},
}
_CREATED = {"Location": "The path of the task.", "Retry-After": "Seconds to wait before the task is read."}
_WAITED = {"Preference-Applied": "`wait=N`, if the request preferred to wait."}
# By the name of the endpoint: the status of an example, its body, and the headers of the response.
RESPONSES: dict[str, tuple[int, Any, dict[str, str]]] = {
    "register_job": (
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
            **_POLICY,
        },
        {},
    ),
    "submit_task": (202, _PENDING_TASK, _CREATED),
    "submit_tasks": (
        200,
        {"results": [{"status": 202, "id": _TASK_ID, "task": _PENDING_TASK}]},
        {"Preference-Applied": "`return=minimal`, if the request preferred it."},
    ),
    "claim_task": (
        200,
        {"task": _CLAIMED_TASK, "reason": None},
        {**_WAITED, "Retry-After": "Seconds to wait before the next claim, if a limit or a pause applies."},
    ),
    "get_task": (200, _COMPLETED_TASK, _WAITED),
    "update_task": (200, _RUNNING_TASK, {}),
    "list_tasks": (200, {"items": [_COMPLETED_TASK], "total": 1, "limit": 50, "offset": 0}, {}),
    "create_worker": (201, _WORKER, {}),
    "send_heartbeat": (200, _WORKER | {"tasks": [{"id": _TASK_ID, "verdict": "continue"}]}, {}),
    "create_task_stream_token": (
        201,
        {"token": "token-of-the-stream", "expires_at": "2026-03-01T12:05:00.000000Z"},
        {},
    ),
}


def request_examples(work: Work) -> dict[str, Any]:
    """Return the extra fields of an operation, with the examples of its body."""
    extra: dict[str, Any] = dict(work.document.get("openapi_extra", {}))
    if found := REQUESTS.get(work.operation.name):
        examples = {name: {"summary": summary, "value": value} for name, (summary, value) in found.items()}
        extra["requestBody"] = {"content": {"application/json": {"examples": examples}}}
    return extra


def documented_responses(work: Work) -> dict[int | str, dict[str, Any]]:
    """Return the successful responses of an operation, one of them with its headers."""
    responses: dict[int | str, dict[str, Any]] = dict(work.document.get("responses", {}))
    if work.operation.name in RESPONSES:
        status, _, headers = RESPONSES[work.operation.name]
        texts = {name: {"description": text, "schema": {"type": "string"}} for name, text in headers.items()}
        described = {"description": _DESCRIPTIONS[status], **({"headers": texts} if texts else {})}
        responses[status] = {**described, **responses.get(status, {})}
    return responses


def add_response_example(name: str, responses: dict[str, Any]) -> None:
    """Add the example of an endpoint to its responses in a document."""
    if name in RESPONSES:
        status, body, _ = RESPONSES[name]
        content = responses.get(str(status), {}).get("content", {}).get("application/json")
        if content is not None:
            content["example"] = body


_DESCRIPTIONS = {200: "Success", 201: "Created", 202: "Accepted"}
