"""Limits of what the users of a server process share: how much all may hold, and how much one of them."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from zndraw_joblib.contract.problems import ServiceUnavailable, TooManyRequests


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

    The items of each user are counted only while at least a share waits, once after each `forget`.
    """

    limit: int
    share: int
    _counts: Counter[str | None] | None = None

    def forget(self) -> None:
        """Count again before the next check, because items have left the queue."""
        self._counts = None

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
        if self._counts is None:
            self._counts = Counter(map(user_of, waiting))
        if (own := self._counts[user]) >= self.share:
            raise TooManyRequests(
                f"{own} requests of this caller wait to be written already, which is its share "
                "(max_share_per_user); retry later",
                headers=headers,
            )
        self._counts[user] += 1


def user_of(item: object) -> str | None:
    """Return the id of an item's caller, None if the item is the server's own."""
    caller = getattr(item, "caller", None)
    return None if caller is None else caller.id
