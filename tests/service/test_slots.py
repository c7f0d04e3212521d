"""Tasks that take several slots: a worker gets them when these are free, before cheaper tasks behind them."""

import asyncio
from collections.abc import Collection
from datetime import timedelta
from functools import partial
from math import inf
from typing import Any
from uuid import uuid4

import pytest
from cachetools import TTLCache
from replica import OWNER, ManualClock, Replica, wait_until_waiting
from waiting import until

from zndraw_joblib.server.admin import rules_findings, sql_figures, sql_operators
from zndraw_joblib.server.admin.sql_operators import TokenRights
from zndraw_joblib.server.db.tables import Job
from zndraw_joblib.server.process.ports import Identity
from zndraw_joblib.server.process.waiters import CallerAccess
from zndraw_joblib.server.queue import rules_history, rules_slots, rules_workers, sql_slots
from zndraw_joblib.server.runtime import runtime
from zndraw_joblib.wire.messages import EmptyReason, JobResponse, TaskClaimRequest, TaskResponse, WorkerInfo
from zndraw_joblib.wire.problems import InvalidRequest
from zndraw_joblib.wire.statuses import TaskStatus


async def worker(replica: Replica, slots: int | None, name: str = "Rotate", **options: Any) -> JobResponse:
    """Register a job for a worker with slots."""
    return await replica.register(name, about=WorkerInfo(slots=slots), **options)


async def end(replica: Replica, task: TaskResponse) -> None:
    """Start and complete a task that is claimed."""
    await replica.report(task.id, TaskStatus.RUNNING)
    await replica.report(task.id, TaskStatus.COMPLETED)


async def occupy(replica: Replica, job: JobResponse, count: int) -> None:
    """Run tasks of one slot at the first worker of a job."""
    for _ in range(count):
        await replica.running(job)


async def reasons(replica: Replica, task: TaskResponse) -> list[str]:
    """Return why a task is pending."""
    work = partial(rules_history.explain, task_id=task.id, order=replica.runtime.order)
    return [reason.detail for reason in (await replica.runtime.database.read(work)).reasons]


async def test_a_task_goes_to_a_worker_with_as_many_free_slots(pair: list[Replica]) -> None:
    """Its cost is that of the policy, or more by its submit; workers with too few slots never get it."""
    first, second = pair
    job = await worker(first, 4, cost=2)
    silent, small = await worker(second, None), await worker(second, 1)
    task, large = await first.submit(job), await second.submit(job, cost=3)
    assert (task.cost, large.cost, (await first.get(task.id)).cost) == (None, 3, 2)
    for other in (silent, small):
        assert await first.claim(other.worker_id) is None
    claimed = await second.claim_task(job.worker_id)
    assert (claimed.id, claimed.cost, claimed.requires) == (task.id, 2, None)
    response = await first.claim_response(job.worker_id)
    assert (response.task, response.reason) == (None, EmptyReason.NO_SLOTS)
    reason = (await reasons(first, large))[0]
    assert f"takes 3 slots here: its only worker, {job.worker_id}, has 2 of 4 free" in reason
    await end(second, claimed)
    claimed = await first.claim_task(job.worker_id)
    assert (claimed.id, claimed.cost) == (large.id, 3)
    with pytest.raises(InvalidRequest, match=r"cost: a task of job .* takes 2 slots, and 1 is less"):
        await first.submit(job, cost=1)


async def test_a_claim_gets_one_costly_task_or_several_others(replica: Replica) -> None:
    """A claim for several tasks takes no more slots than are free, also two claims at once."""
    job = await worker(replica, 5)
    costly = [await replica.submit(job, cost=2) for _ in range(3)]
    plain = [await replica.submit(job) for _ in range(3)]
    at_once = await asyncio.gather(*[replica.claim_response(job.worker_id, max=4) for _ in range(4)])
    ids = [[task.id for task in response.tasks] for response in at_once]
    assert sorted(len(of_claim) for of_claim in ids) == [0, 0, 1, 1]
    assert {task_id for of_claim in ids for task_id in of_claim} == {task.id for task in costly[:2]}
    await end(replica, costly[0])
    assert (await replica.claim_task(job.worker_id)).id == costly[2].id
    response = await replica.claim_response(job.worker_id, max=4)
    assert [task.id for task in response.tasks] == [task.id for task in plain]
    alone = await worker(replica, 4, "Flip", cost=2)
    for _ in range(3):
        await replica.submit(alone)
    numbers = [len((await replica.claim_response(alone.worker_id, max=3)).tasks) for _ in range(3)]
    assert numbers == [1, 1, 0]


def forget(*replicas: Replica) -> None:
    """Let servers read again which workers keep their slots free, and for which tasks."""
    for replica in replicas:
        reservations = replica.runtime._plain_claims.sets.reservations
        reservations._workers.clear()
        reservations._first.clear()


