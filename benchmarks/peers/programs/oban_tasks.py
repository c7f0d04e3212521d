"""Oban on PostgreSQL, with psycopg and its pool."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from common import URL, main, mark
from oban import Oban, schema, worker

_opened: dict[str, Oban] = {}


@worker()
class Work:
    """Does nothing. Workers import it by its name, also if this file is the program that enqueues."""

    __module__ = "oban_tasks"

    async def process(self, job: Any) -> None:
        """Count the job."""
        mark()


@asynccontextmanager
async def opened() -> AsyncIterator[None]:
    """Open a pool of connections."""
    async with await Oban.create_pool(URL, min_size=16, max_size=16) as pool:
        _opened["oban"] = Oban(pool=pool)
        yield


async def setup() -> None:
    """Create the tables."""
    async with await Oban.create_pool(URL) as pool:
        await schema.install(pool)


async def enqueue() -> None:
    """Enqueue a job."""
    await _opened["oban"].enqueue(Work.new())


async def enqueue_many(count: int) -> None:
    """Enqueue jobs in one transaction."""
    await _opened["oban"].enqueue_many(Work.new() for _ in range(count))


if __name__ == "__main__":
    main(enqueue, enqueue_many, setup=setup, opened=opened)
