"""A claim of batches waits for a full batch before it claims anything, and takes tasks of one job only."""

import asyncio
import time
from typing import Any
from uuid import UUID, uuid4

import pytest
from databases import every_kind
from replica import ADMIN, OWNER, TIMEOUT, ManualClock, OpenReplica, Replica, wait_until_waiting
from waiting import until

from zndraw_joblib.server.process.ports import Wake, job_key
from zndraw_joblib.server.queue import rules_task_actions
from zndraw_joblib.server.queue.rules_claims import Claim
from zndraw_joblib.server.runtime.claims import BatchClaim
from zndraw_joblib.wire.messages import (
    ClaimBatch,
    EmptyReason,
    JobResponse,
    TaskClaimRequest,
    TaskClaimResponse,
    WorkerInfo,
)
from zndraw_joblib.wire.problems import Forbidden, InvalidRequest
from zndraw_joblib.wire.statuses import TaskStatus

LONG = 30.0


@pytest.fixture
def recheck_seconds() -> tuple[float, float]:
    """Disable the periodic recheck, which would hide a lost wake-up."""
    return 3600.0, 3600.0


def batch_of(job: JobResponse, most: int = 3, seconds: float = LONG, **fields: Any) -> dict[str, Any]:
    """Return the entry of a job in the `batches` of a claim."""
    return {"job": job.full_name, "max": most, "wait_seconds": seconds, **fields}


def claim(
    replica: Replica, worker: UUID | None, *batches: dict[str, Any], **options: Any
) -> "asyncio.Task[TaskClaimResponse]":
    """Start a claim with batches, which may wait."""
    options = {"max": 1, "wait": LONG, **options}
    return asyncio.create_task(replica.claim_response(worker, batches=list(batches), **options))


async def soon(waiting: "asyncio.Task[TaskClaimResponse]") -> list[UUID]:
    """Return the tasks of a claim that must end at once."""
    async with asyncio.timeout(TIMEOUT / 2):
        return [task.id for task in (await waiting).tasks]


@every_kind
async def test_a_claim_waits_until_its_batch_is_full(replica: Replica) -> None:
    """Until then the tasks are pending; with the last one it gets all of them, oldest first."""
    job = await replica.register()
    waiting = claim(replica, job.worker_id, batch_of(job))
    await wait_until_waiting(replica, 1)
    ids = []
    for _ in range(2):
        ids.append((await replica.submit(job)).id)
        await wait_until_waiting(replica, 1)
        assert {(await replica.get(id_)).status for id_ in ids} == {TaskStatus.PENDING}
    ids.append((await replica.submit(job)).id)
    assert await soon(waiting) == ids


async def test_a_full_batch_is_claimed_at_once_and_no_more(replica: Replica) -> None:
    """Also without a wait; the others stay in the queue."""
    job = await replica.register()
    ids = [(await replica.submit(job)).id for _ in range(5)]
    assert await soon(claim(replica, job.worker_id, batch_of(job))) == ids[:3]
    assert await soon(claim(replica, job.worker_id, batch_of(job), wait=0)) == ids[3:]


async def test_a_batch_waits_for_its_time_at_most(replica: Replica, subtests: pytest.Subtests) -> None:
    """For `wait_seconds`, or until the end of the claim's own wait if that is earlier."""
    job = await replica.register()
    for seconds, wait in ((0.05, LONG), (LONG, 0.05)):
        with subtests.test(seconds=seconds, wait=wait):
            waiting = claim(replica, job.worker_id, batch_of(job, seconds=seconds), wait=wait)
            ids = [(await replica.submit(job)).id, (await replica.submit(job)).id]
            response = await waiting
            while not response.tasks:  # the wait of the claim may end before the submit
                response = await claim(replica, job.worker_id, batch_of(job, seconds=seconds), wait=wait)
            rest = [] if len(response.tasks) == 2 else await soon(claim(replica, job.worker_id, wait=LONG))
            assert [*(task.id for task in response.tasks), *rest] == ids


