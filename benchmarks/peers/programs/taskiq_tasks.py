"""Taskiq with the stream broker of taskiq-redis, which acknowledges tasks, on Valkey."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from common import URL, main, mark
from taskiq_redis import RedisStreamBroker

broker = RedisStreamBroker(URL)


@broker.task(task_name="work")
async def work() -> None:
    """Do nothing."""
    mark()


@asynccontextmanager
async def opened() -> AsyncIterator[None]:
    """Open the broker."""
    await broker.startup()
    yield
    await broker.shutdown()


async def enqueue() -> None:
    """Enqueue a task."""
    await work.kiq()


if __name__ == "__main__":
    main(enqueue, opened=opened)
