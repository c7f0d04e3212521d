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

from zndraw_joblib.server.http.callers import CALLER, IDENTIFIED_AT, ROOM, Recheck, check_again, is_trusted
from zndraw_joblib.server.http.host_dependencies import solve
from zndraw_joblib.server.http.identity import verify_readable_room, verify_writable_room
from zndraw_joblib.server.http.requests import BODY, WAITED, header_values, optional, preferred_wait
from zndraw_joblib.server.http.routing import REQUIRED, Declared, Parameter
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
from zndraw_joblib.wire.problems import InvalidIdempotencyKey, InvalidRequest

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


_PREFER_WAIT: Declared = {
    "prefer": optional(
        str,
        Header(
            alias="Prefer",
            description="`wait=N`: wait up to N seconds (RFC 7240). The response has `Preference-Applied`.",
            examples=["wait=30"],
        ),
    )
}
_PREFER_MINIMAL: Declared = {
    "prefer": optional(
        str,
        Header(
            alias="Prefer",
            description="`return=minimal`: leave the tasks out of the response (RFC 7240).",
            examples=["return=minimal"],
        ),
    )
}
_FULL_NAME: Declared = {"name": (Annotated[str, Path(description="room:category:name")], REQUIRED)}
_PAGE: Declared = {
    "limit": (Annotated[int, Query(ge=0, le=MAX_PAGE)], 50),
    "offset": (Annotated[int, Query(ge=0)], 0),
}
_CURSOR_PAGE: Declared = {
    "limit": (Annotated[int, Query(ge=1, le=MAX_PART)], _PART),
    "cursor": optional(str, Query(description="`next` of the last response")),
}

CurrentRuntime = Annotated[Runtime, Parameter(get_runtime)]
Queue = Annotated[QueueState, Parameter(queue_state)]
# The caller and the room of the path, after the check of the operation's access.
Caller = Annotated[Identity, Parameter(lambda request: request.scope[CALLER])]
Room = Annotated[
    str, Parameter(lambda request: request.scope[ROOM], {"room_id": (Annotated[str, Path()], REQUIRED)})
]
NamedJob = Annotated[
    JobName, Parameter(lambda request: parse_job_name(request.path_params["name"]), _FULL_NAME)
]
NamedProvider = Annotated[
    JobName, Parameter(lambda request: parse_provider_name(request.path_params["name"]), _FULL_NAME)
]
Wait = Annotated[float, Parameter(lambda request: _wanted_seconds(request) or 0, _PREFER_WAIT)]
WantedWait = Annotated[float | None, Parameter(_wanted_seconds, _PREFER_WAIT)]
Minimal = Annotated[bool, Parameter(_wants_minimal, _PREFER_MINIMAL)]
Paging = Annotated[Page, Parameter(_paging, _PAGE)]
CursorPaging = Annotated[CursorPage, Parameter(_cursor_paging, _CURSOR_PAGE)]
Results = Annotated[ResultBackend, Parameter(_result_backend)]

# For a host's own routes, by their names of version 0.1.x.
JobLibSettingsDep = Annotated[JobLibSettings, Depends(get_joblib_settings)]
ResultBackendDep = Annotated[ResultBackend, Depends(get_result_backend)]
WritableRoomDep = Annotated[str, Depends(verify_writable_room)]


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


_DECLARED_KEY: Declared = {
    "idempotency_key": optional(
        str,
        Header(
            alias=IDEMPOTENCY_KEY,
            description=f"A string or token of 1 to {MAX_KEY_LENGTH} characters. The server applies "
            "requests of one caller with the same key once; a repeat gets the first response.",
        ),
    )
}
Key = Annotated[RequestKey | None, Parameter(_request_key, _DECLARED_KEY, is_last=True)]
