"""Redis and Valkey: a line between replicas, and Socket.IO's events for the sockets of all of them."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import redis.asyncio
import socketio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

_TIMEOUT_SECONDS = 5.0
_PING_SECONDS = 5
_PAUSE_SECONDS = 0.5
_MAX_WAITING = 10_000


def open_redis(url: str) -> Any:
    """Return a client that fails soon instead of trying again by itself: whoever asks knows better when."""
    return redis.asyncio.Redis.from_url(
        url,
        socket_connect_timeout=_TIMEOUT_SECONDS,
        socket_keepalive=True,
        health_check_interval=_PING_SECONDS,
        retry=Retry(NoBackoff(), 0),
    )


class Subscription:
    """Sends texts to all who listen on a channel, ourselves too."""

    frame_size = 1_000_000

    def __init__(self, client: Any, channel: str) -> None:
        self._client = client
        self._channel = channel

    async def send(self, text: str) -> None:
        """Send ASCII text of at most `frame_size` characters."""
        await self._client.publish(self._channel, text)

    async def listen(self, hear: Callable[[str], None], ready: Callable[[], None]) -> None:
        """Give every text to `hear`, from `ready` on. Raises what the client raises when it is cut off."""
        async for data in subscribed(self._client, self._channel, ready):
            hear(data.decode())


@asynccontextmanager
async def redis_line(url: str, channel: str) -> AsyncIterator[Subscription]:
    """Open a line between replicas over a Redis channel."""
    client = open_redis(url)
    try:
        yield Subscription(client, channel)
    finally:
        await client.aclose()


async def subscribed(client: Any, channel: str, ready: Callable[[], None]) -> AsyncIterator[bytes]:
    """Return what is published on a channel from the call of `ready` on. Raises when it is cut off."""
    async with client.pubsub() as pubsub:
        await pubsub.subscribe(channel)
        task = asyncio.current_task()
        while task is None or not task.cancelling():  # the client may take a cancellation for a time-out
            # The pings between two looks show a connection that died without a word.
            message = await pubsub.get_message(timeout=_PING_SECONDS) or {"type": None}
            if message["type"] == "subscribe":
                ready()
            elif message["type"] == "message":
                yield message["data"]


class RedisManager(socketio.AsyncRedisManager):  # type: ignore[misc]
    """python-socketio's Redis manager, which does not keep whoever emits waiting for Redis.

    Events for other processes wait in line, at most 10,000, and go out in their order, as many as there are
    at once. While Redis is away the oldest are dropped: an event is a hint.
    """

    def __init__(self, url: str, channel: str) -> None:
        super().__init__(url, channel=channel)
        self._waiting: deque[str] = deque(maxlen=_MAX_WAITING)
        self._is_waiting = asyncio.Event()
        self._flushing: asyncio.Task[None] | None = None

    async def _publish(self, data: dict[str, Any]) -> None:
        self._waiting.append(self.json.dumps(data))
        if self._flushing is None or self._flushing.done():
            self._is_waiting = asyncio.Event()
            self._flushing = asyncio.create_task(self._flush())
        self._is_waiting.set()

    async def _flush(self) -> None:
        client = open_redis(self.redis_url)
        try:
            while await self._is_waiting.wait():
                await self._send_waiting(client)
        finally:
            await client.aclose()

    async def _send_waiting(self, client: Any) -> None:
        texts = list(self._waiting)
        self._waiting.clear()
        self._is_waiting.clear()
        pipeline = client.pipeline(transaction=False)
        for text in texts:
            pipeline.publish(self.channel, text)
        try:
            await pipeline.execute()
        except (redis.RedisError, OSError) as error:
            self._get_logger().warning("events wait for Redis: %r", error)
            await asyncio.sleep(_PAUSE_SECONDS)
            newer = list(self._waiting)
            self._waiting.clear()
            self._waiting.extend([*texts, *newer])
            self._is_waiting.set()

    async def _listen(self) -> AsyncIterator[bytes]:
        while True:
            client = open_redis(self.redis_url)
            try:
                async for data in subscribed(client, self.channel, _nothing):
                    yield data
            except (redis.RedisError, OSError) as error:
                self._get_logger().warning("no events from Redis: %r", error)
                await asyncio.sleep(_PAUSE_SECONDS)
            finally:
                await client.aclose()


def _nothing() -> None: ...
