"""Labels of workers and requirements of tasks: a task runs only on a worker that has what it requires."""

import asyncio
from typing import Any
from uuid import UUID

import pytest
from replica import SUBMITTER, Replica
from waiting import until

from zndraw_joblib.server.admin import sql_figures
from zndraw_joblib.server.queue import rules_jobs, rules_queues, rules_task_actions, rules_workers
from zndraw_joblib.wire.messages import JobResponse, TaskResponse, WorkerInfo
from zndraw_joblib.wire.names import parse_job_name
from zndraw_joblib.wire.problems import InvalidRequest, JobNotFound, SchemaConflict, TooManyRequests
from zndraw_joblib.wire.statuses import TaskStatus

BIG = {"gpu": "a100", "memory_gb": {">=": 40}}


async def worker(replica: Replica, labels: dict[str, Any] | None = None, **policy: Any) -> JobResponse:
    """Register a job for a new worker with labels."""
    about = None if labels is None else WorkerInfo(labels=labels)
    return await replica.register(about=about, **policy)


async def relabel(replica: Replica, worker_id: UUID | None, labels: dict[str, Any]) -> None:
    """Let a worker say what its labels are now, as a heartbeat does."""
    await replica.runtime.write(rules_workers.describe, worker_id, WorkerInfo(labels=labels))


async def end(replica: Replica, task: TaskResponse) -> None:
    """Start and complete a task that is claimed."""
    await replica.report(task.id, TaskStatus.RUNNING)
    await replica.report(task.id, TaskStatus.COMPLETED)


async def test_a_task_goes_only_to_a_worker_that_has_what_it_requires(pair: list[Replica]) -> None:
    """A task without requirements goes to any worker, one with them to a matching one, on each server."""
    first, second = pair
    plain = await worker(first)
    small = await worker(first, {"gpu": "t4", "memory_gb": 16})
    big = await worker(second, {"gpu": "a100", "memory_gb": 80})
    task = await first.submit(plain, requires=BIG)
    assert (task.requires, task.queue_position, task.version) == (BIG, 1, 1)
    assert (await second.get(task.id)).requires == BIG
    for other in (plain, small):
        assert await first.claim(other.worker_id) is None
    claimed = await first.claim_task(big.worker_id)
    assert (claimed.id, claimed.requires, claimed.version) == (task.id, BIG, 1)
    await end(first, claimed)
    anywhere = await second.submit(plain)
    assert anywhere.requires is None
    assert (await first.claim_task(plain.worker_id)).id == anywhere.id


async def test_a_worker_without_the_required_labels_serves_its_job(replica: Replica) -> None:
    """It may join the Socket.IO room of the job: once it has the labels, it is woken as others are."""
    job = await worker(replica, {"gpu": "t4"}, requires=BIG)
    await replica.runtime.database.read(
        rules_workers.check_serves, job.worker_id, parse_job_name(job.full_name)
    )


async def test_a_waiting_claim_is_woken_for_a_queue_that_appears(pair: list[Replica]) -> None:
    """Of two claims that wait, that of the matching worker gets the task, and the other one waits on."""
    first, second = pair
    plain, big = await worker(first), await worker(first, {"gpu": "a100", "memory_gb": 80})
    waiting = asyncio.create_task(first.claim(plain.worker_id, wait=30))
    claiming = asyncio.create_task(first.claim(big.worker_id, wait=30))
    for _ in range(2):
        await until(lambda: first.runtime.waiters.waiting_count == 2)
        task = await second.submit(plain, requires=BIG)
        claimed = await asyncio.wait_for(claiming, 30)
        assert claimed is not None
        assert claimed.id == task.id
        assert not waiting.done()
        claiming = asyncio.create_task(first.claim(big.worker_id, wait=30))
    for claim in (waiting, claiming):
        claim.cancel()


async def test_the_policy_of_a_job_requires_labels_of_all_its_tasks(pair: list[Replica]) -> None:
    """A worker that lacks them gets none; it does when its labels or the policy change."""
    first, second = pair
    job = await worker(first, {"gpu": "t4"}, requires={"gpu": "a100"})
    task = await second.submit(job)
    assert await first.claim(job.worker_id) is None
    assert "no_matching_worker" in await first.explain(task.id)
    await relabel(second, job.worker_id, {"gpu": "a100"})
    assert "no_matching_worker" not in await first.explain(task.id)
    await end(first, await first.claim_task(job.worker_id))
    narrow = await first.submit(job, requires={"memory_gb": {">": 10}})
    assert await first.claim(job.worker_id) is None
    await relabel(first, job.worker_id, {"gpu": "t4", "memory_gb": 16})
    assert await first.claim(job.worker_id) is None
    await second.register(worker=job.worker_id, requires={})
    assert (await first.claim_task(job.worker_id)).id == narrow.id


