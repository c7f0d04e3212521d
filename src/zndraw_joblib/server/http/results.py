"""Endpoints of the results of tasks."""

import re
from collections.abc import AsyncIterator
from functools import partial
from hashlib import sha256
from typing import Annotated, Any
from urllib.parse import quote
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response
from pydantic_core import to_json

from zndraw_joblib.contract.problems import InvalidRequest
from zndraw_joblib.contract.progress import StoredResult
from zndraw_joblib.contract.providers import media_type
from zndraw_joblib.server.http.callers import body_of
from zndraw_joblib.server.http.content import StoredBytes, content_response
from zndraw_joblib.server.http.dependencies import Caller, Queue, check_task_readable, json_response
from zndraw_joblib.server.http.parameters import BYTES_RETURNED, BYTES_SENT, Omissible, header_parameter
from zndraw_joblib.server.http.routing import Route
from zndraw_joblib.server.providers import parts
from zndraw_joblib.server.service import task_results
from zndraw_joblib.server.service.task_results import FoundResult, Upload
from zndraw_joblib.server.task_results.results import ContentInfo

router = APIRouter(route_class=Route, tags=["results"])
_BINARY_TYPE = "application/octet-stream"
# Browsers may show these; they save what has another type.
_INLINE = re.compile(r"application/json|text/plain|image/(png|jpeg|gif|webp)", re.IGNORECASE)
_UNSAFE = re.compile(r"[\x00-\x1f\x7f/\\\\]")
Attempt = Annotated[int, Query(ge=1, description="The attempt of the claim.")]
Filename = Annotated[
    Omissible[Annotated[str, Query(max_length=255)]],
    Query(description="The file name for a client that saves the result."),
]


@router.put("/tasks/{task_id}/result", response_model=StoredResult, openapi_extra={"requestBody": BYTES_SENT})
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


@router.get("/tasks/{task_id}/result", response_class=Response, responses=_READ, openapi_extra=_CONDITIONS)
async def read_task_result(request: Request, queue: Queue, caller: Caller, task_id: UUID) -> Response:
    """Return the result of a task: its JSON, or the bytes that were uploaded.

    ``Range``, ``If-Range`` and ``If-None-Match`` are supported.
    """
    found = await queue.runtime.database.read(task_results.find, task_id)
    await check_task_readable(request, caller, task_id, found.room_id)
    task_results.check(found)
    stored = _inline(found) if found.stored is None else _stored(queue, found)
    return await content_response(request, stored)


@router.head("/tasks/{task_id}/result", response_class=Response, responses=_HEAD, openapi_extra=_CONDITIONS)
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
        return parts.stream(content, start)

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
