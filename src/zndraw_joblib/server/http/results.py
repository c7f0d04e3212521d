"""Operations that send and receive stored bytes: results of tasks, providers and their results."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from math import ceil
from typing import Annotated, Any, NamedTuple
from urllib.parse import quote
from uuid import UUID

from fastapi import Header, Query, Request, Response
from pydantic_core import to_json

from zndraw_joblib.server.http.access import (
    QueueState,
    access_of,
    body_of,
    check_provider,
    check_task_readable,
    guarded_room,
    verify_readable_room,
)
from zndraw_joblib.server.http.requests import (
    BYTES_RETURNED,
    BYTES_SENT,
    DisconnectWatcher,
    Omissible,
    header_parameter,
)
from zndraw_joblib.server.http.routing import (
    Download,
    NamedProvider,
    Paging,
    Parameter,
    PreferredWait,
    Wait,
    claim_id_of,
    json_response,
    receive_body,
    serves,
)
from zndraw_joblib.server.http.worker_tokens import with_labels
from zndraw_joblib.server.process.ports import PART_BYTES, Identity, RequestKey, ResultBackend
from zndraw_joblib.server.queue import rules_providers, rules_results, rules_successors
from zndraw_joblib.server.queue.rules_idempotency import NOTHING, Answers, answers_of, once
from zndraw_joblib.server.queue.rules_providers import find_for_upload
from zndraw_joblib.server.queue.rules_results import FoundResult, Upload
from zndraw_joblib.server.results import stores
from zndraw_joblib.server.results.provider_requests import CachedResult, request_key
from zndraw_joblib.server.results.results import ContentInfo
from zndraw_joblib.server.runtime.runtime import Runtime
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.messages import MAX_ERROR_BYTES
from zndraw_joblib.wire.problems import (
    Forbidden,
    InvalidRequest,
    ProviderNotFound,
    RangeNotSatisfiable,
    ResultNotFound,
)
from zndraw_joblib.wire.providers import (
    REQUEST_HASH,
    RESULT_ERROR,
    RESULT_OK,
    RESULT_STATUS,
    WORKER_ID,
    ProviderClaimRequest,
    ProviderRegisterRequest,
    ProviderResponse,
    is_media_type,
    is_request_hash,
    media_type,
    params_of,
)
from zndraw_joblib.wire.statuses import HELD
from zndraw_joblib.wire.successors import SUCCESSOR

# Stored bytes must not run as a script with the identity of the user who opens them in a browser.
SECURITY_HEADERS = {"X-Content-Type-Options": "nosniff", "Content-Security-Policy": "sandbox"}
# What a browser would run with the rights of the page that asks for it, in spite of the headers above.
_CODE = frozenset(
    {
        *("script", "style", "xslt", "worker", "sharedworker", "serviceworker"),
        *("audioworklet", "paintworklet", "embed", "object"),
    }
)
# A shorter content counts as no download: a connection may keep so much of any response unsent.
_SHORT_BYTES = 64 * 1024
_RANGE = re.compile(r"bytes\s*=\s*(\d{0,18})\s*-\s*(\d{0,18})\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class StoredBytes:
    """Bytes to send: `read` returns them from a position on. Without an `etag` no request is conditional."""

    size: int
    content_type: str
    etag: str | None
    read: Callable[[int], Awaitable[AsyncIterator[bytes]]]
    has_ranges: bool = False
    headers: dict[str, str] = field(default_factory=dict)


class _Part(NamedTuple):
    start: int
    length: int


async def content_response(request: Request, stored: StoredBytes) -> Response:
    """Return bytes, or the range that is wanted, or 304. Raises `Forbidden` and `RangeNotSatisfiable`."""
    if request.headers.get("sec-fetch-dest", "") in _CODE:
        raise Forbidden(
            "header.Sec-Fetch-Dest: a page may not run stored bytes as code of this origin. Fetch them and "
            "show them, or link to them"
        )
    headers = {**SECURITY_HEADERS, "Cache-Control": "private, no-cache", **stored.headers}
    if stored.etag is not None:
        headers["ETag"] = f'"{stored.etag}"'
        if _is_current(request, headers["ETag"]):
            return Response(status_code=304, headers=headers)
    whole = _Part(0, stored.size)
    part = _requested_part(request, stored, headers.get("ETag")) or whole
    if stored.has_ranges:
        headers["Accept-Ranges"] = "bytes"
    status = 200
    if part != whole or (stored.has_ranges and "range" in request.headers and part is not whole):
        status = 206
        headers["Content-Range"] = f"bytes {part.start}-{part.start + part.length - 1}/{stored.size}"
    response = await _body(request, stored, part, headers)
    response.status_code = status
    # As it was stored: Starlette adds a charset to text types.
    kind = stored.content_type
    response.headers["Content-Type"] = kind if is_media_type(kind) else "application/octet-stream"
    return response


async def _body(request: Request, stored: StoredBytes, part: _Part, headers: dict[str, str]) -> Response:
    chunks = _limited(await stored.read(part.start), part.length)
    if request.method == "HEAD":
        return Response(headers={**headers, "Content-Length": str(part.length)})
    if part.length <= PART_BYTES:
        content = b"".join([chunk async for chunk in chunks])
        if part.length <= _SHORT_BYTES:
            return Response(content, headers=headers)
        chunks = stores.stream(content)
    return Download(chunks, headers={**headers, "Content-Length": str(part.length)})


def _is_current(request: Request, etag: str) -> bool:
    etags = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
    return etag in etags or "*" in etags


def _requested_part(request: Request, stored: StoredBytes, etag: str | None) -> _Part | None:
    """Return the range that a request wants; None for all bytes, also if it wants several ranges."""
    match = _RANGE.fullmatch(request.headers.get("range", ""))
    if_range = request.headers.get("if-range")
    if match is None or not stored.has_ranges or (if_range is not None and if_range.strip() != etag):
        return None
    first, last = match[1], match[2]
    if not first and not last:
        return None
    start = int(first) if first else max(0, stored.size - int(last))
    end = min(int(last), stored.size - 1) if first and last else stored.size - 1
    if first and last and int(last) < start:
        return None
    if start >= stored.size or (not first and int(last) == 0):
        raise RangeNotSatisfiable(
            f"header.Range: the content has {stored.size} bytes",
            headers={"Content-Range": f"bytes */{stored.size}"},
        )
    return _Part(start, end - start + 1)


async def _limited(chunks: AsyncIterator[bytes], length: int) -> AsyncIterator[bytes]:
    remaining = length
    async for chunk in chunks:
        yield chunk[:remaining]
        remaining -= min(remaining, len(chunk))
        if not remaining:
            return


# Endpoints of the results of tasks.

_BINARY_TYPE = "application/octet-stream"
# Browsers may show these; they save what has another type.
_INLINE = re.compile(r"application/json|text/plain|image/(png|jpeg|gif|webp)", re.IGNORECASE)
_UNSAFE = re.compile(r"[\x00-\x1f\x7f/\\\\]")
Attempt = Annotated[int, Query(ge=1, description="The attempt of the claim.")]
Filename = Annotated[
    Omissible[Annotated[str, Query(max_length=255)]],
    Query(description="The file name for a client that saves the result."),
]


@serves(ops.UPLOAD_TASK_RESULT, openapi_extra={"requestBody": BYTES_SENT})
async def upload_task_result(
    request: Request,
    queue: QueueState,
    caller: Identity,
    task_id: UUID,
    attempt: Attempt,
    filename: Filename = None,
) -> Response:
    """Store the body as the result of a held task, in place of its former result; then report completion.

    The ``Content-Type`` is kept. The attempt has to hold the task before and after the upload. A repeated
    upload replaces the first.
    """
    check_room = partial(queue.worker_rooms.check_task, caller=caller, task_id=task_id)
    await check_room(request)
    info = ContentInfo(_content_type(request), _safe_name(filename), _announced(request))
    upload = Upload(caller, task_id, attempt)
    return json_response(await queue.task_results.upload(upload, info, body_of(request, check_room)))


_HEADERS = {
    "ETag": {"description": "The version of the result.", "schema": {"type": "string"}},
    "Content-Disposition": {
        "description": "Whether a browser may show it, and its file name.",
        "schema": {"type": "string"},
    },
}
_READ: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The result: the JSON of the report, or the bytes that were uploaded, with their type",
        "headers": _HEADERS,
        "content": {"application/json": {"schema": {}}, **BYTES_RETURNED},
    },
    206: {"description": "The range that `Range` wants", "content": BYTES_RETURNED},
    304: {"description": "`If-None-Match` has the current ETag"},
}
_HEAD = {
    status: {name: text for name, text in answer.items() if name != "content"}
    for status, answer in _READ.items()
}
_CONDITIONS = {
    "parameters": [
        header_parameter("Range", "The wanted bytes: `bytes=0-1023`."),
        header_parameter("If-Range", "`Range` applies if this is the current ETag."),
        header_parameter("If-None-Match", "The ETag of a result that the client has."),
    ]
}


@serves(ops.READ_TASK_RESULT, responses=_READ, openapi_extra=_CONDITIONS)
async def read_task_result(
    request: Request,
    queue: QueueState,
    caller: Identity,
    task_id: UUID,
    successor: Annotated[
        Omissible[UUID], Query(description="A task that has waited for this one, and whose worker reads it")
    ] = None,
) -> Response:
    """Return the result of a task: its JSON, or the bytes that were uploaded.

    ``Range``, ``If-Range`` and ``If-None-Match`` are supported. The worker that has the `successor` needs no
    right to read the room; the header ``Successor`` repeats it, because an older server ignores it.
    """
    return await _send_result(request, queue, caller, task_id, successor)


@serves(ops.HEAD_TASK_RESULT, responses=_HEAD, openapi_extra=_CONDITIONS)
async def head_task_result(request: Request, queue: QueueState, caller: Identity, task_id: UUID) -> Response:
    """Return the headers of the result of a task."""
    return await _send_result(request, queue, caller, task_id)


async def _send_result(
    request: Request, queue: QueueState, caller: Identity, task_id: UUID, successor: UUID | None = None
) -> Response:
    result = await queue.runtime.database.read(rules_results.find, task_id)
    status = None
    if successor is not None:
        status = await queue.runtime.database.read(rules_successors.status_of_successor, successor, task_id)
    # A worker may read what its task has waited for, while it has that task.
    reader = successor if successor is not None and status in HELD else task_id
    await check_task_readable(request, caller, reader, result.room_id)
    if successor is not None and status is None:
        raise ResultNotFound(f"Task {successor} does not wait for task {task_id}, so it has no result of it")
    rules_results.check(result)
    stored = _inline(result) if result.stored is None else _stored(queue, result)
    if successor is not None:
        stored.headers[SUCCESSOR] = str(successor)
    return await content_response(request, stored)


def _stored(queue: QueueState, result: FoundResult) -> StoredBytes:
    record = result.stored
    if record is None:
        raise AssertionError("the task has no stored result")
    kind = "inline" if _INLINE.fullmatch(record.content_type.partition(";")[0].strip()) else "attachment"
    name = "" if record.filename is None else f"; filename*=UTF-8''{quote(record.filename, safe='')}"
    return StoredBytes(
        record.size,
        record.content_type,
        record.etag,
        partial(queue.task_results.open, record),
        has_ranges=True,
        headers={"Content-Disposition": f"{kind}{name}"},
    )


def _inline(result: FoundResult) -> StoredBytes:
    content = to_json(result.value)

    async def read(start: int) -> AsyncIterator[bytes]:
        return stores.stream(content, start)

    return StoredBytes(
        len(content), "application/json", sha256(content).hexdigest()[:32], read, has_ranges=True
    )


def _content_type(request: Request) -> str:
    text = request.headers.get("content-type", _BINARY_TYPE)
    try:
        return media_type(text)
    except ValueError as error:
        raise InvalidRequest(f"header.Content-Type: {text[:100]!r} is not a content type") from error


def _announced(request: Request) -> int:
    return int(request.headers.get("content-length", 0))


def _safe_name(filename: str | None) -> str | None:
    """Return the last part of a name without control characters."""
    if not filename:
        return None
    return _UNSAFE.sub("_", re.split(r"[/\\\\]", filename)[-1]) or None


# Providers, provider requests and provider results.

_REGISTERED: Answers[tuple[ProviderResponse, bool]] = answers_of(tuple[ProviderResponse, bool])
# JSON may escape one byte as six.
_MAX_ERROR_BODY_BYTES = 8 * MAX_ERROR_BYTES


@serves(
    ops.REGISTER_PROVIDER,
    responses={200: {"model": ProviderResponse, "description": "The provider existed already"}},
)
async def register_provider(
    runtime: Runtime, caller: Identity, room_id: str, body: ProviderRegisterRequest, key: RequestKey | None
) -> Response:
    """Register a worker as the provider of a data source; in ``@global`` only a superuser may do so.

    Providers of ``@internal`` are registered by the server's own code.
    """
    check_provider(caller, f"{room_id}:{body.category}:{body.name}")
    add_provider = partial(runtime.stored.providers.check, caller.id)
    item = rules_providers.ProviderToRegister(caller, room_id, body, add_provider)
    rules_providers.check(item, runtime.settings.allowed_provider_categories)
    if body.worker_id is None:
        body.worker = with_labels(caller, body.worker)
        await runtime.stored.take(runtime.stored.workers, caller.id, [key])
    await runtime.stored.providers.prepare(caller.id)
    provider, is_new = await runtime.write(once(key, _REGISTERED, rules_providers.register), item=item)
    return json_response(provider, 201 if is_new else 200)


@serves(ops.LIST_PROVIDERS)
async def list_providers(runtime: Runtime, caller: Identity, room_id: str, page: Paging) -> Response:
    """List the providers that are visible in a room: its own and those of ``@global`` and ``@internal``.

    With `filebrowser_require_superuser`, only superusers see the file systems of ``@internal``.
    """
    hides_files = runtime.settings.filebrowser_require_superuser and not caller.is_superuser
    return json_response(
        await runtime.database.read(rules_providers.page, room_id=room_id, part=page, hides_files=hides_files)
    )


@serves(ops.GET_PROVIDER)
async def get_provider(runtime: Runtime, caller: Identity, room_id: str, name: NamedProvider) -> Response:
    """Return a provider."""
    rules_providers.check_reader(
        caller, name, require_superuser=runtime.settings.filebrowser_require_superuser
    )
    cross_room = runtime.settings.cross_room_jobs
    return json_response(
        await runtime.database.read(rules_providers.get, room_id, name, cross_room=cross_room)
    )


@serves(
    ops.READ_PROVIDER,
    has_free_query=True,
    responses={
        200: {
            "description": "The provider result, with the provider's content type",
            "content": {"application/json": {"schema": {}}, **BYTES_RETURNED},
        },
        304: {"description": "`If-None-Match` has the current ETag"},
    },
    openapi_extra={"parameters": [header_parameter("If-None-Match", "The ETag that the client has.")]},
)
async def read_provider(  # noqa: PLR0913, PLR0917 - one argument per part of the request
    request: Request,
    queue: QueueState,
    caller: Identity,
    results: ResultBackend,
    room_id: str,
    name: NamedProvider,
    wait: PreferredWait,
) -> Response:
    """Send a request to a provider. Its parameters are the query parameters, which may be repeated.

    With ``Prefer: wait=N``, wait N seconds for the result, else `provider_long_poll_default_seconds`.
    """
    settings = queue.runtime.settings
    rules_providers.check_reader(caller, name, require_superuser=settings.filebrowser_require_superuser)
    key = request_key(room_id, name, params_of(request.query_params.multi_items()))
    result = await queue.provider_requests.find_cached(results, key)
    headers: dict[str, str] = {}
    if result is None:
        seconds = settings.provider_long_poll_default_seconds
        if wait is not None:
            seconds = min(wait, settings.provider_long_poll_max_seconds)
            headers = {"Preference-Applied": f"wait={ceil(seconds)}"} if seconds else {}
        access = access_of(
            request, caller, partial(guarded_room, guard=verify_readable_room, missing=ProviderNotFound)
        )
        async with DisconnectWatcher(request) as watcher:
            requests, disconnected = queue.provider_requests, watcher.disconnected
            result = await requests.request(results, key, seconds, disconnected, access)
    return await _respond(request, result, headers)


async def _respond(request: Request, result: CachedResult, headers: dict[str, str]) -> Response:
    async def read(_: int) -> AsyncIterator[bytes]:
        return result.chunks

    stored = StoredBytes(result.size, result.content_type, result.etag, read, headers=headers)
    return await content_response(request, stored)


@serves(ops.REMOVE_PROVIDER)
async def remove_provider(
    runtime: Runtime,
    caller: Identity,
    key: RequestKey | None,
    provider_id: UUID,
    worker_id: Omissible[UUID] = None,
) -> Response:
    """Remove a provider; with ``worker_id`` only that worker's registration."""
    await runtime.write(
        once(key, NOTHING, rules_providers.remove),
        caller=caller,
        provider_id=provider_id,
        worker_id=worker_id,
    )
    return Response(status_code=204)


