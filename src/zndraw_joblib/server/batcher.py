"""The write path: while batches commit, the requests that arrive form the next one."""

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
# A turn to read a request, and one to run its handler up to here.
_TURNS_TO_ARRIVE = 2


class Batcher(Generic[Item, Result]):
    """Commits items in batches, in the order they came. At low load an item goes alone, at once.

    `commit` takes the items of a batch and gives a result or a problem for each. Where it raises,
    nothing of the batch was written; then the items go one by one, and the broken one alone fails.
    `width` tells how many batches may be committed at the same time.
    """

    def __init__(self, commit: Commit[Item, Result], width: Callable[[], int]) -> None:
        self._commit = commit
        self._width = width
        # A host's test client may run each request in an event loop of its own.
        self._lanes: WeakKeyDictionary[asyncio.AbstractEventLoop, _Lane[Item, Result]] = WeakKeyDictionary()

    async def put(self, item: Item) -> Result:
        """Return the result of `item` after its commit, or raise its problem.

        Raises `ServiceUnavailable` when more items wait than can be committed in reasonable time.
        """
        loop = asyncio.get_running_loop()
        lane = self._lanes.get(loop)
        if lane is None:
            lane = self._lanes[loop] = _Lane(self._commit, self._width)
        result = await lane.put(item)
        if isinstance(result, Exception):
            raise result
        return result

    @property
    def batches(self) -> set[asyncio.Task[None]]:
        """What is being committed in this event loop."""
        lane = self._lanes.get(asyncio.get_running_loop())
        return set() if lane is None else set(lane.drains)


class _Lane(Generic[Item, Result]):
    def __init__(self, commit: Commit[Item, Result], width: Callable[[], int]) -> None:
        self._commit = commit
        self._width = width
        self._waiting: deque[Entry[Item, Result]] = deque()
        self.drains: set[asyncio.Task[None]] = set()
        self._running = 0
        self._is_gathering = False

    def put(self, item: Item) -> asyncio.Future[Result | Exception]:
        if len(self._waiting) >= MAX_WAITING:
            raise ServiceUnavailable(
                f"More than {MAX_WAITING} requests wait to be written", headers={"Retry-After": "1"}
            )
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        self._start()
        return future

    def _start(self) -> None:
        if self._waiting and not self._is_gathering and self._running < self._width():
            drain = asyncio.create_task(self._run())
            self.drains.add(drain)
            drain.add_done_callback(self.drains.discard)
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
        # Who gave up waiting before its turn wants nothing written any more.
        return [(item, future) for item, future in taken if not future.done()]

    async def _gather(self) -> None:
        """Let the event loop read what has arrived already: it would have to wait for a whole batch.

        While requests come in at every turn of the loop, they join; when none does, nothing is waited for.
        """
        size = 0
        while size < len(self._waiting) < MAX_BATCH:
            size = len(self._waiting)
            for _ in range(_TURNS_TO_ARRIVE):
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
            logger.warning("a batch of %d broke, trying one by one: %r", len(batch), error)
            gone = ServiceUnavailable("nobody waits for this any more")
            results: list[Result | Exception] = []
            for entry in batch:
                results += [gone] if entry[1].done() else await self._results([entry])
            return results
