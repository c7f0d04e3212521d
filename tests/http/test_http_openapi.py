"""The OpenAPI document equals its snapshot, so that each change of the API is deliberate.

Renew the snapshot with: .venv/bin/python tests/http/test_http_openapi.py
"""

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from zndraw_joblib.server.app import create_app
from zndraw_joblib.server.settings import ServerSettings

SNAPSHOT = Path(__file__).with_name("openapi.json")
OPERATIONS = {
    "/v1/joblib/workers": {"get", "post"},
    "/v1/joblib/workers/{worker_id}": {"get", "patch", "delete"},
    "/v1/joblib/workers/{worker_id}/drain": {"post"},
    "/v1/joblib/workers/{worker_id}/jobs/{name}": {"delete"},
    "/v1/joblib/rooms/{room_id}/workers": {"get"},
    "/v1/joblib/rooms/{room_id}/jobs": {"get", "put"},
    "/v1/joblib/rooms/{room_id}/jobs/{name}": {"get"},
    "/v1/joblib/rooms/{room_id}/jobs/{name}/pause": {"post"},
    "/v1/joblib/rooms/{room_id}/jobs/{name}/resume": {"post"},
    "/v1/joblib/rooms/{room_id}/jobs/{name}/tasks": {"get"},
    "/v1/joblib/rooms/{room_id}/tasks": {"get"},
    "/v1/joblib/rooms/{room_id}/tasks/{name}": {"post"},
    "/v1/joblib/tasks": {"get"},
    "/v1/joblib/tasks/bulk": {"post"},
    "/v1/joblib/tasks/bulk/preview": {"post"},
    "/v1/joblib/audit": {"get"},
    "/v1/joblib/ids": {"get"},
    "/v1/joblib/tasks/claim": {"post"},
    "/v1/joblib/tasks/counts": {"get"},
    "/v1/joblib/tasks/report": {"post"},
    "/v1/joblib/tasks/submit": {"post"},
    "/v1/joblib/tasks/{task_id}": {"get", "patch"},
    "/v1/joblib/tasks/{task_id}/events": {"get"},
    "/v1/joblib/tasks/{task_id}/events/token": {"post"},
    "/v1/joblib/rooms/{room_id}/events": {"get"},
    "/v1/joblib/rooms/{room_id}/events/token": {"post"},
    "/v1/joblib/tasks/{task_id}/explain": {"get"},
    "/v1/joblib/tasks/{task_id}/fail": {"post"},
    "/v1/joblib/tasks/{task_id}/history": {"get"},
    "/v1/joblib/tasks/{task_id}/log": {"get"},
    "/v1/joblib/tasks/{task_id}/release": {"post"},
    "/v1/joblib/tasks/{task_id}/result": {"get", "head", "put"},
    "/v1/joblib/tasks/{task_id}/retry": {"post"},
    "/v1/joblib/rooms/{room_id}/providers": {"get", "put"},
    "/v1/joblib/rooms/{room_id}/providers/{name}": {"get"},
    "/v1/joblib/rooms/{room_id}/providers/{name}/info": {"get"},
    "/v1/joblib/providers/{provider_id}": {"delete"},
    "/v1/joblib/providers/{provider_id}/results": {"post"},
    "/v1/joblib/providers/requests/claim": {"post"},
    "/v1/joblib/me": {"get"},
    "/v1/joblib/metrics": {"get"},
    "/v1/joblib/version": {"get"},
    "/v1/joblib/jobs": {"get"},
    "/v1/joblib/rooms": {"get"},
    "/v1/joblib/providers": {"get"},
    "/v1/joblib/admin/settings": {"get"},
    "/v1/joblib/admin/sweeper": {"get", "patch"},
    "/v1/joblib/overview": {"get"},
    "/v1/joblib/overview/events": {"get"},
    "/v1/joblib/rooms/{room_id}/overview": {"get"},
    "/v1/joblib/statistics": {"get"},
    "/v1/joblib/admin/sweeper/preview": {"get"},
}


def document() -> dict[str, Any]:
    """Return the OpenAPI document of the standalone server, without the package's version."""
    settings = ServerSettings(database_url="sqlite://", admin_token="a-token-for-the-document")
    found: dict[str, Any] = json.loads(json.dumps(create_app(settings).openapi()))
    assert found["info"]["version"] == version("zndraw-joblib")
    found["info"]["version"] = "any"
    return found


