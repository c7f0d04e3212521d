"""Concurrency limits of jobs, rooms and workers are never exceeded, and a free slot is used at once."""

import asyncio
import logging
from collections import Counter
from typing import Any
from uuid import UUID

import pytest
from databases import every_kind, on_postgresql
from replica import ADMIN, OWNER, SUBMITTER, ManualClock, Replica, wait_until_waiting
from sqlalchemy import delete, func, select

from recovery.test_time_limits import LONG, SOON, recheck_seconds  # noqa: F401 - a fixture
from zndraw_joblib.server.background.sweeper import Sweeper
from zndraw_joblib.server.db import database
from zndraw_joblib.server.db.tables import RoomQueue, Task
from zndraw_joblib.server.queue import rules_claims, rules_task_actions, sql_room_queues
from zndraw_joblib.server.queue.rules_claims import Claim, ClaimResult
from zndraw_joblib.wire.messages import EmptyReason, JobResponse, TaskResponse
from zndraw_joblib.wire.problems import ProblemException
from zndraw_joblib.wire.statuses import TaskStatus

ROUNDS = 12
tasks = Task.__table__


async def reasons(replica: Replica, *workers: UUID | None) -> list[EmptyReason | None]:
    """Claim for several workers in one transaction; return the reason of each, None for a claimed task."""
    items = [Claim(OWNER, worker, 15, None, replica.runtime.order) for worker in workers if worker]
    answers: list[ClaimResult | ProblemException] = await replica.runtime.write(
        lambda tx: rules_claims.claim(tx, items)
    )
    return [None if isinstance(a, ProblemException) or a.tasks else a.reason for a in answers]


async def held(replica: Replica) -> int:
    """Count the claimed and running tasks."""
    statement = select(func.count()).select_from(tasks).where(tasks.c.status.in_(["claimed", "running"]))
    async with replica.engine.connect() as connection:
        count: int = (await connection.execute(statement)).scalar_one()
    return count


@pytest.mark.parametrize("start", [False, True], ids=["claim", "start"])
@pytest.mark.parametrize(
    ("limits", "cap", "count", "reason"),
    [
        ({}, None, 5, EmptyReason.EMPTY),
        ({"max_in_flight": 2}, None, 2, EmptyReason.AT_CAPACITY),
        ({"max_tasks": 3}, None, 3, EmptyReason.MAX_TASKS),
        ({"max_in_flight": 2, "max_tasks": 3}, None, 2, EmptyReason.AT_CAPACITY),
        ({"max_in_flight": 4, "max_tasks": 3}, 1, 1, EmptyReason.AT_CAPACITY),
    ],
    ids=str,
)
async def test_a_claim_of_many_stays_within_the_limits(
    replica: Replica, limits: dict[str, int], cap: int | None, count: int, reason: EmptyReason, start: bool
) -> None:
    """It gets the oldest tasks that the limits of job, worker and room leave, and after an end one more."""
    replica.runtime.settings.room_max_in_flight = cap
    job = await replica.register(**limits)
    submitted = [(await replica.submit(job)).id for _ in range(5)]
    first = await replica.claim_response(job.worker_id, max=9, start=start)
    assert first.tasks is not None
    assert [task.id for task in first.tasks] == submitted[:count]
    assert {task.status for task in first.tasks} == {TaskStatus.RUNNING if start else TaskStatus.CLAIMED}
    assert await held(replica) == count
    assert (await replica.claim_response(job.worker_id, max=9)).reason is reason
    await replica.report(submitted[0], TaskStatus.FAILED)
    again = await replica.claim_response(job.worker_id, max=9, start=start)
    assert [task.id for task in again.tasks or []] == submitted[count : count + 1]


async def test_claims_of_many_share_the_limit_of_their_worker(replica: Replica) -> None:
    """In one transaction, the first claim gets what it asks for, the next what is left."""
    job = await replica.register(max_tasks=5)
    assert job.worker_id is not None
    submitted = [(await replica.submit(job)).id for _ in range(9)]
    items = [Claim(OWNER, job.worker_id, 15, task_limit=3) for _ in range(3)]
    answers: list[Any] = await replica.runtime.write(lambda tx: rules_claims.claim(tx, items))
    claimed = [[task.id for task in answer.tasks] for answer in answers]
    assert claimed == [submitted[:3], submitted[3:5], []]
    assert (answers[2].reason, answers[2].is_contended) == (EmptyReason.MAX_TASKS, False)


