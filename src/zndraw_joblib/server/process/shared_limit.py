"""Limits of what the users of a server process share: how much all may hold, and how much one of them."""

import asyncio
import math
import threading
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from zndraw_joblib.wire.problems import ContentTooLarge, ServiceUnavailable, TooManyRequests

# Of more users, the times of those that do not wait are forgotten.
_MAX_USERS = 10_000
# The longest pause between two counts of what is stored.
_MAX_PAUSE = 30.0


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


@dataclass(slots=True)
class SharedLimit:
    """All users together hold at most `limit()`, and one of them at most `share()`.

    `what` and `state` name the resource in problems: "requests", "wait". `settings` are the names of the
    settings of the limit and of the share. The user None is the server itself, which has no limit.
    """

    what: str
    state: str
    limit: Callable[[], int]
    share: Callable[[], int]
    settings: tuple[str, str]
    remedy: str = "retry later"
    retry_seconds: int = 5
    _held: Counter[str] = field(default_factory=Counter)
    _total: int = 0

    def __len__(self) -> int:
        return self._total

    def take(self, user: str | None, amount: int = 1) -> None:
        """Let a user hold more.

        Raises `ServiceUnavailable` beyond the limit, and `TooManyRequests` beyond the share.
        """
        if user is None:
            return
        headers = {"Retry-After": str(self.retry_seconds)}
        limit_setting, share_setting = self.settings
        if self._total + amount > self.limit():
            raise ServiceUnavailable(
                f"{self._total} {self.what} {self.state} already ({limit_setting}); {self.remedy}",
                headers=headers,
            )
        if (own := self._held[user]) + amount > self.share():
            raise TooManyRequests(
                f"{own} {self.what} of this caller {self.state} already, which is its share "
                f"({share_setting} of {limit_setting}); {self.remedy}",
                headers=headers,
            )
        self._held[user] += amount
        self._total += amount

    def give_back(self, user: str | None, amount: int = 1) -> None:
        """Let a user hold less."""
        if user is not None:
            self._total -= amount
            self._held[user] -= amount
            if self._held[user] <= 0:
                del self._held[user]

    @contextmanager
    def held(self, user: str | None, amount: int = 1) -> Iterator[None]:
        """Let a user hold more in a block. Raises as `take`."""
        self.take(user, amount)
        try:
            yield
        finally:
            self.give_back(user, amount)


@dataclass(slots=True)
class QueueLimit:
    """At most `limit` items wait in a queue, `share` of them for one user.

    The items of each user are counted in `counts`, only while at least a share waits, and again once `counts`
    is None: some items have left the queue.
    """

    limit: int
    share: int
    counts: Counter[str | None] | None = None

    def check(self, item: object, count: int, waiting: Iterable[object]) -> None:
        """Let an item wait after `count` others. `waiting` are these.

        Raises `ServiceUnavailable` beyond the limit, and `TooManyRequests` beyond the share.
        """
        headers = {"Retry-After": "1"}
        if count >= self.limit:
            detail = f"{self.limit} requests wait to be written already; retry later"
            raise ServiceUnavailable(detail, headers=headers)
        if (user := user_of(item)) is None:
            return
        if self.counts is None:
            self.counts = Counter(map(user_of, waiting))
        if (own := self.counts[user]) >= self.share:
            raise TooManyRequests(
                f"{own} requests of this caller wait to be written already, which is its share "
                "(max_share_per_user); retry later",
                headers=headers,
            )
        self.counts[user] += 1


def user_of(item: object) -> str | None:
    """Return the id of an item's caller, None if the item is the server's own."""
    caller = getattr(item, "caller", None)
    return None if caller is None else caller.id


