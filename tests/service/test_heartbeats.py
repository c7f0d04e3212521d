"""Heartbeats keep a worker alive and return a verdict on each task that it names."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from databases import every_kind
from replica import OWNER, STRANGER, Replica
from sqlalchemy import update

from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.tables import Task, UnnamedTask
from zndraw_joblib.server.queue import rules_sweep, rules_workers, sql_expiry, sql_tasks
from zndraw_joblib.server.queue.rules_workers import Heartbeat
from zndraw_joblib.wire.messages import NamedTask, Verdict, WorkerResponse
from zndraw_joblib.wire.problems import Forbidden, WorkerNotFound
from zndraw_joblib.wire.statuses import TaskStatus

CONTINUE, CANCEL, LOST = Verdict
tasks = Task.__table__


async def test_a_held_task_continues(replica: Replica) -> None:
    """The verdict is `continue` from claim to end, `cancel` after a cancellation, and `lost` otherwise."""
    job = await replica.register()
    for ending, verdict in (("cancelled", CANCEL), ("completed", LOST), ("failed", LOST)):
        await replica.submit(job)
        task = await replica.claim(job.worker_id)
        assert task is not None
        named = (task.id, task.attempt)
        assert await replica.verdicts(job.worker_id, named) == [(task.id, CONTINUE)]
        await replica.report(task.id, TaskStatus.RUNNING)
        assert await replica.verdicts(job.worker_id, named) == [(task.id, CONTINUE)]
        await replica.report(task.id, ending)
        assert await replica.verdicts(job.worker_id, named) == [(task.id, verdict)]


async def test_a_task_of_another_claim_is_lost(replica: Replica) -> None:
    """Other workers' tasks, other attempts, pending tasks and unknown ids are all `lost`."""
    job = await replica.register()
    other = await replica.register(worker=None)
    assert other.worker_id != job.worker_id
    held, cancelled, others_task, pending = [await replica.submit(job) for _ in range(4)]
    for worker in (job.worker_id, job.worker_id, other.worker_id):
        await replica.claim(worker)
    await replica.report(cancelled.id, TaskStatus.CANCELLED)
    named = [
        (held.id, 1),
        (held.id, 0),
        (held.id, 2),
        (cancelled.id, 2),
        (others_task.id, 1),
        (pending.id, 0),
    ]
    verdicts = await replica.verdicts(job.worker_id, *named, (uuid4(), 1), (held.id, 1))
    assert [verdict for _, verdict in verdicts] == [CONTINUE, LOST, LOST, LOST, LOST, LOST, LOST, CONTINUE]
    assert [verdict for _, verdict in await replica.verdicts(other.worker_id, *named)] == [
        *[LOST] * 4,
        CONTINUE,
        LOST,
    ]


async def test_a_task_that_was_cancelled_before_it_was_claimed_again_is_lost(replica: Replica) -> None:
    """A verdict is about the named attempt only, not about a later one."""
    job = await replica.register()
    task = await replica.running(job)
    await replica.execute(update(tasks).where(tasks.c.id == task.id).values(attempt=task.attempt + 1))
    assert await replica.verdicts(job.worker_id, (task.id, task.attempt)) == [(task.id, LOST)]
    await replica.report(task.id, TaskStatus.CANCELLED)
    assert await replica.verdicts(job.worker_id, (task.id, task.attempt)) == [(task.id, LOST)]
    assert await replica.verdicts(job.worker_id, (task.id, task.attempt + 1)) == [(task.id, CANCEL)]


