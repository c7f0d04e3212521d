"""The OpenAPI document has a stable name, a tag and exact responses for each operation."""

import re
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import pytest
from generate import DOCUMENT, openapi
from jsonschema_rs import validator_for

from zndraw_joblib.server.http.openapi import operation_id
from zndraw_joblib.wire.operations import OPERATIONS as ROWS
from zndraw_joblib.wire.problems import PROBLEMS

OPERATIONS = {
    "/v1/joblib/workers": {"get", "post"},
    "/v1/joblib/workers/{worker_id}": {"get", "patch", "delete"},
    "/v1/joblib/workers/{worker_id}/drain": {"post"},
    "/v1/joblib/worker-tokens": {"post"},
    "/v1/joblib/workers/{worker_id}/jobs/{name}": {"delete"},
    "/v1/joblib/rooms/{room_id}/workers": {"get"},
    "/v1/joblib/rooms/{room_id}/jobs": {"get", "put"},
    "/v1/joblib/rooms/{room_id}/jobs/{name}": {"get", "put", "delete"},
    "/v1/joblib/rooms/{room_id}/jobs/{name}/pause": {"post"},
    "/v1/joblib/rooms/{room_id}/jobs/{name}/resume": {"post"},
    "/v1/joblib/rooms/{room_id}/jobs/{name}/tasks": {"get"},
    "/v1/joblib/rooms/{room_id}/schedules": {"get"},
    "/v1/joblib/rooms/{room_id}/schedules/{schedule}": {"get", "put", "patch", "delete"},
    "/v1/joblib/rooms/{room_id}/schedules/{schedule}/run": {"post"},
    "/v1/joblib/rooms/{room_id}/webhooks": {"get"},
    "/v1/joblib/rooms/{room_id}/webhooks/{webhook}": {"get", "put", "delete"},
    "/v1/joblib/rooms/{room_id}/webhooks/{webhook}/test": {"post"},
    "/v1/joblib/rooms/{room_id}/deliveries": {"get"},
    "/v1/joblib/rooms/{room_id}/deliveries/{delivery}/repeat": {"post"},
    "/v1/joblib/rooms/{room_id}/tasks": {"get"},
    "/v1/joblib/rooms/{room_id}/tasks/{name}": {"post"},
    "/v1/joblib/tasks": {"get"},
    "/v1/joblib/tasks/bulk": {"post"},
    "/v1/joblib/tasks/bulk/preview": {"post"},
    "/v1/joblib/audit": {"get"},
    "/v1/joblib/ids": {"get"},
    "/v1/joblib/groups": {"get", "post"},
    "/v1/joblib/groups/{group_id}": {"get", "patch"},
    "/v1/joblib/groups/{group_id}/results": {"get"},
    "/v1/joblib/tasks/claim": {"post"},
    "/v1/joblib/tasks/counts": {"get"},
    "/v1/joblib/tasks/tags": {"get"},
    "/v1/joblib/tasks/failures": {"get"},
    "/v1/joblib/tasks/report": {"post"},
    "/v1/joblib/tasks/submit": {"post"},
    "/v1/joblib/tasks/{task_id}": {"get", "patch"},
    "/v1/joblib/tasks/{task_id}/events": {"get"},
    "/v1/joblib/tasks/{task_id}/events/token": {"post"},
    "/v1/joblib/rooms/{room_id}/events": {"get"},
    "/v1/joblib/rooms/{room_id}/events/token": {"post"},
    "/v1/joblib/groups/{group_id}/events": {"get"},
    "/v1/joblib/groups/{group_id}/events/token": {"post"},
    "/v1/joblib/tasks/{task_id}/explain": {"get"},
    "/v1/joblib/tasks/{task_id}/fail": {"post"},
    "/v1/joblib/tasks/{task_id}/history": {"get"},
    "/v1/joblib/tasks/{task_id}/log": {"get"},
    "/v1/joblib/tasks/{task_id}/release": {"post"},
    "/v1/joblib/tasks/{task_id}/result": {"get", "head", "put"},
    "/v1/joblib/tasks/{task_id}/retry": {"post"},
    "/v1/joblib/tasks/{task_id}/run-now": {"post"},
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
    "/v1/joblib/rooms/{room_id}/pause": {"post"},
    "/v1/joblib/rooms/{room_id}/resume": {"post"},
    "/v1/joblib/pause": {"post"},
    "/v1/joblib/resume": {"post"},
    "/v1/joblib/pauses": {"get"},
    "/v1/joblib/providers": {"get"},
    "/v1/joblib/schedules": {"get"},
    "/v1/joblib/limits": {"get"},
    "/v1/joblib/limits/{limit}": {"get", "put", "delete"},
    "/v1/joblib/admin/settings": {"get"},
    "/v1/joblib/admin/sweeper": {"get", "patch"},
    "/v1/joblib/overview": {"get"},
    "/v1/joblib/overview/events": {"get"},
    "/v1/joblib/rooms/{room_id}/overview": {"get"},
    "/v1/joblib/statistics": {"get"},
    "/v1/joblib/demand": {"get"},
    "/v1/joblib/jobs/{name}/demand": {"get"},
    "/v1/joblib/admin/sweeper/preview": {"get"},
    "/v1/joblib/admin/retention": {"get"},
}


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """Return the document of the standalone server."""
    return openapi.document()