@dataclass(slots=True)
class StoredLimit:
    """What users have in the database: together about `limit()`, and one of them `share()`.

    `count(enough)` reads how much there is, and how much each user has, or None for that if it is no more
    than `enough` in all. It runs in the background every 10 s, if something is added, and before a refusal.
    After a count there is a pause of at least `pauses[0]` seconds, and `pauses[1]` times as long as the count
    took, up to 30 s, unless it may have counted twice what the user added meanwhile. What this process has
    added since counts too, and what others have added does not.
    """

    what: str
    setting: str
    limit: Callable[[], int]
    share: Callable[[], int]
    count: Callable[[int], Coroutine[Any, Any, tuple[int, Mapping[str, int] | None]]]
    start: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
    retry_seconds: int = 10
    pauses: tuple[float, float] = (0.5, 20)
    _total: int = 0
    # What was counted without its users: it may all be of one.
    _unattributed: int = 0
    _by_user: Counter[str] = field(default_factory=Counter)
    # What was added since the last count began, which it may have missed.
    _added: Counter[str] = field(default_factory=Counter)
    # What was added during the last count, which it may have counted too.
    _twice: Counter[str] = field(default_factory=Counter)
    # The share when the last count began.
    _share: int = 0
    _counted_at: float = -math.inf
    _pause: float = 0
    _counting: asyncio.Task[None] | None = None
    # A transaction of SQLite adds in another thread.
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take_now(self, user: str, amount: int = 1) -> bool:
        """Let a user add so much if the last counts allow it. Return whether they do."""
        if time.monotonic() > self._counted_at + max(self.retry_seconds, self._pause):
            self._count(amount)
        return self._add(user, amount, self._share)

    async def take(self, user: str, amount: int = 1) -> None:
        """Let a user add so much; count again before a refusal.

        Raises `ContentTooLarge` for more than a user may ever have, `ServiceUnavailable` beyond the limit,
        and `TooManyRequests` beyond the share.
        """
        self._check_possible(amount)
        await self.prepare(user, amount)
        self.check(user, amount)

    async def prepare(self, user: str, amount: int = 1) -> None:
        """Count again if the last counts are old, or do not allow a user to add so much."""
        if time.monotonic() > self._counted_at + max(self.retry_seconds, self._pause):
            self._count(amount)
        is_due = time.monotonic() > self._counted_at + self._pause
        if (counting := self._counting) is not None:
            # It may count twice what is added before it ends.
            if not self._has_room(user, amount + self._added.total()):
                await asyncio.shield(counting)
        elif is_due and not self._has_room(user, amount):
            counting = self._count(amount)
            await asyncio.shield(counting)
        # A further count may miss what the user has added since and not committed.
        is_twice = 0 < self._twice[user] == self._added[user]
        may_be_others = counting is not None and self._unattributed > 0
        if (is_twice or may_be_others) and not self._has_room(user, amount):
            await asyncio.shield(self._count(amount))

    def check(self, user: str, amount: int = 1) -> None:
        """Let a user add so much by the last counts, also in another thread. Raises as `take` does."""
        if self._add(user, amount, self.share()):
            return
        self._check_possible(amount)
        wait = self._counted_at + self._pause - time.monotonic()
        headers = {"Retry-After": str(math.ceil(max(self.retry_seconds, wait)))}
        if self._total + amount > self.limit():
            raise ServiceUnavailable(
                f"there are {self._total} {self.what}, and at most {self.limit()} ({self.setting})"
                f"{self._remedy(amount)}",
                headers=headers,
            )
        raise TooManyRequests(
            f"{self._by_user[user]} {self.what} are of this caller, and its share is {self.share()} "
            f"(max_share_per_user of {self.setting}){self._remedy(amount)}",
            headers=headers,
        )

    def _check_possible(self, amount: int) -> None:
        """Raise `ContentTooLarge` for more than a user may ever have: a repeat is refused too."""
        largest, setting = self.limit(), self.setting
        if self.share() < largest:
            largest, setting = self.share(), f"max_share_per_user of {self.setting}"
        if amount > max(1, largest):
            raise ContentTooLarge(
                f"{amount} {self.what} are more than one caller may have, which is {largest} ({setting}): "
                f"send at most {largest} in one request, or ask the operator to raise {self.setting}"
            )

    @staticmethod
    def _remedy(amount: int) -> str:
        return (f"; {amount} more do not fit" if amount > 1 else "") + "; retry when there are fewer"

    def _has_room(self, user: str, amount: int) -> bool:
        own = self._unattributed + self._by_user[user]
        return self._total + amount <= self.limit() and own + amount <= self.share()

    def _add(self, user: str, amount: int, share: int) -> bool:
        """Let a user add so much if the last counts allow it. Return whether they do."""
        own = self._unattributed + self._by_user[user]
        if self._total + amount > self.limit() or own + amount > share:
            return False
        with self._lock:
            self._total += amount
            self._by_user[user] += amount
            self._added[user] += amount
        return True

    def _count(self, amount: int) -> asyncio.Task[None]:
        if self._counting is None:
            with self._lock:
                self._added.clear()
            self._share = self.share()
            self._counting = self.start(self._read(max(0, self._share - amount)))
        return self._counting

    async def _read(self, enough: int) -> None:
        start = self._counted_at = time.monotonic()
        try:
            total, by_user = await self.count(enough)
            with self._lock:
                self._total = total + self._added.total()
                self._by_user = Counter(by_user or {}) + self._added
                self._twice = self._added.copy()
                self._unattributed = total if by_user is None else 0
        finally:
            seconds = self.pauses[1] * (time.monotonic() - start)
            self._pause = min(max(self.pauses[0], seconds), _MAX_PAUSE)
            self._counting = None
