"""No more tasks of a job, a room or a worker are under way than may be; a free place is used at once."""

import asyncio
from collections import Counter
from typing import Any
from uuid import UUID

import pytest
from databases import every_kind
from replica import ADMIN, OWNER, SUBMITTER, HandClock, Replica
from sqlalchemy import func, select

from recovery.test_clocks import LONG, claims_asleep, no_safety_net  # noqa: F401 - a fixture
from zndraw_joblib.contract.messages import EmptyReason, JobResponse, TaskResponse
from zndraw_joblib.contract.problems import ProblemException
from zndraw_joblib.contract.status import TaskStatus
from zndraw_joblib.server.service import claims, task_actions
from zndraw_joblib.server.service.claims import Claim, ClaimResult
from zndraw_joblib.server.store import database
from zndraw_joblib.server.store.tables import Task

ROUNDS = 12
tasks = Task.__table__


async def reasons(replica: Replica, *workers: UUID | None) -> list[EmptyReason | None]:
    """Claim for several in one transaction; return why each got nothing, or None for those with a task."""
    items = [Claim(OWNER, worker, 15, None, replica.runtime.order) for worker in workers if worker]
    answers: list[ClaimResult | ProblemException] = await replica.runtime.write(
        lambda tx: claims.claim(tx, items)
    )
    return [None if isinstance(a, ProblemException) or a.task else a.reason for a in answers]


async def held(replica: Replica) -> int:
    """Count what is under way."""
    statement = select(func.count()).select_from(tasks).where(tasks.c.status.in_(["claimed", "running"]))
    async with replica.engine.connect() as connection:
        count: int = (await connection.execute(statement)).scalar_one()
    return count


@every_kind
async def test_a_job_has_so_many_tasks_under_way(replica: Replica) -> None:
    """Claimed and running ones count; the reason says it, and says "empty" where nothing waits."""
    job, other = await replica.register(max_in_flight=2), await replica.register()
    assert (await replica.claim_response(job.worker_id)).reason is EmptyReason.EMPTY
    for _ in range(4):
        await replica.submit(job)
    running = await replica.start(job.worker_id)
    await replica.claim_task(other.worker_id)
    for worker in (job.worker_id, other.worker_id):
        assert (await replica.claim_response(worker)).reason is EmptyReason.AT_CAPACITY
    await replica.report(running.id, TaskStatus.COMPLETED)
    await replica.claim_task(other.worker_id)
    assert (await replica.claim_response(job.worker_id)).reason is EmptyReason.AT_CAPACITY


async def test_another_job_of_the_worker_goes_on(replica: Replica) -> None:
    """A full job keeps nobody from the tasks of others, older or younger."""
    full = await replica.register("Full", max_in_flight=1)
    open_ = await replica.register("Open", worker=full.worker_id)
    for job in (full, full, open_, full, open_):
        await replica.submit(job)
    got = [(await replica.claim_task(full.worker_id)).job_name.split(":")[2] for _ in range(3)]
    assert got == ["Full", "Open", "Open"]
    assert (await replica.claim_response(full.worker_id)).reason is EmptyReason.AT_CAPACITY


@every_kind
async def test_the_places_of_a_batch_are_counted(replica: Replica) -> None:
    """Of many claims in one transaction as many are served as there are places; the others hear why."""
    job = await replica.register(max_in_flight=3)
    for _ in range(10):
        await replica.submit(job)
    assert await reasons(replica, *[job.worker_id] * 5) == [None] * 3 + [EmptyReason.AT_CAPACITY] * 2
    assert await held(replica) == 3


@pytest.mark.parametrize("how", ["job", "room", "worker"])
async def test_a_batch_never_takes_more_than_there_is_place(replica: Replica, how: str) -> None:
    """Whichever of the three caps it is, the last of the batch hears the right reason."""
    caps = {"job": {"max_in_flight": 2}, "worker": {"max_tasks": 2}, "room": {}}[how]
    replica.runtime.settings.room_max_in_flight = 2 if how == "room" else None
    job = await replica.register(**caps)
    for _ in range(5):
        await replica.submit(job)
    reason = EmptyReason.MAX_TASKS if how == "worker" else EmptyReason.AT_CAPACITY
    assert await reasons(replica, *[job.worker_id] * 3) == [None, None, reason]
    assert await reasons(replica, *[job.worker_id] * 2) == [reason] * 2


