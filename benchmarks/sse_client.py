"""A client of event streams with little overhead: it hands on what it gets."""

import asyncio
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

_CONNECTS_AT_ONCE = 50
_CONNECT_SECONDS = 60.0


class EventReader(asyncio.Protocol):
    """One stream. `on_data(data)` is called with what arrives after the snapshot: whole events."""

    def __init__(self, request: bytes, on_data: Callable[[bytes], object]) -> None:
        self._request = request
        self._on_data = on_data
        self._start = b""
        self._transport: Any = None
        self._is_open: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        """Ask for the stream."""
        self._transport = transport
        transport.write(self._request)

    def connection_lost(self, exc: Exception | None) -> None:
        """Raise an error if the stream has not begun."""
        if not self._is_open.done():
            self._is_open.set_exception(exc or ConnectionResetError(f"no stream: {self._start[:500]!r}"))

    def data_received(self, data: bytes) -> None:
        """Wait for the snapshot, then count events. The server sends each event in one piece."""
        if self._is_open.done():
            self._on_data(data)
            return
        self._start += data
        if b"event: snapshot\n" in self._start:
            self._is_open.set_result(None)
            self._start = b""

    async def opened(self) -> None:
        """Wait for the snapshot."""
        async with asyncio.timeout(_CONNECT_SECONDS):
            await self._is_open

    def close(self) -> None:
        """Disconnect."""
        self._transport.abort()


async def read_streams(
    url: str, token: str, paths: list[str], on_data: Callable[[bytes], object]
) -> list[EventReader]:
    """Open a stream of each path, and wait for all snapshots."""
    server = urlsplit(url)
    loop = asyncio.get_running_loop()

    async def open_one(path: str) -> EventReader:
        head = f"GET {path} HTTP/1.1\r\nHost: {server.netloc}\r\nAuthorization: Bearer {token}\r\n"
        request = f"{head}Accept: text/event-stream\r\n\r\n".encode()
        _, reader = await loop.create_connection(
            lambda: EventReader(request, on_data), server.hostname, server.port
        )
        await reader.opened()
        return reader

    readers: list[EventReader] = []
    while len(readers) < len(paths):
        some = paths[len(readers) : len(readers) + _CONNECTS_AT_ONCE]
        readers += await asyncio.gather(*map(open_one, some))
    return readers