@pytest.fixture(scope="module")
def paths(found: dict[str, Any]) -> dict[str, Any]:
    """Return the operations by path."""
    operations: dict[str, Any] = found["paths"]
    return operations


def each(found: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each operation with its method and path."""
    for path, methods in found["paths"].items():
        for method, operation in methods.items():
            yield f"{method} {path}", operation


def test_the_committed_document_is_current(found: dict[str, Any]) -> None:
    """A change of the API changes the committed file, so that its difference can be reviewed."""
    assert openapi.text() == DOCUMENT.read_text(encoding="utf-8"), "run `make generate`"
    assert found["info"]["version"] == version("zndraw-joblib")


def test_the_document_has_exactly_the_operations_of_the_contract(paths: dict[str, Any]) -> None:
    """Workers, jobs, tasks, providers and administration."""
    found = {path: set(methods) for path, methods in paths.items() if path.startswith("/v1/joblib")}
    assert found == OPERATIONS


def test_every_operation_documents_its_authentication(found: dict[str, Any], paths: dict[str, Any]) -> None:
    """Every operation under the prefix needs a bearer token; others say that they need none."""
    schemes = found["components"]["securitySchemes"]
    public = {name for name, operation in each(found) if operation["security"] == []}
    assert public == {"get /health/live", "get /health/ready", "get /v1/problems/{problem_id}"}
    for path in OPERATIONS:
        for method, operation in paths[path].items():
            [requirement] = operation["security"]
            [scheme] = requirement
            assert schemes[scheme]["type"] == "http", (method, path)
            assert schemes[scheme]["scheme"] == "bearer", (method, path)


def test_ids_and_summaries_are_the_names_of_the_endpoints(found: dict[str, Any]) -> None:
    """Generated clients have a method of this name, so an id changes only on purpose."""
    ids = [operation["operationId"] for _, operation in each(found)]
    assert len(set(ids)) == len(ids)
    names = [row.name for row in ROWS] + ["explain_problem", "get_metrics_at_root"]
    assert {operation_id(name) for name in names} | {"checkLiveness", "checkReadiness"} == set(ids)
    for name, operation in each(found):
        assert re.fullmatch(r"[a-z]+([A-Z][a-z]+)+", operation["operationId"]), name
        assert operation["summary"][0].isupper(), name
        assert operation["description"].endswith("."), name


def test_every_operation_has_one_described_tag(found: dict[str, Any]) -> None:
    """The tags are the nouns of the API, each with a description and at least one operation."""
    described = {tag["name"]: tag["description"] for tag in found["tags"]}
    used = [operation["tags"] for _, operation in each(found)]
    assert all(len(tags) == 1 for tags in used)
    assert {tag for [tag] in used} == set(described)
    assert all(text.endswith(".") for text in described.values())


def test_every_error_is_a_problem(found: dict[str, Any]) -> None:
    """Each error response refers to the one schema, and has an example of each of its problems."""
    for name, operation in each(found):
        for status, response in operation["responses"].items():
            assert status.isdigit(), name
            if int(status) < 400 or name == "get /health/ready":
                continue
            [(media_type, content)] = response["content"].items()
            assert media_type == "application/problem+json"
            assert content["schema"] == {"$ref": "#/components/schemas/Problem"}
            for kind, example in content["examples"].items():
                assert example["value"] == PROBLEMS[kind].create().model_dump(exclude_none=True)
                assert PROBLEMS[kind].status == int(status), name
            assert response["description"] == ", ".join(f"`{kind}`" for kind in content["examples"])
    assert not {"HTTPValidationError", "ValidationError"} & set(found["components"]["schemas"])


def test_every_example_fits_its_schema(found: dict[str, Any]) -> None:
    """Examples of bodies, and those of parameters."""
    count = 0
    for name, operation in each(found):
        bodies = [operation.get("requestBody", {}), *operation["responses"].values()]
        for body in bodies:
            for content in body.get("content", {}).values():
                values = [example["value"] for example in content.get("examples", {}).values()]
                values += [content["example"]] if "example" in content else []
                schema = {**content.get("schema", {}), "components": found["components"]}
                for value in values:
                    assert validator_for(schema).is_valid(value), (name, value)
                    count += 1
    assert count > 400


def test_fields_with_defaults_are_optional_in_requests_and_present_in_responses(
    found: dict[str, Any],
) -> None:
    """A type generator needs no option: a default in a request would make its field required."""
    schemas = found["components"]["schemas"]
    assert "required" not in schemas["TaskUpdateRequest"]
    assert schemas["TaskClaimRequest"]["required"] == ["worker_id"]
    assert "Default: `true`." in schemas["TaskUpdateRequest"]["properties"]["retry"]["description"]
    for name, schema in schemas.items():
        if name.endswith("Request") or name in {"Backoff", "Failure", "LogLine", "TaskFilter"}:
            with_default = [field for field, one in schema["properties"].items() if "default" in one]
            assert with_default == [], name
    sometimes = {"progress", "failure", "stored_result", "traceparent", "unique_key", "duplicate"}
    sometimes |= {
        "schedule",
        "due_at",
        "tags",
        "parent",
        "root",
        "group",
        "waits",
        "after",
        "successors",
        "token",
    }
    sometimes |= {"requires", "cost"}
    assert set(schemas["TaskResponse"]["properties"]) - set(schemas["TaskResponse"]["required"]) == sometimes


def test_every_parameter_is_documented(paths: dict[str, Any]) -> None:
    """Lists take limit and offset, lists of tasks a status; waiting and many tasks take `Prefer`."""
    for path, methods in OPERATIONS.items():
        for method in methods:
            operation = paths[path][method]
            names = {parameter["name"] for parameter in operation.get("parameters", [])}
            is_list = method == "get" and path.endswith(
                ("workers", "jobs", "tasks", "providers", "schedules", "limits", "webhooks")
            )
            is_list = is_list and path.removeprefix("/v1/joblib") not in BY_CURSOR
            expected = {part[1:-1] for part in path.split("/") if part.startswith("{")}
            expected |= {"limit", "offset"} if is_list else set()
            expected |= {"status"} if is_list and path.endswith("tasks") else set()
            is_read = method == "get" and path.endswith("providers/{name}")
            is_for_many = path.endswith(("tasks/submit", "tasks/report"))
            waits = (method, path.split("/")[-1]) in WAITING
            expected |= {"Prefer"} if is_read or is_for_many or waits else set()
            is_keyed = method != "get" and (method, path.removeprefix("/v1/joblib")) not in WITHOUT_KEY
            expected |= {"Idempotency-Key"} if is_keyed else set()
            expected |= ALSO.get((method, path.removeprefix("/v1/joblib")), set())
            assert names == expected, f"{method} {path}: see ALSO for a new parameter"
            for parameter in operation.get("parameters", []):
                assert "null" not in str(parameter["schema"]), parameter
                if parameter["name"] in {"Prefer", "Idempotency-Key"}:
                    assert parameter["schema"]["type"] == "string"


# Repeated heartbeats and uploads have no further effect.
WITHOUT_KEY = {
    ("post", "/tasks/bulk/preview"),
    ("post", "/worker-tokens"),
    ("patch", "/workers/{worker_id}"),
    ("post", "/providers/{provider_id}/results"),
    ("put", "/tasks/{task_id}/result"),
    ("head", "/tasks/{task_id}/result"),
    ("post", "/tasks/{task_id}/events/token"),
    ("post", "/rooms/{room_id}/events/token"),
    ("post", "/groups/{group_id}/events/token"),
}
# Lists for operators, which have cursors.
BY_CURSOR = {"/jobs", "/providers", "/schedules", "/tasks", "/groups"}
_CURSOR = {"cursor", "limit"}
_FILTER = {"status", "job", "version", "room", "worker", "created_by", "error_code", "exception", "text"}
_LINKS = {"tag", "parent", "root"}
_FILTER |= {"since", "until", "scheduled", "group", *_LINKS}
_STREAM = {"token", "after", "Last-Event-ID", "Prefer"}
_RANGES = {"Range", "If-Range", "If-None-Match"}
ALSO = {
    ("get", "/admin/retention"): {"job", "completed", "failed", "cancelled"},
    ("get", "/statistics"): {"job", "resolution", "since", "until", "tag", "room"},
    ("get", "/demand"): {"job", "room", "labels"},
    ("get", "/jobs/{name}/demand"): {"labels"},
    ("get", "/me"): {"room"},
    ("get", "/jobs"): _CURSOR | {"room", "category", "paused", "deleted", "name"},
    ("get", "/rooms"): _CURSOR,
    ("get", "/pauses"): _CURSOR,
    ("get", "/schedules"): _CURSOR | {"room"},
    ("get", "/providers"): _CURSOR,
    ("get", "/groups"): _CURSOR | {"room"},
    ("get", "/groups/{group_id}/results"): {"on_end_task"},
    ("get", "/tasks"): _CURSOR | _FILTER | {"oldest_first"},
    ("get", "/tasks/counts"): {"room", *_LINKS},
    ("get", "/tasks/tags"): {"room", "prefix"},
    ("get", "/rooms/{room_id}/tasks"): _LINKS,
    ("get", "/rooms/{room_id}/jobs/{name}/tasks"): {"tag"},
    ("get", "/tasks/failures"): _FILTER,
    ("get", "/ids"): {"prefix", "room"},
    ("get", "/audit"): _CURSOR | {"room", "actor", "action"},
    ("get", "/tasks/{task_id}/events"): _STREAM,
    ("get", "/rooms/{room_id}/events"): _STREAM,
    ("get", "/groups/{group_id}/events"): _STREAM,
    ("get", "/tasks/{task_id}/log"): {"attempt", "after", "limit"},
    ("put", "/tasks/{task_id}/result"): {"attempt", "filename"},
    ("get", "/tasks/{task_id}/result"): _RANGES | {"successor"},
    ("head", "/tasks/{task_id}/result"): _RANGES,
    ("get", "/rooms/{room_id}/providers/{name}"): {"If-None-Match"},
    ("post", "/tasks/submit"): {"traceparent"},
    ("get", "/rooms/{room_id}/schedules/{schedule}"): {"next"},
    ("post", "/rooms/{room_id}/schedules/{schedule}/run"): {"traceparent"},
    ("get", "/rooms/{room_id}/deliveries"): _CURSOR | {"webhook", "task", "state"},
    ("post", "/rooms/{room_id}/tasks/{name}"): {"traceparent"},
    ("delete", "/providers/{provider_id}"): {"worker_id"},
    ("post", "/providers/{provider_id}/results"): {"X-Request-Hash", "X-Result-Status", "X-Worker-ID"},
}
WAITING = {("post", "claim"), ("get", "{task_id}"), ("get", "{group_id}")}