async def test_the_age_of_the_first_task_counts(timed: Replica, clock: ManualClock) -> None:
    """A task that has waited for longer than `wait_seconds` waits for no further tasks."""
    job = await timed.register()
    old = await timed.submit(job)
    clock.advance(LONG)
    new = await timed.submit(job)
    assert await soon(claim(timed, job.worker_id, batch_of(job))) == [old.id, new.id]


async def test_only_a_full_batch_is_claimed_ahead(timed: Replica, clock: ManualClock) -> None:
    """With `only_full` a claim that does not wait leaves fewer tasks, however old they are."""
    job = await timed.register()
    ids = [(await timed.submit(job)).id for _ in range(2)]
    clock.advance(2 * LONG)
    ahead = batch_of(job, only_full=True)
    response = await claim(timed, job.worker_id, ahead, wait=0)
    assert (response.tasks, response.reason) == ([], EmptyReason.EMPTY)
    ids.append((await timed.submit(job)).id)
    assert await soon(claim(timed, job.worker_id, ahead, wait=0)) == ids


async def test_a_claim_of_full_batches_only_cannot_wait(replica: Replica) -> None:
    """It would take the wake-ups of tasks that it never claims; the problem names the remedy."""
    job = await replica.register()
    with pytest.raises(InvalidRequest, match=r"only_full .* without 'Prefer: wait'"):
        await claim(replica, job.worker_id, batch_of(job, only_full=True))


async def test_tasks_of_a_paused_room_fill_no_batch(timed: Replica, clock: ManualClock) -> None:
    """They do not count, however old they are; once the room is resumed, they do."""
    job = await timed.register()
    frozen = [(await timed.submit(job, room="frozen")).id for _ in range(3)]
    await timed.pause_room("frozen")
    clock.advance(LONG)
    waiting = claim(timed, job.worker_id, batch_of(job))
    ids = []
    for _ in range(3):
        await wait_until_waiting(timed, 1)
        ids.append((await timed.submit(job)).id)
    assert await soon(waiting) == ids
    waiting = claim(timed, job.worker_id, batch_of(job))
    await wait_until_waiting(timed, 1)
    await timed.resume_room("frozen")
    assert await soon(waiting) == frozen


async def test_tasks_of_a_key_at_its_limit_fill_no_batch(timed: Replica, clock: ManualClock) -> None:
    """What the claim chose before it waited again is reserved nowhere: later claims get all tasks."""
    job = await timed.register(limits=[{"key": "room", "max_in_flight": 1}])
    busy = [(await timed.submit(job, room="busy")).id for _ in range(4)]
    assert await soon(claim(timed, job.worker_id, batch_of(job, seconds=0))) == busy[:1]
    clock.advance(LONG)
    waiting = claim(timed, job.worker_id, batch_of(job))
    ids = []
    for room in ("lab", "lab", "other", "third"):
        await wait_until_waiting(timed, 1)
        ids.append((await timed.submit(job, room=room)).id)
    assert await soon(waiting) == [ids[0], *ids[2:]]
    for id_ in (busy[0], ids[0]):
        await timed.report(id_, TaskStatus.RUNNING)
        await timed.report(id_, TaskStatus.COMPLETED)
    rest: list[UUID] = []
    while len(rest) < 2:
        rest += await soon(claim(timed, job.worker_id, batch_of(job, seconds=0)))
    assert sorted(rest) == sorted([busy[1], ids[1]])


async def test_a_job_at_its_limit_waits_for_no_further_task(replica: Replica) -> None:
    """A limit without a key, too, makes the batch as large as it can be."""
    job = await replica.register(limits=[{"max_in_flight": 2}])
    ids = [(await replica.submit(job)).id for _ in range(3)]
    assert await soon(claim(replica, job.worker_id, batch_of(job))) == ids[:2]


