"""A host's routes and telemetry: which route may match a path, whether FastAPI's telemetry follows a request.

FastAPI has names for included routers and for its telemetry that older or newer versions may lack. Without
them a route is asked for each request whether it matches, and spans go to OpenTelemetry's global provider.
"""

from collections.abc import Iterable, Mapping
from inspect import signature
from typing import Any, NamedTuple

from fastapi import APIRouter, FastAPI, routing
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
from starlette.types import Scope

# They match by nothing but method and path.
_BY_PATH = {APIRoute.matches, Mount.matches, Route.matches}


class _Entry(NamedTuple):
    """A route as the app's router sees it, below the prefixes of the routers that include it."""

    original_route: BaseRoute
    path: str | None


def route_path(scope: Scope) -> str:
    """Return the path of a request without the path under which the app is mounted, as ASGI defines it."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if root and f"{path}/".startswith(f"{root}/") else path


def is_traced(scope: Scope) -> bool:
    """Return whether FastAPI's telemetry follows a request, which the router gives the route's path."""
    return scope.get("fastapi.telemetry") is not None


def tracer_provider(app: FastAPI) -> Any:
    """Return the tracer provider that the host gave an app; None for OpenTelemetry's global one."""
    config = getattr(getattr(app, "_native_telemetry", None), "config", None)
    return config.get("tracer_provider") if isinstance(config, Mapping) else None


def may_have_telemetry(app: FastAPI) -> bool:
    """Return whether FastAPI's telemetry follows the requests of an app, true if that is unknown."""
    is_enabled = getattr(getattr(app, "_native_telemetry", None), "enabled", None)
    return bool(is_enabled()) if callable(is_enabled) else "telemetry" in signature(FastAPI).parameters


def may_match(route: BaseRoute, prefix: str) -> bool:
    """Return whether a route may match a path that begins with `prefix`; false only if it cannot."""
    if isinstance(route, WebSocketRoute):
        return False
    for entry in _entries(route):
        original = entry.original_route
        if isinstance(original, WebSocketRoute):
            continue
        if type(original).matches not in _BY_PATH or entry.path is None:
            return True
        literal, has_parameter, _ = entry.path.partition("{")
        is_open = has_parameter or isinstance(original, Mount)
        if literal.startswith(prefix) or (is_open and prefix.startswith(literal)):
            return True
    return False


def _entries(route: BaseRoute) -> Iterable[Any]:
    expand = getattr(routing, "iter_route_contexts", None)
    if expand is None or _included(route) is None:
        return [_Entry(route, getattr(route, "path", None))]
    entries: Iterable[Any] = expand([route])
    return entries


def _included(route: BaseRoute) -> APIRouter | None:
    """Return the router that a route stands for, if the route stands for all routes of a router."""
    router = getattr(route, "original_router", None)
    return router if isinstance(router, APIRouter) else None


def included_routers(routes: Iterable[BaseRoute]) -> list[tuple[APIRouter, list[BaseRoute]]]:
    """Return the routers that stand in a list of routes, at any depth, each with its routes of now."""
    found = dict[int, tuple[APIRouter, list[BaseRoute]]]()
    _collect(routes, found)
    return list(found.values())


def _collect(routes: Iterable[BaseRoute], found: dict[int, tuple[APIRouter, list[BaseRoute]]]) -> None:
    for route in routes:
        router = _included(route)
        if router is not None and id(router) not in found:
            found[id(router)] = router, list(router.routes)
            _collect(router.routes, found)
