"""Pub/sub between replicas: what it delivers, its limits, and its reconnection."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import redis.asyncio
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from waiting import until

from zndraw_joblib.server.process.ports import OpenConnection, PubSubConnection, Wake
from zndraw_joblib.server.process.pubsub import PubSub


class Peer:
    """One replica: its pub/sub, everything that it received, and the frames that it sent."""

    def __init__(self, open_connection: OpenConnection, **options: Any) -> None:
        self.wakes: list[tuple[str, int | None]] = []
        self.messages: list[str] = []
        self.rechecks = 0
        self.frames: list[str] = []
        self.pubsub = PubSub(lambda key, limit: self.wakes.append((key, limit)), self._recheck, **options)
        self.pubsub.subscribe(self.messages.append)
        self._open_connection = open_connection
        self.task = asyncio.create_task(self.pubsub.run(self._open_recorded))

    async def _recheck(self) -> None:
        self.rechecks += 1

    @asynccontextmanager
    async def _open_recorded(self) -> AsyncIterator[PubSubConnection]:
        async with self._open_connection() as connection:
            send = connection.send

            async def record(frame: str) -> None:
                assert len(frame) <= connection.frame_size
                self.frames.append(frame)
                await send(frame)

            connection.send = record
            yield connection

    async def stop(self) -> None:
        """Disconnect."""
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task


AddPeer = Callable[..., Peer]


@pytest.fixture
async def add_peer(open_connection: OpenConnection) -> AsyncIterator[AddPeer]:
    """Return a function that adds a replica."""
    peers: list[Peer] = []

    def add(**options: Any) -> Peer:
        peers.append(Peer(open_connection, **options))
        return peers[-1]

    yield add
    for peer in peers:
        await peer.stop()


async def connected(*peers: Peer) -> None:
    """Wait until all replicas know each other."""
    await until(lambda: all(len(peer.pubsub.peers) == len(peers) - 1 for peer in peers))


async def test_a_wake_up_reaches_the_other_replicas(add_peer: AddPeer) -> None:
    """It arrives with its limit at each other replica, and not at the sender."""
    sender, first, second = add_peer(), add_peer(), add_peer()
    await connected(sender, first, second)
    sender.pubsub.forward([Wake("job:a", 1), Wake("task:b", None)])
    await until(lambda: len(first.wakes) + len(second.wakes) == 4)
    assert sorted(first.wakes) == sorted(second.wakes) == [("job:a", 1), ("task:b", None)]
    assert sender.wakes == []


async def test_concurrent_wake_ups_share_one_message(add_peer: AddPeer) -> None:
    """The limits of equal keys are added."""
    sender, receiver = add_peer(), add_peer()
    await connected(sender, receiver)
    sent = len(sender.frames)
    for _ in range(50):
        sender.pubsub.forward([Wake("job:a", 2), Wake("job:b", 1)])
    sender.pubsub.forward([Wake("job:b", None)])
    await until(lambda: len(receiver.wakes) == 2)
    assert sorted(receiver.wakes) == [("job:a", 100), ("job:b", None)]
    assert len(sender.frames) == sent + 1


async def test_a_replica_without_peers_sends_nothing(add_peer: AddPeer) -> None:
    """It announces only itself; a replica that joins later receives no earlier messages."""
    sender = add_peer()
    await until(lambda: sender.frames)
    for number in range(100):
        sender.pubsub.forward([Wake(f"job:{number}", 1)])
        sender.pubsub.publish("x" * 100)
    late = add_peer()
    await connected(sender, late)
    sender.pubsub.publish("last")
    await until(lambda: late.messages)
    assert (late.wakes, late.messages) == ([], ["last"])


async def test_long_messages_arrive_complete_and_in_order(add_peer: AddPeer) -> None:
    """Also if they are longer than a frame, and with characters beyond ASCII."""
    sender, receiver = add_peer(), add_peer()
    await connected(sender, receiver)
    messages = [
        json.dumps({"number": number, "text": "ü€\x00" * 10_000 * (number % 3)}) for number in range(9)
    ]
    for message in messages:
        sender.pubsub.publish(message)
        await asyncio.sleep(0)
    await until(lambda: len(receiver.messages) == len(messages))
    assert receiver.messages == messages


async def test_too_many_keys_become_one_recheck(add_peer: AddPeer) -> None:
    """Instead of more than `max_keys` wake-ups, the other replicas check all their waiters."""
    sender, receiver = add_peer(max_keys=10), add_peer()
    await connected(sender, receiver)
    rechecks = receiver.rechecks
    sender.pubsub.forward([Wake(f"task:{number}", None) for number in range(11)])
    await until(lambda: receiver.rechecks == rechecks + 1)
    assert receiver.wakes == []


async def test_a_stopped_replica_is_forgotten(add_peer: AddPeer) -> None:
    """A replica announces its stop to the others."""
    remaining, stopping = add_peer(), add_peer()
    await connected(remaining, stopping)
    await stopping.stop()
    await until(lambda: not remaining.pubsub.peers)


async def test_a_lost_connection_is_reopened(
    add_peer: AddPeer, request: pytest.FixtureRequest, engine: AsyncEngine
) -> None:
    """Each replica checks all its waiters after the reconnection, and receives wake-ups again."""
    sender, receiver = add_peer(), add_peer()
    await connected(sender, receiver)
    rechecks = sender.rechecks, receiver.rechecks
    await _disconnect_all(request, engine)
    await until(lambda: sender.rechecks > rechecks[0] and receiver.rechecks > rechecks[1])
    await connected(sender, receiver)
    await until(lambda: sender.pubsub.is_open)
    sender.pubsub.forward([Wake("job:a", 1)])
    await until(lambda: receiver.wakes == [("job:a", 1)])


async def _disconnect_all(request: pytest.FixtureRequest, engine: AsyncEngine) -> None:
    if request.getfixturevalue("transport") == "valkey":
        async with redis.asyncio.Redis.from_url(request.getfixturevalue("valkey_url")) as client:
            await client.execute_command("CLIENT", "KILL", "SKIPME", "yes")
            return
    others = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    async with engine.connect() as connection:
        await connection.execute(text(others))


async def test_invalid_frames_are_ignored(add_peer: AddPeer, open_connection: OpenConnection) -> None:
    """A valid message after them arrives."""
    sender, receiver = add_peer(), add_peer()
    await connected(sender, receiver)
    async with open_connection() as connection:
        for frame in ("", "x", "a b c d", "a 1 1 {", "a 1 1 []", 'a 1 1 {"wake": 5}', "a 1 -1 {}"):
            await connection.send(frame)
    sender.pubsub.forward([Wake("job:a", 1)])
    await until(lambda: ("job:a", 1) in receiver.wakes)
    assert not receiver.task.done()


async def test_one_cancellation_stops_it(open_connection: OpenConnection) -> None:
    """Also if `send` raises a timeout error in place of the cancellation."""
    is_sending = asyncio.Event()

    @asynccontextmanager
    async def open_blocked() -> AsyncIterator[PubSubConnection]:
        async with open_connection() as connection:

            async def send(_: str) -> None:
                is_sending.set()
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    raise TimeoutError from None

            connection.send = send
            yield connection

    async def recheck() -> None: ...

    running = asyncio.create_task(PubSub(lambda key, limit: None, recheck).run(open_blocked))
    await is_sending.wait()
    running.cancel()
    done, _ = await asyncio.wait([running], timeout=20)
    assert done
