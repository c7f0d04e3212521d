"""Concurrent requests: one wins, the others get a documented problem, and none gets an unexpected error.

Each test runs with one replica, and with two replicas on the same database.
"""

import asyncio
from collections import Counter
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest
from databases import every_kind
from replica import OWNER, STRANGER, SUBMITTER, TIMEOUT, Replica
from seeds import LONG_AGO, add_tasks, seconds, task
from sqlalchemy import func, select, text, update
from sqlalchemy.ext.asyncio import AsyncEngine

from zndraw_joblib.server.db.tables import Job, ProviderRequestRecord, Task, Token, Worker, WorkerJobLink
from zndraw_joblib.server.process.ports import WorkerGrant
from zndraw_joblib.server.queue import (
    rules_jobs,
    rules_providers,
    rules_queues,
    rules_tasks,
    rules_workers,
    sql_jobs,
    sql_providers,
    sql_workers,
)
from zndraw_joblib.wire.events import TaskStatusEvent
from zndraw_joblib.wire.messages import (
    JobRegisterRequest,
    JobResponse,
    TaskResponse,
    TaskSubmitRequest,
    WorkerInfo,
)
from zndraw_joblib.wire.names import GLOBAL, JobName
from zndraw_joblib.wire.problems import InvalidTaskTransition, JobNotFound, SchemaConflict, WorkerNotFound
from zndraw_joblib.wire.providers import ProviderRegisterRequest
from zndraw_joblib.wire.requirements import matches
from zndraw_joblib.wire.statuses import TERMINAL, TaskStatus

tokens = Token.__table__
jobs, tasks, workers, links = Job.__table__, Task.__table__, Worker.__table__, WorkerJobLink.__table__

Pair = list[Replica]
ROUNDS = 8
ROTATE = JobName(GLOBAL, "modifiers", "Rotate")
only_postgresql = pytest.mark.parametrize("kind", ["postgresql", "postgresql-of-a-host"])
LOCK_WAITS = select(func.count()).select_from(text("pg_locks")).where(text("NOT granted"))


async def at_once(*requests: Any) -> list[Any]:
    """Send all requests at the same time; return their results or exceptions."""
    async with asyncio.timeout(TIMEOUT):
        return await asyncio.gather(*requests, return_exceptions=True)


def kinds(results: list[Any]) -> Counter[type]:
    """Count results by their class."""
    return Counter(type(result) for result in results)


def endings(pair: Pair, task_id: UUID) -> list[TaskStatus]:
    """Return the events of all replicas about a task's end."""
    return [
        status
        for replica in {id(one): one for one in pair}.values()
        for status in replica.final_statuses(task_id)
    ]


async def make_workers(replica: Replica, job_ids: list[UUID], count: int) -> list[UUID]:
    """Create workers that serve all these jobs."""
    ids = [uuid4() for _ in range(count)]
    now = (await replica.rows(workers))[0].last_heartbeat
    row = {"owner_id": OWNER.id, "created_at": now, "last_heartbeat": now}
    await replica.add(workers, [{**row, "id": worker} for worker in ids])
    await replica.add(links, [{"worker_id": w, "job_id": j} for w in ids for j in job_ids])
    return ids


@every_kind
@pytest.mark.parametrize("job_count", [1, 4])
async def test_two_hundred_claims_of_a_hundred_tasks(pair: Pair, job_count: int) -> None:
    """Each task is claimed once, none is left, and no claim returns empty while a task is pending."""
    first = pair[0]
    job_ids = [(await first.register(f"J{number}")).id for number in range(job_count)]
    ids = await add_tasks(first, [task(job_ids[number % job_count]) for number in range(100)])
    crowd = await make_workers(first, job_ids, 200)
    results = await at_once(*[pair[turn % 2].claim(worker) for turn, worker in enumerate(crowd)])
    assert kinds(results) == {TaskResponse: 100, type(None): 100}
    claimed = [result for result in results if result is not None]
    assert Counter(one.id for one in claimed) == Counter(ids)
    held = {row.id: (row.worker_id, row.attempt) for row in await first.rows(tasks)}
    assert held == {one.id: (one.worker_id, 1) for one in claimed}
    published = [status for replica in dict.fromkeys(pair) for status in replica.statuses()]
    assert published == [TaskStatus.CLAIMED] * 100