@serves(ops.CLAIM_PROVIDER_REQUEST)
async def claim_provider_request(
    request: Request,
    queue: QueueState,
    caller: Identity,
    body: ProviderClaimRequest,
    wait: Wait,
    key: RequestKey | None,
) -> Response:
    """Claim the oldest request of the worker's providers; with ``Prefer: wait=N``, wait for one."""
    claim_id = claim_id_of(body.claim_id, key)
    wait = min(wait, queue.runtime.settings.long_poll_max_wait_seconds)
    refused_rooms = partial(queue.worker_rooms.refused_providers, request, caller, body.worker_id)
    access = access_of(request, caller, refused_rooms=refused_rooms)
    claim = partial(queue.provider_requests.claim, caller, body.worker_id, claim_id=claim_id, access=access)
    if wait <= 0:
        return json_response(await claim())
    async with DisconnectWatcher(request) as watcher:
        response = await claim(wait, watcher.disconnected)
    return json_response(response, headers={"Preference-Applied": f"wait={ceil(wait)}"})


class _ResultHeaders(NamedTuple):
    """The headers of an uploaded provider result."""

    request_hash: str
    is_error: bool
    worker_id: UUID | None


def _read_result_headers(request: Request) -> _ResultHeaders:
    headers = request.headers
    request_hash, status = headers.get(REQUEST_HASH), headers.get(RESULT_STATUS, RESULT_OK)
    worker_id = headers.get(WORKER_ID)
    if request_hash is None or not is_request_hash(request_hash):
        raise InvalidRequest(f"header.{REQUEST_HASH}: it must be the request_id of the provider request")
    if status not in {RESULT_OK, RESULT_ERROR}:
        raise InvalidRequest(f"header.{RESULT_STATUS}: it must be '{RESULT_OK}' or '{RESULT_ERROR}'")
    try:
        return _ResultHeaders(request_hash, status == RESULT_ERROR, UUID(worker_id) if worker_id else None)
    except ValueError as error:
        raise InvalidRequest(f"header.{WORKER_ID}: it must be a UUID") from error


