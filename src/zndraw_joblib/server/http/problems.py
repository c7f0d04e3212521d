"""Every error of ours as ``application/problem+json``, and the pages that explain them."""

import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import PlainTextResponse
from starlette.exceptions import HTTPException

from zndraw_joblib.contract.problems import (
    PROBLEM_MEDIA_TYPE,
    PROBLEMS,
    InternalServerError,
    InvalidRequest,
    NotFound,
    Problem,
    ProblemException,
    problem_for,
)

logger = logging.getLogger(__name__)
Handler = Callable[[Request, Exception], Awaitable[Response]]

router = APIRouter(tags=["problems"])
# For the OpenAPI document, which would promise FastAPI's own errors else.
ANSWERS: dict[int | str, dict[str, Any]] = {
    "4XX": {
        "description": "A problem (RFC 9457); its `type` leads to an explanation",
        "content": {PROBLEM_MEDIA_TYPE: {"schema": Problem.model_json_schema()}},
    }
}


@router.get("/v1/problems/{problem_id}", response_class=PlainTextResponse)
async def explain_problem(problem_id: str) -> Response:
    """Explain a type of problem in words."""
    cls = PROBLEMS.get(problem_id)
    if cls is None:
        return respond(NotFound(f"There is no problem called {problem_id!r}"))
    return PlainTextResponse(f"{cls.__name__} ({cls.status} {cls.title})\n\n{inspect.getdoc(cls)}\n")


def respond(error: ProblemException) -> Response:
    """Return a problem as an answer."""
    return Response(
        error.problem.model_dump_json(exclude_none=True),
        status_code=error.problem.status,
        headers=error.headers,
        media_type=PROBLEM_MEDIA_TYPE,
    )


def as_problem(error: Exception) -> ProblemException:
    """Return the problem that an exception stands for."""
    if isinstance(error, ProblemException):
        return error
    if isinstance(error, RequestValidationError):
        return _validation(error)
    if isinstance(error, HTTPException):
        problem = problem_for(error.status_code, {"detail": error.detail})
        if type(problem) is not ProblemException:
            problem.problem = type(problem).create(problem.problem.detail)
        problem.problem.status = error.status_code
        problem.headers = dict(error.headers or {})
        return problem
    logger.error("unforeseen error", exc_info=error)
    return InternalServerError("Unforeseen error; the server's log says more")


def _validation(error: RequestValidationError) -> InvalidRequest:
    errors = [
        {"loc": [str(part) for part in fault["loc"]], "message": str(fault["msg"]), "type": fault["type"]}
        for fault in error.errors()
    ]
    first = errors[0] if errors else {"loc": [], "message": "invalid request"}
    return InvalidRequest(f"{'.'.join(first['loc'])}: {first['message']}", errors=errors)


async def problem_exception_handler(request: Request, error: Exception) -> Response:
    """Answer an exception as a problem; for `app.add_exception_handler(ProblemException, …)`."""
    return respond(as_problem(error))


def install_exception_handlers(app: FastAPI) -> None:
    """Answer every error of an app as a problem, those of its own routes too."""
    for kind in (ProblemException, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, problem_exception_handler)
