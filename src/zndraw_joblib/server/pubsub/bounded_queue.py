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
    """The largest number of items and of their bytes; `names` says in the log how to change them."""

    items: int = MAX_ITEMS
    bytes: int = MAX_BYTES
    names: str = ""


class BoundedQueue(Generic[Item]):
    """A queue that drops its oldest items when it is full, for messages that are hints.

    `what` names the items in the log: one line when the queue begins to drop, and one with their number when
    `log_drops` finds it empty. `dropped` counts all of them.
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
            logger.warning("%d %s were dropped", self.dropped - self._logged, self._what)
            self._logged = self.dropped

    def _drop_oldest(self) -> None:
        bounds, before = self._bounds(), self.dropped
        while len(self._items) > bounds.items or self._bytes > bounds.bytes:
            self._bytes -= self._items.popleft()[1]
            self.dropped += 1
        if before == self._logged < self.dropped:
            logger.warning(
                "Too many %s wait (more than %d, or than %d bytes%s): the oldest are dropped",
                self._what,
                bounds.items,
                bounds.bytes,
                bounds.names,
            )
