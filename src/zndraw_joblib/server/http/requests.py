"""Requests: headers, ids, counts and bodies, and a host's dependencies, which FastAPI solves for them."""

import asyncio
import inspect
import os
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextvars import ContextVar
from functools import lru_cache
from itertools import count
from secrets import token_hex
from typing import Annotated, Any, NamedTuple, TypeAlias, TypeVar, get_args
from urllib.parse import urlencode

from fastapi import APIRouter, BackgroundTasks, Depends, FastAPI, Request, Response, params
from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware
from fastapi.security import APIKeyQuery
from fastapi.security.base import SecurityBase
from pydantic import BaseModel
from pydantic.json_schema import SkipJsonSchema
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from zndraw_joblib.server.process.ports import LocalHistogram
from zndraw_joblib.server.process.settings import JobLibSettings
from zndraw_joblib.server.process.shared_limit import SharedLimit
from zndraw_joblib.server.process.waiters import Disconnected, Expired, in_time
from zndraw_joblib.wire.messages import MAX_BATCH_BYTES, MAX_JSON_BYTES
from zndraw_joblib.wire.problems import ContentTooLarge, InternalServerError, UploadStalled

_PREFERENCES = re.compile(r'(?:[^,"]|"[^"]*")+')
_WAIT = re.compile(r'\s*wait\s*=\s*("?)(\d+)\1\s*(?:;.*)?', re.IGNORECASE | re.DOTALL)
_MAX_WAIT = 10**6


def header_values(request: HTTPConnection, name: bytes) -> list[str]:
    """Return the values of a header, given in lower case."""
    return [value.decode("latin-1") for key, value in request.scope["headers"] if key == name]


def preferred_wait(headers: Iterable[str]) -> float | None:
    """Return the seconds of the first ``wait=N`` in headers `Prefer` (RFC 7240), None without one."""
    for header in headers:
        for preference in _PREFERENCES.findall(header):
            if match := _WAIT.fullmatch(preference):
                return min(float(match[2]), _MAX_WAIT)
    return None


# Parts of declarations: parameters that a request may omit, headers, and bodies of bytes.

Value = TypeVar("Value")
# None stands for an omitted parameter: no header or query has a null, so the OpenAPI document has none.
Omissible: TypeAlias = Value | SkipJsonSchema[None]
_BINARY = {"type": "string", "format": "binary"}
# A body of bytes. Generators of clients know no `*/*`, so a request declares the general type alone.
BYTES_SENT: dict[str, Any] = {
    "description": "The bytes, with any `Content-Type`, which is kept.",
    "required": True,
    "content": {"application/octet-stream": {"schema": _BINARY}},
}
BYTES_RETURNED: dict[str, Any] = {"application/octet-stream": {"schema": _BINARY}, "*/*": {"schema": _BINARY}}


def header_parameter(name: str, description: str) -> dict[str, Any]:
    """Return the declaration of a header that the endpoint reads from the request itself."""
    return {"in": "header", "name": name, "description": description, "schema": {"type": "string"}}


def event_stream(description: str) -> dict[str, Any]:
    """Return the declaration of a response that is a stream of Server-Sent Events."""
    return {"text/event-stream": {"schema": {"type": "string", "description": description}}}


# Read the body of a request in a host's dependencies and again in the endpoint.

# A body has at most one JSON value of 1 MiB and an error text. Escapes at most triple the size of a text.
MAX_BODY_BYTES = 4 * MAX_JSON_BYTES
# All requests of a process together have bodies of this size, beyond the first 64 KiB of each.
MAX_BODIES_BYTES = 256 * 1024 * 1024
_UNCOUNTED_BYTES = 64 * 1024
# A body that arrives at this rate may take longer than the time limit of a request.
_MIN_BYTES_PER_SECOND = 64 * 1024
# The key of a body that was read, in the request's scope.
BODY = "zndraw_joblib.body"
# The key of the `HeldBytes` of a large body, in the request's scope.
HELD_BYTES = "zndraw_joblib.held_bytes"


def bytes_of_bodies(settings: JobLibSettings, max_bytes: int = MAX_BODIES_BYTES) -> SharedLimit:
    """Return the limit of the bodies that the requests of a process have. One user may always send one."""
    return SharedLimit(
        "bytes of bodies",
        "are being received",
        lambda: max_bytes,
        lambda: max(MAX_BATCH_BYTES, settings.share_of(max_bytes)),
        (f"{max_bytes} in a server process", "max_share_per_user"),
    )


