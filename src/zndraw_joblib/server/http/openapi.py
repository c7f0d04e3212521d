"""The pages of lists, with names that generators of types can use."""

import inspect
import re
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from typing import Any, get_args

from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import BaseModel

from zndraw_joblib.server.http import dependencies as d
from zndraw_joblib.server.http.dependencies import Key
from zndraw_joblib.server.http.events import RoomAccess, TaskAccess
from zndraw_joblib.server.http.examples import add_response_example, documented_responses, request_examples
from zndraw_joblib.server.http.routing import Route
from zndraw_joblib.wire import problems as p
from zndraw_joblib.wire.messages import JobSummary, PaginatedResponse, TaskResponse
from zndraw_joblib.wire.operators import WorkerSummary
from zndraw_joblib.wire.problems import PROBLEM_MEDIA_TYPE, Problem, ProblemException
from zndraw_joblib.wire.providers import ProviderResponse


class TaskPage(PaginatedResponse[TaskResponse]):
    """One page of a list of tasks, newest first; `total` counts the whole list."""


class JobPage(PaginatedResponse[JobSummary]):
    """One page of a list of jobs, newest first; `total` counts the whole list."""


class WorkerPage(PaginatedResponse[WorkerSummary]):
    """One page of a list of workers, newest first; `total` counts the whole list."""


class ProviderPage(PaginatedResponse[ProviderResponse]):
    """One page of a list of providers, newest first; `total` counts the whole list."""


# The problems that each operation can return: those of its parameters, and those of its work.

Kinds = tuple[type[ProblemException], ...]

PROBLEM_REF = "#/components/schemas/Problem"
# Every operation determines the caller, with a dependency of the host that may read parameters and refuse.
ALWAYS: Kinds = (p.Unauthorized, p.Forbidden, p.InvalidRequest, p.InternalServerError, p.ServiceUnavailable)
_BODY: Kinds = (p.ContentTooLarge, p.UploadStalled)
_OF_PARAMETERS: list[tuple[Any, Kinds]] = [
    (d.ReadableRoom, (p.InvalidRoomId,)),
    (d.WritableRoom, (p.InvalidRoomId, p.Locked)),
    (d.NamedJob, (p.JobNotFound,)),
    (d.NamedProvider, (p.ProviderNotFound,)),
    (Key, (p.InvalidIdempotencyKey, p.RequestInProgress, p.IdempotencyKeyReused)),
    (TaskAccess, (p.TaskNotFound, p.TooManyRequests)),
    (RoomAccess, (p.InvalidRoomId, p.TooManyRequests)),
]
_ROOMS: Kinds = (p.InvalidRoomId,)
_WRITABLE_ROOMS: Kinds = (p.InvalidRoomId, p.Locked)
_TASK: Kinds = (p.TaskNotFound,)
_REPORT: Kinds = (p.TaskNotFound, p.InvalidTaskTransition, p.StaleReport)
_SUBMIT: Kinds = (
    *(p.TaskNotFound, p.InvalidPayload, p.TooManyRequests),
    *(p.InternalJobNotConfigured, p.NoWorkersAvailable),
)
_REGISTER: Kinds = (p.InvalidCategory, p.WorkerNotFound)
_WORKER: Kinds = (p.WorkerNotFound,)
_PROVIDER: Kinds = (p.ProviderNotFound,)
_UPLOAD: Kinds = (*_BODY, p.TooManyRequests)
_RESULT: Kinds = (p.TaskNotFound, p.ResultNotFound, p.ResultExpired, p.RangeNotSatisfiable)
_PROVIDER_FAILED: Kinds = (p.ProviderFailed, p.ProviderExecutionFailed)
_REQUEST: Kinds = (p.ContentTooLarge, p.TooManyRequests, p.ProviderNotConnected, *_PROVIDER_FAILED)
_OF_OPERATIONS: dict[str, Kinds] = {
    "submit_task": _SUBMIT,
    "submit_tasks": (*_WRITABLE_ROOMS, p.JobNotFound, *_SUBMIT),
    "claim_task": (*_WORKER, p.TooManyRequests),
    "get_task": (*_TASK, p.TooManyRequests),
    "get_task_history": _TASK,
    "get_task_log": _TASK,
    "explain_task": _TASK,
    "release_task": _REPORT,
    "retry_task": _REPORT,
    "fail_task": _REPORT,
    "update_task": _REPORT,
    "list_tasks": (p.ContentTooLarge,),
    "search_tasks": _ROOMS,
    "count_tasks": _ROOMS,
    "find_ids": _ROOMS,
    "preview_bulk_action": _WRITABLE_ROOMS,
    "apply_bulk_action": _WRITABLE_ROOMS,
    "upload_task_result": (*_REPORT, *_UPLOAD, p.Conflict, p.ResultStoreFull),
    "read_task_result": _RESULT,
    "head_task_result": _RESULT,
    "create_task_stream_token": _TASK,
    "register_job": (*_REGISTER, p.Conflict, p.SchemaConflict, p.InvalidSchema, p.TooManyRequests),
    "list_job_tasks": (p.ContentTooLarge,),
    "list_all_jobs": _ROOMS,
    "get_worker": _WORKER,
    "send_heartbeat": _WORKER,
    "drain_worker": (p.WorkerNotFound, p.Conflict),
    "remove_worker": _WORKER,
    "remove_job_from_worker": _WORKER,
    "register_provider": (*_REGISTER, p.ContentTooLarge),
    "read_provider": (*_REQUEST, p.ProviderTimeout),
    "remove_provider": _PROVIDER,
    "claim_provider_request": (*_WORKER, p.TooManyRequests),
    "upload_provider_result": (*_PROVIDER, p.StaleResult, *_UPLOAD),
    "get_statistics": (p.InvalidRoomId, p.JobNotFound),
    "get_caller": _ROOMS,
    "list_audit_entries": _ROOMS,
}
# A claim repeats by its `claim_id`, and each item of a batch has a key of its own.
_NOT_RAISED: dict[str, Kinds] = dict.fromkeys(
    ("claim_task", "claim_provider_request", "report_tasks"), (p.RequestInProgress, p.IdempotencyKeyReused)
)


