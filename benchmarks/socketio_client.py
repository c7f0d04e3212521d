"""A Socket.IO client with little overhead, over WebSocket: it joins rooms and counts or records events."""

import asyncio
import base64
import json
import os
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

_TEXT, _PING, _PONG = 0x1, 0x9, 0xA
_SHORT, _TWO_BYTES = 125, 126
_NO_MASK = bytes(4)


class SocketIO(asyncio.Protocol):
    """One connection. `on_event` gets each `task_status_event`."""

    def __init__(self, head: bytes, token: str, on_event: Callable[[Any], object]) -> None:
        self._head = head
        self._token = token
        self._on_event = on_event
        self._buffer = bytearray()
        self._is_open = False
        self._transport: Any = None
        self._answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        """Ask for a WebSocket."""
        self._transport = transport
        transport.write(self._head)

    def connection_lost(self, exc: Exception | None) -> None:
        """Raise an error in the open call."""
        if not self._answer.done():
            self._answer.set_exception(exc or ConnectionResetError("The server closed the connection"))

    def data_received(self, data: bytes) -> None:
        """Handle the packets that have arrived completely."""
        self._buffer += data
        if not self._is_open:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            if not self._buffer.startswith(b"HTTP/1.1 101"):
                self._answer.set_exception(ConnectionError(f"no WebSocket: {bytes(self._buffer[:end])!r}"))
                return
            del self._buffer[: end + 4]
            self._is_open = True
        for packet in self._packets():
            self._handle(packet)

    async def connected(self) -> None:
        """Wait until the server has accepted the token."""
        await self._answer

    async def call(self, name: str, argument: Any) -> Any:
        """Send an event, and return its acknowledgement. One call at a time."""
        self._answer = asyncio.get_running_loop().create_future()
        self._send(f"420{json.dumps([name, argument])}")
        return await self._answer

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()

    def _handle(self, packet: str) -> None:
        if packet.startswith("42"):
            name, event = json.loads(packet[2:])
            if name == "task_status_event":
                self._on_event(event)
        elif packet == "2":
            self._send("3")
        elif packet.startswith("0"):
            self._send(f"40{json.dumps({'token': self._token})}")
        elif packet.startswith("40"):
            self._answer.set_result(None)
        elif packet.startswith("430"):
            self._answer.set_result(json.loads(packet[3:])[0])
        elif not self._answer.done():
            self._answer.set_exception(ConnectionError(f"unexpected packet {packet!r}"))

    def _packets(self) -> Iterator[str]:
        buffer = self._buffer
        while len(buffer) >= 2:
            length, start = buffer[1], 2
            if length > _SHORT:
                start = 4 if length == _TWO_BYTES else 10
                length = int.from_bytes(buffer[2:start])
            if len(buffer) < max(start, start + length):
                return
            kind, content = buffer[0] & 0xF, bytes(buffer[start : start + length])
            del buffer[: start + length]
            if kind == _TEXT:
                yield content.decode()
            elif kind == _PING:
                self._write(_PONG, content)

    def _send(self, packet: str) -> None:
        self._write(_TEXT, packet.encode())

    def _write(self, kind: int, content: bytes) -> None:
        assert len(content) < 1 << 16
        size = (
            bytes([0x80 | len(content)])
            if len(content) <= _SHORT
            else bytes([0x80 | _TWO_BYTES]) + len(content).to_bytes(2)
        )
        self._transport.write(bytes([0x80 | kind]) + size + _NO_MASK + content)


async def connect(url: str, token: str, room: str, on_event: Callable[[Any], object]) -> SocketIO:
    """Open a connection that gets the events of a room."""
    server = urlsplit(url)
    key = base64.b64encode(os.urandom(16)).decode()
    head = (
        f"GET /socket.io/?EIO=4&transport=websocket HTTP/1.1\r\nHost: {server.netloc}\r\n"
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        f"Sec-WebSocket-Key: {key}\r\n\r\n"
    )
    _, connection = await asyncio.get_running_loop().create_connection(
        lambda: SocketIO(head.encode(), token, on_event), server.hostname, server.port
    )
    await connection.connected()
    assert await connection.call("join_room", {"room_id": room}) == {}
    return connection
