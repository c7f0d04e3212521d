"""What the endpoints share: who asks, of which room, how long they wait."""

import asyncio
import re
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Depends, Header, Path, Query, Request, Response
from pydantic import BaseModel

from zndraw_joblib.contract.messages import MAX_PAGE
from zndraw_joblib.contract.names import (
    INTERNAL,
    JobName,
    parse_job_name,
    parse_provider_name,
    validate_room_id,
)
from zndraw_joblib.contract.problems import Forbidden, InvalidRequest, Unauthorized
from zndraw_joblib.server.http.routing import RESOLVERS, solve
from zndraw_joblib.server.ports import Identity, Page, ResultBackend
from zndraw_joblib.server.providers.requests import ProviderRequests
from zndraw_joblib.server.providers.uploads import Uploads
from zndraw_joblib.server.runtime import Runtime
from zndraw_joblib.server.waiters import Disconnected

JSON_MEDIA_TYPE = "application/json"
MAX_OFFSET = 2**62
_PREFERENCES = re.compile(r'(?:[^,"]|"[^"]*")+')
_WAIT = re.compile(r'\s*wait\s*=\s*("?)(\d+)\1\s*(?:;.*)?', re.IGNORECASE | re.DOTALL)
_MAX_WAIT = 10**6
_WHOLE = re.compile(r"\d{1,19}")


def get_runtime(request: Request) -> Runtime:
    """Return what this server process is made of."""
    runtime = getattr(request.app.state, "joblib", None)
    if not isinstance(runtime, Runtime):
        raise RuntimeError("zndraw_joblib is not set up: call JobLib(...).mount(app)")
    return runtime


async def current_identity(request: Request) -> Identity:
    """Return who asks. Closed by default: without an identity nothing is answered."""
    identify = getattr(request.app.state, "joblib_identify", None)
    if identify is None:
        raise RuntimeError("zndraw_joblib has no identity to ask for: call JobLib(..., identity=...)")
    identity = await identify(request)
    if not isinstance(identity, Identity):
        raise Unauthorized("This needs an identity", headers={"WWW-Authenticate": "Bearer"})
    if identity.id == INTERNAL:
        raise Forbidden(f"Nobody may be called {INTERNAL}: that is who runs internal tasks")
    return identity


async def current_superuser(request: Request) -> Identity:
    """Return who asks, if that is a superuser."""
    identity = await current_identity(request)
    if not identity.is_superuser:
        raise Forbidden("Not authorized: this is for superusers")
    return identity


def get_reads(request: Request) -> ProviderRequests:
    """Return what answers reads in this server process."""
    reads: ProviderRequests = request.app.state.joblib_reads
    return reads


def get_answers(request: Request) -> Uploads:
    """Return what takes the answers of providers in this server process."""
    answers: Uploads = request.app.state.joblib_answers
    return answers


async def get_result_backend(request: Request) -> ResultBackend:
    """Return what keeps the answers of providers. A host overrides it to keep them elsewhere."""
    backend: ResultBackend = request.app.state.joblib_mount.results
    return backend


def _result_backend(request: Request) -> Any:
    if get_result_backend in request.app.dependency_overrides:
        return solve(request, get_result_backend)
    return request.app.state.joblib_mount.results


async def verify_readable_room(room_id: Annotated[str, Path()]) -> str:
    """Return the room to read from. A host overrides it to guard its rooms."""
    return validate_room_id(room_id)


async def verify_writable_room(room_id: Annotated[str, Path()]) -> str:
    """Return the room to write to. A host overrides it; it may answer 423 for a locked room."""
    return validate_room_id(room_id)


async def check_readable(request: Request, room_id: str) -> None:
    """Ask the host whether a room may be read that is known only once the task has been found."""
    if verify_readable_room in request.app.dependency_overrides:
        await solve(request, verify_readable_room, room_id=room_id)


def _guard(dependency: Callable[..., Any]) -> Callable[[Request], Any]:
    def resolve(request: Request) -> Any:
        if dependency in request.app.dependency_overrides:
            return solve(request, dependency)
        return validate_room_id(request.path_params["room_id"])

    return resolve


