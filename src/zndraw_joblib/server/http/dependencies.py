"""Dependencies of the endpoints: the queue, the caller, the room, names, pages and waiting times."""

import asyncio
import hashlib
import re
import time
from collections.abc import Awaitable, Callable, Collection
from datetime import timedelta
from typing import Annotated, Any
from uuid import UUID

from fastapi import Depends, Header, Path, Query, Request, Response
from pydantic import BaseModel

from zndraw_joblib.server.http.callers import (
    CALLER,
    IDENTIFIED_AT,
    Recheck,
    check_again,
    current_identity,
    guarded_room,
    is_trusted,
)
from zndraw_joblib.server.http.host_dependencies import solve
from zndraw_joblib.server.http.identity import Guard, verify_readable_room, verify_writable_room
from zndraw_joblib.server.http.requests import BODY, WAITED, Omissible, header_values, preferred_wait
from zndraw_joblib.server.http.routing import RESOLVED_LAST, RESOLVERS
from zndraw_joblib.server.http.state import QueueState, queue_state
from zndraw_joblib.server.process.ports import CursorPage, Identity, Page, RequestKey, ResultBackend
from zndraw_joblib.server.process.settings import JobLibSettings
from zndraw_joblib.server.process.waiters import Access, Disconnected
from zndraw_joblib.server.runtime.runtime import Runtime
from zndraw_joblib.wire.messages import MAX_PAGE
from zndraw_joblib.wire.names import (
    IDEMPOTENCY_KEY,
    MAX_KEY_LENGTH,
    JobName,
    parse_job_name,
    parse_key,
    parse_provider_name,
)
from zndraw_joblib.wire.problems import Forbidden, InvalidIdempotencyKey, InvalidRequest

JSON_MEDIA_TYPE = "application/json"
_JSON = (b"content-type", JSON_MEDIA_TYPE.encode())
MAX_OFFSET = 2**62
MAX_PART = 200
_PART = 50
_MINIMAL = re.compile(r'\s*return\s*=\s*("?)minimal\1\s*(?:;.*)?', re.IGNORECASE | re.DOTALL)
_WHOLE = re.compile(r"\d{1,19}")


def get_runtime(request: Request) -> Runtime:
    """Return the runtime of this server process."""
    return queue_state(request).runtime


async def current_superuser(request: Request) -> Identity:
    """Return the caller. Raises `Forbidden` unless it is a superuser."""
    identity = await current_identity(request)
    if not identity.is_superuser:
        raise Forbidden("Not authorized: only superusers may do this")
    return identity


async def get_result_backend(request: Request) -> ResultBackend:
    """Return the result backend of providers. A host may override it, or pass it to `JobLib`."""
    return queue_state(request).results


async def get_joblib_settings(request: Request) -> JobLibSettings:
    """Return the settings of the queue, for a host's own routes."""
    return queue_state(request).runtime.settings


async def get_tsio(request: Request) -> Any:
    """Return what sends the events of the queue, for a host's own routes; None without Socket.IO."""
    return queue_state(request).publisher.tsio


async def _result_backend(request: Request) -> Any:
    if get_result_backend in request.app.dependency_overrides:
        return await solve(request, get_result_backend)
    return queue_state(request).results


async def check_readable(request: Request, room_id: str) -> None:
    """Run the host's guard for a room that is not in the request's path."""
    await queue_state(request).guards.check(request, verify_readable_room, room_id)


async def check_task_readable(request: Request, caller: Identity, task_id: UUID, room_id: str) -> None:
    """Run the host's guard for the room of a task.

    The worker that has the task, or had it last, needs no right to read that room, only to serve the job.
    """
    try:
        await check_readable(request, room_id)
    except Exception:
        if not await queue_state(request).worker_rooms.may_work_on(request, caller, task_id):
            raise