async def test_a_task_waits_no_longer_while_urgent_ones_arrive(timed: Replica, clock: ManualClock) -> None:
    """The oldest task decides when a batch is due, whichever comes first."""
    job = await timed.register()
    old = await timed.submit(job)
    clock.advance(LONG)
    urgent = await timed.submit(job, priority=10)
    assert await soon(claim(timed, job.worker_id, batch_of(job))) == [urgent.id, old.id]


async def test_two_claims_fill_one_batch_each(replica: Replica) -> None:
    """What one of them leaves is too little for the other, which waits on."""
    job, other = await replica.register(), await replica.register()
    waiting = {claim(replica, worker, batch_of(job)) for worker in (job.worker_id, other.worker_id)}
    await wait_until_waiting(replica, 2)
    ids = [(await replica.submit(job)).id for _ in range(4)]
    async with asyncio.timeout(TIMEOUT / 2):
        [first], [second] = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    assert await soon(first) == ids[:3]
    ids += [(await replica.submit(job)).id for _ in range(2)]
    assert await soon(second) == ids[3:]


async def test_tasks_of_other_jobs_wait_for_no_batch(replica: Replica) -> None:
    """A batch has tasks of one job; while it fills, the claim gets up to `max` tasks of other jobs."""
    embed, plain = await replica.register("Embed"), await replica.register("Plain")
    other = await replica.register("Render", worker=embed.worker_id)
    await replica.register("Plain", worker=embed.worker_id)
    batches = [batch_of(embed), batch_of(other, most=2)]
    first = [(await replica.submit(embed)).id for _ in range(2)]
    rest = [(await replica.submit(plain)).id for _ in range(3)]
    assert await soon(claim(replica, embed.worker_id, *batches, max=2)) == rest[:2]
    full = [(await replica.submit(other)).id for _ in range(2)]
    assert await soon(claim(replica, embed.worker_id, *batches)) == rest[2:]
    assert await soon(claim(replica, embed.worker_id, *batches)) == full
    first.append((await replica.submit(embed)).id)
    assert await soon(claim(replica, embed.worker_id, *batches)) == first


async def test_versions_of_a_job_share_a_batch(replica: Replica) -> None:
    """Each version has a queue of its own; a worker of both gets a batch of both."""
    job = await replica.register(schema={"type": "object", "properties": {"a": {}}})
    first = await replica.submit(job, {"a": 1})
    newer = {"type": "object", "properties": {"a": {}, "b": {}}}
    newest = await replica.register(worker=job.worker_id, schema=newer)
    ids = [first.id, *[(await replica.submit(newest, {"b": 2})).id for _ in range(2)]]
    assert await soon(claim(replica, newest.worker_id, batch_of(newest))) == ids


async def test_limits_hold_for_each_task_of_a_batch(replica: Replica) -> None:
    """A batch is no larger than the free slots of the job and of the worker."""
    job = await replica.register(max_in_flight=2)
    ids = [(await replica.submit(job)).id for _ in range(3)]
    assert await soon(claim(replica, job.worker_id, batch_of(job))) == ids[:2]
    response = await claim(replica, job.worker_id, batch_of(job, seconds=0), wait=0)
    assert (response.tasks, response.reason) == ([], EmptyReason.AT_CAPACITY)
    waiting = claim(replica, job.worker_id, batch_of(job, seconds=0))
    await wait_until_waiting(replica, 1)
    await replica.report(ids[0], TaskStatus.RUNNING)
    await replica.report(ids[0], TaskStatus.COMPLETED)
    assert await soon(waiting) == ids[2:]


