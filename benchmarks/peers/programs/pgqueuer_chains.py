"""Chains and fans on PgQueuer, which has no successors.

In a chain each job enqueues the next one as its last action. After a group, this program waits with the
`CompletionWatcher` until all have ended, and enqueues the next job.
"""

import asyncio
import sys
from typing import Any

import asyncpg
import uvloop
from common import URL
from marks import mark_times
from pgqueuer import PgQueuer
from pgqueuer.core.completion import CompletionWatcher
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries


async def run_worker(batch_size: int) -> None:
    """Execute jobs until a signal."""
    queue = PgQueuer.from_asyncpg_connection(await asyncpg.connect(URL))
    async with asyncpg.create_pool(URL, min_size=1, max_size=4) as pool:
        queries = Queries.from_asyncpg_pool(pool)

        @queue.entrypoint("step")
        async def step(job: Any) -> None:
            number, last = map(int, job.payload.split())
            mark_times(number)
            if number < last:
                await queries.enqueue("step", f"{number + 1} {last}".encode())

        await queue.run(batch_size=batch_size)


async def main(kind: str, first: int, count: int) -> None:
    """Create the tables, begin a chain, or run a group with one job after it."""
    connection = await asyncpg.connect(URL)
    queries = Queries.from_asyncpg_connection(connection)
    if kind == "setup":
        await queries.install()
    elif kind == "chain":
        await queries.enqueue("step", f"{first} {first + count - 1}".encode())
    else:
        payloads = [b"%d 0" % (first + i) for i in range(count)]
        async with CompletionWatcher(AsyncpgDriver(connection), queries=queries) as watcher:
            ids = await queries.enqueue(["step"] * count, list(payloads), [0] * count)
            await asyncio.gather(*[watcher.wait_for(job_id) for job_id in ids])
            await queries.enqueue("step", b"%d 0" % (first + count))


if __name__ == "__main__":
    if sys.argv[1] == "work":
        uvloop.run(run_worker(int(sys.argv[2])))
    else:
        asyncio.run(main(sys.argv[1], *map(int, sys.argv[2:] or (0, 0))))
