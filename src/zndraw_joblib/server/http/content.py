"""Responses with stored bytes: conditional requests, ranges, and headers that make them safe."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from fastapi import Request, Response
from fastapi.responses import StreamingResponse

from zndraw_joblib.contract.problems import Forbidden, RangeNotSatisfiable
from zndraw_joblib.contract.providers import is_media_type
from zndraw_joblib.server.ports import PART_BYTES

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
