"""All transactions lock rows in one order: workers, tasks, providers, jobs, room queues, room streams.

So no two can wait for each other. A transaction that locks a job earlier, to count its held tasks, does not
wait for tasks afterwards: it skips locked ones.
"""

import random
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from databases import on_postgresql
from replica import ADMIN, OWNER, SUBMITTER, InternalExecutor, Replica, internal

from service.lock_recorder import ORDER, LockRecorder
from service.test_mixed_load import Actor
from zndraw_joblib.server.background.sweeper import Sweeper
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.tables import RoomQueue, Task
from zndraw_joblib.server.internal.registry import InternalRegistry
from zndraw_joblib.server.queue import (
    rules_claims,
    rules_internal,
    rules_providers,
    rules_room_events,
    rules_sweep,
    rules_task_actions,
    rules_tasks,
    rules_transitions,
    sql_jobs,
    sql_providers,
    sql_tasks,
    sql_transitions,
)
from zndraw_joblib.server.queue.sql_streams import Bounds
from zndraw_joblib.wire.messages import JobResponse, TaskResponse, TaskSubmitRequest, TaskUpdateRequest
from zndraw_joblib.wire.names import INTERNAL, parse_job_name
from zndraw_joblib.wire.policy import Backoff, JobPolicy, RetryOn
from zndraw_joblib.wire.providers import ProviderRegisterRequest
from zndraw_joblib.wire.statuses import TaskStatus

RETRIED: dict[str, Any] = {
    "max_attempts": 3,
    "retry_on": (RetryOn.WORKER_LOST, RetryOn.ERROR),
    "backoff": Backoff(base_seconds=0),
}


@pytest.fixture
def recorder(replica: Replica) -> LockRecorder:
    """Record the locks of the replica's transactions."""
    recorder = LockRecorder()
    recorder.install(replica.runtime.database)
    return recorder


def ok(recorder: LockRecorder) -> None:
    """Assert that the order was kept."""
    assert recorder.violations == [], "\n".join(recorder.violations)


async def two_jobs(replica: Replica, **policy: Any) -> tuple[JobResponse, JobResponse]:
    """Register two jobs of one worker; return them by id."""
    first = await replica.register("A", **policy)
    second = await replica.register("B", worker=first.worker_id, **policy)
    return (first, second) if first.id < second.id else (second, first)


@on_postgresql
async def test_a_recorder_sees_a_wrong_order(replica: Replica, recorder: LockRecorder) -> None:
    """The recorder finds tables, and rows of a table, that are locked in the wrong order."""
    low, high = await two_jobs(replica)
    task = await replica.submit(low)

    async def lock_job_first(tx: Transaction) -> None:
        await sql_jobs.lock_by_names(tx, [parse_job_name(low.full_name)])
        await sql_tasks.lock(tx, [task.id])

    async def lock_high_first(tx: Transaction) -> None:
        for job in (high, low):
            await sql_jobs.lock_by_names(tx, [parse_job_name(job.full_name)])

    for work in (lock_job_first, lock_high_first):
        before = len(recorder.violations)
        await replica.runtime.write(work)
        assert len(recorder.violations) == before + 1


@on_postgresql
async def test_a_removed_worker_with_tasks_of_several_jobs(replica: Replica, recorder: LockRecorder) -> None:
    """Its tasks are requeued and fail for different reasons; the jobs are locked once, in order."""
    low, high = await two_jobs(replica, **RETRIED)
    for job in (high, low, high):
        await replica.submit(job)
    for _ in range(3):
        await replica.start(low.worker_id)
    await replica.leave(low.worker_id)
    ok(recorder)


@on_postgresql
async def test_a_removed_worker_whose_task_returns_to_the_higher_job(
    replica: Replica, recorder: LockRecorder
) -> None:
    """A job that is only checked for workers is locked in order with those whose counts change."""
    low, high = await two_jobs(replica, **RETRIED)
    await replica.submit(high)
    await replica.start(low.worker_id)
    await replica.leave(low.worker_id)
    ok(recorder)


@on_postgresql
async def test_tasks_that_crashed_differently_return_together(
    replica: Replica, recorder: LockRecorder
) -> None:
    """Requeued tasks with different error texts change the counts of their jobs in order."""
    low, high = await two_jobs(replica, start_timeout_seconds=1, **RETRIED)
    held = []
    for job in (high, low):
        await replica.submit(job)
        held.append(await replica.claim_task(low.worker_id))
    moves = []

    async def requeue(tx: Transaction) -> None:
        found = await sql_tasks.lock(tx, [task.id for task in held])
        for number, task in enumerate(found.values()):
            moves.append((task, rules_transitions.released(task, f"for reason {number}")))
        await sql_transitions.move(tx, moves)

    await replica.runtime.write(requeue)
    ok(recorder)


