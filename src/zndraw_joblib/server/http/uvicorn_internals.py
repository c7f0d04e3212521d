"""What has no public interface in uvicorn: closing a connection whose client does not read.

A test fails when uvicorn changes it.
"""

from typing import Any

from starlette.types import Send


def abort(send: Send) -> None:
    """Drop the connection of a response with all that was not sent, if the server is uvicorn.

    `send` must be uvicorn's: middleware that replaces it hides the connection. Then it closes when the client
    reads on, or when the system gives it up.
    """
    transport: Any = getattr(getattr(send, "__self__", None), "transport", None)
    if transport is not None:
        transport.abort()
