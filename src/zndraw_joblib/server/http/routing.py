"""Refuse requests that a page of another site makes with the credentials of the user's browser.

A browser adds cookies to requests of any page, so an unsafe request needs a sign that it comes from a page
that may act for the user. Clients that are no browsers send neither `Origin` nor `Sec-Fetch-Site`.
"""

import inspect
import json
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from copy import copy
from time import perf_counter
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode
from uuid import UUID

from fastapi import FastAPI, Request, Response, params
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import from_json
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from zndraw_joblib.jobs.logs import log_fields
from zndraw_joblib.server.http.callers import CALLER, Check, Recheck, check_after_body, check_of
from zndraw_joblib.server.http.host_dependencies import QUEUE, add_effects, solve
from zndraw_joblib.server.http.requests import (
    BODY,
    BY_HOST,
    HELD_BYTES,
    MAX_BODY_BYTES,
    SCOPE_KEY,
    RequestCounts,
    Rereadable,
    given_request_id,
    read_body,
)
from zndraw_joblib.server.http.state import QueueState, queue_state, remember_queue
from zndraw_joblib.server.runtime.problem_responses import (
    as_problem,
    invalid_body,
    invalid_part,
    problem_response,
)
from zndraw_joblib.wire.messages import MAX_BATCH_BYTES, BatchReportRequest, BatchSubmitRequest
from zndraw_joblib.wire.operations import NO_CONTENT, Operation
from zndraw_joblib.wire.problems import Forbidden, InvalidRequest, ProblemException

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_READ_ONLY = b"x-joblib-read-only"
_LOOKED_AT = frozenset({b"origin", b"sec-fetch-site", b"authorization", b"host", _READ_ONLY})
# A browser sends these by itself once it knows the password; a page has to send any other.
_SENT_BY_BROWSERS = ("basic", "digest", "negotiate", "ntlm")


def check_unsafe(request: Request) -> None:
    """Raise `Forbidden` for an unsafe request of a foreign page, or of a page that may only read."""
    scope = request.scope
    if scope["method"] in _SAFE:
        return
    found = {name: value for name, value in scope["headers"] if name in _LOOKED_AT}
    if _READ_ONLY in found:
        raise Forbidden(
            "The request has the header X-Joblib-Read-Only, so it may change nothing: the page is read-only"
        )
    origin, site = found.get(b"origin", b"").decode("latin-1"), found.get(b"sec-fetch-site")
    if (not origin and site is None) or _has_own_credentials(found.get(b"authorization", b"")):
        return
    is_own = site in {b"same-origin", b"none"} if site is not None else _is_host(origin, found.get(b"host"))
    if not is_own and not _is_trusted(request, origin):
        raise Forbidden(
            f"The request comes from a page of another origin, {origin[:200] or 'unknown'!r}. To let such "
            "pages act with the cookies of a user, add the origin to the setting trusted_origins"
        )


def _has_own_credentials(authorization: bytes) -> bool:
    scheme = authorization.partition(b" ")[0].decode("latin-1").lower()
    return bool(scheme) and scheme not in _SENT_BY_BROWSERS


def _is_host(origin: str, host: bytes | None) -> bool:
    """Return whether an origin is the server's, as far as it knows: a proxy may have ended TLS."""
    _, _, named = origin.lower().partition("://")
    given = (host or b"").decode("latin-1").lower()
    # Some proxies add the default port, which an origin never has.
    known = {given, given.removesuffix(":443"), given.removesuffix(":80")}
    return bool(named) and named in known


def _is_trusted(request: Request, origin: str) -> bool:
    if not origin or origin == "null":
        return False
    if origin in queue_state(request).runtime.settings.trusted_origins:
        return True
    return any(_allows(options, origin) for options in _cors_options(request.app))


def _cors_options(app: FastAPI) -> list[dict[str, Any]]:
    """Return the options of the app's CORS middleware: origins that it names may call the app already."""
    found: list[tuple[Any, Any]] = [(each.cls, each.kwargs) for each in app.user_middleware]
    return [
        dict(options)
        for kind, options in found
        if isinstance(kind, type) and issubclass(kind, CORSMiddleware)
    ]


