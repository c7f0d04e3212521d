"""With `claim_order` "fair" rooms take turns, however long the backlog of one room is."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from databases import every_kind, on_sqlite
from replica import OWNER, ManualClock, Replica
from sqlalchemy import text

from zndraw_joblib.server.queue import rules_claims, rules_task_actions
from zndraw_joblib.server.queue.rules_claims import Claim
from zndraw_joblib.wire.messages import EmptyReason, JobResponse, TaskResponse
from zndraw_joblib.wire.policy import JobLimit
from zndraw_joblib.wire.statuses import TaskStatus

BACKLOGS = {"a": 9, "b": 2, "c": 5, "d": 1}
MANY_ROOMS = {f"{number:02}": 1 + number % 3 for number in range(30)}
# With a limit per key that is never full, each room has a queue for each key.
KEYED = pytest.mark.parametrize(
    "limits", [[], [JobLimit(key="/user", max_in_flight=100)]], ids=["free", "keyed"]
)
ROOMS = pytest.mark.parametrize("of", [BACKLOGS, MANY_ROOMS], ids=["few", "many"])


@pytest.fixture(autouse=True)
def fair(request: pytest.FixtureRequest) -> None:
    """Set `claim_order` to fair."""
    for name in ("timed", "pair"):
        if name in request.fixturenames:
            found = request.getfixturevalue(name)
            for replica in found if isinstance(found, list) else [found]:
                replica.runtime.settings.claim_order = "fair"


async def backlog(replica: Replica, job: JobResponse, of: Mapping[str, int]) -> list[TaskResponse]:
    """Submit all tasks of one room, then all of the next."""
    return [
        await replica.submit(job, {"user": number % 3}, room=room)
        for room, count in of.items()
        for number in range(count)
    ]


def rounds(of: Mapping[str, int]) -> list[str]:
    """Return the rooms in the order of their claims."""
    left, turns = Counter(of), []
    while left:
        turns += sorted(left)
        left = +(left - Counter(sorted(left)))
    return turns


@KEYED
@ROOMS
async def test_rooms_take_turns_claim_by_claim(
    timed: Replica, clock: ManualClock, limits: list[JobLimit], of: dict[str, int]
) -> None:
    """Each room has one claim in each round while it has tasks."""
    job = await timed.register(limits=limits)
    submitted = await backlog(timed, job, of)
    claimed = []
    for _ in submitted:
        clock.advance(0.001)
        claimed.append(await timed.claim_task(job.worker_id))
    assert [task.room_id for task in claimed] == rounds(of)
    assert_in_order(submitted, claimed)


def assert_in_order(submitted: list[TaskResponse], claimed: list[TaskResponse]) -> None:
    """Assert that each room's tasks were claimed in the order of arrival."""
    for room in {task.room_id for task in submitted}:
        claimed_ids = [task.id for task in claimed if task.room_id == room]
        assert claimed_ids == [task.id for task in submitted if task.room_id == room]