def as_text(found: dict[str, Any]) -> str:
    """Return a document in the format of the snapshot."""
    return json.dumps(found, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


@pytest.fixture(scope="module")
def paths() -> dict[str, Any]:
    """Return the operations by path."""
    found: dict[str, Any] = document()["paths"]
    return found


def test_the_document_equals_the_snapshot() -> None:
    """A change of the API must update the snapshot, so that its difference can be reviewed."""
    assert as_text(document()) == SNAPSHOT.read_text(encoding="utf-8")


def test_the_document_has_exactly_the_operations_of_the_contract(paths: dict[str, Any]) -> None:
    """Workers, jobs, tasks, providers and administration."""
    found = {path: set(methods) for path, methods in paths.items() if path.startswith("/v1/joblib")}
    assert found == OPERATIONS


def test_every_operation_documents_its_authentication(paths: dict[str, Any]) -> None:
    """Every operation under the prefix needs a bearer token."""
    schemes = document()["components"]["securitySchemes"]
    for path in OPERATIONS:
        for method, operation in paths[path].items():
            [requirement] = operation["security"]
            [scheme] = requirement
            assert schemes[scheme]["type"] == "http", (method, path)
            assert schemes[scheme]["scheme"] == "bearer", (method, path)


def test_every_operation_is_described(paths: dict[str, Any]) -> None:
    """It has its own name, a description and a tag."""
    operations = [operation for path in OPERATIONS for operation in paths[path].values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    for operation in operations:
        assert operation["tags"] == ["joblib"]
        assert operation["description"].endswith(".")


def test_every_parameter_is_documented(paths: dict[str, Any]) -> None:
    """Lists take limit and offset, lists of tasks a status; waiting and many tasks take `Prefer`."""
    for path, methods in OPERATIONS.items():
        for method in methods:
            operation = paths[path][method]
            names = {parameter["name"] for parameter in operation.get("parameters", [])}
            is_list = method == "get" and path.endswith(("workers", "jobs", "tasks", "providers"))
            is_list = is_list and path.removeprefix("/v1/joblib") not in BY_CURSOR
            expected = {part[1:-1] for part in path.split("/") if part.startswith("{")}
            expected |= {"limit", "offset"} if is_list else set()
            expected |= {"status"} if is_list and path.endswith("tasks") else set()
            is_read = method == "get" and path.endswith("providers/{name}")
            is_for_many = path.endswith(("tasks/submit", "tasks/report"))
            waits = (method, path.split("/")[-1]) in WAITING
            expected |= {"prefer"} if is_read or is_for_many or waits else set()
            is_keyed = method != "get" and (method, path.removeprefix("/v1/joblib")) not in WITHOUT_KEY
            expected |= {"Idempotency-Key"} if is_keyed else set()
            expected |= ALSO.get((method, path.removeprefix("/v1/joblib")), set())
            assert names == expected, (method, path)


# Repeated heartbeats and uploads have no further effect.
WITHOUT_KEY = {
    ("post", "/tasks/bulk/preview"),
    ("patch", "/workers/{worker_id}"),
    ("post", "/providers/{provider_id}/results"),
    ("put", "/tasks/{task_id}/result"),
    ("head", "/tasks/{task_id}/result"),
    ("post", "/tasks/{task_id}/events/token"),
    ("post", "/rooms/{room_id}/events/token"),
}
# Lists for operators, which have cursors.
BY_CURSOR = {"/jobs", "/providers", "/tasks"}
_CURSOR = {"cursor", "limit"}
_FILTER = {"status", "job", "room", "worker", "created_by", "error_code", "text", "since", "until"}
_STREAM = {"token", "after", "last-event-id", "prefer"}
ALSO = {
    ("get", "/statistics"): {"job", "resolution", "since", "until"},
    ("get", "/me"): {"room"},
    ("get", "/jobs"): _CURSOR | {"room", "category", "paused", "deleted", "name"},
    ("get", "/rooms"): _CURSOR,
    ("get", "/providers"): _CURSOR,
    ("get", "/tasks"): _CURSOR | _FILTER,
    ("get", "/tasks/counts"): {"room"},
    ("get", "/ids"): {"prefix", "room"},
    ("get", "/audit"): _CURSOR | {"room", "actor", "action"},
    ("get", "/tasks/{task_id}/events"): _STREAM,
    ("get", "/rooms/{room_id}/events"): _STREAM,
    ("get", "/tasks/{task_id}/log"): {"attempt", "after", "limit"},
    ("put", "/tasks/{task_id}/result"): {"attempt", "filename"},
    ("post", "/tasks/submit"): {"traceparent"},
    ("post", "/rooms/{room_id}/tasks/{name}"): {"traceparent"},
    ("delete", "/providers/{provider_id}"): {"worker_id"},
    ("post", "/providers/{provider_id}/results"): {"X-Request-Hash", "X-Result-Status", "X-Worker-ID"},
}
WAITING = {("post", "claim"), ("get", "{task_id}")}


if __name__ == "__main__":
    SNAPSHOT.write_text(as_text(document()), encoding="utf-8")