@cache
def problems_of(endpoint: Callable[..., Any]) -> Kinds:
    """Return the problems that an operation can return, by status."""
    found = {*ALWAYS, *_OF_OPERATIONS.get(endpoint.__name__, ())}
    for parameter in inspect.signature(endpoint, eval_str=True).parameters.values():
        found.update(_of_parameter(parameter.annotation))
    found.difference_update(_NOT_RAISED.get(endpoint.__name__, ()))
    return tuple(sorted(found, key=lambda kind: (kind.status, kind.problem_id())))


def _of_parameter(annotation: Any) -> Kinds:
    for declared, kinds in _OF_PARAMETERS:
        if annotation == declared:
            return kinds
    bodies = [kind for kind in get_args(annotation) or (annotation,) if inspect.isclass(kind)]
    return _BODY if any(issubclass(kind, BaseModel) for kind in bodies) else ()


@cache
def problem_responses(kinds: Kinds) -> dict[int | str, dict[str, Any]]:
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


def description_of(route: APIRoute, namespace: str = "") -> dict[str, Any]:
    """Return the options of `add_api_route` that describe an operation.

    `namespace` keeps ids and tags apart from those of a host.
    """
    responses: dict[int | str, dict[str, Any]] = {
        **problem_responses(problems_of(route.endpoint)),
        **documented_responses(route),
    }
    return {
        "operation_id": operation_id(route.name, namespace),
        "summary": route.name.replace("_", " ").capitalize(),
        "tags": [tag_of(str(tag), namespace) for tag in route.tags],
        "responses": dict(sorted(responses.items(), key=lambda entry: str(entry[0]))),
        "openapi_extra": request_examples(route),
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