@KEYED
@ROOMS
@pytest.mark.parametrize("most", [1, 3, 100])
async def test_rooms_take_turns_within_a_batch(
    timed: Replica, clock: ManualClock, most: int, limits: list[JobLimit], of: dict[str, int]
) -> None:
    """Claims of one transaction follow the same rounds, also if each is for many tasks."""
    job = await timed.register(limits=limits)
    submitted = await backlog(timed, job, of)
    assert job.worker_id is not None
    item = Claim(OWNER, job.worker_id, 15, None, timed.runtime.order, most)
    items = [item] * (len(submitted) // most + 2)
    answers: list[Any] = await timed.runtime.write(lambda tx: rules_claims.claim(tx, items))
    claimed = [task for answer in answers for task in answer.tasks]
    assert [task.room_id for task in claimed] == rounds(of)
    assert_in_order(submitted, claimed)


@KEYED
async def test_rooms_take_turns_up_to_their_cap(
    timed: Replica, clock: ManualClock, limits: list[JobLimit]
) -> None:
    """In one claim each room gets its turns until it has as many tasks as a room may have in flight."""
    timed.runtime.settings.room_max_in_flight = 2
    job = await timed.register(limits=limits)
    await backlog(timed, job, BACKLOGS)
    claimed = (await timed.claim_response(job.worker_id, max=100)).tasks or []
    assert [task.room_id for task in claimed] == rounds({"a": 2, "b": 2, "c": 2, "d": 1})


async def test_a_new_room_has_its_turn_at_once(timed: Replica, clock: ManualClock) -> None:
    """Its first task waits for at most one of the thousand tasks of another room."""
    job = await timed.register()
    await asyncio.gather(*[timed.submit(job, room="flood") for _ in range(300)])
    for _ in range(3):
        clock.advance(1)
        await timed.claim_task(job.worker_id)
    late = await timed.submit(job, room="late")
    clock.advance(1)
    assert (await timed.claim_task(job.worker_id)).id == late.id
    clock.advance(1)
    assert (await timed.claim_task(job.worker_id)).room_id == "flood"
    again = await timed.submit(job, room="late")
    clock.advance(1)
    assert (await timed.claim_task(job.worker_id)).id == again.id


async def test_priorities_hold_within_a_room(timed: Replica, clock: ManualClock) -> None:
    """A high priority gives a room no additional turn."""
    job = await timed.register()
    low = [await timed.submit(job, room="a") for _ in range(3)]
    high = [await timed.submit(job, room="a", priority=9) for _ in range(3)]
    other = [await timed.submit(job, room="b") for _ in range(6)]
    claimed = []
    for _ in range(12):
        clock.advance(1)
        claimed.append((await timed.claim_task(job.worker_id)).id)
    assert [id_ for id_ in claimed if id_ not in {task.id for task in other}] == [t.id for t in high + low]
    ahead = 0
    for id_ in claimed[:10]:
        ahead += -1 if id_ in {task.id for task in other} else 1
        assert -1 <= ahead <= 2


async def test_first_come_first_served_is_the_default(timed: Replica, clock: ManualClock) -> None:
    """Without the setting the oldest tasks go first, whatever their room."""
    timed.runtime.settings.claim_order = "fifo"
    job = await timed.register()
    submitted = await backlog(timed, job, BACKLOGS)
    claimed = []
    for _ in submitted:
        clock.advance(1)
        claimed.append((await timed.claim_task(job.worker_id)).id)
    assert claimed == [task.id for task in submitted]


async def test_a_returning_task_takes_no_additional_turn(timed: Replica, clock: ManualClock) -> None:
    """It is the first of its room again, and the rooms keep taking turns."""
    job = await timed.register()
    await backlog(timed, job, {"a": 4, "b": 4})
    turns = []
    for count in range(6):
        clock.advance(1)
        task = await timed.claim_task(job.worker_id)
        turns.append(task.room_id)
        if count == 0:
            await timed.act(rules_task_actions.release, task.id)
    assert Counter(turns) == {"a": 3, "b": 3}


@every_kind
async def test_two_replicas_let_rooms_take_turns(pair: list[Replica]) -> None:
    """Each claim sees the claims of the other replica: no room is two turns ahead."""
    job = await pair[0].register()
    submitted = await backlog(pair[0], job, {"a": 12, "b": 12, "c": 3})
    claimed: Counter[str] = Counter()
    for turn in range(18):
        claimed[(await pair[turn % 2].claim_task(job.worker_id)).room_id] += 1
        ahead = [claimed[room] for room in ("a", "b")] + ([claimed["c"]] if claimed["c"] < 3 else [])
        assert max(ahead) - min(ahead) <= 1
    assert len(submitted) - sum(claimed.values()) == 9


@every_kind
async def test_turns_of_concurrent_claims(pair: list[Replica]) -> None:
    """Claims of two replicas take each task once, and each room gets about its share."""
    job = await pair[0].register()
    await backlog(pair[0], job, {"a": 30, "b": 10, "c": 10})
    claimed: list[TaskResponse] = []
    for _ in range(5):
        claim_requests = [pair[turn % 2].claim(job.worker_id, wait=30) for turn in range(6)]
        claimed += [task for task in await asyncio.gather(*claim_requests) if task]
    assert len({task.id for task in claimed}) == len(claimed) == 30
    rooms = Counter(task.room_id for task in claimed)
    assert min(rooms.values()) >= 7
    for task in claimed:
        await pair[0].report(task.id, TaskStatus.CANCELLED, attempt=task.attempt)


async def test_a_room_at_its_limit_misses_its_turn(timed: Replica, clock: ManualClock) -> None:
    """The other rooms keep taking turns."""
    timed.runtime.settings.room_max_in_flight = 2
    job = await timed.register()
    await backlog(timed, job, {"a": 5, "b": 3, "c": 1})
    turns, held = [], []
    for _ in range(5):
        clock.advance(1)
        held.append(await timed.claim_task(job.worker_id))
        turns.append(held[-1].room_id)
    assert turns == ["a", "b", "c", "a", "b"]
    clock.advance(1)
    assert job.worker_id is not None
    items = [Claim(OWNER, job.worker_id, 15, None, timed.runtime.order)]
    answers: list[Any] = await timed.runtime.write(lambda tx: rules_claims.claim(tx, items))
    [refused] = answers
    assert (refused.tasks, refused.reason, refused.is_contended) == ([], EmptyReason.AT_CAPACITY, False)
    await timed.report(held[1].id, TaskStatus.CANCELLED)
    clock.advance(1)
    assert (await timed.claim_task(job.worker_id)).room_id == "b"


async def test_rising_priorities_give_a_room_no_additional_turn(timed: Replica, clock: ManualClock) -> None:
    """A room whose tasks have ever higher priorities alternates with a room of one high priority."""
    job = await timed.register()
    for priority in range(10):
        await timed.submit(job, room="a", priority=priority)
        await timed.submit(job, room="b", priority=1000)
    turns = ""
    for _ in range(20):
        clock.advance(1)
        turns += (await timed.claim_task(job.worker_id)).room_id
    assert turns == 10 * "ab"


async def test_rooms_take_turns_over_several_jobs(timed: Replica, clock: ManualClock) -> None:
    """A room with a long backlog in one job does not delay rooms in other jobs of the worker."""
    first = await timed.register("A")
    second = await timed.register("B", worker=first.worker_id)
    await backlog(timed, first, {"flood": 20})
    await backlog(timed, second, {"x": 3, "y": 3})
    turns = []
    for _ in range(9):
        clock.advance(1)
        turns.append((await timed.claim_task(first.worker_id)).room_id)
    assert Counter(turns) == {"flood": 3, "x": 3, "y": 3}


@on_sqlite
async def test_names_sort_as_the_database_sorts_them(timed: Replica, clock: ManualClock) -> None:
    """Its collation may differ from the order of code points, such as alice < bob < Carol < Zed."""
    for statement in (
        "DROP TABLE joblib_room_queue",
        "CREATE TABLE joblib_room_queue (job_id CHAR(32), room_id VARCHAR(128) COLLATE NOCASE, lane INT,"
        " seq BIGINT, PRIMARY KEY (job_id, room_id))",
    ):
        await timed.execute(text(statement))
    job = await timed.register()
    rooms = ["alice", "bob", "Carol", "Zed"]
    for backlogs in ({"bob": 1}, {"Carol": 2}, {"Zed": 1}, {"alice": 1}, dict.fromkeys(rooms, 3)):
        submitted = await backlog(timed, job, backlogs)
        clock.advance(1)
        assert job.worker_id is not None
        items = [Claim(OWNER, job.worker_id, 15, None, timed.runtime.order)] * len(submitted)
        answers: list[Any] = await timed.runtime.write(lambda tx, items=items: rules_claims.claim(tx, items))
        claimed = [task for answer in answers for task in answer.tasks]
        assert {task.id for task in claimed} == {task.id for task in submitted}
        assert len(claimed) == len(submitted)
    assert [task.room_id for task in claimed] == ["bob", "Carol", "Zed", "alice"] * 3
