"""The problems that each operation can return: those of its parameters, and those of its work."""

import inspect
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from typing import Any, get_args

from pydantic import BaseModel

from zndraw_joblib.contract import problems as p
from zndraw_joblib.contract.problems import PROBLEM_MEDIA_TYPE, ProblemException
from zndraw_joblib.server.http import dependencies as d
from zndraw_joblib.server.http.idempotency import Key
from zndraw_joblib.server.http.stream_access import RoomAccess, TaskAccess

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
    "register_job": (*_REGISTER, p.SchemaConflict, p.InvalidSchema, p.TooManyRequests),
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
