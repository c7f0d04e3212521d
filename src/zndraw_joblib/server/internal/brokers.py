"""Brokers for internal tasks: one in this process, one over Redis."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable

from redis.exceptions import RedisError
from taskiq import BrokerMessage, InMemoryBroker
from taskiq_redis import ListQueueBroker

from zndraw_joblib.server.pubsub.redis import open_redis

logger = logging.getLogger(__name__)

_WAIT_SECONDS = 2
_PAUSE_SECONDS = 0.5


class EmbeddedBroker(InMemoryBroker):
    """Runs tasks in this process, and says how many more it takes.

    `on_free` is called when it has come to be half empty, which is when it is worth to look for more.
    """

    def __init__(self, concurrency: int) -> None:
        super().__init__(sync_tasks_pool_size=1, max_async_tasks=concurrency, await_inplace=True)
        self._most = 2 * concurrency
        self._open: set[asyncio.Task[None]] = set()
        self.on_free: Callable[[], None] = lambda: None

    def free(self) -> int:
        """Return how many tasks it takes now."""
        return self._most - len(self._open)

    async def kick(self, message: BrokerMessage) -> None:
        """Begin a task."""
        running = asyncio.create_task(super().kick(message))
        self._open.add(running)
        running.add_done_callback(self._end)

    def _end(self, running: "asyncio.Task[None]") -> None:
        self._open.discard(running)
        if 2 * len(self._open) <= self._most:
            self.on_free()


class QueueBroker(ListQueueBroker):
    """A list in Redis or Valkey. One that restarts is waited for.

    A list and not a stream: what was sent and not begun is in the database, and is sent again from there. A
    stream would hand a task that takes long to a second worker, keep a hundred in the hands of one that is
    killed, and need its group made anew after a restart without persistence.
    """

    def __init__(self, url: str, queue_name: str) -> None:
        super().__init__(url, queue_name=queue_name, socket_connect_timeout=_WAIT_SECONDS)
        self._url = url

    async def listen(self) -> AsyncGenerator[bytes, None]:
        """Give messages as they come, for ever."""
        is_away = False
        while True:
            client = open_redis(self._url)
            try:
                while True:
                    found = await client.brpop([self.queue_name], timeout=_WAIT_SECONDS)
                    is_away = False
                    if found is not None:
                        yield found[1]
            except (RedisError, OSError) as error:
                logger.log(
                    logging.DEBUG if is_away else logging.WARNING, "internal tasks wait for Redis: %r", error
                )
                is_away = True
            finally:
                await client.aclose()
            await asyncio.sleep(_PAUSE_SECONDS)
