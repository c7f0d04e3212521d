"""Files of the package that the server sends as they are, with an ETag."""

import hashlib
import mimetypes
from typing import NamedTuple

from fastapi import Request, Response

_KINDS = {"js": "text/javascript", "svg": "image/svg+xml", "ts": "application/typescript"}


class StaticFile(NamedTuple):
    """The content of a file, its media type and its ETag."""

    content: bytes
    media_type: str
    etag: str


def static_file(name: str, content: bytes) -> StaticFile:
    """Return a file; its media type follows from its name."""
    kind = _KINDS.get(name.rpartition(".")[2]) or mimetypes.guess_type(name)[0] or "application/octet-stream"
    return StaticFile(content, kind, f'"{hashlib.sha256(content).hexdigest()[:32]}"')


def file_response(request: Request, file: StaticFile, headers: dict[str, str]) -> Response:
    """Return a file, or 304 if the client has it already."""
    headers = {**headers, "Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff", "ETag": file.etag}
    known = request.headers.get("if-none-match", "")
    if file.etag in {tag.strip().removeprefix("W/") for tag in known.split(",")}:
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers, media_type=file.media_type)
