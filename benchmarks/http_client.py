"""A load generator with little overhead: HTTP/1.1 with keep-alive on an asyncio protocol."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any
from urllib.parse import urlsplit


class Connection(asyncio.Protocol):
    """One connection, which sends one request at a time."""

    def __init__(self, head: str) -> None:
        self._head = head
        self._buffer = bytearray()
        self._response: asyncio.Future[tuple[int, bytes]] | None = None
        self._transport: Any = None

    def connection_made(self, transport: Any) -> None:
        """Store the transport."""
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """Raise an error in the open request."""
        if self._response is not None and not self._response.done():
            self._response.set_exception(exc or ConnectionResetError("The server closed the connection"))

    def data_received(self, data: bytes) -> None:
        """Return the response to the caller when head and body are complete."""
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0 or self._response is None:
            return
        head = bytes(self._buffer[:end]).lower()
        start = head.find(b"content-length:")
        size = int(head[start + 15 :].split(b"\r\n", 1)[0]) if start >= 0 else 0
        if len(self._buffer) < end + 4 + size:
            return
        body = bytes(self._buffer[end + 4 : end + 4 + size])
        self._buffer.clear()
        self._response.set_result((int(head[9:12]), body))

    async def request(self, method: str, path: str, body: Any = None, headers: str = "") -> tuple[int, bytes]:
        """Send a request with a body, as bytes or as what is to be JSON; return (status, body)."""
        content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        kind = "Content-Type: application/json\r\n" if content else ""
        head = (
            f"{method} {path} HTTP/1.1\r\n{self._head}{headers}{kind}Content-Length: {len(content)}\r\n\r\n"
        )
        self._response = asyncio.get_running_loop().create_future()
        self._transport.write(head.encode() + content)
        return await self._response

    async def json(self, method: str, path: str, body: Any = None, headers: str = "") -> Any:
        """Send a request and return the parsed response; an error response stops the benchmark."""
        status, content = await self.request(method, path, body, headers)
        assert status < 300, (method, path, status, content)
        return json.loads(content) if content else None

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()


@asynccontextmanager
async def connections(url: str, token: str, count: int) -> AsyncIterator[list[Connection]]:
    """Open `count` connections."""
    server = urlsplit(url)
    head = f"Host: {server.netloc}\r\nAuthorization: Bearer {token}\r\n"
    loop = asyncio.get_running_loop()
    opened = [
        (await loop.create_connection(lambda: Connection(head), server.hostname, server.port))[1]
        for _ in range(count)
    ]
    try:
        yield opened
    finally:
        for connection in opened:
            connection.close()


@dataclass
class Rate:
    """Calls (or tasks) and their number per second; p50 and p95 of the duration of one call, in ms."""

    count: int
    per_second: float
    p50: float
    p95: float


async def measure(
    opened: list[Connection], call: Callable[[Connection], Awaitable[object]], seconds: float, size: int = 1
) -> Rate:
    """Run `call`, which handles `size` tasks, repeatedly on every connection for `seconds`."""
    times: list[float] = []
    stop = time.perf_counter() + seconds

    async def work(connection: Connection) -> None:
        while (start := time.perf_counter()) < stop:
            await call(connection)
            times.append(time.perf_counter() - start)

    begin = time.perf_counter()
    await asyncio.gather(*[work(connection) for connection in opened])
    count = size * len(times)
    return Rate(count, count / (time.perf_counter() - begin), *quantiles(times))


def quantiles(times: list[float]) -> tuple[float, float]:
    """Return the median and the 95th percentile, in ms."""
    ordered = sorted(times)
    return median(ordered) * 1000, ordered[int(0.95 * (len(ordered) - 1))] * 1000
