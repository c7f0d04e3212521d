"""The interpreter of the table of operations: it binds a row to its function, and answers requests with it.

A function takes what it needs by name. `request`, `queue`, `runtime` and `caller` are of the request, and
`room_id` is the room of the path after its guard has passed. `body` and `key` are there if the row has a
body, or may be repeated. All others are parameters of the path or of the query, or have a `Parameter` in
their annotation.

FastAPI's solver visits a tree of dependencies for each request, and closes them after the response. Here the
parameters of an operation are a list of functions of the request, made at import. A host's dependencies
(identity, room guards) go through FastAPI's solver and are closed before the work begins, because they may
hold a database session or a lock.
"""

import hashlib
import inspect
import json
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial, update_wrapper
from itertools import islice
from math import isinf
from time import perf_counter
from typing import Annotated, Any, NamedTuple, get_args
from urllib.parse import parse_qsl, urlencode
from uuid import UUID

from fastapi import Depends, FastAPI, Header, Path, Query, Request, Response, params
from fastapi.exceptions import RequestValidationError
from fastapi.responses import StreamingResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import from_json
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.routing import Route as StarletteRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from zndraw_joblib.jobs.logs import fields_here
from zndraw_joblib.server.http.access import (
    CALLER,
    IDENTIFIED_AT,
    QueueState,
    Recheck,
    check_after_body,
    get_result_backend,
    guarded_room,
    is_trusted,
    permitted_caller,
    queue_state,
    remember_queue,
    result_backend,
    verify_readable_room,
    verify_writable_room,
)
from zndraw_joblib.server.http.requests import (
    BODY,
    BY_HOST,
    HELD_BYTES,
    MAX_BODY_BYTES,
    QUERY_TOKEN,
    QUEUE,
    REQUEST_ID_HEADER,
    SCOPE_KEY,
    SEND,
    SOLVED,
    Omissible,
    RequestCounts,
    Rereadable,
    add_effects,
    given_request_id,
    header_values,
    preferred_wait,
    query_names,
    read_body,
    solve,
)
from zndraw_joblib.server.process.ports import CursorPage, Page, RequestKey
from zndraw_joblib.server.process.shared_limit import SharedLimit
from zndraw_joblib.server.runtime.problem_responses import (
    MAX_LISTED_ERRORS,
    as_problem,
    invalid_body,
    invalid_part,
    of_read,
    problem_response,
)
from zndraw_joblib.wire.messages import MAX_BATCH_BYTES, MAX_PAGE, BatchReportRequest, BatchSubmitRequest
from zndraw_joblib.wire.names import (
    IDEMPOTENCY_KEY,
    MAX_KEY_LENGTH,
    JobName,
    near_text,
    parse_job_name,
    parse_key,
    parse_provider_name,
)
from zndraw_joblib.wire.operations import Access, Effect, Operation
from zndraw_joblib.wire.problems import (
    Forbidden,
    InvalidIdempotencyKey,
    InvalidRequest,
    JobNotFound,
    ProblemException,
    ProviderNotFound,
)

# Parameters: what a function of an operation takes.

# Every digit becomes a zero, to find numbers beyond the range of floats in linear time.
_AS_ZEROS = bytes.maketrans(b"123456789E", b"000000000e")
_MANY_DIGITS = b"0" * 100
# To look at each value of a longer body takes less time, if there are few.
_LONG_BODY, _FEW_VALUES = 100_000, 1_000
# How many characters of an unknown query parameter an error shows.
_MAX_SHOWN = 40
Resolve = Callable[[Request], Any]
Work = Callable[..., Awaitable[Response]]
_REQUIRED = inspect.Parameter.empty


class Parameter:
    """A parameter: `resolve` returns its value for a request, the fields declare it in the OpenAPI document.

    A field is an annotation of FastAPI and, unless it is required, a default. If it `checks_access`, the
    operation has no other check of the caller. Without `header` in the request, the value is `absent`.
    """

    def __init__(
        self,
        resolve: Resolve,
        *,
        checks_access: bool = False,
        header: bytes | None = None,
        absent: Any = None,
        **fields: tuple[Any] | tuple[Any, Any],
    ) -> None:
        self.resolve, self.header, self.absent = resolve, header, absent
        self.checks_access = checks_access

        def declare() -> None:
            """Declare the fields to FastAPI, which never calls it."""

        declare.__signature__ = _signature({name: (*field, _REQUIRED)[:2] for name, field in fields.items()})  # type: ignore[attr-defined]
        self.declared = Depends(declare)


