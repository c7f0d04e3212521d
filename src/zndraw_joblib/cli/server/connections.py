"""Limits of a connection: the size of a head and the time it may take, and a client that takes no response.

uvicorn limits none of them with httptools. The classes here extend its protocols, by the methods of
`asyncio.Protocol`, the callbacks of httptools and the state of h11. A protocol without them stays as it is,
and the server logs a warning.
"""

import asyncio
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import uvicorn

logger = logging.getLogger(__name__)

MAX_HEAD_BYTES = 64 * 1024
# How long the server discards what a refused client still sends, so that the client can read the response.
_LINGER_SECONDS = 2.0
# A client takes so many bytes of a response in each `send_timeout`, or the rest of it.
_MIN_TAKEN_BYTES = 64 * 1024


class _Limits:
    """Limit what a connection sends without completing a head or a part of a body.

    It comes before a protocol of uvicorn in the bases of a class.
    """

    timeout: Callable[[], float]
    send_timeout: Callable[[], float]
    transport: Any
    _unparsed = 0
    _timer: asyncio.TimerHandle | None = None
    _is_refused = False
    _taking: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)  # type: ignore[misc]
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._stop_taking()
        super().connection_lost(exc)  # type: ignore[misc]

    def pause_writing(self) -> None:
        """Wait for the client to take the bytes that are to be sent."""
        super().pause_writing()  # type: ignore[misc]
        self._stop_taking()
        self._watch_taking()

    def resume_writing(self) -> None:
        """The client has taken nearly all."""
        self._stop_taking()
        super().resume_writing()  # type: ignore[misc]

    def _watch_taking(self) -> None:
        size = self.transport.get_write_buffer_size()
        loop = asyncio.get_running_loop()
        self._taking = loop.call_later(type(self).send_timeout(), self._check_taking, size)

    def _check_taking(self, before: int) -> None:
        """Drop the connection, with the bytes that it keeps in memory, if the client takes too few."""
        if before - self.transport.get_write_buffer_size() >= _MIN_TAKEN_BYTES:
            self._watch_taking()
            return
        self._taking = None
        logger.info(
            "Closed a connection whose client took less than %d bytes of a response in %g s "
            "(stream_send_timeout_seconds)",
            *(_MIN_TAKEN_BYTES, type(self).send_timeout()),
        )
        self.transport.abort()

    def _stop_taking(self) -> None:
        if self._taking is not None:
            self._taking.cancel()
            self._taking = None

    def data_received(self, data: bytes) -> None:
        """Pass data on in parts that cannot exceed the limit unnoticed."""
        while data and not self._is_refused:
            allowed = MAX_HEAD_BYTES - self._unparsed
            part, data = (data, b"") if len(data) <= allowed else (data[:allowed], data[allowed:])
            self._unparsed += len(part)
            super().data_received(part)  # type: ignore[misc]
            if self.transport.is_closing() or self.transport.get_protocol() is not self:
                return
            self._count()
            if self._unparsed >= MAX_HEAD_BYTES:
                self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"more than {MAX_HEAD_BYTES} bytes")
                return
        if self._is_idle():
            # The app waits for nothing: this is the beginning of a head, or the rest of an answered request.
            if self._timer is None:
                self._start_timer()
        else:
            self._stop_timer()

    def _count(self) -> None:
        """Set how many bytes the parser has that are part of no complete head and of no body."""

    def _is_idle(self) -> bool:
        cycle = getattr(self, "cycle", None)
        return cycle is None or cycle.response_complete

    def _start_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(type(self).timeout(), self._expire)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._timer = None
        if self.transport.get_protocol() is not self:
            return  # a WebSocket
        if self._unparsed:
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, "not complete in time (request_timeout_seconds)")
        else:
            self.transport.close()

    def _refuse(self, status: HTTPStatus, reason: str) -> None:
        self._stop_timer()
        self._is_refused = True
        if not self._is_idle() or not self.transport.can_write_eof():
            self.transport.close()
            return
        body = f"The head of the request is {reason}.\n"
        self.transport.write(
            f"HTTP/1.1 {status.value} {status.phrase}\r\nconnection: close\r\ncontent-type: text/plain\r\n"
            f"content-length: {len(body)}\r\n\r\n{body}".encode()
        )
        # Closing at once would drop the response if the client is still sending.
        self.transport.write_eof()
        self._timer = asyncio.get_running_loop().call_later(_LINGER_SECONDS, self.transport.abort)


class _HttptoolsLimits(_Limits):
    """The limits for httptools, which calls a method for each part of a request that it has parsed."""

    _has_parsed = False

    def on_headers_complete(self) -> None:
        self._has_parsed = True
        super().on_headers_complete()  # type: ignore[misc]

    def on_body(self, body: bytes) -> None:
        self._has_parsed = True
        super().on_body(body)  # type: ignore[misc]

    def on_message_complete(self) -> None:
        self._has_parsed = True
        super().on_message_complete()  # type: ignore[misc]

    def _count(self) -> None:
        if self._has_parsed:
            self._unparsed, self._has_parsed = 0, False


class _H11Limits(_Limits):
    """The limits for h11, which keeps the bytes that it has not parsed."""

    conn: Any

    def _count(self) -> None:
        # While a request is processed, h11 keeps the next ones, and uvicorn stops reading.
        self._unparsed = len(self.conn.trailing_data[0]) if self._is_idle() else 0


_NEEDED = {
    _HttptoolsLimits: ("on_headers_complete", "on_body", "on_message_complete"),
    _H11Limits: ("handle_events",),
}


def limit_connections(
    config: uvicorn.Config, timeout: Callable[[], float], send_timeout: Callable[[], float]
) -> None:
    """Let the connections of a server refuse a head with 431 at 64 KiB, and with 408 after `timeout` seconds.

    A connection that sends nothing is closed then, and one that does not take a response after
    `send_timeout`.
    """
    # h11 has a limit of its own, and answers 400.
    config.h11_max_incomplete_event_size = MAX_HEAD_BYTES
    if not config.loaded:
        config.load()
    kind = config.http_protocol_class
    for limits, names in _NEEDED.items():
        if all(hasattr(kind, name) for name in ("connection_made", "data_received", "pause_writing", *names)):
            times = {"timeout": staticmethod(timeout), "send_timeout": staticmethod(send_timeout)}
            config.http_protocol_class = type(f"Limited{kind.__name__}", (limits, kind), times)
            return
    logger.warning("uvicorn's protocol %s is unknown: its connections have no limits", kind.__name__)
