"""Provider requests: cached ones, uncached ones, and many identical ones at once."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvloop

from benchmarks.bench import Bench
from benchmarks.http_client import Connection, Rate, connections, measure, quantiles
from benchmarks.scenarios import LONG_POLL, ROOM, V1
from benchmarks.servers import TOKEN

PROVIDER = f"{ROOM}/providers/@global:files:data"
CALLERS = 200
_ROUNDS = 100
_RESULT = {"data": "x" * 1000}


def run(bench: Bench) -> None:
    """Report the rate of cached provider requests, and the latency of those that are not cached."""
    server, _ = bench.shared_server
    rate, ratio = bench.scenario(server, cached)
    single, identical = uvloop.run(latencies(server, _ROUNDS))
    bench.report.add("cached request", rate, "/s", ratio)
    bench.add_times({"new request, p50": single[0], "new request, p95": single[1]})
    bench.add_times({f"{CALLERS} identical new requests, p50": identical[0]})


@asynccontextmanager
async def provider(url: str, concurrency: int = 4) -> AsyncIterator[None]:
    """Run a provider that answers requests with one kilobyte."""
    async with connections(url, TOKEN, concurrency) as opened:
        body = {"category": "files", "name": "data"}
        registered = await opened[0].json("PUT", f"{V1}/rooms/@global/providers", body)
        serving = [asyncio.create_task(_serve(connection, registered)) for connection in opened]
        try:
            yield
        finally:
            for task in serving:
                task.cancel()
            await asyncio.gather(*serving, return_exceptions=True)


async def _serve(connection: Connection, provider: Any) -> None:
    body = {"worker_id": provider["worker_id"]}
    while True:
        claimed = await connection.json("POST", f"{V1}/providers/requests/claim", body, LONG_POLL)
        if (request := claimed["request"]) is not None:
            path = f"{V1}/providers/{provider['id']}/results"
            header = f"X-Request-Hash: {request['request_id']}\r\n"
            await connection.json("POST", path, _RESULT, header)


async def cached(url: str, count: int, seconds: float) -> Rate:
    """Repeat a request whose result is cached, on each connection."""
    async with provider(url), connections(url, TOKEN, count) as opened:
        await opened[0].json("GET", f"{PROVIDER}?n=cached", None, LONG_POLL)
        return await measure(opened, lambda c: c.json("GET", f"{PROVIDER}?n=cached"), seconds)


async def latencies(url: str, rounds: int) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return p50 and p95 in ms: of one uncached request, and of many identical ones at once."""
    numbers = itertools.count()
    async with provider(url), connections(url, TOKEN, CALLERS) as opened:
        single = [await _time_requests(opened[:1], next(numbers)) for _ in range(rounds)]
        identical = [await _time_requests(opened, next(numbers)) for _ in range(max(5, rounds // 20))]
        return quantiles(single), quantiles(identical)


async def _time_requests(opened: list[Connection], number: int) -> float:
    start = time.perf_counter()
    await asyncio.gather(*[c.json("GET", f"{PROVIDER}?n={number}", None, LONG_POLL) for c in opened])
    return time.perf_counter() - start
