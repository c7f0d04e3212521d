"""Requests are written in batches: in order, alone at low load, and a faulty item fails alone."""

import asyncio
import gc
import time
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
from waiting import until

from zndraw_joblib.server.process import batcher as module
from zndraw_joblib.server.process.batcher import Batcher, RowLocked
from zndraw_joblib.server.process.ports import Identity
from zndraw_joblib.wire.problems import JobNotFound, ServiceUnavailable, TooManyRequests


class RecordingDatabase:
    """Commits each batch when the test allows it, and records the items."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []
        self.written: list[Any] = []
        self.begun = asyncio.Event()
        self.open = asyncio.Event()
        self.open.set()

    async def commit(self, items: Sequence[Any], _: float = 0) -> list[Any]:
        """Record a batch; the item `broken` breaks the whole batch, `refused` gets a problem of its own."""
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
        async with asyncio.timeout(30):
            await self.begun.wait()
        return first


@pytest.fixture
async def recorder() -> RecordingDatabase:
    """Return a recorder in place of the database."""
    return RecordingDatabase()


@pytest.fixture
async def batcher(recorder: RecordingDatabase) -> "Batcher[Any, Any]":
    """Return a batcher that commits to the recorder."""
    return Batcher(recorder.commit, lambda: 1)


async def test_two_batches_commit_at_once(recorder: RecordingDatabase) -> None:
    """Items that arrive during one commit form a second; those that arrive during both wait."""
    batcher: Batcher[Any, Any] = Batcher(recorder.commit, lambda: 2)
    first = await recorder.busy(batcher)
    second = await recorder.busy(batcher)
    rest = asyncio.create_task(put_all(batcher, range(5)))
    for _ in range(10):
        await asyncio.sleep(0)
    assert recorder.batches == [["first"], ["first"]]
    recorder.open.set()
    async with asyncio.timeout(30):
        assert await asyncio.gather(first, second, rest) == ["done first"] * 2 + [
            [f"done {item}" for item in range(5)]
        ]
    assert recorder.batches[2:] == [[0, 1, 2, 3, 4]]
    assert await put_all(batcher, ["again"]) == ["done again"]


async def put_all(batcher: "Batcher[Any, Any]", items: Sequence[Any]) -> list[Any]:
    """Put items at the same time; return their results or exceptions."""
    async with asyncio.timeout(30):
        return await asyncio.gather(*[batcher.put(item) for item in items], return_exceptions=True)


async def test_a_single_item_is_written_at_once(
    batcher: "Batcher[Any, Any]", recorder: RecordingDatabase
) -> None:
    """At low load an item is a batch of its own, which starts within a few iterations of the event loop."""
    waiting = asyncio.create_task(batcher.put(1))
    for _ in range(10):
        await asyncio.sleep(0)
    assert recorder.batches == [[1]]
    assert await waiting == "done 1"


async def test_items_that_arrive_during_a_commit_form_the_next_batch(
    batcher: "Batcher[Any, Any]", recorder: RecordingDatabase
) -> None:
    """They are committed together, in the order of their arrival."""
    first = await recorder.busy(batcher)
    rest = asyncio.create_task(put_all(batcher, range(50)))
    await asyncio.sleep(0)
    recorder.open.set()
    assert await rest == [f"done {item}" for item in range(50)]
    assert await first == "done first"
    assert recorder.batches == [["first"], list(range(50))]


async def test_a_batch_is_bounded(batcher: "Batcher[Any, Any]", recorder: RecordingDatabase) -> None:
    """No transaction takes more than `MAX_BATCH` items; their order is kept."""
    count = 2 * module.MAX_BATCH + 10
    assert await put_all(batcher, range(count)) == [f"done {item}" for item in range(count)]
    assert recorder.written == list(range(count))
    assert max(map(len, recorder.batches)) == module.MAX_BATCH


async def test_each_item_gets_its_own_result_or_problem(
    batcher: "Batcher[Any, Any]", recorder: RecordingDatabase
) -> None:
    """The problem of one item is raised only to the sender of that item."""
    answers = await put_all(batcher, [1, "refused", 2])
    assert (answers[0], type(answers[1]), answers[2]) == ("done 1", JobNotFound, "done 2")
    assert len(recorder.batches) == 1


async def test_a_faulty_item_fails_alone(batcher: "Batcher[Any, Any]", recorder: RecordingDatabase) -> None:
    """The other items of its batch are written once each, in order."""
    answers = await put_all(batcher, [1, 2, "broken", 3])
    assert isinstance(answers[2], ValueError)
    assert [answers[0], answers[1], answers[3]] == ["done 1", "done 2", "done 3"]
    assert recorder.written == [1, 2, 3]
    assert await batcher.put(4) == "done 4"


async def test_an_unavailable_database_is_tried_once_per_batch(
    batcher: "Batcher[Any, Any]", recorder: RecordingDatabase
) -> None:
    """If the database is unavailable, all senders of the batch get the error after one try."""
    answers = await put_all(batcher, [1, "unavailable", 2])
    assert [type(answer) for answer in answers] == [ServiceUnavailable] * 3
    assert len(recorder.batches) == 1


async def test_a_cancelled_waiting_item_is_not_written(
    batcher: "Batcher[Any, Any]", recorder: RecordingDatabase
) -> None:
    """A request that is cancelled while it waits changes nothing, and the others continue."""
    first = await recorder.busy(batcher)
    waiting = [asyncio.create_task(batcher.put(item)) for item in range(3)]
    await asyncio.sleep(0)
    waiting[1].cancel()
    await asyncio.sleep(0)
    recorder.open.set()
    answers = await asyncio.gather(first, *waiting, return_exceptions=True)
    assert isinstance(answers[2], asyncio.CancelledError)
    assert recorder.written == ["first", 0, 2]


async def test_items_put_together_have_their_results_in_order(
    batcher: "Batcher[Any, Any]", recorder: RecordingDatabase
) -> None:
    """They share batches with single items; each has its own result, problem or error."""
    first = await recorder.busy(batcher)
    together = asyncio.create_task(batcher.put_many(["a", "refused", "broken", *range(module.MAX_BATCH)]))
    single = asyncio.create_task(batcher.put("single"))
    await asyncio.sleep(0)
    recorder.open.set()
    done, refused, broken, *numbers = await together
    assert (done, numbers) == ("done a", [f"done {n}" for n in range(module.MAX_BATCH)])
    assert [type(refused), type(broken)] == [JobNotFound, ValueError]
    assert (await first, await single) == ("done first", "done single")
    assert recorder.written.count("a") == 1
    assert await batcher.put_many([]) == []


async def test_two_batches_never_share_the_items_of_a_request(recorder: RecordingDatabase) -> None:
    """A start and an end of the same task would overtake each other."""
    batcher: Batcher[Any, Any] = Batcher(recorder.commit, lambda: 2)
    firsts = [await recorder.busy(batcher), await recorder.busy(batcher)]
    single = asyncio.create_task(batcher.put("single"))
    together = asyncio.create_task(batcher.put_many(range(2 * module.MAX_BATCH)))
    last = asyncio.create_task(batcher.put("last"))
    for _ in range(10):
        await asyncio.sleep(0)
    recorder.open.set()
    await asyncio.gather(*firsts, single, together, last)
    assert recorder.batches[2:] == [["single", *range(2 * module.MAX_BATCH)], ["last"]]


async def test_a_request_that_begins_at_the_end_of_a_batch_stays_whole(recorder: RecordingDatabase) -> None:
    """Its first item is the last that a batch has room for."""
    batcher: Batcher[Any, Any] = Batcher(recorder.commit, lambda: 2)
    firsts = [await recorder.busy(batcher), await recorder.busy(batcher)]
    singles = [asyncio.create_task(batcher.put(number)) for number in range(module.MAX_BATCH - 1)]
    await asyncio.sleep(0)
    together = asyncio.create_task(batcher.put_many(["a", "b"]))
    await asyncio.sleep(0)
    recorder.open.set()
    await asyncio.gather(*firsts, *singles, together)
    assert recorder.batches[2:] == [[*range(module.MAX_BATCH - 1), "a", "b"]]


async def test_one_batch_after_the_other_needs_no_whole_requests(
    batcher: "Batcher[Any, Any]", recorder: RecordingDatabase
) -> None:
    """So its size is bounded."""
    await batcher.put_many(range(2 * module.MAX_BATCH))
    assert [len(batch) for batch in recorder.batches] == [module.MAX_BATCH] * 2


async def test_items_put_together_are_cancelled_together(
    batcher: "Batcher[Any, Any]", recorder: RecordingDatabase
) -> None:
    """If their request is cancelled while they wait, none is written, and other items are."""
    first = await recorder.busy(batcher)
    together = asyncio.create_task(batcher.put_many(["a", "b"]))
    single = asyncio.create_task(batcher.put("single"))
    await asyncio.sleep(0)
    together.cancel()
    await asyncio.sleep(0)
    recorder.open.set()
    assert (await first, await single) == ("done first", "done single")
    assert recorder.written == ["first", "single"]


async def test_an_item_cancelled_while_its_batch_fails_is_not_written(
    batcher: "Batcher[Any, Any]", recorder: RecordingDatabase
) -> None:
    """When a failed batch is retried item by item, cancelled items are left out."""
    first = await recorder.busy(batcher)
    waiting = [asyncio.create_task(batcher.put(item)) for item in (1, "broken", 2)]
    await asyncio.sleep(0)
    recorder.begun.clear()
    recorder.open.set()
    await first
    recorder.open.clear()
    async with asyncio.timeout(30):
        await recorder.begun.wait()
    waiting[2].cancel()
    await asyncio.sleep(0)
    recorder.open.set()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert recorder.written == ["first", 1]


async def test_an_item_cancelled_during_its_commit_is_written(
    batcher: "Batcher[Any, Any]", recorder: RecordingDatabase
) -> None:
    """The commit continues; only the sender of the item gets no result."""
    first = await recorder.busy(batcher)
    first.cancel()
    await asyncio.sleep(0)
    second = asyncio.create_task(batcher.put(2))
    await asyncio.sleep(0)
    recorder.open.set()
    assert await second == "done 2"
    assert recorder.written == ["first", 2]


async def test_too_many_waiting_items_are_refused(recorder: RecordingDatabase) -> None:
    """The queue in memory is bounded: further items get a 503 with Retry-After."""
    batcher: Batcher[Any, Any] = Batcher(recorder.commit, lambda: 1, max_waiting=3)
    first = await recorder.busy(batcher)
    waiting = [asyncio.create_task(batcher.put(item)) for item in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(ServiceUnavailable) as raised:
        await batcher.put("too much")
    assert raised.value.headers == {"Retry-After": "1"}
    recorder.open.set()
    assert await asyncio.gather(first, *waiting) == ["done first", "done 0", "done 1", "done 2"]


class OfUser(NamedTuple):
    """An item with a caller."""

    caller: Identity
    number: int = 0

    def __str__(self) -> str:
        return f"{self.caller.id}-{self.number} 0"


ADA, BOB = OfUser(Identity("ada", is_superuser=False)), OfUser(Identity("bob", is_superuser=False))


async def test_one_user_leaves_waiting_writes_to_others(recorder: RecordingDatabase) -> None:
    """Beyond its share a user's items get 429 with Retry-After, alone or together; others' wait."""
    batcher: Batcher[Any, Any] = Batcher(recorder.commit, lambda: 1, max_waiting=4, share=2)
    for _ in range(2):
        waiting = [await recorder.busy(batcher), asyncio.create_task(put_all(batcher, [ADA, ADA]))]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        with pytest.raises(TooManyRequests, match="max_share_per_user") as raised:
            await batcher.put(ADA)
        assert raised.value.headers == {"Retry-After": "1"}
        waiting.append(asyncio.create_task(put_all(batcher, [BOB, "the server's own"])))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert [type(answer) for answer in await batcher.put_many([ADA])] == [ServiceUnavailable]
        recorder.open.set()
        async with asyncio.timeout(30):
            assert [len(answers) for answers in await asyncio.gather(*waiting[1:])] == [2, 2]


async def test_writes_that_wait_for_locks_count_for_their_user() -> None:
    """They have left the batches, and still wait, except for one that is tried."""
    database = LockedDatabase()
    adas = [OfUser(ADA.caller, number) for number in range(5)]
    database.locked = {row_of(str(item)) for item in adas}
    batcher: Batcher[OfUser, str] = Batcher(
        lambda items, seconds: database.commit([str(item) for item in items], seconds),
        *(lambda: 1, lambda item: row_of(str(item)), 30),
        share=3,
    )
    waiting = [asyncio.create_task(put_all(batcher, adas[:3]))]
    async with asyncio.timeout(30):
        await batcher.put(BOB)
        waiting += [asyncio.create_task(put_all(batcher, [item])) for item in adas[3:]]
        assert await batcher.put(BOB)
        database.locked = set()
        answers = [answer for answers in await asyncio.gather(*waiting) for answer in answers]
        assert [type(answer) for answer in answers] == [str] * 4 + [TooManyRequests]
        assert await put_all(batcher, adas[:3]) == answers[:3]


async def test_a_cancelled_commit_cancels_all_waiting_items(
    batcher: "Batcher[Any, Any]", recorder: RecordingDatabase
) -> None:
    """When the event loop cancels the commit, no item waits for a result any longer."""
    before = asyncio.all_tasks()
    first = await recorder.busy(batcher)
    second = asyncio.create_task(batcher.put(2))
    await asyncio.sleep(0)
    [draining] = asyncio.all_tasks() - before - {first, second}
    draining.cancel()
    async with asyncio.timeout(30):
        answers = await asyncio.gather(first, second, return_exceptions=True)
    assert [type(answer) for answer in answers] == [asyncio.CancelledError] * 2
    recorder.open.set()
    assert await batcher.put(3) == "done 3"


class LockedDatabase:
    """Commits batches, except those with an item of a locked row; an item is a row and a number."""

    def __init__(self) -> None:
        self.locked: set[str] = set()
        self.batches: list[list[str]] = []
        self.patience: list[float] = []
        self.written: list[str] = []
        self.refused: list[list[str]] = []

    async def commit(self, items: Sequence[str], lock_seconds: float) -> list[str]:
        """Raise `RowLocked` if another transaction holds a row for a while."""
        self.batches.append(list(items))
        self.patience.append(lock_seconds)
        gives_up = time.monotonic() + lock_seconds / 10
        while self.locked & set(map(row_of, items)):
            if time.monotonic() > gives_up:
                self.refused.append(list(items))
                raise RowLocked
            await asyncio.sleep(min(lock_seconds / 10, 0.01))
        self.written += items
        return [f"done {item}" for item in items]


def row_of(item: str) -> str:
    """Return the row that an item needs."""
    return item.split(maxsplit=1)[0]


async def test_an_item_that_meets_a_lock_leaves_the_others_alone() -> None:
    """The rest of its batch is written; it is refused with the name of its row after the lock timeout."""
    database = LockedDatabase()
    database.locked = {"a"}
    batcher: Batcher[str, str] = Batcher(database.commit, lambda: 2, row_of, lock_seconds=0.2)
    answers = await put_all(batcher, ["a 1", "b 1", "c 1", "b 2"])
    assert [answers[place] for place in (1, 2, 3)] == ["done b 1", "done c 1", "done b 2"]
    assert isinstance(answers[0], ServiceUnavailable)
    assert "lock on the a for longer than 0.2 s" in str(answers[0])
    assert answers[0].headers == {"Retry-After": "1"}
    assert sorted(database.written) == ["b 1", "b 2", "c 1"]


async def test_items_of_a_known_lock_stop_no_batch_of_others() -> None:
    """While a row is known to be locked, its items are in no batch with others; then they are again."""
    database = LockedDatabase()
    database.locked = {"a"}
    batcher: Batcher[str, str] = Batcher(database.commit, lambda: 2, row_of, lock_seconds=60)
    waiting = [asyncio.create_task(put_all(batcher, ["a 1", "b 1"]))]
    await until(lambda: database.written)
    before = len(database.batches)
    waiting += [asyncio.create_task(put_all(batcher, [f"a {number}", f"b {number}"])) for number in (2, 3)]
    await until(lambda: len(database.written) == 3)
    assert [batch for batch in database.batches[before:] if len({*map(row_of, batch)}) > 1] == []
    database.locked.clear()
    async with asyncio.timeout(30):
        await asyncio.gather(*waiting)
    assert [item for item in database.written if row_of(item) == "a"] == ["a 1", "a 2", "a 3"]
    assert await put_all(batcher, ["a 4", "b 4"]) == ["done a 4", "done b 4"]
    assert database.batches[-1] == ["a 4", "b 4"]


async def test_attempts_for_a_known_lock_wait_longer_each_time() -> None:
    """They begin with 20 ms, and after four brief ones wait as long as their first item may.

    Several rows share this time. While a lock is known, no other batch waits for longer than 0.25 s.
    """
    database = LockedDatabase()
    database.locked = {"a"}
    batcher: Batcher[str, str] = Batcher(database.commit, lambda: 1, row_of, lock_seconds=60)
    waiting = [asyncio.create_task(batcher.put("a 1"))]
    await until(lambda: len(database.patience) == 6)
    assert database.patience[:5] == [1.0, 0.02, 0.04, 0.08, 0.16]
    assert 50 < database.patience[5] < 60
    await batcher.put("b 1")
    assert database.patience[database.batches.index(["b 1"])] == 0.25
    database.locked |= {"c", "d"}
    waiting += [asyncio.create_task(batcher.put(item)) for item in ("c 1", "d 1")]
    await until(lambda: len(batcher.batches) == 1 and len(database.batches) > 14)
    database.locked -= {"a"}
    await until(lambda: database.patience[-1] > 1)
    assert 25 < database.patience[-1] < 30
    database.locked = set()
    await asyncio.gather(*waiting)


class BusyRow:
    """A row that transactions lock in the order in which they ask for it. Some do so all the time."""

    def __init__(self) -> None:
        self._row = asyncio.Lock()
        self.written: list[list[str]] = []

    async def commit(self, items: Sequence[str], lock_seconds: float) -> list[str]:
        """Raise `RowLocked` if the others before this transaction need too long."""
        try:
            async with asyncio.timeout(lock_seconds / 10), self._row:
                self.written.append(sorted(items))
                return [f"done {item}" for item in items]
        except TimeoutError:
            raise RowLocked from None

    async def hold(self) -> None:
        """Lock the row for a moment, again and again."""
        while True:
            async with self._row:
                await asyncio.sleep(0.03)


@pytest.mark.parametrize("items", [["a 1", "a 2"], [f"{row} 1" for row in "abcdefgh"]])
async def test_items_keep_their_place_in_the_queue_of_a_busy_row(items: list[str]) -> None:
    """A transaction that gives up loses its place, so items that need a row of others' would starve.

    Items of several rows, such as claims of workers, wait together: they may all need one other row.
    """
    row = BusyRow()
    others = [asyncio.create_task(row.hold()) for _ in range(6)]
    batcher: Batcher[str, str] = Batcher(row.commit, lambda: 1, row_of, lock_seconds=20)
    async with asyncio.timeout(30):
        assert await put_all(batcher, items) == [f"done {item}" for item in items]
    assert row.written == [items]
    for other in others:
        other.cancel()


async def test_a_lock_is_forgotten_after_its_last_item() -> None:
    """Later items of its row join the batches of others again, and none counts as waiting."""
    database = LockedDatabase()
    batcher: Batcher[str, str] = Batcher(database.commit, lambda: 1, row_of, lock_seconds=0, max_waiting=3)
    for number in range(2):
        database.locked = {"a"}
        answers = await put_all(batcher, [f"a {number}", f"a {number}", f"b {number}"])
        assert [type(answer) for answer in answers] == [ServiceUnavailable, ServiceUnavailable, str]
        database.locked = set()
        await until(lambda: not batcher.batches)
        await asyncio.sleep(0)  # the lock is forgotten in the next cycle
        assert await put_all(batcher, ["a x", "b x", "c x"]) == ["done a x", "done b x", "done c x"]
        assert database.batches[-1] == ["a x", "b x", "c x"]


async def test_a_lock_stays_known_after_its_last_item() -> None:
    """Meanwhile later items of its row wait apart from others, each for its own time."""
    database = LockedDatabase()
    database.locked = {"a"}
    batcher: Batcher[str, str] = Batcher(database.commit, lambda: 1, row_of, lock_seconds=0.5)
    for number in range(3):
        answers = await put_all(batcher, [f"a {number}", f"b {number}"])
        assert [type(answer) for answer in answers] == [ServiceUnavailable, str]
    assert [batch for batch in database.batches if len(batch) > 1] == [["a 0", "b 0"]]


async def test_locks_take_turns_and_new_ones_wait_for_none() -> None:
    """The rows of a refused batch are tried while longer attempts wait for those that stay locked."""
    database = LockedDatabase()
    database.locked = {"a", "b", "c"}
    batcher: Batcher[str, str] = Batcher(database.commit, lambda: 1, row_of, lock_seconds=60)
    waiting = [asyncio.create_task(put_all(batcher, ["a 1", "b 1", "c 1"]))]
    await until(lambda: len(database.batches) > 13)
    single = [batch[0] for batch in database.batches[1:10]]
    assert all(len({*single[start : start + 3]}) == 3 for start in range(len(single) - 2))
    database.locked.add("d")
    waiting.append(asyncio.create_task(put_all(batcher, ["d 1", "e 1"])))
    await until(lambda: "e 1" in database.written)
    index = database.refused.index(["d 1", "e 1"])
    assert {row_of(items[0]) for items in database.refused[index:]} == {"d"}
    database.locked = set()
    async with asyncio.timeout(30):
        await asyncio.gather(*waiting)


async def test_more_items_of_a_lock_than_a_batch_takes() -> None:
    """They are tried in bounded batches, written in their order, and none counts as waiting afterwards."""
    database, count = LockedDatabase(), module.MAX_BATCH + 10
    batcher: Batcher[str, str] = Batcher(
        *(database.commit, lambda: 1, row_of), lock_seconds=60, max_waiting=count + 5
    )
    items = [f"a {number}" for number in range(count)]
    for _ in range(2):
        database.locked, database.written, database.patience = {"a"}, [], []
        waiting = asyncio.create_task(put_all(batcher, items))
        await until(lambda: len(database.patience) > 3)
        database.locked = set()
        assert await waiting == [f"done {item}" for item in items]
        assert database.written == items
    assert max(map(len, database.batches)) == module.MAX_BATCH


async def test_a_cancelled_attempt_for_a_lock_cancels_the_items_of_all_locks() -> None:
    """When the event loop cancels it, no item waits for a result, and later items are written."""
    database = LockedDatabase()
    database.locked = {"a", "b"}
    batcher: Batcher[str, str] = Batcher(database.commit, lambda: 1, row_of, lock_seconds=60, max_waiting=4)
    waiting = asyncio.create_task(put_all(batcher, ["a 1", "b 1", "a 2", "b 2"]))
    await until(lambda: len(database.patience) > 5)
    [trying] = batcher.batches
    trying.cancel()
    assert [type(answer) for answer in await waiting] == [asyncio.CancelledError] * 4
    database.locked = set()
    assert await put_all(batcher, ["a 3", "b 3", "a 4", "b 4"]) == [
        f"done {item}" for item in ("a 3", "b 3", "a 4", "b 4")
    ]


async def test_one_batch_commits_at_a_time(batcher: "Batcher[Any, Any]", recorder: RecordingDatabase) -> None:
    """With a concurrency of one there is never a second commit, however many came before."""
    await put_all(batcher, range(3))
    await batcher.put(3)
    first = await recorder.busy(batcher)
    second = asyncio.create_task(batcher.put("second"))
    for _ in range(10):
        await asyncio.sleep(0)
    assert recorder.batches[-1] == ["first"]
    recorder.open.set()
    assert await asyncio.gather(first, second) == ["done first", "done second"]


def test_one_batcher_serves_several_event_loops() -> None:
    """A host's test client may run each request in its own event loop; the batcher keeps no loop."""

    async def commit(items: Sequence[int], _: float) -> list[int]:
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


async def test_a_batch_has_a_bounded_weight(recorder: RecordingDatabase) -> None:
    """Heavy items wait for the next batch; one that is heavier than the bound has a batch of its own."""
    weighed: Batcher[Any, Any] = Batcher(recorder.commit, lambda: 1, weigh=len, max_weight=5)
    first = await recorder.busy(weighed)
    items = ["aa", "bbb", "c", "dddddddd", "ee"]
    tasks = [asyncio.create_task(weighed.put(item)) for item in items]
    await asyncio.sleep(0)
    recorder.open.set()
    await asyncio.gather(first, *tasks)
    assert recorder.batches == [["first"], ["aa", "bbb"], ["c"], ["dddddddd"], ["ee"]]