@every_kind
async def test_a_room_has_so_many_tasks_under_way(replica: Replica) -> None:
    """Over all of its jobs; other rooms go on, and their tasks come in their order."""
    replica.runtime.settings.room_max_in_flight = 2
    first = await replica.register("A")
    second = await replica.register("B", worker=first.worker_id)
    for room in ("busy", "busy", "busy", "quiet", "busy", "quiet"):
        for job in (first, second):
            await replica.submit(job, room=room)
    got = [await replica.claim_task(first.worker_id) for _ in range(4)]
    assert [(one.room_id, one.job_name[-1]) for one in got] == [
        ("busy", "A"),
        ("busy", "B"),
        ("quiet", "A"),
        ("quiet", "B"),
    ]
    assert (await replica.claim_response(first.worker_id)).reason is EmptyReason.AT_CAPACITY
    await replica.report(got[0].id, TaskStatus.CANCELLED, by=ADMIN)
    assert (await replica.claim_task(first.worker_id)).room_id == "busy"
    assert (await replica.claim_response(first.worker_id)).reason is EmptyReason.AT_CAPACITY


@every_kind
async def test_a_worker_has_so_many_tasks(replica: Replica) -> None:
    """As it said when it registered, or with its last heartbeat; others are not concerned."""
    job, other = await replica.register(max_tasks=1), await replica.register()
    for _ in range(6):
        await replica.submit(job)
    first = await replica.claim_task(job.worker_id)
    assert (await replica.claim_response(job.worker_id)).reason is EmptyReason.MAX_TASKS
    await replica.claim_task(other.worker_id)
    await replica.report(first.id, TaskStatus.CANCELLED)
    await replica.claim_task(job.worker_id)
    assert job.worker_id is not None
    await replica.runtime.heartbeat(OWNER, job.worker_id, max_tasks=2)
    await replica.claim_task(job.worker_id)
    assert (await replica.claim_response(job.worker_id)).reason is EmptyReason.MAX_TASKS


async def free_by_report(replica: Replica, job: JobResponse, task: TaskResponse) -> None:
    """The task succeeds."""
    await replica.report(task.id, TaskStatus.COMPLETED)


async def free_by_cancel(replica: Replica, job: JobResponse, task: TaskResponse) -> None:
    """Its submitter cancels the task."""
    await replica.report(task.id, TaskStatus.CANCELLED, by=SUBMITTER)


async def free_by_death(replica: Replica, job: JobResponse, task: TaskResponse) -> None:
    """The worker that holds the task leaves."""
    await replica.leave(task.worker_id)


async def free_by_release(replica: Replica, job: JobResponse, task: TaskResponse) -> None:
    """The task is handed back."""
    await replica.act(task_actions.release, task.id)


FREEING = [free_by_report, free_by_cancel, free_by_death, free_by_release]


@pytest.mark.parametrize("cap", ["job", "room"])
@pytest.mark.parametrize("free", FREEING)
async def test_a_free_place_wakes_one_that_waits_for_it(replica: Replica, free: Any, cap: str) -> None:
    """However it became free; the others sleep on without a look at the database."""
    replica.runtime.settings.room_max_in_flight = 1 if cap == "room" else None
    dead = await replica.register(**({"max_in_flight": 1} if cap == "job" else {}))
    job = await replica.register()
    running = await replica.running(dead)
    for _ in range(5):
        await replica.submit(job)
    waiting = [asyncio.create_task(replica.claim_task(job.worker_id, wait=LONG)) for _ in range(4)]
    await claims_asleep(replica, 4)
    looked = counting(replica)
    await free(replica, job, running)
    async with asyncio.timeout(2):
        done, left = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    assert len(done) == 1
    await claims_asleep(replica, 3)
    assert looked == [1]
    for one in left:
        one.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    assert await held(replica) == 1


