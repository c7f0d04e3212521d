"""Hints between the replicas of a server: which waiters to wake, and messages for their Socket.IO clients."""

import asyncio
import json
import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from sys import getsizeof
from typing import Any, Generic, NamedTuple, TypeVar
from uuid import uuid4

from zndraw_joblib.jobs.logs import ExponentialBackoff, create_shared_task
from zndraw_joblib.server.process.ports import OpenConnection, PubSubConnection, Wake
from zndraw_joblib.server.process.settings import JobLibSettings

logger = logging.getLogger(__name__)
Item = TypeVar("Item")
MAX_ITEMS = 10_000
MAX_BYTES = 16 * 1024 * 1024


class QueueBounds(NamedTuple):
    """The maximum number of items and of their bytes; `names` names the settings in the log."""

    items: int = MAX_ITEMS
    bytes: int = MAX_BYTES
    names: str = ""


class BoundedQueue(Generic[Item]):
    """A queue that drops its oldest items when it is full, for messages that are hints.

    `what` names the items in the log. The queue logs one line when it begins to drop items, and `log_drops`
    logs their number once the queue is empty. `dropped` counts all dropped items.
    """

    def __init__(
        self, what: str, size: Callable[[Item], int], bounds: Callable[[], QueueBounds] = QueueBounds
    ) -> None:
        self._what = what
        self._size = size
        self._bounds = bounds
        self._items: deque[tuple[Item, int]] = deque()
        self._bytes = self._logged = 0
        self._lock = threading.Lock()
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: Item) -> None:
        """Add an item, and drop the oldest while there are too many."""
        size = self._size(item)
        with self._lock:
            self._items.append((item, size))
            self._bytes += size
            self._drop_oldest()

    def put_back(self, items: Sequence[Item]) -> None:
        """Add items before all others, in their order."""
        sized = [(item, self._size(item)) for item in items]
        with self._lock:
            self._items.extendleft(reversed(sized))
            self._bytes += sum(size for _, size in sized)
            self._drop_oldest()

    def pop(self) -> Item:
        """Remove and return the oldest item. Raises IndexError."""
        with self._lock:
            item, size = self._items.popleft()
            self._bytes -= size
        return item

    def pop_all(self) -> list[Item]:
        """Remove and return all items, the oldest first."""
        with self._lock:
            items = [item for item, _ in self._items]
            self._items.clear()
            self._bytes = 0
        return items

    def log_drops(self) -> None:
        """Log how many items were dropped, once the queue is empty again."""
        if self.dropped > self._logged and not self._items:
            logger.warning("Dropped %d %s", self.dropped - self._logged, self._what)
            self._logged = self.dropped

    def _drop_oldest(self) -> None:
        bounds, before = self._bounds(), self.dropped
        while len(self._items) > bounds.items or self._bytes > bounds.bytes:
            self._bytes -= self._items.popleft()[1]
            self.dropped += 1
        if before == self._logged < self.dropped:
            logger.warning(
                "Too many %s wait (more than %d, or more than %d bytes%s): dropping the oldest",
                self._what,
                bounds.items,
                bounds.bytes,
                bounds.names,
            )


# Hints between the replicas, over a connection of any kind.

_HELLO_SECONDS = 10.0
_PEER_TIMEOUT_SECONDS = 25.0
_SEND_SECONDS = 5.0
# Between two messages. Messages published in between go with the second.
_PAUSE_SECONDS = 0.002
_MAX_FRAGMENTED = 64
_HEADER_SIZE = 64


