"""Plain claims take a shorter path, on which nothing else differs: not even while their rows change."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from operator import attrgetter
from typing import Any
from uuid import UUID, uuid4

import pytest
from databases import on_postgresql
from replica import OWNER, STRANGER, ManualClock, Replica
from seeds import add_tasks, task
from sqlalchemy import Executable, delete, func, select, update

from service.test_plain_tasks import wait_for_lock
from zndraw_joblib.server.db.tables import Job, QueueBlock, RoomCount, Task, Worker, WorkerJobLink
from zndraw_joblib.server.process.ports import Identity
from zndraw_joblib.server.queue import rules_claims, rules_task_actions
from zndraw_joblib.server.queue.rules_claims import (
    Claim,
    ClaimResult,
    JobSets,
    PlainClaims,
    claim_with_one_statement,
)
from zndraw_joblib.server.queue.rules_fairness import ClaimOrder
from zndraw_joblib.wire.messages import EmptyReason, JobResponse
from zndraw_joblib.wire.statuses import TaskStatus

tasks, workers, jobs = Task.__table__, Worker.__table__, Job.__table__
POLICIES: list[dict[str, Any]] = [{}, {"start_timeout_seconds": 0}, {"timeout_seconds": 12.5}]
WRITTEN = (Task, Worker, Job, RoomCount, QueueBlock)


# What both kinds of claims know of the jobs of workers.
SETS = JobSets()


def a_claim(worker: UUID | None, *, by: Identity = OWNER, **options: Any) -> Claim:
    """Return one item of a batch."""
    assert worker is not None
    return Claim(by, worker, 15, **options)


async def plain(replica: Replica, *items: Claim) -> list[ClaimResult] | None:
    """Claim with one statement."""
    return await replica.runtime.write(partial(claim_with_one_statement, items=items, sets=SETS))


async def general(replica: Replica, *items: Claim) -> list[ClaimResult]:
    """Claim with the statements for all claims."""
    results = await replica.runtime.write(partial(rules_claims.claim, items=items, sets=SETS))
    return [result for result in results if isinstance(result, ClaimResult)]


async def state(replica: Replica) -> list[list[Any]]:
    """Return all rows that a claim may write."""
    return [sorted(await replica.rows(table), key=str) for table in WRITTEN]


async def of_two_jobs(replica: Replica, **policy: Any) -> list[JobResponse]:
    """Return two equal jobs, each with equal tasks of two rooms: a new one, a retried one, an urgent one."""
    found = [await replica.register(name, **policy) for name in "AB"]
    for job in found:
        new = {"payload": {"n": 1}, "attempt": 0, "error": None, "error_code": None, "failures": 0, "lane": 0}
        retried = {**new, "attempt": 3, "error": "It failed", "error_code": "error", "failures": 1}
        rows = [
            task(job.id, **fields) for fields in (new, {**retried, "room_id": "other"}, {**new, "lane": -5})
        ]
        await add_tasks(replica, rows)
    await replica.execute(update(jobs).values(has_lanes=True))
    return found


@on_postgresql
@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("start", [False, True])
async def test_a_plain_claim_equals_any_other(
    timed: Replica, clock: ManualClock, policy: dict[str, Any], start: bool
) -> None:
    """Responses, rows, counts, heartbeats and events are alike."""
    both = await of_two_jobs(timed, **policy)
    clock.advance(100)
    found = []
    for job, claim in zip(both, (general, plain), strict=True):
        more = await timed.register(job.full_name.split(":")[2])
        items = [
            a_claim(job.worker_id, task_limit=2, start=start),
            a_claim(more.worker_id, claim_id=UUID(int=7)),
        ]
        results = await claim(timed, *items)
        assert results is not None
        assert [len(result.tasks) for result in results] == [2, 1]
        ids = {task.id: place for place, task in enumerate(one for result in results for one in result.tasks)}
        found.append(
            (
                [one.model_dump(exclude={"id", "job_name", "worker_id"}) for one in _all(results)],
                [one.worker_id for one in _all(results)] == [job.worker_id] * 2 + [more.worker_id],
                [
                    {**row._mapping, **dict.fromkeys(("seq", "id", "job_id", "worker_id"))}
                    for row in sorted(await timed.rows(Task, tasks.c.job_id == job.id), key=attrgetter("seq"))
                ],
                sorted(
                    tuple(row[2:])
                    for row in await timed.rows(RoomCount, RoomCount.__table__.c.job_id == job.id)
                ),
                # Of each lane: where a block begins depends on the tasks of other tests.
                sorted(
                    {
                        (row.lane, row.queued)
                        for row in await timed.rows(QueueBlock, QueueBlock.__table__.c.job_id == job.id)
                    }
                ),
                [
                    row.last_heartbeat == clock.now
                    for row in await timed.rows(Worker)
                    if row.id in (job.worker_id, more.worker_id)
                ],
                [
                    (ids[event.id], event.status, event.started_at, event.error, room)
                    for event, room in timed.events
                    if getattr(event, "id", None) in ids
                ],
            )
        )
    assert found[0] == found[1]
    assert sorted(one["priority"] for one in found[1][0]) == [0, 0, 5]


@on_postgresql
@pytest.mark.parametrize("count", [70, 100])
async def test_plain_claims_of_many_tasks_equal_any_other(replica: Replica, count: int) -> None:
    """Each claim gets the next tasks by priority and age; those after the last task get none."""
    found = []
    for name, claim in (("A", general), ("B", plain)):
        job = await replica.register(name)
        more = await replica.register(name)
        rows = [task(job.id, lane=-(number % 3), payload={"n": number}) for number in range(count)]
        await add_tasks(replica, rows)
        ids = [uuid4(), None, uuid4()]
        items = [
            a_claim(job.worker_id, task_limit=50, start=True, claim_id=ids[0]),
            a_claim(more.worker_id, task_limit=20, claim_id=ids[1]),
            a_claim(more.worker_id, task_limit=30, start=True, claim_id=ids[2]),
        ]
        results = await claim(replica, *items)
        assert results is not None
        got = [[one.payload["n"] for one in result.tasks] for result in results]
        rows_by_n = {row.payload["n"]: row for row in await replica.rows(Task, tasks.c.job_id == job.id)}
        held = [
            [
                (row.worker_id == item.worker_id, row.claim_id == item.claim_id, row.status, row.attempt)
                for row in map(rows_by_n.__getitem__, numbers)
            ]
            for item, numbers in zip(items, got, strict=True)
        ]
        reasons = [(result.reason, len(result.jobs.names), result.is_contended) for result in results]
        left = await replica.rows(Job, jobs.c.id == job.id)
        found.append((got, held, reasons, left[0].pending))
    assert found[0] == found[1]
    assert list(map(len, found[1][0])) == [50, 20, count - 70]
    assert {each for claimed in found[1][1] for each in claimed} == {
        (True, True, TaskStatus.RUNNING, 1),
        (True, True, TaskStatus.CLAIMED, 1),
    }


def _all(results: list[ClaimResult]) -> list[Any]:
    return [one for result in results for one in result.tasks]


@on_postgresql
async def test_claims_without_a_task_equal_any_other(replica: Replica) -> None:
    """They get the names of the jobs to wait for, also beside claims that get the last task."""
    first = await replica.register("A")
    await replica.register("B", worker=first.worker_id)
    lone = await replica.worker()
    paused = await replica.register("C")
    await replica.submit(paused)
    await replica.pause(paused)
    items = [a_claim(worker) for worker in (first.worker_id, lone, paused.worker_id)]
    before = await state(replica)
    assert await plain(replica, *items) == await general(replica, *items)
    assert await state(replica) == before
    made = await replica.submit(first)
    results = await plain(replica, *items, items[0])
    assert results is not None
    assert [[one.id for one in result.tasks] for result in results] == [[made.id], [], [], []]
    assert [result.reason for result in results[1:]] == [
        EmptyReason.EMPTY,
        EmptyReason.PAUSED,
        EmptyReason.EMPTY,
    ]
    assert {str(name) for name in results[3].jobs.names} == {first.full_name, "@global:modifiers:B"}


async def test_new_and_repeated_and_empty_claims_share_a_batch(replica: Replica) -> None:
    """Each has its result in the order of the claims; the jobs to wait for are read once."""
    job, other, drained = [await replica.register(name) for name in ("A", "B", "A")]
    ids = [(await replica.submit(job)).id for _ in range(4)]
    await replica.drain(drained.worker_id)
    marked = a_claim(job.worker_id, claim_id=uuid4())
    rest = [a_claim(each.worker_id) for each in (job, other, drained)]
    claims = PlainClaims()
    found = []
    for items in ([marked], [rest[0], marked, *rest[1:]], [marked, *rest], rest[1:2], [rest[0], rest[0]]):
        found += await replica.runtime.write(partial(claims.claim, items=items))
    results = [result for result in found if isinstance(result, ClaimResult)]
    expected = [ids[0], ids[1], ids[0], None, None, ids[0], ids[2], None, None, None, ids[3], None]
    assert [next((one.id for one in result.tasks), None) for result in results] == expected
    empty = [result for result in results if not result.tasks]
    reasons = [EmptyReason.EMPTY, EmptyReason.DRAINING] * 2 + [EmptyReason.EMPTY] * 2
    assert [result.reason for result in empty] == reasons
    assert [str(name) for name in empty[0].jobs.names] == [other.full_name]
    assert empty[0].jobs is empty[2].jobs is empty[4].jobs


async def _limited(replica: Replica, job: JobResponse) -> list[Claim]:
    await replica.execute(update(jobs).values(max_in_flight=5))
    return [a_claim(job.worker_id)]


async def _with_max_tasks(replica: Replica, job: JobResponse) -> list[Claim]:
    await replica.execute(update(workers).values(max_tasks=5))
    return [a_claim(job.worker_id)]


async def _draining(replica: Replica, job: JobResponse) -> list[Claim]:
    await replica.drain(job.worker_id)
    return [a_claim(job.worker_id)]


async def _of_a_stranger(replica: Replica, job: JobResponse) -> list[Claim]:
    return [a_claim(job.worker_id), a_claim((await replica.register()).worker_id, by=STRANGER)]


async def _without_worker(replica: Replica, job: JobResponse) -> list[Claim]:
    return [a_claim(job.worker_id), a_claim(uuid4())]


async def _repeated(replica: Replica, job: JobResponse) -> list[Claim]:
    await replica.submit(job)
    item = a_claim(job.worker_id, claim_id=uuid4())
    await general(replica, item)
    return [item]


async def _of_several_jobs(replica: Replica, job: JobResponse) -> list[Claim]:
    other = await replica.register("Other", worker=job.worker_id)
    await replica.submit(other)
    return [a_claim(job.worker_id, task_limit=2)]


async def _of_workers_of_several_jobs(replica: Replica, job: JobResponse) -> list[Claim]:
    other = await replica.register("Other")
    await replica.submit(other)
    return [a_claim(job.worker_id), a_claim(other.worker_id)]


async def _expired(replica: Replica, job: JobResponse) -> list[Claim]:
    await replica.submit(job, expires_in_seconds=1e-6)
    return [a_claim(job.worker_id, task_limit=2)]


async def _of_large_payloads(replica: Replica, job: JobResponse) -> list[Claim]:
    await add_tasks(replica, [task(job.id, payload={"n": "x" * 2**20}) for _ in range(8)])
    return [a_claim(job.worker_id, task_limit=20)]


OTHERS = [
    *(_limited, _with_max_tasks, _draining, _of_a_stranger, _without_worker),
    *(_repeated, _of_several_jobs, _of_workers_of_several_jobs, _expired, _of_large_payloads),
]


@on_postgresql
async def test_claims_that_are_not_plain_write_nothing(replica: Replica, subtests: pytest.Subtests) -> None:
    """Then the statements for all claims take the whole batch."""
    for prepare in OTHERS:
        with subtests.test(prepare=prepare):
            job = await replica.register()
            await replica.submit(job)
            items = await prepare(replica, job)
            before = await state(replica)
            assert await plain(replica, *items) is None
            assert await state(replica) == before


@on_postgresql
async def test_some_batches_are_never_plain(replica: Replica) -> None:
    """Claims by room, of more than 2,000 tasks, with one id twice, or of two users for one worker."""
    worker = (await replica.register()).worker_id
    marked = a_claim(worker, claim_id=uuid4())
    batches = [
        [a_claim(worker, order=ClaimOrder(is_fair=True))],
        [a_claim(worker, task_limit=1000)] * 2 + [a_claim(worker)],
        [marked, marked],
        [a_claim(worker), a_claim(worker, by=STRANGER)],
    ]
    statements = replica.record_statements()
    for items in batches:
        await replica.runtime.write(partial(PlainClaims().claim, items=items))
    assert not [sql for sql, _ in statements if sql.startswith("WITH worker")]
    await replica.runtime.write(partial(PlainClaims().claim, items=[a_claim(worker)]))
    assert [sql for sql, _ in statements if sql.startswith("WITH worker")]


@on_postgresql
async def test_a_plain_claim_is_one_statement(replica: Replica) -> None:
    """It is a transaction of its own: no BEGIN, no COMMIT. While claims are not plain, it is tried rarely."""
    job = await replica.register()
    await add_tasks(replica, [task(job.id) for _ in range(3)])
    statements = replica.record_statements()
    assert await replica.claim(job.worker_id) is not None
    assert await replica.claim(job.worker_id, claim_id=uuid4()) is not None
    assert [statement.is_alone for statement in statements] == [True, True]
    other = await replica.register("Other", worker=job.worker_id)
    await add_tasks(replica, [task(each.id) for each in (job, other) for _ in range(40)])
    statements.clear()
    assert await replica.claim(job.worker_id) is not None
    assert [statement.is_alone for statement in statements] == [True]
    statements.clear()
    for _ in range(20):
        await replica.claim_response(job.worker_id, max=2)
    assert sum(statement.is_alone for statement in statements) == 5


@asynccontextmanager
async def uncommitted(replica: Replica, *changes: Executable) -> AsyncIterator[None]:
    """Change something in another transaction; commit at the end, after a statement waits for it."""
    async with replica.engine.connect() as other:
        for change in changes:
            await other.execute(change)
        yield
        await wait_for_lock(replica)
        await other.commit()


@on_postgresql
async def test_a_pause_during_the_claim_wins(replica: Replica) -> None:
    """The statement began before the pause, and waited for it."""
    job = await replica.register()
    await replica.submit(job)
    async with uncommitted(replica, update(jobs).values(paused=True)):
        claiming = asyncio.create_task(replica.claim_response(job.worker_id))
    response = await claiming
    assert (response.task, response.reason) == (None, EmptyReason.PAUSED)


@on_postgresql
async def test_a_registration_that_ends_during_the_claim_wins(replica: Replica) -> None:
    """The statement began before the worker was unlinked from the job, which changes its heartbeat."""
    job = await replica.register()
    await replica.submit(job)
    beat = update(workers).values(last_heartbeat=workers.c.last_heartbeat)
    unserved = update(Job).values(unserved_since=func.now())
    async with uncommitted(replica, beat, delete(WorkerJobLink), unserved):
        claiming = asyncio.create_task(replica.claim(job.worker_id))
    assert await claiming is None


@on_postgresql
@pytest.mark.parametrize("first", [plain, general])
async def test_a_repeat_during_the_claim_gets_its_tasks(pair: list[Replica], first: Any) -> None:
    """The statement of the repeat began before the commit of the claim, and waited for it."""
    job = await pair[0].register()
    for _ in range(2):
        await pair[0].submit(job)
    assert job.worker_id is not None
    item = a_claim(job.worker_id, claim_id=uuid4())
    claimed, go = asyncio.Event(), asyncio.Event()

    async def claim_slowly(tx: Any) -> Any:
        made = await (claim_with_one_statement if first is plain else rules_claims.claim)(tx, [item])
        claimed.set()
        await go.wait()
        return made

    # A transaction of its own, because a plain claim would commit at once.
    slow = asyncio.create_task(_in_transaction(pair[0], claim_slowly))
    await claimed.wait()
    repeat = asyncio.create_task(pair[1].claim(job.worker_id, claim_id=item.claim_id))
    await wait_for_lock(pair[0])
    go.set()
    [result] = await slow
    again = await repeat
    assert again is not None
    assert again.id == result.tasks[0].id
    assert len(await pair[0].rows(Task, tasks.c.status == TaskStatus.CLAIMED.value)) == 1


async def _in_transaction(replica: Replica, work: Any) -> Any:
    async def run(tx: Any) -> Any:
        await tx.now()
        return await work(tx)

    return await replica.runtime.write(run)


@on_postgresql
async def test_a_locked_task_is_passed_over(replica: Replica) -> None:
    """The next one is claimed; if all others are locked, the claim is repeated until one is free."""
    job = await replica.register()
    locked, free = [await replica.submit(job) for _ in range(2)]
    async with replica.engine.connect() as other:
        await other.execute(update(tasks).where(tasks.c.id == locked.id).values(error="changed"))
        [result] = await plain(replica, a_claim(job.worker_id, task_limit=2)) or []
        assert [one.id for one in result.tasks] == [free.id]
        assert await plain(replica, a_claim(job.worker_id)) is None
        await other.commit()
    [result] = await plain(replica, a_claim(job.worker_id)) or []
    assert [(one.id, one.error) for one in result.tasks] == [(locked.id, "changed")]


@on_postgresql
async def test_a_late_heartbeat_is_written_without_a_task(timed: Replica, clock: ManualClock) -> None:
    """A claim counts as a heartbeat, which is written four times per heartbeat interval."""
    job = await timed.register()
    before = clock.now
    for advance, is_late in ((3.7, False), (0.1, True)):
        clock.advance(advance)
        assert await plain(timed, a_claim(job.worker_id)) is not None
        [row] = await timed.rows(Worker)
        assert row.last_heartbeat == (clock.now if is_late else before)


@on_postgresql
async def test_a_task_that_returned_to_its_queue_meanwhile_is_claimed(replica: Replica) -> None:
    """The statement began before another worker claimed and released the task; the counts stay right."""
    job, other = await replica.register(), await replica.register()
    made = await replica.submit(job)
    locked = select(workers).where(workers.c.id == job.worker_id).with_for_update(key_share=True)
    async with replica.engine.connect() as holder:
        await holder.execute(locked)
        claiming = asyncio.create_task(replica.claim(job.worker_id))
        await wait_for_lock(replica)
        await general(replica, a_claim(other.worker_id))
        await replica.act(rules_task_actions.release, made.id)
        await holder.rollback()
    got = await claiming
    assert got is not None
    assert (got.id, got.attempt) == (made.id, 2)
    [row] = await replica.rows(Job)
    assert row.pending == 0