async def test_a_claim_without_a_limit_hides_no_limit_of_another_worker(replica: Replica) -> None:
    """In one transaction, whatever their order."""
    free, limited = await replica.register(), await replica.register(max_tasks=1)
    assert free.worker_id is not None
    assert limited.worker_id is not None
    submitted = [(await replica.submit(free)).id for _ in range(6)]
    items = [Claim(OWNER, worker, 15, task_limit=3) for worker in (free.worker_id, limited.worker_id)]
    answers: list[Any] = await replica.runtime.write(lambda tx: rules_claims.claim(tx, items))
    assert [[task.id for task in answer.tasks] for answer in answers] == [submitted[:3], submitted[3:4]]


async def test_the_limit_of_a_job(replica: Replica) -> None:
    """It counts claimed and running tasks; the reason names it, or is "empty" for an empty queue."""
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


async def test_a_job_at_its_limit_blocks_no_other_job(replica: Replica) -> None:
    """A worker still gets older and younger tasks of other jobs."""
    full = await replica.register("Full", max_in_flight=1)
    open_ = await replica.register("Open", worker=full.worker_id)
    for job in (full, full, open_, full, open_):
        await replica.submit(job)
    claimed_tasks = [(await replica.claim_task(full.worker_id)).job_name.split(":")[2] for _ in range(3)]
    assert claimed_tasks == ["Full", "Open", "Open"]
    assert (await replica.claim_response(full.worker_id)).reason is EmptyReason.AT_CAPACITY
    other = await replica.register("Other")
    await replica.submit(other)
    workers = (full.worker_id, other.worker_id, other.worker_id)
    assert await reasons(replica, *workers) == [EmptyReason.AT_CAPACITY, None, EmptyReason.EMPTY]


async def test_a_batch_of_claims_uses_the_free_slots(replica: Replica) -> None:
    """As many claims get a task as there are slots; the others get the reason."""
    job = await replica.register(max_in_flight=3)
    for _ in range(10):
        await replica.submit(job)
    assert await reasons(replica, *[job.worker_id] * 5) == [None] * 3 + [EmptyReason.AT_CAPACITY] * 2
    assert await held(replica) == 3


@pytest.mark.parametrize("how", ["job", "room", "worker"])
async def test_a_batch_never_exceeds_a_limit(replica: Replica, how: str) -> None:
    """For each of the three limits, the last claim of the batch gets the right reason."""
    caps = {"job": {"max_in_flight": 2}, "worker": {"max_tasks": 2}, "room": {}}[how]
    replica.runtime.settings.room_max_in_flight = 2 if how == "room" else None
    job = await replica.register(**caps)
    for _ in range(5):
        await replica.submit(job)
    reason = EmptyReason.MAX_TASKS if how == "worker" else EmptyReason.AT_CAPACITY
    assert await reasons(replica, *[job.worker_id] * 3) == [None, None, reason]
    assert await reasons(replica, *[job.worker_id] * 2) == [reason] * 2


async def test_the_limit_of_a_room(replica: Replica) -> None:
    """It counts all jobs of the room; other rooms continue in order."""
    replica.runtime.settings.room_max_in_flight = 2
    first = await replica.register("A")
    second = await replica.register("B", worker=first.worker_id)
    for room in ("busy", "busy", "busy", "quiet", "busy", "quiet"):
        for job in (first, second):
            await replica.submit(job, room=room)
    claimed_tasks = [await replica.claim_task(first.worker_id) for _ in range(4)]
    assert [(one.room_id, one.job_name[-1]) for one in claimed_tasks] == [
        ("busy", "A"),
        ("busy", "B"),
        ("quiet", "A"),
        ("quiet", "B"),
    ]
    assert (await replica.claim_response(first.worker_id)).reason is EmptyReason.AT_CAPACITY
    await replica.report(claimed_tasks[0].id, TaskStatus.CANCELLED, by=ADMIN)
    assert (await replica.claim_task(first.worker_id)).room_id == "busy"
    assert (await replica.claim_response(first.worker_id)).reason is EmptyReason.AT_CAPACITY


async def test_the_limit_of_a_worker(replica: Replica) -> None:
    """It is set at registration or with a heartbeat, and limits no other worker."""
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
    """Complete the task."""
    await replica.report(task.id, TaskStatus.COMPLETED)


async def free_by_cancel(replica: Replica, job: JobResponse, task: TaskResponse) -> None:
    """Cancel the task as its submitter."""
    await replica.report(task.id, TaskStatus.CANCELLED, by=SUBMITTER)


async def free_by_removal(replica: Replica, job: JobResponse, task: TaskResponse) -> None:
    """Remove the worker that holds the task."""
    await replica.leave(task.worker_id)


