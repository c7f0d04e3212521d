"""Turn exceptions into problems (RFC 9457), for HTTP responses and Socket.IO acknowledgements."""

import logging

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from zndraw_joblib.contract.problems import (
    PROBLEM_MEDIA_TYPE,
    InternalServerError,
    InvalidRequest,
    Problem,
    ProblemException,
    RequestRefused,
    problem_for,
)

logger = logging.getLogger(__name__)


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


def invalid_part(error: ValidationError, *part: str) -> InvalidRequest:
    """Return the problem of a part of a request (`body`, `query`, …) that does not fit its model."""
    found = error.errors(include_url=False, include_input=False, include_context=False)
    return _invalid_request([((*part, *fault["loc"]), fault["msg"], fault["type"]) for fault in found])


def _invalid_request(faults: list[tuple[tuple[int | str, ...], str, str]]) -> InvalidRequest:
    errors = [
        {"loc": [str(part) for part in loc], "message": str(text), "type": kind} for loc, text, kind in faults
    ]
    first = errors[0] if errors else {"loc": [], "message": "invalid request"}
    return InvalidRequest(f"{'.'.join(first['loc'])}: {first['message']}", errors=errors)


async def problem_exception_handler(request: Request, error: Exception) -> Response:
    """Answer an exception as a problem; for `app.add_exception_handler(ProblemException, …)`."""
    return problem_response(as_problem(error))