async def test_one_statement_reads_the_tasks_of_a_batch(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each heartbeat gets its own verdicts; the tasks of refused heartbeats are not read."""
    job = await replica.register()
    other = await replica.register(worker=None)
    own_task, others_task = [await replica.submit(job) for _ in range(2)]
    for worker in (job.worker_id, other.worker_id):
        await replica.claim(worker)
    secret = uuid4()

    def item(worker: UUID | None, *named: UUID, by: object = OWNER) -> Heartbeat:
        return Heartbeat(by, worker, 15, [NamedTask(id=task_id, attempt=1) for task_id in named])  # type: ignore[arg-type]

    items = [
        item(job.worker_id, own_task.id, others_task.id),
        item(other.worker_id, own_task.id, others_task.id),
        item(job.worker_id),
        item(job.worker_id, secret, by=STRANGER),
        item(uuid4(), secret),
    ]
    read_ids: list[Sequence[UUID]] = []
    read = sql_expiry.named_tasks_of

    async def record_ids(tx: Transaction, ids: Sequence[UUID], limit: int) -> list[sql_expiry.HeldTask]:
        read_ids.append(ids)
        return await read(tx, ids, limit)

    monkeypatch.setattr(sql_expiry, "named_tasks_of", record_ids)
    monkeypatch.setattr(sql_tasks, "states", None)
    first, second, third, *refused = await replica.runtime.write(
        lambda tx: rules_workers.heartbeat(tx, items)
    )
    assert read_ids == [[job.worker_id, other.worker_id]]
    verdicts = [
        [task.verdict for task in answer.tasks]
        for answer in (first, second, third)
        if isinstance(answer, WorkerResponse)
    ]
    assert verdicts == [[CONTINUE, LOST], [LOST, CONTINUE], []]
    assert [type(problem) for problem in refused] == [Forbidden, WorkerNotFound]
    without_names = [Heartbeat(OWNER, job.worker_id or uuid4(), 15), *items[3:]]
    await replica.runtime.write(lambda tx: rules_workers.heartbeat(tx, without_names))
    assert len(read_ids) == 1


async def test_more_tasks_can_be_named_than_a_statement_takes(replica: Replica) -> None:
    """Several statements read more tasks than fit into one."""
    job = await replica.register()
    for _ in range(7):
        await replica.submit(job)
    unknown = [(uuid4(), 1) for _ in range(20_000)]
    named = list(unknown)
    while (task := await replica.claim(job.worker_id)) is not None:
        named.append((task.id, task.attempt))
    verdicts = await replica.verdicts(job.worker_id, *named)
    assert verdicts == [
        (task_id, verdict)
        for (task_id, _), verdict in zip(named, [*[LOST] * len(unknown), *[CONTINUE] * 7], strict=True)
    ]


async def test_any_replica_settles_a_task_that_another_one_heard_nothing_of(pair: list[Replica]) -> None:
    """The record is in the database: a server that is killed after the heartbeats loses nothing."""
    first, second = pair
    job = await first.register()
    submitted = [await first.submit(job) for _ in range(5)]
    for _ in submitted:
        await first.start(job.worker_id)
    assert await first.verdicts(job.worker_id) == []
    long_ago = datetime(2020, 1, 1, tzinfo=UTC)
    await first.execute(update(UnnamedTask.__table__).values(unnamed_since=long_ago))
    limit = timedelta(seconds=60)
    sweeps = [replica.runtime.write(rules_sweep.recover_unnamed, limit=limit) for replica in pair]
    assert sum(await asyncio.gather(*sweeps)) == len(submitted)
    for task in submitted:
        assert (await second.get(task.id)).status is TaskStatus.FAILED
        published = {*first.final_statuses(task.id), *second.final_statuses(task.id)}
        assert published == {TaskStatus.FAILED}


@every_kind
async def test_simultaneous_reports_write_one_heartbeat(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a worker whose heartbeat is due. A report of another user writes none, and is refused once."""
    job = await replica.register()
    held = [await replica.running(job) for _ in range(5)]
    runtime, written = replica.runtime, list[Heartbeat]()
    put = runtime.heartbeats.put

    async def record(item: Heartbeat) -> WorkerResponse:
        written.append(item)
        return await put(item)

    monkeypatch.setattr(runtime.heartbeats, "put", record)
    for user in (OWNER, STRANGER):
        runtime.force_heartbeat(job.worker_id)
        written.clear()
        await asyncio.gather(*[runtime.touch_worker(user, job.worker_id) for _ in held])
        await runtime.touch_worker(user, job.worker_id)
        assert [item.caller for item in written] == [user]
    await runtime.touch_worker(OWNER, job.worker_id)
    assert [item.caller for item in written] == [STRANGER, OWNER]
