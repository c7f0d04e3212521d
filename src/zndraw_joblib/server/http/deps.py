"""What the endpoints share: who asks, of which room, how long they wait, and how routes behave."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from contextvars import ContextVar
from functools import wraps
from typing import Annotated, Any

from fastapi import Depends, Header, Path, Query, Request, Response
from fastapi.dependencies.utils import get_dependant, solve_dependencies
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic_core import from_json
from starlette.exceptions import HTTPException

from zndraw_joblib.contract.messages import MAX_JSON_BYTES, MAX_PAGE
from zndraw_joblib.contract.names import JobName, parse_job_name, validate_room_id
from zndraw_joblib.contract.problems import ContentTooLarge, ProblemException, Unauthorized
from zndraw_joblib.server.http.problems import as_problem, respond
from zndraw_joblib.server.ports import Identity, Page
from zndraw_joblib.server.runtime import Runtime
from zndraw_joblib.server.sleepers import Gone

# One body carries at most one JSON value of 1 MiB and an error text, however it is escaped.
MAX_BODY_BYTES = 2 * MAX_JSON_BYTES
JSON_MEDIA_TYPE = "application/json"
_open_dependencies: ContextVar[AsyncExitStack] = ContextVar("open_dependencies")
_WAIT = re.compile(r'^wait\s*=\s*"?(\d{1,9})"?$', re.IGNORECASE)


class BoundedRequest(Request):
    """A request whose body is bounded, and whose JSON is strict: no NaN, no lone surrogates."""

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Yield the body. Raises `ContentTooLarge` past the limit."""
        size = 0
        async for chunk in super().stream():
            size += len(chunk)
            if size > MAX_BODY_BYTES:
                raise ContentTooLarge(f"The body has more than {MAX_BODY_BYTES} bytes")
            yield chunk

    async def json(self) -> Any:
        """Return the parsed body."""
        body = await self.body()
        try:
            return from_json(body, allow_inf_nan=False)
        except ValueError as error:
            raise json.JSONDecodeError(str(error), "", 0) from error


class Route(APIRoute):
    """A route that answers every error as a problem, and lets go of its dependencies before it works.

    A host's dependency may hold a database session, even a lock around it, until it is closed;
    FastAPI closes it after the answer. Here it is closed once it has given what it has to give.
    """

    def __init__(self, path: str, endpoint: Callable[..., Awaitable[Response]], **options: Any) -> None:
        @wraps(endpoint)
        async def run(**values: Any) -> Response:
            await _open_dependencies.get().aclose()
            return await endpoint(**values)

        super().__init__(path, run, **options)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return FastAPI's handler inside ours."""
        handle = super().get_route_handler()

        async def handle_with_care(request: Request) -> Response:
            try:
                async with AsyncExitStack() as stack:
                    request.scope["fastapi_inner_astack"] = stack
                    request.scope["fastapi_function_astack"] = stack
                    _open_dependencies.set(stack)
                    return await handle(BoundedRequest(request.scope, request.receive))
            except (ProblemException, RequestValidationError, HTTPException) as error:
                return respond(as_problem(error))
            except Exception as error:
                return respond(as_problem(error))

        return handle_with_care


async def get_runtime(request: Request) -> Runtime:
    """Return what this server process is made of."""
    runtime = getattr(request.app.state, "joblib", None)
    if not isinstance(runtime, Runtime):
        raise RuntimeError("zndraw_joblib is not set up: call JobLib(...).mount(app)")
    return runtime


async def current_identity(request: Request) -> Identity:
    """Return who asks. Closed by default: without an identity nothing is answered."""
    identity = getattr(request.state, "joblib_identity", None)
    if not isinstance(identity, Identity):
        raise Unauthorized("This needs an identity", headers={"WWW-Authenticate": "Bearer"})
    return identity


async def verify_readable_room(room_id: Annotated[str, Path()]) -> str:
    """Return the room to read from. A host overrides it to guard its rooms."""
    return validate_room_id(room_id)


async def verify_writable_room(room_id: Annotated[str, Path()]) -> str:
    """Return the room to write to. A host overrides it; it may answer 423 for a locked room."""
    return validate_room_id(room_id)


async def _ask(room_id: Annotated[str, Depends(verify_readable_room)]) -> str:
    return room_id


_READING = get_dependant(path="/{room_id}", call=_ask)


async def check_readable(request: Request, room_id: str) -> None:
    """Ask the host whether a room may be read that is known only once the task has been found."""
    if verify_readable_room not in request.app.dependency_overrides:
        return
    async with AsyncExitStack() as stack:
        scope = {**request.scope, "path_params": {"room_id": room_id}}
        scope |= {"fastapi_inner_astack": stack, "fastapi_function_astack": stack}
        solved = await solve_dependencies(
            request=Request(scope),
            dependant=_READING,
            dependency_overrides_provider=request.app,
            async_exit_stack=stack,
            embed_body_fields=False,
        )
    if solved.errors:
        raise RequestValidationError(solved.errors)


async def _job_name(name: Annotated[str, Path(description="room:category:name")]) -> JobName:
    return parse_job_name(name)


async def _seconds_to_wait(
    prefer: Annotated[list[str] | None, Header(description="RFC 7240: wait=N")] = None,
) -> float:
    for preference in ",".join(prefer or []).split(","):
        if match := _WAIT.match(preference.split(";")[0].strip()):
            return float(match[1])
    return 0


async def _page(
    limit: Annotated[int, Query(ge=0, le=MAX_PAGE)] = 50, offset: Annotated[int, Query(ge=0, le=2**62)] = 0
) -> Page:
    return Page(limit, offset)


CurrentRuntime = Annotated[Runtime, Depends(get_runtime)]
Caller = Annotated[Identity, Depends(current_identity)]
ReadableRoom = Annotated[str, Depends(verify_readable_room)]
WritableRoom = Annotated[str, Depends(verify_writable_room)]
NamedJob = Annotated[JobName, Depends(_job_name)]
Wait = Annotated[float, Depends(_seconds_to_wait)]
Paging = Annotated[Page, Depends(_page)]


def answer(body: BaseModel, status_code: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return a message, serialised once."""
    content = body.__pydantic_serializer__.to_json(body, by_alias=True)
    return Response(content, status_code, headers, media_type=JSON_MEDIA_TYPE)


class Hangup:
    """Watches the client while an answer waits: `gone` is done once it has hung up."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self.gone: Gone = None

    async def __aenter__(self) -> "Hangup":
        self._watch = asyncio.ensure_future(self._wait())
        self.gone = self._watch
        return self

    async def __aexit__(self, *_: object) -> None:
        self._watch.cancel()

    async def _wait(self) -> None:
        while (await self._request.receive())["type"] != "http.disconnect":
            pass
