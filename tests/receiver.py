"""A receiver of webhooks: an HTTP server of a test that answers, fails, resets and hangs as it is told."""

import asyncio
import json
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

from standardwebhooks import Webhook

_REASONS = {200: "OK", 204: "No Content", 302: "Found", 410: "Gone", 500: "Internal Server Error"}


class Received(NamedTuple):
    """A request that arrived."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def event(self) -> dict[str, Any]:
        """The event in the body."""
        event: dict[str, Any] = json.loads(self.body)
        return event

    def verified(self, secret: str) -> dict[str, Any]:
        """Return the event; raise unless a signature is that of the secret."""
        event: dict[str, Any] = Webhook(secret).verify(self.body, self.headers)
        return event


class Receiver:
    """What arrived, and how the next requests are answered, by their paths.

    An answer is a status, ``reset`` or ``hang``; a path without one gets 204. `gate` holds all answers back.
    """

    def __init__(self, port: int, scheme: str) -> None:
        self.port, self._scheme = port, scheme
        self.received: list[Received] = []
        self.answers: dict[str, int | str] = {}
        self.body, self.headers = b"", ""
        self.gate: asyncio.Event | None = None
        self.arrived = asyncio.Condition()
        # Return the answer to a request, instead of that of its path.
        self.decide: Callable[[Received], int | str] | None = None

    def url(self, path: str = "/hook", host: str = "127.0.0.1") -> str:
        """Return a URL of the receiver."""
        return f"{self._scheme}://{host}:{self.port}{path}"

    def events(self, path: str = "/hook") -> list[str]:
        """Return the types of the events that arrived at a path."""
        return [request.event["type"] for request in self.received if request.path == path]

    def tasks(self, path: str = "/hook") -> list[str]:
        """Return the ids of the tasks of these events."""
        return [request.event["data"]["id"] for request in self.received if request.path == path]

    async def wait_for(self, count: int, path: str = "/hook") -> list[Received]:
        """Wait until so many requests have arrived at a path, and return them."""
        async with self.arrived:
            await self.arrived.wait_for(lambda: sum(item.path == path for item in self.received) >= count)
        return [item for item in self.received if item.path == path]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of a connection."""
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    await self._answer(reader, writer)
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {
            name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)
        }
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        path = head[0].split()[1]
        request = Received(path, headers, body)
        answer = self.answers.get(path, 204) if self.decide is None else self.decide(request)
        async with self.arrived:
            self.received.append(request)
            self.arrived.notify_all()
        if self.gate is not None:
            await self.gate.wait()
        if answer == "hang":
            await asyncio.Event().wait()
        if answer == "reset":
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.close()
            raise ConnectionResetError
        status = f"HTTP/1.1 {answer} {_REASONS.get(int(answer), 'Other')}\r\n"
        writer.write(f"{status}{self.headers}Content-Length: {len(self.body)}\r\n\r\n".encode() + self.body)
        await writer.drain()


@asynccontextmanager
async def receiving(tls: ssl.SSLContext | None = None, port: int = 0) -> AsyncIterator[Receiver]:
    """Run a receiver on a port of 127.0.0.1."""
    connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not server.is_serving():
            writer.close()
            return
        connections[asyncio.ensure_future(receiver.serve(reader, writer))] = writer

    server = await asyncio.start_server(connected, "127.0.0.1", port, ssl=tls)
    receiver = Receiver(server.sockets[0].getsockname()[1], "https" if tls else "http")
    try:
        yield receiver
    finally:
        server.close()
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        # A task that was cancelled before its first step has closed nothing.
        for writer in connections.values():
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
