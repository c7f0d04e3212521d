"""Those that wait for something to happen, in the order they came. A waiter holds no database session."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from zndraw_joblib.contract.problems import ServiceUnavailable
from zndraw_joblib.server.ports import Wake

# Done once the client that waits for the answer has hung up.
Disconnected = asyncio.Future[None] | None


class Waiter:
    """One that waits under some keys. It registers first, checks second, sleeps third."""

    __slots__ = ("_future", "_looks_for", "_loop", "_owes", "_woken", "is_dismissed", "keys")

    def __init__(self, keys: Sequence[str]) -> None:
        self.keys = tuple(keys)
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[None] | None = None
        self._woken = False
        self._owes: str | None = None
        self._looks_for: str | None = None
        self.is_dismissed = False

    async def sleep(self, seconds: float, gone: Disconnected = None) -> bool:
        """Sleep until woken, for `seconds`, or until the client is gone. Tell whether it was woken."""
        if self._woken:
            return True
        self._future = self._loop.create_future()
        timer = self._loop.call_later(seconds, self._rise)
        if gone is not None:
            gone.add_done_callback(self._rise)
        try:
            await self._future
        finally:
            timer.cancel()
            self._future = None
        return self._woken

    def wake(self, key: str | None = None) -> None:
        """Wake it. With a key, for one thing under that key, which is passed on if it is not used."""
        self._woken = True
        self._owes = key
        if self._future is not None:
            self._loop.call_soon_threadsafe(self._rise)

    def begin_look(self) -> None:
        """Turn the wake-up, if there was one, into a look; another may come meanwhile."""
        self._looks_for, self._owes, self._woken = self._owes, None, False

    def found(self, key: str | None) -> None:
        """Note what the look found: something under `key`, or None for nothing."""
        if key is None or key == self._looks_for:
            self._looks_for = None

    def settle(self) -> list[str]:
        """Return the keys of wake-ups that were not used; ask once."""
        owed = [key for key in (self._looks_for, self._owes) if key is not None]
        self._looks_for = self._owes = None
        return owed

    def dismiss(self) -> None:
        """Wake it for good: another takes its place."""
        self.is_dismissed = True
        self.wake()

    @property
    def is_woken(self) -> bool:
        """Whether a wake-up came since the last look began."""
        return self._woken

    def _rise(self, _: object = None) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)


def _drop(_: Sequence[Wake]) -> None:
    """Pass nothing on: there is no other process."""


class Waiters:
    """All waiters of a process. `limit` tells how many there may be; `pass_on` gets what woke nobody."""

    def __init__(self, limit: Callable[[], int], pass_on: Callable[[Sequence[Wake]], None] = _drop) -> None:
        self._limit = limit
        self._pass_on = pass_on
        self._queues: dict[str, OrderedDict[Waiter, None]] = {}
        self._count = 0
        self.is_closed = False

    def __len__(self) -> int:
        return self._count

    @contextmanager
    def enter(self, keys: Sequence[str]) -> Iterator[Waiter]:
        """Stand in line under each key. What the waiter was woken for and did not use is passed on.

        Raises `ServiceUnavailable` when there are too many already.
        """
        if self._count >= self._limit():
            raise ServiceUnavailable(
                f"{self._count} requests wait already (setting max_waiting_requests); ask without waiting",
                headers={"Retry-After": "5"},
            )
        waiter = Waiter(keys)
        self._count += 1
        self._stand(waiter)
        try:
            yield waiter
        finally:
            self._count -= 1
            for key in waiter.keys:
                self._remove(key, waiter)
            self.notify([Wake(owed, 1) for owed in waiter.settle()])

    def evict_oldest(self, key: str, most: int) -> None:
        """Dismiss those that have slept longest on a key, so that one more is not more than `most`."""
        queue = self._queues.get(key) or OrderedDict()
        for waiter in list(queue)[: max(0, len(queue) + 1 - most)]:
            for other in waiter.keys:
                self._remove(other, waiter)
            waiter.dismiss()

    def look(self, waiter: Waiter) -> None:
        """Call before each look at the database.

        The waiter is in line again, at its old place: what is committed after the look wakes it.
        """
        waiter.begin_look()
        self._stand(waiter, first=True)

    def wake(self, key: str, count: int | None = None) -> int:
        """Wake the first `count` under a key, or all of them. Return how many more could have been woken."""
        queue = self._queues.get(key) or OrderedDict()
        present = len(queue)
        for _ in range(present if count is None else min(count, present)):
            waiter = next(iter(queue))
            for other in waiter.keys:
                self._remove(other, waiter)
            waiter.wake(None if count is None else key)
        return 0 if count is None else max(0, count - present)

    def notify(self, wakes: Sequence[Wake]) -> None:
        """Wake whom a commit concerns; what is left of it is passed on."""
        left = []
        for key, count in wakes:
            missing = self.wake(key, count)
            if count is None or missing:
                left.append(Wake(key, None if count is None else missing))
        if left:
            self._pass_on(left)

    def has(self, key: str) -> bool:
        """Tell whether somebody sleeps on a key."""
        return key in self._queues

    @property
    def waited_keys(self) -> list[str]:
        """The keys under which somebody sleeps."""
        return list(self._queues)

    def open(self) -> None:
        """Let waiters in; also again, after a stop."""
        self.is_closed = False

    def close(self) -> None:
        """Wake everybody for good: the server stops."""
        self.is_closed = True
        for key in self.waited_keys:
            self.wake(key)

    def _stand(self, waiter: Waiter, *, first: bool = False) -> None:
        for key in waiter.keys:
            queue = self._queues.setdefault(key, OrderedDict())
            if waiter not in queue:
                queue[waiter] = None
                if first:
                    queue.move_to_end(waiter, last=False)

    def _remove(self, key: str, waiter: Waiter) -> None:
        queue = self._queues.get(key)
        if queue is not None:
            queue.pop(waiter, None)
            if not queue:
                del self._queues[key]
