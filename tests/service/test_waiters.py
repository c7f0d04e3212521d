"""Waiters: no wake-up is lost, an unused one is passed on, and waiters are served in the order they came."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from uuid import uuid4

import pytest

from zndraw_joblib.server.process.ports import Wake, before_key
from zndraw_joblib.server.process.settings import JobLibSettings
from zndraw_joblib.server.process.waiters import KeySet, Waiter, Waiters, waiting_requests
from zndraw_joblib.wire.problems import ServiceUnavailable, TooManyRequests

LONG = 60.0
SOON = 30.0

Enter = Callable[..., Waiter]


@pytest.fixture
def waiters() -> Waiters:
    """Return waiters with a limit of twenty thousand."""
    return Waiters(waiting_requests(JobLibSettings()))


@pytest.fixture
async def enter(waiters: Waiters) -> AsyncIterator[Enter]:
    """Return a function that registers a waiter under some keys until the test ends."""
    with ExitStack() as stack:
        yield lambda *keys: stack.enter_context(waiters.register(keys))


def begin_check(waiters: Waiters, waiter: Waiter) -> None:
    """Begin a check of the database, as the runtime does."""
    waiters.begin_check(waiter)


def found_nothing(waiters: Waiters, waiter: Waiter) -> None:
    """End a check that found nothing."""
    waiter.record(None)


async def is_waiting(waiting: "asyncio.Task[bool]") -> bool:
    """Return whether a waiter still waits after all scheduled callbacks have run."""
    for _ in range(5):
        await asyncio.sleep(0)
    return not waiting.done()


async def test_a_wake_up_between_check_and_wait_is_not_lost(waiters: Waiters, enter: Enter) -> None:
    """A waiter that registered before its check does not wait if it was woken since."""
    waiter = enter("job")
    begin_check(waiters, waiter)
    waiters.wake("job", 1)
    async with asyncio.timeout(SOON):
        assert await waiter.wait(LONG)


async def test_a_wake_up_before_the_check_does_not_count(waiters: Waiters, enter: Enter) -> None:
    """The check covers it, so the waiter may wait."""
    waiter = enter("job")
    waiters.wake("job", 1)
    begin_check(waiters, waiter)
    found_nothing(waiters, waiter)
    assert not await waiter.wait(0.01)


async def test_a_wake_up_during_a_later_check_is_not_lost(waiters: Waiters, enter: Enter) -> None:
    """A woken waiter checks again; a wake-up during that check wakes it again."""
    waiter = enter("job")
    begin_check(waiters, waiter)
    found_nothing(waiters, waiter)
    waiters.wake("job", 1)
    async with asyncio.timeout(SOON):
        assert await waiter.wait(LONG)
    begin_check(waiters, waiter)
    waiters.wake("job", 1)
    found_nothing(waiters, waiter)
    assert await waiter.wait(0.05)


async def test_waiters_wake_in_the_order_they_came(waiters: Waiters, enter: Enter) -> None:
    """One wake-up wakes the waiter that has waited longest."""
    waiting = [asyncio.create_task(enter("job").wait(LONG)) for _ in range(4)]
    for index in range(4):
        assert await is_waiting(waiting[index])
        waiters.wake("job", 1)
        async with asyncio.timeout(SOON):
            assert await waiting[index]
        assert [task.done() for task in waiting] == [True] * (index + 1) + [False] * (3 - index)


@pytest.mark.parametrize(("count", "woken"), [(0, 0), (1, 1), (2, 2), (9, 3), (None, 3)])
async def test_a_wake_up_wakes_its_number_of_waiters(
    waiters: Waiters, enter: Enter, count: int | None, woken: int
) -> None:
    """A number wakes that many, no number wakes all; waiters of other keys keep waiting."""
    waiting = [asyncio.create_task(enter("job").wait(LONG)) for _ in range(3)]
    other = asyncio.create_task(enter("other").wait(LONG))
    assert await is_waiting(other)
    waiters.notify([Wake("job", count), Wake("unknown", 3)])
    assert await is_waiting(other)
    assert sum(task.done() for task in waiting) == woken
    for task in [*waiting, other]:
        task.cancel()


async def test_a_waiter_with_several_keys_is_woken_once(waiters: Waiters, enter: Enter) -> None:
    """A wake-up under another key goes to the next waiter."""
    first, second = enter("a", "b"), enter("b")
    waiters.wake("a", 1)
    waiters.wake("b", 1)
    assert (first.is_woken, second.is_woken) == (True, True)


async def test_an_unused_wake_up_is_passed_on(waiters: Waiters, enter: Enter) -> None:
    """A woken waiter that leaves without a task passes the wake-up to the next one."""
    with waiters.register(["job"]) as first:
        second = enter("job")
        waiters.wake("job", 1)
        assert (first.is_woken, second.is_woken) == (True, False)
    assert second.is_woken


async def test_a_used_wake_up_is_not_passed_on(waiters: Waiters, enter: Enter) -> None:
    """The others keep waiting."""
    with waiters.register(["job", "other"]) as first:
        second = enter("job")
        waiters.wake("job", 1)
        begin_check(waiters, first)
        first.record("job")
    assert not second.is_woken


async def test_a_wake_up_for_another_job_is_passed_on(waiters: Waiters, enter: Enter) -> None:
    """A waiter that was woken for one job and took a task of another passes its wake-up on."""
    with waiters.register(["a", "b"]) as first:
        second = enter("a")
        waiters.wake("a", 1)
        begin_check(waiters, first)
        first.record("b")
    assert second.is_woken


async def test_a_wake_up_during_another_claim_is_passed_on(waiters: Waiters, enter: Enter) -> None:
    """A check that found an earlier task does not use up a wake-up that came during it."""
    with waiters.register(["job"]) as first:
        second = enter("job")
        begin_check(waiters, first)  # the check begins, and finds a task that was already pending
        waiters.wake("job", 1)  # another task is committed during the check
        first.record("job")
    assert second.is_woken


async def test_a_wake_up_for_all_is_not_passed_on(waiters: Waiters, enter: Enter) -> None:
    """All waiters were woken already."""
    with waiters.register(["job"]):
        second = enter("job")
        waiters.wake("job")
        begin_check(waiters, second)
    assert not second.is_woken


async def test_a_waiter_that_found_nothing_keeps_its_place(waiters: Waiters, enter: Enter) -> None:
    """It is the first in its queue again."""
    first, second = enter("job"), enter("job")
    for _ in range(3):
        waiters.wake("job", 1)
        assert (first.is_woken, second.is_woken) == (True, False)
        begin_check(waiters, first)
        found_nothing(waiters, first)
        assert not await first.wait(0.001)


async def test_waiters_that_were_woken_together_and_found_nothing_keep_their_order(
    waiters: Waiters, enter: Enter
) -> None:
    """However many were woken, and in whatever order they check; a later waiter stays behind them."""
    crowd = [enter("job", "other") for _ in range(4)]
    waiters.wake("job", 4)
    late = enter("job")
    for waiter in [crowd[1], crowd[3], crowd[0], crowd[2]]:
        begin_check(waiters, waiter)
        found_nothing(waiters, waiter)
    for expected in [*crowd, late]:
        waiters.wake("job", 1)
        assert [waiter.is_woken for waiter in [*crowd, late]].count(True) == 1
        assert expected.is_woken
        expected.begin_check()  # consumes the wake-up, and stays out of the queue


async def test_a_disconnected_client_passes_its_wake_up_on(waiters: Waiters, enter: Enter) -> None:
    """Its wait ends at once; a wake-up that arrives at the same time goes to the next waiter."""
    gone = asyncio.get_running_loop().create_future()
    with waiters.register(["job"]) as first:
        second = enter("job")
        waiting = asyncio.create_task(first.wait(LONG, gone))
        assert await is_waiting(waiting)
        gone.set_result(None)
        waiters.wake("job", 1)
        async with asyncio.timeout(SOON):
            await waiting
    assert second.is_woken


async def test_a_client_that_disconnected_before_does_not_wait(enter: Enter) -> None:
    """The wait of a client that disconnects during the check ends at once."""
    gone = asyncio.get_running_loop().create_future()
    gone.set_result(None)
    async with asyncio.timeout(SOON):
        assert not await enter("job").wait(LONG, gone)


async def test_a_cancelled_wait_passes_its_wake_up_on(waiters: Waiters, enter: Enter) -> None:
    """A cancelled request, woken or not, leaves the queue."""

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


async def test_a_wait_is_bounded(enter: Enter) -> None:
    """It ends at its deadline, also if that has passed already."""
    waiter = enter("job")
    async with asyncio.timeout(SOON):
        assert not await waiter.wait(0.01)
        assert not await waiter.wait(-1)


async def test_too_many_waiters_are_refused(waiters: Waiters) -> None:
    """Beyond the limit a waiter gets a 503, beyond its user's share a 429; one that leaves makes room.

    The server's own waits are neither limited nor counted.
    """
    few = Waiters(waiting_requests(JobLibSettings(max_waiting_requests=4)))
    with few.register(["a"], "ada"), few.register(["b"], "ada"), few.register(["c"], "bob"):
        with pytest.raises(TooManyRequests, match="max_share_per_user") as beyond, few.register(["d"], "ada"):
            pass
        with few.register(["d"], "bob"), few.register(["e"]):
            assert len(few) == 5
            with pytest.raises(ServiceUnavailable, match="max_waiting_requests") as raised:  # noqa: SIM117
                with few.register(["e"], "eve"):
                    pass
        for refused in (beyond, raised):
            assert refused.value.headers["Retry-After"].isdigit()
    with few.register(["c"], "ada"), few.register(["c"], "ada"):
        assert len(few) == 2
    assert len(few) == 0


async def test_waiters_that_left_use_no_memory(waiters: Waiters) -> None:
    """A process that runs for years keeps no key without waiters."""
    with waiters.register(["a", "b"]) as first, waiters.register(["b"]):
        assert sorted(waiters.waited_keys) == ["a", "b"]
        waiters.wake("b", 1)
        begin_check(waiters, first)
        found_nothing(waiters, first)
    assert waiters.waited_keys == []
    assert len(waiters) == 0


async def test_a_stop_wakes_all(waiters: Waiters, enter: Enter) -> None:
    """When the server stops, all waiters wake, whatever their keys."""
    waiting = [asyncio.create_task(enter(key).wait(LONG)) for key in "abca"]
    assert await is_waiting(waiting[-1])
    waiters.close()
    async with asyncio.timeout(SOON):
        assert await asyncio.gather(*waiting) == [True] * 4
    assert waiters.is_closed


async def test_a_wake_up_from_another_thread_arrives(waiters: Waiters, enter: Enter) -> None:
    """A commit in another thread wakes a waiter of this loop at once."""
    waiting = asyncio.create_task(enter("job").wait(LONG))
    assert await is_waiting(waiting)
    waker = threading.Thread(target=waiters.wake, args=("job", 1))
    waker.start()
    async with asyncio.timeout(SOON):
        assert await waiting
    waker.join()


async def test_waiters_of_sets_and_of_single_keys_are_woken_in_order(waiters: Waiters) -> None:
    """A key of several sets, and a waiter's own key, have one queue: the first to come is the first woken."""
    one, two = KeySet(["a", "b"]), KeySet(["b", "c"])
    with ExitStack() as stack:
        order = [
            stack.enter_context(waiters.register(keys, shared=shared))
            for keys, shared in ((["w1"], one), (["b"], KeySet()), (["w2"], two), (["w3"], one))
        ]
        assert waiters.has("c")
        assert sorted(waiters.waited_keys) == ["a", "b", "c", "w1", "w2", "w3"]
        assert waiters.wake("b", 2) == 0
        assert [waiter.is_woken for waiter in order] == [True, True, False, False]
        assert waiters.wake("a", 3) == 2
        assert order[3].is_woken
        assert waiters.wake("c") == 0
        assert all(waiter.is_woken for waiter in order)
        assert waiters.wake("b", 1) == 1
        begin_check(waiters, order[0])
        assert waiters.wake("a", 1) == 0
    assert waiters.waited_keys == []
    assert not waiters.has("a")


