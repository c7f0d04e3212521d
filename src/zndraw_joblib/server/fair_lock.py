"""A lock for several users that is held for the same time by each of them."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

# Of more users, the times of those that do not wait are forgotten.
_MAX_USERS = 10_000


class FairLock:
    """An asynchronous lock. Of the users that wait, the one that held it for the shortest time is next.

    So a user waits for one request of each other user at most, however many these send. Requests of the
    same user are served in order. Times are forgotten when no request is left.
    """

    def __init__(self) -> None:
        self._is_held = False
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        # How long each user held the lock, and the lowest such time of those that waited last.
        self._seconds: dict[str, float] = {}
        self._lowest = 0.0

    @asynccontextmanager
    async def hold(self, user: str) -> AsyncIterator[None]:
        """Wait for the lock and hold it."""
        await self._acquire(user)
        start = time.monotonic()
        try:
            yield
        finally:
            self._seconds[user] += time.monotonic() - start
            self._release()

    async def _acquire(self, user: str) -> None:
        # A user that did not wait meanwhile gains nothing by it.
        self._seconds[user] = max(self._seconds.get(user, 0.0), self._lowest)
        if not self._is_held:
            self._is_held = True
            return
        future = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(user, deque()).append(future)
        try:
            await future
        except asyncio.CancelledError:
            if future.cancelled():
                self._remove(user, future)
            else:
                self._release()
            raise

    def _remove(self, user: str, future: asyncio.Future[None]) -> None:
        queue = self._waiting.get(user)
        if queue is not None and future in queue:
            queue.remove(future)
            if not queue:
                del self._waiting[user]

    def _release(self) -> None:
        while self._waiting:
            user = min(self._waiting, key=self._seconds.__getitem__)
            future = self._waiting[user][0]
            self._remove(user, future)
            if not future.done():
                self._lowest = self._seconds[user]
                future.set_result(None)
                if len(self._seconds) > _MAX_USERS:
                    self._seconds = {user: self._seconds[user] for user in (user, *self._waiting)}
                return
        self._is_held = False
        self._seconds.clear()
        self._lowest = 0.0
