"""A TCP proxy between workers and server that closes connections on request."""

import asyncio
from contextlib import suppress
from typing import Literal

Direction = Literal["request", "response"]
_CHUNK = 65_536


class Proxy:
    """Forwards bytes between `url` and a server on `port`. Closes a connection if the server refuses it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._open: set[asyncio.StreamWriter] = set()
        self._to_drop: dict[Direction, int] = {"request": 0, "response": 0}
        self._server: asyncio.Server | None = None
        self.url = ""

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        """Stop listening and close all connections."""
        if self._server is not None:
            self._server.close()
        self.close_connections()

    def close_connections(self) -> None:
        """Close all open connections."""
        writers, self._open = self._open, set()
        for writer in writers:
            writer.transport.abort()

    def drop(self, direction: Direction, count: int) -> None:
        """Close the connections of the next `count` requests or responses instead of forwarding them."""
        self._to_drop[direction] += count

    def stop_dropping(self) -> None:
        """Forward everything again."""
        self._to_drop = {"request": 0, "response": 0}

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            writer.transport.abort()
            return
        both = {writer, server_writer}
        self._open |= both
        directions = [
            asyncio.create_task(self._forward(reader, server_writer, "request")),
            asyncio.create_task(self._forward(server_reader, writer, "response")),
        ]
        try:
            await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for direction in directions:
                direction.cancel()
            for end in both:
                end.transport.abort()
            self._open -= both

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(_CHUNK):
                if self._to_drop[direction]:
                    self._to_drop[direction] -= 1
                    return
                writer.write(data)
                await writer.drain()
