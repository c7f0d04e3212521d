"""SAQ on Valkey or PostgreSQL."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from common import SLOTS, URL, main, mark
from saq import Queue

queue = Queue.from_url(URL)


async def work(context: Any) -> None:
    """Do nothing."""
    mark()


settings = {"queue": queue, "functions": [work], "concurrency": SLOTS}


@asynccontextmanager
async def opened() -> AsyncIterator[None]:
    """Open the connections, and create the tables of PostgreSQL."""
    await queue.connect()
    yield
    await queue.disconnect()


async def enqueue() -> None:
    """Enqueue a job."""
    await queue.enqueue("work")


if __name__ == "__main__":
    main(enqueue, setup=lambda: None, opened=opened)