_HASH = Annotated[str, Header(alias=REQUEST_HASH, description="The id of the provider request")]
_STATUS = Annotated[str, Header(alias=RESULT_STATUS, description="`ok` or `error`")]
_UPLOADER = Annotated[Omissible[UUID], Header(alias=WORKER_ID, description="The worker that uploads")]
ResultHeaders = Annotated[
    _ResultHeaders,
    Parameter(
        _read_result_headers,
        request_hash=(_HASH,),
        result_status=(_STATUS, RESULT_OK),
        worker_id=(_UPLOADER, None),
    ),
]


@serves(ops.UPLOAD_PROVIDER_RESULT, openapi_extra={"requestBody": BYTES_SENT})
async def upload_provider_result(
    request: Request,
    queue: QueueState,
    caller: Identity,
    results: ResultBackend,
    provider_id: UUID,
    headers: ResultHeaders,
) -> Response:
    """Upload the result of a provider request; with ``X-Result-Status: error``, its error.

    An error that is a problem (RFC 9457) is stored like a result: readers get it with its status. Other
    errors reach only the callers that wait, as `provider-execution-failed`.
    ``X-Request-Hash`` is the request's id. ``X-Worker-ID``, if given, must be the provider's worker.
    """
    provider = await queue.runtime.database.read_short(
        find_for_upload, caller, provider_id, headers.worker_id
    )

    async def check_room(request: Request) -> None:
        # The owner of an internal provider is a user of the host's own code.
        if provider.worker_id is not None:
            await queue.worker_rooms.check(request, caller, provider.name.room_id)

    await check_room(request)
    if headers.is_error:
        body = await receive_body(request, _MAX_ERROR_BODY_BYTES, check_room)
        await queue.uploads.upload_error(results, provider, headers.request_hash, body)
    else:
        announced = int(request.headers.get("content-length", 0))
        chunks = body_of(request, check_room)
        await queue.uploads.upload(results, provider, headers.request_hash, chunks, announced)
    return Response(status_code=204)
