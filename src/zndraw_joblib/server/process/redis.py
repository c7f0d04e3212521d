"""Connections to Redis or Valkey, and pub/sub between replicas over one of its channels."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

# How long a response may take. A blocking read must be shorter.
REDIS_SECONDS = 5.0
_PING_SECONDS = 5.0


def connection_options(url: str) -> dict[str, Any]:
    """Return the options of every connection. A connection has timeouts, and does not retry by itself."""
    options = {
        "socket_connect_timeout": REDIS_SECONDS,
        "socket_timeout": REDIS_SECONDS,
        "retry": Retry(NoBackoff(), 0),
    }
    return options if url.startswith("unix://") else {**options, "socket_keepalive": True}


def open_redis(url: str) -> Any:
    """Return a client that fails fast and does not retry by itself: its callers decide when to retry."""
    return redis.asyncio.Redis.from_url(url, **connection_options(url))


class RedisConnection:
    """A `PubSubConnection` over a Redis channel. A sender receives its own texts too."""

    frame_size = 1_000_000

    def __init__(self, client: Any, channel: str) -> None:
        self._client = client
        self._channel = channel

    async def send(self, text: str) -> None:
        """Send ASCII text of at most `frame_size` characters."""
        await self._client.publish(self._channel, text)

    async def listen(self, receive: Callable[[str], None], ready: Callable[[], None]) -> None:
        """Call `receive` with every text sent after `ready`. Raise the client's error when it disconnects."""
        async for data in subscribed(self._client, self._channel, ready):
            receive(data.decode())


@asynccontextmanager
async def open_redis_connection(url: str, channel: str) -> AsyncIterator[RedisConnection]:
    """Open a pub/sub connection over a Redis channel."""
    client = open_redis(url)
    try:
        yield RedisConnection(client, channel)
    finally:
        await client.aclose()


async def subscribed(client: Any, channel: str, ready: Callable[[], None]) -> AsyncIterator[bytes]:
    """Yield what is published on a channel after `ready` was called. Raise when the connection is lost."""
    async with client.pubsub() as pubsub:
        await pubsub.subscribe(channel)
        task, is_asked = asyncio.current_task(), False
        while task is None or not task.cancelling():  # redis-py can swallow a cancellation as a timeout
            message = await pubsub.get_message(timeout=_PING_SECONDS)
            if message is None:
                if is_asked:
                    raise redis.TimeoutError(
                        f"Redis has not responded to a ping for {_PING_SECONDS:g} s: the connection is lost"
                    )
                await pubsub.ping()
            elif message["type"] == "subscribe":
                ready()
            elif message["type"] == "message":
                yield message["data"]
            is_asked = message is None