def _allows(options: dict[str, Any], origin: str) -> bool:
    pattern = options.get("allow_origin_regex")
    return origin in options.get("allow_origins", ()) or bool(pattern and re.fullmatch(pattern, origin))


# The interpreter of the table of operations: makes a route from a row and the function that does its work.
#
# FastAPI's solver visits a tree of dependencies for each request, and closes them after the response. The
# parameters of operations are few and plain, so each is a function of the request. A host's dependencies
# (identity, room guards) go through FastAPI's solver and are closed before the work begins, because they
# may hold a database session or a lock.

# Every digit becomes a zero, to find numbers beyond the range of floats in linear time.
_AS_ZEROS = bytes.maketrans(b"123456789E", b"000000000e")
_MANY_DIGITS = b"0" * 100
# The key of the token that was in the query, which no log shows.
QUERY_TOKEN = "zndraw_joblib.query_token"  # noqa: S105 - not a token
Endpoint = Callable[..., Awaitable[Response]]
Resolve = Callable[[Request], Any]
# Parameters of the OpenAPI document: the annotation and the default of each, by name.
Declared = Mapping[str, tuple[Any, Any]]
REQUIRED = inspect.Parameter.empty


class Parameter:
    """A parameter of an operation's function: how it is read from a request, and how it is documented.

    Write `Annotated[float, Parameter(read, declared)]`. `read` may be a coroutine function. One that
    `is_last` needs what others have stored in the request's scope.
    """

    def __init__(self, read: Resolve, declared: Declared | None = None, *, is_last: bool = False) -> None:
        self.read, self.declared, self.is_last = read, declared or {}, is_last


class Work(NamedTuple):
    """The function that does the work of an operation, and what only the OpenAPI document needs."""

    operation: Operation[Any]
    endpoint: Endpoint
    document: dict[str, Any]

    def options(self) -> dict[str, Any]:
        """Return the arguments of `add_api_route` that follow from the row."""
        operation = self.operation
        has_model = operation.answer not in {NO_CONTENT, bytes, str}
        return {
            # A full name has colons and may have quoted slashes.
            "path": operation.template.replace("{name}", "{name:path}"),
            "endpoint": self.endpoint,
            "methods": [operation.method],
            "name": operation.name,
            "status_code": operation.status,
            "response_model": operation.answer if has_model else None,
            "tags": [operation.tag],
            **self.document,
        }


class Operations(dict[Operation[Any], Work]):
    """What a module does of the table: the function of each row."""

    def serve(
        self,
        operation: Operation[Any],
        *,
        access: Check | None = None,
        takes_any_query: bool = False,
        **document: Any,
    ) -> Callable[[Endpoint], Endpoint]:
        """Return a decorator: the function does the work of an operation.

        `access` checks the caller where no common rule does. With `takes_any_query` the query parameters are
        a user's own, with any names. `document` is for FastAPI's `add_api_route`.
        """

        def bind(endpoint: Endpoint) -> Endpoint:
            if endpoint.__name__ != operation.name or operation in self:
                raise ValueError(f"{endpoint.__name__}() cannot serve {operation.name}")
            check = access or check_of(operation.access)
            _PLANS[endpoint] = _Plan.of(operation, endpoint, check, takes_any_query=takes_any_query)
            self[operation] = Work(operation, endpoint, document)
            return endpoint

        return bind


class _Plan(NamedTuple):
    """What happens before an operation's function is called."""

    operation: Operation[Any]
    check: Check
    # How each keyword is read, and whether by a coroutine function.
    steps: list[tuple[str, Resolve, bool]]
    takes_any_query: bool
    # Has the signature of the OpenAPI document.
    documented: Endpoint

    @classmethod
    def of(
        cls, operation: Operation[Any], endpoint: Endpoint, check: Check, *, takes_any_query: bool
    ) -> "_Plan":
        steps: list[tuple[str, Resolve]] = []
        last: list[tuple[str, Resolve]] = []
        plain: dict[str, inspect.Parameter] = {}
        declared: dict[str, inspect.Parameter] = {}
        for name, parameter in inspect.signature(endpoint, eval_str=True).parameters.items():
            own = _own(parameter)
            if own is None:
                plain[name] = parameter.replace(kind=parameter.KEYWORD_ONLY)
                steps.append((name, _resolver(parameter, operation)))
                continue
            (last if own.is_last else steps).append((name, own.read))
            for key, (annotation, default) in own.declared.items():
                declared[key] = inspect.Parameter(
                    key, parameter.KEYWORD_ONLY, annotation=annotation, default=default
                )
        documented = _documented(endpoint, [*plain.values(), *declared.values()])
        return cls(
            operation,
            check,
            [(name, read, inspect.iscoroutinefunction(read)) for name, read in steps + last],
            takes_any_query,
            documented,
        )


