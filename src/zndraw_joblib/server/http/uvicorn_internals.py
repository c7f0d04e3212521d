"""Close a connection whose client does not read, for which uvicorn has no public interface.

A test fails if uvicorn changes these internals.
"""

from typing import Any

from starlette.types import Scope, Send

_SEND = "zndraw_joblib.send"


def keep_send(scope: Scope, send: Send) -> None:
    """Let `abort` find the connection of a request whose `send` middleware replaces."""
    scope[_SEND] = send


def abort(scope: Scope, send: Send) -> None:
    """Drop the connection of a response with all that was not sent, if the server is uvicorn.

    If a host's middleware has replaced `send`, the connection closes only when the client reads again, or
    when the operating system drops it.
    """
    transport: Any = getattr(getattr(scope.get(_SEND, send), "__self__", None), "transport", None)
    if transport is not None:
        transport.abort()