async def test_one_worker_with_many_claims_gets_as_many_tasks(pair: Pair) -> None:
    """Claims of the same worker do not block each other."""
    job = await pair[0].register()
    ids = await add_tasks(pair[0], [task(job.id) for _ in range(20)])
    results = await at_once(*[pair[turn % 2].claim(job.worker_id) for turn in range(30)])
    assert kinds(results) == {TaskResponse: 20, type(None): 10}
    assert {result.id for result in results if result} == set(ids)


@every_kind
async def test_claims_of_a_token_do_not_exceed_its_tasks(pair: Pair) -> None:
    """Those of several workers at any server, each repeated because its answer was lost: it counts once."""
    first, limit = pair[0], 7
    job = await first.register()
    ids = await add_tasks(first, [task(job.id) for _ in range(30)])
    crowd = await make_workers(first, [job.id], 4)
    caller = OWNER._replace(worker=WorkerGrant(limit, ()))
    row = {"name": OWNER.id, "digest": "0", "created_at": LONG_AGO, "issued_by": "olga"}
    await first.add(tokens, [row | {"is_superuser": False, "max_tasks": limit, "claims": 0}])
    # Each server has workers of its own: what both lock is the token.
    claims = [(pair[number % 2], crowd[number % 4], uuid4()) for number in range(12)]
    results = await at_once(*[one.claim(worker, by=caller, claim_id=id_) for one, worker, id_ in claims])
    assert kinds(results) == {TaskResponse: limit, type(None): 12 - limit}, results
    claimed = [result and result.id for result in results]
    assert len(set(claimed) & set(ids)) == limit
    # A server that was killed between its commit and its answer: the other one gets the claim again.
    repeats = [(pair[number % 2 - 1], worker, id_) for number, (_, worker, id_) in enumerate(claims)]
    for _ in range(2):
        again = await at_once(*[one.claim(worker, by=caller, claim_id=id_) for one, worker, id_ in repeats])
        assert [result and result.id for result in again] == claimed
        [token] = await first.rows(tokens)
        assert token.claims == limit


async def test_claims_during_submissions_miss_nothing(pair: Pair) -> None:
    """Tasks that arrive while workers claim are all claimed, once."""
    job = await pair[0].register()
    crowd = await make_workers(pair[0], [job.id], 8)
    submitting = asyncio.gather(*[pair[turn % 2].submit(job) for turn in range(60)])
    claimed_ids: list[UUID] = []

    async def claim_until_done(replica: Replica, worker: UUID) -> None:
        while len(claimed_ids) < 60:
            claimed = await replica.claim(worker, wait=0.05)
            if claimed is not None:
                claimed_ids.append(claimed.id)

    async with asyncio.timeout(TIMEOUT):
        await asyncio.gather(*[claim_until_done(pair[turn % 2], worker) for turn, worker in enumerate(crowd)])
        submitted = await submitting
    assert Counter(claimed_ids) == Counter(one.id for one in submitted)


async def test_of_completed_and_cancelled_one_wins(pair: Pair) -> None:
    """The other is a conflict; the row, the responses and the one terminal event agree."""
    job = await pair[0].register()
    held = [await pair[0].running(job) for _ in range(ROUNDS)]
    results = await at_once(
        *[
            request
            for one in held
            for request in (
                pair[0].report(one.id, TaskStatus.COMPLETED, attempt=1),
                pair[1].report(one.id, TaskStatus.CANCELLED, by=SUBMITTER),
            )
        ]
    )
    assert kinds(results) == {TaskResponse: ROUNDS, InvalidTaskTransition: ROUNDS}
    for index, one in enumerate(held):
        [won] = [result for result in results[2 * index : 2 * index + 2] if isinstance(result, TaskResponse)]
        assert (await pair[0].get(one.id)).status is won.status
        assert endings(pair, one.id) == [won.status]