async def test_equal_wake_ups_of_a_commit_are_one() -> None:
    """Those of many tasks look for waiters, and reach other servers, once; also for preferred workers."""
    forwarded: list[Wake] = []
    waiters = Waiters(waiting_requests(JobLibSettings()), forwarded.extend, ["other"])
    preferred = before_key("train", [uuid4()])
    with waiters.register(["job"]) as first, waiters.register(["job"]) as second:
        waiters.notify([*[Wake(preferred, 1), Wake("job", 1), Wake("all", 1)] * 3, Wake("all")])
        assert first.is_woken
        assert second.is_woken
        assert forwarded == [Wake(preferred, 3), Wake("job", 1), Wake("all")]


async def test_the_index_of_a_set_is_kept_for_the_next_wait() -> None:
    """Sets that nobody waits for are dropped, the oldest first, once they have too many keys together."""
    waiters = Waiters(waiting_requests(JobLibSettings()), max_idle_keys=5)
    sets = [KeySet([f"{number}a", f"{number}b", "all"]) for number in range(3)]
    for keys in sets:
        with waiters.register(["w"], shared=keys):
            assert waiters.has("all")
    assert list(waiters.waiters_of) == sets[2:]
    assert sorted(waiters.sets_of) == ["2a", "2b", "all"]
    with waiters.register(["w"], shared=sets[0]) as first, waiters.register(["w"], shared=sets[2]):
        assert waiters.wake("all", 1) == 0
        assert first.is_woken
    assert waiters.waited_keys == []
