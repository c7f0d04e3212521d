"""The line between replicas: what it carries, what it does not, and that it comes back."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest
import redis.asyncio
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from waiting import until

from zndraw_joblib.server.ports import OpenConnection, PubSubConnection, Wake
from zndraw_joblib.server.pubsub import pubsub as module
from zndraw_joblib.server.pubsub.pubsub import PubSub


class End:
    """One end of the line, and what came out of it. `sent` counts what went in, on the wire itself."""

    def __init__(self, open_line: OpenConnection) -> None:
        self.woken: list[tuple[str, int | None]] = []
        self.posts: list[str] = []
        self.looks = 0
        self.frames: list[str] = []
        self.pubsub = PubSub(lambda key, limit: self.woken.append((key, limit)), self._look)
        self.pubsub.subscribe(self.posts.append)
        self._open_line = open_line
        self.task = asyncio.create_task(self.pubsub.run(self._watched))

    async def _look(self) -> None:
        self.looks += 1

    @asynccontextmanager
    async def _watched(self) -> AsyncIterator[PubSubConnection]:
        async with self._open_line() as line:
            send = line.send

            async def watch(frame: str) -> None:
                assert len(frame) <= line.frame_size
                self.frames.append(frame)
                await send(frame)

            line.send = watch
            yield line

    async def stop(self) -> None:
        """Leave."""
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task


@pytest.fixture
async def end(open_line: OpenConnection) -> AsyncIterator[Callable[[], End]]:
    """Return a function that adds an end to the line."""
    ends: list[End] = []

    def add() -> End:
        ends.append(End(open_line))
        return ends[-1]

    yield add
    for one in ends:
        await one.stop()


async def met(*ends: End) -> None:
    """Return once all ends know all others."""
    await until(lambda: all(len(one.pubsub._peers) == len(ends) - 1 for one in ends))


async def test_a_wake_reaches_the_others_and_not_the_sender(end: Callable[[], End]) -> None:
    """With its limit; what wakes all wakes all."""
    here, there, far = end(), end(), end()
    await met(here, there, far)
    here.pubsub.forward([Wake("job:a", 1), Wake("task:b", None)])
    await until(lambda: len(there.woken) + len(far.woken) == 4)
    assert sorted(there.woken) == sorted(far.woken) == [("job:a", 1), ("task:b", None)]
    assert here.woken == []


async def test_what_comes_together_goes_together(end: Callable[[], End]) -> None:
    """Many commits at once are one message, and their limits add up."""
    here, there = end(), end()
    await met(here, there)
    sent = len(here.frames)
    for _ in range(50):
        here.pubsub.forward([Wake("job:a", 2), Wake("job:b", 1)])
    here.pubsub.forward([Wake("job:b", None)])
    await until(lambda: len(there.woken) == 2)
    assert sorted(there.woken) == [("job:a", 100), ("job:b", None)]
    assert len(here.frames) == sent + 1


async def test_a_replica_that_is_alone_sends_nothing(end: Callable[[], End]) -> None:
    """But its greeting: what nobody hears is not sent, and does not pile up."""
    here = end()
    await until(lambda: here.frames)
    for number in range(100):
        here.pubsub.forward([Wake(f"job:{number}", 1)])
        here.pubsub.publish("x" * 100)
    assert not here.pubsub._wakes
    assert not here.pubsub._posts
    late = end()
    await met(here, late)
    assert (late.woken, late.posts) == ([], [])


async def test_long_texts_arrive_whole_and_in_order(end: Callable[[], End]) -> None:
    """Whatever the line's own limit is, and with characters beyond ASCII."""
    here, there = end(), end()
    await met(here, there)
    texts = [json.dumps({"number": number, "text": "ü€\x00" * 10_000 * (number % 3)}) for number in range(9)]
    for sent in texts:
        here.pubsub.publish(sent)
        await asyncio.sleep(0)
    await until(lambda: len(there.posts) == len(texts))
    assert there.posts == texts


async def test_too_many_to_name_make_the_others_look(
    end: Callable[[], End], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is in line is bounded."""
    monkeypatch.setattr(module, "_MAX_KEYS", 10)
    here, there = end(), end()
    await met(here, there)
    looks = there.looks
    here.pubsub.forward([Wake(f"task:{number}", None) for number in range(11)])
    await until(lambda: there.looks == looks + 1)
    assert there.woken == []


async def test_who_leaves_is_forgotten(end: Callable[[], End]) -> None:
    """With a word at a stop; without one after a while."""
    here, there = end(), end()
    await met(here, there)
    await there.stop()
    await until(lambda: not here.pubsub.has_peers)


async def test_a_line_that_breaks_is_opened_again(
    end: Callable[[], End], request: pytest.FixtureRequest, engine: AsyncEngine
) -> None:
    """Then everybody looks for what was missed, and wakes arrive as before."""
    here, there = end(), end()
    await met(here, there)
    looks = here.looks, there.looks
    await _break(request, engine)
    await until(lambda: here.looks > looks[0] and there.looks > looks[1])
    await met(here, there)
    await until(lambda: here.pubsub.is_open)
    here.pubsub.forward([Wake("job:a", 1)])
    await until(lambda: there.woken == [("job:a", 1)])


async def _break(request: pytest.FixtureRequest, engine: AsyncEngine) -> None:
    if request.getfixturevalue("way") == "valkey":
        async with redis.asyncio.Redis.from_url(request.getfixturevalue("valkey_url")) as client:
            await client.execute_command("CLIENT", "KILL", "SKIPME", "yes")
            return
    others = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    async with engine.connect() as connection:
        await connection.execute(text(others))


async def test_nonsense_on_the_line_is_passed_over(end: Callable[[], End], open_line: OpenConnection) -> None:
    """Whoever sends it: what comes after it arrives."""
    here, there = end(), end()
    await met(here, there)
    async with open_line() as line:
        for nonsense in ("", "x", "a b c d", "a 1 1 {", "a 1 1 []", 'a 1 1 {"wake": 5}', "a 1 -1 {}"):
            await line.send(nonsense)
    here.pubsub.forward([Wake("job:a", 1)])
    await until(lambda: ("job:a", 1) in there.woken)
    assert not there.task.done()


async def test_one_cancellation_ends_it(open_line: OpenConnection) -> None:
    """Also where whoever is just sending takes that for a time-out of his own."""
    is_sending = asyncio.Event()

    @asynccontextmanager
    async def deaf() -> AsyncIterator[PubSubConnection]:
        async with open_line() as line:

            async def send(_: str) -> None:
                is_sending.set()
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    raise TimeoutError from None

            line.send = send
            yield line

    async def look() -> None: ...

    running = asyncio.create_task(PubSub(lambda key, limit: None, look).run(deaf))
    await is_sending.wait()
    running.cancel()
    done, _ = await asyncio.wait([running], timeout=20)
    assert done
