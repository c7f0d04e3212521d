"""StreaQ on Valkey."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from common import SLOTS, URL, main, mark
from streaq import Worker

worker: Worker[None] = Worker(redis_url=URL, concurrency=SLOTS)


@worker.task(silent=True, ttl=0)
async def work() -> None:
    """Do nothing, and store no result, as the others on Valkey."""
    mark()


@asynccontextmanager
async def opened() -> AsyncIterator[None]:
    """Open the connections."""
    async with worker:
        yield


async def enqueue() -> None:
    """Enqueue a task."""
    await work.enqueue()


async def enqueue_many(count: int) -> None:
    """Enqueue tasks in one pipeline."""
    await worker.enqueue_many([work.enqueue() for _ in range(count)])


if __name__ == "__main__":
    main(enqueue, enqueue_many, opened=opened)
