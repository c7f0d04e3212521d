"""Whose answer was lost asks again with the same mark, and gets the same task, as long as it is held."""

import asyncio
from typing import Any
from uuid import UUID, uuid4

import pytest
from databases import every_kind
from replica import OWNER, HandClock, Replica

from recovery.test_clocks import LONG, claims_asleep, no_safety_net  # noqa: F401 - a fixture
from zndraw_joblib.contract.messages import EmptyReason
from zndraw_joblib.contract.problems import ProblemException
from zndraw_joblib.contract.status import TaskStatus
from zndraw_joblib.server.service import claims, task_actions
from zndraw_joblib.server.service.claims import Claim, ClaimResult


async def batch(replica: Replica, *asked: tuple[UUID | None, UUID | None]) -> list[UUID | None]:
    """Claim for several in one transaction; return the tasks."""
    items = [Claim(OWNER, worker, 15, mark) for worker, mark in asked if worker is not None]
    answers: list[ClaimResult | ProblemException] = await replica.runtime.write(
        lambda tx: claims.claim(tx, items)
    )
    found: list[UUID | None] = []
    for answer in answers:
        assert isinstance(answer, ClaimResult)
        found.append(answer.task and answer.task.id)
    return found


@every_kind
async def test_a_repeated_claim_gets_the_same_task(timed: Replica, clock: HandClock) -> None:
    """Claimed or running, under the same token, and told once; another mark gets another task."""
    job, mark = await timed.register(), uuid4()
    first, second = await timed.submit(job), await timed.submit(job)
    claimed = await timed.claim_task(job.worker_id, claim_id=mark)
    assert claimed.id == first.id
    clock.advance(1)
    assert await timed.claim_task(job.worker_id, claim_id=mark) == claimed
    running = await timed.report(claimed.id, TaskStatus.RUNNING)
    assert await timed.claim_task(job.worker_id, claim_id=mark) == running
    assert timed.statuses(first.id) == [TaskStatus.PENDING, TaskStatus.CLAIMED, TaskStatus.RUNNING]
    assert (await timed.claim_task(job.worker_id, claim_id=uuid4())).id == second.id


@pytest.mark.parametrize("how", ["completed", "failed", "released", "lost"])
async def test_a_mark_is_used_up_when_the_task_is_held_no_more(timed: Replica, how: str) -> None:
    """Ended, released or taken by another: the same mark stands for a new claim."""
    job, mark = await timed.register(), uuid4()
    first = await timed.submit(job)
    await timed.claim_task(job.worker_id, claim_id=mark)
    if how == "released":
        await timed.act(task_actions.release, first.id)
        assert (await timed.claim_task(job.worker_id, claim_id=uuid4())).id == first.id
    elif how == "lost":
        await timed.act(task_actions.release, first.id)
        assert (await timed.claim_task((await timed.register()).worker_id, claim_id=mark)).attempt == 2
    else:
        await timed.report(first.id, TaskStatus.RUNNING)
        await timed.report(first.id, how)
    assert (await timed.claim_response(job.worker_id, claim_id=mark)).reason is EmptyReason.EMPTY
    second = await timed.submit(job)
    assert (await timed.claim_task(job.worker_id, claim_id=mark)).id == second.id


async def test_a_mark_is_of_one_worker(timed: Replica) -> None:
    """Another worker with the same mark gets a task of its own, and nothing of the first one's."""
    job, other, mark = await timed.register(), await timed.register(), uuid4()
    first = await timed.submit(job)
    await timed.claim_task(job.worker_id, claim_id=mark)
    assert await timed.claim(other.worker_id, claim_id=mark) is None
    second = await timed.submit(job)
    assert (await timed.claim_task(other.worker_id, claim_id=mark)).id == second.id
    assert (await timed.claim_task(job.worker_id, claim_id=mark)).id == first.id
    assert (await timed.claim_task(other.worker_id, claim_id=mark)).id == second.id


@every_kind
async def test_repeats_stand_beside_new_claims(timed: Replica) -> None:
    """In one batch, in any order: each repeat gets its own task, each new claim the next."""
    job, other = await timed.register(), await timed.register()
    ids = [(await timed.submit(job)).id for _ in range(6)]
    marks = [uuid4() for _ in range(4)]
    one, two = job.worker_id, other.worker_id
    assert await batch(timed, (one, marks[0]), (two, marks[1])) == ids[:2]
    asked = [(one, None), (two, marks[1]), (two, marks[2]), (one, marks[0]), (one, marks[1]), (two, marks[0])]
    assert await batch(timed, *asked) == [ids[2], ids[1], ids[3], ids[0], ids[4], ids[5]]


@every_kind
async def test_a_claim_and_its_repeat_in_one_batch_are_one(timed: Replica) -> None:
    """Also where both come before the first is answered, in one batch or not: one task for one mark."""
    job, mark = await timed.register(), uuid4()
    ids = [(await timed.submit(job)).id for _ in range(4)]
    asked = [(job.worker_id, mark), (job.worker_id, None), (job.worker_id, mark), (job.worker_id, mark)]
    assert await batch(timed, *asked) == [ids[0], ids[1], ids[0], ids[0]]
    again = uuid4()
    taken = await asyncio.gather(*[timed.claim_task(job.worker_id, claim_id=again) for _ in range(10)])
    assert {task.id for task in taken} == {ids[2]}
    assert timed.statuses(ids[2]) == [TaskStatus.PENDING, TaskStatus.CLAIMED]
    assert (await timed.claim_task(job.worker_id)).id == ids[3]


async def test_a_repeat_takes_the_place_of_the_claim_that_sleeps(timed: Replica) -> None:
    """The client lost the first one's connection: what comes goes to the second, and once."""
    job, mark = await timed.register(), uuid4()
    assert await batch(timed, (job.worker_id, mark), (job.worker_id, mark)) == [None, None]
    lost = asyncio.create_task(timed.claim(job.worker_id, wait=LONG, claim_id=mark))
    await claims_asleep(timed, 1)
    again = asyncio.create_task(timed.claim(job.worker_id, wait=LONG, claim_id=mark))
    assert await lost is None
    await claims_asleep(timed, 1)
    first, second = await timed.submit(job), await timed.submit(job)
    got = await again
    assert got is not None
    assert got.id == first.id
    assert (await timed.claim_task(job.worker_id)).id == second.id


@pytest.mark.parametrize("full", ["max_in_flight", "max_tasks", "draining", "paused"])
async def test_who_may_have_no_more_gets_again_what_it_has(timed: Replica, full: str) -> None:
    """A repeat takes no place: no cap, no drain and no pause keeps the answer from it."""
    how: dict[str, Any] = {full: 1} if full.startswith("max") else {}
    job, mark = await timed.register(**how), uuid4()
    first = await timed.submit(job)
    await timed.submit(job)
    await timed.claim_task(job.worker_id, claim_id=mark)
    if full == "draining":
        await timed.drain(job.worker_id)
    elif full == "paused":
        await timed.pause(job)
    assert await timed.claim(job.worker_id, claim_id=uuid4()) is None
    assert (await timed.claim_task(job.worker_id, claim_id=mark)).id == first.id
