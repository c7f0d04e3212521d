"""Requests that wait for a wake-up, in order of arrival, and work with a time limit.

A waiter holds no database session.
"""

import asyncio
import itertools
import time
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import inf
from types import coroutine
from typing import Any, NamedTuple, Protocol, TypeVar
from uuid import UUID

from zndraw_joblib.server.process.ports import BEFORE, Wake, identity_key, parsed_before, worker_key
from zndraw_joblib.server.process.settings import JobLibSettings
from zndraw_joblib.server.process.shared_limit import SharedLimit

Result = TypeVar("Result")
# Done once the client that waits for the response has disconnected.
Disconnected = asyncio.Future[None] | None


# The seconds for which a task waits for claims of workers that are to get it before others, at other servers.
_BEFORE_SECONDS = 0.25


async def _refuse_nothing() -> Collection[str]:
    return ()


class CallerAccess(NamedTuple):
    """The access of a caller, which may end while its request waits.

    `check` raises once it has ended; call it before the request gets anything. It returns the rooms whose
    jobs or providers the caller's worker must not serve. A wake-up of one of `keys` requests a check; without
    one it is due after `check_seconds`. Without a `user` the request is one of the server's own.
    """

    user: str | None = None
    check: Callable[[], Awaitable[Collection[str]]] = _refuse_nothing
    check_seconds: float = inf

    def wait(self, disconnected: Disconnected) -> "Wait | None":
        """Return what waits until the next check is due; None for the plain wait."""
        if self.check_seconds == inf:
            return None
        return lambda waiter, seconds: waiter.wait(min(seconds, self.check_seconds), disconnected)

    @property
    def keys(self) -> list[str]:
        """The keys to wait on."""
        return [] if self.user is None else [identity_key(self.user)]


OPEN = CallerAccess()


class KeySet:
    """Keys on which many waiters wait: their index is built once, so a wait costs the same for any number."""

    __slots__ = ("keys",)

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self.keys = tuple(keys)


NO_KEYS = KeySet()


class Waiter:
    """One waiting request and the keys it waits on. It registers first, checks second, waits third.

    `number` grows with every waiter: the queues are in the order of the numbers.
    """

    __slots__ = (
        *("_checked_for", "_future", "_loop", "_unused", "_woken", "is_evicted", "keys", "number", "shared"),
    )

    def __init__(self, keys: Sequence[str], number: int, shared: KeySet = NO_KEYS) -> None:
        self.keys = tuple(keys)
        self.shared = shared
        self.number = number
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[None] | None = None
        self._woken = False
        self._unused: str | None = None
        self._checked_for: str | None = None
        self.is_evicted = False

    async def wait(self, seconds: float, disconnected: Disconnected = None) -> bool:
        """Wait for a wake-up, `seconds`, or the client's disconnect. Return whether it was woken."""
        if self._woken:
            return True
        self._future = self._loop.create_future()
        timer = self._loop.call_later(seconds, self._resume) if seconds < inf else None
        if disconnected is not None:
            disconnected.add_done_callback(self._resume)
        try:
            await self._future
        finally:
            if timer is not None:
                timer.cancel()
            self._future = None
        return self._woken

    def wake(self, key: str | None = None) -> None:
        """Wake it. With a key, for one item under that key; an unused wake-up goes to the next waiter."""
        self._woken = True
        self._unused = key
        if self._future is not None:
            self._loop.call_soon_threadsafe(self._resume)

    def begin_check(self) -> None:
        """Consume the wake-up, if there was one; another may arrive during the check."""
        self._checked_for, self._unused, self._woken = self._unused, None, False

    def record(self, key: str | None) -> None:
        """Record what the check found: an item under `key`, or None for nothing."""
        if key is None or key == self._checked_for:
            self._checked_for = None

    def take_unused(self) -> list[str]:
        """Return the keys of wake-ups that were not used, once."""
        unused = [key for key in (self._checked_for, self._unused) if key is not None]
        self._checked_for = self._unused = None
        return unused

    def evict(self) -> None:
        """End its wait: another waiter takes its slot."""
        self.is_evicted = True
        self.wake()

    @property
    def is_woken(self) -> bool:
        """Whether a wake-up arrived since the last check began."""
        return self._woken

    @property
    def is_waiting(self) -> bool:
        """Whether it is between two checks, waiting for a wake-up."""
        return self._future is not None

    def _resume(self, _: object = None) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)


