"""Results of providers in Redis or Valkey, for all server processes."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple
from uuid import uuid4

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from zndraw_joblib.contract.problems import ProblemException, ServiceUnavailable
from zndraw_joblib.server.ports import PART_BYTES
from zndraw_joblib.server.providers.results.notifier import Bells, parts_of, streamed
from zndraw_joblib.server.pubsub.redis import open_redis, subscribed

logger = logging.getLogger(__name__)

_CONNECTIONS = 16
_TIMEOUT_SECONDS = 5.0
_POOL_SECONDS = 10.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 0.5
# Between two chunks of what is stored.
_DRAFT_MS = 60_000
_READS = 5
Command = tuple[Any, ...]


class _Side(NamedTuple):
    """What belongs to one event loop: connections, and who waits."""

    client: Any
    bells: Bells
    listening: "list[asyncio.Task[None]]"


class RedisResults:
    """A `ResultBackend` and `StreamingBackend` in Redis, under keys that begin with ``{prefix}:``.

    Each event loop has at most 16 connections, and one more on which all who wait listen together. While
    Redis is away all raise `ServiceUnavailable`, but who waits already goes on waiting, and looks again
    once it is back. More than 1 MiB goes in parts; ``{key}:version`` tells one value from the next.
    """

    def __init__(self, url: str, prefix: str) -> None:
        self._url = url
        self._prefix = prefix
        self._sides: dict[asyncio.AbstractEventLoop, _Side] = {}

    async def store(self, key: str, data: bytes, ttl: int) -> None:
        """Keep bytes under a key for `ttl` seconds."""
        if len(data) > PART_BYTES:
            await self.store_stream(key, streamed(data), ttl)
            return
        name = self._name(key)
        await self._ask(("SET", name, data, "EX", ttl), ("DEL", _version(name)))

    async def get(self, key: str) -> bytes | None:
        """Return what is kept under a key."""
        for attempt in range(_READS):
            opened = await self.open_stream(key)
            if opened is None:
                return None
            try:
                return b"".join([chunk async for chunk in opened[1]])
            except ServiceUnavailable as gone:
                if not isinstance(gone, _Replaced) or attempt == _READS - 1:
                    raise
        return None

    async def delete(self, key: str) -> None:
        """Forget what is kept under a key."""
        await self._ask(("DEL", self._name(key), _version(self._name(key))))

    async def acquire_inflight(self, key: str, ttl: int) -> bool:
        """Take a lock for at most `ttl` seconds; tell whether it was free."""
        return bool((await self._ask(("SET", self._name(key), "1", "NX", "PX", 1000 * ttl)))[0])

    async def release_inflight(self, key: str) -> None:
        """Give the lock back."""
        await self._ask(("DEL", self._name(key)))

    async def wait_for_key(self, key: str, timeout: float) -> bytes | None:
        """Return what is kept under a key, waiting up to `timeout` seconds for a notice."""
        side = self._side()
        if not side.listening or side.listening[-1].done():
            side.listening[:] = [asyncio.create_task(self._listen(side.bells))]
        return await side.bells.wait(key, timeout)

    async def notify_key(self, key: str) -> None:
        """Wake everybody who waits for a key, in all processes."""
        await self._ask(("PUBLISH", self._channel, key))

    async def store_stream(self, key: str, chunks: AsyncIterator[bytes], ttl: int) -> None:
        """Keep the chunks under a key once the last one is there."""
        name, draft = self._name(key), self._name(f"draft:{uuid4()}")
        try:
            await self._ask(("SET", draft, b"", "PX", _DRAFT_MS))
            size = 0
            async for part in parts_of(chunks):
                size += len(part)
                kept, _ = await self._ask(("APPEND", draft, part), ("PEXPIRE", draft, _DRAFT_MS))
                if kept != size:
                    raise _unavailable("Redis lost a part of what was being stored")
            version = ("SET", _version(name), uuid4().bytes, "EX", ttl)
            # In this order: the name takes over what the draft has, its end too.
            await self._ask(("EXPIRE", draft, ttl), ("RENAME", draft, name), version)
        except BaseException:
            with suppress(ServiceUnavailable):
                await self._ask(("DEL", draft))
            raise

    async def open_stream(self, key: str) -> tuple[int, AsyncIterator[bytes]] | None:
        """Return the size of what is kept, and its bytes. The iterator raises if they go meanwhile."""
        name = self._name(key)
        exists, version, size, first = await self._ask(
            ("EXISTS", name),
            ("GET", _version(name)),
            ("STRLEN", name),
            ("GETRANGE", name, 0, PART_BYTES - 1),
        )
        return (size, self._chunks(name, version, size, first)) if exists else None

    async def close(self) -> None:
        """Let go of the connections of this event loop."""
        side = self._sides.pop(asyncio.get_running_loop(), None)
        if side is None:
            return
        for listening in side.listening:
            while not listening.done():
                # A client of Redis may take a cancellation for the end of its own patience.
                listening.cancel()
                await asyncio.wait([listening], timeout=1)
        await side.client.aclose()

    async def _chunks(
        self, name: str, version: bytes | None, size: int, first: bytes
    ) -> AsyncIterator[bytes]:
        given = len(first)
        if first:
            yield first
        while given < size:
            known, part = await self._ask(
                ("GET", _version(name)), ("GETRANGE", name, given, given + PART_BYTES - 1)
            )
            if known != version or len(part) != min(PART_BYTES, size - given):
                raise _Replaced("The result was replaced while it was read; ask again.", headers=_SOON)
            given += len(part)
            yield part

    async def _listen(self, bells: Bells) -> None:
        pause, task = _FIRST_PAUSE, asyncio.current_task()
        while task is not None and not task.cancelling():
            client = open_redis(self._url)
            try:
                async for key in subscribed(client, self._channel, bells.stir):
                    pause = _FIRST_PAUSE
                    bells.ring(key.decode())
            except (RedisError, OSError) as error:
                say = logger.warning if pause == _FIRST_PAUSE else logger.debug
                say("no notices from Redis, which will be asked again: %r", error)
            finally:
                await client.aclose()
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _ask(self, *commands: Command) -> list[Any]:
        """Run commands, several as one transaction. Raises `ServiceUnavailable`."""
        with _translated():
            async with self._side().client.pipeline(transaction=len(commands) > 1) as pipeline:
                for command in commands:
                    pipeline.execute_command(*command)
                answers: list[Any] = await pipeline.execute()
                return answers

    def _side(self) -> _Side:
        loop = asyncio.get_running_loop()
        side = self._sides.get(loop)
        if side is None:
            for other in [known for known in self._sides if known.is_closed()]:
                del self._sides[other]
            side = self._sides[loop] = _Side(_open_pooled(self._url), Bells(self.get), [])
        return side

    @property
    def _channel(self) -> str:
        return f"{self._prefix}:results"

    def _name(self, key: str) -> str:
        return f"{self._prefix}:{key}"


class _Replaced(ServiceUnavailable):
    """What was being read is no longer kept as it was."""


_SOON = {"Retry-After": "1"}


def _version(name: str) -> str:
    return f"{name}:version"


def _open_pooled(url: str) -> Any:
    """Return a client with few connections, for which whoever asks more at once waits in line."""
    pool = BlockingConnectionPool.from_url(
        url,
        max_connections=_CONNECTIONS,
        timeout=_POOL_SECONDS,
        socket_connect_timeout=_TIMEOUT_SECONDS,
        socket_timeout=_TIMEOUT_SECONDS,
        socket_keepalive=True,
        retry=Retry(NoBackoff(), 0),
        # With RESP3 the pool takes the end of a connection for a message, and hands it out again.
        protocol=2,
    )
    return Redis.from_pool(pool)


def _unavailable(what: str) -> ServiceUnavailable:
    return ServiceUnavailable(f"{what}; try again.", headers=_SOON)


@contextmanager
def _translated() -> Iterator[None]:
    task = asyncio.current_task()
    before = task.cancelling() if task is not None else 0
    try:
        yield
    except (RedisError, OSError) as error:
        if isinstance(error, ProblemException):
            raise
        _raise_if_cancelled(task, before, error)
        logger.warning("Redis does not do what results need: %r", error)
        raise _unavailable("The results of providers cannot be reached") from error
    _raise_if_cancelled(task, before)


def _raise_if_cancelled(task: asyncio.Task[Any] | None, before: int, error: Exception | None = None) -> None:
    """Cancel where the client did not: while it sends, it may lose a cancellation."""
    if task is not None and task.cancelling() > before:
        raise asyncio.CancelledError from error
