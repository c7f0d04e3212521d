"""A proxy in front of PostgreSQL that speaks TLS, or whose connections fall silent without an error."""

import asyncio
import ssl
import struct

from sqlalchemy import make_url
from tcp_proxy import Streams, TcpProxy

_SSL_REQUEST = struct.pack("!ii", 8, 80877103)


class SilentProxy(TcpProxy):
    """Forwards TCP connections to PostgreSQL's Unix socket, until `silence`. With `tls`, it requires TLS.

    PostgreSQL's clients ask for TLS in a message of their own, before the handshake.
    """

    def __init__(self, database_url: str, tls: ssl.SSLContext | None = None) -> None:
        self._url = make_url(database_url)
        super().__init__(self._url.port or 5432)
        self._requested_tls = tls
        self.handshakes = 0

    @property
    def url(self) -> str:
        """The URL of the database through the proxy."""
        address = self._url.set(host="127.0.0.1", port=self.port, query={})
        return address.render_as_string(hide_password=False)

    async def _open_target(self) -> Streams:
        return await asyncio.open_unix_connection(f"{self._url.query['host']}/.s.PGSQL.{self.target_port}")

    async def _accept(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        if self._requested_tls is not None:
            assert await client.readexactly(len(_SSL_REQUEST)) == _SSL_REQUEST
            to_client.write(b"S")
            try:
                await to_client.start_tls(self._requested_tls)
            except ssl.SSLError:
                return  # the client refused the certificate
            self.handshakes += 1
        await super()._accept(client, to_client)
