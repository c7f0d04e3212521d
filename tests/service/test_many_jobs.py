"""A worker of many jobs gets the oldest tasks of all of them, within all limits, by few statements."""

import asyncio
import random
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest
from databases import on_postgresql
from recovery.test_claims_of_locked_tasks import locked
from replica import OWNER, TIMEOUT, Replica, wait_until_waiting
from seeds import add_tasks, task
from sqlalchemy import insert, update
from waiting import until

from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.tables import Job, Task, WorkerJobLink
from zndraw_joblib.server.process.waiters import CallerAccess
from zndraw_joblib.server.queue import rules_claims, sql_claims
from zndraw_joblib.server.queue.rules_claims import NO_JOBS, Claim, ClaimResult, JobSets
from zndraw_joblib.wire.messages import EmptyReason, TaskClaimRequest
from zndraw_joblib.wire.policy import JobLimit
from zndraw_joblib.wire.statuses import TaskStatus

JOBS = 40
jobs, tasks, links = Job.__table__, Task.__table__, WorkerJobLink.__table__


@pytest.fixture
def recheck_seconds() -> tuple[float, float]:
    """Disable the periodic recheck, by which a claim takes a task for which another is woken."""
    return 3600.0, 3600.0


async def workers_of_many(replica: Replica, count: int = 1) -> tuple[list[UUID], list[UUID]]:
    """Return workers of the same jobs, and the ids of the jobs, half of them in a room."""
    first = await replica.register("J0")
    workers = [first.worker_id, *[await replica.worker() for _ in range(count - 1)]]
    rooms = ["@global", "lab"]
    served = [first.id]
    for number in range(1, JOBS):
        name, room = f"J{number}", rooms[number % 2]
        served.append((await replica.register(name, room, worker=first.worker_id)).id)
    rows = [{"worker_id": worker, "job_id": job_id} for worker in workers[1:] for job_id in served]
    if rows:
        await replica.execute(insert(links).values(rows))
    return [worker for worker in workers if worker], served


async def claim(replica: Replica, *items: Claim, sets: JobSets | None = None) -> list[ClaimResult]:
    """Claim in one transaction."""
    results: list[Any] = await replica.runtime.write(partial(rules_claims.claim, items=items, sets=sets))
    return results


async def hold_one_of(replica: Replica, job_ids: list[UUID]) -> None:
    """Add a running task of each of these jobs, which another worker holds."""
    holder = {"worker_id": await replica.worker(), "worker_owner_id": OWNER.id}
    await add_tasks(replica, [task(job_id, TaskStatus.RUNNING, **holder) for job_id in job_ids])


def ids_of(result: ClaimResult) -> list[UUID]:
    """Return the ids of the tasks of a claim."""
    return [claimed.id for claimed in result.tasks]


@pytest.mark.parametrize("is_lone", [True, False])
async def test_claims_get_the_oldest_tasks_of_all_jobs(replica: Replica, is_lone: bool) -> None:
    """By priority, then by arrival, whatever the sizes of the claims and the lengths of the queues."""
    workers, served = await workers_of_many(replica, 3)
    dice = random.Random(7)
    busy = served[:3]
    rows = [
        task(dice.choice(busy if dice.random() < 0.5 else served), lane=dice.choice([-5, 0, 0, 0, 3]))
        for _ in range(400)
    ]
    ids = await add_tasks(replica, rows)
    await replica.execute(update(jobs).values(has_lanes=True))
    expected = [ids[number] for number in sorted(range(len(rows)), key=lambda n: (rows[n]["lane"], n))]
    claimed_ids: list[UUID] = []
    while len(claimed_ids) < len(ids):
        sizes = [dice.choice([1, 1, 2, 7, 60]) for _ in range(1 if is_lone else dice.randint(2, 6))]
        items = [Claim(OWNER, dice.choice(workers), 15, task_limit=most) for most in sizes]
        if is_lone and sizes == [1]:  # with one statement on PostgreSQL
            answers = [[(await replica.claim_task(items[0].worker_id)).id]]
        else:
            answers = [ids_of(result) for result in await claim(replica, *items)]
        assert [len(each) for each in answers[:-1]] == sizes[: len(answers) - 1] or len(claimed_ids) + sum(
            sizes
        ) > len(ids)
        claimed_ids += [task_id for each in answers for task_id in each]
    assert claimed_ids == expected


