"""Brokers of internal tasks: one in this process, one over Redis."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable

from redis.asyncio import Redis
from redis.exceptions import RedisError
from taskiq import BrokerMessage, InMemoryBroker
from taskiq_redis import ListQueueBroker

from zndraw_joblib.server.pubsub.redis import connection_options, open_redis

logger = logging.getLogger(__name__)

_WAIT_SECONDS = 2
_PAUSE_SECONDS = 0.5


class EmbeddedBroker(InMemoryBroker):
    """Runs tasks in this process, at most twice `concurrency` at once, most of them waiting for a thread.

    It calls `on_free` when a task ends and at least half of its capacity is free.
    """

    def __init__(self, concurrency: int, on_free: Callable[[], None] = lambda: None) -> None:
        super().__init__(sync_tasks_pool_size=1, max_async_tasks=concurrency, await_inplace=True)
        self._capacity = 2 * concurrency
        self._running: set[asyncio.Task[None]] = set()
        self._on_free = on_free

    def free(self) -> int:
        """Return how many more tasks it takes now."""
        return self._capacity - len(self._running)

    async def kick(self, message: BrokerMessage) -> None:
        """Start a task."""
        running = asyncio.create_task(super().kick(message))
        self._running.add(running)
        running.add_done_callback(self._end)

    def _end(self, running: "asyncio.Task[None]") -> None:
        self._running.discard(running)
        if 2 * len(self._running) <= self._capacity:
            self._on_free()


class QueueBroker(ListQueueBroker):
    """A broker on a sorted set in Redis or Valkey, by priority and age. It reconnects after Redis was down.

    It is not a stream: the database keeps the tasks that were not started, and the dispatcher sends them
    again. A stream would deliver a long task to a second worker, lose a hundred prefetched messages with a
    killed worker, and need a new consumer group after Redis restarts without persistence.
    """

    orders_tasks = True

    def __init__(self, url: str, queue_name: str) -> None:
        super().__init__(url, queue_name=queue_name, **connection_options(url))
        self._url = url

    async def kick(self, message: BrokerMessage) -> None:
        """Add a message with its label `place` as its score; the lowest score is taken first."""
        place = float(message.labels.get("place") or 0)
        async with Redis(connection_pool=self.connection_pool) as client:
            await client.zadd(self.queue_name, {message.message: place})

    async def listen(self) -> AsyncGenerator[bytes, None]:
        """Yield messages as they arrive, without an end."""
        is_down = False
        while True:
            client = open_redis(self._url)
            try:
                while True:
                    found = await client.bzpopmin([self.queue_name], timeout=_WAIT_SECONDS)
                    is_down = False
                    if found is not None:
                        yield found[1]
            except (RedisError, OSError) as error:
                level = logging.DEBUG if is_down else logging.WARNING
                logger.log(level, "Internal tasks wait, Redis is unavailable: %r", error)
                is_down = True
            finally:
                await client.aclose()
            await asyncio.sleep(_PAUSE_SECONDS)