async def test_of_a_claim_and_a_cancellation_both_may_succeed_but_in_order(pair: Pair) -> None:
    """A pending task is claimed and then cancelled, or cancelled and never claimed."""
    job = await pair[0].register()
    for _ in range(ROUNDS):
        submitted = await pair[0].submit(job)
        claimed, cancelled = await at_once(
            pair[0].claim(job.worker_id), pair[1].report(submitted.id, TaskStatus.CANCELLED, by=SUBMITTER)
        )
        assert isinstance(cancelled, TaskResponse)
        found = await pair[0].get(submitted.id)
        assert found.status is TaskStatus.CANCELLED
        assert found.attempt == (0 if claimed is None else 1)
        assert endings(pair, submitted.id) == [TaskStatus.CANCELLED]


async def test_of_many_equal_reports_one_moves_the_task(pair: Pair) -> None:
    """Each repeated report succeeds; the event is published once."""
    job = await pair[0].register()
    held = await pair[0].running(job)
    reports = [pair[turn % 2].report(held.id, TaskStatus.COMPLETED, attempt=1) for turn in range(10)]
    results = await at_once(*reports)
    assert kinds(results) == {TaskResponse: 10}
    assert len({result.completed_at for result in results}) == 1
    assert endings(pair, held.id) == [TaskStatus.COMPLETED]


async def silent(replica: Replica) -> None:
    """Make all workers silent for long."""
    await replica.execute(update(workers).values(last_heartbeat=LONG_AGO))


async def test_of_a_report_and_the_sweeper_one_wins(pair: Pair) -> None:
    """An accepted result stays; a late report is a conflict, and the task has failed."""
    for _ in range(ROUNDS):
        registered = [await pair[0].register() for _ in range(3)]
        held = [await pair[0].running(job) for job in registered]
        await silent(pair[0])
        *results, retired = await at_once(
            *[pair[0].report(one.id, TaskStatus.COMPLETED, attempt=1) for one in held], pair[1].retire_stale()
        )
        assert retired == 3
        for one, result in zip(held, results, strict=True):
            found = await pair[0].get(one.id)
            if isinstance(result, TaskResponse):
                assert found.status is TaskStatus.COMPLETED
            else:
                assert isinstance(result, InvalidTaskTransition)
                assert (found.status, found.error) == (TaskStatus.FAILED, "Worker disconnected")
            assert endings(pair, one.id) == [found.status]


async def test_an_accepted_heartbeat_saves_its_worker(pair: Pair) -> None:
    """A heartbeat during a sweep either succeeds and the worker stays, or finds no worker."""
    for _ in range(ROUNDS):
        crowd = [(await pair[0].register()).worker_id for _ in range(4)]
        await silent(pair[0])
        *results, _ = await at_once(*[pair[0].heartbeat(worker) for worker in crowd], pair[1].retire_stale())
        living = {row.id for row in await pair[0].rows(workers)}
        for worker, result in zip(crowd, results, strict=True):
            if isinstance(result, Exception):
                assert isinstance(result, WorkerNotFound)
            assert (worker in living) == (not isinstance(result, Exception))


async def test_an_accepted_claim_saves_its_worker(pair: Pair) -> None:
    """A claim during a sweep either gets a task and its worker stays, or finds no worker."""
    for _ in range(ROUNDS):
        job = await pair[0].register()
        submitted = await pair[0].submit(job)
        await silent(pair[0])
        result, retired = await at_once(pair[0].claim(job.worker_id), pair[1].retire_stale())
        found = await pair[0].get(submitted.id)
        if isinstance(result, TaskResponse):
            assert (retired, found.status) == (0, TaskStatus.CLAIMED)
            await pair[0].leave(job.worker_id)
        else:
            assert isinstance(result, WorkerNotFound)
            assert (retired, found.status) == (1, TaskStatus.PENDING)
            await pair[0].report(submitted.id, TaskStatus.CANCELLED, by=SUBMITTER)


