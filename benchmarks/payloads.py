"""Submits and claims of tasks whose payloads have almost 1 MiB."""

import asyncio
import time

from benchmarks.bench import Bench
from benchmarks.http_client import Connection, Rate, connections, measure, quantiles
from benchmarks.scenarios import claim_task, register, submit_task
from benchmarks.servers import TOKEN
from zndraw_joblib.wire.messages import MAX_JSON_BYTES

_CONNECTIONS = 4
_JOB = "@global:modifiers:Large"
_BODY = b'{"payload":{"data":"%s"}}' % (b"x" * (MAX_JSON_BYTES - 100))


def run(bench: Bench) -> None:
    """Report the rates of submits and claims, and their ratios to an empty endpoint with the same body."""
    server, _ = bench.shared_server
    for name, scenario in (("submit, 1 MiB", submit), ("claim, 1 MiB", claim)):
        rate, ratio = bench.scenario(server, scenario, _CONNECTIONS, body=_BODY)
        bench.report.add(name, rate, "/s", ratio)


async def submit(url: str, count: int, seconds: float) -> Rate:
    """Submit large tasks on each connection."""
    async with connections(url, TOKEN, count) as opened:
        await register(opened[0], "Large")
        return await measure(opened, _submit, seconds)


async def claim(url: str, count: int, seconds: float) -> Rate:
    """Submit large tasks on each connection, and then claim as many, each with its own worker."""
    async with connections(url, TOKEN, count) as opened:
        workers = {c: await register(c, "Large") for c in opened}
        backlog = await measure(opened, _submit, seconds)
        remaining = iter(range(backlog.count))
        times: list[float] = []

        async def claim_all(c: Connection) -> None:
            for _ in remaining:
                start = time.perf_counter()
                await claim_task(c, workers[c])
                times.append(time.perf_counter() - start)

        begin = time.perf_counter()
        await asyncio.gather(*map(claim_all, opened))
        return Rate(len(times), len(times) / (time.perf_counter() - begin), *quantiles(times))


async def _submit(connection: Connection) -> None:
    await submit_task(connection, _JOB, body=_BODY)
