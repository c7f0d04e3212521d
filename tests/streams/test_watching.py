"""What is written while a room is watched, and what it costs while none is."""

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from databases import every_kind, on_postgresql, on_sqlite
from replica import OWNER, SUBMITTER, OpenReplica, Replica
from waiting import until

from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.tables import RoomEvent, RoomStream
from zndraw_joblib.server.process.ports import events_key
from zndraw_joblib.server.queue import rules_retention, rules_room_events, rules_tasks
from zndraw_joblib.server.queue.rules_room_events import Part
from zndraw_joblib.server.queue.sql_streams import Bounds
from zndraw_joblib.server.realtime.streams import Reader, Streams
from zndraw_joblib.wire.messages import JobResponse, TaskSubmitRequest
from zndraw_joblib.wire.names import parse_job_name
from zndraw_joblib.wire.problems import ServiceUnavailable

TIMEOUT = 60.0
events, rooms = RoomEvent.__table__, RoomStream.__table__


@pytest.fixture
async def opened() -> AsyncIterator[list[Streams]]:
    """Return a list of streams to stop at the end."""
    made: list[Streams] = []
    yield made
    for each in made:
        await each.stop()


def seen(part: Part) -> list[Any]:
    """Return the ids of the tasks in the snapshot of a room."""
    snapshot: Any = part.snapshot
    return [task.id for task in snapshot.tasks]


async def submit_some(replica: Replica, job: JobResponse, room: str, count: int) -> list[Any]:
    """Submit tasks one after another; return their ids."""
    return [(await replica.submit(job, room=room)).id for _ in range(count)]


@every_kind
async def test_readers_register_among_writers(
    replica: Replica, open_replica: OpenReplica, opened: list[Streams]
) -> None:
    """Each task is in the snapshot or in one event, never in both, whichever server the reader asks."""
    pair = [replica, open_replica()]
    opened += [Streams(each.runtime) for each in pair]
    job = await replica.register()
    for number in range(6):
        room = f"room-{number}"
        writing = [asyncio.create_task(submit_some(pair[n % 2], job, room, 12)) for n in range(4)]
        found = opened[number % 2]
        async with asyncio.timeout(TIMEOUT), found.reader(OWNER, room) as reader:
            part = await found.read(reader, room, None)
            made = {task_id for ids in await asyncio.gather(*writing) for task_id in ids}
            first, got = part.next, list(seen(part))
            while len(got) < len(made):
                if not reader.has_new:
                    await reader.wait(TIMEOUT)
                entries = reader.take()
                if entries is None:
                    part = await found.read(reader, room, reader.position)
                    got += [item.task_id for item in part.events]
                else:
                    got += [entry.task_id for entry in entries]
        assert len(got) == len(made)
        assert set(got) == made
        numbers = [row.n for row in await replica.rows(events, events.c.room_id == room, events.c.n > first)]
        assert sorted(numbers) == list(range(first + 1, first + 1 + len(numbers)))


class SlowSubmit:
    """A submit that has written its task, and commits after `may_commit`."""

    def __init__(self, replica: Replica, job: JobResponse) -> None:
        self._item = replica.runtime.submission(
            SUBMITTER, "lab", parse_job_name(job.full_name), TaskSubmitRequest(payload={})
        )
        self.has_written, self.may_commit = asyncio.Event(), asyncio.Event()
        self.writing = asyncio.create_task(replica.runtime.write(self._submit))

    async def _submit(self, tx: Transaction) -> Any:
        [task] = await rules_tasks.submit_all(tx, [self._item])
        self.has_written.set()
        await self.may_commit.wait()
        return task


@pytest.mark.parametrize("kind", ["postgresql", "postgresql-of-a-host"])
async def test_a_reader_waits_for_transactions_that_do_not_know_it(
    replica: Replica, opened: list[Streams]
) -> None:
    """A transaction that saw no watched room writes no event; the reader's snapshot has what it commits."""
    opened.append(Streams(replica.runtime))
    slow = SlowSubmit(replica, await replica.register())
    async with asyncio.timeout(TIMEOUT), asyncio.TaskGroup() as group:
        await slow.has_written.wait()

        async def read() -> Part:
            async with opened[0].reader(OWNER, "lab") as reader:
                return await opened[0].read(reader, "lab", None)

        reading = group.create_task(read())
        await until(lambda: replica.rows(rooms))
        # The room is registered, and the transaction that does not know it is under way.
        assert not (await asyncio.wait([reading], timeout=0.3))[0]
        slow.may_commit.set()
        task = await slow.writing
    assert seen(reading.result()) == [task.id]
    assert await replica.rows(events) == []


