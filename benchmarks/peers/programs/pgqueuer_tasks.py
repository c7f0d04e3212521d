"""PgQueuer on PostgreSQL, with asyncpg."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import uvloop
from common import URL, main, mark
from pgqueuer import PgQueuer
from pgqueuer.queries import Queries

_opened: dict[str, Queries] = {}


async def run_worker(batch_size: int) -> None:
    """Execute jobs until a signal."""
    queue = PgQueuer.from_asyncpg_connection(await asyncpg.connect(URL))

    @queue.entrypoint("work")
    async def work(job: Any) -> None:
        mark()

    await queue.run(batch_size=batch_size)


@asynccontextmanager
async def opened() -> AsyncIterator[None]:
    """Open a pool of connections."""
    async with asyncpg.create_pool(URL, min_size=16, max_size=16) as pool:
        _opened["queries"] = Queries.from_asyncpg_pool(pool)
        yield


async def setup() -> None:
    """Create the tables."""
    await _opened["queries"].install()


async def enqueue() -> None:
    """Enqueue a job."""
    await _opened["queries"].enqueue("work", None)


async def enqueue_many(count: int) -> None:
    """Enqueue jobs in one statement."""
    await _opened["queries"].enqueue(["work"] * count, [None] * count, [0] * count)


if __name__ == "__main__":
    if sys.argv[1] == "work":
        uvloop.run(run_worker(int(sys.argv[2])))
    main(enqueue, enqueue_many, setup=setup, opened=opened)
