"""A load generator that costs little: HTTP/1.1 with keep-alive on bare sockets."""

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
    """One connection; one request at a time."""

    def __init__(self, head: str) -> None:
        self._head = head
        self._buffer = bytearray()
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._transport: Any = None

    def connection_made(self, transport: Any) -> None:
        """Keep the transport."""
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the open request."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or ConnectionResetError("the server hung up"))

    def data_received(self, data: bytes) -> None:
        """Answer once head and body are there."""
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0 or self._answer is None:
            return
        head = bytes(self._buffer[:end]).lower()
        start = head.find(b"content-length:")
        size = int(head[start + 15 :].split(b"\r\n", 1)[0]) if start >= 0 else 0
        if len(self._buffer) < end + 4 + size:
            return
        body = bytes(self._buffer[end + 4 : end + 4 + size])
        self._buffer.clear()
        self._answer.set_result((int(head[9:12]), body))

    async def request(self, method: str, path: str, body: Any = None, headers: str = "") -> tuple[int, bytes]:
        """Send a request and return (status, body)."""
        content = b"" if body is None else json.dumps(body).encode()
        kind = "Content-Type: application/json\r\n" if content else ""
        head = (
            f"{method} {path} HTTP/1.1\r\n{self._head}{headers}{kind}Content-Length: {len(content)}\r\n\r\n"
        )
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(head.encode() + content)
        return await self._answer

    async def json(self, method: str, path: str, body: Any = None, headers: str = "") -> Any:
        """Send a request and return the parsed answer; anything but a success stops the benchmark."""
        status, answer = await self.request(method, path, body, headers)
        assert status < 300, (method, path, status, answer)
        return json.loads(answer) if answer else None

    def close(self) -> None:
        """Hang up."""
        self._transport.close()


@asynccontextmanager
async def connections(url: str, token: str, count: int) -> AsyncIterator[list[Connection]]:
    """Open `count` connections."""
    where = urlsplit(url)
    head = f"Host: {where.netloc}\r\nAuthorization: Bearer {token}\r\n"
    loop = asyncio.get_running_loop()
    opened = [
        (await loop.create_connection(lambda: Connection(head), where.hostname, where.port))[1]
        for _ in range(count)
    ]
    try:
        yield opened
    finally:
        for connection in opened:
            connection.close()


@dataclass
class Rate:
    """Rounds per second, and the time of one round in ms at the middle and near the end."""

    per_second: float
    p50: float
    p95: float


async def measure(
    opened: list[Connection], one: Callable[[Connection, int], Awaitable[object]], seconds: float
) -> Rate:
    """Let every connection do `one` again and again for `seconds`; the index counts all rounds."""
    times: list[float] = []
    stop = time.perf_counter() + seconds
    index = 0

    async def work(connection: Connection) -> None:
        nonlocal index
        while (start := time.perf_counter()) < stop:
            index += 1
            await one(connection, index)
            times.append(time.perf_counter() - start)

    begin = time.perf_counter()
    await asyncio.gather(*[work(connection) for connection in opened])
    return Rate(len(times) / (time.perf_counter() - begin), *quantiles(times))


def quantiles(times: list[float]) -> tuple[float, float]:
    """Return the middle and the 95th percentile, in ms."""
    ordered = sorted(times)
    return median(ordered) * 1000, ordered[int(0.95 * (len(ordered) - 1))] * 1000