async def read_tasks(found: Streams, reader: Reader, wanted: set[Any]) -> None:
    """Read a room until it had these tasks."""
    got: set[Any] = set()
    while not wanted <= got:
        if not reader.has_new:
            await reader.wait(TIMEOUT)
        entries = reader.take()
        if entries is None:
            part = await found.read(reader, "lab", reader.position)
            got |= {*(seen(part) if part.snapshot else ()), *(item.task_id for item in part.events)}
        else:
            got |= {entry.task_id for entry in entries}


@pytest.mark.parametrize("kind", ["postgresql", "postgresql-of-a-host"])
async def test_a_log_that_was_deleted_begins_anew_after_all_writers(
    replica: Replica, opened: list[Streams]
) -> None:
    """After an outage in which no server watched the room, a reader misses no task that commits late."""
    passed = 0.0
    found = Streams(replica.runtime, writers_seconds=0.2, monotonic=lambda: time.monotonic() + passed)
    opened.append(found)
    jobs = [await replica.register("Slow"), await replica.register("Quick")]
    async with asyncio.timeout(TIMEOUT), found.reader(OWNER, "lab") as reader:
        await found.read(reader, "lab", None)
        await replica.execute(rooms.delete())
        slow = SlowSubmit(replica, jobs[0])
        await slow.has_written.wait()
        # The time for which the room stays watched.
        passed = replica.runtime.settings.event_retention_seconds
        replica.runtime.waiters.wake(events_key("lab"))
        await until(lambda: replica.rows(rooms))
        quick = await replica.submit(jobs[1])
        assert len(await replica.rows(events)) == 1
        replica.runtime.waiters.wake(events_key("lab"))
        await reader.wait(0.5)
        assert not reader.has_new
        with pytest.raises(ServiceUnavailable):
            await found.read(reader, "lab", None)
        slow.may_commit.set()
        await read_tasks(found, reader, {quick.id, (await slow.writing).id})


@pytest.mark.parametrize("kind", ["postgresql", "postgresql-of-a-host"])
async def test_a_reader_goes_on_once_the_writers_of_a_gap_have_ended(
    replica: Replica, opened: list[Streams], caplog: pytest.LogCaptureFixture
) -> None:
    """After a wait for writers in vain, it does not wait until the room is due to be watched again."""
    opened.append(found := Streams(replica.runtime, writers_seconds=0.2))
    jobs = [await replica.register("Slow"), await replica.register("Quick")]
    async with asyncio.timeout(TIMEOUT), found.reader(OWNER, "lab") as reader:
        await found.read(reader, "lab", None)
        slow = SlowSubmit(replica, jobs[0])
        await slow.has_written.wait()
        # As if five events had been deleted before they were read.
        await replica.execute(rooms.update().values(first_n=rooms.c.last_n + 5, last_n=rooms.c.last_n + 5))
        quick = await replica.submit(jobs[1])
        await until(lambda: "Did not read the events" in caplog.text)
        slow.may_commit.set()
        await read_tasks(found, reader, {quick.id, (await slow.writing).id})


@on_postgresql
async def test_unwatched_rooms_cost_no_statement(replica: Replica, opened: list[Streams]) -> None:
    """On PostgreSQL submits, claims and reports run the statements that they run without event streams."""
    opened.append(Streams(replica.runtime))
    job, limited = await replica.register(), await replica.register("Limited", timeout_seconds=60)

    async def live() -> None:
        await replica.submit(job)
        await replica.submit(job, priority=1)
        for outcome in ("completed", "failed"):
            task = await replica.start(job.worker_id)
            await replica.report(
                task.id, outcome, attempt=1, **({"error": "no"} if outcome == "failed" else {})
            )

        await replica.submit(limited)
        task = await replica.start(limited.worker_id)
        await replica.report(task.id, "completed", attempt=1)
        await replica.runtime.submit_all([replica.runtime.submission(*each) for each in both])

    names = [parse_job_name(each.full_name) for each in (job, limited)]
    both = [(SUBMITTER, "lab", name, TaskSubmitRequest(payload={})) for name in names]
    statements = replica.record_statements()
    await live()
    assert statements
    assert not [sql for sql, _ in statements if sql.startswith("SELECT joblib_room_stream")]
    assert not [sql for sql, _ in statements if "joblib_room_event" in sql]
    assert await replica.rows(events) == []
    # The same in a watched room has events.
    async with opened[0].reader(OWNER, "lab"):
        await live()
    assert len(await replica.rows(events)) == 14