# All large responses of a process together have this size while clients take them.
MAX_RESPONSES_BYTES = 256 * 1024 * 1024


def bytes_of_responses(settings: JobLibSettings, max_bytes: int = MAX_RESPONSES_BYTES) -> SharedLimit:
    """Return the limit of the large responses that a process is sending."""
    return SharedLimit(
        "bytes of responses",
        "are being sent",
        lambda: max_bytes,
        lambda: max(max_bytes // 4, settings.share_of(max_bytes)),
        (f"{max_bytes} in a server process", "max_share_per_user"),
    )


def open_downloads(settings: JobLibSettings) -> SharedLimit:
    """Return the limit of the responses of stored bytes and of lines that a process is sending."""
    return SharedLimit(
        "downloads",
        "are under way",
        lambda: settings.max_downloads,
        lambda: settings.share_of_setting("max_downloads"),
        ("max_downloads", "max_share_per_user"),
        "take the bytes of one, or retry later",
    )


class HeldBytes:
    """The bytes of one request's body that count for a user until the end of the request."""

    __slots__ = ("_amount", "_limit", "_user")

    def __init__(self, limit: SharedLimit, user: str) -> None:
        self._limit, self._user, self._amount = limit, user, 0

    def grow(self, size: int) -> None:
        """Count a body that has `size` bytes now. Raises `ServiceUnavailable` or `TooManyRequests`."""
        more = size - _UNCOUNTED_BYTES - self._amount
        self._limit.take(self._user, more)
        self._amount += more

    def give_back(self) -> None:
        """Count the body no more."""
        self._limit.give_back(self._user, self._amount)
        self._amount = 0


async def read_body(
    request: Request, seconds: float, bodies: SharedLimit, user: str, max_bytes: int = MAX_BODY_BYTES
) -> bytes:
    """Return the body. Raises `ContentTooLarge` as soon as it has more than `max_bytes` bytes.

    Raises `UploadStalled` if it is not complete after `seconds`, and one more for each 64 KiB of it. Beyond
    the first 64 KiB it counts in `bodies` for a user; the caller gives back the `HeldBytes` of the request.
    """
    until, receive = asyncio.get_running_loop().time() + seconds, request.receive
    receive = getattr(receive, "source", receive)
    chunks, size = list[bytes](), 0
    while True:
        try:
            message = await in_time(receive(), until + size / _MIN_BYTES_PER_SECOND)
        except Expired as error:
            # The rest of the body may never arrive, so the connection cannot be used again.
            headers = {"Connection": "close"} if request.scope.get("http_version", "").startswith("1") else {}
            raise UploadStalled(
                f"The body of the request did not arrive within {seconds:g} s and one more for each 64 KiB "
                "(setting request_timeout_seconds); send it again",
                headers=headers,
            ) from error
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        if size > max_bytes:
            raise _too_large(max_bytes)
        if size > _UNCOUNTED_BYTES:
            request.scope.setdefault(HELD_BYTES, HeldBytes(bodies, user)).grow(size)
        if not message.get("more_body", False):
            return b"".join(chunks)


class Rereadable:
    """The `receive` of a request of the queue. After a reader of the body, `source` is replaced."""

    __slots__ = ("source",)

    def __init__(self, source: Receive) -> None:
        self.source = source

    def __call__(self) -> Awaitable[Message]:
        """Return the next message."""
        return self.source()


class RecordedBody:
    """A `receive` that keeps the parts of a body, at most `max_bytes` bytes, for the next reader."""

    def __init__(self, receive: Receive, max_bytes: int) -> None:
        self._receive = receive
        self._max_bytes = max_bytes
        self._size = 0
        self._parts: list[Message] = []

    async def __call__(self) -> Message:
        """Return the next message. Raises `ContentTooLarge` when the body has more than `max_bytes` bytes."""
        message = await self._receive()
        if message["type"] == "http.request":
            self._size += len(message.get("body", b""))
            if self._size > self._max_bytes:
                raise _too_large(self._max_bytes)
            self._parts.append(message)
        return message

    def from_start(self) -> Receive:
        """Return a `receive` that repeats the parts and then continues."""
        if not self._parts:
            return self._receive
        parts = iter(self._parts)

        async def receive() -> Message:
            part = next(parts, None)
            return await self._receive() if part is None else part

        return receive


def read_again(content: bytes, receive: Receive) -> Receive:
    """Return a `receive` that returns a body that was read, and then continues with `receive`."""
    parts = iter((content,))

    async def receive_again() -> Message:
        part = next(parts, None)
        return await receive() if part is None else {"type": "http.request", "body": part}

    return receive_again


def _too_large(max_bytes: int) -> ContentTooLarge:
    return ContentTooLarge(f"The body has more than {max_bytes} bytes, which is the limit; send less")


# The header ``X-Request-ID``: of a request if it is valid, else a new id.

REQUEST_ID = "X-Request-ID"
# The key of the id in the scope of a request that the standalone app answers before its other layers.
SCOPE_KEY = "zndraw_joblib.request_id"
# The key of the server's `send` in the scope of a request. Middleware may replace the `send` of the request;
# the connection of uvicorn is found by this one.
SEND = "zndraw_joblib.send"
REQUEST_ID_HEADER = REQUEST_ID.lower().encode()
_VALID = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")


_numbers = count(1)
_prefix = ""


def _change_prefix() -> None:
    global _prefix  # noqa: PLW0603 - it concerns the process
    _prefix = token_hex(6)


_change_prefix()
if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
    os.register_at_fork(after_in_child=_change_prefix)


def given_request_id(scope: Scope) -> str | None:
    """Return the id in the request's header, None if it has no valid one."""
    for name, value in scope["headers"]:
        if name == REQUEST_ID_HEADER:
            return value.decode() if _VALID.fullmatch(value) else None
    return None


def request_id_of(scope: Scope) -> str:
    """Return the id in the request's header, a new one if it has no valid one."""
    return given_request_id(scope) or f"{_prefix}-{next(_numbers)}"


def with_header(send: Send, request_id: str) -> Send:
    """Return a `send` that adds the header to the response."""

    async def send_with_header(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), (REQUEST_ID_HEADER, request_id.encode())]
        await send(message)

    return send_with_header


