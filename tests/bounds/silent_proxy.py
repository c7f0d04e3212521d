"""A proxy in front of PostgreSQL that speaks TLS, or whose connections fall silent without an error."""

import asyncio
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from sqlalchemy import make_url

_SSL_REQUEST = struct.pack("!ii", 8, 80877103)


class SilentProxy:
    """Forwards TCP connections to PostgreSQL's Unix socket, until `silence`. With `tls`, it requires TLS."""

    def __init__(self, database_url: str, tls: ssl.SSLContext | None = None) -> None:
        self._url = make_url(database_url)
        self._tls = tls
        self.handshakes = 0
        self._pumps: set[asyncio.Task[None]] = set()
        self._silent: list[asyncio.StreamWriter] = []
        self._writers: list[asyncio.StreamWriter] = []
        self._port = 0

    @property
    def url(self) -> str:
        """The URL of the database through the proxy."""
        address = self._url.set(host="127.0.0.1", port=self._port, query={})
        return address.render_as_string(hide_password=False)

    @asynccontextmanager
    async def running(self) -> AsyncIterator["SilentProxy"]:
        """Accept connections during the block."""
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self._port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            self.silence()
            for writer in self._silent:
                writer.transport.abort()

    def silence(self) -> int:
        """Forward nothing on the open connections from now on; return their number. New ones work."""
        for pump in self._pumps:
            pump.cancel()
        count = len(self._writers) // 2
        self._silent += self._writers
        self._writers = []
        return count

    async def _accept(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        if self._tls is not None:
            assert await client.readexactly(len(_SSL_REQUEST)) == _SSL_REQUEST
            to_client.write(b"S")
            try:
                await to_client.start_tls(self._tls)
            except ssl.SSLError:
                return  # the client refused the certificate
            self.handshakes += 1
        path = f"{self._url.query['host']}/.s.PGSQL.{self._url.port or 5432}"
        server, to_server = await asyncio.open_unix_connection(path)
        self._writers += [to_client, to_server]
        for source, sink in ((client, to_server), (server, to_client)):
            pump = asyncio.create_task(_pump(source, sink))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
        sink.close()
