"""Steps and groups beside limits, pauses, webhooks, schedules, jobs of the server and lost workers."""

import asyncio
from typing import Any
from uuid import UUID

import pytest
from databases import on_both
from recovery.test_internal_dispatch import serve, start
from recovery.test_internal_dispatch import worker as internal_worker
from replica import OWNER, SUBMITTER, ManualClock, Replica, internal, wait_until_waiting
from seeds import prune_ended

from service.test_successors import batch, end, handle, open_group, report
from zndraw_joblib.server.db.tables import Edge, Group, OutboxRow, Task
from zndraw_joblib.server.process.settings import JobLibSettings, ServerSettings
from zndraw_joblib.server.queue import rules_groups, rules_task_actions, rules_task_retention
from zndraw_joblib.server.queue.rules_internal import EXECUTOR
from zndraw_joblib.server.queue.rules_tasks import Report
from zndraw_joblib.wire.groups import GroupOnEnd, NewGroup
from zndraw_joblib.wire.messages import JobResponse, TaskResponse, TaskUpdateRequest
from zndraw_joblib.wire.names import split_name
from zndraw_joblib.wire.policy import Backoff
from zndraw_joblib.wire.statuses import TaskStatus

pytestmark = on_both
LONG = 30.0


async def fan(replica: Replica, job: JobResponse, number: int = 3) -> tuple[UUID, list[UUID]]:
    """Submit a task and some that wait for it."""
    waits = [{"after": {"tasks": [0]}}] * number
    first, *others = await batch(replica, job, {}, *waits)
    return first.id, [task.id for task in others]


async def claim_all(replica: Replica, job: JobResponse) -> list[UUID]:
    """Claim all tasks that the worker may take."""
    ids = list[UUID]()
    while tasks := (await replica.claim_response(job.worker_id, max=9)).tasks:
        ids += [task.id for task in tasks]
    return ids


async def make_group(replica: Replica, job: JobResponse, **on_end: Any) -> UUID:
    """Create a group with a task of a job at its end."""
    new = NewGroup(on_end=GroupOnEnd(job=job.full_name, **on_end))
    group = await replica.runtime.write(rules_groups.create, rules_groups.GroupToMake(SUBMITTER, "lab", new))
    return group.id


async def test_released_steps_share_the_slots_of_their_job(replica: Replica) -> None:
    """Of the job, and of a key that a result fills in: no more run than may, and each gets its turn."""
    job = await replica.register(limits=[{"key": "/user", "max_in_flight": 1}], max_in_flight=2)
    first, *_ = tasks = await batch(
        replica,
        job,
        {"payload": {"user": "u0"}},
        *[{"payload": {"user": {"$result": {"task": 0}}}, "after": {"tasks": [0]}}] * 2,
        *[{"payload": {"user": f"u{n}"}, "after": {"tasks": [0]}} for n in (1, 2)],
    )
    assert await end(replica, job, "same") == first.id
    ids = [task.id for task in tasks]
    ids.append((await replica.submit(job, {"user": "same"})).id)
    assert await claim_all(replica, job) == [ids[1], ids[3]]
    for ended, claimed in ((3, [4]), (4, []), (1, [2]), (2, [5]), (5, [])):
        await report(replica, ids[ended])
        assert await claim_all(replica, job) == [ids[index] for index in claimed]
    assert {(await replica.get(task_id)).status for task_id in ids} == {TaskStatus.COMPLETED}


@pytest.mark.parametrize("what", ["job", "room", "queue"])
async def test_a_pause_holds_back_released_steps(replica: Replica, what: str) -> None:
    """They leave their predecessors meanwhile, wait for the resume, and a claim that waits gets them then."""
    job = await replica.register()
    first, (second,) = await fan(replica, job, 1)
    claimed = await replica.claim_task(job.worker_id)
    room = "lab" if what == "room" else None
    await (replica.pause(job) if what == "job" else replica.pause_room(room))
    await report(replica, claimed.id)
    await handle(replica)
    assert claimed.id == first
    assert await claim_all(replica, job) == []
    codes = await replica.explain(second)
    assert "predecessor" not in codes
    assert any("paused" in code for code in codes), codes
    waiting = asyncio.create_task(replica.claim(job.worker_id, wait=LONG))
    await wait_until_waiting(replica, 1)
    await (replica.pause(job, paused=False) if what == "job" else replica.resume_room(room))
    task = await waiting
    assert task is not None
    assert task.id == second


