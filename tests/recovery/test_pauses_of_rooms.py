"""Pauses of rooms, of all rooms, and until a time: no task is claimed meanwhile, and no other room waits."""

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from databases import every_kind
from replica import ADMIN, OWNER, ManualClock, OpenReplica, Replica, internal, wait_until_waiting
from schedules.test_job_schedules import tasks

from recovery.test_internal_dispatch import start, worker
from recovery.test_internal_order import BoundedBroker, broker, submit  # noqa: F401 - a fixture
from recovery.test_time_limits import LONG, SOON
from zndraw_joblib.server.admin import rules_overview
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.tables import Pause
from zndraw_joblib.server.queue import rules_history, rules_pauses, rules_sweep
from zndraw_joblib.wire.messages import EmptyReason
from zndraw_joblib.wire.problems import InvalidRequest
from zndraw_joblib.wire.statuses import TaskStatus

MINUTE = timedelta(minutes=1)


async def claimed(replica: Replica, worker_id: UUID | None, count: int, **options: Any) -> list[UUID]:
    """Claim up to `count` tasks; return their ids."""
    response = await replica.claim_response(worker_id, max=count, **options)
    return [task.id for task in response.tasks]


@every_kind
async def test_a_paused_room_blocks_no_other(replica: Replica, subtests: pytest.Subtests) -> None:
    """Its tasks are first in the queue, and stay; single, batch, started and repeated claims get others."""
    job = await replica.register()
    other_job = await replica.register("Other", worker=job.worker_id)
    first = [(await replica.submit(job, room="a")).id for _ in range(3)]
    others = [(await replica.submit(each, room="b")).id for _ in range(3) for each in (job, other_job)]
    assert (await replica.pause_room("a")).paused
    with subtests.test("one"):
        assert await claimed(replica, job.worker_id, 1) == others[:1]
    with subtests.test("repeated and started"):
        claim_id = uuid4()
        for _ in range(2):
            assert await claimed(replica, job.worker_id, 2, claim_id=claim_id, start=True) == others[1:3]
    with subtests.test("several workers at once"):
        lone = await replica.register("Other", by=OWNER)
        requests = [claimed(replica, job.worker_id, 2), claimed(replica, lone.worker_id, 9)]
        first_ids, lone_ids = await asyncio.gather(*requests)
        assert sorted(first_ids + lone_ids) == sorted(others[3:])
    response = await replica.claim_response(job.worker_id)
    assert (response.task, response.reason) == (None, EmptyReason.PAUSED)
    assert await replica.explain(first[0]) == ["paused", "queued"]
    assert not (await replica.resume_room("a")).paused
    assert await claimed(replica, job.worker_id, 9) == first


@every_kind
async def test_all_rooms_are_paused(replica: Replica) -> None:
    """Also those that have no pause of their own, and those that have one after the resume of all."""
    job = await replica.register()
    task_ids = [(await replica.submit(job, room=room)).id for room in ("a", "b")]
    await replica.pause_room(None)
    await replica.pause_room("a")
    assert len((await replica.pause_room("a")).pauses) == 2
    response = await replica.claim_response(job.worker_id, max=5)
    assert (response.tasks, response.reason) == ([], EmptyReason.PAUSED)
    await replica.resume_room(None)
    assert await claimed(replica, job.worker_id, 5) == task_ids[1:]
    await replica.resume_room("a")
    assert await claimed(replica, job.worker_id, 5) == task_ids[:1]


@every_kind
async def test_fair_claims_and_limits_of_rooms_obey_pauses(replica: Replica) -> None:
    """They read the rooms of a queue, without paused ones."""
    job = await replica.register()
    by_room = {room: [(await replica.submit(job, room=room)).id for _ in range(2)] for room in "abc"}
    await replica.pause_room("a")
    replica.runtime.settings.room_max_in_flight = 1
    assert await claimed(replica, job.worker_id, 9) == [by_room["b"][0], by_room["c"][0]]
    replica.runtime.settings.room_max_in_flight = None
    replica.runtime.settings.claim_order = "fair"
    assert await claimed(replica, job.worker_id, 9) == [by_room["b"][1], by_room["c"][1]]
    assert (await replica.claim_response(job.worker_id)).reason is EmptyReason.PAUSED


