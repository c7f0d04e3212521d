"""When a worker is removed or expires, its tasks fail, its jobs are unlinked, and its history stays."""

import sqlite3
from collections import Counter
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from replica import ADMIN, OWNER, STRANGER, InternalExecutor, ManualClock, Replica, internal
from seeds import LONG_AGO, add_tasks, seconds, task
from sqlalchemy import Connection, delete, update

from zndraw_joblib.server.background.sweeper import Sweeper
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.tables import Job, Task, Worker, WorkerJobLink
from zndraw_joblib.server.internal.registry import InternalRegistry
from zndraw_joblib.server.queue import rules_sweep
from zndraw_joblib.server.queue.sql_task_rows import CHUNK
from zndraw_joblib.wire.events import JobsInvalidate, TaskStatusEvent, room_of
from zndraw_joblib.wire.names import INTERNAL
from zndraw_joblib.wire.problems import Forbidden, InvalidTaskTransition, WorkerNotFound
from zndraw_joblib.wire.statuses import TaskStatus

workers = Worker.__table__
links = WorkerJobLink.__table__
TIMEOUT = 60.0


async def test_the_tasks_of_a_leaving_worker_fail(replica: Replica) -> None:
    """Claimed and running tasks fail with the reason; pending, ended and other workers' tasks stay."""
    job, other = await replica.register(), await replica.register()
    done = await replica.report((await replica.running(job)).id, TaskStatus.COMPLETED)
    running = await replica.running(job)
    await replica.submit(job)
    claimed = await replica.claim(job.worker_id)
    foreign = await replica.running(other)
    waiting = await replica.submit(job)
    assert claimed is not None
    await replica.leave(job.worker_id)
    for held in (running, claimed):
        ended = await replica.get(held.id)
        assert (ended.status, ended.error) == (TaskStatus.FAILED, "Worker disconnected")
        assert ended.completed_at is not None
        assert (ended.worker_id, ended.attempt) == (job.worker_id, 1)
    assert (await replica.get(done.id)) == done
    assert (await replica.get(waiting.id)).status is TaskStatus.PENDING
    assert (await replica.get(foreign.id)).status is TaskStatus.RUNNING
    assert [row.id for row in await replica.rows(workers)] == [other.worker_id]
    assert [row.worker_id for row in await replica.rows(links)] == [other.worker_id]


async def test_a_worker_may_leave_with_any_number_of_tasks(replica: Replica, kind: str) -> None:
    """No statement has a parameter for each of its tasks: SQLite takes a limited number of them."""

    def take_few_parameters(connection: Connection) -> None:
        driver = connection.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        driver.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 600)

    job = await replica.register()
    await add_tasks(
        replica, [task(job.id, TaskStatus.CLAIMED, worker_id=job.worker_id) for _ in range(2 * CHUNK)]
    )
    if kind == "sqlite":
        await replica.runtime.database.run_sync(take_few_parameters)
    await replica.leave(job.worker_id)
    assert {row.status for row in await replica.rows(Task.__table__)} == {TaskStatus.FAILED}


async def test_each_room_gets_one_event_about_its_jobs(replica: Replica) -> None:
    """Each failed task has an event; each room then gets one event that its jobs changed."""
    first = await replica.register("A", "lab")
    for name, room in (("B", "lab"), ("C", "other")):
        await replica.register(name, room, worker=first.worker_id)
    await replica.register("B", "lab")
    held = [await replica.running(first) for _ in range(3)]
    replica.events.clear()
    await replica.leave(first.worker_id)
    published = [(type(event), room) for event, room in replica.events]
    assert published[:3] == [(TaskStatusEvent, room_of("lab"))] * 3
    assert Counter(published[3:]) == {
        (JobsInvalidate, room_of("lab")): 1,
        (JobsInvalidate, room_of("other")): 1,
    }
    assert {event.id for event, _ in replica.events[:3]} == {task.id for task in held}


async def test_only_the_owner_or_a_superuser_removes_a_worker(replica: Replica) -> None:
    """Other users are refused; a removed worker is not found."""
    job = await replica.register()
    held = await replica.running(job)
    with pytest.raises(Forbidden):
        await replica.leave(job.worker_id, by=STRANGER)
    await replica.leave(job.worker_id, by=ADMIN)
    for late in (replica.leave, replica.heartbeat, replica.claim):
        with pytest.raises(WorkerNotFound):
            await late(job.worker_id)
    with pytest.raises(InvalidTaskTransition, match="Worker disconnected"):
        await replica.report(held.id, TaskStatus.COMPLETED, attempt=1, worker_id=job.worker_id)


