"""Waiting for many tasks with few requests."""

from collections.abc import Callable
from typing import Any

import pytest

from client.both import Both
from client.jobs import Area, Fail
from zndraw_joblib.client.flows import TaskFailed
from zndraw_joblib.worker.manager import JobManager

Make = Callable[..., JobManager]
TASKS = 300
MOST_REQUESTS = 40


def counted(queue: Both) -> list[str]:
    """Return the list that gets the paths of the client's requests from now on."""
    sent: list[str] = []

    def add(request: Any) -> None:
        sent.append(request.url.path)

    async def add_async(request: Any) -> None:
        sent.append(request.url.path)

    http = queue.inner._connection.http
    http.event_hooks["request"].append(add_async if hasattr(http, "aclose") else add)
    return sent


async def test_hundreds_of_tasks_are_gathered_with_few_requests(queue: Both, worker: Make, room: str) -> None:
    """The results come in the order of the arguments, after a tenth as many requests as tasks."""
    worker(None).register(Area, room=room)
    tasks = await queue.submit_many([Area(width=number) for number in range(TASKS)])
    sent = counted(queue)
    worker().register(Area, room=room)
    found = await queue.gather(*(task.inner for task in reversed(tasks)), timeout=60)
    assert found == list(reversed(range(TASKS)))
    assert len(sent) <= MOST_REQUESTS, sent


async def test_the_first_failure_is_raised_while_others_wait(queue: Both, worker: Make, room: str) -> None:
    """With `return_exceptions`, failures and cancellations are in the places of the results."""
    worker().register(Fail, room=room)
    worker().register(Area, room=room)
    good, bad = await queue.submit(Area(width=2)), await queue.submit(Fail())
    late = await queue.submit(Area(), delay_seconds=3600)
    with pytest.raises(TaskFailed, match=str(bad.inner)):
        await queue.gather(late.inner, good.inner, bad.inner, timeout=60)
    await good.wait(60)
    with pytest.raises(TimeoutError, match="1 of 2 tasks have not ended"):
        await queue.gather(late.inner, good.inner, timeout=0.5)
    await late.cancel()
    # An id alone is enough.
    found = await queue.gather(str(good.inner).upper(), str(bad.inner), late.inner, return_exceptions=True)
    assert found[0] == 2
    assert [getattr(each, "code", None) for each in found[1:]] == ["error", "cancelled"]
    assert await queue.gather() == []


async def test_tasks_come_as_they_end_from_several_rooms(
    open_queue: Callable[..., Both], worker: Make, room: str
) -> None:
    """A task that ends first comes first, whichever room it is in."""
    queue = open_queue()
    manager = worker(None)
    shared = type(f"Area{room[5:]}", (Area,), {"__module__": Area.__module__})
    manager.register(shared)
    first = await queue.submit(shared(width=1), room=room)
    second = await queue.submit(shared(width=2), room=f"{room}-other", priority=5)
    seen = []
    started = manager.claim(30)
    assert started is not None
    manager.start(started)
    manager.complete(started, 2)
    async for task in queue.as_completed([first.inner, second.inner], timeout=60):
        seen.append(task.inner)
        if len(seen) == 1:
            other = manager.claim(30)
            assert other is not None
            manager.start(other)
            manager.complete(other, 1)
    assert seen == [second.inner, first.inner]
