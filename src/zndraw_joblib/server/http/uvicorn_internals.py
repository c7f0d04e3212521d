"""What has no public interface in uvicorn: closing a connection whose client does not read.

A test fails when uvicorn changes it.
"""

from typing import Any

from starlette.types import Scope, Send

_SEND = "zndraw_joblib.send"


def keep_send(scope: Scope, send: Send) -> None:
    """Let `abort` find the connection of a request whose `send` middleware replaces."""
    scope[_SEND] = send


def abort(scope: Scope, send: Send) -> None:
    """Drop the connection of a response with all that was not sent, if the server is uvicorn.

    If a host's middleware has replaced `send`, it closes when the client reads on, or when the system gives
    it up.
    """
    transport: Any = getattr(getattr(scope.get(_SEND, send), "__self__", None), "transport", None)
    if transport is not None:
        transport.abort()
