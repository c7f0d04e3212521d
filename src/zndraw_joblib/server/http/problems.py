"""The pages that explain problem types, and problem responses for a whole app."""

import inspect
from typing import Any

from fastapi import APIRouter, FastAPI, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import PlainTextResponse
from starlette.exceptions import HTTPException

from zndraw_joblib.contract.problems import PROBLEM_MEDIA_TYPE, PROBLEMS, NotFound, Problem, ProblemException
from zndraw_joblib.server.problem_responses import problem_exception_handler, problem_response

router = APIRouter(tags=["problems"])
PROBLEM_CONTENT = {PROBLEM_MEDIA_TYPE: {"schema": Problem.model_json_schema()}}
_REJECTED = {
    "description": "A problem (RFC 9457); its `type` leads to an explanation",
    "content": PROBLEM_CONTENT,
}
# For the OpenAPI document, in which FastAPI would otherwise declare its own errors.
PROBLEM_RESPONSES: dict[int | str, dict[str, Any]] = {
    "4XX": _REJECTED,
    503: {"description": "The server cannot process the request now; repeat it", "content": PROBLEM_CONTENT},
}


@router.get("/v1/problems/{problem_id}", response_class=PlainTextResponse, responses={"4XX": _REJECTED})
async def explain_problem(problem_id: str) -> Response:
    """Explain a problem type."""
    cls = PROBLEMS.get(problem_id)
    if cls is None:
        return problem_response(NotFound(f"There is no problem type {problem_id!r}"))
    return PlainTextResponse(f"{cls.__name__} ({cls.status} {cls.title})\n\n{inspect.getdoc(cls)}\n")


def install_exception_handlers(app: FastAPI) -> None:
    """Answer every error of an app as a problem, also on its own routes."""
    for kind in (ProblemException, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, problem_exception_handler)
