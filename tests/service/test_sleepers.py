"""Those that wait: nobody misses a wake-up, nobody keeps one that is not his, and all are served in turn."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack

import pytest

from zndraw_joblib.contract.problems import ServiceUnavailable
from zndraw_joblib.server.ports import Wake
from zndraw_joblib.server.waiters import Waiter, Waiters

LONG = 10.0

Enter = Callable[..., Waiter]


@pytest.fixture
def waiters() -> Waiters:
    """Return a place to sleep for three hundred."""
    return Waiters(lambda: 300)


@pytest.fixture
async def enter(waiters: Waiters) -> AsyncIterator[Enter]:
    """Return a function that stands in line under some keys, until the test ends."""
    with ExitStack() as stack:
        yield lambda *keys: stack.enter_context(waiters.register(keys))


def look(waiters: Waiters, waiter: Waiter) -> None:
    """Begin a look at the database, as the runtime does."""
    waiters.begin_check(waiter)


def found_nothing(waiters: Waiters, waiter: Waiter) -> None:
    """End a look that found nothing."""
    waiter.found(None)


async def is_asleep(sleeping: "asyncio.Task[bool]") -> bool:
    """Tell whether a waiter sleeps on, once everything that was to happen has happened."""
    for _ in range(5):
        await asyncio.sleep(0)
    return not sleeping.done()


async def test_a_wake_up_between_the_look_and_the_sleep_is_not_lost(waiters: Waiters, enter: Enter) -> None:
    """Who registered before it looked does not fall asleep when something happened since."""
    waiter = enter("job")
    look(waiters, waiter)
    waiters.wake("job", 1)
    async with asyncio.timeout(1):
        assert await waiter.wait(LONG)


async def test_a_wake_up_before_the_look_does_not_count(waiters: Waiters, enter: Enter) -> None:
    """What is looked at after a wake-up is new enough: it is spent, and the waiter may sleep."""
    waiter = enter("job")
    waiters.wake("job", 1)
    look(waiters, waiter)
    found_nothing(waiters, waiter)
    assert not await waiter.wait(0.01)


async def test_a_wake_up_during_a_later_look_is_not_lost(waiters: Waiters, enter: Enter) -> None:
    """A waiter that was woken looks again; what happens during that look wakes it too."""
    waiter = enter("job")
    look(waiters, waiter)
    found_nothing(waiters, waiter)
    waiters.wake("job", 1)
    async with asyncio.timeout(1):
        assert await waiter.wait(LONG)
    look(waiters, waiter)
    waiters.wake("job", 1)
    found_nothing(waiters, waiter)
    assert await waiter.wait(0.05)


async def test_sleepers_wake_in_the_order_they_came(waiters: Waiters, enter: Enter) -> None:
    """One wake-up wakes the one that has waited longest."""
    sleeping = [asyncio.create_task(enter("job").wait(LONG)) for _ in range(4)]
    for index in range(4):
        assert await is_asleep(sleeping[index])
        waiters.wake("job", 1)
        async with asyncio.timeout(1):
            assert await sleeping[index]
        assert [task.done() for task in sleeping] == [True] * (index + 1) + [False] * (3 - index)


@pytest.mark.parametrize(("count", "woken"), [(0, 0), (1, 1), (2, 2), (9, 3), (None, 3)])
async def test_as_many_wake_as_are_called(
    waiters: Waiters, enter: Enter, count: int | None, woken: int
) -> None:
    """A number wakes that many, no number wakes all; other keys sleep on."""
    sleeping = [asyncio.create_task(enter("job").wait(LONG)) for _ in range(3)]
    other = asyncio.create_task(enter("other").wait(LONG))
    assert await is_asleep(other)
    waiters.notify([Wake("job", count), Wake("nobody", 3)])
    assert await is_asleep(other)
    assert sum(task.done() for task in sleeping) == woken
    for task in [*sleeping, other]:
        task.cancel()


async def test_a_sleeper_waits_under_all_its_keys_and_is_woken_once(waiters: Waiters, enter: Enter) -> None:
    """Who was woken for one thing is not called for another as well: that goes to the next in line."""
    first, second = enter("a", "b"), enter("b")
    waiters.wake("a", 1)
    waiters.wake("b", 1)
    assert (first.is_woken, second.is_woken) == (True, True)


async def test_a_wake_up_that_was_not_used_is_passed_on(waiters: Waiters, enter: Enter) -> None:
    """Who leaves without taking what it was woken for hands the wake-up to the next in line."""
    with waiters.register(["job"]) as first:
        second = enter("job")
        waiters.wake("job", 1)
        assert (first.is_woken, second.is_woken) == (True, False)
    assert second.is_woken


async def test_a_wake_up_that_was_used_is_not_passed_on(waiters: Waiters, enter: Enter) -> None:
    """Who took what it was woken for keeps the others asleep."""
    with waiters.register(["job", "other"]) as first:
        second = enter("job")
        waiters.wake("job", 1)
        look(waiters, first)
        first.found("job")
    assert not second.is_woken


async def test_a_wake_up_for_another_thing_is_passed_on(waiters: Waiters, enter: Enter) -> None:
    """Who was woken for one job and took a task of another passes its wake-up on."""
    with waiters.register(["a", "b"]) as first:
        second = enter("a")
        waiters.wake("a", 1)
        look(waiters, first)
        first.found("b")
    assert second.is_woken


async def test_a_wake_up_that_came_while_something_else_was_taken_is_passed_on(
    waiters: Waiters, enter: Enter
) -> None:
    """A look that found an earlier task does not use up the wake-up for one that came during the look."""
    with waiters.register(["job"]) as first:
        second = enter("job")
        look(waiters, first)  # the look begins, and finds a task that was there already
        waiters.wake("job", 1)  # another one is committed meanwhile
        first.found("job")
    assert second.is_woken


async def test_a_wake_up_for_all_is_owed_to_nobody(waiters: Waiters, enter: Enter) -> None:
    """Everybody was called already: nothing is passed on when one leaves."""
    with waiters.register(["job"]):
        second = enter("job")
        waiters.wake("job")
        look(waiters, second)
    assert not second.is_woken


async def test_who_found_nothing_keeps_its_place(waiters: Waiters, enter: Enter) -> None:
    """A waiter that was woken for nothing is the first in line again."""
    first, second = enter("job"), enter("job")
    for _ in range(3):
        waiters.wake("job", 1)
        assert (first.is_woken, second.is_woken) == (True, False)
        look(waiters, first)
        found_nothing(waiters, first)
        assert not await first.wait(0.001)


async def test_a_client_that_hangs_up_ends_its_sleep_and_passes_its_wake_up_on(
    waiters: Waiters, enter: Enter
) -> None:
    """The sleep ends at once; a wake-up that arrives together with the hang-up goes to the next."""
    gone = asyncio.get_running_loop().create_future()
    with waiters.register(["job"]) as first:
        second = enter("job")
        sleeping = asyncio.create_task(first.wait(LONG, gone))
        assert await is_asleep(sleeping)
        gone.set_result(None)
        waiters.wake("job", 1)
        async with asyncio.timeout(1):
            await sleeping
    assert second.is_woken


async def test_a_client_that_is_gone_already_does_not_sleep(enter: Enter) -> None:
    """Whoever hung up during the look is not waited for."""
    gone = asyncio.get_running_loop().create_future()
    gone.set_result(None)
    async with asyncio.timeout(1):
        assert not await enter("job").wait(LONG, gone)


async def test_a_sleep_that_is_cancelled_leaves_the_line_and_passes_on(
    waiters: Waiters, enter: Enter
) -> None:
    """A request that is cancelled, woken or not, is in nobody's way."""

    async def wait() -> None:
        with waiters.register(["job"]) as waiter:
            await waiter.wait(LONG)

    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    second = enter("job")
    waiters.wake("job", 1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert second.is_woken
    assert len(waiters) == 1


async def test_a_sleep_is_bounded(enter: Enter) -> None:
    """It ends at its time, also one that is over already."""
    waiter = enter("job")
    async with asyncio.timeout(1):
        assert not await waiter.wait(0.01)
        assert not await waiter.wait(-1)


async def test_too_many_sleepers_are_told(waiters: Waiters) -> None:
    """Beyond the limit the answer is 503 and when to come again; a place that is left is free again."""
    few = Waiters(lambda: 2)
    with few.register(["a"]), few.register(["b"]):
        assert len(few) == 2
        with pytest.raises(ServiceUnavailable) as told, few.register(["c"]):
            pass
        assert told.value.headers["Retry-After"].isdigit()
    with few.register(["c"]):
        assert len(few) == 1
    assert len(few) == 0


async def test_nothing_is_left_of_those_who_left(waiters: Waiters) -> None:
    """A process that runs for years keeps no key of a waiter that is gone."""
    with waiters.register(["a", "b"]) as first, waiters.register(["b"]):
        assert sorted(waiters.waited_keys) == ["a", "b"]
        waiters.wake("b", 1)
        look(waiters, first)
        found_nothing(waiters, first)
    assert waiters.waited_keys == []
    assert len(waiters) == 0


async def test_a_stop_wakes_all(waiters: Waiters, enter: Enter) -> None:
    """When the server stops nobody sleeps on, under whatever key."""
    sleeping = [asyncio.create_task(enter(key).wait(LONG)) for key in "abca"]
    assert await is_asleep(sleeping[-1])
    waiters.close()
    async with asyncio.timeout(1):
        assert await asyncio.gather(*sleeping) == [True] * 4
    assert waiters.is_closed


async def test_a_wake_up_from_another_thread_arrives(waiters: Waiters, enter: Enter) -> None:
    """What another thread commits wakes a waiter of this loop at once."""
    sleeping = asyncio.create_task(enter("job").wait(LONG))
    assert await is_asleep(sleeping)
    waker = threading.Thread(target=waiters.wake, args=("job", 1))
    waker.start()
    async with asyncio.timeout(1):
        assert await sleeping
    waker.join()