async def test_two_sweepers_retire_each_worker_once(pair: Pair) -> None:
    """They share the silent workers: each is counted once, and each task fails with one event."""
    job = await pair[0].register()
    crowd = [job.worker_id, *await make_workers(pair[0], [job.id], 299)]
    owner = {"worker_owner_id": OWNER.id}
    ids = await add_tasks(pair[0], [task(job.id, TaskStatus.RUNNING, worker_id=w, **owner) for w in crowd])
    await silent(pair[0])
    counts = await at_once(*[replica.retire_stale() for replica in pair])
    assert sum(counts) == 300
    assert await pair[0].rows(workers) == []
    published = Counter(
        event.id
        for replica in dict.fromkeys(pair)
        for event, _ in replica.events
        if isinstance(event, TaskStatusEvent) and event.status in TERMINAL
    )
    assert published == Counter(ids)


@pytest.mark.parametrize("kind", ["postgresql"])
@pytest.mark.parametrize("beat", ["long ago", "in the future"])
async def test_a_sweep_waits_for_no_lock(replica: Replica, engine: AsyncEngine, beat: str) -> None:
    """It skips a worker whose row is locked, because waiting for the lock could cause a deadlock."""
    held, other = await replica.register(), await replica.register()
    last = LONG_AGO if beat == "long ago" else LONG_AGO.replace(year=2099)
    await replica.execute(update(workers).values(last_heartbeat=last))
    async with engine.connect() as another:
        await another.execute(select(workers).where(workers.c.id == held.worker_id).with_for_update())
        retired = await replica.retire_stale()
        await another.rollback()
    found = {row.id: row.last_heartbeat for row in await replica.rows(workers)}
    assert found[held.worker_id] == last
    if beat == "long ago":
        assert (retired, set(found)) == (1, {held.worker_id})
    else:
        assert (retired, found[other.worker_id] < last) == (0, True)


async def test_of_many_removals_of_a_worker_one_succeeds(pair: Pair) -> None:
    """The others find no worker; its task fails once."""
    job = await pair[0].register()
    held = await pair[0].running(job)
    results = await at_once(*[pair[turn % 2].leave(job.worker_id) for turn in range(6)])
    assert kinds(results) == {type(None): 1, WorkerNotFound: 5}
    assert endings(pair, held.id) == [TaskStatus.FAILED]


async def test_twenty_first_registrations_at_once(pair: Pair) -> None:
    """One creates the job, all serve it, and none gets an error."""
    results = await at_once(*[pair[turn % 2].register_job() for turn in range(20)])
    assert Counter(is_new for _, is_new in results) == {True: 1, False: 19}
    assert len({job.id for job, _ in results}) == 1
    served = {row.worker_id for row in await pair[0].rows(links)}
    assert served == {job.worker_id for job, _ in results}
    assert len(served) == 20


async def test_the_same_registration_twenty_times_at_once(pair: Pair) -> None:
    """A worker that registers one job many times serves it once."""
    worker = await pair[0].worker()
    results = await at_once(*[pair[turn % 2].register_job(worker=worker) for turn in range(20)])
    assert Counter(is_new for _, is_new in results) == {True: 1, False: 19}
    assert len(await pair[0].rows(links)) == 1