@on_sqlite
async def test_unwatched_rooms_cost_a_condition_on_sqlite(replica: Replica) -> None:
    """On SQLite the statements of submits, claims and reports return whether any room is watched."""
    job = await replica.register()
    await replica.submit(job)  # from then on the server knows the job
    statements = replica.record_statements()
    await replica.submit(job)
    task = await replica.start(job.worker_id)
    await replica.report(task.id, "completed", attempt=1)
    of_streams = [sql for sql, _ in statements if "joblib_room_stream" in sql]
    assert len(of_streams) == 4
    assert not [sql for sql in of_streams if sql.startswith("SELECT")]
    assert not [sql for sql, _ in statements if "joblib_room_event" in sql]


@every_kind
@pytest.mark.parametrize("recheck_seconds", [(600.0, 600.0)])
async def test_own_events_are_not_read_back(
    replica: Replica, open_replica: OpenReplica, opened: list[Streams]
) -> None:
    """What its own server commits reaches a reader without a read, in order with what another commits."""
    opened.append(Streams(replica.runtime))
    streams, other = opened[0], open_replica()

    async def taken(reader: Reader, count: int) -> list[Any]:
        entries: list[Any] = []
        while len(entries) < count:
            await reader.wait(TIMEOUT)
            entries += reader.take() or []
        return [entry.task_id for entry in entries]

    def reads() -> list[str]:
        return [sql for sql, _ in statements if sql.startswith("SELECT") and "joblib_room_event" in sql]

    job = await replica.register()
    async with asyncio.timeout(TIMEOUT), streams.reader(OWNER, "lab") as reader:
        await streams.read(reader, "lab", None)
        own = await submit_some(replica, job, "lab", 1)
        assert await taken(reader, 1) == own
        statements = replica.record_statements()
        own = await submit_some(replica, job, "lab", 5)
        assert await taken(reader, 5) == own
        assert statements
        assert not reads()
        foreign = await submit_some(other, job, "lab", 2)
        own = await submit_some(replica, job, "lab", 1)
        assert await taken(reader, 3) == foreign + own
        assert reads()


async def test_the_log_is_bounded(replica: Replica, opened: list[Streams]) -> None:
    """Writers delete the oldest events beyond the bounds in number and in bytes."""
    opened.append(Streams(replica.runtime))
    job = await replica.register()
    replica.runtime.settings.max_room_events = 20
    async with opened[0].reader(OWNER, "lab") as reader:
        start = (await opened[0].read(reader, "lab", None)).next
        await submit_some(replica, job, "lab", 50)
        [room] = await replica.rows(rooms)
        kept = await replica.rows(events)
        assert room.last_n == start + 50
        assert 20 <= len(kept) <= 22
        assert sorted(row.n for row in kept) == list(range(room.first_n + 1, room.last_n + 1))
        assert room.size == sum(row.size for row in kept) == sum(len(row.data) for row in kept)
        part = await opened[0].read(reader, "lab", start)
        assert part.resync is not None
        assert len(seen(part)) == 50
        await replica.execute(rooms.update().values(max_bytes=1000))
        await submit_some(replica, job, "lab", 1)
        [room] = await replica.rows(rooms)
        assert 0 < room.size <= 1000


async def test_old_events_and_rooms_without_readers_are_deleted(timed: Replica, clock: Any) -> None:
    """The sweeper deletes events after their time, and all of a room that was not watched for that time."""
    job = await timed.register()
    bounds = Bounds.of(timed.runtime.settings)
    await timed.runtime.write(rules_room_events.watch, "lab", bounds)
    await timed.submit(job)
    clock.advance(600)
    start = await timed.runtime.write(rules_room_events.watch, "lab", bounds)
    task = await timed.submit(job)
    clock.advance(400)
    keep = timedelta(seconds=900)
    pruned, room = await timed.runtime.write(rules_retention.prune, rules_retention.EVENTS, keep, "")
    assert (pruned, room) == ((1, True), "lab")
    assert [row.task_id for row in await timed.rows(events)] == [task.id]
    assert (
        await timed.runtime.database.read_snapshot(rules_room_events.read, "lab", None, start.last)
    ).resync is None
    first = await timed.runtime.database.read_snapshot(rules_room_events.read, "lab", None, start.last - 1)
    assert first.resync is not None
    clock.advance(600)
    pruned, room = await timed.runtime.write(rules_retention.prune, rules_retention.EVENTS, keep, "")
    assert (pruned.deleted, room) == (2, "lab")
    assert await timed.rows(events) == await timed.rows(rooms) == []
    assert await timed.runtime.write(rules_retention.prune, rules_retention.EVENTS, keep, room) == (
        (0, False),
        "",
    )
    # A later log has greater numbers.
    assert (await timed.runtime.write(rules_room_events.watch, "lab", bounds)).first > start.last