def _own(parameter: inspect.Parameter) -> Parameter | None:
    marks = getattr(parameter.annotation, "__metadata__", ())
    return next((mark for mark in marks if isinstance(mark, Parameter)), None)


def _documented(endpoint: Endpoint, parameters: list[inspect.Parameter]) -> Endpoint:
    async def documented() -> Response:
        raise NotImplementedError

    documented.__name__, documented.__doc__ = endpoint.__name__, endpoint.__doc__
    documented.__module__, documented.__qualname__ = endpoint.__module__, endpoint.__qualname__
    documented.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return documented


# The plan of each function that serves an operation.
_PLANS: dict[Endpoint, _Plan] = {}


class Route(APIRoute):
    """A route that follows the plan of its function and answers every error as a problem."""

    def __init__(self, path: str, endpoint: Endpoint, **options: Any) -> None:
        self._work, self._plan = endpoint, _PLANS[endpoint]
        super().__init__(path, self._plan.documented, **options)
        self.endpoint = endpoint
        # FastAPI wraps handlers in stacks for dependencies and errors, which these routes do not use.
        self._handler = self.get_route_handler()
        self.counts = RequestCounts()
        # The queue whose route it is; without it, the app's first.
        self.queue: QueueState | None = None
        self.app = self._answer

    def for_app(self, provider: Any) -> "Route":
        """Return the same route for another app, whose overrides of dependencies `provider` has."""
        made = copy(self)
        made.dependency_overrides_provider = provider
        made.counts, made.app = RequestCounts(), made._answer
        return made

    @property
    def operation(self) -> Operation[Any]:
        """The row of the table."""
        return self._plan.operation

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self.respond(Request(scope, Rereadable(receive), send))
        await response(scope, receive, send)

    async def respond(self, request: Request) -> Response:
        """Return the response to a request, and count it. Raises only errors that the host handles."""
        started, scope = perf_counter(), request.scope
        if self.queue is not None:
            scope[QUEUE] = self.queue
        if b"token=" in scope["query_string"] and not self._plan.takes_any_query:
            _hide_token(scope)
        try:
            if SCOPE_KEY in scope or (request_id := given_request_id(scope)) is None:
                response = add_effects(request, await self._handler(request))
            else:
                with log_fields(request_id=request_id):
                    response = add_effects(request, await self._handler(request))
        except Exception:
            self.counts.add(scope, BY_HOST, perf_counter() - started)
            raise
        finally:
            if HELD_BYTES in scope:
                scope[HELD_BYTES].give_back()
        self.counts.add(scope, response.status_code, perf_counter() - started)
        return response

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler that replaces FastAPI's."""
        work, check, steps = self._work, self._plan.check, self._plan.steps
        dependencies = [depends.dependency for depends in self.dependencies if depends.dependency]

        async def handle(request: Request) -> Response:
            try:
                identity = remember_queue(request).identity
                check_unsafe(request)
                for dependency in dependencies:
                    # The host's own dependencies; the identity is declared here and resolved later.
                    if dependency is not identity:
                        await solve(request, dependency)
                await check(request)
                values = {}
                for name, read, is_async in steps:
                    values[name] = await read(request) if is_async else read(request)
                return await work(**values)
            except ClientDisconnect:
                return Response(status_code=499)
            except Exception as error:
                if _is_handled_by_host(request, error):
                    raise
                queue: QueueState | None = request.scope.get(QUEUE)
                return problem_response(as_problem(error), queue.prefix if queue else "")

        return handle


# The options and the route of each operation that was made last.
_made: dict[tuple[str, Endpoint], tuple[dict[str, Any], Route]] = {}


