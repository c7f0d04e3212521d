"""The connection of a worker's open long-poll, which another thread may hang up."""

import contextlib
import socket
from typing import Any

import httpx

from zndraw_joblib.worker.api import ApiManager

_OPENED = ("connect_tcp.complete", "connect_unix_socket.complete", "start_tls.complete")


class HungUp(httpx.TransportError):
    """The line was hung up, because the worker stops."""


class Line:
    """Sends one request at a time, on a connection of its own where the host offers a client for it."""

    def __init__(self, api: ApiManager) -> None:
        make = getattr(api, "poll_client", None)
        self.dedicated = make is not None
        self._http: httpx.Client = make() if make else api.http
        self._stream: Any = None
        self._hung_up = False

    def request(self, method: str, url: str, *, extensions: dict[str, Any], **rest: Any) -> httpx.Response:
        """Send a request as `httpx.Client.request` does. Raises `HungUp` once the line was hung up."""
        if self._hung_up:
            raise HungUp("The worker stops")
        if self.dedicated:
            extensions = {**extensions, "trace": self._trace}
        return self._http.request(method, url, extensions=extensions, **rest)

    def hang_up(self) -> None:
        """End the open request now, and refuse any other.

        Only our sending side is closed: the server sees that we are gone and gives no task away, while
        an answer that is already on its way still arrives, and with it the task that it carries.
        """
        self._hung_up = True
        stream = self._stream
        if stream is not None:
            with contextlib.suppress(OSError):
                # Not sock.shutdown(): an SSLSocket would drop its TLS state under the reader.
                socket.socket.shutdown(stream.get_extra_info("socket"), socket.SHUT_WR)

    def close(self) -> None:
        """Close the connection, if it is this line's own."""
        if self.dedicated:
            self._http.close()

    def _trace(self, event: str, info: dict[str, Any]) -> None:
        if event.endswith(_OPENED):
            self._stream = info["return_value"]
            if self._hung_up:
                self._stream.close()
                raise HungUp("The worker stops")
