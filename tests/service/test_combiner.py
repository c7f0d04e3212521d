"""Requests are written in batches: in order, alone when alone, and one broken item breaks itself only."""

import asyncio
import gc
import weakref
from collections.abc import Sequence
from typing import Any

import pytest

from zndraw_joblib.contract.problems import JobNotFound, ServiceUnavailable
from zndraw_joblib.server import batcher as module
from zndraw_joblib.server.batcher import Batcher


class Ledger:
    """Commits batches, each when it is allowed to, and writes down what it was given."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []
        self.written: list[Any] = []
        self.begun = asyncio.Event()
        self.open = asyncio.Event()
        self.open.set()

    async def commit(self, items: Sequence[Any]) -> list[Any]:
        """Take a batch; `broken` breaks it as a whole, `refused` is a problem of its own."""
        self.batches.append(list(items))
        self.begun.set()
        await self.open.wait()
        if "broken" in items:
            raise ValueError("broken")
        if "unavailable" in items:
            raise ServiceUnavailable("no database")
        self.written += items
        return [JobNotFound(str(item)) if item == "refused" else f"done {item}" for item in items]

    async def busy(self, batcher: "Batcher[Any, Any]") -> "asyncio.Task[Any]":
        """Begin a batch that is not committed before `open` is set."""
        self.open.clear()
        self.begun.clear()
        first = asyncio.create_task(batcher.put("first"))
        async with asyncio.timeout(1):
            await self.begun.wait()
        return first


@pytest.fixture
async def ledger() -> Ledger:
    """Return what stands for the database."""
    return Ledger()


@pytest.fixture
async def batcher(ledger: Ledger) -> "Batcher[Any, Any]":
    """Return a batcher of the ledger's commits."""
    return Batcher(ledger.commit, lambda: 1)


async def test_two_batches_are_committed_at_once_where_that_pays(ledger: Ledger) -> None:
    """What arrives during a commit goes at once, and only what arrives during both of them waits."""
    batcher: Batcher[Any, Any] = Batcher(ledger.commit, lambda: 2)
    first = await ledger.busy(batcher)
    second = await ledger.busy(batcher)
    rest = asyncio.create_task(put_all(batcher, range(5)))
    for _ in range(10):
        await asyncio.sleep(0)
    assert ledger.batches == [["first"], ["first"]]
    ledger.open.set()
    async with asyncio.timeout(1):
        assert await asyncio.gather(first, second, rest) == ["done first"] * 2 + [
            [f"done {item}" for item in range(5)]
        ]
    assert ledger.batches[2:] == [[0, 1, 2, 3, 4]]
    assert await put_all(batcher, ["again"]) == ["done again"]


async def put_all(batcher: "Batcher[Any, Any]", items: Sequence[Any]) -> list[Any]:
    """Put items at the same time; return their results or what they raised."""
    async with asyncio.timeout(5):
        return await asyncio.gather(*[batcher.put(item) for item in items], return_exceptions=True)


async def test_one_item_alone_waits_for_nothing(batcher: "Batcher[Any, Any]", ledger: Ledger) -> None:
    """At low load a request is a batch of its own, begun within a few turns of an idle event loop."""
    waiting = asyncio.create_task(batcher.put(1))
    for _ in range(10):
        await asyncio.sleep(0)
    assert ledger.batches == [[1]]
    assert await waiting == "done 1"


async def test_what_arrives_during_a_commit_is_the_next_batch(
    batcher: "Batcher[Any, Any]", ledger: Ledger
) -> None:
    """While one batch commits the others gather, and go together, in the order they came."""
    first = await ledger.busy(batcher)
    rest = asyncio.create_task(put_all(batcher, range(50)))
    await asyncio.sleep(0)
    ledger.open.set()
    assert await rest == [f"done {item}" for item in range(50)]
    assert await first == "done first"
    assert ledger.batches == [["first"], list(range(50))]


async def test_a_batch_is_bounded(batcher: "Batcher[Any, Any]", ledger: Ledger) -> None:
    """However many arrive, no transaction takes more than `MAX_BATCH`; their order stays."""
    count = 2 * module.MAX_BATCH + 10
    assert await put_all(batcher, range(count)) == [f"done {item}" for item in range(count)]
    assert ledger.written == list(range(count))
    assert max(map(len, ledger.batches)) == module.MAX_BATCH


async def test_each_item_gets_its_own_result_or_problem(batcher: "Batcher[Any, Any]", ledger: Ledger) -> None:
    """A problem of one item is raised to that one's sender."""
    answers = await put_all(batcher, [1, "refused", 2])
    assert (answers[0], type(answers[1]), answers[2]) == ("done 1", JobNotFound, "done 2")
    assert len(ledger.batches) == 1