async def test_a_removal_does_not_touch_history(replica: Replica) -> None:
    """Thousands of ended tasks keep their worker id and do not slow down its removal."""
    job = await replica.register()
    owner = {"worker_id": job.worker_id, "worker_owner_id": OWNER.id}
    await add_tasks(replica, [task(job.id, TaskStatus.COMPLETED, **owner) for _ in range(2000)])
    await replica.leave(job.worker_id)
    rows = await replica.rows(Task.__table__)
    assert Counter((row.status, row.worker_id) for row in rows) == {("completed", job.worker_id): 2000}


async def test_a_worker_expires_by_its_last_heartbeat(timed: Replica, clock: ManualClock) -> None:
    """After exactly the timeout it stays; a moment later it expires."""
    born = clock.now
    job, beating = await timed.register(), await timed.register()
    clock.now = born + seconds(TIMEOUT)
    assert await timed.retire_stale(TIMEOUT) == 0
    await timed.heartbeat(beating.worker_id)
    clock.advance(0.000001)
    assert await timed.retire_stale(TIMEOUT) == 1
    assert [row.id for row in await timed.rows(workers)] == [beating.worker_id]
    with pytest.raises(WorkerNotFound):
        await timed.heartbeat(job.worker_id)


async def test_only_the_owner_sends_heartbeats(timed: Replica, clock: ManualClock) -> None:
    """A refused heartbeat, also a superuser's, writes nothing."""
    job = await timed.register()
    born = clock.now
    clock.advance(10)
    for other in (STRANGER, ADMIN):
        with pytest.raises(Forbidden):
            await timed.heartbeat(job.worker_id, by=other)
    with pytest.raises(WorkerNotFound):
        await timed.heartbeat(uuid4())
    [row] = await timed.rows(workers)
    assert row.last_heartbeat == born
    answer = await timed.heartbeat(job.worker_id)
    assert (answer.last_heartbeat, answer.heartbeat_interval_seconds) == (clock.now, TIMEOUT / 4)
    [row] = await timed.rows(workers)
    assert row.last_heartbeat == clock.now


async def test_expiry_has_the_same_effect_as_a_removal(timed: Replica, clock: ManualClock) -> None:
    """The statuses, the texts and the events are the same."""
    outcomes = []
    for go in ("leave", "silence"):
        job = await timed.register()
        held = await timed.running(job)
        timed.events.clear()
        if go == "leave":
            await timed.leave(job.worker_id)
        else:
            clock.advance(2 * TIMEOUT)
            await timed.retire_stale(TIMEOUT)
        ended = await timed.get(held.id)
        events = [(type(event), room) for event, room in timed.events]
        outcomes.append((ended.status, ended.error, ended.worker_id == job.worker_id, events))
    assert outcomes[0] == outcomes[1]


async def test_a_heartbeat_in_the_future_is_set_to_now(timed: Replica, clock: ManualClock) -> None:
    """Up to 5 s ahead is tolerated; beyond that the clock was set back, and the heartbeat counts from now."""
    job, near = await timed.register(), await timed.register()
    far = clock.now + seconds(3600)
    close = clock.now + seconds(5)
    for worker, beat in ((job.worker_id, far), (near.worker_id, close)):
        await timed.execute(update(workers).where(workers.c.id == worker).values(last_heartbeat=beat))
    assert await timed.retire_stale(TIMEOUT) == 0
    found = {row.id: row.last_heartbeat for row in await timed.rows(workers)}
    assert found == {job.worker_id: clock.now, near.worker_id: close}
    clock.advance(TIMEOUT + 1)
    assert await timed.retire_stale(TIMEOUT) == 1
    clock.advance(10)
    assert await timed.retire_stale(TIMEOUT) == 1


async def test_many_silent_workers_expire_in_batches(timed: Replica, clock: ManualClock) -> None:
    """The longest silent expire first, a bounded number in each transaction."""
    size = rules_sweep.batch_size(is_sqlite=bool(timed.runtime.database.is_sqlite))
    count = size + 50
    job = await timed.register()
    ids = [uuid4() for _ in range(count)]
    row = {"owner_id": OWNER.id, "created_at": LONG_AGO}
    await timed.add(
        workers,
        [{**row, "id": id_, "last_heartbeat": LONG_AGO + seconds(order)} for order, id_ in enumerate(ids)],
    )
    await timed.add(links, [{"worker_id": id_, "job_id": job.id} for id_ in ids])
    held = {"worker_owner_id": OWNER.id}
    await add_tasks(timed, [task(job.id, TaskStatus.RUNNING, worker_id=id_, **held) for id_ in ids])
    timed.events.clear()
    clock.advance(1)
    first = await timed.runtime.write(lambda tx: rules_sweep.retire_stale(tx, seconds(TIMEOUT)))
    assert first == size
    left = {row.id for row in await timed.rows(workers)}
    assert left == {job.worker_id, *ids[size:]}
    assert await timed.retire_stale(TIMEOUT) == 50
    assert Counter(timed.statuses()) == {TaskStatus.FAILED: count}
    assert [row.id for row in await timed.rows(workers)] == [job.worker_id]