def _signature(fields: Mapping[str, tuple[Any, Any]]) -> inspect.Signature:
    """Return a signature of annotations and defaults by name."""
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Signature(
        [
            inspect.Parameter(name, kind, annotation=annotation, default=default)
            for name, (annotation, default) in fields.items()
        ]
    )


def _plain(parameter: inspect.Parameter) -> Resolve:
    """Resolve a plain parameter: from the query if it is a `Query` or has a default, else from the path."""
    adapter, name, default = TypeAdapter(parameter.annotation), parameter.name, parameter.default
    marks = getattr(parameter.annotation, "__metadata__", ())
    is_required = default is parameter.empty
    is_query = not is_required or any(isinstance(mark, params.Query) for mark in marks)

    def resolve(request: Request) -> Any:
        part, values = ("query", request.query_params) if is_query else ("path", request.path_params)
        if name not in values:
            if is_required:
                raise InvalidRequest(f"{part}.{name}: it is missing")
            return default
        text = values[name]
        try:
            return UUID(text) if parameter.annotation is UUID else adapter.validate_python(text)
        except ValidationError as error:
            raise invalid_part(error, part, name) from error
        except ValueError as error:
            raise InvalidRequest(f"{part}.{name}: {text[:100]!r} is not a UUID") from error

    return resolve


async def receive_body(request: Request, limit: int, recheck: Recheck | None = None) -> bytes:
    """Return the body of a request. It counts for the caller until the end of the request.

    After a slow body, the caller and its access to the path's room are checked again, and `recheck` runs.
    """
    scope = request.scope
    queue, caller, checked_at = scope[QUEUE], scope.get(CALLER), scope.get(IDENTIFIED_AT)
    seconds, user = queue.runtime.settings.request_timeout_seconds, "" if caller is None else caller.id
    content = await read_body(request, seconds, queue.body_bytes, user, limit)
    if checked_at is not None and not is_trusted(queue, checked_at):
        await check_after_body(request, recheck)
    return content


def _check_numbers(content: bytes, value: Any) -> None:
    """Raise ValueError for a number beyond the range of floats: every parser turns it into infinity."""
    if len(content) > _LONG_BODY and len(content.split(b",", _FEW_VALUES)) <= _FEW_VALUES:
        values = [value]
        while values:
            item = values.pop()
            if isinstance(item, dict):
                values += item.values()
            elif isinstance(item, list):
                values += item
            elif isinstance(item, float) and isinf(item):
                raise ValueError("a number is beyond the range of floats")
        return
    digits = content.translate(_AS_ZEROS, b"+")
    if b"e000" in digits or _MANY_DIGITS in digits:
        json.dumps(value, allow_nan=False)


def _body(model: type[BaseModel], *, is_required: bool) -> Resolve:
    limit = MAX_BATCH_BYTES if issubclass(model, BatchSubmitRequest | BatchReportRequest) else MAX_BODY_BYTES

    async def resolve(request: Request) -> Any:
        content = request.scope[BODY] = await receive_body(request, limit)
        if not content:
            if is_required:
                raise InvalidRequest("body: it is empty; send a JSON object")
            return None
        try:
            # Strict JSON: no NaN, no infinity, no lone surrogate.
            value = from_json(content, allow_inf_nan=False)
            _check_numbers(content, value)
            if value is None and not is_required:
                return None
            return model.model_validate(value)
        except ValidationError as error:
            raise invalid_body(model, value, error) from error
        except ValueError as error:
            raise InvalidRequest(f"body: it is not JSON: {error}") from error

    return resolve


# The header `Idempotency-Key`.

_KEY_HEADER = IDEMPOTENCY_KEY.lower().encode()