async def test_a_broken_item_fails_alone(batcher: "Batcher[Any, Any]", ledger: Ledger) -> None:
    """The others of its batch are written once each, in their order."""
    answers = await put_all(batcher, [1, 2, "broken", 3])
    assert isinstance(answers[2], ValueError)
    assert [answers[0], answers[1], answers[3]] == ["done 1", "done 2", "done 3"]
    assert ledger.written == [1, 2, 3]
    assert await batcher.put(4) == "done 4"


async def test_a_database_that_does_not_answer_is_not_asked_for_each(
    batcher: "Batcher[Any, Any]", ledger: Ledger
) -> None:
    """When the whole batch could not be written everybody is told, after one try."""
    answers = await put_all(batcher, [1, "unavailable", 2])
    assert [type(answer) for answer in answers] == [ServiceUnavailable] * 3
    assert len(ledger.batches) == 1


async def test_who_gave_up_before_its_turn_is_not_written(
    batcher: "Batcher[Any, Any]", ledger: Ledger
) -> None:
    """A request that was cancelled while it waited changes nothing, and the others go on."""
    first = await ledger.busy(batcher)
    waiting = [asyncio.create_task(batcher.put(item)) for item in range(3)]
    await asyncio.sleep(0)
    waiting[1].cancel()
    await asyncio.sleep(0)
    ledger.open.set()
    answers = await asyncio.gather(first, *waiting, return_exceptions=True)
    assert isinstance(answers[2], asyncio.CancelledError)
    assert ledger.written == ["first", 0, 2]


async def test_who_gave_up_while_its_batch_broke_is_not_written(
    batcher: "Batcher[Any, Any]", ledger: Ledger
) -> None:
    """Where a broken batch is tried one by one, an item whose sender left meanwhile is left out."""
    first = await ledger.busy(batcher)
    waiting = [asyncio.create_task(batcher.put(item)) for item in (1, "broken", 2)]
    await asyncio.sleep(0)
    ledger.begun.clear()
    ledger.open.set()
    await first
    ledger.open.clear()
    async with asyncio.timeout(1):
        await ledger.begun.wait()
    waiting[2].cancel()
    await asyncio.sleep(0)
    ledger.open.set()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert ledger.written == ["first", 1]


async def test_who_gives_up_during_its_commit_disturbs_nobody(
    batcher: "Batcher[Any, Any]", ledger: Ledger
) -> None:
    """What is being written is written; only its sender does not hear of it."""
    first = await ledger.busy(batcher)
    first.cancel()
    await asyncio.sleep(0)
    second = asyncio.create_task(batcher.put(2))
    await asyncio.sleep(0)
    ledger.open.set()
    assert await second == "done 2"
    assert ledger.written == ["first", 2]


async def test_too_many_waiting_are_told(ledger: Ledger) -> None:
    """The queue in memory is bounded: beyond it the answer is 503 and when to come again."""
    batcher: Batcher[Any, Any] = Batcher(ledger.commit, lambda: 1, max_waiting=3)
    first = await ledger.busy(batcher)
    waiting = [asyncio.create_task(batcher.put(item)) for item in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(ServiceUnavailable) as told:
        await batcher.put("too much")
    assert told.value.headers == {"Retry-After": "1"}
    ledger.open.set()
    assert await asyncio.gather(first, *waiting) == ["done first", "done 0", "done 1", "done 2"]


async def test_a_combiner_that_is_stopped_lets_everybody_go(
    batcher: "Batcher[Any, Any]", ledger: Ledger
) -> None:
    """When the loop cancels the commit, nobody waits for an answer that will not come."""
    before = asyncio.all_tasks()
    first = await ledger.busy(batcher)
    second = asyncio.create_task(batcher.put(2))
    await asyncio.sleep(0)
    [draining] = asyncio.all_tasks() - before - {first, second}
    draining.cancel()
    async with asyncio.timeout(1):
        answers = await asyncio.gather(first, second, return_exceptions=True)
    assert [type(answer) for answer in answers] == [asyncio.CancelledError] * 2
    ledger.open.set()
    assert await batcher.put(3) == "done 3"


def test_one_combiner_serves_several_event_loops() -> None:
    """A host's test client may run each request in a loop of its own; none of them is kept."""

    async def commit(items: Sequence[int]) -> list[int]:
        await asyncio.sleep(0)
        return [item + 1 for item in items]

    batcher: Batcher[int, int] = Batcher(commit, lambda: 1)
    loops = []
    for turn in range(3):
        runner = asyncio.Runner()
        results = runner.run(put_all(batcher, [turn, turn + 1]))
        assert results == [turn + 1, turn + 2]
        loops.append(weakref.ref(runner.get_loop()))
        runner.close()
        del runner
    gc.collect()
    assert [loop() for loop in loops] == [None] * 3
