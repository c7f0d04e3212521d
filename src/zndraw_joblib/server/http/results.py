"""Responses with stored bytes: conditional requests, ranges, and headers that make them safe."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from typing import Annotated, Any, NamedTuple
from urllib.parse import quote
from uuid import UUID

from fastapi import Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic_core import to_json

from zndraw_joblib.server.http.callers import body_of
from zndraw_joblib.server.http.dependencies import Caller, Queue, check_task_readable, json_response
from zndraw_joblib.server.http.requests import BYTES_RETURNED, BYTES_SENT, Omissible, header_parameter
from zndraw_joblib.server.http.routing import Operations
from zndraw_joblib.server.process.ports import PART_BYTES
from zndraw_joblib.server.queue import rules_results
from zndraw_joblib.server.queue.rules_results import FoundResult, Upload
from zndraw_joblib.server.results import stores
from zndraw_joblib.server.results.results import ContentInfo
from zndraw_joblib.wire import operations as table
from zndraw_joblib.wire.problems import Forbidden, InvalidRequest, RangeNotSatisfiable
from zndraw_joblib.wire.providers import is_media_type, media_type

operations = Operations()

# Stored bytes must not run as a script with the identity of the user who opens them in a browser.
SECURITY_HEADERS = {"X-Content-Type-Options": "nosniff", "Content-Security-Policy": "sandbox"}
# What a browser would run with the rights of the page that asks for it, in spite of the headers above.
_CODE = frozenset(
    {
        *("script", "style", "xslt", "worker", "sharedworker", "serviceworker"),
        *("audioworklet", "paintworklet", "embed", "object"),
    }
)
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
        if _is_known(request, headers["ETag"]):
            return Response(status_code=304, headers=headers)
    whole = _Part(0, stored.size)
    part = _wanted_part(request, stored, headers.get("ETag")) or whole
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
        return Response(b"".join([chunk async for chunk in chunks]), headers=headers)
    return StreamingResponse(chunks, headers={**headers, "Content-Length": str(part.length)})


def _is_known(request: Request, etag: str) -> bool:
    known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
    return etag in known or "*" in known


def _wanted_part(request: Request, stored: StoredBytes, etag: str | None) -> _Part | None:
    """Return the range that a request wants; None for all bytes, also if it wants several ranges."""
    wanted = _RANGE.fullmatch(request.headers.get("range", ""))
    if_range = request.headers.get("if-range")
    if wanted is None or not stored.has_ranges or (if_range is not None and if_range.strip() != etag):
        return None
    first, last = wanted[1], wanted[2]
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
    left = length
    async for chunk in chunks:
        yield chunk[:left]
        left -= min(left, len(chunk))
        if not left:
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


@operations.serve(table.UPLOAD_TASK_RESULT, openapi_extra={"requestBody": BYTES_SENT})
async def upload_task_result(
    request: Request, queue: Queue, caller: Caller, task_id: UUID, attempt: Attempt, filename: Filename = None
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


@operations.serve(table.READ_TASK_RESULT, responses=_READ, response_class=Response, openapi_extra=_CONDITIONS)
async def read_task_result(request: Request, queue: Queue, caller: Caller, task_id: UUID) -> Response:
    """Return the result of a task: its JSON, or the bytes that were uploaded.

    ``Range``, ``If-Range`` and ``If-None-Match`` are supported.
    """
    found = await queue.runtime.database.read(rules_results.find, task_id)
    await check_task_readable(request, caller, task_id, found.room_id)
    rules_results.check(found)
    stored = _inline(found) if found.stored is None else _stored(queue, found)
    return await content_response(request, stored)


@operations.serve(table.HEAD_TASK_RESULT, responses=_HEAD, response_class=Response, openapi_extra=_CONDITIONS)
async def head_task_result(request: Request, queue: Queue, caller: Caller, task_id: UUID) -> Response:
    """Return the headers of the result of a task."""
    return await read_task_result(request, queue, caller, task_id)


def _stored(queue: Queue, found: FoundResult) -> StoredBytes:
    record = found.stored
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


def _inline(found: FoundResult) -> StoredBytes:
    content = to_json(found.value)

    async def read(start: int) -> AsyncIterator[bytes]:
        return stores.stream(content, start)

    return StoredBytes(
        len(content), "application/json", sha256(content).hexdigest()[:32], read, has_ranges=True
    )


def _content_type(request: Request) -> str:
    given = request.headers.get("content-type", _BINARY_TYPE)
    try:
        return media_type(given)
    except ValueError as error:
        raise InvalidRequest(f"header.Content-Type: {given[:100]!r} is not a content type") from error


def _announced(request: Request) -> int:
    return int(request.headers.get("content-length", 0))


def _safe_name(filename: str | None) -> str | None:
    """Return the last part of a name without control characters."""
    if not filename:
        return None
    return _UNSAFE.sub("_", re.split(r"[/\\\\]", filename)[-1]) or None