async def test_a_pause_ends_by_itself(timed: Replica, clock: ManualClock) -> None:
    """Of a job, a room or all rooms, although no server has ended it: claims compare it with the time."""
    job = await timed.register()
    lone = await timed.register("Other", "lab", worker=job.worker_id)
    for is_room in (False, True):
        end, task = clock.now + MINUTE, await timed.submit(lone)
        await (timed.pause_room("lab", end) if is_room else timed.pause(lone, until=end))
        assert (await timed.claim_response(job.worker_id)).reason is EmptyReason.PAUSED
        explanation = await timed.runtime.database.read(rules_history.explain, task.id, timed.runtime.order)
        assert explanation.reasons[0].code == "paused"
        assert f"until {end:%Y-%m-%d %H:%M:%S} UTC" in explanation.reasons[0].detail
        clock.advance(60)
        assert (await timed.claim_task(job.worker_id)).id == task.id
        assert (await timed.claim_response(job.worker_id)).reason is EmptyReason.EMPTY
    task = await timed.submit(job)
    await timed.pause_room(None, clock.now + MINUTE)
    clock.advance(60)
    assert [each.id for each in (await timed.claim_response(job.worker_id, max=2)).tasks] == [task.id]
    with pytest.raises(InvalidRequest, match=r"until: 20.* is over"):
        await timed.pause_room("lab", clock.now)


@pytest.mark.parametrize("what", ["job", "room", "all"])
async def test_waiting_claims_wake_when_a_pause_ends(
    timed: Replica, clock: ManualClock, new_database: Any, what: str
) -> None:
    """As many as there are tasks, also on a server that did not pause; the pause is gone then."""
    other = Replica(new_database(clock), timed.engine)
    job = await timed.register()
    end = clock.now + MINUTE
    await (timed.pause(job, until=end) if what == "job" else timed.pause_room({"room": "lab"}.get(what), end))
    waiting = [asyncio.create_task(other.claim(job.worker_id, wait=LONG)) for _ in range(3)]
    await wait_until_waiting(other, 3)
    submitted = [(await timed.submit(job)).id for _ in range(2)]
    assert (await other.runtime.write(rules_sweep.next_due)).seconds == 60
    await wait_until_waiting(other, 3)
    assert not any(claim.done() for claim in waiting)
    clock.advance(60)
    assert (await other.runtime.write(rules_sweep.next_due)).seconds is None
    async with asyncio.timeout(SOON):
        while sum(claim.done() for claim in waiting) < 2:
            await asyncio.wait([c for c in waiting if not c.done()], return_when=asyncio.FIRST_COMPLETED)
    other.runtime.waiters.close()
    ids = [task.id for task in await asyncio.gather(*waiting) if task]
    assert sorted(ids) == sorted(submitted)
    assert await timed.rows(Pause.__table__) == []
    await other.runtime.finish()


async def test_a_pause_with_an_end_is_ended_in_time(open_replica: OpenReplica) -> None:
    """The loop of each server knows of it, and sleeps until then."""
    replica = open_replica()
    job = await replica.register()
    task = await replica.submit(job)
    loop = asyncio.create_task(replica.scheduler.run())

    async def pause(tx: Transaction) -> None:
        # By the time of this transaction: a slow machine needs longer than the pause for another one.
        await rules_pauses.pause(tx, ADMIN, "lab", until=await tx.now() + timedelta(seconds=0.3))

    await replica.runtime.write(pause)
    waiting = asyncio.create_task(replica.claim(job.worker_id, wait=LONG))
    async with asyncio.timeout(SOON):
        claimed_task = await waiting
    assert claimed_task is not None
    assert claimed_task.id == task.id
    loop.cancel()


