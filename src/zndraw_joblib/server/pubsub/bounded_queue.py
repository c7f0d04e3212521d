"""A queue with bounds on the number and on the bytes of its items."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

logger = logging.getLogger(__name__)
Item = TypeVar("Item")
MAX_ITEMS = 10_000
MAX_BYTES = 16 * 1024 * 1024


class Bounds(NamedTuple):
    """The maximum number of items and of their bytes; `names` names the settings in the log."""

    items: int = MAX_ITEMS
    bytes: int = MAX_BYTES
    names: str = ""


class BoundedQueue(Generic[Item]):
    """A queue that drops its oldest items when it is full, for messages that are hints.

    `what` names the items in the log. The queue logs one line when it begins to drop items, and `log_drops`
    logs their number once the queue is empty. `dropped` counts all dropped items.
    """

    def __init__(self, what: str, size: Callable[[Item], int], bounds: Callable[[], Bounds] = Bounds) -> None:
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
