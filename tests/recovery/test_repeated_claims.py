"""A claim that is repeated with the same `claim_id` gets the same task while the worker holds it."""

import asyncio
from typing import Any
from uuid import UUID, uuid4

import pytest
from databases import every_kind
from replica import OWNER, ManualClock, Replica, wait_until_waiting

from recovery.test_time_limits import LONG, recheck_seconds  # noqa: F401 - a fixture
from zndraw_joblib.server.queue import rules_claims, rules_task_actions
from zndraw_joblib.server.queue.rules_claims import Claim, ClaimResult
from zndraw_joblib.wire.messages import EmptyReason
from zndraw_joblib.wire.problems import ProblemException
from zndraw_joblib.wire.statuses import TaskStatus


async def batch(replica: Replica, *requests: tuple[UUID | None, UUID | None]) -> list[UUID | None]:
    """Claim for several workers in one transaction; return the tasks."""
    items = [Claim(OWNER, worker, 15, claim_id) for worker, claim_id in requests if worker is not None]
    answers: list[ClaimResult | ProblemException] = await replica.runtime.write(
        lambda tx: rules_claims.claim(tx, items)
    )
    found: list[UUID | None] = []
    for answer in answers:
        assert isinstance(answer, ClaimResult)
        found.append(answer.tasks[0].id if answer.tasks else None)
    return found


async def test_a_repeated_claim_gets_the_same_task(timed: Replica, clock: ManualClock) -> None:
    """Claimed or running, with the same token and one event; another `claim_id` gets another task."""
    job, claim_id = await timed.register(), uuid4()
    first, second = await timed.submit(job), await timed.submit(job)
    claimed = await timed.claim_task(job.worker_id, claim_id=claim_id)
    assert claimed.id == first.id
    clock.advance(1)
    assert await timed.claim_task(job.worker_id, claim_id=claim_id) == claimed
    running = await timed.report(claimed.id, TaskStatus.RUNNING)
    assert await timed.claim_task(job.worker_id, claim_id=claim_id) == running
    assert timed.statuses(first.id) == [TaskStatus.PENDING, TaskStatus.CLAIMED, TaskStatus.RUNNING]
    assert (await timed.claim_task(job.worker_id, claim_id=uuid4())).id == second.id


async def test_a_repeated_claim_of_many_gets_what_the_worker_still_holds(timed: Replica) -> None:
    """In the order of the queue, with their tokens; a batch with the claim and its repeat claims once."""
    job, claim_id = await timed.register(), uuid4()
    assert job.worker_id is not None
    ids = [(await timed.submit(job)).id for _ in range(6)]
    item = Claim(OWNER, job.worker_id, 15, claim_id, task_limit=4, start=True)
    first, again = await timed.runtime.write(lambda tx: rules_claims.claim(tx, [item, item]))
    assert isinstance(first, ClaimResult)
    assert isinstance(again, ClaimResult)
    assert [task.id for task in first.tasks] == ids[:4]
    assert again.tasks == first.tasks
    await timed.report(ids[1], TaskStatus.COMPLETED)
    await timed.act(rules_task_actions.release, ids[2])
    repeated = await timed.claim_response(job.worker_id, claim_id=claim_id, max=4, start=True)
    assert repeated.tasks == [first.tasks[0], first.tasks[3]]
    rest = await timed.claim_response(job.worker_id, claim_id=uuid4(), max=4)
    assert [(task.id, task.attempt) for task in rest.tasks or []] == [(ids[2], 2), (ids[4], 1), (ids[5], 1)]


async def test_a_claim_id_ends_with_its_claim(timed: Replica, subtests: pytest.Subtests) -> None:
    """After the task ended, was released or claimed again, the same `claim_id` is a new claim."""
    for how in ("completed", "failed", "released", "lost"):
        with subtests.test(how=how):
            job, claim_id = await timed.register(), uuid4()
            first = await timed.submit(job)
            await timed.claim_task(job.worker_id, claim_id=claim_id)
            if how == "released":
                await timed.act(rules_task_actions.release, first.id)
                assert (await timed.claim_task(job.worker_id, claim_id=uuid4())).id == first.id
            elif how == "lost":
                await timed.act(rules_task_actions.release, first.id)
                assert (
                    await timed.claim_task((await timed.register()).worker_id, claim_id=claim_id)
                ).attempt == 2
            else:
                await timed.report(first.id, TaskStatus.RUNNING)
                await timed.report(first.id, how)
            assert (await timed.claim_response(job.worker_id, claim_id=claim_id)).reason is EmptyReason.EMPTY
            second = await timed.submit(job)
            assert (await timed.claim_task(job.worker_id, claim_id=claim_id)).id == second.id


