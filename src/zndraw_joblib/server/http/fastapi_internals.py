"""What has no public interface in FastAPI: its dependency solver, the paths of included routers.

Tests fail when FastAPI changes it.
"""

from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from functools import lru_cache
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.dependencies.utils import SolvedDependency, get_dependant, solve_dependencies
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute, _IncludedRouter, iter_route_contexts
from starlette._utils import get_route_path
from starlette.background import BackgroundTasks
from starlette.routing import BaseRoute, Mount, WebSocketRoute
from starlette.routing import Route as StarletteRoute
from starlette.types import Scope

from zndraw_joblib.contract.batches import MAX_BATCH_BYTES
from zndraw_joblib.server.http.request_body import BODY, RecordedBody, read_again

_SOLVED = "zndraw_joblib.solved"
# The key of the queue in the scope of a request that one of its routes handles.
QUEUE = "zndraw_joblib.queue"
# They match by nothing but method and path.
_BY_PATH = {APIRoute.matches, Mount.matches, StarletteRoute.matches}


async def solve(request: Request, dependency: Callable[..., Any], **path_params: str) -> Any:
    """Return the value of a host's dependency, with the host's overrides, after closing it.

    `path_params` replace the path parameters of the request. The dependency may read the body, also after
    the endpoint has read it; the next reader gets it from the start. `add_effects` adds its headers and
    background tasks to the response.
    """
    path = "".join(f"/{{{name}}}" for name in path_params or request.path_params)
    request.scope.setdefault("state", {})
    content = request.scope.get(BODY)
    receive = request.receive if content is None else read_again(content, request.receive)
    body = RecordedBody(receive, _most_body_bytes(request))
    async with AsyncExitStack() as stack:
        scope = {**request.scope, "path_params": path_params or request.path_params}
        scope |= {"fastapi_inner_astack": stack, "fastapi_function_astack": stack}
        solved = await solve_dependencies(
            request=Request(scope, body),
            dependant=_dependant(dependency, path),
            dependency_overrides_provider=request.app,
            async_exit_stack=stack,
            embed_body_fields=False,
        )
    if content is None:
        # Starlette has no public method that makes a body readable again.
        request._receive = body.from_start()
    request.scope.setdefault(_SOLVED, []).append(solved)
    if solved.errors:
        raise RequestValidationError(solved.errors)
    return solved.values["taken"]


def fresh_copy(request: Request) -> Request:
    """Return a copy of a request for dependencies that are solved again, without effects on its response.

    A host's dependencies may store values in a request.
    """
    scope = {name: value for name, value in request.scope.items() if name != _SOLVED}
    scope["state"] = dict(scope.get("state", {}))
    return Request(scope, _no_body)


async def _no_body() -> dict[str, Any]:
    return {"type": "http.request", "body": b"", "more_body": False}


def add_effects(request: Request, response: Response) -> Response:
    """Add the cookies, headers and background tasks of solved dependencies to the response.

    A header of the endpoint stays as it is.
    """
    found: list[SolvedDependency] | None = request.scope.pop(_SOLVED, None)
    if found is None:
        return response
    own = {name for name, _ in response.raw_headers}
    for name, value in [header for solved in found for header in solved.response.raw_headers]:
        if name == b"set-cookie":
            if (name, value) not in response.raw_headers:
                response.raw_headers.append((name, value))
        elif name not in own:
            response.headers[name.decode("latin-1")] = value.decode("latin-1")
    if tasks := [
        task for solved in found if solved.background_tasks for task in solved.background_tasks.tasks
    ]:
        response.background = BackgroundTasks(tasks)
    return response


def _most_body_bytes(request: Request) -> int:
    # A provider result may be larger than any JSON body.
    queue = request.scope.get(QUEUE) or getattr(request.app.state, "joblib", None)
    return MAX_BATCH_BYTES if queue is None else max(MAX_BATCH_BYTES, queue.runtime.settings.max_result_bytes)


@lru_cache(maxsize=256)
def _dependant(dependency: Callable[..., Any], path: str) -> Dependant:
    async def take(taken: Annotated[Any, Depends(dependency)]) -> None: ...

    return get_dependant(path=path, call=take)


def takes_parameter(dependency: Callable[..., Any], name: str) -> bool:
    """Return whether a dependency, or one below it, takes a path parameter or the whole request."""

    def takes(dependant: Dependant) -> bool:
        takes_request = dependant.request_param_name or dependant.http_connection_param_name
        names = {field.name for field in dependant.path_params}
        return bool(takes_request) or name in names or any(map(takes, dependant.dependencies))

    return takes(get_dependant(path=f"/{{{name}}}", call=dependency))


def route_path(scope: Scope) -> str:
    """Return the path of a request without the path under which the app is mounted."""
    return get_route_path(scope)


def is_traced(scope: Scope) -> bool:
    """Return whether FastAPI's telemetry follows a request, which the router gives the route's path."""
    return scope.get("fastapi.telemetry") is not None


def may_match(route: BaseRoute, prefix: str) -> bool:
    """Return whether a route may match a path that begins with `prefix`; false only if it cannot."""
    if isinstance(route, WebSocketRoute):
        return False
    for context in iter_route_contexts([route]):
        original = context.original_route
        if isinstance(original, WebSocketRoute):
            continue
        if type(original).matches not in _BY_PATH or context.path is None:
            return True
        literal, has_parameter, _ = context.path.partition("{")
        is_open = has_parameter or isinstance(original, Mount)
        if literal.startswith(prefix) or (is_open and prefix.startswith(literal)):
            return True
    return False


def is_included_router(route: BaseRoute) -> bool:
    """Return whether a route stands for all routes of a router that the app includes."""
    return isinstance(route, _IncludedRouter)


def routes_version(included: Iterable[Any]) -> int:
    """Return a number that grows when a route is added to one of these included routers."""
    return sum(route.original_router._get_routes_version() for route in included)


def tracer_provider(app: FastAPI) -> Any:
    """Return the tracer provider that the host gave an app; None for OpenTelemetry's global one."""
    return app._native_telemetry.config["tracer_provider"]


def has_telemetry(app: FastAPI) -> bool:
    """Return whether FastAPI's telemetry follows the requests of an app."""
    return app._native_telemetry.enabled()
