"""A minimal reverse proxy that sends connections to the backends in turn."""

import asyncio
import itertools
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Self

_CHUNK = 1 << 16


class Forwarder:
    """A proxy that runs during its `with` block, and skips a backend that refuses a connection."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._next_ports = itertools.cycle(ports)
        self._tries = len(ports)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """The URL of the proxy."""
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        start = asyncio.start_server(self._forward, "127.0.0.1", 0)
        self._server = asyncio.run_coroutine_threadsafe(start, self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _stop(self) -> None:
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _forward(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if backend := await self._connect():
                reader, to_backend = backend
                up = asyncio.ensure_future(_pump(client, to_backend))
                down = asyncio.ensure_future(_pump(reader, to_client))
                # If one side closes its connection, the other side is closed too.
                await asyncio.wait([up, down], return_when=asyncio.FIRST_COMPLETED)
                for half in (up, down):
                    half.cancel()
                to_backend.close()
        except asyncio.CancelledError:
            pass  # at the end of the test; asyncio would log it as an error
        finally:
            to_client.close()
            self._connections.discard(task)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        for port in itertools.islice(self._next_ports, self._tries):
            with suppress(OSError):
                return await asyncio.open_connection("127.0.0.1", port)
        return None


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(_CHUNK):
            sink.write(data)
            await sink.drain()