async def test_a_worker_that_lacks_labels_keeps_its_job(pair: list[Replica]) -> None:
    """The job stays, with its schema, until the worker leaves; new labels let the worker serve it."""
    first, second = pair
    job = await worker(first, {"gpu": "t4"})
    leaving = await second.register(requires={"gpu": "a100"}, about=WorkerInfo(labels={"gpu": "a100"}))
    await first.leave(leaving.worker_id)
    task = await first.submit(job)
    await second.report(task.id, TaskStatus.CANCELLED, by=SUBMITTER)
    with pytest.raises(SchemaConflict):
        await second.register(schema={"type": "object", "required": ["b"]})
    await relabel(second, job.worker_id, {"gpu": "a100"})
    again = await first.submit(job)
    assert (await second.claim_task(job.worker_id)).id == again.id
    await end(first, again)
    await relabel(first, job.worker_id, {})
    await second.leave(job.worker_id)
    with pytest.raises(JobNotFound):
        await first.submit(job)


async def test_a_submit_only_narrows_what_the_job_requires(replica: Replica) -> None:
    """A condition that allows other workers is refused by its field, and a narrower one is taken."""
    job = await worker(replica, {"gpu": "a100", "memory_gb": 80}, requires={"memory_gb": {">=": 40}})
    for requires in ({"memory_gb": {">=": 20}}, {"memory_gb": 8}, {"memory_gb": {"<": 100}}):
        with pytest.raises(InvalidRequest, match=r"requires\.memory_gb") as refused:
            await replica.submit(job, requires=requires)
        [error] = refused.value.problem.model_dump()["errors"]
        assert error["loc"] == ["body", "requires", "memory_gb"]
    task = await replica.submit(job, requires={"memory_gb": {">": 60}, "gpu": {"in": ["h100", "a100"]}})
    assert (await replica.claim_task(job.worker_id)).id == task.id


async def test_a_retried_task_keeps_its_requirements(pair: list[Replica]) -> None:
    """Released, recovered and retried tasks return to their queue, although a plain worker is idle."""
    first, second = pair
    plain, big = await worker(first), await worker(first, {"gpu": "a100", "memory_gb": 80})
    task = await first.submit(plain, requires=BIG, max_attempts=3)
    await second.start(big.worker_id)
    await second.act(rules_task_actions.release, task.id)
    assert await first.claim(plain.worker_id) is None
    await second.start(big.worker_id)
    await first.leave(big.worker_id)
    await first.act(rules_task_actions.run_now, task.id)
    assert await first.claim(plain.worker_id) is None
    assert "no_matching_worker" in await first.explain(task.id)
    back = await worker(second, {"gpu": "a100", "memory_gb": 40})
    assert (await first.claim_task(back.worker_id)).id == task.id


async def test_the_slots_of_a_job_are_shared_by_its_queues(pair: list[Replica]) -> None:
    """`max_in_flight` counts the tasks of all queues, and a freed slot wakes a claim of another queue."""
    first, second = pair
    plain = await worker(first, max_in_flight=1)
    big = await worker(first, {"gpu": "a100", "memory_gb": 80})
    held = await first.submit(plain)
    await first.claim_task(plain.worker_id)
    await second.report(held.id, TaskStatus.RUNNING)
    task = await second.submit(plain, requires=BIG)
    claiming = asyncio.create_task(first.claim(big.worker_id, wait=30))
    await until(lambda: first.runtime.waiters.waiting_count == 1)
    assert not claiming.done()
    await second.report(held.id, TaskStatus.COMPLETED)
    claimed = await asyncio.wait_for(claiming, 30)
    assert claimed is not None
    assert claimed.id == task.id


async def test_operators_see_tasks_that_no_worker_can_run(replica: Replica) -> None:
    """The figures have the queue with its requirements, and since when its first task waits."""
    job = await worker(replica, {"gpu": "t4"})
    task = await replica.submit(job, requires=BIG)
    await replica.submit(job)
    [queue] = await replica.runtime.database.read(sql_figures.unserved_jobs, limit=10)
    assert (queue.full_name, queue.queued, rules_queues.requires_of(queue.requires)) == (
        job.full_name,
        1,
        BIG,
    )
    assert queue.waits_since == task.created_at
    name = parse_job_name(job.full_name)
    read = await replica.runtime.database.read(rules_jobs.get, name.room_id, name, cross_room=True)
    assert [(version.version, version.pending, version.workers) for version in read.versions] == [(1, 2, 1)]


async def test_a_job_has_a_bounded_number_of_queues(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond it a submit is refused by its field; an idle queue is used again, and then deleted."""
    monkeypatch.setattr(rules_queues, "MAX_QUEUES", 2)
    job = await worker(replica, {"node": 3})
    _ = [await replica.submit(job, requires={"node": number}) for number in (1, 2)]
    with pytest.raises(TooManyRequests, match="requires"):
        await replica.submit(job, requires={"node": 3})
    await relabel(replica, job.worker_id, {"node": 1})
    await end(replica, await replica.claim_task(job.worker_id))
    await relabel(replica, job.worker_id, {"node": 3})
    task = await replica.submit(job, requires={"node": 3})
    await end(replica, claimed := await replica.claim_task(job.worker_id))
    assert claimed.id == task.id
