"""A connection pooler in transaction mode, as PgBouncer with ``pool_mode = transaction``."""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from sqlalchemy import make_url

_REFUSED = {80877103, 80877104}  # requests for TLS and for GSSAPI
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class TransactionPooler:
    """Gives each transaction of a client the connection to PostgreSQL that was used last."""

    def __init__(self, database_url: str) -> None:
        self._url = make_url(database_url)
        self._free: list[tuple[Streams, bytes]] = []
        self._all: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._port = 0

    @property
    def url(self) -> str:
        """The URL of the database through the pooler."""
        address = self._url.set(host="127.0.0.1", port=self._port, query={})
        return address.render_as_string(hide_password=False)

    @asynccontextmanager
    async def running(self) -> AsyncIterator["TransactionPooler"]:
        """Accept connections during the block."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            for writer in self._all:
                writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._all.append(writer)
        with suppress(OSError, asyncio.IncompleteReadError):
            startup = await _startup(reader, writer)
            streams, greeting = await self._take(startup)
            self._free.append((streams, greeting))
            writer.write(greeting)
            await _Client(self, reader, writer, startup).run()
        writer.close()

    async def _take(self, startup: bytes) -> tuple[Streams, bytes]:
        if self._free:
            return self._free.pop()
        path = f"{self._url.query['host']}/.s.PGSQL.{self._url.port or 5432}"
        reader, writer = await asyncio.open_unix_connection(path)
        self._all.append(writer)
        writer.write(startup)
        greeting = b""
        while not (message := await _message(reader)).startswith(b"Z"):
            greeting += message
        return (reader, writer), greeting + message

    async def take(self, startup: bytes) -> tuple[Streams, bytes]:
        """Return a connection to PostgreSQL, and what it said at its start."""
        return await self._take(startup)

    def give_back(self, connection: tuple[Streams, bytes]) -> None:
        """Let the next transaction of any client use a connection."""
        self._free.append(connection)

    def start(self, work: "asyncio.Task[None]") -> None:
        """Keep a task until it ends."""
        self._tasks.add(work)
        work.add_done_callback(self._tasks.discard)


class _Client:
    def __init__(
        self,
        pooler: TransactionPooler,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        startup: bytes,
    ) -> None:
        self._pooler, self._reader, self._writer, self._startup = pooler, reader, writer, startup
        self._held: tuple[Streams, bytes] | None = None
        self._awaited = 0

    async def run(self) -> None:
        while not (message := await _message(self._reader)).startswith(b"X"):
            if self._held is None:
                self._held = await self._pooler.take(self._startup)
                self._pooler.start(asyncio.create_task(self._answer(self._held)))
            self._awaited += message[:1] in b"QS"
            self._held[0][1].write(message)

    async def _answer(self, held: tuple[Streams, bytes]) -> None:
        while True:
            message = await _message(held[0][0])
            self._writer.write(message)
            self._awaited -= message[:1] == b"Z"
            if message[:1] == b"Z" and self._awaited == 0 and message[5:6] == b"I":
                self._held = None
                self._pooler.give_back(held)
                return


async def _startup(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    while True:
        head = await reader.readexactly(8)
        size, code = struct.unpack("!II", head)
        if code not in _REFUSED:
            return head + await reader.readexactly(size - 8)
        writer.write(b"N")


async def _message(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(5)
    return head + await reader.readexactly(struct.unpack("!I", head[1:])[0] - 4)