@pytest.mark.usefixtures("broker")
async def test_internal_tasks_of_a_paused_room_wait(timed: Replica, broker: BoundedBroker) -> None:  # noqa: F811
    """Those of other rooms are dispatched; one that the broker has already returns to its queue."""
    [sent] = await submit(timed, "Alpha")
    assert await broker.take(timed, 1) == [sent]
    waits = [(await timed.submit(str(internal("Alpha")), room="lab")).id for _ in range(2)]
    other = (await timed.submit(str(internal("Beta")), room="attic")).id
    await timed.pause_room("lab")
    assert await broker.take(timed, 2) == [other]
    worker_id = await worker(timed)
    assert await start(timed, worker_id, sent, name="Alpha") == [None]
    assert (await timed.get(sent)).status is TaskStatus.PENDING
    assert await broker.take(timed, 2) == []
    await timed.resume_room("lab")
    await timed.pause_room(None)
    assert await broker.take(timed, 2) == []
    await timed.resume_room(None)
    assert await broker.take(timed, 4) == [sent, *waits]


@pytest.mark.parametrize(
    ("room", "catch_up", "count"), [("lab", "none", 1), (None, "last", 1), ("lab", "all", 5)]
)
async def test_schedules_of_a_paused_room_wait(
    timed: Replica, clock: ManualClock, room: str | None, catch_up: str, count: int
) -> None:
    """What was due meanwhile follows `catch_up`, as after a pause of the schedule; other rooms go on."""
    job = await timed.register()
    for each in ("lab", "attic"):
        await timed.put_schedule(job, "s", each, every_seconds=60, catch_up=catch_up, max_catch_up=50)
    await timed.pause_room(room, clock.now + 5 * MINUTE + timedelta(seconds=1))
    clock.advance(5 * 60)
    await timed.submit_due()
    assert await tasks(timed) == []
    assert bool(await tasks(timed, "attic")) == (room is not None)
    clock.advance(1)
    await timed.submit_due()
    assert len(await tasks(timed)) == count
    assert (await timed.schedule("s")).next_due_at == clock.now + MINUTE - timedelta(seconds=1)


@every_kind
async def test_operators_see_pauses(replica: Replica) -> None:
    """The overview lists them with findings, a room has its own and that of all rooms."""
    job = await replica.register()
    await replica.submit(job)
    await replica.pause_room("lab")
    overview = await replica.overview()
    assert [pause.room for pause in overview.pauses] == ["lab"]
    assert [(each.code, each.room, each.count) for each in overview.findings][:1] == [
        ("room-paused", "lab", 1)
    ]
    await replica.pause_room(None)
    room = await replica.runtime.database.read_snapshot(rules_overview.read_room, "lab")
    assert [(pause.room, pause.paused_by) for pause in room.pauses] == [(None, ADMIN.id), ("lab", ADMIN.id)]
    assert [finding.code for finding in room.findings] == ["queue-paused", "room-paused"]
    metrics = await replica.metrics()
    assert (metrics.paused_rooms, metrics.is_paused) == (1, True)
    await replica.runtime.write(rules_pauses.resume, ADMIN, None)


async def test_waiters_do_not_claim_for_paused_tasks(replica: Replica) -> None:
    """The re-check wakes no claim for a queue in which all tasks are of paused rooms."""
    job = await replica.register()
    await replica.submit(job, room="a")
    await replica.pause_room("a")
    waiting = asyncio.create_task(replica.claim(job.worker_id, wait=LONG))
    await wait_until_waiting(replica, 1)
    statements = replica.record_statements()
    await replica.runtime.recheck.run()
    await wait_until_waiting(replica, 1)
    assert not any("joblib_worker " in statement.sql for statement in statements)
    await replica.resume_room("a")
    assert (await waiting) is not None
