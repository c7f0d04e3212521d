"""The write path: while one batch commits, the requests that arrive form the next."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

from zndraw_joblib.contract.problems import ServiceUnavailable

logger = logging.getLogger(__name__)
Item = TypeVar("Item")
Result = TypeVar("Result")
Entry = tuple[Item, asyncio.Future[Result | Exception]]
Commit = Callable[[Sequence[Item]], Awaitable[Sequence[Result | Exception]]]

MAX_BATCH = 256
MAX_WAITING = 10_000
# One cycle of the event loop to read a request, one to run its handler until here.
_CYCLES_TO_ARRIVE = 2


class Batcher(Generic[Item, Result]):
    """Commits items in batches, in order of arrival. At low load an item is committed alone, at once.

    `commit` takes the items of a batch and returns a result or a problem for each. Where it raises, nothing
    of the batch was written; then each item is committed alone, and only the broken one fails. At most
    `concurrency()` batches are committed at the same time, and at most `max_waiting` items wait.
    """

    def __init__(
        self, commit: Commit[Item, Result], concurrency: Callable[[], int], max_waiting: int = MAX_WAITING
    ) -> None:
        self._commit = commit
        self._concurrency = concurrency
        self._max_waiting = max_waiting
        # A host's test client may run each request in an event loop of its own.
        self._queues: WeakKeyDictionary[asyncio.AbstractEventLoop, _Queue[Item, Result]] = WeakKeyDictionary()

    async def put(self, item: Item) -> Result:
        """Return the result of `item` after its commit, or raise its problem.

        Raises `ServiceUnavailable` when too many items wait.
        """
        loop = asyncio.get_running_loop()
        queue = self._queues.get(loop)
        if queue is None:
            queue = self._queues[loop] = _Queue(self._commit, self._concurrency, self._max_waiting)
        result = await queue.put(item)
        if isinstance(result, Exception):
            raise result
        return result

    @property
    def batches(self) -> set[asyncio.Task[None]]:
        """The tasks that commit batches in this event loop."""
        queue = self._queues.get(asyncio.get_running_loop())
        return set() if queue is None else set(queue.tasks)


class _Queue(Generic[Item, Result]):
    """The items of one event loop."""

    def __init__(
        self, commit: Commit[Item, Result], concurrency: Callable[[], int], max_waiting: int
    ) -> None:
        self._commit = commit
        self._concurrency = concurrency
        self._max_waiting = max_waiting
        self._waiting: deque[Entry[Item, Result]] = deque()
        self.tasks: set[asyncio.Task[None]] = set()
        self._running = 0
        self._is_gathering = False

    def put(self, item: Item) -> asyncio.Future[Result | Exception]:
        if len(self._waiting) >= self._max_waiting:
            raise ServiceUnavailable(
                f"{self._max_waiting} requests wait to be written already; retry later",
                headers={"Retry-After": "1"},
            )
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        self._start()
        return future

    def _start(self) -> None:
        if self._waiting and not self._is_gathering and self._running < self._concurrency():
            task = asyncio.create_task(self._run())
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
            self._running += 1
            self._is_gathering = True

    async def _run(self) -> None:
        batch: list[Entry[Item, Result]] = []
        try:
            while True:
                batch = await self._next_batch()
                results = await self._results(batch)
                for (_, future), result in zip(batch, results, strict=True):
                    if not future.done():
                        future.set_result(result)
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

    async def _next_batch(self) -> list[Entry[Item, Result]]:
        try:
            await self._gather()
        finally:
            self._is_gathering = False
        taken = [self._waiting.popleft() for _ in range(min(len(self._waiting), MAX_BATCH))]
        self._start()
        # A cancelled request is not written.
        return [(item, future) for item, future in taken if not future.done()]

    async def _gather(self) -> None:
        """Let the event loop read the requests that have arrived, which otherwise wait for a whole batch.

        While requests arrive at every cycle of the loop, they join; when none does, the batch starts.
        """
        size = 0
        while size < len(self._waiting) < MAX_BATCH:
            size = len(self._waiting)
            for _ in range(_CYCLES_TO_ARRIVE):
                await asyncio.sleep(0)

    async def _results(self, batch: list[Entry[Item, Result]]) -> Sequence[Result | Exception]:
        if not batch:
            return []
        try:
            return await self._commit([item for item, _ in batch])
        except ServiceUnavailable as problem:
            return [problem] * len(batch)
        except Exception as error:
            if len(batch) == 1:
                return [error]
            logger.warning("A batch of %d items failed, committing each alone: %r", len(batch), error)
            cancelled = ServiceUnavailable("The request was cancelled before it was written")
            results: list[Result | Exception] = []
            for entry in batch:
                results += [cancelled] if entry[1].done() else await self._results([entry])
            return results