def _request_key(request: Request) -> RequestKey:
    values = header_values(request, _KEY_HEADER)
    if len(values) > 1:
        raise InvalidIdempotencyKey(
            f"header.{IDEMPOTENCY_KEY}: the request has it {len(values)} times; send it once"
        )
    scope = request.scope
    target = f"{request.method} {scope['path']}?".encode() + scope["query_string"] + b"\n"
    return key_of(request, parse_key(values[0]), target + scope.get(BODY, b""))


def key_of(request: Request, key: str, content: bytes) -> RequestKey:
    """Return the key of a caller for content that is sent with it."""
    hours = queue_state(request).runtime.settings.idempotency_key_hours
    caller = request.scope[CALLER]
    # A task repeats what its earlier attempts have sent, and not what other tasks of the same user have.
    who = caller.id if caller.task is None else f"{caller.id}\ntask {caller.task.id}"
    return RequestKey(
        # The line break separates the caller from the key, which has none.
        _digest(f"{who}\n{key}".encode("utf-8", "surrogatepass")),
        _digest(content),
        timedelta(hours=hours),
        caller.id,
    )


def _digest(content: bytes) -> UUID:
    return UUID(bytes=hashlib.sha256(content).digest()[:16])


def item_key(key: RequestKey | None, index: int) -> RequestKey | None:
    """Return the key of an item of a request for many."""
    return key and key._replace(id=_digest(b"%b %d" % (key.id.bytes, index)))


def claim_id_of(claim_id: UUID | None, key: RequestKey | None) -> UUID | None:
    """Return the `claim_id` of a claim: the one in the body, or one made from the key."""
    return key.id if claim_id is None and key is not None else claim_id


_KEY_FIELD = Annotated[
    Omissible[str],
    Header(
        alias=IDEMPOTENCY_KEY,
        description=f"A string or token of 1 to {MAX_KEY_LENGTH} characters. The server applies "
        "requests of one caller with the same key once; a repeat gets the first response.",
    ),
]
_KEY = Parameter(_request_key, header=_KEY_HEADER, idempotency_key=(_KEY_FIELD, None))


# Names of jobs and providers, waiting times, and pages of lists.

MAX_OFFSET = 2**62
MAX_PART = 200
_PART = 50
_PREFER = b"prefer"
_MINIMAL = re.compile(r'\s*return\s*=\s*("?)minimal\1\s*(?:;.*)?', re.IGNORECASE | re.DOTALL)
_WHOLE = re.compile(r"\d{1,19}")
_NAME = Annotated[str, Path(description="room:category:name")]
_PREFER_WAIT = Annotated[
    Omissible[str],
    Header(
        alias="Prefer",
        description="`wait=N`: wait up to N seconds (RFC 7240). The response has `Preference-Applied`.",
        examples=["wait=30"],
    ),
]
_PREFER_MINIMAL = Annotated[
    Omissible[str],
    Header(
        alias="Prefer",
        description="`return=minimal`: leave the tasks out of the response (RFC 7240).",
        examples=["return=minimal"],
    ),
]


def _preferred_seconds(request: Request) -> float | None:
    return preferred_wait(header_values(request, _PREFER))


def _prefers_minimal(request: Request) -> bool:
    values = [value for header in header_values(request, _PREFER) for value in header.split(",")]
    return any(_MINIMAL.fullmatch(value) for value in values)


def _page(request: Request) -> Page:
    query = request.query_params
    return Page(
        _bounded(query.get("limit", "50"), "limit", MAX_PAGE),
        _bounded(query.get("offset", "0"), "offset", MAX_OFFSET),
    )


def _cursor_page(request: Request) -> CursorPage:
    query = request.query_params
    limit = _bounded(query.get("limit", str(_PART)), "limit", MAX_PART, lowest=1)
    return CursorPage(limit, query.get("cursor"))


def _bounded(text: str, name: str, highest: int, lowest: int = 0) -> int:
    if not _WHOLE.fullmatch(text) or not lowest <= int(text) <= highest:
        raise InvalidRequest(
            f"query.{name}: it must be an integer from {lowest} to {highest}, not {text[:40]!r}"
        )
    return int(text)


