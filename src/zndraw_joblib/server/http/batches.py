"""Endpoints that submit many tasks, or report on many, in one request."""

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic_core import to_json
from starlette.exceptions import HTTPException

from zndraw_joblib.contract.batches import BatchReportRequest, BatchResponse, BatchSubmitRequest, TaskToSubmit
from zndraw_joblib.contract.messages import MAX_JSON_BYTES, TaskResponse
from zndraw_joblib.contract.names import JobName, parse_job_name
from zndraw_joblib.contract.problems import ProblemException
from zndraw_joblib.server.http.dependencies import JSON_MEDIA_TYPE, Caller, Minimal, Queue
from zndraw_joblib.server.http.guards import verify_writable_room
from zndraw_joblib.server.http.idempotency import Key, item_key
from zndraw_joblib.server.http.request_body import BODY
from zndraw_joblib.server.http.routing import Route
from zndraw_joblib.server.http.state import QueueState
from zndraw_joblib.server.http.traces import Traceparent, submit_span
from zndraw_joblib.server.problem_responses import MAX_LISTED_ERRORS, as_problem, prefixed
from zndraw_joblib.server.service import rules
from zndraw_joblib.server.service.tasks import Report, Submission, has_body

router = APIRouter(route_class=Route, tags=["tasks"])

Outcome = TaskResponse | Exception
# No value in a body of this size is larger than 1 MiB: a number may grow from 4 to 18 bytes.
_MAX_SURELY_SMALL = MAX_JSON_BYTES // 8


@router.post("/tasks/submit", response_model=BatchResponse)
async def submit_tasks(  # noqa: PLR0913 - one parameter each
    request: Request,
    queue: Queue,
    caller: Caller,
    body: BatchSubmitRequest,
    *,
    minimal: Minimal,
    key: Key,
    traceparent: Traceparent,
) -> Response:
    """Submit up to 1,000 tasks; the response has a result or a problem for each, in order.

    A body with a malformed item is refused as a whole.
    """
    rooms = await _writable_rooms(request, queue, body.tasks)
    jobs = {name: _job_name(name) for name in {task.job_name for task in body.tasks}}
    may_be_large = len(request.scope[BODY]) > _MAX_SURELY_SMALL
    names = [job for job in jobs.values() if isinstance(job, JobName)]
    only = names[0] if len(names) == len(jobs) == 1 else None
    with submit_span(request, traceparent, only, len(body.tasks)) as kept:
        items: list[Submission | Exception] = []
        for index, task in enumerate(body.tasks):
            room, job = rooms[task.room_id], jobs[task.job_name]
            problem = _large_payload(task) if may_be_large else None
            if isinstance(room, Exception):
                items.append(room)
            elif isinstance(job, Exception):
                items.append(job)
            elif problem is not None:
                items.append(problem)
            else:
                item_or_all = None if body.atomic else item_key(key, index)
                items.append(queue.dispatcher.submission(caller, room, job, task, item_or_all, kept))
        done = await _submit(queue, body, items, key)
    return _response(done, 202, queue.prefix, is_minimal=minimal)


async def _submit(
    queue: QueueState, body: BatchSubmitRequest, items: Sequence[Submission | Exception], key: Key
) -> Sequence[Outcome]:
    if body.atomic:
        for index, item in enumerate(items):
            if isinstance(item, ProblemException):
                raise rules.at_item(item, "tasks", index)
        valid = [item for item in items if isinstance(item, Submission)]
        return await queue.dispatcher.submit_all(valid, key)
    made = iter(await queue.dispatcher.submit_many([each for each in items if isinstance(each, Submission)]))
    return [item if isinstance(item, Exception) else next(made) for item in items]


@router.post("/tasks/report", response_model=BatchResponse)
async def report_tasks(
    request: Request, queue: Queue, caller: Caller, body: BatchReportRequest, minimal: Minimal, key: Key
) -> Response:
    """Report on up to 1,000 tasks; the response has a result or a problem for each, in order.

    A body with a malformed item is refused as a whole. The payloads and results in the response have at most
    8 MiB in all; the result of an item beyond has only its status and id.
    """
    items: list[Report | Exception] = []
    for index, update in enumerate(body.reports):
        if update.worker_id is None:
            update.worker_id = body.worker_id
        try:
            rules.check_size("result", update.result)
        except ProblemException as problem:
            items.append(problem)
        else:
            items.append(Report(caller, update.id, update, item_key(key, index), wants_body=False))
    reports = [item for item in items if isinstance(item, Report)]
    if refusals := await queue.worker_rooms.refused_reports(request, caller, reports):
        items = [refusals.get(item.task_id, item) if isinstance(item, Report) else item for item in items]
        reports = [item for item in items if isinstance(item, Report)]
    made = iter(await queue.runtime.report_many(reports, bodies=not minimal))
    done = [item if isinstance(item, Exception) else next(made) for item in items]
    return _response(done, 200, queue.prefix, is_minimal=minimal)


async def _writable_rooms(
    request: Request, queue: QueueState, tasks: Sequence[TaskToSubmit]
) -> dict[str, str | Exception]:
    """Return each room after the guards have passed, or the problem of a room that they refuse."""
    rooms: dict[str, str | Exception] = {}
    for room_id in dict.fromkeys(task.room_id for task in tasks):
        try:
            rooms[room_id] = await queue.guards.resolve(request, verify_writable_room, room_id)
        except (ProblemException, HTTPException, RequestValidationError) as error:
            rooms[room_id] = as_problem(error)
    return rooms


def _job_name(full_name: str) -> JobName | ProblemException:
    try:
        return parse_job_name(full_name)
    except ProblemException as problem:
        return problem


def _large_payload(task: TaskToSubmit) -> ProblemException | None:
    try:
        rules.check_size("payload", task.payload)
    except ProblemException as problem:
        return problem
    return None


def _response(done: Sequence[Outcome], status: int, prefix: str, *, is_minimal: bool) -> Response:
    results = [_result(outcome, status, prefix, is_minimal=is_minimal) for outcome in done]
    _cut_errors(results)
    headers = {"Preference-Applied": "return=minimal"} if is_minimal else None
    return Response(to_json({"results": results}), headers=headers, media_type=JSON_MEDIA_TYPE)


def _cut_errors(results: Sequence[dict[str, Any]]) -> None:
    """Keep as many errors of all problems as one answer lists, and the first one of each problem."""
    left = MAX_LISTED_ERRORS
    for result in results:
        errors: list[Any] = result.get("problem", {}).get("errors", [])
        del errors[max(1, left) :]
        left -= len(errors)


def _result(outcome: Outcome, status: int, prefix: str, *, is_minimal: bool) -> dict[str, Any]:
    """Return a `BatchResult` without the fields that it does not have."""
    if isinstance(outcome, Exception):
        problem = prefixed(as_problem(outcome).problem, prefix)
        return {"status": problem.status, "problem": problem.model_dump(exclude_none=True)}
    result: dict[str, Any] = {"status": status, "id": outcome.id}
    return result if is_minimal or not has_body(outcome) else {**result, "task": outcome}
