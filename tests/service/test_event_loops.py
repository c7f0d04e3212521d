"""Nothing keeps an event loop that is closed: a host's test client may run each request in one of its own."""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Sequence
from weakref import WeakSet

import pytest

from zndraw_joblib.server.process.batcher import Batcher, RowLocked
from zndraw_joblib.server.process.settings import JobLibSettings
from zndraw_joblib.server.runtime.event_queue import EventQueue
from zndraw_joblib.wire.events import Emission, JobsInvalidate

Use = Callable[[], Awaitable[object]]


def publishing() -> Use:
    """Return a function that publishes an event."""
    queue = EventQueue(JobLibSettings())

    async def use() -> None:
        published = asyncio.Event()

        async def publish(_: Sequence[Emission]) -> None:
            published.set()

        queue.put(publish, [Emission(JobsInvalidate(), "lab")])
        await published.wait()
        await queue.close(10)

    return use


def writing() -> Use:
    """Return a function that writes an item whose row is locked at first."""
    patience: list[float] = []

    async def commit(items: Sequence[str], seconds: float) -> Sequence[str]:
        patience.append(seconds)
        if len(patience) % 2:
            raise RowLocked
        return items

    batcher: Batcher[str, str] = Batcher(commit, lambda: 1, lock_seconds=0.01)
    return lambda: batcher.put("item")


@pytest.mark.parametrize("make", [publishing, writing])
def test_closed_event_loops_are_dropped(make: Callable[[], Use]) -> None:
    """At most the last one is kept until the next one needs its state."""
    use, loops = make(), WeakSet[asyncio.AbstractEventLoop]()

    async def run() -> None:
        loops.add(asyncio.get_running_loop())
        await use()

    for _ in range(3):
        asyncio.run(run())
    gc.collect()
    assert len(loops) <= 1
