"""The Socket.IO client manager that carries events between server processes over Redis."""

import asyncio
import logging
from collections.abc import AsyncIterator
from sys import getsizeof
from typing import Any

import redis

from zndraw_joblib.jobs.logs import create_shared_task
from zndraw_joblib.server.process.pubsub import BoundedQueue
from zndraw_joblib.server.process.redis import open_redis, subscribed
from zndraw_joblib.server.realtime.socketio_internals import MessageManager

logger = logging.getLogger(__name__)

_PAUSE_SECONDS = 0.5


class RedisManager(MessageManager):
    """A client manager like python-socketio's own for Redis, but an `emit` never waits for Redis.

    Messages for other processes are queued, and sent in order, all queued ones together. While Redis is
    unreachable the queue keeps the newest 10,000 messages, at most 16 MiB, and drops older ones, because an
    event is a hint.
    """

    name = "redis"

    def __init__(self, url: str, channel: str) -> None:
        super().__init__(channel=channel)
        self._url = url
        self._messages: BoundedQueue[str] = BoundedQueue("Socket.IO messages to Redis", getsizeof)
        self._has_messages = asyncio.Event()
        self._sending: asyncio.Task[None] | None = None
        self._failed_batches = 0

    def send(self, text: str) -> None:
        """Queue a message for the other processes."""
        self._messages.put(text)
        if self._sending is None or self._sending.done():
            self._has_messages = asyncio.Event()
            self._sending = create_shared_task(self._send_messages())
        self._has_messages.set()

    async def _send_messages(self) -> None:
        client = open_redis(self._url)
        try:
            while await self._has_messages.wait():
                await self._send_batch(client)
        finally:
            await client.aclose()

    async def _send_batch(self, client: Any) -> None:
        batch = self._messages.pop_all()
        self._has_messages.clear()
        pipeline = client.pipeline(transaction=False)
        for text in batch:
            pipeline.publish(self.channel, text)
        try:
            await pipeline.execute()
            self._failed_batches = 0
            self._messages.log_drops()
        except (redis.RedisError, OSError) as error:
            level = logging.DEBUG if self._failed_batches else logging.WARNING
            logger.log(level, "Socket.IO events were not sent to Redis, retrying: %r", error)
            self._failed_batches += 1
            await asyncio.sleep(_PAUSE_SECONDS)
            self._messages.put_back(batch)
            self._has_messages.set()

    async def receive(self) -> AsyncIterator[bytes]:
        """Return the messages of the other processes as they come."""
        failures = 0

        def on_subscribed() -> None:
            nonlocal failures
            failures = 0

        while True:
            client = open_redis(self._url)
            try:
                async for message in subscribed(client, self.channel, on_subscribed):
                    yield message
            except (redis.RedisError, OSError) as error:
                level = logging.DEBUG if failures else logging.WARNING
                logger.log(level, "No Socket.IO events from Redis, retrying: %r", error)
                failures += 1
                await asyncio.sleep(_PAUSE_SECONDS)
            finally:
                await client.aclose()