class Wait(Protocol):
    """Waits once, between two checks, for at most `seconds`."""

    async def __call__(self, waiter: Waiter, seconds: float, /) -> object:
        """Return when a new check may find something, or after `seconds`."""


def wait_at_most(seconds: float, disconnected: Disconnected, wait: Wait | None) -> Wait:
    """Return what waits as `wait`, or plainly without one, but at most `seconds` at once."""

    async def wait_some(waiter: Waiter, rest: float, /) -> None:
        shortest = min(rest, seconds)
        await (waiter.wait(shortest, disconnected) if wait is None else wait(waiter, shortest))

    return wait_some


def waiting_requests(settings: JobLibSettings) -> SharedLimit:
    """Return the limit of waiting requests that the settings set."""
    return SharedLimit(
        "requests",
        "wait",
        lambda: settings.max_waiting_requests,
        lambda: settings.share_of(settings.max_waiting_requests),
        ("max_waiting_requests", "max_share_per_user"),
        "send the request without 'Prefer: wait', or retry it later",
    )


def _forward_nothing(_: Sequence[Wake]) -> None:
    """Forward nothing: there is no other process."""


class Waiters:
    """All waiters of a process, for the users of `limit`.

    `forward` gets the unused wake-ups while there are `peers`, other processes. Sets of keys without waiters
    stay, because their workers wait again; they have at most `max_idle_keys` together.
    """

    def __init__(
        self,
        limit: SharedLimit,
        forward: Callable[[Sequence[Wake]], None] = _forward_nothing,
        peers: Collection[str] = (),
        max_idle_keys: int = 10_000,
    ) -> None:
        self._limit = limit
        self._max_idle_keys = max_idle_keys
        self._forward, self._peers = forward, peers
        self._queues: dict[str, list[Waiter]] = {}
        # The waiters of each set of keys, and the sets of each key. Sets stay for the next wait.
        self.waiters_of: dict[KeySet, list[Waiter]] = {}
        self.sets_of: dict[str, list[KeySet]] = {}
        self._idle: dict[KeySet, None] = {}
        self._idle_keys = 0
        self._numbers = itertools.count()
        self._subscribers: list[tuple[str, Callable[[str], None]]] = []
        self._prefixes: tuple[str, ...] = ()
        self._count = 0
        self._skipped_seconds = 0.0
        self.is_closed = False
        # The event loop of the server's lifespan, None before its start.
        self.loop: asyncio.AbstractEventLoop | None = None

    def __len__(self) -> int:
        return self._count

    async def wait_until(  # noqa: PLR0913 - what the wait is for, and when it ends
        self,
        keys: Sequence[str],
        check: Callable[[Waiter], Awaitable[Result]],
        is_done: Callable[[Result], bool],
        *,
        deadline: float,
        user: str | None = None,
        disconnected: Disconnected = None,
        wait: Wait | None = None,
        shared: KeySet = NO_KEYS,
    ) -> Result | None:
        """Register under all keys, then check and wait in turns; return the first result that `is_done`.

        After `deadline`, by `time`, or once the server stops, return the last result as it is.
        Return None where the client disconnected or a newer request took the slot. `wait` replaces the
        plain wait. `user` waits; without one it is the server, which has no limit.
        Raises `ServiceUnavailable` and `TooManyRequests` when too many requests wait.
        """
        with self.register(keys, user, shared) as waiter:
            while True:
                self.begin_check(waiter)
                result = await check(waiter)
                seconds = deadline - self.time()
                if is_done(result) or seconds <= 0 or self.is_closed:
                    return result
                await (waiter.wait(seconds, disconnected) if wait is None else wait(waiter, seconds))
                if waiter.is_evicted or (disconnected is not None and disconnected.done()):
                    return None

    @contextmanager
    def register(
        self, keys: Sequence[str], user: str | None = None, shared: KeySet = NO_KEYS
    ) -> Iterator[Waiter]:
        """Add a waiter to the queue of each key. At the end, its unused wake-ups go to the next waiters.

        Raises `ServiceUnavailable` and `TooManyRequests` when too many requests wait.
        """
        self._limit.take(user)
        waiter = Waiter(keys, next(self._numbers), shared)
        self._count += 1
        self._enqueue(waiter)
        try:
            yield waiter
        finally:
            self._count -= 1
            self._limit.give_back(user)
            self._remove(waiter)
            self.notify([Wake(unused, 1) for unused in waiter.take_unused()])

    def subscribe(self, prefix: str, notify: Callable[[str], None]) -> None:
        """Call `notify(key)` at each wake-up of a key that begins with `prefix`."""
        self._subscribers.append((prefix, notify))
        self._prefixes = (*self._prefixes, prefix)

    def evict_oldest(self, key: str, limit: int) -> None:
        """End the oldest waiters of a key, so that with one more there are at most `limit`."""
        queue = self._queues.get(key, [])
        for waiter in queue[: max(0, len(queue) + 1 - limit)]:
            self._remove(waiter)
            waiter.evict()

    def begin_check(self, waiter: Waiter) -> None:
        """Put a waiter back into its queues, at its old position, before it checks the database.

        Changes that are committed after the check began wake it again.
        """
        waiter.begin_check()
        self._enqueue(waiter)

    def wake(self, key: str, count: int | None = None) -> int:
        """Wake the first `count` waiters of a key, or all. Return how many more could have been woken."""
        if key.startswith(self._prefixes):
            for prefix, notify in self._subscribers:
                if key.startswith(prefix):
                    notify(key)
        queue = self._waiting_on(key)
        if not queue:
            return max(0, count or 0)
        present = len(queue)
        for waiter in queue[: present if count is None else max(0, count)]:
            self._remove(waiter)
            waiter.wake(None if count is None else key)
        return 0 if count is None else max(0, count - present)

    def wake_before(self, key: str, count: int, worker_ids: Collection[UUID]) -> int:
        """Wake the first `count` claims of these workers. Return how many more could have been woken."""
        own = {worker_key(worker_id) for worker_id in worker_ids}
        chosen = [waiter for waiter in self._waiting_on(key) if not own.isdisjoint(waiter.keys)]
        for waiter in chosen[:count]:
            self._remove(waiter)
            waiter.wake(key)
        return max(0, count - len(chosen))

    def notify(self, wakes: Sequence[Wake]) -> None:
        """Wake the waiters that a commit concerns; forward the wake-ups that are left.

        A `before_key` names claims that may wait at another server: others are woken a little later.
        """
        forwarded = []
        for name, limit in _summed(wakes):
            key, count = name, limit
            if name.startswith(BEFORE):
                key, worker_ids = parsed_before(name)
                count = self.wake_before(key, limit or 0, worker_ids)
                if count and self._peers:
                    forwarded.append(Wake(name, count))
                    asyncio.get_running_loop().call_later(_BEFORE_SECONDS, self.notify, [Wake(key, count)])
                    continue
            missing = self.wake(key, count)
            if count is None or missing:
                forwarded.append(Wake(key, None if count is None else missing))
        if forwarded and self._peers:
            self._forward(forwarded)

    def has(self, key: str) -> bool:
        """Return whether a waiter waits on a key."""
        return bool(self._waiting_on(key))

    @property
    def waiting_count(self) -> int:
        """How many waiters are between two checks."""
        queues = itertools.chain(self._queues.values(), self.waiters_of.values())
        return len({waiter for queue in queues for waiter in queue if waiter.is_waiting})

    @property
    def waited_keys(self) -> list[str]:
        """The keys on which waiters wait."""
        shared = (keys.keys for keys, queue in self.waiters_of.items() if queue)
        return list(dict.fromkeys(itertools.chain(self._queues, *shared)))

    def is_over(self, deadline: float, disconnected: Disconnected) -> bool:
        """Return whether a request waits no longer: its client or its time is gone, or the server stops."""
        is_gone = disconnected is not None and disconnected.done()
        return is_gone or self.time() >= deadline or self.is_closed

    def time(self) -> float:
        """Return the time of deadlines: monotonic seconds, and those that a test clock has skipped."""
        return time.monotonic() + self._skipped_seconds

    def skip(self, seconds: float) -> None:
        """Let these seconds have passed for all waits, and let each check whether it is over."""
        self._skipped_seconds += seconds
        for key in self.waited_keys:
            self.wake(key)

    def open(self) -> None:
        """Accept waiters, also again after a stop."""
        self.is_closed = False
        self.loop = asyncio.get_running_loop()

    def close(self) -> None:
        """End all waits: the server stops."""
        self.is_closed = True
        for key in self.waited_keys:
            self.wake(key)

    def _waiting_on(self, key: str) -> Sequence[Waiter]:
        """Return the waiters of a key in order."""
        own = self._queues.get(key, ())
        sets = self.sets_of.get(key)
        if sets is None:
            return own
        queues = [queue for queue in (own, *(self.waiters_of[keys] for keys in sets)) if queue]
        return queues[0] if len(queues) == 1 else sorted(itertools.chain(*queues), key=_number_of)

    def _enqueue(self, waiter: Waiter) -> None:
        for key in waiter.keys:
            _insert(self._queues.setdefault(key, []), waiter)
        if waiter.shared.keys:
            _insert(self._queue_of(waiter.shared), waiter)

    def _queue_of(self, keys: KeySet) -> list[Waiter]:
        queue = self.waiters_of.get(keys)
        if queue is None:
            queue = self.waiters_of[keys] = []
            for key in keys.keys:
                self.sets_of.setdefault(key, []).append(keys)
        elif keys in self._idle:
            del self._idle[keys]
            self._idle_keys -= len(keys.keys)
        return queue

    def _remove(self, waiter: Waiter) -> None:
        for key in waiter.keys:
            queue = self._queues.get(key)
            if queue is not None:
                _delete(queue, waiter)
                if not queue:
                    del self._queues[key]
        queue = self.waiters_of.get(waiter.shared)
        if queue:
            _delete(queue, waiter)
            if not queue:
                self._idle[waiter.shared] = None
                self._idle_keys += len(waiter.shared.keys)
                self._drop_idle()

    def _drop_idle(self) -> None:
        """Drop the sets that had no waiters for the longest time."""
        while self._idle_keys > self._max_idle_keys:
            keys = next(iter(self._idle))
            del self._idle[keys], self.waiters_of[keys]
            self._idle_keys -= len(keys.keys)
            for key in keys.keys:
                sets = self.sets_of[key]
                sets.remove(keys)
                if not sets:
                    del self.sets_of[key]