async def _job_name(name: Annotated[str, Path(description="room:category:name")]) -> None:
    """Declare the parameter; `RESOLVERS` has what it does."""


async def _wait(prefer: Annotated[list[str] | None, Header(description="RFC 7240: wait=N")] = None) -> None:
    """Declare the parameter; `RESOLVERS` has what it does."""


async def _asked_wait(
    prefer: Annotated[list[str] | None, Header(description="RFC 7240: wait=N")] = None,
) -> None:
    """Declare the parameter; `RESOLVERS` has what it does."""


async def _provider_name(name: Annotated[str, Path(description="room:category:name")]) -> None:
    """Declare the parameter; `RESOLVERS` has what it does."""


async def _page(
    limit: Annotated[int, Query(ge=0, le=MAX_PAGE)] = 50, offset: Annotated[int, Query(ge=0)] = 0
) -> None:
    """Declare the parameters; `RESOLVERS` has what they do."""


def _seconds_asked(request: Request) -> float | None:
    for header in request.headers.getlist("prefer"):
        for preference in _PREFERENCES.findall(header):
            if match := _WAIT.fullmatch(preference):
                return min(float(match[2]), _MAX_WAIT)
    return None


def _paging(request: Request) -> Page:
    query = request.query_params
    return Page(
        _bounded(query.get("limit", "50"), "limit", MAX_PAGE),
        _bounded(query.get("offset", "0"), "offset", MAX_OFFSET),
    )


def _bounded(text: str, name: str, most: int) -> int:
    if not _WHOLE.fullmatch(text) or int(text) > most:
        raise InvalidRequest(f"query.{name}: it must be a whole number from 0 to {most}, not {text[:40]!r}")
    return int(text)


RESOLVERS |= {
    get_runtime: get_runtime,
    current_identity: current_identity,
    current_superuser: current_superuser,
    verify_readable_room: _guard(verify_readable_room),
    verify_writable_room: _guard(verify_writable_room),
    _job_name: lambda request: parse_job_name(request.path_params["name"]),
    _provider_name: lambda request: parse_provider_name(request.path_params["name"]),
    _wait: lambda request: _seconds_asked(request) or 0,
    _asked_wait: _seconds_asked,
    get_reads: get_reads,
    get_answers: get_answers,
    get_result_backend: _result_backend,
    _page: _paging,
}

CurrentRuntime = Annotated[Runtime, Depends(get_runtime)]
Caller = Annotated[Identity, Depends(current_identity)]
Superuser = Annotated[Identity, Depends(current_superuser)]
ReadableRoom = Annotated[str, Depends(verify_readable_room)]
WritableRoom = Annotated[str, Depends(verify_writable_room)]
CurrentAnswers = Annotated[Uploads, Depends(get_answers)]
CurrentReads = Annotated[ProviderRequests, Depends(get_reads)]
Results = Annotated[ResultBackend, Depends(get_result_backend)]
NamedProvider = Annotated[JobName, Depends(_provider_name)]
AskedWait = Annotated[float | None, Depends(_asked_wait)]
NamedJob = Annotated[JobName, Depends(_job_name)]
Wait = Annotated[float, Depends(_wait)]
Paging = Annotated[Page, Depends(_page)]


def answer(body: BaseModel, status_code: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return a message, serialised once."""
    content = body.__pydantic_serializer__.to_json(body, by_alias=True)
    return Response(content, status_code, headers, media_type=JSON_MEDIA_TYPE)


class DisconnectWatcher:
    """Watches the client while an answer waits: `gone` is done once it has hung up."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self.gone: Disconnected = None

    async def __aenter__(self) -> "DisconnectWatcher":
        self._watch = asyncio.ensure_future(self._wait())
        self.gone = self._watch
        return self

    async def __aexit__(self, *_: object) -> None:
        self._watch.cancel()

    async def _wait(self) -> None:
        while (await self._request.receive())["type"] != "http.disconnect":
            pass