async def test_a_costly_task_is_not_passed_over_for_ever(
    pair: list[Replica], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker with most free slots keeps them for it; others get later tasks, until it has waited long."""
    first, second = pair
    job = await worker(first, 4)
    other = await worker(second, 4)
    running = [await first.submit(job) for _ in range(3)]
    for task, of in zip(running, (job, other, other), strict=True):
        assert (await first.claim_task(of.worker_id)).id == task.id
    costly, later = await first.submit(job, cost=4), [await first.submit(job) for _ in range(2)]
    response = await second.claim_response(job.worker_id)
    assert (response.task, response.reason) == (None, EmptyReason.NO_SLOTS)
    assert (await second.claim_task(other.worker_id)).id == later[0].id
    urgent = await first.submit(job, priority=1)
    assert [task.id for task in (await first.claim_response(job.worker_id, max=2)).tasks] == [urgent.id]
    await end(first, urgent)
    monkeypatch.setattr(rules_slots, "_ONE_MORE_AFTER", timedelta(microseconds=1))
    forget(first, second)
    assert await second.claim(other.worker_id) is None
    await end(second, running[0])
    claimed = await second.claim_task(job.worker_id)
    assert (claimed.id, claimed.cost) == (costly.id, 4)
    assert (await first.claim_task(other.worker_id)).id == later[1].id


@pytest.mark.parametrize("by", ["token", "guard"])
async def test_a_worker_that_may_not_serve_the_room_keeps_no_slots(pair: list[Replica], by: str) -> None:
    """Its token has lost the room, or a host's guard refuses it: another worker keeps its slots at once."""
    first, second = pair
    ann = Identity("ann", is_superuser=False)
    job = await worker(first, 4, room="lab")
    other = await worker(first, 4, room="lab", by=ann)
    outside = await first.register("Flip", "annex", by=ann, worker=other.worker_id)
    for _ in range(2):
        await first.submit(job)
    for of, user in ((job, OWNER), (other, ann)):
        await first.claim_task(of.worker_id, by=user)
    # The refused worker would be the one with most free slots.
    await first.submit(job)
    await first.claim_task(job.worker_id)
    await first.submit(job, cost=4)
    later, elsewhere = await first.submit(job), await first.submit(outside, room="annex")
    if by == "token":
        rights = TokenRights(["worker"], ["annex"])
        add = partial(sql_operators.add_token, name="ann", digest="d", is_superuser=False, rights=rights)
        assert await second.runtime.write(add)
    replicas = pair if by == "token" else [first]
    access = CallerAccess("ann", lambda: refuse({"lab"}), inf)
    for replica in replicas:
        if by == "guard":
            request = TaskClaimRequest(worker_id=other.worker_id)
            got = (await replica.runtime.claim(ann, request, access=access)).task
            assert got is not None
            assert got.id == elsewhere.id
        claimed = await replica.claim(job.worker_id)
        assert claimed is None, (replica, later)


async def refuse(rooms: Collection[str]) -> Collection[str]:
    """Return the rooms that a guard refuses."""
    return frozenset(rooms)


async def test_an_old_backlog_does_not_drain_all_workers(timed: Replica, clock: ManualClock) -> None:
    """One more worker keeps its slots for each minute since the task was the first one and did not fit."""
    job = await worker(timed, 4)
    others = [await worker(timed, 4) for _ in range(2)]
    for of in (job, *others, *others):
        await timed.submit(job)
        await timed.claim_task(of.worker_id)
    await timed.submit(job, cost=4)
    later = [await timed.submit(job) for _ in range(3)]
    clock.advance(3600)
    for one in (job, *others):
        await timed.heartbeat(one.worker_id)
    assert await timed.claim(job.worker_id) is None
    assert (await timed.claim_task(others[0].worker_id)).id == later[0].id
    clock.advance(61)
    forget(timed)
    got = [await timed.claim(other.worker_id) is not None for other in others]
    assert sorted(got) == [False, True]


async def test_claimed_tasks_do_not_let_a_server_read_all_workers_again(replica: Replica) -> None:
    """Within a second the first task of a queue may change often: it keeps to the workers it has read."""
    job, large = await worker(replica, 2), await worker(replica, 100)
    await replica.running(job)
    for _ in range(3):
        await replica.submit(job, cost=2)
    reservations = replica.runtime._plain_claims.sets.reservations
    reservations._workers = TTLCache(10, 60.0)
    statements = replica.record_statements()
    for _ in range(3):
        assert await replica.claim(job.worker_id) is None
        assert (await replica.claim_task(large.worker_id)).cost == 2
    assert sum("AS taken" in statement.sql for statement in statements) == 1
    queue = (await replica.rows(Job.__table__))[0]
    rows = await replica.runtime.database.read(sql_slots.of_workers, queue.id, limit=1)
    assert len(rows) == 1


async def test_a_task_that_may_not_be_claimed_keeps_no_slots_free(replica: Replica) -> None:
    """A limit of its job or a pause of its room holds it back: its workers get later tasks meanwhile."""
    job = await worker(replica, 3, cost=3, max_in_flight=1)
    other = await replica.register("Flip", worker=job.worker_id)
    large = await worker(replica, 4)
    await replica.submit(job)
    held = await replica.claim_task(large.worker_id)
    await replica.running(other)
    await replica.submit(job)
    for _ in range(2):
        later = await replica.submit(other, room="annex")
    assert (await replica.claim_task(job.worker_id)).job_name == other.full_name
    await end(replica, held)
    forget(replica)
    assert await replica.claim(job.worker_id) is None
    await replica.pause_room("lab")
    forget(replica)
    assert (await replica.claim_task(job.worker_id)).id == later.id


async def test_a_task_of_a_full_room_keeps_no_slots_free(replica: Replica) -> None:
    """Its room holds as many tasks as `room_max_in_flight` allows: workers get tasks of other rooms."""
    replica.runtime.settings.room_max_in_flight = 1
    job = await worker(replica, 3)
    held = await replica.running(job)
    await replica.submit(job, cost=3)
    later = [await replica.submit(job, room="annex"), await replica.submit(job, room="attic")]
    assert (await replica.claim_task(job.worker_id)).id == later[0].id
    await replica.report(held.id, TaskStatus.COMPLETED)
    forget(replica)
    assert await replica.claim(job.worker_id) is None


async def test_a_batch_takes_the_cost_of_its_largest_task(pair: list[Replica]) -> None:
    """Also if its tasks wait in queues of different costs; two batches run beside each other."""
    job = await worker(pair[0], 5, cost=2, batch={"max": 3})
    batches = [{"job": job.full_name, "max": 3, "wait_seconds": 30}]
    tasks = [await pair[0].submit(job, cost=cost) for cost in (None, 3, None, 2, 2, 2, 2, 2, 2)]
    for index in (0, 3, None, 6):
        options = {"max": 1, "claim_id": uuid4(), "batches": batches}
        response = await pair[1].claim_response(job.worker_id, **options)
        ids = [] if index is None else [task.id for task in tasks[index : index + 3]]
        assert [task.id for task in response.tasks] == ids
        if index is None:
            assert response.reason == EmptyReason.NO_SLOTS
            for task in tasks[:3]:
                await end(pair[0], task)


@pytest.mark.parametrize("order", ["fifo", "fair"])
@pytest.mark.parametrize("what", ["limit", "pause"])
async def test_kept_slots_get_no_task_behind_the_costly_one(replica: Replica, what: str, order: str) -> None:
    """Also where a limit or a pause holds back the first tasks of another queue, whose others come later."""
    replica.runtime.settings.claim_order = order
    limits = [{"key": "/k", "max_in_flight": 1}] if what == "limit" else []
    job = await worker(replica, 5, "Flip", limits=limits)
    large = await replica.register(worker=job.worker_id, cost=4)
    held = [await replica.submit(job, {"k": key}) for key in (1, 2)]
    for task in held:
        assert (await replica.claim_task(job.worker_id)).id == task.id
    await replica.submit(job, {"k": 1}, room="lab" if what == "limit" else "annex")
    if what == "pause":
        await replica.pause_room("annex")
    before, costly = await replica.submit(job, {"k": 3}), await replica.submit(large)
    later = [await replica.submit(job, {"k": key}, room=room) for key, room in ((4, "lab"), (5, "attic"))]
    assert (await replica.claim_task(job.worker_id)).id == before.id
    for of in (held[1], before):
        response = await replica.claim_response(job.worker_id, max=3)
        assert (response.tasks, response.reason) == ([], EmptyReason.NO_SLOTS)
        await end(replica, of)
    assert (await replica.claim_task(job.worker_id)).id == costly.id
    got = (await replica.claim_response(job.worker_id, max=3)).tasks
    assert {task.id for task in got} == {task.id for task in later}


@pytest.mark.parametrize("what", ["pause", "full", "limit"])
async def test_slots_are_kept_for_the_first_task_that_may_be_claimed(replica: Replica, what: str) -> None:
    """Others before it in its queue wait for their room, or for a limit of their key."""
    limits = [{"key": "/k", "max_in_flight": 1}] if what == "limit" else []
    job = await worker(replica, 3, "Flip")
    large = await replica.register(worker=job.worker_id, cost=3, limits=limits)
    other = await worker(replica, 3, cost=3, limits=limits)
    held_back = [await replica.submit(large, {"k": 1}, room="annex") for _ in range(2)]
    assert (await replica.claim_task(other.worker_id)).id == held_back[0].id
    if what == "pause":
        await replica.pause_room("annex")
    replica.runtime.settings.room_max_in_flight = 1 if what == "full" else None
    running = await replica.submit(job, room="attic")
    assert (await replica.claim_task(job.worker_id)).id == running.id
    before = await replica.submit(job, room="lab")
    costly = await replica.submit(large, {"k": 2}, room="cellar")
    later = await replica.submit(job, room="loft")
    assert (await replica.claim_task(job.worker_id)).id == before.id
    for of in (before, running):
        assert await replica.claim(job.worker_id) is None
        await end(replica, of)
    assert (await replica.claim_task(job.worker_id)).id == costly.id
    await end(replica, costly)
    assert (await replica.claim_task(job.worker_id)).id == later.id


async def test_a_waiting_claim_is_woken_when_slots_become_free(pair: list[Replica]) -> None:
    """A worker that waits with too few free slots gets the task after a report, at either server."""
    first, second = pair
    job = await worker(first, 3)
    for server in (first, second):
        running = [await first.submit(job) for _ in range(2)]
        for task in running:
            assert (await first.claim_task(job.worker_id)).id == task.id
        waiting = asyncio.ensure_future(first.claim(job.worker_id, wait=30))
        await until(lambda: len(first.runtime.waiters) == 1)
        costly = await second.submit(job, cost=3)
        await end(first, running[0])
        await end(server, running[1])
        claimed = await waiting
        assert claimed is not None
        assert claimed.id == costly.id
        await end(second, claimed)


async def waiting(replica: Replica, job: JobResponse) -> asyncio.Task[TaskResponse | None]:
    """Return a claim that waits."""
    claim = asyncio.ensure_future(replica.claim(job.worker_id, wait=30))
    await wait_until_waiting(replica, 1)
    return claim


async def got(replica: Replica, claim: asyncio.Task[TaskResponse | None], task: TaskResponse) -> None:
    """Check that a claim gets this task before it is re-checked, with the first heartbeat; end the task."""
    claimed = await asyncio.wait_for(claim, 10)
    assert claimed is not None
    assert claimed.id == task.id
    await end(replica, claimed)


@pytest.mark.parametrize("recheck_seconds", [(3600.0, 3600.0)], ids=["no-recheck"])
async def test_a_waiting_claim_is_woken_when_its_slots_are_enough(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker gets more slots, the job a lower cost, or another worker the task that slots are for."""
    monkeypatch.setattr(runtime, "_KEPT_SECONDS", 3600.0)
    job = await worker(replica, 5)
    large, other = await replica.register("Flip", worker=job.worker_id, cost=5), await worker(replica, 5)
    await replica.register("Flip", worker=other.worker_id)
    await occupy(replica, job, 3)
    costly = await replica.submit(large)
    claim = await waiting(replica, job)
    await replica.runtime.write(rules_workers.describe, job.worker_id, WorkerInfo(slots=8))
    await got(replica, claim, costly)
    await replica.register("Flip", worker=other.worker_id, cost=6)
    costly = await replica.submit(large)
    claim = await waiting(replica, job)
    await replica.register("Flip", worker=other.worker_id, cost=4)
    await got(replica, claim, costly)
    await occupy(replica, job, 2)
    costly, cheap = await replica.submit(large), await replica.submit(job)
    claim = await waiting(replica, job)
    assert (await replica.claim_task(other.worker_id)).id == costly.id
    await got(replica, claim, cheap)


async def test_slots_and_costs_change(pair: list[Replica]) -> None:
    """New slots of a worker and a new cost of the policy hold for tasks that wait."""
    first, second = pair
    job = await worker(first, 2, without_workers="queue")
    task, large = await first.submit(job), await first.submit(job, cost=3)
    await second.register(worker=job.worker_id, cost=4)
    assert await first.claim(job.worker_id) is None
    [reason, _] = await reasons(second, task)
    lacks = f"its only worker, {job.worker_id} (no labels, 2 slots), lacks 4 slots."
    assert reason == f"No worker of {job.full_name} has 4 slots: {lacks}"
    [queue, _] = await second.runtime.database.read(sql_figures.unserved_jobs, limit=10)
    finding = rules_findings.unserved_job(queue)
    assert (finding.code, finding.since is None) == ("tasks-without-matching-workers", False)
    assert "that require 4 slots since" in finding.detail
    await first.runtime.write(rules_workers.describe, job.worker_id, WorkerInfo(slots=4))
    claimed = await second.claim_task(job.worker_id)
    assert (claimed.id, claimed.cost) == (task.id, 4)
    await second.register(worker=job.worker_id, cost=2)
    assert (await first.get(large.id)).cost == 3
    assert await first.claim(job.worker_id) is None
    await second.register(worker=job.worker_id, cost=1)
    claimed = await first.claim_task(job.worker_id)
    assert (claimed.id, claimed.cost) == (large.id, 3)
