"""Redis and Valkey: a line between replicas, and Socket.IO's events for the sockets of all of them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

_TIMEOUT_SECONDS = 5.0
_PING_SECONDS = 5


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
async def open_redis_connection(url: str, channel: str) -> AsyncIterator[Subscription]:
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