NamedJob = Annotated[
    JobName, Parameter(lambda request: parse_job_name(request.path_params["name"]), name=(_NAME,))
]
NamedProvider = Annotated[
    JobName, Parameter(lambda request: parse_provider_name(request.path_params["name"]), name=(_NAME,))
]
Wait = Annotated[
    float,
    Parameter(
        lambda request: _preferred_seconds(request) or 0,
        header=_PREFER,
        absent=0,
        prefer=(_PREFER_WAIT, None),
    ),
]
PreferredWait = Annotated[
    float | None, Parameter(_preferred_seconds, header=_PREFER, prefer=(_PREFER_WAIT, None))
]
Minimal = Annotated[
    bool, Parameter(_prefers_minimal, header=_PREFER, absent=False, prefer=(_PREFER_MINIMAL, None))
]
Paging = Annotated[
    Page,
    Parameter(
        _page, limit=(Annotated[int, Query(ge=0, le=MAX_PAGE)], 50), offset=(Annotated[int, Query(ge=0)], 0)
    ),
]
CursorPaging = Annotated[
    CursorPage,
    Parameter(
        _cursor_page,
        limit=(Annotated[int, Query(ge=1, le=MAX_PART)], _PART),
        cursor=(Annotated[Omissible[str], Query(description="`next` of the last response")], None),
    ),
]


# A row of the table and its function.

_OF_REQUEST = frozenset({"request", "queue", "runtime"})
_WITH_KEY = frozenset({Effect.WRITE_ONCE, Effect.WRITE_PARTS_ONCE})
_ROOM = Access.ROOM_READ | Access.ROOM_WRITE
_GUARDS = {Access.ROOM_READ: verify_readable_room, Access.ROOM_WRITE: verify_writable_room}
_BY_TOKEN = Access.STREAM_TOKEN | Access.METRICS_TOKEN


class Step(NamedTuple):
    """One step of a request: a function of the request, and the parameter that takes its value, if any.

    Without the `header` it reads, the value is `absent`.
    """

    name: str | None
    resolve: Resolve
    is_async: bool
    header: bytes | None
    absent: Any


def _step(name: str | None, resolve: Resolve, mark: Parameter | None = None) -> Step:
    header, absent = (None, None) if mark is None else (mark.header, mark.absent)
    return Step(name, resolve, inspect.iscoroutinefunction(resolve), header, absent)


class Endpoint:
    """A row of the table and its function, which routes call with the parameters that it takes.

    Its signature is the one that FastAPI reads for the OpenAPI document. `documented` are more options of
    `add_api_route`.
    """

    def __init__(
        self, operation: Operation[Any], work: Work, *, has_free_query: bool, **documented: Any
    ) -> None:
        update_wrapper(self, work)
        self.operation, self.work, self.documented = operation, work, documented
        # The names of jobs and providers may have slashes.
        self.path = operation.template.replace("{name}", "{name:path}")
        # Whether the names of query parameters are a user's own.
        self.has_free_query = has_free_query
        self._parameters = inspect.signature(work, eval_str=True).parameters
        self._marks = {name: _mark(parameter) for name, parameter in self._parameters.items()}
        _check(operation, work, self._parameters, self._marks)
        self.of_request = [name for name in self._parameters if name in _OF_REQUEST]
        self.access_steps, self.value_steps = [*self._access()], [*self._values()]
        self.__signature__ = _signature(dict(self._declared()))
        # The query parameters that it takes.
        others = {*re.findall(r"{(\w+)}", operation.template), "body"}
        self.query_names = sorted(query_names(self, {}, others) or ())

    def __call__(self, **values: Any) -> Awaitable[Response]:
        """Call the function."""
        return self.work(**values)

    def _access(self) -> Iterator[Step]:
        """Return what checks the caller, before anything else is read."""
        access, parameters = self.operation.access, self._parameters
        for name, mark in self._marks.items():
            if mark is not None and mark.checks_access:
                yield _step(name, mark.resolve, mark)
        if not access & _BY_TOKEN:
            identify = partial(permitted_caller, operation=self.operation)
            yield _step("caller" if "caller" in parameters else None, identify)
        for flag, guard in _GUARDS.items():
            if flag in access:
                room = "room_id" if "room_id" in parameters else None
                missing = ProviderNotFound if self.operation.tag == "providers" else JobNotFound
                yield _step(room, partial(guarded_room, guard=guard, missing=missing))

    def _values(self) -> Iterator[Step]:
        """Return what reads the parameters: the body after all others, and then the key, a digest of both."""
        row, parameters = self.operation, self._parameters
        for name, parameter in parameters.items():
            if (mark := self._marks[name]) is not None:
                if not mark.checks_access:
                    yield _step(name, mark.resolve, mark)
            elif name == "results":
                yield _step(name, result_backend)
            elif name not in {*_OF_REQUEST, "caller", "room_id", "body", "key"}:
                yield _step(name, _plain(parameter))
        if row.body is not None:
            yield _step("body", _body(row.body, is_required=not row.has_optional_body))
        if "key" in parameters:
            yield _step("key", _KEY.resolve, _KEY)

    def _declared(self) -> Iterator[tuple[str, tuple[Any, Any]]]:
        """Return what FastAPI reads: annotations and defaults by name."""
        for name, parameter in self._parameters.items():
            if name == "key":
                yield name, (Any, _KEY.declared)
            elif name == "room_id":
                yield name, (str, Depends(_GUARDS[self.operation.access & _ROOM]))
            elif (mark := self._marks[name]) is not None:
                yield name, (Any, mark.declared)
            elif name not in {*_OF_REQUEST, "caller", "results"}:
                yield name, (parameter.annotation, parameter.default)


