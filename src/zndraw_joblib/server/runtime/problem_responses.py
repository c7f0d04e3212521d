"""Turn exceptions into problems (RFC 9457), for HTTP responses and Socket.IO acknowledgements."""

import logging
from collections.abc import Iterable
from typing import Any, get_args, get_origin

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, TypeAdapter, ValidationError
from starlette.exceptions import HTTPException

from zndraw_joblib.server.db.errors import MAYBE_APPLIED
from zndraw_joblib.wire.problems import (
    PROBLEM_MEDIA_TYPE,
    InternalServerError,
    InvalidRequest,
    Problem,
    ProblemException,
    RequestRefused,
    ServiceUnavailable,
    problem_for,
)

logger = logging.getLogger(__name__)

# The validation errors in one answer.
MAX_LISTED_ERRORS = 100
# A location may have a key of the request, of any length.
_MAX_LOCATION_PART = 200

Fault = tuple[tuple[int | str, ...], str, str]


def prefixed(problem: Problem, prefix: str) -> Problem:
    """Return a problem whose type is the page of the queue with this prefix."""
    if not prefix or not problem.type.startswith("/"):
        return problem
    return problem.model_copy(update={"type": prefix + problem.type})


def problem_response(error: ProblemException, prefix: str = "") -> Response:
    """Return a problem of the queue with this prefix as an HTTP response."""
    return Response(
        prefixed(error.problem, prefix).model_dump_json(exclude_none=True),
        status_code=error.problem.status,
        headers=error.headers,
        media_type=PROBLEM_MEDIA_TYPE,
    )


def as_problem(error: Exception) -> ProblemException:
    """Return an exception as a problem. An unexpected one is logged."""
    if isinstance(error, ProblemException):
        return error
    if isinstance(error, RequestValidationError):
        faults = [(fault["loc"], fault["msg"], fault["type"]) for fault in error.errors()]
        return _invalid_request(faults)
    if isinstance(error, HTTPException):
        problem = problem_for(error.status_code, {"detail": error.detail})
        kind = RequestRefused if type(problem) is ProblemException else type(problem)
        problem.problem = kind.create(problem.problem.detail)
        problem.problem.status = error.status_code
        problem.headers = dict(error.headers or {})
        return problem
    logger.error("Unexpected error", exc_info=error)
    return InternalServerError("Unexpected error; see the server's log")


def of_read(problem: ProblemException) -> ProblemException:
    """Return the problem of a request that changes nothing, without the advice for one that may have."""
    text = str(problem)
    if not isinstance(problem, ServiceUnavailable) or not text.endswith(MAYBE_APPLIED):
        return problem
    return ServiceUnavailable(
        f"{text.removesuffix(MAYBE_APPLIED)}Repeat the request.", headers=problem.headers
    )


def invalid_part(error: ValidationError, *part: str) -> InvalidRequest:
    """Return the problem of a part of a request (`body`, `query`, …) that does not fit its model."""
    return _invalid_request([((*part, *loc), text, kind) for loc, text, kind in _faults(error)])


def invalid_body(model: type[BaseModel], value: Any, error: ValidationError) -> InvalidRequest:
    """Return the problem of a body that does not fit its model.

    The validation of a list of objects ends with its first malformed object, because each may have an error.
    Continue behind it until there are enough errors to list.
    """
    faults, note = _faults(error), ""
    for index, (loc, _, _) in enumerate(faults):
        name = str(loc[0]) if loc else ""
        is_list = name in model.model_fields and get_origin(model.model_fields[name].annotation) is list
        if is_list and len(loc) > 1 and isinstance(loc[1], int):
            items: list[Any] = value[name]
            faults[index:], unchecked = _faults_of_items(model, name, items, loc[1])
            note = f"{unchecked} of {len(items)} {name} were not checked" if unchecked else ""
            break
    return _invalid_request([(("body", *loc), text, kind) for loc, text, kind in faults], note)


def _faults_of_items(
    model: type[BaseModel], name: str, items: list[Any], start: int
) -> tuple[list[Fault], int]:
    """Return the errors of a list's items, and how many items were left when there were enough."""
    adapter: TypeAdapter[Any] = TypeAdapter(get_args(model.model_fields[name].annotation)[0])
    faults: list[Fault] = []
    for index, item in enumerate(items[start:], start):
        if len(faults) >= MAX_LISTED_ERRORS:
            return faults, len(items) - index
        try:
            adapter.validate_python(item)
        except ValidationError as error:
            faults += [((name, index, *loc), text, kind) for loc, text, kind in _faults(error)]
    return faults, 0


def _faults(error: ValidationError) -> list[Fault]:
    errors = error.errors(include_url=False, include_input=False, include_context=False)
    return [(fault["loc"], fault["msg"].removeprefix("Value error, "), fault["type"]) for fault in errors]


def _invalid_request(faults: Iterable[Fault], note: str = "") -> InvalidRequest:
    errors = [
        {"loc": [str(part)[:_MAX_LOCATION_PART] for part in loc], "message": str(text), "type": kind}
        for loc, text, kind in faults
    ]
    first = errors[0] if errors else {"loc": [], "message": "invalid request"}
    more = len(errors) - MAX_LISTED_ERRORS
    notes = [f"{more} more errors are not listed"] if more > 0 else []
    notes += [note] if note else []
    detail = f"{'.'.join(first['loc'])}: {first['message']}" + (f" ({', '.join(notes)})" if notes else "")
    return InvalidRequest(detail, errors=errors[:MAX_LISTED_ERRORS])


async def problem_exception_handler(request: Request, error: Exception) -> Response:
    """Answer an exception as a problem; for `app.add_exception_handler(ProblemException, …)`."""
    return problem_response(as_problem(error))