async def free_by_release(replica: Replica, job: JobResponse, task: TaskResponse) -> None:
    """Release the task."""
    await replica.act(rules_task_actions.release, task.id)


FREEING = [free_by_report, free_by_cancel, free_by_removal, free_by_release]


@pytest.mark.parametrize("cap", ["job", "room"])
@pytest.mark.parametrize("free", FREEING)
async def test_a_free_slot_wakes_one_waiting_claim(replica: Replica, free: Any, cap: str) -> None:
    """Whatever frees the slot. Other waiters do not check the database."""
    replica.runtime.settings.room_max_in_flight = 1 if cap == "room" else None
    dead = await replica.register(**({"max_in_flight": 1} if cap == "job" else {}))
    job = await replica.register()
    running = await replica.running(dead)
    for _ in range(5):
        await replica.submit(job)
    looked = counting(replica)
    waiting = [asyncio.create_task(replica.claim_task(job.worker_id, wait=LONG)) for _ in range(4)]
    await wait_until_waiting(replica, 4)
    before = looked[0]
    await free(replica, job, running)
    async with asyncio.timeout(SOON):
        done, left = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    assert len(done) == 1
    await wait_until_waiting(replica, 3)
    assert looked == [before + 1]
    for one in left:
        one.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    assert await held(replica) == 1


@pytest.mark.parametrize("free", FREEING)
@pytest.mark.parametrize("is_old_free", [True, False], ids=["old", "new"])
async def test_a_free_slot_wakes_a_claim_of_another_version(
    replica: Replica, free: Any, is_old_free: bool
) -> None:
    """The versions share the slots; the claim waits for the other queue alone."""
    schemas = [{"type": "object", "required": required} for required in (["x"], [])]
    old = await replica.register(schema=schemas[0], max_in_flight=1)
    await replica.submit(old, {"x": 1})
    ended = await replica.start(old.worker_id)
    new = await replica.register(schema=schemas[1])
    assert new.version == 2
    if is_old_free:
        running, waiting, pending = ended, new, await replica.submit(new)
    else:
        await replica.report(ended.id, TaskStatus.FAILED, error="again")
        await replica.submit(new)
        running, waiting, pending = await replica.start(new.worker_id), old, ended
        await replica.act(rules_task_actions.retry, ended.id)
    holder = old if is_old_free else new
    claim = asyncio.create_task(replica.claim_task(waiting.worker_id, wait=LONG))
    await wait_until_waiting(replica, 1)
    await free(replica, holder, running)
    async with asyncio.timeout(SOON):
        # The new worker may also run the older task, if that has returned to its queue.
        assert (await claim).id in {pending.id, ended.id}


def counting(replica: Replica) -> list[int]:
    """Count the claims that check the database from now on."""
    looked, claim_once = [0], replica.runtime.claim_once

    async def counted(item: Claim) -> ClaimResult:
        looked[0] += 1
        return await claim_once(item)

    replica.runtime.claim_once = counted  # type: ignore[method-assign]
    return looked


@pytest.mark.parametrize("cap", ["job", "room"])
async def test_several_free_slots_wake_as_many_claims(replica: Replica, cap: str) -> None:
    """When a worker with three tasks is removed, three waiting claims get tasks."""
    replica.runtime.settings.room_max_in_flight = 3 if cap == "room" else None
    dead = await replica.register(**({"max_in_flight": 3} if cap == "job" else {}))
    job = await replica.register()
    for _ in range(8):
        await replica.submit(job)
    for _ in range(3):
        await replica.start(dead.worker_id)
    waiting = [asyncio.create_task(replica.claim(job.worker_id, wait=LONG)) for _ in range(5)]
    await wait_until_waiting(replica, 5)
    await replica.leave(dead.worker_id)
    async with asyncio.timeout(SOON):
        while sum(claim.done() for claim in waiting) < 3:
            await asyncio.wait([c for c in waiting if not c.done()], return_when=asyncio.FIRST_COMPLETED)
    await wait_until_waiting(replica, 2)
    replica.runtime.waiters.close()
    claimed_tasks = [task for task in await asyncio.gather(*waiting) if task]
    assert (len(claimed_tasks), await held(replica)) == (3, 3)