async def test_a_claim_id_belongs_to_one_worker(timed: Replica) -> None:
    """Another worker with the same `claim_id` gets a task of its own."""
    job, other, claim_id = await timed.register(), await timed.register(), uuid4()
    first = await timed.submit(job)
    await timed.claim_task(job.worker_id, claim_id=claim_id)
    assert await timed.claim(other.worker_id, claim_id=claim_id) is None
    second = await timed.submit(job)
    assert (await timed.claim_task(other.worker_id, claim_id=claim_id)).id == second.id
    assert (await timed.claim_task(job.worker_id, claim_id=claim_id)).id == first.id
    assert (await timed.claim_task(other.worker_id, claim_id=claim_id)).id == second.id


async def test_repeats_and_new_claims_share_a_batch(timed: Replica) -> None:
    """In any order, each repeat gets its own task and each new claim the next one."""
    job, other = await timed.register(), await timed.register()
    ids = [(await timed.submit(job)).id for _ in range(6)]
    claim_ids = [uuid4() for _ in range(4)]
    one, two = job.worker_id, other.worker_id
    assert await batch(timed, (one, claim_ids[0]), (two, claim_ids[1])) == ids[:2]
    requests = [
        (one, None),
        (two, claim_ids[1]),
        (two, claim_ids[2]),
        (one, claim_ids[0]),
        (one, claim_ids[1]),
        (two, claim_ids[0]),
    ]
    assert await batch(timed, *requests) == [ids[2], ids[1], ids[3], ids[0], ids[4], ids[5]]


@every_kind
async def test_a_claim_and_its_concurrent_repeat_get_one_task(timed: Replica) -> None:
    """Both arrive before the response to the first, in one batch or in two."""
    job, claim_id = await timed.register(), uuid4()
    ids = [(await timed.submit(job)).id for _ in range(4)]
    requests = [
        (job.worker_id, claim_id),
        (job.worker_id, None),
        (job.worker_id, claim_id),
        (job.worker_id, claim_id),
    ]
    assert await batch(timed, *requests) == [ids[0], ids[1], ids[0], ids[0]]
    again = uuid4()
    taken = await asyncio.gather(*[timed.claim_task(job.worker_id, claim_id=again) for _ in range(10)])
    assert {task.id for task in taken} == {ids[2]}
    assert timed.statuses(ids[2]) == [TaskStatus.PENDING, TaskStatus.CLAIMED]
    assert (await timed.claim_task(job.worker_id)).id == ids[3]


async def test_a_repeat_replaces_the_waiting_claim(timed: Replica) -> None:
    """The client lost the first connection: the second one gets the task, once."""
    job, claim_id = await timed.register(), uuid4()
    assert await batch(timed, (job.worker_id, claim_id), (job.worker_id, claim_id)) == [None, None]
    lost = asyncio.create_task(timed.claim(job.worker_id, wait=LONG, claim_id=claim_id))
    await wait_until_waiting(timed, 1)
    again = asyncio.create_task(timed.claim(job.worker_id, wait=LONG, claim_id=claim_id))
    assert await lost is None
    await wait_until_waiting(timed, 1)
    first, second = await timed.submit(job), await timed.submit(job)
    repeated = await again
    assert repeated is not None
    assert repeated.id == first.id
    assert (await timed.claim_task(job.worker_id)).id == second.id


@pytest.mark.parametrize("full", ["max_in_flight", "max_tasks", "draining", "paused"])
async def test_a_repeat_needs_no_slot(timed: Replica, full: str) -> None:
    """No limit, drain or pause blocks a repeated claim."""
    how: dict[str, Any] = {full: 1} if full.startswith("max") else {}
    job, claim_id = await timed.register(**how), uuid4()
    first = await timed.submit(job)
    await timed.submit(job)
    await timed.claim_task(job.worker_id, claim_id=claim_id)
    if full == "draining":
        await timed.drain(job.worker_id)
    elif full == "paused":
        await timed.pause(job)
    assert await timed.claim(job.worker_id, claim_id=uuid4()) is None
    assert (await timed.claim_task(job.worker_id, claim_id=claim_id)).id == first.id
