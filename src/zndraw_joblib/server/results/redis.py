"""The store of bytes in Redis or Valkey, shared by all server processes."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple
from uuid import uuid4

from redis.asyncio import BlockingConnectionPool, Redis
from redis.exceptions import RedisError

from zndraw_joblib.jobs.logs import ExponentialBackoff, create_shared_task
from zndraw_joblib.server.process.ports import PART_BYTES
from zndraw_joblib.server.process.redis import connection_options, open_redis, subscribed
from zndraw_joblib.server.results import stores
from zndraw_joblib.server.results.stores import Notifier
from zndraw_joblib.wire.problems import ProblemException, ServiceUnavailable

# A Lua script that limits the total size of the values.
#
# Keys: a sorted set of names by the time when they expire, and a hash of their sizes, in which the field
# with an empty name is the total. Arguments: a name, its size (0: it is deleted), its lifetime in ms, and the
# largest total. Redis may evict values by itself; they count until they would have expired.
ACCOUNT = """
local expiries, sizes, name = KEYS[1], KEYS[2], ARGV[1]
local size, ttl, limit = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function forget(each)
    local known = tonumber(redis.call('HGET', sizes, each) or 0)
    redis.call('HINCRBY', sizes, '', -known)
    redis.call('HDEL', sizes, each)
    redis.call('ZREM', expiries, each)
end

forget(name)
local expired = redis.call('ZRANGEBYSCORE', expiries, '-inf', now, 'LIMIT', 0, 1000)
for _, each in ipairs(expired) do forget(each) end
while tonumber(redis.call('HGET', sizes, '') or 0) + size > limit do
    local first = redis.call('ZRANGE', expiries, 0, 0)[1]
    if not first then break end
    redis.call('DEL', first, first .. ':version')
    forget(first)
end
if redis.call('ZCARD', expiries) == 0 then redis.call('DEL', sizes) end
if size > 0 then
    redis.call('ZADD', expiries, now + ttl, name)
    redis.call('HSET', sizes, name, size)
    redis.call('HINCRBY', sizes, '', size)
    for _, key in ipairs(KEYS) do
        if redis.call('PTTL', key) < ttl then redis.call('PEXPIRE', key, ttl) end
    end
