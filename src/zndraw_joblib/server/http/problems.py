"""The pages that explain problem types, and problem responses for a whole app."""

import inspect
from collections.abc import Awaitable, Callable

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import PlainTextResponse
from starlette.exceptions import HTTPException

from zndraw_joblib.contract.problems import PROBLEMS, NotFound, ProblemException
from zndraw_joblib.contract.remedies import REMEDIES
from zndraw_joblib.server.http.openapi.operations import operation_id, tag_of
from zndraw_joblib.server.http.openapi.problems import problem_responses
from zndraw_joblib.server.problem_responses import problem_exception_handler, problem_response

_PATH = "/v1/problems/{problem_id}"
# Declared by hand: FastAPI would add a 422 of its own, though any text is valid.
_PROBLEM_ID = {
    "in": "path",
    "name": "problem_id",
    "required": True,
    "schema": {"type": "string"},
    "example": "task-not-found",
}


def add_problem_pages(app: FastAPI, namespace: str = "", prefix: str = "") -> None:
    """Add the pages to an app; `namespace` and `prefix` are those of the queue."""
    app.add_api_route(
        prefix + _PATH,
        _explain(prefix),
        response_class=PlainTextResponse,
        operation_id=operation_id("explain_problem", namespace),
        tags=[tag_of("problems", namespace)],
        responses=problem_responses((NotFound,)),
        # A page has no data, so it needs no identity.
        openapi_extra={"security": [], "parameters": [_PROBLEM_ID]},
    )


def _explain(prefix: str) -> Callable[[Request], Awaitable[Response]]:
    async def explain_problem(request: Request) -> Response:
        """Explain a problem type."""
        problem_id = request.path_params["problem_id"]
        cls = PROBLEMS.get(problem_id)
        if cls is None:
            return problem_response(NotFound(f"There is no problem type {problem_id!r}"), prefix)
        head = f"{cls.__name__} ({cls.status} {cls.title})"
        return PlainTextResponse(f"{head}\n\n{inspect.getdoc(cls)}\n\nWhat to do: {REMEDIES[cls]}\n")

    return explain_problem


def install_exception_handlers(app: FastAPI) -> None:
    """Answer every error of an app as a problem, also on its own routes."""
    for kind in (ProblemException, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, problem_exception_handler)
