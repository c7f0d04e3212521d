"""The Socket.IO client manager that carries events between server processes over Redis or Valkey."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

import redis.asyncio
import socketio

from zndraw_joblib.server.pubsub.redis import open_redis, subscribed

_PAUSE_SECONDS = 0.5
_MAX_WAITING = 10_000


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