def serves(
    operation: Operation[Any], *, has_free_query: bool = False, **documented: Any
) -> Callable[[Work], Endpoint]:
    """Return a decorator of the function that does the work of an operation."""
    return lambda work: Endpoint(operation, work, has_free_query=has_free_query, **documented)


def _mark(parameter: inspect.Parameter) -> Parameter | None:
    marks = getattr(parameter.annotation, "__metadata__", ())
    return next((mark for mark in marks if isinstance(mark, Parameter)), None)


def _check(
    operation: Operation[Any],
    work: Work,
    parameters: Mapping[str, inspect.Parameter],
    marks: Mapping[str, Parameter | None],
) -> None:
    """Raise TypeError unless a function fits its row."""
    body = parameters.get("body")
    models = () if body is None else get_args(body.annotation) or (body.annotation,)
    has_check = any(mark is not None and mark.checks_access for mark in marks.values())
    for part, of_row, of_function in (
        ("name", operation.name, work.__name__),
        ("key", operation.effect in _WITH_KEY, "key" in parameters),
        ("body", operation.body, next(iter(models), None)),
        ("default of the body", operation.has_optional_body, body is not None and body.default is None),
        ("room", bool(operation.access & _ROOM), "room_id" in parameters),
        ("check of a token", bool(operation.access & _BY_TOKEN), has_check),
    ):
        if of_row != of_function:
            raise TypeError(
                f"{operation.name}: the {part} of the row is {of_row!r}, that of the function {of_function!r}"
            )