async def test_a_worker_at_its_limit_is_woken_by_a_free_slot(replica: Replica) -> None:
    """By the end of its task, by a cancellation, and by a heartbeat with a higher limit."""
    job = await replica.register(max_tasks=1)
    task = await replica.running(job)
    assert job.worker_id is not None
    for how in ("completed", "cancelled", "more"):
        await replica.submit(job)
        claim = asyncio.create_task(replica.claim_task(job.worker_id, wait=LONG))
        await wait_until_waiting(replica, 1)
        if how == "more":
            await replica.runtime.heartbeat(OWNER, job.worker_id, max_tasks=2)
        else:
            await replica.report(task.id, how, by=OWNER if how == "completed" else SUBMITTER)
        async with asyncio.timeout(SOON):
            task = await claim


async def test_a_worker_at_its_limit_blocks_no_other_worker(replica: Replica) -> None:
    """It waits first, but another waiting worker gets the submitted task."""
    job, other = await replica.register(max_tasks=1), await replica.register()
    await replica.running(job)
    first = asyncio.create_task(replica.claim_response(job.worker_id, wait=LONG))
    await wait_until_waiting(replica, 1)
    second = asyncio.create_task(replica.claim_task(other.worker_id, wait=LONG))
    await wait_until_waiting(replica, 2)
    submitted = await replica.submit(job)
    async with asyncio.timeout(SOON):
        assert (await second).id == submitted.id
    replica.runtime.waiters.close()
    assert (await first).task is None


async def make_workers(replica: Replica, count: int, **how: Any) -> list[UUID | None]:
    """Register `count` workers for the job."""
    return [(await replica.register(**how)).worker_id for _ in range(count)]


@every_kind
@pytest.mark.parametrize("cap", ["job", "room", "both"])
async def test_two_replicas_never_exceed_a_limit(pair: list[Replica], cap: str) -> None:
    """Of many claims at once, exactly as many get a task as there are slots."""
    most = 3
    for replica in pair:
        replica.runtime.settings.room_max_in_flight = None if cap == "job" else most
    how = {} if cap == "room" else {"max_in_flight": most}
    workers = await make_workers(pair[0], 8, **how)
    job = await pair[0].register()
    for _ in range(ROUNDS * most):
        await pair[0].submit(job)
    held_tasks: list[TaskResponse] = []
    for _ in range(ROUNDS):
        claim_requests = [pair[turn % 2].claim(worker) for turn, worker in enumerate(workers * 2)]
        held_tasks += [task for task in await asyncio.gather(*claim_requests) if task is not None]
        assert len(held_tasks) == await held(pair[0]) == most
        ending = [held_tasks.pop() for _ in range(2)]
        await asyncio.gather(
            *[pair[n].report(task.id, TaskStatus.CANCELLED, by=ADMIN) for n, task in enumerate(ending)]
        )
    ids = [row.id for row in await pair[0].rows(tasks, tasks.c.attempt > 0)]
    assert len(ids) == ROUNDS * 2 + 1


@every_kind
async def test_a_limit_holds_while_slots_become_free(pair: list[Replica]) -> None:
    """Workers of two replicas claim, run and end tasks; the count never exceeds the limit."""
    job = await pair[0].register(max_in_flight=2)
    other = await pair[0].register("Other")
    workers = await make_workers(pair[0], 6)
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


async def test_submits_and_claims_of_several_jobs_do_not_deadlock(
    pair: list[Replica], caplog: pytest.LogCaptureFixture
) -> None:
    """Jobs with and without a limit, in every order: no transaction deadlocks and is retried."""
    caplog.set_level(logging.INFO, database.__name__)
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
    assert "Retrying a transaction" not in caplog.text


async def test_expiry_of_a_worker_frees_its_slots(timed: Replica, clock: ManualClock) -> None:
    """Also when its tasks wait for another attempt."""
    dead = await timed.register(max_in_flight=1, max_attempts=2)
    first = await timed.running(dead)
    clock.advance(61)
    job = await timed.register()
    second = await timed.submit(job)
    assert (await timed.claim_response(job.worker_id)).reason is EmptyReason.AT_CAPACITY
    claim = asyncio.create_task(timed.claim_task(job.worker_id, wait=LONG))
    await wait_until_waiting(timed, 1)
    assert await timed.retire_stale() == 1
    async with asyncio.timeout(SOON):
        assert (await claim).id == second.id
    assert (await timed.get(first.id)).run_at is not None


@every_kind
async def test_a_room_is_counted_over_jobs_and_replicas(pair: list[Replica]) -> None:
    """Claims of different jobs that share no row take the last slot of a room once."""
    for replica in pair:
        replica.runtime.settings.room_max_in_flight = 1
    served = [await pair[0].register(name) for name in "ABCD"]
    for _ in range(ROUNDS):
        for job in served:
            await pair[0].submit(job)
        claim_requests = [pair[turn % 2].claim(job.worker_id) for turn, job in enumerate(served)]
        [claimed] = [task for task in await asyncio.gather(*claim_requests) if task is not None]
        assert await held(pair[0]) == 1
        await pair[0].report(claimed.id, TaskStatus.CANCELLED, by=ADMIN)


