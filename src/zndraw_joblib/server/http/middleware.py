"""The middleware that calls the queue's routes before the app's router, and what it has to know of a host."""

from collections.abc import Awaitable, Iterable, Mapping
from inspect import signature
from re import Pattern
from typing import Any, NamedTuple

from fastapi import APIRouter, FastAPI, Request, routing
from fastapi.routing import APIRoute
from starlette.convertors import PathConvertor, StringConvertor
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.routing import BaseRoute, Match, Mount, WebSocketRoute
from starlette.routing import Route as StarletteRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from zndraw_joblib.server.http.requests import REQUEST_ID_HEADER, SCOPE_KEY, SEND, Rereadable, with_header
from zndraw_joblib.server.http.routing import Route
from zndraw_joblib.wire.operations import PREFIX

# A host's routes and telemetry.
#
# FastAPI has names for included routers and for its telemetry that older or newer versions may lack. Without
# them a route is asked for each request whether it matches, and spans go to OpenTelemetry's global provider.

# They match by nothing but method and path.
_BY_PATH = {APIRoute.matches, Mount.matches, StarletteRoute.matches}


class _Entry(NamedTuple):
    """A route as the app's router sees it, below the prefixes of the routers that include it."""

    original_route: BaseRoute
    path: str | None


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
    routers = dict[int, tuple[APIRouter, list[BaseRoute]]]()
    _collect(routes, routers)
    return list(routers.values())


def _collect(routes: Iterable[BaseRoute], routers: dict[int, tuple[APIRouter, list[BaseRoute]]]) -> None:
    for route in routes:
        router = _included(route)
        if router is not None and id(router) not in routers:
            routers[id(router)] = router, list(router.routes)
            _collect(router.routes, routers)


# The connection of a client that does not read, which uvicorn closes by no public interface.


def abort(scope: Scope, send: Send) -> None:
    """Drop the connection of a response with all that was not sent, if the server is uvicorn.

    If a host's middleware has replaced `send`, the connection closes only when the client reads again, or
    when the operating system drops it.
    """
    transport: Any = getattr(getattr(scope.get(SEND, send), "__self__", None), "transport", None)
    if transport is not None:
        transport.abort()


# Call the queue's routes in front of the app's router and exception handlers, with the same result.

_API = f"{PREFIX}/"
# Path parameters of these kinds are text.
_AS_TEXT = {StringConvertor, PathConvertor}


class Candidate(NamedTuple):
    """A route of the queue, and the host's earlier routes that may match the same path."""

    route: Route
    pattern: Pattern[str]
    earlier: list[BaseRoute]


class QueueMiddleware:
    """The innermost middleware of `host`: it calls the queue's routes and passes all other requests on.

    The app's router tries its routes one after another; this finds a route of the queue by the method and the
    first parts of the path. As in the router, a route that the host has registered earlier comes first.
    """

    def __init__(self, app: ASGIApp, host: FastAPI) -> None:
        self._app = app
        self._host = host
        self._routes: list[BaseRoute] = []
        self._included: list[tuple[APIRouter, list[BaseRoute]]] = []
        self._candidates: dict[tuple[str, str], list[Candidate]] = {}

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Answer a request of the queue, or pass it on."""
        if scope["type"] == "http" and (route := self._find(scope)) is not None:
            return self._answer(route, scope, receive, send)
        return self._app(scope, receive, send)

    def _find(self, scope: Scope) -> Route | None:
        """Return the route that the app's router would choose, if it is one of the queue."""
        router = self._host.router
        if router.routes != self._routes:
            self._index(router.routes)
        for included, routes in self._included:
            if included.routes != routes:
                self._index(router.routes)
                break
        path, root = scope["path"], scope.get("root_path")
        # The path under which the app is mounted does not count, as ASGI defines it.
        if root and f"{path}/".startswith(f"{root}/"):
            path = path[len(root) :]
        for route, pattern, earlier in self._candidates.get((scope["method"], _until_noun(path)), ()):
            match = pattern.match(path)
            if match is None:
                continue
            # The router gives the route's path to FastAPI's telemetry, if that follows the request.
            if scope.get("fastapi.telemetry") is not None or (
                earlier and any(other.matches(scope)[0] is Match.FULL for other in earlier)
            ):
                return None
            scope["path_params"] = {**scope.get("path_params", {}), **match.groupdict()}
            scope["endpoint"], scope["route"] = route.endpoint, route
            scope.setdefault("router", router)
            return route
        return None

    def _index(self, routes: list[BaseRoute]) -> None:
        self._routes, self._included, self._candidates = list(routes), [], {}
        others: list[BaseRoute] = []
        for route in routes:
            if not isinstance(route, Route):
                others.append(route)
            elif all(type(kind) in _AS_TEXT for kind in route.param_convertors.values()):
                self._included = included_routers(others)
                earlier = [other for other in others if may_match(other, route.path.partition("{")[0])]
                for method in route.methods or ():
                    candidates = self._candidates.setdefault((method, _until_noun(route.path)), [])
                    candidates.append(Candidate(route, route.path_regex, earlier))

    async def _answer(self, route: Route, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = scope.get(SCOPE_KEY)
        try:
            response = await route.respond(Request(scope, Rereadable(receive), send))
        except Exception as error:
            if request_id is not None:
                send = with_header(send, request_id)
            await self._handle(error)(scope, receive, send)
        else:
            if request_id is not None:
                response.raw_headers.append((REQUEST_ID_HEADER, request_id.encode()))
            await response(scope, receive, send)

    def _handle(self, error: Exception) -> ASGIApp:
        """Return an app that answers an error with the host's handler of its class, or raises it."""

        async def fail(*_: object) -> None:
            raise error

        handlers = {
            kind: handler
            for kind, handler in self._host.exception_handlers.items()
            if kind not in (500, Exception)
        }
        return ExceptionMiddleware(fail, handlers)


def _until_noun(path: str) -> str:
    """Return a path up to its noun: ``/v1/joblib/tasks`` of ``/v1/joblib/tasks/…``, after any prefix."""
    start = path.find(_API)
    end = path.find("/", start + len(_API))
    return path if end < 0 else path[:end]
