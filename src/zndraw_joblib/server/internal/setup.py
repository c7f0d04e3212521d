"""Internal jobs of the standalone server: brokers in its process or over Redis, and worker processes."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import socketio
from redis.asyncio import Redis
from redis.exceptions import RedisError
from taskiq import BrokerMessage, InMemoryBroker, TaskiqEvents
from taskiq_redis import ListQueueBroker

from zndraw_joblib.server.db.engine import open_database
from zndraw_joblib.server.db.limits import Limits
from zndraw_joblib.server.internal import registry as extensions
from zndraw_joblib.server.internal.executor import GuardedExecutor
from zndraw_joblib.server.internal.registry import (
    InternalRegistry,
    offer_internal_jobs,
    offer_of,
    register_internal_tasks,
)
from zndraw_joblib.server.process.redis import connection_options, open_redis
from zndraw_joblib.server.process.settings import ServerSettings
from zndraw_joblib.server.realtime.redis_manager import RedisManager
from zndraw_joblib.server.runtime.runtime import Runtime

logger = logging.getLogger(__name__)

WAIT_SECONDS = 2
_PAUSE_SECONDS = 0.5


class EmbeddedBroker(InMemoryBroker):
    """Runs tasks in this process, `concurrency` at once, and takes up to `capacity`; the rest waits.

    The capacity is by default twice the concurrency. Other processes cannot run what waits here.

    It calls `on_free` when a task ends and a slot is free, not only a place among those that wait.
    """

    def __init__(
        self, concurrency: int, on_free: Callable[[], None] = lambda: None, capacity: int | None = None
    ) -> None:
        super().__init__(sync_tasks_pool_size=1, max_async_tasks=concurrency, await_inplace=True)
        self._capacity = capacity or 2 * concurrency
        # Half of them wait for a thread: then the dispatcher is woken for several at once.
        self._wakes_at = concurrency if capacity is None else capacity - 1
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
        if len(self._running) <= self._wakes_at:
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
                    item = await client.bzpopmin([self.queue_name], timeout=WAIT_SECONDS)
                    is_down = False
                    if item is not None:
                        yield item[1]
            except (RedisError, OSError) as error:
                level = logging.DEBUG if is_down else logging.WARNING
                logger.log(level, "Internal tasks wait, Redis is unavailable: %r", error)
                is_down = True
            finally:
                await client.aclose()
            await asyncio.sleep(_PAUSE_SECONDS)


# Internal jobs of the standalone server: run in its own process, or over Redis in worker processes.


@asynccontextmanager
async def internal_jobs(
    settings: ServerSettings,
    classes: Sequence[type[Any]],
    runtime: Runtime,
    wake_dispatcher: Callable[[], None],
) -> AsyncIterator[InternalRegistry]:
    """Offer the extensions `classes` as internal jobs while the context is open.

    Without `redis_url` their tasks run in this process, else in processes of `internal-worker`.
    """
    executor = GuardedExecutor(runtime, concurrency=settings.internal_concurrency)
    broker = (
        _queue(settings)
        if settings.redis_url
        else EmbeddedBroker(settings.internal_concurrency, on_free=wake_dispatcher)
    )
    async with _offered(broker, classes, executor, runtime) as registry:
        yield registry


@asynccontextmanager
async def app_jobs(
    classes: Sequence[type[Any]], concurrency: int, runtime: Runtime, wake_dispatcher: Callable[[], None]
) -> AsyncIterator[InternalRegistry]:
    """Offer the extensions `classes` as internal jobs that this process runs, while the context is open."""
    executor = GuardedExecutor(runtime, concurrency=concurrency, uses_loop=True)
    # No task waits here while another replica has a free slot.
    broker = EmbeddedBroker(concurrency, on_free=wake_dispatcher, capacity=concurrency)
    async with _offered(broker, classes, executor, runtime) as registry:
        yield registry


@asynccontextmanager
async def _offered(
    broker: QueueBroker | EmbeddedBroker,
    classes: Sequence[type[Any]],
    executor: GuardedExecutor,
    runtime: Runtime,
) -> AsyncIterator[InternalRegistry]:
    registry = await offer_internal_jobs(runtime.write, broker, classes, executor)
    await broker.startup()
    try:
        yield registry
    finally:
        await broker.shutdown()


def worker_broker(settings: ServerSettings) -> QueueBroker:
    """Return the broker of a process of internal tasks. Raises `CannotLoadJobs`, also without Redis."""
    if settings.redis_url is None:
        raise extensions.CannotLoadJobs(
            "redis_url is not set, so internal_extensions run inside the server; to run them in worker "
            "processes, set ZNDRAW_JOBLIB_REDIS_URL"
        )
    if not settings.internal_extensions:
        raise extensions.CannotLoadJobs(
            "internal_extensions is empty; set ZNDRAW_JOBLIB_INTERNAL_EXTENSIONS to module:Class, …"
        )
    classes = load_extensions(settings)
    # It only emits: no client connects to it.
    sio: Any = socketio.AsyncServer(
        client_manager=RedisManager(settings.redis_url, f"{settings.redis_prefix}:socketio")
    )
    database = open_database(settings.database_url, limits=Limits.of(settings))
    executor = GuardedExecutor(
        database, settings=settings, tsio=sio, concurrency=settings.internal_concurrency
    )
    broker = _queue(settings)
    register_internal_tasks(broker, classes, executor)

    async def close(_: object) -> None:
        await database.close()

    broker.add_event_handler(TaskiqEvents.WORKER_SHUTDOWN, close)
    return broker


def load_extensions(settings: ServerSettings) -> list[type[Any]]:
    """Return the classes of `internal_extensions`. Raises `CannotLoadJobs` for one that cannot be a job."""
    classes = extensions.load(settings.internal_extensions)
    for entry, cls in zip(settings.internal_extensions, classes, strict=False):
        try:
            offer_of(cls)
        except ValueError as error:
            raise extensions.CannotLoadJobs(f"internal_extensions: {entry!r}: {error}") from error
    return classes


def _queue(settings: ServerSettings) -> QueueBroker:
    return QueueBroker(str(settings.redis_url), f"{settings.redis_prefix}:internal:queue")