def counting(replica: Replica) -> list[int]:
    """Count the claims that look at the database from now on."""
    looked, claim_once = [0], replica.runtime._claim_once

    async def counted(item: Claim) -> ClaimResult:
        looked[0] += 1
        return await claim_once(item)

    replica.runtime._claim_once = counted  # type: ignore[method-assign]
    return looked


@pytest.mark.parametrize("cap", ["job", "room"])
async def test_many_free_places_wake_as_many(replica: Replica, cap: str) -> None:
    """A worker that dies with three tasks leaves three places, and three that wait get them."""
    replica.runtime.settings.room_max_in_flight = 3 if cap == "room" else None
    dead = await replica.register(**({"max_in_flight": 3} if cap == "job" else {}))
    job = await replica.register()
    for _ in range(8):
        await replica.submit(job)
    for _ in range(3):
        await replica.start(dead.worker_id)
    waiting = [asyncio.create_task(replica.claim(job.worker_id, wait=LONG)) for _ in range(5)]
    await claims_asleep(replica, 5)
    await replica.leave(dead.worker_id)
    async with asyncio.timeout(2):
        while sum(claim.done() for claim in waiting) < 3:
            await asyncio.wait([c for c in waiting if not c.done()], return_when=asyncio.FIRST_COMPLETED)
    await claims_asleep(replica, 2)
    replica.runtime.waiters.close()
    got = [task for task in await asyncio.gather(*waiting) if task]
    assert (len(got), await held(replica)) == (3, 3)


async def test_a_full_worker_is_woken_when_it_has_a_place_again(replica: Replica) -> None:
    """By the end of a task of its own, by a cancellation, and by its own word that it takes more."""
    job = await replica.register(max_tasks=1)
    task = await replica.running(job)
    assert job.worker_id is not None
    for how in ("completed", "cancelled", "more"):
        await replica.submit(job)
        claim = asyncio.create_task(replica.claim_task(job.worker_id, wait=LONG))
        await claims_asleep(replica, 1)
        if how == "more":
            await replica.runtime.heartbeat(OWNER, job.worker_id, max_tasks=2)
        else:
            await replica.report(task.id, how, by=OWNER if how == "completed" else SUBMITTER)
        async with asyncio.timeout(2):
            task = await claim


async def test_a_full_worker_keeps_a_task_from_nobody(replica: Replica) -> None:
    """Though it waits before another: that one gets what is submitted."""
    job, other = await replica.register(max_tasks=1), await replica.register()
    await replica.running(job)
    first = asyncio.create_task(replica.claim_response(job.worker_id, wait=LONG))
    await claims_asleep(replica, 1)
    second = asyncio.create_task(replica.claim_task(other.worker_id, wait=LONG))
    await claims_asleep(replica, 2)
    submitted = await replica.submit(job)
    async with asyncio.timeout(2):
        assert (await second).id == submitted.id
    replica.runtime.waiters.close()
    assert (await first).task is None


async def crowd(replica: Replica, count: int, **how: Any) -> list[UUID | None]:
    """Register so many workers of the job."""
    return [(await replica.register(**how)).worker_id for _ in range(count)]


@every_kind
@pytest.mark.parametrize("cap", ["job", "room", "both"])
async def test_two_replicas_never_take_more(pair: list[Replica], cap: str) -> None:
    """Many claims at once, again and again: as many are under way as may be, neither more nor fewer."""
    most = 3
    for replica in pair:
        replica.runtime.settings.room_max_in_flight = None if cap == "job" else most
    how = {} if cap == "room" else {"max_in_flight": most}
    workers = await crowd(pair[0], 8, **how)
    job = await pair[0].register()
    for _ in range(ROUNDS * most):
        await pair[0].submit(job)
    under_way: list[TaskResponse] = []
    for _ in range(ROUNDS):
        asked = [pair[turn % 2].claim(worker) for turn, worker in enumerate(workers * 2)]
        under_way += [task for task in await asyncio.gather(*asked) if task is not None]
        assert len(under_way) == await held(pair[0]) == most
        ending = [under_way.pop() for _ in range(2)]
        await asyncio.gather(
            *[pair[n].report(task.id, TaskStatus.CANCELLED, by=ADMIN) for n, task in enumerate(ending)]
        )
    ids = [row.id for row in await pair[0].rows(tasks, tasks.c.attempt > 0)]
    assert len(ids) == ROUNDS * 2 + 1