class PubSub:
    """Exchanges hints with the other replicas over a connection that is reopened when it is lost.

    Everything published while a message is sent goes into the next one, so a busy replica sends few. While
    no other replica is there, it sends only a greeting now and then. Everything is bounded: instead of more
    than `max_keys` wake-ups, it sends a request to re-check all waiters. A new connection starts with one.
    """

    def __init__(
        self,
        wake: Callable[[str, int | None], Any],
        recheck: Callable[[], Awaitable[None]],
        max_keys: int = 2_000,
    ) -> None:
        self._wake = wake
        self._recheck = recheck
        self._max_keys = max_keys
        self._subscribers: list[Callable[[str], None]] = []
        self._name = ""
        self._number = 0
        # The names of the replicas that sent something lately, and when.
        self.peers: dict[str, float] = {}
        self._wakes: dict[str, int | None] = {}
        self._messages: BoundedQueue[str] = BoundedQueue("messages to other servers", getsizeof)
        self._must_recheck = False
        # The unfinished message of each sender: its number and its parts.
        self._fragments: OrderedDict[str, tuple[str, list[str]]] = OrderedDict()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready: asyncio.Event | None = None
        self._rechecking: asyncio.Task[None] | None = None
        self.is_open = self._is_closing = self._is_stopped = False

    def forward(self, wakes: Sequence[Wake]) -> None:
        """Let the other replicas wake waiters of their own."""
        if not self.peers:
            return
        for key, limit in wakes:
            total = self._wakes.get(key, 0)
            self._wakes[key] = None if limit is None or total is None else total + limit
        if len(self._wakes) > self._max_keys:
            self._wakes.clear()
            self._must_recheck = True
        self._notify_sender()

    def publish(self, text: str) -> None:
        """Send a text to the subscribers at each other replica, in order. The oldest are dropped first."""
        if self.peers:
            self._messages.put(text)
            self._notify_sender()

    def subscribe(self, receive: Callable[[str], None]) -> None:
        """Call `receive` with each text that another replica publishes."""
        self._subscribers.append(receive)

    async def run(self, open_connection: OpenConnection) -> None:
        """Keep a connection open until cancelled. One cancellation is enough."""
        self._is_stopped = False
        # Made here: a fork may have copied this object to several processes.
        self._name = uuid4().hex[:12]
        keeping = asyncio.create_task(self._keep_open(open_connection))
        try:
            await asyncio.wait([keeping])
        finally:
            self._is_stopped = True
            while not keeping.done():
                # redis-py can swallow a cancellation while it sends.
                if not self._is_closing:
                    keeping.cancel()
                await asyncio.wait([keeping], timeout=1)

    async def _keep_open(self, open_connection: OpenConnection) -> None:
        self._loop, self._ready = asyncio.get_running_loop(), asyncio.Event()
        backoff = ExponentialBackoff(first=0.05, longest=2.0, jitter=0.5)
        while not self._is_stopped:
            began = time.monotonic()
            try:
                async with open_connection() as connection:
                    await self._use(connection)
            except Exception as error:
                if time.monotonic() - began > _HELLO_SECONDS:
                    backoff.reset()
                level = logging.DEBUG if backoff.failures else logging.WARNING
                logger.log(level, "Lost the pub/sub connection, will reopen it: %r", error)
            self.is_open = self._is_closing = False
            await asyncio.sleep(backoff.next())

    async def _use(self, connection: PubSubConnection) -> None:
        async with asyncio.TaskGroup() as group:
            is_listening = asyncio.Event()
            listening = group.create_task(connection.listen(self.receive, is_listening.set))
            async with asyncio.timeout(_SEND_SECONDS):
                await is_listening.wait()
            self.is_open = True
            self._begin_recheck()
            try:
                await self._send_all(connection, {"hello": True})
            finally:
                self._is_closing = True
                listening.cancel()
                with suppress(Exception):
                    async with asyncio.timeout(1):
                        await connection.send(self._frames({"bye": True}, connection.frame_size)[0])
                while not listening.done():
                    # redis-py can swallow a cancellation as a timeout.
                    listening.cancel()
                    await asyncio.wait([listening], timeout=1)

    async def _send_all(self, connection: PubSubConnection, first: dict[str, Any]) -> None:
        message = first
        assert self._ready is not None  # noqa: S101 - set by `run`
        while True:
            for frame in self._frames(message, connection.frame_size):
                async with asyncio.timeout(_SEND_SECONDS):
                    await connection.send(frame)
            self._messages.log_drops()
            await asyncio.sleep(_PAUSE_SECONDS)
            with suppress(TimeoutError):
                async with asyncio.timeout(_HELLO_SECONDS):
                    await self._ready.wait()
            self._ready.clear()
            self._drop_silent_peers()
            message = self._next_message()

    def _next_message(self) -> dict[str, Any]:
        """Return everything that waits to be sent. An empty message is a greeting too."""
        message: dict[str, Any] = {}
        if self._wakes:
            message["wake"], self._wakes = self._wakes, {}
        if self._messages:
            message["posts"] = self._messages.pop_all()
        if self._must_recheck:
            message["look"], self._must_recheck = True, False
        return message

    def _frames(self, message: dict[str, Any], size: int) -> list[str]:
        self._number += 1
        text, body_size = json.dumps(message, separators=(",", ":")), size - _HEADER_SIZE
        parts = [text[start : start + body_size] for start in range(0, len(text), body_size)]
        return [f"{self._name} {self._number} {len(parts)} {part}" for part in parts]

    def receive(self, frame: str) -> None:
        """Pass on the message of another process, once all its frames have come."""
        # Other programs may publish on the channel: ignore texts that are not frames.
        with suppress(ValueError, TypeError, AttributeError):
            sender, number, count, part = frame.split(" ", 3)
            if sender == self._name:
                return
            last_number, parts = self._fragments.pop(sender, ("", []))
            if last_number != number:
                parts = []
            parts.append(part)
            if len(parts) < int(count):
                self._fragments[sender] = number, parts
                if len(self._fragments) > _MAX_FRAGMENTED:
                    self._fragments.popitem(last=False)
                return
            self._handle(sender, json.loads("".join(parts)))

    def _handle(self, sender: str, message: dict[str, Any]) -> None:
        if message.get("bye"):
            self.peers.pop(sender, None)
            return
        self.peers[sender] = time.monotonic()
        if message.get("hello"):
            self._notify_sender()
        for key, limit in message.get("wake", {}).items():
            self._wake(key, limit)
        for text in message.get("posts", ()):
            for receive in self._subscribers:
                receive(text)
        if message.get("look"):
            self._begin_recheck()

    def _drop_silent_peers(self) -> None:
        oldest = time.monotonic() - _PEER_TIMEOUT_SECONDS
        for name in [name for name, last_seen in self.peers.items() if last_seen <= oldest]:
            del self.peers[name]

    def _begin_recheck(self) -> None:
        if self._rechecking is None or self._rechecking.done():
            self._rechecking = create_shared_task(self._recheck_and_log())

    async def _recheck_and_log(self) -> None:
        try:
            await self._recheck()
        except Exception as error:
            logger.warning("Did not re-check waiting requests: %r", error)

    def _notify_sender(self) -> None:
        if self._loop is None or self._ready is None:
            return
        if asyncio.get_running_loop() is self._loop:
            self._ready.set()
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._ready.set)


async def connection_factory(
    settings: JobLibSettings, database_factory: Callable[[], Awaitable[OpenConnection | None]]
) -> OpenConnection | None:
    """Return what opens a connection to the other replicas; None on SQLite, which has no notifications.

    With `redis_url` it is Redis, else `database_factory()`.
    """
    if settings.redis_url is None:
        return await database_factory()
    from zndraw_joblib.server.process.redis import open_redis_connection  # noqa: PLC0415 - few servers need it

    return partial(open_redis_connection, settings.redis_url, f"{settings.redis_prefix}:pubsub")