async def test_silent_workers_lose_tasks_with_and_without_retries(timed: Replica, clock: ManualClock) -> None:
    """One batch fails the tasks of one worker and requeues that of another, as often as there are some."""
    for count in (1, 3):
        plain = await timed.register("Plain")
        retried = await timed.register(f"Retried{count}", max_attempts=2)
        failed = [(await timed.running(plain)).id for _ in range(count)]
        requeued = (await timed.running(retried)).id
        clock.advance(TIMEOUT + 1)
        assert await timed.retire_stale(TIMEOUT) == 2
        assert {(await timed.get(id_)).status for id_ in failed} == {TaskStatus.FAILED}
        assert (await timed.get(requeued)).status is TaskStatus.PENDING


async def test_one_silent_worker_can_be_removed_alone(timed: Replica, clock: ManualClock) -> None:
    """If a batch fails, each worker is removed alone; one that is not silent stays."""
    job, other = await timed.register(), await timed.register()
    clock.advance(2 * TIMEOUT)
    living = await timed.register()
    for worker, count in ((living.worker_id, 0), (job.worker_id, 1), (job.worker_id, 0)):

        async def retire(tx: Transaction, worker: Any = worker) -> Any:
            return await rules_sweep.retire_stale(tx, seconds(TIMEOUT), worker)

        assert await timed.runtime.write(retire) == count
    assert {row.id for row in await timed.rows(workers)} == {other.worker_id, living.worker_id}
    await timed.retire_stale(TIMEOUT)


async def test_counting_silent_workers_changes_nothing(timed: Replica, clock: ManualClock) -> None:
    """It counts all workers and the silent ones with the sweep's own condition."""
    job = await timed.register()
    held = await timed.running(job)
    clock.advance(2 * TIMEOUT)
    await timed.register()
    timed.events.clear()
    assert await timed.runtime.database.read(lambda tx: rules_sweep.count_workers(tx, seconds(TIMEOUT))) == (
        2,
        1,
    )
    assert (await timed.get(held.id)).status is TaskStatus.RUNNING
    assert timed.events == []
    assert await timed.retire_stale(TIMEOUT) == 1


async def test_a_held_task_without_a_worker_fails(replica: Replica) -> None:
    """The sweep finds tasks whose worker row is missing; internal ones are excluded."""
    job, living = await replica.register(), await replica.register()
    lost, kept = await replica.running(job), await replica.running(living)
    internal_job = await replica.register("Render", INTERNAL, by=ADMIN)
    await add_tasks(replica, [task(internal_job.id, TaskStatus.RUNNING), task(job.id, TaskStatus.RUNNING)])
    await replica.execute(
        delete(WorkerJobLink.__table__).where(WorkerJobLink.__table__.c.worker_id == job.worker_id)
    )
    await replica.execute(delete(workers).where(workers.c.id == job.worker_id))
    replica.events.clear()
    assert await replica.recover_abandoned() == 2
    ended = await replica.get(lost.id)
    assert (ended.status, ended.error) == (TaskStatus.FAILED, "Worker disconnected")
    assert (await replica.get(kept.id)).status is TaskStatus.RUNNING
    assert replica.statuses() == [TaskStatus.FAILED] * 2
    assert await replica.recover_abandoned() == 0


async def test_an_internal_task_fails_after_its_timeout(timed: Replica, clock: ManualClock) -> None:
    """The time counts from its start, or from its submit if it never started."""
    await timed.register("Render", INTERNAL, by=ADMIN)
    timed.registry = InternalRegistry({str(internal()): InternalExecutor()})
    never, started, done = [await timed.submit(str(internal())) for _ in range(3)]
    clock.advance(1000)
    for one in (started, done):
        await timed.report(one.id, TaskStatus.RUNNING, by=ADMIN)
    await timed.report(done.id, TaskStatus.COMPLETED, by=ADMIN)
    clock.advance(2600)
    assert await timed.fail_stuck(3600) == 0
    clock.advance(0.000001)
    timed.events.clear()
    assert await timed.fail_stuck(3600) == 1
    ended = await timed.get(never.id)
    assert (ended.status, ended.error) == (TaskStatus.FAILED, "Internal worker timeout")
    assert timed.statuses() == [TaskStatus.FAILED]
    assert (await timed.get(started.id)).status is TaskStatus.RUNNING
    clock.advance(1000)
    assert await timed.fail_stuck(3600) == 1
    assert (await timed.get(done.id)).status is TaskStatus.COMPLETED