def access_of(
    request: Request,
    caller: Identity,
    recheck: Recheck | None = None,
    refused_rooms: Callable[[], Awaitable[Collection[str]]] | None = None,
) -> Access:
    """Return the access of a caller. A check that is due, every 2 s, identifies the caller again.

    It runs `recheck` with a copy of the request. `refused_rooms` runs at each check.
    """
    checked = request.scope.get(IDENTIFIED_AT) or time.monotonic()

    async def check() -> Collection[str]:
        nonlocal checked
        if not is_trusted(request, checked):
            checked = time.monotonic()
            await check_again(request, caller, recheck)
        return () if refused_rooms is None else await refused_rooms()

    return Access(caller.id, check)


def _guard(dependency: Guard) -> Callable[[Request], Any]:
    async def resolve(request: Request) -> str:
        return await guarded_room(request, dependency)

    return resolve


PreferWait = Annotated[
    Omissible[str],
    Header(
        alias="Prefer",
        description="`wait=N`: wait up to N seconds (RFC 7240). The response has `Preference-Applied`.",
        examples=["wait=30"],
    ),
]
PreferMinimal = Annotated[
    Omissible[str],
    Header(
        alias="Prefer",
        description="`return=minimal`: leave the tasks out of the response (RFC 7240).",
        examples=["return=minimal"],
    ),
]


async def _job_name(name: Annotated[str, Path(description="room:category:name")]) -> None:
    """Declare the parameter; `RESOLVERS` has its function."""


async def _wait(prefer: PreferWait = None) -> None:
    """Declare the parameter; `RESOLVERS` has its function."""


async def _wanted_wait(prefer: PreferWait = None) -> None:
    """Declare the parameter; `RESOLVERS` has its function."""


async def _minimal(prefer: PreferMinimal = None) -> None:
    """Declare the parameter; `RESOLVERS` has its function."""


async def _provider_name(name: Annotated[str, Path(description="room:category:name")]) -> None:
    """Declare the parameter; `RESOLVERS` has its function."""


async def _page(
    limit: Annotated[int, Query(ge=0, le=MAX_PAGE)] = 50, offset: Annotated[int, Query(ge=0)] = 0
) -> None:
    """Declare the parameters; `RESOLVERS` has their function."""


async def _cursor_page(
    limit: Annotated[int, Query(ge=1, le=MAX_PART)] = _PART,
    cursor: Annotated[Omissible[str], Query(description="`next` of the last response")] = None,
) -> None:
    """Declare the parameters; `RESOLVERS` has their function."""


def _wanted_seconds(request: Request) -> float | None:
    return preferred_wait(header_values(request, b"prefer"))


def _wants_minimal(request: Request) -> bool:
    found = [preference for header in header_values(request, b"prefer") for preference in header.split(",")]
    return any(_MINIMAL.fullmatch(preference) for preference in found)


def _paging(request: Request) -> Page:
    query = request.query_params
    return Page(
        _bounded(query.get("limit", "50"), "limit", MAX_PAGE),
        _bounded(query.get("offset", "0"), "offset", MAX_OFFSET),
    )


def _cursor_paging(request: Request) -> CursorPage:
    query = request.query_params
    limit = _bounded(query.get("limit", str(_PART)), "limit", MAX_PART, least=1)
    return CursorPage(limit, query.get("cursor"))


def _bounded(text: str, name: str, most: int, least: int = 0) -> int:
    if not _WHOLE.fullmatch(text) or not least <= int(text) <= most:
        raise InvalidRequest(f"query.{name}: it must be an integer from {least} to {most}, not {text[:40]!r}")
    return int(text)


RESOLVERS |= {
    get_runtime: get_runtime,
    queue_state: queue_state,
    current_identity: current_identity,
    current_superuser: current_superuser,
    verify_readable_room: _guard(verify_readable_room),
    verify_writable_room: _guard(verify_writable_room),
    _job_name: lambda request: parse_job_name(request.path_params["name"]),
    _provider_name: lambda request: parse_provider_name(request.path_params["name"]),
    _wait: lambda request: _wanted_seconds(request) or 0,
    _wanted_wait: _wanted_seconds,
    _minimal: _wants_minimal,
    get_result_backend: _result_backend,
    _page: _paging,
    _cursor_page: _cursor_paging,
}