async def test_a_repeated_claim_gets_the_same_batch(replica: Replica) -> None:
    """Although the queue has too few tasks for a batch now."""
    job, claim_id = await replica.register(), uuid4()
    ids = [(await replica.submit(job)).id for _ in range(4)]
    assert await soon(claim(replica, job.worker_id, batch_of(job), claim_id=claim_id)) == ids[:3]
    ahead = batch_of(job, only_full=True)
    assert await soon(claim(replica, job.worker_id, ahead, claim_id=claim_id, max=3, wait=0)) == ids[:3]


async def test_a_claim_that_ends_wakes_another_for_the_tasks_it_waited_for(replica: Replica) -> None:
    """Its client disconnects while the batch fills: a plain worker gets the task, without a recheck."""
    job, other = await replica.register(), await replica.register()
    gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    batching = claim(replica, job.worker_id, batch_of(job), disconnected=gone)
    await wait_until_waiting(replica, 1)
    plain = asyncio.create_task(replica.claim(other.worker_id, wait=LONG))
    await wait_until_waiting(replica, 2)
    submitted = await replica.submit(job)
    await until(lambda: not plain.done() and replica.runtime.waiters.waiting_count == 2)
    gone.set_result(None)
    assert await soon(batching) == []
    async with asyncio.timeout(TIMEOUT / 2):
        claimed = await plain
    assert claimed is not None
    assert claimed.id == submitted.id


async def test_wake_ups_for_tasks_beyond_a_batch_go_to_others(replica: Replica) -> None:
    """While a batch filled, those of all four tasks may have reached the one claim, which takes three."""
    job = await replica.register()
    assert job.worker_id is not None
    runtime, batches = replica.runtime, [ClaimBatch(**batch_of(job))]
    deadline = time.monotonic() + LONG
    filling = BatchClaim(batches, runtime._read_batches, runtime.claim_once, deadline, None)
    item = Claim(OWNER, job.worker_id, 15)
    for _ in range(2):
        await replica.submit(job)
    assert not (await filling.claim(item)).is_final
    assert filling.unused == [Wake(job_key(job.full_name), 2)]
    for _ in range(2):
        await replica.submit(job)
    assert len((await filling.claim(item)).tasks) == 3
    assert filling.unused == [Wake(job_key(job.full_name), 1)]


async def test_a_batch_of_tasks_with_a_cost_wakes_no_others(replica: Replica) -> None:
    """Their wake-ups are used up, whether the policy has the cost, or the queue is one of their own."""
    job = await replica.register(cost=2, about=WorkerInfo(slots=16))
    assert job.worker_id is not None
    runtime, batches = replica.runtime, [ClaimBatch(**batch_of(job))]
    deadline = time.monotonic() + LONG
    filling = BatchClaim(batches, runtime._read_batches, runtime.claim_once, deadline, None)
    item = Claim(OWNER, job.worker_id, 15)
    for own in ({}, {"cost": 3}):
        for _ in range(2):
            await replica.submit(job, **own)
        assert not (await filling.claim(item)).is_final
        assert [wake.limit for wake in filling.unused] == [2]
        await replica.submit(job, **own)
        tasks = (await filling.claim(item)).tasks
        assert len(tasks) == 3
        assert filling.unused == []
        for task in tasks:
            await replica.report(task.id, TaskStatus.RUNNING)
            await replica.report(task.id, TaskStatus.COMPLETED)


async def test_a_claim_of_another_job_passes_on_the_wake_ups_of_a_batch(replica: Replica) -> None:
    """It waited for two tasks, and gets one that comes before them, of another job."""
    embed, plain = await replica.register("Embed"), await replica.register("Plain")
    await replica.register("Plain", worker=embed.worker_id)
    assert embed.worker_id is not None
    runtime, batches = replica.runtime, [ClaimBatch(**batch_of(embed))]
    deadline = time.monotonic() + LONG
    filling = BatchClaim(batches, runtime._read_batches, runtime.claim_once, deadline, None)
    item = Claim(OWNER, embed.worker_id, 15)
    for _ in range(2):
        await replica.submit(embed)
    assert not (await filling.claim(item)).is_final
    urgent = await replica.submit(plain, priority=10)
    assert [task.id for task in (await filling.claim(item)).tasks] == [urgent.id]
    assert filling.unused == [Wake(job_key(embed.full_name), 2)]


