"""The header ``X-Request-ID``: of a request if it is valid, else a new id."""

import os
import re
from itertools import count
from secrets import token_hex

from starlette.types import Message, Scope, Send

REQUEST_ID = "X-Request-ID"
# The key of the id in the scope of a request that the standalone app answers before its other layers.
SCOPE_KEY = "zndraw_joblib.request_id"
_HEADER = REQUEST_ID.lower().encode()
_VALID = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")


_numbers = count(1)
_prefix = ""


def _change_prefix() -> None:
    global _prefix  # noqa: PLW0603 - it concerns the process
    _prefix = token_hex(6)


_change_prefix()
if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
    os.register_at_fork(after_in_child=_change_prefix)


def given_request_id(scope: Scope) -> str | None:
    """Return the id in the request's header, None if it has no valid one."""
    for name, value in scope["headers"]:
        if name == _HEADER:
            return value.decode() if _VALID.fullmatch(value) else None
    return None


def request_id_of(scope: Scope) -> str:
    """Return the id in the request's header, a new one if it has no valid one."""
    return given_request_id(scope) or f"{_prefix}-{next(_numbers)}"


def response_header(request_id: str) -> tuple[bytes, bytes]:
    """Return the header of the response."""
    return _HEADER, request_id.encode()


def with_header(send: Send, request_id: str) -> Send:
    """Return a `send` that adds the header to the response."""

    async def send_with_header(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), response_header(request_id)]
        await send(message)

    return send_with_header