async def test_a_claim_of_a_batch_gets_the_steps_that_are_released(replica: Replica) -> None:
    """The tasks of a batch are predecessors, and what they release fills the next one."""
    job = await replica.register()
    parts = await batch(replica, job, {}, {}, {}, *[{"after": {"tasks": [n]}} for n in (0, 1, 2)])
    entry = {"job": job.full_name, "max": 3, "wait_seconds": LONG}

    async def claim() -> list[UUID]:
        response = await replica.claim_response(job.worker_id, batches=[entry], max=1, wait=LONG)
        return [task.id for task in response.tasks]

    assert await claim() == [task.id for task in parts[:3]]
    waiting = asyncio.create_task(claim())
    await wait_until_waiting(replica, 1)
    updates = [TaskUpdateRequest(status=TaskStatus(status)) for status in ("running", "completed")]
    reports = [Report(OWNER, task.id, update) for task in parts[:3] for update in updates]
    results = await replica.runtime.report_many(reports)
    assert all(isinstance(result, TaskResponse) for result in results)
    await handle(replica)
    assert await waiting == [task.id for task in parts[3:]]


@pytest.mark.parametrize("status", ["completed", "failed"])
async def test_jobs_of_the_server_are_steps(replica: Replica, status: str) -> None:
    """One waits for a worker's task, gets its result and is dispatched, and another task waits for it."""
    job, broker = await replica.register(), await serve(replica, exclusive_start=True)
    first = await replica.submit(job)
    payload = {"x": {"$result": {"task": str(first.id)}}}
    inside = await replica.submit(str(internal()), payload, after={"tasks": [first.id]})
    after = await replica.submit(job, after={"tasks": [inside.id]})
    await replica.dispatcher.dispatch()
    assert broker.calls == []
    await end(replica, job, 5)
    await replica.dispatcher.dispatch()
    [call] = broker.calls
    assert (call["task_id"], call["payload"]) == (str(inside.id), {"x": 5})
    executor = await internal_worker(replica)
    [started] = await start(replica, executor, inside.id)
    assert not isinstance(started, Exception)
    await replica.report(inside.id, status, by=EXECUTOR, worker_id=executor)
    await handle(replica)
    if status == "completed":
        assert await end(replica, job) == after.id
    else:
        assert (await replica.get(after.id)).error_code == "predecessor-failed"


@pytest.mark.parametrize("attempts", [1, 2])
async def test_a_lost_worker_in_the_middle_of_a_chain(
    timed: Replica, clock: ManualClock, attempts: int
) -> None:
    """With another attempt the chain goes on; without one its rest fails, and the group with it ends once."""
    policy = {"max_attempts": attempts, "backoff": Backoff(base_seconds=5, factor=1)}
    job, summary = await timed.register(**policy), await timed.register("Summary")
    group = await make_group(timed, summary, payload={"n": {"$group": "counts"}})
    tasks = await batch(
        timed, job, {"group": group}, *[{"group": group, "after": {"tasks": [n]}} for n in range(3)]
    )
    await timed.runtime.write(rules_groups.seal, group)
    assert await end(timed, job) == tasks[0].id
    assert (await timed.start(job.worker_id)).id == tasks[1].id
    clock.advance(120)
    assert summary.worker_id is not None
    await timed.heartbeat(summary.worker_id)
    assert await timed.retire_stale() == 1
    await handle(timed)
    clock.advance(10)
    await timed.enqueue_due()
    job, rest = await timed.register(**policy), tasks[1:] if attempts > 1 else []
    assert [await end(timed, job) for _ in rest] == [task.id for task in rest]
    last = await timed.claim_task(summary.worker_id)
    counts = {"total": 4, "completed": 1 + len(rest), "failed": 3 - len(rest), "cancelled": 0}
    assert last.payload == {"n": counts}
    assert [row.on_end_task for row in await timed.rows(Group.__table__)] == [last.id]
    codes = {(await timed.get(task.id)).error_code for task in tasks[2:]}
    assert codes == ({None} if rest else {"predecessor-failed"})


