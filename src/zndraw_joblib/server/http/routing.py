"""How our routes work: declared to FastAPI like any other, resolved by a short table of our own.

FastAPI's solver walks a tree of dependencies for each request, and closes them after the answer.
Ours are few and plain, so each is a function of the request. What a host brings (its identity, its
guards of rooms) does go through FastAPI's solver, and is closed before the work begins: it may hold
a database session, even a lock around it.
"""

import inspect
import json
import re
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from functools import lru_cache
from typing import Annotated, Any, get_args
from uuid import UUID

from fastapi import Depends, Request, Response, params
from fastapi.dependencies.models import Dependant
from fastapi.dependencies.utils import get_dependant, solve_dependencies
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import from_json
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from zndraw_joblib.contract.messages import MAX_JSON_BYTES
from zndraw_joblib.contract.problems import ContentTooLarge, InvalidRequest, ProblemException
from zndraw_joblib.server.http.problems import as_problem, respond

# One body carries at most one JSON value of 1 MiB and an error text; escaped, text takes up to three times.
MAX_BODY_BYTES = 4 * MAX_JSON_BYTES
# Whatever may be a number beyond the floats, which every parser turns into infinity.
_HUGE = re.compile(rb"[eE]\+?\d{3}|\d{100}")
Endpoint = Callable[..., Awaitable[Response]]
Resolve = Callable[[Request], Any]


class Route(APIRoute):
    """A route that resolves its parameters by `RESOLVERS`, and answers every error as a problem."""

    def __init__(self, path: str, endpoint: Endpoint, **options: Any) -> None:
        self._work = endpoint
        signature = inspect.signature(endpoint, eval_str=True)
        self._plan = [(name, _resolver(parameter)) for name, parameter in signature.parameters.items()]
        super().__init__(path, endpoint, **options)
        # FastAPI wraps a handler into stacks for dependencies and handlers of errors, which we have none for.
        self._handler = self.get_route_handler()
        self.app = self._answer

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._handler(Request(scope, receive, send))
        await response(scope, receive, send)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler that stands in for FastAPI's."""
        work, plan = self._work, self._plan
        asked = [depends.dependency for depends in self.dependencies if depends.dependency]

        async def handle(request: Request) -> Response:
            try:
                for dependency in asked:
                    # What the host asks of every request; the identity is only declared here.
                    if dependency is not request.app.state.joblib_identity:
                        await solve(request, dependency)
                values = {}
                for name, resolve in plan:
                    value = resolve(request)
                    values[name] = await value if inspect.isawaitable(value) else value
                return await work(**values)
            except ClientDisconnect:
                return Response(status_code=499)
            except Exception as error:
                if _is_the_hosts(request, error):
                    raise
                return respond(as_problem(error))

        return handle


def _is_the_hosts(request: Request, error: Exception) -> bool:
    """Tell whether an error is of a class that the host has a handler for; all others become problems."""
    if isinstance(error, ProblemException | HTTPException | RequestValidationError):
        return False
    kinds = set(type(error).__mro__) - {Exception, BaseException, object}
    return not kinds.isdisjoint(request.app.exception_handlers)


# What a dependency of ours stands for, without FastAPI: a function of the request, async or not.
RESOLVERS: dict[Callable[..., Any], Resolve] = {}


def _resolver(parameter: inspect.Parameter) -> Resolve:
    for mark in getattr(parameter.annotation, "__metadata__", ()):
        if isinstance(mark, params.Depends) and mark.dependency in RESOLVERS:
            return RESOLVERS[mark.dependency]
    if parameter.annotation is Request:
        return lambda request: request
    for kind in get_args(parameter.annotation) or (parameter.annotation,):
        if inspect.isclass(kind) and issubclass(kind, BaseModel):
            return _body(kind, is_needed=parameter.default is parameter.empty)
    return _parameter(parameter)


def _parameter(parameter: inspect.Parameter) -> Resolve:
    """Resolve a plain parameter: from the path if it has no default, else from the query."""
    adapter, name, default = TypeAdapter(parameter.annotation), parameter.name, parameter.default

    def resolve(request: Request) -> Any:
        place, given = (
            ("path", request.path_params) if default is parameter.empty else ("query", request.query_params)
        )
        if name not in given:
            return default
        try:
            return UUID(given[name]) if parameter.annotation is UUID else adapter.validate_python(given[name])
        except ValidationError as error:
            raise invalid(error, place, name) from error
        except ValueError as error:
            raise InvalidRequest(f"{place}.{name}: {given[name][:100]!r} is not a UUID") from error

    return resolve


def _body(model: type[BaseModel], *, is_needed: bool) -> Resolve:
    async def resolve(request: Request) -> Any:
        content = await read_body(request)
        if not content:
            if is_needed:
                raise InvalidRequest("body: a JSON object is needed, there is none")
            return None
        try:
            # Strict JSON: no NaN, no infinity, no half of a surrogate pair.
            value = from_json(content, allow_inf_nan=False)
            if _HUGE.search(content):
                json.dumps(value, allow_nan=False)
            if value is None and not is_needed:
                return None
            return model.model_validate(value)
        except ValidationError as error:
            raise invalid(error, "body") from error
        except ValueError as error:
            raise InvalidRequest(f"body: it is not JSON: {error}") from error

    return resolve


async def read_body(request: Request, most: int = MAX_BODY_BYTES) -> bytes:
    """Return the body. Raises `ContentTooLarge` as soon as there is too much of it."""
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > most:
            raise ContentTooLarge(f"The body has more than {most} bytes")
        chunks.append(chunk)
    return b"".join(chunks)


def invalid(error: ValidationError, *place: str) -> InvalidRequest:
    """Return the problem of a part of a request that does not have its shape."""
    errors = [
        {"loc": [*place, *map(str, fault["loc"])], "message": fault["msg"], "type": fault["type"]}
        for fault in error.errors(include_url=False, include_input=False, include_context=False)
    ]
    first = errors[0]
    return InvalidRequest(f"{'.'.join(first['loc'])}: {first['message']}", errors=errors)


async def solve(request: Request, dependency: Callable[..., Any], **path_params: str) -> Any:
    """Return what a dependency of a host gives, solved by FastAPI, and close it.

    `path_params` take the place of the request's own. The host's overrides hold.
    """
    path = "".join(f"/{{{name}}}" for name in path_params or request.path_params)
    async with AsyncExitStack() as stack:
        scope = {**request.scope, "path_params": path_params or request.path_params}
        scope |= {"fastapi_inner_astack": stack, "fastapi_function_astack": stack}
        solved = await solve_dependencies(
            request=Request(scope, request.receive),
            dependant=_dependant(dependency, path),
            dependency_overrides_provider=request.app,
            async_exit_stack=stack,
            embed_body_fields=False,
        )
    if solved.errors:
        raise RequestValidationError(solved.errors)
    return solved.values["taken"]


@lru_cache(maxsize=256)
def _dependant(dependency: Callable[..., Any], path: str) -> Dependant:
    async def take(taken: Annotated[Any, Depends(dependency)]) -> None: ...

    return get_dependant(path=path, call=take)