@pytest.mark.parametrize("others", [30, 100])
async def test_tasks_of_other_queues_at_the_front_hide_no_task(replica: Replica, others: int) -> None:
    """A lone claim gets the oldest task of the worker's open jobs, however many of others come first."""
    [worker], served = await workers_of_many(replica)
    foreign = (await replica.register("Foreign")).id
    await replica.execute(update(jobs).where(jobs.c.id == served[0]).values(paused=True))
    await add_tasks(replica, [task(job_id) for _ in range(others // 2) for job_id in (foreign, served[0])])
    ids = await add_tasks(replica, [task(job_id) for _ in range(2) for job_id in served[1:]])
    for task_id in ids[:20]:
        assert (await replica.claim_task(worker)).id == task_id
    [late] = await add_tasks(replica, [task(served[-1], lane=-1)])
    await replica.execute(update(jobs).where(jobs.c.id == served[-1]).values(has_lanes=True))
    for task_id in [late, *ids[20:]]:
        assert (await replica.claim_task(worker)).id == task_id


async def test_workers_of_different_jobs_share_the_tasks_of_one_batch(replica: Replica) -> None:
    """Each gets the oldest tasks of its own jobs that the claims before it have left."""
    [worker], served = await workers_of_many(replica)
    other = await replica.worker()
    rows = [{"worker_id": other, "job_id": job_id} for job_id in served[30:]]
    await replica.execute(insert(links).values(rows))
    ids = await add_tasks(replica, [task(job_id) for _ in range(3) for job_id in served])
    items = [
        Claim(OWNER, other, 15, task_limit=4),
        Claim(OWNER, worker, 15, task_limit=35),
        Claim(OWNER, other, 15, task_limit=9),
    ]
    answers = [ids_of(result) for result in await claim(replica, *items)]
    # Ten jobs of both have the numbers 30 to 39 of each round of 40 tasks.
    assert answers[0] == ids[30:34]
    assert answers[1] == [*ids[:30], *ids[34:39]]
    assert answers[2] == [ids[39], *ids[70:78]]


@pytest.mark.parametrize("most", [1, 3])
async def test_claims_pass_over_queues_from_which_they_may_get_nothing(replica: Replica, most: int) -> None:
    """Paused jobs, jobs at their limit and those of refused rooms hide no task behind them."""
    [worker], served = await workers_of_many(replica)
    oldest = await add_tasks(replica, [task(job_id) for job_id in served for _ in range(2)])
    await replica.execute(update(jobs).where(jobs.c.id.in_(served[:12])).values(paused=True))
    await replica.execute(update(jobs).where(jobs.c.id.in_(served[12:24])).values(max_in_flight=1))
    await hold_one_of(replica, served[12:23])
    # One task of the job 23 may still be held, and all of those after it, unless the room is refused.
    item = Claim(OWNER, worker, 15, task_limit=most)
    free = [oldest[46], *oldest[48:]]
    response = await replica.claim_response(worker, max=most)
    assert [claimed.id for claimed in response.tasks or []] == free[:most]
    [result] = await claim(replica, item._replace(refused_rooms=["lab"]))
    of_global = [task_id for number, task_id in enumerate(oldest) if number >= 48 and number // 2 % 2 == 0]
    assert ids_of(result) == [task_id for task_id in of_global if task_id not in free[:most]][:most]


async def test_an_empty_claim_names_the_reason_and_the_jobs(replica: Replica) -> None:
    """Also if more jobs are paused or at their limit than a claim reads at first."""
    [worker], served = await workers_of_many(replica)
    item, sets = Claim(OWNER, worker, 15), JobSets()
    [result] = await claim(replica, item, sets=sets)
    assert (result.reason, len(result.jobs.names)) == (EmptyReason.EMPTY, JOBS)
    await add_tasks(replica, [task(job_id) for job_id in served])
    await replica.execute(update(jobs).values(paused=True))
    [result] = await claim(replica, item, sets=sets)
    assert (result.reason, result.is_contended) == (EmptyReason.PAUSED, False)
    await replica.execute(update(jobs).values(paused=False, max_in_flight=1))
    await hold_one_of(replica, served)
    [result] = await claim(replica, item, sets=sets)
    assert (result.reason, result.is_contended) == (EmptyReason.AT_CAPACITY, False)
    [refused] = await claim(replica, item._replace(refused_rooms=["lab"]), sets=sets)
    assert {name.room_id for name in refused.jobs.names} == {"@global"}
    assert len(refused.jobs.names) == JOBS / 2


async def test_the_names_of_jobs_are_read_once_for_all_workers(replica: Replica) -> None:
    """And again after a worker's jobs have changed."""
    workers, _ = await workers_of_many(replica, 2)
    sets = JobSets()
    first, second = await claim(replica, *[Claim(OWNER, worker, 15) for worker in workers], sets=sets)
    [again] = await claim(replica, Claim(OWNER, workers[0], 15), sets=sets)
    assert first.jobs is second.jobs is again.jobs
    assert first.keys(workers[0])[1] is second.keys(workers[1])[1]
    job = await replica.register("New", worker=workers[0])
    [longer] = await claim(replica, Claim(OWNER, workers[0], 15), sets=sets)
    assert set(longer.jobs.names) - set(first.jobs.names) == {("@global", "modifiers", "New")}
    await replica.unlink_job(workers[0], job)
    [back] = await claim(replica, Claim(OWNER, workers[0], 15), sets=sets)
    assert back.jobs is first.jobs


def test_known_sets_of_jobs_are_shared_and_bounded() -> None:
    """By digest up to a number of names, and by refused rooms up to four for each set."""
    names, sets, workers = (
        ["@global:modifiers:A", "lab:modifiers:B"],
        JobSets(max_names=10),
        [uuid4(), uuid4()],
    )
    jobs = sets.get(workers[0], "first", names)
    assert jobs is not None
    assert sets.get(workers[1], "first") is jobs
    assert sets.of_workers([*workers, uuid4()]) == {"first": jobs}
    reduced = jobs.without(["lab"])
    assert [*map(str, reduced.names)] == names[:1]
    assert [jobs.is_global, reduced.is_global, NO_JOBS.is_global] == [False, True, False]
    assert jobs.without(["other"]) is jobs.without([]) is jobs
    for number in range(2):
        jobs.without([f"room {number}"])
        assert jobs.without({"lab"}) is reduced
    jobs.without(["room 3"])
    assert jobs.without({"lab"}) is not reduced
    large = sets.get(workers[0], "large", [f"@global:modifiers:J{number}" for number in range(10)])
    assert large is not None
    assert sets.get(workers[0], "large") is None
    assert sets.get(workers[0], "first") is jobs
    for digest in "abc":
        sets.get(workers[0], digest, names)
    assert [sets.get(workers[1], digest) is None for digest in ("first", "a", "b", "c")] == [
        True,
        *[False] * 3,
    ]


@on_postgresql
@pytest.mark.parametrize("most", [1, 5])
async def test_locked_tasks_of_many_jobs_are_passed_over(replica: Replica, most: int) -> None:
    """Another session holds the first tasks of more queues than a claim reads at first."""
    [worker], served = await workers_of_many(replica)
    ids = await add_tasks(replica, [task(job_id) for job_id in served])
    held = [await replica.get(task_id) for task_id in ids[:25]]
    async with locked(replica, held):
        response = await replica.claim_response(worker, max=most)
        assert [claimed.id for claimed in response.tasks or []] == ids[25 : 25 + most]
    assert (await replica.claim_task(worker)).id == ids[0]


async def test_a_task_of_any_job_wakes_a_claim_that_waits_for_all(replica: Replica) -> None:
    """One of two waiting workers, the first one."""
    workers, _ = await workers_of_many(replica, 2)
    claims = []
    for count, worker in enumerate(workers, 1):
        claims.append(asyncio.create_task(replica.claim_response(worker, wait=30)))
        await wait_until_waiting(replica, count)
    for worker, claiming, number in zip(workers, claims, (33, 6), strict=True):
        submitted = await replica.submit(f"{'lab' if number % 2 else '@global'}:modifiers:J{number}")
        claimed = (await claiming).task
        assert claimed is not None
        assert (claimed.id, claimed.worker_id) == (submitted.id, worker)


@on_postgresql
async def test_queues_are_read_again_when_their_first_tasks_are_taken(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim read the first queues, and another took their tasks: the next one is the oldest of all jobs."""
    workers, served = await workers_of_many(replica, 2)
    ids = await add_tasks(replica, [task(job_id) for _ in range(2) for job_id in served])
    lock_chosen, others = sql_claims.lock_chosen, iter([Claim(OWNER, workers[1], 15, task_limit=8)])

    # The other claim is committed between the two reads of this one, where no lock keeps it away.
    async def lock_after_another(tx: Transaction, choose: Any, **options: Any) -> Any:
        for other in others:
            [result] = await replica.runtime.write(partial(rules_claims.claim, items=[other]))
            assert [claimed.id for claimed in result.tasks] == ids[:8]
        return await lock_chosen(tx, choose, **options)

    monkeypatch.setattr(sql_claims, "lock_chosen", lock_after_another)
    [result] = await replica.runtime.write(
        partial(rules_claims.claim, items=[Claim(OWNER, workers[0], 15, task_limit=1)])
    )
    assert [claimed.id for claimed in result.tasks] == ids[8:9]


async def test_claims_of_callers_with_other_refused_rooms_wait(replica: Replica) -> None:
    """More of them than sets are kept: none finds new keys at each check."""
    rooms = [f"room-{number}" for number in range(20)]
    job = await replica.register("J", rooms[0])
    for room in rooms[1:]:
        await replica.register("J", room, worker=job.worker_id)
    served = [link.job_id for link in await replica.rows(WorkerJobLink.__table__)]
    workers = [job.worker_id, *[await replica.worker() for _ in rooms[1:]]]
    await replica.add(
        WorkerJobLink.__table__,
        [{"worker_id": worker, "job_id": job_id} for worker in workers[1:] for job_id in served],
    )

    async def refused(room: str) -> frozenset[str]:
        return frozenset({room})

    async with asyncio.timeout(TIMEOUT), asyncio.TaskGroup() as group:
        for worker, room in zip(workers, rooms, strict=True):
            access, request = (
                CallerAccess(OWNER.id, partial(refused, room)),
                TaskClaimRequest(worker_id=worker),
            )
            group.create_task(replica.runtime.claim(OWNER, request, TIMEOUT, None, access))
        await until(lambda: replica.runtime.waiters.waiting_count == len(rooms))
        statements = replica.record_statements()
        await replica.submit(job, room=rooms[0])
        await until(lambda: replica.runtime.waiters.waiting_count == len(rooms) - 1)
        assert len(statements) < 100
        replica.runtime.waiters.close()


@pytest.mark.parametrize("most", [1, 4])
@pytest.mark.parametrize(
    "limits", [{"max_in_flight": 1}, {"limits": [JobLimit(key="/user", max_in_flight=1)]}], ids=["job", "key"]
)
async def test_full_jobs_hide_no_later_queue(replica: Replica, most: int, limits: dict[str, Any]) -> None:
    """Each job may run one task and has another, which is older than the first of all later jobs."""
    jobs = [await replica.register("Job0", **limits)]
    worker = jobs[0].worker_id
    for number in range(1, JOBS):
        jobs.append(await replica.register(f"Job{number}", worker=worker, **limits))
    submitted = [[(await replica.submit(job, {"user": 1})).id for _ in range(2)] for job in jobs]
    late = [(await replica.submit(jobs[0], {"user": 2})).id] if "limits" in limits else []
    claimed: list[UUID] = []
    while tasks := (await replica.claim_response(worker, max=most)).tasks:
        claimed += [task.id for task in tasks]
    assert claimed == [*(first for first, _ in submitted), *late]