@every_kind
async def test_a_failing_read_after_the_commit_fails_no_report(
    replica: Replica, caplog: pytest.LogCaptureFixture
) -> None:
    """The report is answered with the ended task; a log line names what did not happen."""
    replica.runtime.settings.room_max_in_flight = 1
    job = await replica.register()
    await replica.submit(job)
    held = await replica.start(job.worker_id)
    async with replica.missing(RoomQueue.__table__):
        assert (await replica.report(held.id, TaskStatus.COMPLETED)).status is TaskStatus.COMPLETED
        await replica.runtime.finish()
    assert "Claims were not woken for freed room slots" in caplog.text


async def test_rows_of_empty_rooms_are_deleted(replica: Replica) -> None:
    """Claims without fair scheduling leave rows behind; the sweeper deletes those without tasks."""
    job = await replica.register()
    for room in "abcd":
        await replica.submit(job, room=room)
    for _ in range(3):
        await replica.claim_task(job.worker_id)
    first, rooms = sql_room_queues.FIRST, {job.id: ["a", "b"]}
    assert await replica.runtime.write(sql_room_queues.find_empty, after=first, limit=2) == (
        rooms,
        (job.id, "b"),
    )
    found = await replica.runtime.write(sql_room_queues.find_empty, after=(job.id, "b"), limit=9)
    assert found == ({job.id: ["c"]}, first)
    assert await replica.runtime.write(sql_room_queues.prune, job_id=job.id, rooms=list("abcd")) == 3
    assert [row.room_id for row in await replica.rows(RoomQueue.__table__)] == ["d"]


@pytest.mark.parametrize("order", ["fifo", "fair"])
async def test_a_claim_by_room_after_many_claims_without(replica: Replica, order: Any) -> None:
    """Outdated rows of rooms, more than one claim reads, hide no task."""
    job = await replica.register()
    for number in range(30):
        await replica.submit(job, room=f"room-{number:02}")
    for _ in range(28):
        await replica.claim_task(job.worker_id)
    urgent = await replica.submit(job, room="room-29", priority=5)
    replica.runtime.settings.claim_order = order
    replica.runtime.settings.room_max_in_flight = 2
    rest = [await replica.claim_task(job.worker_id) for _ in range(3)]
    assert sorted(task.room_id for task in rest) == ["room-28", "room-29", "room-29"]
    assert order == "fair" or rest[0].id == urgent.id
    assert (await replica.claim_response(job.worker_id)).reason is EmptyReason.EMPTY


@on_postgresql
async def test_tasks_of_a_server_of_an_earlier_version_are_found(replica: Replica) -> None:
    """It adds no rows of rooms; the sweeper of a newer server adds them in its first cycle."""
    replica.runtime.settings.room_max_in_flight = 1
    jobs = [await replica.register(name) for name in "AB"]
    submitted = [await replica.submit(job, room=room) for job in jobs for room in "xy"]
    await replica.execute(delete(RoomQueue.__table__))
    await Sweeper(replica.runtime.write, replica.runtime.settings).cycle()
    rows = await replica.rows(RoomQueue.__table__)
    assert {(row.job_id, row.room_id) for row in rows} == {(job.id, room) for job in jobs for room in "xy"}
    claimed = [await replica.claim_task(job.worker_id) for job in jobs]
    assert {task.id for task in claimed} <= {task.id for task in submitted}


@on_postgresql
@pytest.mark.parametrize("order", ["fifo", "fair"])
async def test_a_claim_finds_tasks_that_older_servers_submit_later(replica: Replica, order: Any) -> None:
    """No sweeper runs: the claim that finds no room of a job with pending tasks adds the rows."""
    replica.runtime.settings.claim_order, replica.runtime.settings.room_max_in_flight = order, 3
    job, other = await replica.register("A"), await replica.register("B")
    assert (await replica.claim_response(job.worker_id)).reason is EmptyReason.EMPTY
    submitted = [await replica.submit(job, room=room) for room in "xyx"]
    await replica.submit(other)
    await replica.execute(delete(RoomQueue.__table__).where(RoomQueue.__table__.c.job_id == job.id))
    claimed = [await replica.claim_task(job.worker_id) for _ in submitted]
    assert {task.id for task in claimed} == {task.id for task in submitted}
    assert (await replica.claim_response(job.worker_id)).reason is EmptyReason.EMPTY
