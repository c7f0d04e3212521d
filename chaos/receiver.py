"""A flaky receiver of webhooks: it is slow, fails, resets, answers nothing (a black hole), or is gone."""

import asyncio
import json
import socket
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from chaos.records import Arrival

SLOW_SECONDS = 0.5
# What each target does while the receiver is flaky; `steady` has no fault.
TARGETS = ("steady", "slow", "error", "reset", "hole", "gone")
_STATUSES = {"error": "500 Internal Server Error", "gone": "410 Gone"}
_ACCEPTED = "204 No Content"


class Receiver:
    """Records what arrives. While `is_flaky`, its targets fail, each in its own manner."""

    def __init__(self) -> None:
        self.is_flaky = False
        self.arrivals: list[Arrival] = []
        self.refused: set[str] = set()
        self.changed = asyncio.Condition()
        self.port = 0

    def url(self, target: str) -> str:
        """Return the URL of a target."""
        return f"http://127.0.0.1:{self.port}/{target}"

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
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        target = head[0].split()[1].strip("/")
        fault = target if self.is_flaky else "steady"
        if fault == "slow":
            await asyncio.sleep(SLOW_SECONDS)
        if fault == "hole":
            self.refused.add(target)
            await asyncio.Event().wait()
        if fault == "reset":
            self.refused.add(target)
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            raise ConnectionResetError
        if fault in _STATUSES:
            self.refused.add(target)
        else:
            await self._record(target, headers["webhook-id"], json.loads(body))
        writer.write(f"HTTP/1.1 {_STATUSES.get(fault, _ACCEPTED)}\r\nContent-Length: 0\r\n\r\n".encode())
        await writer.drain()

    async def _record(self, target: str, message: str, event: dict[str, Any]) -> None:
        arrival = Arrival(time.time(), target, message, event["type"], str(event["data"].get("id", "")))
        async with self.changed:
            self.arrivals.append(arrival)
            self.changed.notify_all()


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    """Run a receiver on a free port of 127.0.0.1."""
    receiver = Receiver()
    connections: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.add(asyncio.ensure_future(receiver.serve(reader, writer)))

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
