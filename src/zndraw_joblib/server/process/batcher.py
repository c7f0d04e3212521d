"""The write path: while one batch commits, the requests that arrive form the next."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from types import coroutine
from typing import Any, Generic, Protocol, TypeVar, cast
from weakref import WeakKeyDictionary

from zndraw_joblib.jobs.logs import create_shared_task
from zndraw_joblib.server.process.shared_limit import QueueLimit
from zndraw_joblib.wire.problems import ServiceUnavailable, TooManyRequests

logger = logging.getLogger(__name__)
Item = TypeVar("Item")
Result = TypeVar("Result")
Result_contra = TypeVar("Result_contra", contravariant=True)
Commit = Callable[[Sequence[Item], float], Awaitable[Sequence[Result | Exception]]]

MAX_BATCH = 256
MAX_WAITING = 10_000
# One cycle of the event loop to read a request, one to run its handler until here.
_CYCLES_TO_ARRIVE = 2
# How long a batch may wait for a lock: normally, and while another transaction is known to hold a lock. On
# a busy machine, a batch may wait this long for another batch of the same job.
LOCK_SECONDS = 1.0
_PROMPT_SECONDS = 0.25
# How long the first attempt to commit items of one lock may wait for it; doubled at each further brief one.
_FIRST_TRY_SECONDS = 0.02
_BRIEF_TRIES, _BRIEF_SECONDS = 4, 0.3


class Pending(Protocol[Result_contra]):
    """A result that a request waits for: a future, or a part of one."""

    def done(self) -> bool:
        """Return whether there is a result, or the request was cancelled."""

    def set_result(self, result: Result_contra, /) -> None:
        """Set the result."""

    def cancel(self) -> object:
        """Cancel the request."""


Entry = tuple[Item, Pending[Result | Exception]]


class ItemDeclined(Exception):
    """An item is not to be written now. The others of its batch are committed without it."""


class RowLocked(Exception):
    """Another transaction held a lock for too long. Nothing was written."""


def locked_problem(what: str, seconds: float) -> ServiceUnavailable:
    """Return the problem for a request that needs a row that another transaction has locked."""
    return ServiceUnavailable(
        f"Another transaction of the database held a lock on {what} for longer than {seconds:g} s "
        f"(database_lock_timeout_seconds). The request was not applied; retry it later.",
        headers={"Retry-After": "1"},
    )


def raised(result: Result | Exception) -> Result:
    """Return the result of an item. Raises it if it is a problem."""
    if isinstance(result, Exception):
        raise result
    return result


class Batcher(Generic[Item, Result]):
    """Commits items in batches, in order of arrival. At low load an item is committed alone, at once.

    `commit` takes the items of a batch and how many seconds they may wait for a lock, and returns a result
    or a problem for each. If it raises, nothing of the batch was written; then each item is committed
    alone, and only the faulty one fails. At most `concurrency()` batches are committed at the same time, and
    at most `max_waiting` items wait, `share` of them for one user.

    `weigh` returns the weight of an item: one batch has items of at most `max_weight`, or a single one, and
    further ones of the same request.

    If it raises `RowLocked`, another transaction has locked a row that some item `needs`. Then the batch is
    split by row, and its parts are committed apart from other batches, for at most `lock_seconds`.
    """

    def __init__(  # noqa: PLR0913 - each is described above
        self,
        commit: Commit[Item, Result],
        concurrency: Callable[[], int],
        needs: Callable[[Item], str] = str,
        lock_seconds: float = 5.0,
        max_waiting: int = MAX_WAITING,
        share: int = MAX_WAITING,
        *,
        weigh: Callable[[Item], int] | None = None,
        max_weight: int = 0,
    ) -> None:
        new_limit = partial(QueueLimit, max_waiting, min(share, max_waiting))
        scale = _Scale(weigh, max_weight)
        self._new_queue = partial(_Queue, commit, concurrency, needs, lock_seconds, new_limit, scale)
        # A host's test client may run each request in an event loop of its own.
        self._queues: WeakKeyDictionary[asyncio.AbstractEventLoop, _Queue[Item, Result]] = WeakKeyDictionary()

    async def put(self, item: Item) -> Result:
        """Return the result of `item` after its commit, or raise its problem or that of a full queue."""
        loop = asyncio.get_running_loop()
        pending: asyncio.Future[Result | Exception] = loop.create_future()
        (self._queues.get(loop) or self._queue(loop)).add(item, pending)
        result = await pending
        if isinstance(result, Exception):
            raise result
        return result

    def _queue(self, loop: asyncio.AbstractEventLoop) -> "_Queue[Item, Result]":
        queue = self._queues.get(loop)
        if queue is None:
            queue = self._queues[loop] = self._new_queue()
        return queue

    async def put_many(self, items: Sequence[Item]) -> list[Result | Exception]:
        """Return the result or the problem of each item. They join the same batches as single items."""
        together: _Together[Result | Exception] = _Together(len(items))
        queue = self._queue(asyncio.get_running_loop())
        for index, item in enumerate(items):
            part = _PartResult(together, index)
            try:
                queue.add(item, part)
            except (ServiceUnavailable, TooManyRequests) as problem:
                part.set_result(problem)
        return await together.future if items else []

    @property
    def batches(self) -> set[asyncio.Task[None]]:
        """The tasks that commit batches in this event loop."""
        queue = self._queues.get(asyncio.get_running_loop())
        return set() if queue is None else queue.all_tasks


class _Together(Generic[Result]):
    """The results of items that were put together, in one future."""

    def __init__(self, count: int) -> None:
        self.future: asyncio.Future[list[Result]] = asyncio.get_running_loop().create_future()
        self._results: list[Result | None] = [None] * count
        self._missing = count

    def set_result(self, index: int, result: Result) -> None:
        self._results[index] = result
        self._missing -= 1
        if not self._missing and not self.future.done():
            self.future.set_result(cast("list[Result]", self._results))


@dataclass(slots=True, eq=False)
class _PartResult(Generic[Result]):
    """The result of one of these items."""

    together: _Together[Result]
    _index: int

    def done(self) -> bool:
        return self.together.future.done()

    def set_result(self, result: Result, /) -> None:
        self.together.set_result(self._index, result)

    def cancel(self) -> bool:
        return self.together.future.cancel()


def _is_same_request(one: Entry[Any, Any], other: Entry[Any, Any]) -> bool:
    first, second = one[1], other[1]
    return (
        isinstance(first, _PartResult)
        and isinstance(second, _PartResult)
        and first.together is second.together
    )


@dataclass(frozen=True, slots=True)
class _Scale(Generic[Item]):
    """How many items one batch may have."""

    _weigh: Callable[[Item], int] | None
    _max_weight: int

    def count(self, items: Iterable[Item]) -> int:
        """Return how many of these items are one batch, at least one."""
        if self._weigh is None:
            return sum(1 for _ in islice(items, MAX_BATCH))
        weight = count = 0
        for item in islice(items, MAX_BATCH):
            weight += self._weigh(item)
            if weight > self._max_weight and count:
                break
            count += 1
        return count


class _Queue(Generic[Item, Result]):
    """The items of one event loop."""

    def __init__(
        self,
        commit: Commit[Item, Result],
        concurrency: Callable[[], int],
        needs: Callable[[Item], str],
        lock_seconds: float,
        new_limit: Callable[[], QueueLimit],
        scale: "_Scale[Item]",
    ) -> None:
        self._scale = scale
        self._commit = commit
        self._concurrency = concurrency
        self._limit = new_limit()
        self._waiting: deque[Entry[Item, Result]] = deque()
        self._blocked = _Blocked(self._results, self._put_back, needs, lock_seconds, scale)
        self.tasks: set[asyncio.Task[None]] = set()
        self._running = 0
        self._is_gathering = False

    @property
    def all_tasks(self) -> set[asyncio.Task[None]]:
        """Return the tasks that commit batches."""
        return self.tasks | self._blocked.tasks

    def add(self, item: Item, pending: Pending[Result | Exception]) -> None:
        if (count := len(self._waiting) + self._blocked.count) >= self._limit.share:
            self._limit.check(item, count, (entry[0] for entry in chain(self._waiting, self._blocked)))
        if self._blocked.groups and self._blocked.has_lock_of(item):
            self._blocked.add((item, pending))
            return
        self._waiting.append((item, pending))
        if not self._is_gathering:
            self._start()

    def _put_back(self, entries: Sequence[Entry[Item, Result]]) -> None:
        self._waiting.extendleft(reversed(entries))
        self._start()

    def _start(self) -> None:
        if not self._waiting or self._is_gathering:
            return
        if not self._running or self._running < self._concurrency():
            task = create_shared_task(self._run())
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
            self._running += 1
            self._is_gathering = True

    async def _run(self) -> None:
        batch: list[Entry[Item, Result]] = []
        try:
            while True:
                try:
                    await self._gather()
                finally:
                    self._is_gathering = False
                batch = self._next_batch()
                results = await self._results(
                    batch, _PROMPT_SECONDS if self._blocked.groups else LOCK_SECONDS
                )
                for entry, result in zip(batch, results, strict=True):
                    if isinstance(result, RowLocked):
                        self._blocked.add(entry)
                    elif not entry[1].done():
                        entry[1].set_result(result)
                if self._is_gathering or not self._waiting:
                    return
                self._is_gathering = True
        except BaseException:
            for _, future in [*batch, *self._waiting]:
                future.cancel()
            self._waiting.clear()
            raise
        finally:
            self._running -= 1

    def _next_batch(self) -> list[Entry[Item, Result]]:
        count = self._scale.count(item for item, _ in self._waiting)
        entries = [self._waiting.popleft() for _ in range(count)]
        # Another batch may commit at the same time, and the items of a request apply in their order.
        while self._waiting and self._concurrency() > 1 and _is_same_request(entries[-1], self._waiting[0]):
            entries.append(self._waiting.popleft())
        if self._waiting:
            self._start()
        if not self._blocked.groups:
            return [entry for entry in entries if not entry[1].done()]
        batch = []
        for entry in entries:
            if self._blocked.has_lock_of(entry[0]):
                self._blocked.add(entry)
            elif not entry[1].done():  # a cancelled request is not written
                batch.append(entry)
        return batch

    @coroutine
    def _gather(self) -> Generator[None, None, None]:
        """Let the event loop read the requests that have arrived, which otherwise wait for a whole batch.

        While requests arrive at every cycle of the loop, they join; when none does, the batch starts.
        """
        size = 0
        while size < len(self._waiting) < MAX_BATCH:
            size = len(self._waiting)
            for _ in range(_CYCLES_TO_ARRIVE):
                yield

    async def _results(
        self, batch: list[Entry[Item, Result]], lock_seconds: float
    ) -> Sequence[Result | Exception]:
        self._limit.counts = None  # the batch has left the queue
        if not batch:
            return []
        try:
            return await self._commit([item for item, _ in batch], lock_seconds)
        except (ServiceUnavailable, RowLocked) as problem:
            return [problem] * len(batch)
        except Exception as error:
            if len(batch) == 1:
                return [error]
            level = logging.DEBUG if isinstance(error, ItemDeclined) else logging.WARNING
            logger.log(level, "A batch of %d items failed, committing each alone: %r", len(batch), error)
            cancelled = ServiceUnavailable("The request was cancelled before it was written")
            results: list[Result | Exception] = []
            for entry in batch:
                results += [cancelled] if entry[1].done() else await self._results([entry], _PROMPT_SECONDS)
            return results


@dataclass(slots=True)
class _Group(Generic[Item, Result]):
    """Items that need the same lock, each with the time after which it fails."""

    entries: deque[tuple[Entry[Item, Result], float]] = field(default_factory=deque)
    tries: int = 0
    is_in_turn: bool = False
    since: float = field(default_factory=time.monotonic)
    # Whether an attempt for several locks together has failed.
    was_joined: bool = False

    @property
    def is_patient(self) -> bool:
        """Whether its attempts wait for long: the lock was held at each brief one."""
        return self.tries >= _BRIEF_TRIES or (
            self.tries > 0 and time.monotonic() > self.since + _BRIEF_SECONDS
        )


@dataclass(slots=True)
class _Turns:
    """Locks to try one after the other, and the task that tries them."""

    locks: deque[str] = field(default_factory=deque)
    task: asyncio.Task[None] | None = None


class _Blocked(Generic[Item, Result]):
    """Items that need a lock of another transaction, committed lock by lock.

    The first attempts are brief, so that a free lock never waits for one that is held. A transaction that
    gives up has lost its place in the queue of the lock: if many transactions take the lock in turn, brief
    attempts may all fail. The next ones are therefore patient: they wait until the first item fails, or for
    an equal part of this time if there are several such locks. A second task makes them, one by one. But the
    items of several locks may all wait for another one, such as that of a job which their workers share: the
    first patient attempt takes them together, and waits for half of the time.

    A lock stays known for a while after its last item has failed, so that later items are added here at once.
    """

    def __init__(
        self,
        commit: Callable[[list[Entry[Item, Result]], float], Awaitable[Sequence[Result | Exception]]],
        put_back: Callable[[Sequence[Entry[Item, Result]]], None],
        needs: Callable[[Item], str],
        lock_seconds: float,
        scale: "_Scale[Item]",
    ) -> None:
        self._scale = scale
        self._commit = commit
        self._put_back = put_back
        self._needs = needs
        self._lock_seconds = lock_seconds
        # The items by the lock that they need, and that is known to be held.
        self.groups: dict[str, _Group[Item, Result]] = {}
        self._brief, self._patient = _Turns(), _Turns()
        self.count = 0

    @property
    def tasks(self) -> set[asyncio.Task[None]]:
        """The tasks that commit these items."""
        return {turns.task for turns in (self._brief, self._patient) if turns.task is not None}

    def __iter__(self) -> Iterator[Entry[Item, Result]]:
        return (entry for group in self.groups.values() for entry, _ in group.entries)

    def has_lock_of(self, item: Item) -> bool:
        """Return whether an item needs a lock that is known to be held."""
        return bool(self.groups) and self._needs(item) in self.groups

    def add(self, entry: Entry[Item, Result]) -> None:
        """Commit an item outside the batches, together with others that need the same lock."""
        lock = self._needs(entry[0])
        group = self.groups.setdefault(lock, _Group())
        group.entries.append((entry, time.monotonic() + self._lock_seconds))
        self.count += 1
        if not group.is_in_turn:
            self._put_in_turn(lock, group)

    def _put_in_turn(self, lock: str, group: _Group[Item, Result]) -> None:
        group.is_in_turn = True
        turns = self._patient if group.is_patient else self._brief
        # Locks that were not tried separately yet are probably free.
        turns.locks.append(lock) if group.tries else turns.locks.appendleft(lock)
        if turns is self._patient and not group.was_joined:
            turns.locks += [other for other in self._brief.locks if self.groups[other].tries]
            self._brief.locks = deque(other for other in self._brief.locks if not self.groups[other].tries)
        if turns.task is None or turns.task.done():
            turns.task = create_shared_task(self._run(turns))

    async def _run(self, turns: _Turns) -> None:
        try:
            while turns.locks:
                locks = self._next_locks(turns)
                is_free = await self._commit_groups(locks, turns)
                for lock in locks:
                    self._end_turn(lock, is_free=is_free)
        except BaseException:
            self._cancel_all()
            raise
        finally:
            turns.task = None  # a task refers to its event loop

    def _cancel_all(self) -> None:
        for group in self.groups.values():
            for (_, future), _ in group.entries:
                future.cancel()
        self.groups.clear()
        self.count = 0
        for turns in (self._brief, self._patient):
            turns.locks.clear()
            if turns.task is not None and turns.task is not asyncio.current_task():
                turns.task.cancel()

    def _next_locks(self, turns: _Turns) -> list[str]:
        """Take the next lock; of those with patient attempts, all that are to be tried together."""
        new = [lock for lock in turns.locks if not self.groups[lock].was_joined]
        if turns is self._brief or len(new) < 2:
            return [turns.locks.popleft()]
        turns.locks = deque(lock for lock in turns.locks if self.groups[lock].was_joined)
        return new

    def _end_turn(self, lock: str, *, is_free: bool) -> None:
        group = self.groups[lock]
        if is_free:
            del self.groups[lock]
            self._put_back([entry for entry, _ in group.entries])
            self.count -= len(group.entries)
        elif group.entries:
            self._put_in_turn(lock, group)
        else:
            group.is_in_turn = False
            asyncio.get_running_loop().call_later(self._lock_seconds, self._forget, lock, group)

    async def _commit_groups(self, locks: Sequence[str], turns: _Turns) -> bool:
        """Commit items that need these locks. Return whether they were free."""
        groups = [self.groups[lock] for lock in locks]
        count = self._scale.count(item for group in groups for (item, _), _ in group.entries)
        entries = ((lock, entry) for lock in locks for entry in self.groups[lock].entries)
        items = list(islice(entries, count))
        for lock, _ in items:
            self.groups[lock].entries.popleft()
        self.count -= len(items)
        live = [(lock, entry) for lock, entry in items if not entry[0][1].done()]
        if turns is self._brief:
            patience = min(_PROMPT_SECONDS, _FIRST_TRY_SECONDS * 2.0 ** groups[0].tries)
        else:
            parts = 2 if len(locks) > 1 else 1 + len(turns.locks)
            first = min(gives_up for _, (_, gives_up) in items)
            patience = max(_PROMPT_SECONDS, (first - time.monotonic()) / parts)
        try:
            results = await self._commit([entry for _, (entry, _) in live], patience)
        except BaseException:
            for _, ((_, future), _) in live:
                future.cancel()
            raise
        self._answer(live, results)
        for group in groups:
            group.tries += 1
            group.was_joined |= len(locks) > 1
        return not any(isinstance(result, RowLocked) for result in results)

    def _answer(
        self,
        live: Sequence[tuple[str, tuple[Entry[Item, Result], float]]],
        results: Sequence[Result | Exception],
    ) -> None:
        """Set the results of items, except those that another attempt is made for."""
        locked = list[tuple[str, tuple[Entry[Item, Result], float]]]()
        for (lock, (entry, gives_up)), result in zip(live, results, strict=True):
            if isinstance(result, RowLocked) and time.monotonic() < gives_up:
                locked.append((lock, (entry, gives_up)))
            elif not entry[1].done():
                is_late = isinstance(result, RowLocked)
                entry[1].set_result(locked_problem(f"the {lock}", self._lock_seconds) if is_late else result)
        for lock, item in reversed(locked):
            self.groups[lock].entries.appendleft(item)
        self.count += len(locked)

    def _forget(self, lock: str, group: _Group[Item, Result]) -> None:
        if not group.is_in_turn and self.groups.get(lock) is group:
            del self.groups[lock]