def _summed(wakes: Sequence[Wake]) -> Iterable[Wake]:
    """Return one wake-up for each key, in the order of the first ones: each costs a search of the waiters."""
    if len(wakes) == 1:
        return wakes
    limit_of: dict[str, int | None] = {}
    for key, limit in wakes:
        others = limit_of.get(key, 0)
        limit_of[key] = None if limit is None or others is None else others + limit
    return [Wake(key, limit) for key, limit in limit_of.items()]


def _insert(queue: list[Waiter], waiter: Waiter) -> None:
    index = _index(queue, waiter)
    if queue[index : index + 1] != [waiter]:
        queue.insert(index, waiter)


def _delete(queue: list[Waiter], waiter: Waiter) -> None:
    index = _index(queue, waiter)
    del queue[index : index + (queue[index : index + 1] == [waiter])]


def _index(queue: Sequence[Waiter], waiter: Waiter) -> int:
    return bisect_left(queue, waiter.number, key=_number_of)


def _number_of(waiter: Waiter) -> int:
    return waiter.number


# Work with a time limit.


class Expired(TimeoutError):
    """Work took too long and was cancelled."""


async def in_time(work: Awaitable[Result], until: float) -> Result:
    """Return the result of work. Raises `Expired` if it takes longer than until a time of the event loop.

    Work that does not wait needs no timer.
    """
    steps = work.__await__()
    try:
        awaited = next(steps)
    except StopIteration as end:
        result: Result = end.value
        return result
    try:
        async with asyncio.timeout_at(until) as limit:
            return await _continued(steps, awaited)
    except TimeoutError as error:
        if limit.expired():
            raise Expired from error
        raise


@coroutine
def _continued(steps: Generator[Any, Any, Result], awaited: Any) -> Generator[Any, Any, Result]:
    """Await the rest of a coroutine that has begun, and waits for `awaited`."""
    while True:
        try:
            value = yield awaited
        except BaseException as error:
            advance = partial(steps.throw, error)
        else:
            advance = partial(steps.send, value)
        try:
            awaited = advance()
        except StopIteration as end:
            result: Result = end.value
            return result
