"""Solve a host's dependencies with FastAPI, at any point of a request, by a route that was made for them."""

import inspect
from collections.abc import Callable
from contextvars import ContextVar
from functools import lru_cache
from typing import Annotated, Any, NamedTuple, get_args

from fastapi import APIRouter, BackgroundTasks, Depends, FastAPI, Request, Response, params
from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message

from zndraw_joblib.server.http.requests import BODY, RecordedBody, Rereadable, read_again
from zndraw_joblib.wire.messages import MAX_BATCH_BYTES
from zndraw_joblib.wire.problems import InternalServerError

_SOLVED = "zndraw_joblib.solved"
_VALUE = "zndraw_joblib.value"
# The key of the queue in the scope of a request that one of its routes handles.
QUEUE = "zndraw_joblib.queue"
# Without it, an error of a dependency reaches the caller of `solve`, and no handler of the app.
_HANDLERS = "starlette.exception_handlers"


class Solved(NamedTuple):
    """The value of a dependency, and its effects on the response."""

    value: Any
    response: Response
    background_tasks: list[Any]


class _Overrides:
    """The overrides of dependencies that the app of this request has."""

    app: ContextVar[FastAPI] = ContextVar("app")

    @property
    def dependency_overrides(self) -> dict[Callable[..., Any], Callable[..., Any]]:
        return self.app.get().dependency_overrides


_OVERRIDES = _Overrides()


async def solve(request: Request, dependency: Callable[..., Any], **path_params: str) -> Any:
    """Return the value of a host's dependency, with the host's overrides, after closing it.

    `path_params` replace the path parameters of the request. The dependency may read the body, also after
    the endpoint has read it; the next reader gets it from the start. `add_effects` adds its headers and
    background tasks to the response.
    """
    values = path_params or request.path_params
    found: list[Solved] = []
    # Middleware of the host sees what a dependency writes to `request.state`.
    request.scope.setdefault("state", {})
    scope = {**request.scope, "path_params": values, _VALUE: found}
    scope.pop(_HANDLERS, None)
    receive, content = request.receive, request.scope.get(BODY)
    if isinstance(receive, Rereadable):
        receive = receive.source
    if content is not None:
        receive = read_again(content, receive)
    body = RecordedBody(receive, _most_body_bytes(request))
    token = _Overrides.app.set(request.app)
    try:
        await _solver(dependency, tuple(values), request.method)(scope, body, _drop)
    finally:
        _Overrides.app.reset(token)
    if not found:
        raise InternalServerError(f"FastAPI did not solve the dependency {dependency!r:.200}")
    if content is None and isinstance(request.receive, Rereadable):
        request.receive.source = body.from_start()
    request.scope.setdefault(_SOLVED, []).append(found[0])
    return found[0].value


@lru_cache(maxsize=256)
def _solver(dependency: Callable[..., Any], names: tuple[str, ...], method: str) -> ASGIApp:
    """Return an app whose only route takes the value of a dependency."""

    async def take(
        request: Request,
        response: Response,
        background_tasks: BackgroundTasks,
        value: Annotated[Any, Depends(dependency)],
    ) -> Response:
        request.scope[_VALUE].append(Solved(value, response, list(background_tasks.tasks)))
        # They run after the response to the request.
        background_tasks.tasks.clear()
        return Response()

    router = APIRouter(dependency_overrides_provider=_OVERRIDES)
    path = "".join(f"/{{{name}}}" for name in names)
    router.add_api_route(path or "/", take, methods=[method], response_model=None, include_in_schema=False)
    # Not through the router, which would match the path and name this route as the route of the request.
    return AsyncExitStackMiddleware(router.routes[0].handle)


async def _drop(_: Message) -> None:
    """Send no response."""


def fresh_copy(request: Request) -> Request:
    """Return a copy of a request for dependencies that are solved again, without effects on its response.

    A host's dependencies may store values in a request.
    """
    scope = {name: value for name, value in request.scope.items() if name != _SOLVED}
    scope["state"] = dict(scope.get("state", {}))
    return Request(scope, _no_body)


async def _no_body() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


def add_effects(request: Request, response: Response) -> Response:
    """Add the cookies, headers and background tasks of solved dependencies to the response.

    A header of the endpoint stays as it is.
    """
    found: list[Solved] | None = request.scope.pop(_SOLVED, None)
    if found is None:
        return response
    own = {name for name, _ in response.raw_headers}
    for name, value in [header for solved in found for header in solved.response.raw_headers]:
        if name == b"set-cookie":
            if (name, value) not in response.raw_headers:
                response.raw_headers.append((name, value))
        elif name not in own:
            response.headers[name.decode("latin-1")] = value.decode("latin-1")
    if tasks := [task for solved in found for task in solved.background_tasks]:
        response.background = BackgroundTasks(tasks)
    return response


def _most_body_bytes(request: Request) -> int:
    # A provider result may be larger than any JSON body.
    queue = request.scope.get(QUEUE) or getattr(request.app.state, "joblib", None)
    return MAX_BATCH_BYTES if queue is None else max(MAX_BATCH_BYTES, queue.runtime.settings.max_result_bytes)


def takes_parameter(dependency: Callable[..., Any], name: str) -> bool:
    """Return whether a dependency, or one below it, takes a path parameter or the whole request.

    True if that is unknown.
    """
    try:
        signature = inspect.signature(dependency, eval_str=True)
    except (NameError, ValueError):  # a name that is imported for type checkers only; no signature
        return True
    return any(_takes(parameter, name) for parameter in signature.parameters.values())


def _takes(parameter: inspect.Parameter, name: str) -> bool:
    kind, *marks = (
        get_args(parameter.annotation)
        if hasattr(parameter.annotation, "__metadata__")
        else (parameter.annotation,)
    )
    for mark in (parameter.default, *marks):
        if isinstance(mark, params.Depends):
            below = mark.dependency or kind
            return callable(below) and takes_parameter(below, name)
        if isinstance(mark, params.Path):
            return name == (mark.alias or parameter.name)
        if isinstance(mark, params.Param | params.Body):
            return False
    return parameter.name == name or (inspect.isclass(kind) and issubclass(kind, HTTPConnection))
