"""What is measured of providers: reads that are cached, reads that are not, and many at once."""

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from benchmarks.load import Connection, Rate, connections, measure, quantiles
from benchmarks.servers import TOKEN

V1 = "/v1/joblib"
READ = f"{V1}/rooms/bench/providers/@global:files:data"
READERS = 200
_BODY = json.dumps({"data": "x" * 1000})
_LONG = "Prefer: wait=30\r\n"


@asynccontextmanager
async def provided(url: str, threads: int = 4) -> AsyncIterator[None]:
    """Answer reads with a kilobyte, by so many claims at once."""
    async with connections(url, TOKEN, threads) as opened:
        provider = await opened[0].json(
            "PUT", f"{V1}/rooms/@global/providers", {"category": "files", "name": "data"}
        )
        serving = [asyncio.create_task(_answer(connection, provider)) for connection in opened]
        try:
            yield
        finally:
            for each in serving:
                each.cancel()
            await asyncio.gather(*serving, return_exceptions=True)


async def _answer(connection: Connection, provider: Any) -> None:
    claim = {"worker_id": provider["worker_id"]}
    while True:
        got = await connection.json("POST", f"{V1}/providers/requests/claim", claim, _LONG)
        if (read := got["request"]) is not None:
            path = f"{V1}/providers/{provider['id']}/results"
            label = f"X-Request-Hash: {read['request_id']}\r\n"
            await connection.json("POST", path, json.loads(_BODY), label)


async def cached(url: str, count: int, seconds: float) -> Rate:
    """Read what was read before, on each connection."""
    async with provided(url), connections(url, TOKEN, count) as opened:
        await opened[0].json("GET", f"{READ}?n=cached", None, _LONG)
        return await measure(opened, lambda c, _: c.json("GET", f"{READ}?n=cached"), seconds)


async def latencies(url: str, rounds: int) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return p50 and p95 in ms: of a read that the provider is asked for; of many identical ones at once."""
    numbers = itertools.count()
    async with provided(url), connections(url, TOKEN, READERS) as opened:
        singles, crowds = [], []
        for _ in range(rounds):
            singles.append(await _timed(opened[:1], next(numbers)))
        for _ in range(max(5, rounds // 20)):
            crowds.append(await _timed(opened, next(numbers)))
        return quantiles(singles), quantiles(crowds)


async def _timed(opened: list[Connection], number: int) -> float:
    start = time.perf_counter()
    await asyncio.gather(*[c.json("GET", f"{READ}?n={number}", None, _LONG) for c in opened])
    return time.perf_counter() - start
