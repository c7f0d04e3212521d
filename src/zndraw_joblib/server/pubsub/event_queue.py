"""Queue the events of committed transactions for their publisher, so that no write waits for it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from weakref import WeakKeyDictionary

from zndraw_joblib.contract.events import Emission
from zndraw_joblib.contract.logs import create_shared_task
from zndraw_joblib.server.pubsub.bounded_queue import BoundedQueue, Bounds
from zndraw_joblib.server.settings import JobLibSettings

logger = logging.getLogger(__name__)
Publish = Callable[[Sequence[Emission]], Awaitable[None]]
Entry = tuple[Publish, Emission]

# The size of an event without its texts.
_BYTES = 200
_EVENTS_PER_TURN = 100


class EventQueue:
    """Publishes events in order, in a task of its own, with a time limit for each.

    If a publisher fails or exceeds `publish_timeout_seconds`, the queue logs it and publishes the next event.
    The queue drops its oldest events beyond `max_queued_events` or `max_queued_event_bytes`.
    """

    def __init__(self, settings: JobLibSettings) -> None:
        self._settings = settings
        # A host's test client may run each request in an event loop of its own.
        self._queues: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopQueue] = WeakKeyDictionary()

    @property
    def dropped(self) -> int:
        """Return how many events were dropped because too many waited."""
        return sum(queue.waiting.dropped for queue in self._queues.values())

    def put(self, publish: Publish, emissions: Iterable[Emission]) -> None:
        """Publish events after those that wait already; return at once."""
        loop = asyncio.get_running_loop()
        queue = self._queues.get(loop)
        if queue is None:
            queue = self._queues[loop] = _LoopQueue(self._settings)
        queue.put(publish, emissions)

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
        self._failures = 0

    def _bounds(self) -> Bounds:
        settings = self._settings
        names = "; max_queued_events, max_queued_event_bytes"
        return Bounds(settings.max_queued_events, settings.max_queued_event_bytes, names)

    def put(self, publish: Publish, emissions: Iterable[Emission]) -> None:
        for emission in emissions:
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
                await asyncio.sleep(0)
        finally:
            self._publishing = None  # a task refers to its event loop

    async def _publish(self, publish: Publish, emission: Emission) -> None:
        limit = self._settings.publish_timeout_seconds
        try:
            async with asyncio.timeout(limit):
                await publish([emission])
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


def _size(entry: Entry) -> int:
    event = entry[1].event
    return _BYTES + sum(len(value) for value in event.__dict__.values() if isinstance(value, str))