# Count the requests of a route by method and status, and the time until their responses.

REQUEST_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
# Set in the scope of a request that waited for something, as a client asked with `Prefer: wait`.
WAITED = "zndraw_joblib.waited"
# The status of a request whose error a handler of the host answers.
BY_HOST = "host"


class RequestCounts:
    """The requests that one process answered: `answered` by method and status.

    `seconds` has the times until the responses began, by method, without requests that waited.
    """

    __slots__ = ("answered", "seconds")

    def __init__(self) -> None:
        self.answered: defaultdict[tuple[str, int | str], int] = defaultdict(int)
        self.seconds: dict[str, LocalHistogram] = {}

    def add(self, scope: Scope, status: int | str, seconds: float) -> None:
        """Count a request."""
        method = scope["method"]
        self.answered[method, status] += 1
        if WAITED not in scope:
            histogram = self.seconds.get(method)
            if histogram is None:
                histogram = self.seconds[method] = LocalHistogram(REQUEST_SECONDS)
            histogram.add(seconds)


# A host's dependencies, which FastAPI solves at any point of a request, by a route that is made for them.

# The key of the values of dependencies that were solved for a request, in its scope.
SOLVED = "zndraw_joblib.solved"
_VALUE = "zndraw_joblib.value"
# The key of the token that was in the query, which no log shows.
QUERY_TOKEN = "zndraw_joblib.query_token"  # noqa: S105 - not a token
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
    results: list[Solved] = []
    # Middleware of the host sees what a dependency writes to `request.state`.
    request.scope.setdefault("state", {})
    scope = {**request.scope, "path_params": values, _VALUE: results}
    scope.pop(_HANDLERS, None)
    if (token := scope.get(QUERY_TOKEN)) is not None:
        scope["query_string"] = b"&".join(
            filter(None, (scope["query_string"], urlencode({"token": token}).encode()))
        )
    receive, content = request.receive, request.scope.get(BODY)
    if isinstance(receive, Rereadable):
        receive = receive.source
    if content is not None:
        receive = read_again(content, receive)
    body = RecordedBody(receive, _max_body_bytes(request))
    app = _Overrides.app.set(request.app)
    try:
        await _solver(dependency, tuple(values), request.method)(scope, body, _drop)
    finally:
        _Overrides.app.reset(app)
    if not results:
        raise InternalServerError(f"FastAPI did not solve the dependency {dependency!r:.200}")
    if content is None and isinstance(request.receive, Rereadable):
        request.receive.source = body.from_start()
    request.scope.setdefault(SOLVED, []).append(results[0])
    return results[0].value


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
    scope = {name: value for name, value in request.scope.items() if name != SOLVED}
    scope["state"] = dict(scope.get("state", {}))
    return Request(scope, _no_body)


