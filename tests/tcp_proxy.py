"""A proxy in front of a TCP server, which can end TLS, and whose connections can fall silent."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from math import inf
from typing import Self

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class TcpProxy:
    """Forwards connections to `target_port` of this machine, until `silence` or `cut`.

    With `tls` its clients speak TLS. Each connection falls silent after `most_bytes` of its client.
    """

    most_bytes = inf

    def __init__(self, target_port: int, tls: ssl.SSLContext | None = None) -> None:
        self.target_port = target_port
        self._tls = tls
        self._pumps: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []
        self._silent: list[asyncio.StreamWriter] = []
        self.port = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Accept connections during the block."""
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self._tls)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            self.cut()

    def silence(self) -> int:
        """Forward nothing on the open connections from now on; return their number. New ones work."""
        for pump in self._pumps:
            pump.cancel()
        count = len(self._writers) // 2
        self._silent += self._writers
        self._writers = []
        return count

    def cut(self) -> int:
        """Close the open connections at once; return their number. New ones work."""
        count = self.silence()
        for writer in self._silent:
            writer.transport.abort()
        self._silent = []
        return count

    async def _open_target(self) -> Streams:
        return await asyncio.open_connection("127.0.0.1", self.target_port)

    async def _accept(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        try:
            server, to_server = await self._open_target()
        except OSError:
            to_client.transport.abort()
            return
        self._writers += [to_client, to_server]
        for source, sink, most in ((client, to_server, self.most_bytes), (server, to_client, inf)):
            pump = asyncio.create_task(_pump(source, sink, most))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, most: float) -> None:
    with suppress(OSError):
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
            most -= len(data)
            if most <= 0:
                await asyncio.Event().wait()
        sink.close()