class Route(APIRoute):
    """A route of an `Endpoint`, which answers every error as a problem.

    What FastAPI derives from an endpoint and its dependencies takes a millisecond, and only the OpenAPI
    document needs it: it is derived when it is first read.
    """

    endpoint: Endpoint

    def __init__(self, path: str, endpoint: Endpoint, **options: Any) -> None:
        self._derived_from: dict[str, Any] | None = options
        StarletteRoute.__init__(self, path, endpoint, include_in_schema=options["include_in_schema"])
        self.methods = {method.upper() for method in options["methods"]}
        self.dependencies = options["dependencies"]
        # The host's own dependencies, and the identity.
        self._dependencies = [depends.dependency for depends in self.dependencies if depends.dependency]
        self.counts = RequestCounts()
        self._steps = self._all_steps()
        # The queue whose route it is; without it, the app's first.
        self.queue: QueueState | None = None

    def __getattr__(self, name: str) -> Any:
        """Return what FastAPI derives from the endpoint. Raises AttributeError for anything else."""
        if self.__dict__.get("_derived_from") is None or name.startswith("__"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        self.derive()
        return getattr(self, name)

    def derive(self) -> None:
        """Derive what FastAPI does. Raises FastAPIError for dependencies that it cannot use."""
        # Another thread may do so at the same time, with the same result.
        options = self._derived_from
        if options is not None:
            super().__init__(self.path, self.endpoint, **options)
            self._derived_from = None

    @property
    def app(self) -> ASGIApp:
        """What answers requests. FastAPI sets its own, which is never used."""
        return self._answer

    @app.setter
    def app(self, _: ASGIApp) -> None: ...

    def _all_steps(self) -> list[Step]:
        """Return the steps of a request: the caller is checked first, then the query, which may be wrong."""
        endpoint = self.endpoint
        checks = [] if endpoint.has_free_query else [_step(None, self._check_query)]
        return [*endpoint.access_steps, *checks, *endpoint.value_steps]

    def _check_query(self, request: Request) -> None:
        """Raise `InvalidRequest` for a query parameter that neither the operation nor the host takes."""
        if not request.scope["query_string"]:
            return
        known = self.endpoint.query_names
        unknown = [name for name in request.query_params if name not in known]
        if not unknown or (of_host := self._query_names_of_host(request)) is None:
            return
        if unknown := [name for name in unknown if name not in of_host]:
            raise _unknown_parameters(unknown, known)

    def _query_names_of_host(self, request: Request) -> set[str] | None:
        """Return the query parameters that the host's dependencies take; None if they may read any."""
        queue, names = queue_state(request), set[str]()
        dependencies = [*self._dependencies, queue.identity, *queue.guards.dependencies(request)]
        for dependency in (*dependencies, get_result_backend):
            of_dependency = query_names(dependency, request.app.dependency_overrides, request.path_params)
            if of_dependency is None:
                return None
            names |= of_dependency
        return names

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self.respond(Request(scope, Rereadable(receive), send))
        await response(scope, receive, send)

    async def respond(self, request: Request) -> Response:
        """Return the response to a request, and count it. Raises only errors that the host handles."""
        started, scope = perf_counter(), request.scope
        if self.queue is not None:
            scope[QUEUE] = self.queue
        if b"token=" in scope["query_string"] and not self.endpoint.has_free_query:
            _hide_token(scope)
        fields = None
        if SCOPE_KEY not in scope and (request_id := given_request_id(scope)) is not None:
            fields = fields_here.set({**fields_here.get(), "request_id": request_id})
        try:
            response = await self._work(request)
            if SOLVED in scope:
                add_effects(request, response)
        except Exception:
            self.counts.add(scope, BY_HOST, perf_counter() - started)
            raise
        finally:
            if HELD_BYTES in scope:
                scope[HELD_BYTES].give_back()
            if fields is not None:
                fields_here.reset(fields)
        self.counts.add(scope, response.status_code, perf_counter() - started)
        return response

    async def _work(self, request: Request) -> Response:
        """Run the steps of a request, and its function."""
        scope, endpoint = request.scope, self.endpoint
        try:
            queue: QueueState = scope.get(QUEUE) or remember_queue(request)
            headers = dict(scope["headers"])
            if not headers.keys().isdisjoint(_OF_PAGES):
                check_unsafe(request)
            if self._dependencies != [queue.identity]:
                await self._solve_dependencies(request, queue)
            parts = {"request": request, "queue": queue, "runtime": queue.runtime}
            values = {name: parts[name] for name in endpoint.of_request}
            for name, resolve, is_async, header, absent in self._steps:
                value = absent
                if header is None or header in headers:
                    value = await resolve(request) if is_async else resolve(request)
                if name is not None:
                    values[name] = value
            return await endpoint.work(**values)
        except Exception as error:
            return _problem_of(request, error)

    async def _solve_dependencies(self, request: Request, queue: QueueState) -> None:
        """Solve the host's own dependencies. The identity is declared here and resolved later."""
        for dependency in self._dependencies:
            if dependency is not queue.identity:
                await solve(request, dependency)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler that replaces FastAPI's and its stacks for dependencies and errors."""
        return self.respond


def _unknown_parameters(names: Iterable[str], known: Sequence[str]) -> InvalidRequest:
    """Return the problem of query parameters that an operation does not take, with what may be meant."""
    listed = f"; it takes {', '.join(known)}" if known else "; it takes none"
    errors: list[dict[str, Any]] = []
    for name in islice(names, MAX_LISTED_ERRORS):
        shown = name[:_MAX_SHOWN]
        message = f"the operation takes no such parameter{near_text(shown, known) or listed}"
        errors.append({"loc": ["query", shown], "message": message, "type": "extra_forbidden"})
    return InvalidRequest(f"query.{errors[0]['loc'][1]}: {errors[0]['message']}", errors=errors)


def _hide_token(scope: Scope) -> None:
    """Move a token out of the query, because the access log has the query of each request."""
    query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    scope[QUERY_TOKEN] = next((value for name, value in query if name == "token"), None)
    rest = [(name, value) for name, value in query if name != "token"]
    scope["query_string"] = urlencode(rest).encode("latin-1")


def _problem_of(request: Request, error: Exception) -> Response:
    """Return an error as a problem. Raises it if the host handles it."""
    if isinstance(error, ClientDisconnect):
        return Response(status_code=499)
    if _is_handled_by_host(request, error):
        raise error
    queue: QueueState | None = request.scope.get(QUEUE)
    problem = as_problem(error)
    if request.method in _SAFE:
        problem = of_read(problem)
    return problem_response(problem, queue.prefix if queue else "")


def _is_handled_by_host(request: Request, error: Exception) -> bool:
    """Return whether the host has a handler for an error's class; all other errors become problems."""
    if isinstance(error, ProblemException | HTTPException | RequestValidationError):
        return False
    kinds = set(type(error).__mro__) - {Exception, BaseException, object}
    return not kinds.isdisjoint(request.app.exception_handlers)


# Responses of JSON.

JSON_MEDIA_TYPE = "application/json"
_JSON = (b"content-type", JSON_MEDIA_TYPE.encode())
# A longer body is not worth a copy.
_MAX_JOINED_BYTES = 64 * 1024


def json_response(
    body: BaseModel,
    status_code: int = 200,
    headers: dict[str, str] | None = None,
    *,
    exclude: set[str] | None = None,
) -> Response:
    """Return a message as a response, serialised once."""
    return JsonResponse(
        body.__pydantic_serializer__.to_json(body, by_alias=True, exclude=exclude), status_code, headers
    )


class JsonResponse(Response):
    """A response with a body of JSON. Its headers are made without the checks of Starlette's response."""

    def __init__(self, content: bytes, status_code: int, headers: dict[str, str] | None) -> None:
        self.status_code, self.body, self.background = status_code, content, None
        self.raw_headers = []
        for name, value in headers.items() if headers else ():
            self.raw_headers.append((name.lower().encode(), value.encode()))
        self.raw_headers += [(b"content-length", b"%d" % len(content)), _JSON]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response, in one write if it is short and the server is uvicorn."""
        if len(self.body) > _MAX_JOINED_BYTES:
            await self._send_large(scope, receive, send)
            return
        cycle: Any = getattr(scope.get(SEND, send), "__self__", None)
        transport = getattr(cycle, "transport", None)
        # Background tasks run after the response.
        if transport is None or self.background is not None:
            await super().__call__(scope, receive, send)
            return
        joined = cycle.transport = _JoinedWrites(transport)
        try:
            await super().__call__(scope, receive, send)
        finally:
            cycle.transport = transport
            joined.flush()

    async def _send_large(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send a response that counts for the caller until the client has taken it, if it fits its share.

        The response to a change is sent in any case: a refusal would look as if nothing had been changed.
        """
        queue, caller = scope.get(QUEUE), scope.get(CALLER)
        if queue is None or caller is None or scope["method"] not in _SAFE:
            await super().__call__(scope, receive, send)
            return
        held = HeldResponse(queue.response_bytes, queue.prefix, caller.id, len(self.body))
        await held.send(self, super().__call__, (scope, receive, send))


class HeldResponse(NamedTuple):
    """What a response takes of a limit until its client has taken it."""

    limit: SharedLimit
    prefix: str
    user: str
    amount: int = 1

    async def send(
        self, response: Response, app: Callable[..., Awaitable[None]], asgi: tuple[Scope, Receive, Send]
    ) -> None:
        """Send a response by `app`, or the problem of the limit in its place."""
        scope, _, send = asgi
        try:
            self.limit.take(self.user, self.amount)
        except ProblemException as problem:
            refusal = problem_response(problem, self.prefix)
            refusal.raw_headers += [
                header for header in response.raw_headers if header[0] == REQUEST_ID_HEADER
            ]
            await refusal(*asgi)
            return
        try:
            await app(*asgi)
            # uvicorn keeps what the client has not taken.
            cycle: Any = getattr(scope.get(SEND, send), "__self__", None)
            if (flow := getattr(cycle, "flow", None)) is not None:
                await flow.drain()
        finally:
            self.limit.give_back(self.user, self.amount)


class Download(StreamingResponse):
    """A response that counts as a download of its caller until the client has taken it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response, if the downloads of the caller may be one more."""
        queue, caller = scope[QUEUE], scope[CALLER]
        held = HeldResponse(queue.downloads, queue.prefix, caller.id)
        await held.send(self, super().__call__, (scope, receive, send))


class _JoinedWrites:
    """A transport that writes the head and the body of a response at once.

    uvicorn writes the head first, for which the client wakes up, to wait again for the body.
    """

    __slots__ = ("_parts", "_transport")

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._parts: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self._parts.append(data)

    def flush(self) -> None:
        if self._parts:
            self._transport.write(b"".join(self._parts))
            self._parts.clear()

    def close(self) -> None:
        self.flush()
        self._transport.close()


# Requests that a page of another origin sends with the cookies of the user's browser.
#
# A browser adds cookies to requests of any page, so an unsafe request needs a sign that it comes from a page
# that may act for the user. Clients that are no browsers send neither `Origin` nor `Sec-Fetch-Site`.

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_READ_ONLY = b"x-joblib-read-only"
# A request without one of these comes from no page.
_OF_PAGES = frozenset({b"origin", b"sec-fetch-site", _READ_ONLY})
_LOOKED_AT = _OF_PAGES | {b"authorization", b"host"}
# A browser sends these by itself once it knows the password; a page has to send any other.
_SENT_BY_BROWSERS = ("basic", "digest", "negotiate", "ntlm")


def check_unsafe(request: Request) -> None:
    """Raise `Forbidden` for an unsafe request of a foreign page, or of a page that may only read."""
    if request.scope["method"] in _SAFE:
        return
    headers = {name: value for name, value in request.scope["headers"] if name in _LOOKED_AT}
    if _READ_ONLY in headers:
        raise Forbidden(
            "The request has the header X-Joblib-Read-Only, so it may change nothing: the page is read-only"
        )
    origin, site = headers.get(b"origin", b"").decode("latin-1"), headers.get(b"sec-fetch-site")
    if (not origin and site is None) or _has_own_credentials(headers.get(b"authorization", b"")):
        return
    is_own = site in {b"same-origin", b"none"} if site is not None else _is_host(origin, headers.get(b"host"))
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
    own = (host or b"").decode("latin-1").lower()
    # Some proxies add the default port, which an origin never has.
    hosts = {own, own.removesuffix(":443"), own.removesuffix(":80")}
    return bool(named) and named in hosts


def _is_trusted(request: Request, origin: str) -> bool:
    if not origin or origin == "null":
        return False
    if origin in queue_state(request).runtime.settings.trusted_origins:
        return True
    return any(_allows(options, origin) for options in _cors_options(request.app))


def _cors_options(app: FastAPI) -> list[dict[str, Any]]:
    """Return the options of the app's CORS middleware: origins that it names may call the app already."""
    kinds: list[tuple[Any, Any]] = [(entry.cls, entry.kwargs) for entry in app.user_middleware]
    return [
        dict(options)
        for kind, options in kinds
        if isinstance(kind, type) and issubclass(kind, CORSMiddleware)
    ]


def _allows(options: dict[str, Any], origin: str) -> bool:
    pattern = options.get("allow_origin_regex")
    return origin in options.get("allow_origins", ()) or bool(pattern and re.fullmatch(pattern, origin))