async def test_of_two_schemas_at_once_one_wins(pair: Pair) -> None:
    """All workers with that schema serve the job; the others get a conflict and leave no worker row."""
    schemas = [{"minProperties": 1}, {"maxProperties": 1}]
    results = await at_once(
        *[pair[turn % 2].register_job(schema=schemas[turn // 2 % 2]) for turn in range(20)]
    )
    assert set(kinds(results)) == {tuple, SchemaConflict}
    [row] = await pair[0].rows(jobs)
    won = [index for index, result in enumerate(results) if isinstance(result, tuple)]
    assert won == [index for index in range(20) if schemas[index // 2 % 2] == row.schema]
    assert len(await pair[0].rows(workers)) == len(won) == 10


async def is_deleted(replica: Replica, job: JobResponse) -> bool:
    """Return whether a job is soft-deleted."""
    [row] = await replica.rows(jobs, jobs.c.id == job.id)
    return bool(row.deleted)


async def test_a_registration_during_the_deletion_of_its_job_serves_it(pair: Pair) -> None:
    """If a worker registers while the last one leaves, the job is active and the new worker serves it."""
    job = await pair[0].register()
    for _ in range(ROUNDS):
        gone, came = await at_once(pair[0].leave(job.worker_id), pair[1].register())
        assert gone is None
        assert not await is_deleted(pair[0], came)
        assert [row.worker_id for row in await pair[0].rows(links)] == [came.worker_id]
        job = came


async def test_a_new_schema_during_the_deletion_of_its_job_replaces_it_or_is_refused(pair: Pair) -> None:
    """The job was soft-deleted and is restored with the new schema, or it is still active."""
    for turn in range(ROUNDS):
        job = await pair[0].register(schema={"minProperties": turn + 1})
        gone, came = await at_once(
            pair[0].leave(job.worker_id), pair[1].register(schema={"maxProperties": turn + 1}, by=STRANGER)
        )
        assert gone is None
        if isinstance(came, JobResponse):
            assert not await is_deleted(pair[0], job)
            await pair[0].leave(came.worker_id, by=STRANGER)
        else:
            assert isinstance(came, SchemaConflict)
        assert await is_deleted(pair[0], job)


@pytest.mark.parametrize("going", ["leave", "unlink_job", "retire_stale"])
async def test_a_submission_during_the_deletion_of_its_job_is_pending_or_refused(
    pair: Pair, going: str
) -> None:
    """The task keeps the job, or the job is gone and no task exists; no task is left without a job."""
    for _ in range(ROUNDS):
        job = await pair[0].register()
        if going == "retire_stale":
            await silent(pair[0])
            go = pair[0].retire_stale()
        elif going == "leave":
            go = pair[0].leave(job.worker_id)
        else:
            go = pair[0].unlink_job(job.worker_id, job)
        gone, submitted = await at_once(go, pair[1].submit(job))
        assert not isinstance(gone, Exception)
        if isinstance(submitted, TaskResponse):
            assert not await is_deleted(pair[0], job)
            assert (await pair[0].get(submitted.id)).queue_position == 1
            await pair[0].report(submitted.id, TaskStatus.CANCELLED, by=SUBMITTER)
        else:
            assert isinstance(submitted, JobNotFound)
        assert await is_deleted(pair[0], job)


async def test_a_submission_during_the_last_cancellation_is_pending_or_refused(pair: Pair) -> None:
    """Cancelling the last pending task soft-deletes a job without workers, or a new task keeps it."""
    for _ in range(ROUNDS):
        job = await pair[0].register()
        last = await pair[0].submit(job)
        await pair[0].leave(job.worker_id)
        cancelled, submitted = await at_once(
            pair[0].report(last.id, TaskStatus.CANCELLED, by=SUBMITTER), pair[1].submit(job)
        )
        assert isinstance(cancelled, TaskResponse)
        if isinstance(submitted, TaskResponse):
            assert not await is_deleted(pair[0], job)
            await pair[0].report(submitted.id, TaskStatus.CANCELLED, by=SUBMITTER)
        else:
            assert isinstance(submitted, JobNotFound)
        assert await is_deleted(pair[0], job)


async def test_a_claim_during_the_removal_of_its_job_leaves_no_orphan(pair: Pair) -> None:
    """The task is claimed or stays pending; a job without workers and pending tasks is soft-deleted."""
    for _ in range(ROUNDS):
        job = await pair[0].register()
        submitted = await pair[0].submit(job)
        claimed, gone = await at_once(pair[0].claim(job.worker_id), pair[1].unlink_job(job.worker_id, job))
        assert gone is None
        assert not isinstance(claimed, Exception)
        assert await is_deleted(pair[0], job) == (claimed is not None)
        await pair[0].report(submitted.id, TaskStatus.CANCELLED, by=SUBMITTER)
        assert await is_deleted(pair[0], job)


async def test_concurrent_submits_get_different_positions(pair: Pair) -> None:
    """Each of many concurrent submits gets its own, correct position."""
    job = await pair[0].register()
    results = await at_once(*[pair[turn % 2].submit(job) for turn in range(60)])
    assert sorted(result.queue_position for result in results) == list(range(1, 61))
    for result in results:
        assert (await pair[0].get(result.id)).queue_position == result.queue_position


async def test_tasks_are_claimed_in_the_order_of_their_arrival(pair: Pair) -> None:
    """A task that was accepted before another was sent is claimed before it, on any replica."""
    job = await pair[0].register()
    ids = [(await pair[turn % 2].submit(job)).id for turn in range(10)]
    claimed = [await pair[turn % 2].claim(job.worker_id) for turn in range(10)]
    assert [one.id for one in claimed if one] == ids


async def test_sweeps_during_other_requests_lose_no_task(pair: Pair) -> None:
    """Two sweepers fail stuck and abandoned tasks and remove silent workers while others claim and report."""
    job = await pair[0].register()
    await add_tasks(pair[0], [task(job.id) for _ in range(20)])

    async def work(replica: Replica) -> int:
        done = 0
        served = await replica.register()
        while (claimed := await replica.claim(served.worker_id)) is not None:
            await replica.report(claimed.id, TaskStatus.RUNNING, attempt=claimed.attempt)
            await replica.report(claimed.id, TaskStatus.COMPLETED, attempt=claimed.attempt)
            done += 1
        return done

    async def clean(replica: Replica) -> int:
        count = 0
        for _ in range(5):
            count += (
                await replica.retire_stale() + await replica.recover_abandoned() + await replica.fail_stuck()
            )
        return count

    *done, first, second = await at_once(*map(work, [*pair, *pair]), *map(clean, pair))
    assert (sum(done), first, second) == (20, 0, 0)
    assert Counter(row.status for row in await pair[0].rows(tasks)) == {"completed": 20}
    assert (await pair[0].rows(workers))[0].last_heartbeat - LONG_AGO > seconds(60)


@pytest.mark.parametrize("kind", ["postgresql", "postgresql-of-a-host"])
async def test_removing_a_provider_waits_for_an_open_request(replica: Replica) -> None:
    """The removal waits for a request that is being inserted, and removes it too."""
    write, leaving = replica.runtime.write, []
    request = ProviderRegisterRequest(category="files", name="home")
    item = rules_providers.ProviderToRegister(OWNER, "lab", request)
    provider, _ = await write(rules_providers.register, item=item)

    async def insert_request(tx: Any) -> None:
        [found] = await sql_providers.lock(tx, [provider.id], shared=True)
        leave = partial(rules_providers.remove, caller=OWNER, provider_id=provider.id)
        leaving.append(asyncio.create_task(write(leave)))
        while not (await tx.execute(LOCK_WAITS)).scalar_one():  # noqa: ASYNC110 - a lock has no event
            await asyncio.sleep(0.01)
        await sql_providers.add(tx, found, "hash", "{}", await tx.now() + timedelta(seconds=60))

    async with asyncio.timeout(TIMEOUT):
        await write(insert_request)
        await leaving[0]
    assert await replica.rows(ProviderRequestRecord.__table__) == []


async def meanwhile(replica: Replica, work: Any, *others: Any) -> Any:
    """Begin others in a transaction of `work`, each when the former waits, and commit when the last one does.

    Return the result or problem of the last one.
    """
    begun: list[Any] = []

    async def write(tx: Any) -> None:
        await work(tx)
        for other in others:
            begun.append(asyncio.ensure_future(other()))
            while (await tx.execute(LOCK_WAITS)).scalar_one() < len(begun):  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.01)

    async with asyncio.timeout(TIMEOUT):
        await replica.runtime.write(write)
        return (await asyncio.gather(*begun, return_exceptions=True))[-1]


async def submit_first(replica: Replica, tx: Any, **options: Any) -> None:
    """Submit a task to a new queue of the job that `Replica.register` registers."""
    request = TaskSubmitRequest(requires={"node": 1}, **options)
    submission = replica.runtime.submission(SUBMITTER, "lab", ROTATE, request)
    submission.validate_payload = False
    [result] = await rules_tasks.submit(tx, [submission])
    assert isinstance(result, TaskResponse)


def registration(schema: dict[str, Any] | None = None, **policy: Any) -> rules_jobs.JobToRegister:
    """Return the registration of that job without a worker."""
    fields = {} if schema is None else {"schema_": schema}
    request = JobRegisterRequest(category=ROTATE.category, name=ROTATE.name, **fields, **policy)
    return rules_jobs.JobToRegister(OWNER, GLOBAL, request)


@only_postgresql
async def test_a_registration_that_waits_for_a_new_queue_serves_it(replica: Replica) -> None:
    """The worker is linked to the first queue of its job, which a submit makes while it registers."""
    first = await replica.register()
    register = partial(replica.register, about=WorkerInfo(labels={"node": 1}))
    job = await meanwhile(replica, partial(submit_first, replica), register)
    assert (await replica.claim_task(job.worker_id)).requires == {"node": 1}
    assert await replica.claim(first.worker_id) is None


@only_postgresql
async def test_a_worker_that_unregisters_while_a_queue_appears_leaves_it_too(replica: Replica) -> None:
    """It gets no task of the queue."""
    job = await replica.register(about=WorkerInfo(labels={"node": 1}))
    write = replica.runtime.write
    unlink = partial(write, rules_workers.unlink_job, OWNER, worker_id=job.worker_id, name=ROTATE)
    lock = partial(sql_jobs.lock, job_ids=[job.id])
    submit = partial(replica.submit, job, requires={"node": 1})
    assert await meanwhile(replica, lock, submit, unlink) is None
    assert await replica.rows(links) == []
    assert (await replica.rows(jobs, jobs.c.id == job.id))[0].unserved_since is not None


@only_postgresql
async def test_a_schema_is_not_replaced_while_the_first_task_of_a_queue_appears(replica: Replica) -> None:
    """Its payload fits the schema that the job has; the new one does not accept it."""
    number, word = ({"type": "object", "properties": {"x": {"type": kind}}} for kind in ("integer", "string"))
    write = replica.runtime.write
    await write(rules_jobs.put, registration(number))
    submit = partial(submit_first, replica, payload={"x": 1})
    problem = await meanwhile(replica, submit, partial(write, rules_jobs.put, registration(word)))
    assert isinstance(problem, SchemaConflict)
    assert [row.schema for row in await replica.rows(jobs)] == [number, number]


@only_postgresql
async def test_a_put_without_a_schema_keeps_a_new_one(replica: Replica) -> None:
    """Also one that is written while it waits."""
    old, new = {"required": ["x"]}, {"required": ["y"]}
    write = replica.runtime.write
    await write(rules_jobs.put, registration(old))
    change = partial(rules_jobs.put, item=registration(new))
    put = partial(write, rules_jobs.put, registration(max_in_flight=2))
    assert isinstance(await meanwhile(replica, change, put), tuple)
    assert [(row.schema, row.max_in_flight) for row in await replica.rows(jobs)] == [(new, 2)]


@only_postgresql
async def test_a_submit_that_waits_for_a_new_version_is_accepted(replica: Replica) -> None:
    """Two versions have a queue for what it requires; a third one replaces the second meanwhile."""
    schemas = [{"required": ["x", "y", "z"][:count]} for count in (3, 2, 1)]
    payload = {"x": 1, "y": 2, "z": 3}
    for schema in schemas[:2]:
        job = await replica.register(schema=schema)
        await replica.submit(job, payload, requires={"node": 1})
    third = JobRegisterRequest(category=ROTATE.category, name=ROTATE.name, schema_=schemas[2])
    register = partial(rules_jobs.register, item=rules_jobs.JobToRegister(OWNER, GLOBAL, third))
    submit = partial(replica.submit, job, payload, requires={"node": 1})
    assert isinstance(await meanwhile(replica, register, submit), TaskResponse)
    queues = await replica.rows(jobs, jobs.c.requires.is_not(None))
    assert Counter(row.schema["required"][-1] for row in queues) == {"z": 1, "y": 1, "x": 1}


@only_postgresql
async def test_a_claim_that_waits_while_a_queue_appears_keeps_the_limit_of_its_job(replica: Replica) -> None:
    """It counts the task that another worker has claimed from the new queue."""
    about = WorkerInfo(labels={"node": 1})
    job, second = [await replica.register(about=about, max_in_flight=1) for _ in range(2)]
    await replica.submit(job)
    other = await replica.register("Other", max_in_flight=1)
    for _ in range(2):
        await replica.submit(other)
    for _ in range(60):  # until a claim of a job with a limit is no longer tried as a plain one
        await replica.claim(other.worker_id)
    claims = []

    async def lock_worker(tx: Any) -> None:
        await sql_workers.lock(tx, [job.worker_id])
        claims.append(asyncio.ensure_future(replica.claim(job.worker_id)))
        while not (await tx.execute(LOCK_WAITS)).scalar_one():  # noqa: ASYNC110 - a lock has no event
            await asyncio.sleep(0.01)
        await replica.submit(job, requires={"node": 1}, priority=10)
        assert (await replica.claim_task(second.worker_id)).requires == {"node": 1}

    async with asyncio.timeout(TIMEOUT):
        await replica.runtime.write(lock_worker)
        assert await claims[0] is None


async def test_workers_come_and_go_while_queues_appear(pair: Pair) -> None:
    """Each worker that stays is linked to the queues that it can serve, and to no others; none has a task."""
    first, second = pair
    matching, other = WorkerInfo(labels={"node": 1}), WorkerInfo(labels={"node": 2})
    job = await first.register(about=matching)
    leaving = [(await first.register(about=about)).worker_id for about in (matching, other) * 3]
    changing = (await first.register(about=other)).worker_id
    for number in range(3):
        labels = WorkerInfo(labels={"node": 1 + number % 2})
        results = await at_once(
            second.submit(job, requires={"node": 1, "round": {"!=": number}}),
            first.register(about=matching),
            first.leave(leaving.pop()),
            second.submit(job, requires={"node": 2, "round": {"!=": number}}),
            second.register(about=other),
            second.leave(leaving.pop()),
            first.runtime.write(rules_workers.describe, changing, labels),
        )
        assert [result for result in results if isinstance(result, BaseException)] == []
        wanted = {
            (one.id, queue.id)
            for queue in await first.rows(jobs)
            for one in await first.rows(workers)
            if matches(one.labels, rules_queues.requires_of(queue.requires))
        }
        assert {(link.worker_id, link.job_id) for link in await first.rows(links)} == wanted
    for _ in range(3):
        assert (await second.claim_task(job.worker_id)).requires is not None
    assert await second.claim(job.worker_id) is None