CurrentRuntime = Annotated[Runtime, Depends(get_runtime)]
Queue = Annotated[QueueState, Depends(queue_state)]
Caller = Annotated[Identity, Depends(current_identity)]
Superuser = Annotated[Identity, Depends(current_superuser)]
ReadableRoom = Annotated[str, Depends(verify_readable_room)]
WritableRoom = Annotated[str, Depends(verify_writable_room)]
Results = Annotated[ResultBackend, Depends(get_result_backend)]
# For a host's own routes, by their names of version 0.1.x.
JobLibSettingsDep = Annotated[JobLibSettings, Depends(get_joblib_settings)]
ResultBackendDep = Results
WritableRoomDep = WritableRoom
NamedProvider = Annotated[JobName, Depends(_provider_name)]
Minimal = Annotated[bool, Depends(_minimal)]
WantedWait = Annotated[float | None, Depends(_wanted_wait)]
NamedJob = Annotated[JobName, Depends(_job_name)]
Wait = Annotated[float, Depends(_wait)]
Paging = Annotated[Page, Depends(_page)]
CursorPaging = Annotated[CursorPage, Depends(_cursor_page)]


def json_response(
    body: BaseModel,
    status_code: int = 200,
    headers: dict[str, str] | None = None,
    *,
    exclude: set[str] | None = None,
) -> Response:
    """Return a message as a response, serialised once."""
    content = body.__pydantic_serializer__.to_json(body, by_alias=True, exclude=exclude)
    return JsonResponse(content, status_code, headers)


class JsonResponse(Response):
    """A response with a body of JSON. Its headers are made without the checks of Starlette's response."""

    def __init__(self, content: bytes, status_code: int, headers: dict[str, str] | None) -> None:
        self.status_code, self.body, self.background = status_code, content, None
        given = headers.items() if headers else ()
        self.raw_headers = [(name.lower().encode(), value.encode()) for name, value in given]
        self.raw_headers += [(b"content-length", b"%d" % len(content)), _JSON]


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


# Read the header `Idempotency-Key` of a request.

_HEADER = IDEMPOTENCY_KEY.lower().encode()


async def _idempotency_key(
    idempotency_key: Annotated[
        Omissible[str],
        Header(
            alias=IDEMPOTENCY_KEY,
            description=f"A string or token of 1 to {MAX_KEY_LENGTH} characters. The server applies "
            "requests of one caller with the same key once; a repeat gets the first response.",
        ),
    ] = None,
) -> None:
    """Declare the header for the OpenAPI document; `RESOLVERS` has the function that reads it."""


def _request_key(request: Request) -> RequestKey | None:
    given = header_values(request, _HEADER)
    if not given:
        return None
    if len(given) > 1:
        raise InvalidIdempotencyKey(
            f"header.{IDEMPOTENCY_KEY}: the request has it {len(given)} times; send it once"
        )
    key, scope = parse_key(given[0]), request.scope
    target = f"{request.method} {scope['path']}?".encode() + scope["query_string"] + b"\n"
    hours = queue_state(request).runtime.settings.idempotency_key_hours
    return RequestKey(
        # The line break separates the caller from the key, which has none.
        _digest(f"{scope[CALLER].id}\n{key}".encode("utf-8", "surrogatepass")),
        _digest(target + scope.get(BODY, b"")),
        timedelta(hours=hours),
        scope[CALLER].id,
    )


def _digest(content: bytes) -> UUID:
    return UUID(bytes=hashlib.sha256(content).digest()[:16])


def item_key(key: RequestKey | None, index: int) -> RequestKey | None:
    """Return the key of an item of a request for many."""
    return key and key._replace(id=_digest(b"%b %d" % (key.id.bytes, index)))


def claim_id_of(claim_id: UUID | None, key: RequestKey | None) -> UUID | None:
    """Return the `claim_id` of a claim: the given one, or one made from the key."""
    return key.id if claim_id is None and key is not None else claim_id


RESOLVERS[_idempotency_key] = _request_key
RESOLVED_LAST.add(_request_key)
Key = Annotated[RequestKey | None, Depends(_idempotency_key)]
