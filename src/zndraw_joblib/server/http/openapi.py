"""The OpenAPI document: ids, tags, problems and examples of the operations."""

import inspect
import re
from collections import defaultdict
from functools import cache
from typing import Any

from fastapi import FastAPI

from zndraw_joblib.server.http.examples import add_response_example, documented_responses, request_examples
from zndraw_joblib.server.http.routing import Route, Work
from zndraw_joblib.wire.operations import Problems
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
            "description": ", ".join(f"`{kind.problem_id()}`" for kind in found),
            "content": {
                PROBLEM_MEDIA_TYPE: {
                    "schema": {"$ref": PROBLEM_REF},
                    "examples": {kind.problem_id(): _example(kind) for kind in found},
                }
            },
        }
        for status, found in by_status.items()
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
    "providers": "Remote data sources, requests to them, and their results.",
    "overview": "The state of the queue, statistics and metrics.",
    "admin": "For operators: the sweeper, the settings, the audit trail.",
    "server": "The caller, and the release of the server.",
    "problems": "The types of problems.",
    "health": "Liveness and readiness of the server process.",
}
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


def description_of(work: Work, namespace: str = "") -> dict[str, Any]:
    """Return the options of `add_api_route` that describe an operation.

    `namespace` keeps ids and tags apart from those of a host.
    """
    responses: dict[int | str, dict[str, Any]] = {
        **problem_responses(work.operation.all_problems),
        **documented_responses(work),
    }
    return {
        "operation_id": operation_id(work.operation.name, namespace),
        "summary": work.operation.name.replace("_", " ").capitalize(),
        "tags": [tag_of(work.operation.tag, namespace)],
        "responses": dict(sorted(responses.items(), key=lambda entry: str(entry[0]))),
        "openapi_extra": request_examples(work),
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
                        add_response_example(route.name, operation.get("responses", {}))
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