@on_postgresql
async def test_a_batch_of_reports_whose_counts_cancel_out(replica: Replica, recorder: LockRecorder) -> None:
    """A job that loses one pending task and gets another back is locked in order with other jobs."""
    low, high = await two_jobs(replica, **RETRIED)
    await replica.submit(low)
    await replica.submit(high)
    failing = [await replica.start(low.worker_id) for _ in range(2)]
    pending = await replica.submit(low)
    cancel = rules_tasks.Report(ADMIN, pending.id, TaskUpdateRequest(status=TaskStatus.CANCELLED))
    fail = [rules_tasks.Report(OWNER, one.id, TaskUpdateRequest(status=TaskStatus.FAILED)) for one in failing]
    await replica.runtime.write(lambda tx: rules_tasks.report(tx, [cancel, *fail]))
    ok(recorder)


@on_postgresql
@pytest.mark.parametrize("order", ["fifo", "fair"])
async def test_claims_with_every_limit(replica: Replica, recorder: LockRecorder, order: Any) -> None:
    """Limits of jobs and rooms are checked in one transaction."""
    replica.runtime.settings.claim_order = order
    replica.runtime.settings.room_max_in_flight = 2
    low, high = await two_jobs(replica, max_in_flight=2, **RETRIED)
    for room in ("b", "a", "b", "c"):
        for job in (high, low):
            await replica.submit(job, room=room)
    assert low.worker_id is not None
    items = [rules_claims.Claim(OWNER, low.worker_id, 15, None, replica.runtime.order)] * 3
    await replica.runtime.write(lambda tx: rules_claims.claim(tx, items))
    held = await replica.start(low.worker_id)
    await replica.report(held.id, TaskStatus.FAILED)
    await replica.leave(low.worker_id)
    ok(recorder)


async def register_provider(replica: Replica, name: str, worker: UUID | None) -> Any:
    """Register a worker for a provider."""
    request = ProviderRegisterRequest(category="files", name=name, worker_id=worker)
    item = rules_providers.ProviderToRegister(OWNER, "lab", request)
    return (await replica.runtime.write(rules_providers.register, item=item))[0]


@on_postgresql
async def test_providers_and_their_workers(replica: Replica, recorder: LockRecorder) -> None:
    """Removals of workers and of providers, and connections of several workers, lock providers in order."""
    workers = [(await register_provider(replica, "0", None)).worker_id for _ in range(2)]
    found = [await register_provider(replica, str(n), w) for n in range(4) for w in workers]
    ids = sorted({provider.id for provider in found})
    lease = timedelta(seconds=60)
    low, high = sorted(workers)
    connected = {low: ids[2:], high: ids[:2]}
    for round_ in (1, 2):
        await replica.runtime.write(
            rules_providers.extend_connections, connected=connected, lease=round_ * lease
        )

    async def extend(tx: Transaction) -> None:
        await sql_providers.extend_connection(tx, workers[1], await tx.now() + 3 * lease)

    await replica.runtime.write(extend)
    await replica.runtime.write(rules_providers.disconnect, worker_id=workers[1])
    await replica.runtime.write(
        rules_providers.remove, caller=OWNER, provider_id=ids[0], worker_id=workers[1]
    )
    await replica.leave(workers[1])
    await replica.runtime.write(rules_providers.remove, caller=OWNER, provider_id=ids[1])
    await replica.leave(workers[0])
    ok(recorder)


@on_postgresql
async def test_a_sweep_of_several_kinds(replica: Replica, recorder: LockRecorder) -> None:
    """Each kind of sweep is a transaction of its own, so that jobs and tasks are locked in order."""
    low, high = await two_jobs(replica, start_timeout_seconds=1e-6)
    await replica.submit(high)
    await replica.claim_task(low.worker_id)
    await replica.submit(low, expires_in_seconds=1e-6)
    await replica.submit(high)
    await Sweeper(replica.runtime.write, replica.runtime.settings).cycle()
    rows = await replica.rows(Task.__table__)
    assert sorted(row.status for row in rows) == ["failed", "pending", "pending"]
    ok(recorder)