async def test_another_worker_may_claim_what_a_batch_waits_for(pair: list[Replica]) -> None:
    """Nothing is held while a batch fills, also for workers of another server."""
    first, second = pair
    job = await first.register()
    waiting = claim(first, job.worker_id, batch_of(job))
    await wait_until_waiting(first, 1)
    submitted = await first.submit(job)
    other = await second.register()
    claimed = await second.claim(other.worker_id)
    assert claimed is not None
    assert claimed.id == submitted.id
    ids = [(await first.submit(job)).id for _ in range(3)]
    assert await soon(waiting) == ids


async def test_a_batch_that_fills_costs_no_connection_and_few_reads(replica: Replica) -> None:
    """It reads its queues every tenth of a second at most, not once for each submit."""
    job = await replica.register()
    waiting = claim(replica, job.worker_id, batch_of(job, most=60, seconds=LONG))
    await wait_until_waiting(replica, 1)
    statements, began = replica.record_statements(), time.monotonic()
    for _ in range(59):
        await replica.submit(job)
    reads = [one for one in statements if "coalesce(queued_at, created_at)" in one.sql]
    assert len(reads) <= (time.monotonic() - began) / 0.1 + 3
    await replica.submit(job)
    assert len(await soon(waiting)) == 60


async def test_only_the_owner_of_a_worker_waits_for_its_batches(replica: Replica) -> None:
    """The refusal comes before the wait, so nobody takes the place of the worker's own claim."""
    job = await replica.register()
    batches = [ClaimBatch(**batch_of(job))]
    request = TaskClaimRequest(worker_id=job.worker_id, max=1, batches=batches)
    with pytest.raises(Forbidden):
        await replica.runtime.claim(ADMIN, request, LONG)


async def test_a_draining_worker_gets_no_batch(replica: Replica) -> None:
    """The answer has the reason at once, although tasks wait."""
    job = await replica.register()
    await replica.submit(job)
    await replica.drain(job.worker_id)
    response = await claim(replica, job.worker_id, batch_of(job))
    assert (response.tasks, response.reason) == ([], EmptyReason.DRAINING)


async def test_a_released_task_waits_for_no_batch(timed: Replica, clock: ManualClock) -> None:
    """It has waited since its submit."""
    job = await timed.register()
    submitted = await timed.submit(job)
    clock.advance(LONG)
    assert await soon(claim(timed, job.worker_id, batch_of(job))) == [submitted.id]
    await timed.act(rules_task_actions.release, submitted.id)
    clock.advance(LONG)
    assert await soon(claim(timed, job.worker_id, batch_of(job))) == [submitted.id]


@pytest.mark.parametrize("order", ["fifo", "fair"])
async def test_batches_of_many_workers_take_each_task_once(
    open_replica: OpenReplica, settings: Any, order: str
) -> None:
    """Four workers of two servers, in both orders of claims: each task is in one batch."""
    settings.claim_order = order
    replicas = [open_replica(), open_replica()]
    job = await replicas[0].register()
    workers = [job.worker_id, *[(await replicas[0].register()).worker_id for _ in range(3)]]
    ids = [(await replicas[0].submit(job, room=f"r{n % 3}")).id for n in range(50)]
    claimed: list[UUID] = []

    async def work(number: int) -> None:
        replica = replicas[number % 2]
        while True:
            response = await claim(replica, workers[number], batch_of(job, most=7, seconds=0), wait=0)
            if not response.tasks:
                return
            assert len(response.tasks) <= 7
            claimed.extend(task.id for task in response.tasks)

    await asyncio.gather(*[work(number) for number in range(4)])
    assert sorted(claimed) == sorted(ids)
