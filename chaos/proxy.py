"""What stands between workers and server, and cuts connections when it is told to."""

import asyncio
from contextlib import suppress

_CHUNK = 65_536


class Proxy:
    """Passes bytes on between `url` and a server on `port`. A connection that finds no server is closed."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._open: set[asyncio.StreamWriter] = set()
        self._to_lose = {"request": 0, "answer": 0}
        self._server: asyncio.Server | None = None
        self.url = ""

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        """Cut all, and listen no more."""
        if self._server is not None:
            self._server.close()
        self.cut()

    def cut(self) -> int:
        """Drop all open connections; return how many there were."""
        writers, self._open = self._open, set()
        for writer in writers:
            writer.transport.abort()
        return len(writers) // 2

    def lose(self, what: str, count: int) -> None:
        """Drop the connections of the next requests before they arrive, or of the next answers."""
        self._to_lose[what] += count

    def heal(self) -> None:
        """Lose nothing more."""
        self._to_lose = dict.fromkeys(self._to_lose, 0)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            writer.transport.abort()
            return
        both = {writer, far_writer}
        self._open |= both
        ways = [
            asyncio.create_task(self._pass_on(reader, far_writer, "request")),
            asyncio.create_task(self._pass_on(far_reader, writer, "answer")),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            for end in both:
                end.transport.abort()
            self._open -= both

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, what: str) -> None:
        with suppress(OSError):
            while data := await reader.read(_CHUNK):
                if self._to_lose[what]:
                    self._to_lose[what] -= 1
                    return
                writer.write(data)
                await writer.drain()
