"""Queue the events of committed transactions for their publisher, so that no write waits for it."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from weakref import WeakKeyDictionary

from zndraw_joblib.jobs.logs import create_shared_task
from zndraw_joblib.server.process.pubsub import BoundedQueue, QueueBounds
from zndraw_joblib.server.process.settings import JobLibSettings
from zndraw_joblib.server.process.waiters import in_time
from zndraw_joblib.wire.events import Emission, TaskAvailable

logger = logging.getLogger(__name__)
Publish = Callable[[Sequence[Emission]], Awaitable[None]]
Entry = tuple[Publish, Emission]

# The size of an event without its texts.
_BYTES = 200
_EVENTS_PER_TURN = 100
_MOST_ROOM_SECONDS = 5.0
# A transaction with more events has one `task_available` for each room of sockets: it wakes all workers.
_MANY_EVENTS = 200


class EventQueue:
    """Publishes events in order, in a task of its own, with a time limit for each.

    If a publisher fails or exceeds `publish_timeout_seconds`, the queue logs it and publishes the next event.
    The queue drops its oldest events beyond `max_queued_events` or `max_queued_event_bytes`. A request that
    writes many tasks waits in `room` before it writes, so that the publisher keeps up with it.
    """

    def __init__(self, settings: JobLibSettings) -> None:
        self._settings = settings
        # A host's test client may run each request in an event loop of its own.
        self._queues: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopQueue] = WeakKeyDictionary()

    @property
    def dropped(self) -> int:
        """Return how many events were dropped because too many waited."""
        return sum(queue.waiting.dropped for queue in self._queues.values())

    def put(self, publish: Publish, emissions: Sequence[Emission]) -> None:
        """Publish events after those that wait already; return at once."""
        self._here().put(publish, emissions)

    @asynccontextmanager
    async def room(self, events: int) -> AsyncGenerator[None]:
        """Wait until the queue has room for the events of a write, for 5 seconds at most; then write.

        It does not wait while the publisher fails, nor if nothing else is in the queue.
        """
        queue = self._here()
        await queue.reserve(events)
        try:
            yield
        finally:
            queue.release(events)

    def _here(self) -> "_LoopQueue":
        loop = asyncio.get_running_loop()
        queue = self._queues.get(loop)
        if queue is None:
            queue = self._queues[loop] = _LoopQueue(self._settings)
        return queue

    async def close(self, seconds: float) -> None:
        """Wait at most `seconds` until all events are published, and drop the rest."""
        queue = self._queues.get(asyncio.get_running_loop())
        if queue is not None:
            await queue.close(seconds)


class _LoopQueue:
    """The events of one event loop."""

    def __init__(self, settings: JobLibSettings) -> None:
        self._settings = settings
        self.waiting: BoundedQueue[Entry] = BoundedQueue("events", _size, self._bounds)
        self._publishing: asyncio.Task[None] | None = None
        self._failures = self._reserved = 0
        self._reserving: deque[asyncio.Future[None]] = deque()

    def _bounds(self) -> QueueBounds:
        settings = self._settings
        names = "; max_queued_events, max_queued_event_bytes"
        return QueueBounds(settings.max_queued_events, settings.max_queued_event_bytes, names)

    async def reserve(self, events: int) -> None:
        deadline = time.monotonic() + _MOST_ROOM_SECONDS
        while not self._has_room(events) and (seconds := deadline - time.monotonic()) > 0:
            reserving: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._reserving.append(reserving)
            await asyncio.wait([reserving], timeout=seconds)
        self._reserved += events

    def release(self, events: int) -> None:
        self._reserved -= events
        self._wake()

    def _has_room(self, events: int) -> bool:
        # The other half is for the events of all other requests.
        reserved, limit = len(self.waiting) + self._reserved, self._settings.max_queued_events // 2
        return reserved == 0 or self._failures > 0 or reserved + events <= limit

    def _wake(self) -> None:
        """Let requests that wait for room look again, the first one first."""
        while self._reserving:
            reserving = self._reserving.popleft()
            if not reserving.done():
                reserving.set_result(None)

    def put(self, publish: Publish, emissions: Sequence[Emission]) -> None:
        for emission in emissions if len(emissions) <= _MANY_EVENTS else _condensed(emissions):
            self.waiting.put((publish, emission))
        if self.waiting and (self._publishing is None or self._publishing.done()):
            self._publishing = create_shared_task(self._publish_all(), name="zndraw-joblib events")

    async def close(self, seconds: float) -> None:
        publishing = self._publishing
        if publishing is None:
            return
        await asyncio.wait([publishing], timeout=seconds)
        if not publishing.done():
            logger.warning("Stopped with %d events that were not published", 1 + len(self.waiting))
            self.waiting.pop_all()
            publishing.cancel()

    async def _publish_all(self) -> None:
        try:
            while self.waiting:
                for _ in range(min(_EVENTS_PER_TURN, len(self.waiting))):
                    if self.waiting:
                        await self._publish(*self.waiting.pop())
                self.waiting.log_drops()
                self._wake()
                await asyncio.sleep(0)
        finally:
            self._publishing = None  # a task refers to its event loop

    async def _publish(self, publish: Publish, emission: Emission) -> None:
        limit = self._settings.publish_timeout_seconds
        try:
            await in_time(publish([emission]), asyncio.get_running_loop().time() + limit)
        except TimeoutError:
            level = logging.DEBUG if self._failures else logging.WARNING
            self._failures += 1
            logger.log(
                level,
                "Event not published within %g s (publish_timeout_seconds): event=%s room=%s",
                limit,
                emission.event.event_name,
                emission.room,
            )
        except Exception:
            logger.exception(
                "Event not published: event=%s room=%s", emission.event.event_name, emission.room
            )
        else:
            self._failures = 0


def _condensed(emissions: Sequence[Emission]) -> list[Emission]:
    """Return the events with one `task_available` for each room, the first."""
    first: set[str] = set()
    condensed = []
    for emission in emissions:
        if isinstance(emission.event, TaskAvailable):
            if emission.room in first:
                continue
            first.add(emission.room)
        condensed.append(emission)
    return condensed


def _size(entry: Entry) -> int:
    event = entry[1].event
    return _BYTES + sum(len(value) for value in event.__dict__.values() if isinstance(value, str))