@on_postgresql
async def test_tasks_of_all_versions_leave_their_queues(replica: Replica, recorder: LockRecorder) -> None:
    """A cancelled, failed or expired task of each version: all versions are locked before one changes."""

    def schema(number: int) -> dict[str, Any]:
        return {"properties": {"x": {"enum": list(range(number))}}}

    tasks = list[list[TaskResponse]]()
    for number in range(1, 7):
        job = await replica.register(schema=schema(number))
        tasks.append([await replica.submit(job, payload={"x": 0}) for _ in range(2)])
        await replica.submit(job, payload={"x": 0}, expires_in_seconds=1e-6)
    for cancelled, failed in tasks:
        await replica.report(cancelled.id, TaskStatus.CANCELLED, by=SUBMITTER)
        await replica.act(rules_task_actions.fail, failed.id)
        await replica.act(rules_task_actions.retry, failed.id)
    ok(recorder)
    await replica.runtime.write(rules_sweep.fail_expired)
    ok(recorder)


@on_postgresql
async def test_rows_of_empty_rooms_are_deleted_job_by_job(replica: Replica, recorder: LockRecorder) -> None:
    """Jobs with tasks in all rooms are not locked, the others one by one."""
    jobs = [await replica.register(name) for name in "ABCD"]
    for job in jobs:
        await replica.submit(job)
    for job in jobs[:3]:
        await replica.claim_task(job.worker_id)
    recorder.jobs.clear()
    await Sweeper(replica.runtime.write, replica.runtime.settings).cycle()
    assert [row.job_id for row in await replica.rows(RoomQueue.__table__)] == [jobs[3].id]
    locked = sorted(sorted(ids) for ids in recorder.jobs.values() if ids)
    assert locked == sorted([str(job.id)] for job in jobs[:3])


@on_postgresql
async def test_internal_jobs(replica: Replica, recorder: LockRecorder) -> None:
    """Several servers register their internal jobs at once; a dispatcher claims from all of them."""
    names = [internal(name) for name in "CABDE"]
    jobs = [rules_internal.InternalJob(name, {}, JobPolicy()) for name in names]
    for schema in ({}, {"title": "new"}):
        await replica.runtime.write(
            rules_internal.register, jobs=[job._replace(schema=schema) for job in jobs]
        )
    replica.registry = InternalRegistry({str(name): InternalExecutor() for name in names})
    replica.runtime.settings.room_max_in_flight = 2
    for name in names:
        await replica.submit(str(name))
    await replica.dispatcher.dispatch()
    ok(recorder)


async def watch(replica: Replica, *rooms: str) -> None:
    """Let the transactions write the events of these rooms."""
    for room in rooms:
        bounds = Bounds.of(replica.runtime.settings)
        await replica.runtime.write(rules_room_events.watch, room_id=room, wanted=bounds)


@on_postgresql
async def test_watched_rooms_are_locked_last(replica: Replica, recorder: LockRecorder) -> None:
    """A transaction of several rooms locks their streams in order, after everything else."""
    jobs = [await replica.register(name) for name in "AB"]
    rooms = [f"room-{number}" for number in (3, 1, 2)]
    await watch(replica, *rooms)
    items = [
        replica.runtime.submission(OWNER, room, parse_job_name(job.full_name), TaskSubmitRequest(payload={}))
        for job in jobs
        for room in rooms
    ]
    assert len(await replica.runtime.submit_all(items)) == 6
    held = [await replica.start(jobs[0].worker_id) for _ in rooms]
    updates = [TaskUpdateRequest(status=TaskStatus.COMPLETED, attempt=1) for _ in held]
    await replica.runtime.report_many(
        [rules_tasks.Report(OWNER, task.id, update) for task, update in zip(held, updates, strict=True)]
    )
    ok(recorder)
    assert "joblib_room_stream" in {ORDER[level] for level in recorder.locked}


@on_postgresql
async def test_random_requests(replica: Replica, recorder: LockRecorder) -> None:
    """The requests of the mixed load, and the actions by hand, keep the order."""
    await replica.register("Render", INTERNAL, by=ADMIN)
    replica.registry = InternalRegistry({str(internal()): InternalExecutor()})
    known: dict[str, list[Any]] = {"jobs": [await replica.register(name, **RETRIED) for name in "AB"]}
    known["tasks"] = [await replica.submit(job) for job in known["jobs"] for _ in range(8)]
    for action in (rules_task_actions.release, rules_task_actions.fail, rules_task_actions.retry):
        held = await replica.start(known["jobs"][0].worker_id)
        await replica.act(
            action if action is not rules_task_actions.retry else rules_task_actions.fail, held.id
        )
    await replica.act(rules_task_actions.retry, held.id)
    await watch(replica, "lab")
    actor = Actor(replica, random.Random(1), known)
    for limit in (None, 1):
        replica.runtime.settings.room_max_in_flight = limit
        await actor.run()
    ok(recorder)
    assert {ORDER[level] for level in recorder.locked} >= {
        *("joblib_worker", "joblib_task", "joblib_job", "joblib_room_stream")
    }