def make_route(path: str, endpoint: Endpoint, **options: Any) -> Route:
    """Return a route. With the options of the last one it shares what FastAPI derives from them.

    That takes a millisecond for each route: a host's tests create an app for each test.
    """
    provider = options.pop("dependency_overrides_provider", None)
    known = _made.get((path, endpoint))
    if known is None or known[0] != options:
        known = _made[path, endpoint] = options, Route(path, endpoint, **options)
    return known[1].for_app(provider)


def _hide_token(scope: Scope) -> None:
    """Move a token out of the query, because the access log has the query of each request."""
    given = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    scope[QUERY_TOKEN] = next((value for name, value in given if name == "token"), None)
    rest = [(name, value) for name, value in given if name != "token"]
    scope["query_string"] = urlencode(rest).encode("latin-1")


def _is_handled_by_host(request: Request, error: Exception) -> bool:
    """Return whether the host has a handler for an error's class; all other errors become problems."""
    if isinstance(error, ProblemException | HTTPException | RequestValidationError):
        return False
    kinds = set(type(error).__mro__) - {Exception, BaseException, object}
    return not kinds.isdisjoint(request.app.exception_handlers)


def _resolver(parameter: inspect.Parameter, operation: Operation[Any]) -> Resolve:
    """Return how a plain parameter is read: the request, the body, or a value of the path or the query."""
    if parameter.annotation is Request:
        return lambda request: request
    if operation.body is not None and parameter.name == "body":
        return _body(operation.body, is_required=not operation.has_optional_body)
    return _parameter(parameter)


def _parameter(parameter: inspect.Parameter) -> Resolve:
    """Resolve a plain parameter: from the query if it is a `Query` or has a default, else from the path."""
    adapter, name, default = TypeAdapter(parameter.annotation), parameter.name, parameter.default
    marks = getattr(parameter.annotation, "__metadata__", ())
    is_required = default is parameter.empty
    is_query = not is_required or any(isinstance(mark, params.Query) for mark in marks)

    def resolve(request: Request) -> Any:
        place, given = ("query", request.query_params) if is_query else ("path", request.path_params)
        if name not in given:
            if is_required:
                raise InvalidRequest(f"{place}.{name}: it is missing")
            return default
        try:
            return UUID(given[name]) if parameter.annotation is UUID else adapter.validate_python(given[name])
        except ValidationError as error:
            raise invalid_part(error, place, name) from error
        except ValueError as error:
            raise InvalidRequest(f"{place}.{name}: {given[name][:100]!r} is not a UUID") from error

    return resolve


async def receive_body(request: Request, most: int, recheck: Recheck | None = None) -> bytes:
    """Return the body of a request. It counts for the caller until the end of the request.

    After a slow body, the caller and its access to the path's room are checked again, and `recheck` runs.
    """
    queue, caller = queue_state(request), request.scope.get(CALLER)
    seconds, user = queue.runtime.settings.request_timeout_seconds, "" if caller is None else caller.id
    content = await read_body(request, seconds, queue.body_bytes, user, most)
    await check_after_body(request, recheck)
    return content


def _may_overflow(content: bytes) -> bool:
    """Return whether JSON may have a number that every parser turns into infinity."""
    digits = content.translate(_AS_ZEROS, b"+")
    return b"e000" in digits or _MANY_DIGITS in digits


def _body(model: type[BaseModel], *, is_required: bool) -> Resolve:
    most = MAX_BATCH_BYTES if issubclass(model, BatchSubmitRequest | BatchReportRequest) else MAX_BODY_BYTES

    async def resolve(request: Request) -> Any:
        content = request.scope[BODY] = await receive_body(request, most)
        if not content:
            if is_required:
                raise InvalidRequest("body: it is empty; send a JSON object")
            return None
        try:
            # Strict JSON: no NaN, no infinity, no lone surrogate.
            value = from_json(content, allow_inf_nan=False)
            if _may_overflow(content):
                json.dumps(value, allow_nan=False)
            if value is None and not is_required:
                return None
            return model.model_validate(value)
        except ValidationError as error:
            raise invalid_body(model, value, error) from error
        except ValueError as error:
            raise InvalidRequest(f"body: it is not JSON: {error}") from error

    return resolve