@every_kind
async def test_places_that_come_and_go_while_all_claim_are_never_exceeded(pair: list[Replica]) -> None:
    """Workers of two replicas that claim, run and end as they like, and somebody who counts."""
    job = await pair[0].register(max_in_flight=2)
    other = await pair[0].register("Other")
    workers = await crowd(pair[0], 6)
    for worker in workers:
        await pair[0].register("Other", worker=worker)
    for _ in range(40):
        await pair[0].submit(job)
        await pair[0].submit(other)
    done: Counter[UUID] = Counter()

    async def work(replica: Replica, worker: UUID | None) -> None:
        while sum(done.values()) < 80:
            task = await replica.claim(worker)
            if task is not None:
                await replica.report(task.id, TaskStatus.RUNNING, attempt=task.attempt)
                await replica.report(task.id, TaskStatus.COMPLETED, attempt=task.attempt)
                done[task.id] += 1

    async def count() -> None:
        of_job = (tasks.c.job_id == job.id, tasks.c.status.in_(["claimed", "running"]))
        while sum(done.values()) < 80:
            assert len(await pair[0].rows(tasks, *of_job)) <= 2

    async with asyncio.timeout(LONG):
        await asyncio.gather(count(), *[work(pair[n % 2], worker) for n, worker in enumerate(workers)])
    assert set(done.values()) == {1}


async def test_submissions_and_claims_over_several_jobs_do_not_wait_for_each_other(
    pair: list[Replica], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs with a cap and without, in every order: no deadlock, which would take a second to be found."""
    faults, is_void = list[Exception](), database.is_retriable

    def noted(error: Any) -> bool:
        faults.append(error)
        return is_void(error)

    monkeypatch.setattr(database, "is_retriable", noted)
    both = await pair[0].register("A")
    for name, most in (("B", 50), ("C", None), ("D", 50)):
        await pair[0].register(name, worker=both.worker_id, max_in_flight=most)
    names = [f"@global:modifiers:{name}" for name in "ABCD"]
    async with asyncio.timeout(LONG):
        for _ in range(ROUNDS):
            await asyncio.gather(
                *[pair[n % 2].submit(name) for n, name in enumerate(names * 2)],
                *[pair[n % 2].claim(both.worker_id) for n in range(8)],
                *[pair[n % 2].submit(name) for n, name in enumerate(reversed(names))],
            )
    assert faults == []


async def test_the_end_of_a_silent_worker_frees_its_places(timed: Replica, clock: HandClock) -> None:
    """Also where its tasks go back to wait for another attempt: what waits takes their places."""
    dead = await timed.register(max_in_flight=1, max_attempts=2)
    first = await timed.running(dead)
    clock.advance(61)
    job = await timed.register()
    second = await timed.submit(job)
    assert (await timed.claim_response(job.worker_id)).reason is EmptyReason.AT_CAPACITY
    claim = asyncio.create_task(timed.claim_task(job.worker_id, wait=LONG))
    await claims_asleep(timed, 1)
    assert await timed.retire_stale() == 1
    async with asyncio.timeout(2):
        assert (await claim).id == second.id
    assert (await timed.get(first.id)).run_at is not None


@every_kind
async def test_a_room_is_counted_over_jobs_and_replicas(pair: list[Replica]) -> None:
    """Claims of different jobs, which meet at no task and no job, find the last free place of a room once."""
    for replica in pair:
        replica.runtime.settings.room_max_in_flight = 1
    served = [await pair[0].register(name) for name in "ABCD"]
    for _ in range(ROUNDS):
        for job in served:
            await pair[0].submit(job)
        asked = [pair[turn % 2].claim(job.worker_id) for turn, job in enumerate(served)]
        [claimed] = [task for task in await asyncio.gather(*asked) if task is not None]
        assert await held(pair[0]) == 1
        await pair[0].report(claimed.id, TaskStatus.CANCELLED, by=ADMIN)