async def _no_body() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


def add_effects(request: Request, response: Response) -> None:
    """Add the cookies, headers and background tasks of solved dependencies, in `SOLVED`, to the response.

    A header of the endpoint stays as it is.
    """
    results: list[Solved] = request.scope.pop(SOLVED)
    own = {name for name, _ in response.raw_headers}
    for name, value in [header for solved in results for header in solved.response.raw_headers]:
        if name == b"set-cookie":
            if (name, value) not in response.raw_headers:
                response.raw_headers.append((name, value))
        elif name not in own:
            response.headers[name.decode("latin-1")] = value.decode("latin-1")
    if tasks := [task for solved in results for task in solved.background_tasks]:
        response.background = BackgroundTasks(tasks)


def _max_body_bytes(request: Request) -> int:
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
    kind, marks = _marked(parameter)
    for mark in marks:
        if isinstance(mark, params.Depends):
            below = mark.dependency or kind
            return callable(below) and takes_parameter(below, name)
        if isinstance(mark, params.Path):
            return name == (mark.alias or parameter.name)
        if isinstance(mark, params.Param | params.Body):
            return False
    return parameter.name == name or (inspect.isclass(kind) and issubclass(kind, HTTPConnection))


def _marked(parameter: inspect.Parameter) -> tuple[Any, list[Any]]:
    """Return the type of a parameter, and what marks it: its default, and the metadata of the type."""
    if hasattr(parameter.annotation, "__metadata__"):
        kind, *marks = get_args(parameter.annotation)
        return kind, [parameter.default, *marks]
    return parameter.annotation, [parameter.default]


Overrides = Mapping[Callable[..., Any], Callable[..., Any]]


def query_names(
    dependency: Callable[..., Any], overrides: Overrides, path_names: Iterable[str] = ()
) -> set[str] | None:
    """Return the query parameters that a dependency takes, with those below it and an app's overrides.

    None if that is unknown: it takes the whole request, and may read any of them.
    """
    dependency = overrides.get(dependency, dependency)
    module = getattr(dependency, "__module__", "")
    if isinstance(dependency, SecurityBase) and module.startswith("fastapi."):
        return {dependency.model.name} if isinstance(dependency, APIKeyQuery) else set()
    try:
        parameters = inspect.signature(dependency, eval_str=True).parameters.values()
    except (NameError, TypeError, ValueError):  # a name that is imported for type checkers only; no signature
        return None
    names: set[str] = set()
    for parameter in parameters:
        of_parameter = _query_names_of(parameter, overrides, is_own=module.startswith("zndraw_joblib."))
        if of_parameter is None:
            return None
        names |= of_parameter
    return names - set(path_names)


def _query_names_of(parameter: inspect.Parameter, overrides: Overrides, *, is_own: bool) -> set[str] | None:
    """Return the query parameters that a parameter of a dependency stands for: the fields of a model.

    The package's `is_own` dependencies take the request for other things than its query.
    """
    kind, marks = _marked(parameter)
    is_class = inspect.isclass(kind)
    for mark in marks:
        if isinstance(mark, params.Depends):
            below = mark.dependency or kind
            return query_names(below, overrides) if callable(below) else None
        if isinstance(mark, params.Query):
            if is_class and issubclass(kind, BaseModel):
                return {field.alias or name for name, field in kind.model_fields.items()}
            return {mark.alias or parameter.name}
        if isinstance(mark, params.Param | params.Body):
            return set()
    if is_class and issubclass(kind, HTTPConnection):
        return set() if is_own else None
    return {parameter.name}


# A client that disconnects while its request waits.


class DisconnectWatcher:
    """Watches the client while its request waits: `disconnected` is done once it has disconnected."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self.disconnected: Disconnected = None

    async def __aenter__(self) -> "DisconnectWatcher":
        self._request.scope[WAITED] = True
        self._watch = asyncio.ensure_future(self._wait())
        self.disconnected = self._watch
        return self

    async def __aexit__(self, *_: object) -> None:
        self._watch.cancel()

    async def _wait(self) -> None:
        while (await self._request.receive())["type"] != "http.disconnect":
            pass