end
return 0
"""


logger = logging.getLogger(__name__)

_CONNECTIONS = 16
_POOL_SECONDS = 10.0
# The longest pause between two chunks of a value that is being stored.
_DRAFT_MS = 60_000
_READ_ATTEMPTS = 5
_RETRY_AFTER = {"Retry-After": "1"}
_MAX_BYTES = 256 * 1024 * 1024
# Added to the size of each value, for its keys and records.
_VALUE_BYTES = 1024
Command = tuple[Any, ...]


class _LoopState(NamedTuple):
    """The connections and subscriptions of one event loop."""

    client: Any
    notifier: Notifier
    listeners: "list[asyncio.Task[None]]"


class RedisResults:
    """A `ResultBackend` and `StreamingBackend` in Redis, under keys that begin with ``{prefix}:``.

    Each event loop has at most 16 connections, and one more for the notifications of all its waiting
    callers. While Redis is unreachable every call raises `ServiceUnavailable`; callers that already wait
    continue to wait, and read again after the connection is back. A value over 1 MiB is stored in parts;
    ``{key}:version`` identifies the value, so that a reader does not mix parts of two values. All values
    together have at most `max_bytes()` bytes: those that expire first are removed, never the newest.
    """

    def __init__(self, url: str, prefix: str, max_bytes: Callable[[], int] = lambda: _MAX_BYTES) -> None:
        self._url = url
        self._prefix = prefix
        self._max_bytes = max_bytes
        self._loops: dict[asyncio.AbstractEventLoop, _LoopState] = {}

    async def store(self, key: str, data: bytes, ttl: int) -> None:
        """Store bytes under a key for `ttl` seconds."""
        if len(data) > PART_BYTES:
            await self.store_stream(key, stores.stream(data), ttl)
            return
        name = self._name(key)
        await self._execute(
            ("SET", name, data, "EX", ttl), ("DEL", _version(name)), self._account(name, len(data), ttl)
        )

    async def get(self, key: str) -> bytes | None:
        """Return the bytes of a key, or None."""
        for attempt in range(_READ_ATTEMPTS):
            opened = await self.open_stream(key)
            if opened is None:
                return None
            try:
                return b"".join([chunk async for chunk in opened[1]])
            except _ValueReplaced:
                if attempt == _READ_ATTEMPTS - 1:
                    raise
        return None

    async def delete(self, key: str) -> None:
        """Remove a key."""
        name = self._name(key)
        await self._execute(("DEL", name, _version(name)), self._account(name))

    async def acquire_inflight(self, key: str, ttl: int) -> bool:
        """Take a lock for at most `ttl` seconds. Return whether it was free."""
        return bool((await self._execute(("SET", self._name(key), "1", "NX", "PX", 1000 * ttl)))[0])

    async def release_inflight(self, key: str) -> None:
        """Release a lock."""
        await self._execute(("DEL", self._name(key)))

    async def wait_for_key(self, key: str, timeout: float) -> bytes | None:
        """Return the bytes of a key, waiting up to `timeout` seconds for a notification."""
        state = self._state()
        if not state.listeners or state.listeners[-1].done():
            state.listeners[:] = [create_shared_task(self._listen(state.notifier))]
        return await state.notifier.wait(key, timeout)

    async def notify_key(self, key: str) -> None:
        """Wake all callers that wait for a key, in all processes."""
        await self._execute(("PUBLISH", self._channel, key))

    async def store_stream(self, key: str, chunks: AsyncIterator[bytes], ttl: int) -> None:
        """Store the chunks under a key after the last one has come."""
        name, draft = self._name(key), self._name(f"draft:{uuid4()}")
        try:
            await self._execute(("SET", draft, b"", "PX", _DRAFT_MS))
            size = 0
            async for part in stores.rechunk(chunks):
                size += len(part)
                stored, _ = await self._execute(("APPEND", draft, part), ("PEXPIRE", draft, _DRAFT_MS))
                if stored != size:
                    raise _unavailable("Redis lost a part of the value while it was stored")
            version = ("SET", _version(name), uuid4().bytes, "EX", ttl)
            # RENAME keeps the expiry of the draft, so EXPIRE comes first.
            account = self._account(name, size, ttl)
            await self._execute(("EXPIRE", draft, ttl), ("RENAME", draft, name), version, account)
        except BaseException:
            with suppress(ServiceUnavailable):
                await self._execute(("DEL", draft))
            raise

    async def open_stream(self, key: str, start: int = 0) -> tuple[int, AsyncIterator[bytes]] | None:
        """Return the size of a value and its parts from `start` on.

        The iterator raises if the value is replaced.
        """
        name = self._name(key)
        exists, version, size, first = await self._execute(
            ("EXISTS", name),
            ("GET", _version(name)),
            ("STRLEN", name),
            ("GETRANGE", name, start, start + PART_BYTES - 1),
        )
        return (size, self._chunks(name, version, size, first, start)) if exists else None

    async def close(self) -> None:
        """Close the connections of the running event loop."""
        state = self._loops.pop(asyncio.get_running_loop(), None)
        if state is None:
            return
        for listener in state.listeners:
            while not listener.done():
                # The Redis client may take one cancellation for its own timeout.
                listener.cancel()
                await asyncio.wait([listener], timeout=1)
        await state.client.aclose()

    @property
    def notifier(self) -> Notifier:
        """The subscriptions of the running event loop."""
        return self._state().notifier

    async def _chunks(
        self, name: str, version: bytes | None, size: int, first: bytes, start: int
    ) -> AsyncIterator[bytes]:
        sent = start + len(first)
        if first:
            yield first
        while sent < size:
            current, part = await self._execute(
                ("GET", _version(name)), ("GETRANGE", name, sent, sent + PART_BYTES - 1)
            )
            if current != version or len(part) != min(PART_BYTES, size - sent):
                raise _ValueReplaced(
                    "The result was replaced while it was read; try again.", headers=_RETRY_AFTER
                )
            sent += len(part)
            yield part

    async def _listen(self, notifier: Notifier) -> None:
        backoff, task = ExponentialBackoff(0.05, 0.5, jitter=0), asyncio.current_task()
        while task is not None and not task.cancelling():
            client = open_redis(self._url)
            try:
                async for key in subscribed(client, self._channel, notifier.recheck):
                    backoff.reset()
                    notifier.notify(key.decode())
            except (RedisError, OSError) as error:
                level = logging.DEBUG if backoff.failures else logging.WARNING
                logger.log(level, "No notifications of provider results from Redis, retrying: %r", error)
            finally:
                await client.aclose()
            await asyncio.sleep(backoff.next())

    async def _execute(self, *commands: Command) -> list[Any]:
        """Run commands, several of them as one transaction. Raises `ServiceUnavailable`."""
        with _translated():
            async with self._state().client.pipeline(transaction=len(commands) > 1) as pipeline:
                for command in commands:
                    pipeline.execute_command(*command)
                replies: list[Any] = await pipeline.execute()
                return replies

    def _state(self) -> _LoopState:
        loop = asyncio.get_running_loop()
        state = self._loops.get(loop)
        if state is None:
            for other in [other for other in self._loops if other.is_closed()]:
                del self._loops[other]
            state = self._loops[loop] = _LoopState(_open_pooled(self._url), Notifier(self.get), [])
        return state

    @property
    def _channel(self) -> str:
        return f"{self._prefix}:results"

    def _account(self, name: str, size: int | None = None, ttl: int = 0) -> Command:
        """Return the command that records the size of a value (None: deleted) and evicts others if needed."""
        counted = 0 if size is None else size + _VALUE_BYTES
        keys = self._name("expiries"), self._name("sizes")
        return ("EVAL", ACCOUNT, 2, *keys, name, counted, 1000 * ttl, self._max_bytes())

    def _name(self, key: str) -> str:
        return f"{self._prefix}:{key}"


class _ValueReplaced(ServiceUnavailable):
    """The value was replaced or removed while a caller read its parts."""


def _version(name: str) -> str:
    return f"{name}:version"


def _open_pooled(url: str) -> Any:
    """Return a client with few connections; a command waits for a free one."""
    pool = BlockingConnectionPool.from_url(
        url,
        max_connections=_CONNECTIONS,
        timeout=_POOL_SECONDS,
        **connection_options(url),
        # With RESP3 the pool takes a closed connection for one with a message, and reuses it.
        protocol=2,
    )
    return Redis.from_pool(pool)


def _unavailable(problem: str) -> ServiceUnavailable:
    return ServiceUnavailable(f"{problem}; try again.", headers=_RETRY_AFTER)


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
        logger.warning("A command for provider results failed in Redis: %r", error)
        raise _unavailable("Redis, which stores the results of providers, is unavailable") from error
    _raise_if_cancelled(task, before)


def _raise_if_cancelled(task: asyncio.Task[Any] | None, before: int, error: Exception | None = None) -> None:
    """Raise the cancellation that the Redis client lost while it was sending."""
    if task is not None and task.cancelling() > before:
        raise asyncio.CancelledError from error