async def test_ends_of_steps_and_groups_are_delivered_once(
    replica: Replica, settings: ServerSettings
) -> None:
    """A step that fails with its predecessor has its webhook, and the group its `on_end`, once each."""
    settings.webhook_http = True
    job = await replica.register()
    group = await make_group(replica, job)
    first = await replica.submit(job)
    hook = {"url": "http://example.org/hook"}
    after = {"tasks": [first.id]}
    failed = await replica.submit(job, after=after, group=group, webhook=hook)
    ran = await replica.submit(job, after={**after, "on_failure": "run"}, group=group, webhook=hook)
    waits = await replica.submit(job, after={"groups": [group], "on_failure": "run"})
    await replica.runtime.write(rules_groups.seal, group)
    await end(replica, job, status="failed")
    assert [row.task_id for row in await replica.rows(OutboxRow.__table__)] == [failed.id]
    assert await end(replica, job) == ran.id
    rows = sorted(await replica.rows(OutboxRow.__table__), key=lambda row: row.seq)
    assert [(row.event, row.task_id) for row in rows] == [
        ("task.failed", failed.id),
        ("task.completed", ran.id),
    ]
    [row] = await replica.rows(Group.__table__)
    assert sorted([await end(replica, job) for _ in range(2)]) == sorted([row.on_end_task, waits.id])
    assert await replica.claim(job.worker_id) is None
    assert len(await replica.rows(OutboxRow.__table__)) == 2


async def test_a_task_of_a_schedule_is_a_predecessor(timed: Replica, clock: ManualClock) -> None:
    """Of steps, also of those that hold while it fails; the next due time changes nothing of them."""
    job = await timed.register()
    await timed.put_schedule(job, every_seconds=60)
    clock.advance(60)
    await timed.submit_due()
    task_id = (await timed.schedule()).last_task_id
    assert task_id is not None
    step = await timed.submit(job, after={"tasks": [task_id], "on_failure": "hold"})
    assert await end(timed, job, status="failed") == task_id
    clock.advance(60)
    await timed.submit_due()
    following = (await timed.schedule()).last_task_id
    assert await end(timed, job) == following
    assert (await timed.get(step.id)).waits
    await timed.act(rules_task_actions.retry, task_id)
    assert await end(timed, job) == task_id
    assert await end(timed, job) == step.id


async def test_retention_keeps_what_a_held_step_needs(timed: Replica, clock: ManualClock) -> None:
    """The predecessor, and the tasks of the group that it waits for; without the step all are deleted."""
    job, group = await timed.register(), await open_group(timed)
    first, member = await timed.submit(job), await timed.submit(job, group=group)
    other = await timed.submit(job)
    await timed.runtime.write(rules_groups.seal, group)
    held = await timed.submit(job, after={"tasks": [first.id], "groups": [group], "on_failure": "hold"})
    for _ in range(3):
        await end(timed, job, status="failed")
    clock.advance(3600)
    assert await _older(timed) == await _older(timed, job) == 1
    assert sum(await prune_ended(timed.runtime.write)) == 1
    assert await _older(timed) == await _older(timed, job) == 0
    kept = {row.id for row in await timed.rows(Task.__table__)}
    assert kept == {first.id, member.id, held.id}, other.id
    for task in (first, member):
        await timed.act(rules_task_actions.retry, task.id)
        assert await end(timed, job) == task.id
    assert await end(timed, job) == held.id
    clock.advance(3600)
    assert await _older(timed) == await _older(timed, job) == 3
    assert sum(await prune_ended(timed.runtime.write)) == 3
    assert await timed.rows(Edge.__table__) == []


async def _older(replica: Replica, job: JobResponse | None = None) -> int:
    """Return how many tasks the retention would delete, of all jobs or of one."""
    name = None if job is None else split_name(job.full_name)
    settings = JobLibSettings(keep_finished_days=1e-9)
    times = await replica.runtime.database.read(rules_task_retention.read, settings, name)
    return times.completed.older + times.failed.older + times.cancelled.older
