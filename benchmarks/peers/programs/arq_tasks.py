"""Arq on Valkey."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

from arq import create_pool
from arq.connections import RedisSettings
from common import SLOTS, URL, main, mark

_opened: dict[str, Any] = {}


async def work(context: Any) -> None:
    """Do nothing."""
    mark()


class WorkerSettings:
    """More than the defaults (10 jobs at once, a read every 0.5 s): with these a worker runs 200 jobs/s."""

    functions: ClassVar = [work]
    redis_settings = RedisSettings.from_dsn(URL)
    max_jobs = SLOTS
    poll_delay = 0.01
    log_results = False


@asynccontextmanager
async def opened() -> AsyncIterator[None]:
    """Open a pool of connections."""
    _opened["pool"] = await create_pool(WorkerSettings.redis_settings)
    yield
    await _opened["pool"].aclose()


async def enqueue() -> None:
    """Enqueue a job."""
    await _opened["pool"].enqueue_job("work")


if __name__ == "__main__":
    main(enqueue, opened=opened)