async def test_a_remote_task_may_run_for_days(timed: Replica, clock: ManualClock) -> None:
    """It may run as long as its worker sends heartbeats."""
    job = await timed.register()
    running = await timed.running(job)
    for _ in range(3):
        clock.advance(86_400)
        await timed.heartbeat(job.worker_id)
        assert await timed.retire_stale(TIMEOUT) == 0
        assert await timed.fail_stuck(3600) == 0
        assert await timed.recover_abandoned() == 0
    assert (await timed.get(running.id)).status is TaskStatus.RUNNING


async def test_internal_jobs_are_never_soft_deleted(timed: Replica) -> None:
    """An internal job has no worker, and stays when its tasks end."""
    await timed.register("Render", INTERNAL, by=ADMIN)
    timed.registry = InternalRegistry({str(internal()): InternalExecutor()})
    submitted = await timed.submit(str(internal()))
    await timed.report(submitted.id, TaskStatus.CANCELLED, by=ADMIN)
    assert [row.deleted for row in await timed.rows(Job.__table__)] == [False]


async def test_tasks_of_jobs_with_and_without_a_policy_fail_alike(timed: Replica) -> None:
    """A job without a policy has a statement of its own, with the same values and the same events."""
    plain = await timed.register("Plain")
    strict = await timed.register("Strict", worker=plain.worker_id, start_timeout_seconds=61)
    retried = await timed.register("Retried", worker=plain.worker_id, max_attempts=2)
    ids = []
    for job in (plain, strict, retried):
        await timed.submit(job, room="lab")
        await timed.submit(job, room="lab")
        ids.append([(await timed.claim_task(plain.worker_id)).id, (await timed.start(plain.worker_id)).id])
    again = await timed.submit(plain, max_attempts=2)
    await timed.start(plain.worker_id)
    timed.events.clear()
    await timed.leave(plain.worker_id)
    rows = {row.id: row._asdict() for row in await timed.rows(Task.__table__)}
    differing = {"seq", "id", "job_id", "created_at", "claimed_at", "started_at", "completed_at", "deadline"}
    for fast, slow in zip(*ids[:2], strict=True):
        assert rows[fast]["status"] == "failed"
        assert rows[fast]["deadline"] is None
        for name in rows[fast].keys() - differing:
            assert rows[fast][name] == rows[slow][name], name
        assert rows[fast]["completed_at"] == rows[slow]["completed_at"]
    assert {rows[id_]["status"] for id_ in (*ids[2], again.id)} == {"pending"}
    events = {event.id: event.model_dump() for event, _ in timed.events if isinstance(event, TaskStatusEvent)}
    assert len(events) == 7
    for fast, slow in zip(*ids[:2], strict=True):
        expected = events[slow] | {name: events[fast][name] for name in ("id", "name", "created_at")}
        expected["started_at"] = events[fast]["started_at"]
        assert events[fast] == expected
        assert events[fast]["name"] == plain.full_name


async def test_a_batch_of_workers_holds_a_bounded_number_of_tasks(timed: Replica, clock: ManualClock) -> None:
    """A short transaction takes no worker with more tasks than that, and changes nothing; a long one does."""
    job = await timed.register()
    ids = [uuid4() for _ in range(3)]
    row = {"owner_id": OWNER.id, "created_at": LONG_AGO}
    await timed.add(
        workers,
        [{**row, "id": id_, "last_heartbeat": LONG_AGO + seconds(order)} for order, id_ in enumerate(ids)],
    )
    held = {"worker_owner_id": OWNER.id}
    most = rules_sweep.COST_PER_WORKER * rules_sweep.batch_size(
        is_sqlite=bool(timed.runtime.database.is_sqlite)
    )
    counts = [most // 2 + 1, most // 2 + 1, most + 1]
    rows = [
        task(job.id, TaskStatus.RUNNING, worker_id=id_, **held)
        for id_, count in zip(ids, counts, strict=True)
        for _ in range(count)
    ]
    await add_tasks(timed, rows)
    clock.advance(1)
    short = partial(rules_sweep.retire_stale, timeout=seconds(TIMEOUT), is_short=True)
    assert [await timed.runtime.write(short) for _ in range(2)] == [1, 1]
    with pytest.raises(rules_sweep.TooManyTasks):
        await timed.runtime.write(short)
    assert {row.id for row in await timed.rows(workers)} == {job.worker_id, ids[2]}
    assert Counter(row.status for row in await timed.rows(Task.__table__)) == {
        "failed": counts[0] + counts[1],
        "running": counts[2],
    }
    sweeper = Sweeper(timed.runtime.write, timed.runtime.settings, write_short=timed.runtime.write_short)
    sweeper.absence.since = float("-inf")
    assert sweeper.grace_remaining <= 0
    assert (await sweeper.cycle()).expired == 1
