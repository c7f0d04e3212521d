"""The last end of a group is exact, whoever ends its tasks at the same time; counts delay no writer."""

import asyncio
import random
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from databases import every_kind, on_postgresql
from replica import ADMIN, OWNER, SUBMITTER, TIMEOUT, OpenReplica, Replica
from sqlalchemy import update

from service.test_plain_reports import wait_for_lock
from zndraw_joblib.server.background.sweeper import Sweeper
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.tables import Group, GroupCount, Job, Task, Wave
from zndraw_joblib.server.process.settings import JobLibSettings
from zndraw_joblib.server.queue import (
    rules_groups,
    rules_jobs,
    rules_task_actions,
    rules_tasks,
    sql_groups,
    sql_jobs,
)
from zndraw_joblib.wire.groups import GroupResponse, NewGroup
from zndraw_joblib.wire.messages import (
    JobResponse,
    TaskClaimRequest,
    TaskResponse,
    TaskSubmitRequest,
    TaskUpdateRequest,
)
from zndraw_joblib.wire.names import parse_job_name
from zndraw_joblib.wire.statuses import TaskStatus

TASKS = Task.__table__
GROUPS = Group.__table__
COUNTS = GroupCount.__table__
WAVES = Wave.__table__


async def create(replica: Replica, job: JobResponse | None = None, **on_end: Any) -> GroupResponse:
    """Create a group that submits a task of a job at its end."""
    new = NewGroup.model_validate({"on_end": {"job": job.full_name, **on_end}} if job else {})
    return await replica.runtime.write(rules_groups.create, rules_groups.GroupToMake(SUBMITTER, "lab", new))


async def read(replica: Replica, group: GroupResponse) -> GroupResponse:
    """Return a group."""
    return await replica.runtime.get_group(group.id)


async def fill(
    replica: Replica, job: JobResponse, group: GroupResponse, number: int, *, together: bool = False
) -> list[TaskResponse]:
    """Submit tasks to a group, start all of them, and seal the group."""
    if together:
        name, request = parse_job_name(job.full_name), TaskSubmitRequest(group=group.id)
        items = [replica.runtime.submission(SUBMITTER, "lab", name, request) for _ in range(number)]
        await replica.runtime.submit_many(items)
    else:
        for _ in range(number):
            await replica.submit(job, group=group.id)
    request = TaskClaimRequest(worker_id=job.worker_id, max=number, start=True)
    started = (await replica.runtime.claim(OWNER, request)).tasks
    assert len(started) == number
    await replica.runtime.write(rules_groups.seal, group.id)
    return started


def end_of(task_id: UUID, status: TaskStatus = TaskStatus.COMPLETED) -> rules_tasks.Report:
    """Return the report of an end."""
    return rules_tasks.Report(OWNER, task_id, TaskUpdateRequest(status=status))


async def submitted_at_ends(replica: Replica) -> int:
    """Return how many tasks the ends of groups have submitted."""
    return len(await replica.rows(TASKS, TASKS.c.group_id.is_(None)))


@every_kind
async def test_one_of_the_ends_at_the_same_time_is_the_last(
    replica: Replica, open_replica: OpenReplica
) -> None:
    """Two servers end all tasks of a group, alone and in batches: the group ends once."""
    other, job, report = open_replica(), await replica.register(), await replica.register("Report")
    choose = random.Random(7)

    async def end(server: Replica, ids: list[UUID]) -> None:
        others = choose.choice([TaskStatus.COMPLETED, TaskStatus.FAILED])  # with a failure none is plain
        statuses = [choose.choice([TaskStatus.COMPLETED, others]) for _ in ids]
        await server.runtime.report_many(list(map(end_of, ids, statuses)))

    for round_number, number in enumerate((1, 2, 3, 8, 40)):
        group = await create(replica, report)
        ids, parts = [task.id for task in await fill(replica, job, group, number)], list[list[UUID]]()
        while ids:
            size = choose.randint(1, 4)
            parts, ids = [*parts, ids[:size]], ids[size:]
        async with asyncio.timeout(TIMEOUT):
            await asyncio.gather(*(end(choose.choice([replica, other]), part) for part in parts))
        ended = await read(other, group)
        assert ended.ended_at is not None
        assert (ended.total, ended.counts.completed + ended.counts.failed) == (number, number)
        assert await submitted_at_ends(replica) == round_number + 1


@on_postgresql
async def test_an_end_waits_only_for_what_may_be_the_last(
    replica: Replica, open_replica: OpenReplica
) -> None:
    """While a transaction that ends tasks is open, others commit, until few tasks are left."""
    other, job = open_replica(), await replica.register()
    group = await create(replica, job)
    tasks = await fill(replica, job, group, 60)
    # The first ends share the open tasks among the stripes.
    for _ in range(sql_groups.STRIPES):
        await replica.report(tasks.pop().id, "completed")
    counts = await replica.rows(COUNTS)
    assert len(counts) == sql_groups.STRIPES
    assert min(row.open for row in counts) > 1
    is_open, may_commit = asyncio.Event(), asyncio.Event()

    async def end_slowly(tx: Transaction) -> None:
        await rules_tasks.report(tx, [end_of(tasks.pop().id)])
        await tx.settle_ends()
        is_open.set()
        await may_commit.wait()

    async with asyncio.timeout(TIMEOUT):
        slow = asyncio.create_task(replica.runtime.write(end_slowly))
        await is_open.wait()
        await other.report(tasks.pop().id, "completed")
        may_commit.set()
        await slow
    assert (await read(replica, group)).counts.completed == sql_groups.STRIPES + 2


@on_postgresql
async def test_ends_that_are_not_the_last_are_one_statement(replica: Replica) -> None:
    """It is a transaction of its own, also for a single report; the last one is not, nor one of several."""
    job, report = await replica.register(), await replica.register("Report")
    groups = [await create(replica, report) for _ in range(2)]
    first, second = [await fill(replica, job, group, 6, together=True) for group in groups]
    free = await replica.running(job)
    # Its submits let the server expect such ends.
    statements = replica.record_statements()
    parts = [
        [first.pop()],
        [first.pop(), free],
        [second.pop()],
        [first.pop(), first.pop()],
        [second.pop(), second.pop()],
    ]
    for part in parts:
        await replica.runtime.report_many([end_of(task.id) for task in part])
    assert [statement.is_alone for statement in statements] == [True] * len(parts)
    states = [await read(replica, group) for group in groups]
    assert [(state.counts.completed, state.counts.running) for state in states] == [(4, 2), (3, 3)]
    await replica.runtime.report_many([end_of(task.id) for task in first + second[1:]])
    states = [await read(replica, group) for group in groups]
    assert [state.ended_at is None for state in states] == [False, True]
    assert await submitted_at_ends(replica) == 2


@on_postgresql
async def test_an_end_that_waits_for_a_submit_sees_its_step(
    replica: Replica, open_replica: OpenReplica
) -> None:
    """The statement began before the commit of the submit, whose task waits for the one that ends."""
    other, job = open_replica(), await replica.register()
    tasks = await fill(replica, job, await create(replica), 5)
    await other.report(tasks.pop().id, "completed")
    is_open, may_commit = asyncio.Event(), asyncio.Event()
    request = TaskSubmitRequest(after={"tasks": [tasks[0].id]})

    async def submit_slowly(tx: Transaction) -> None:
        name = parse_job_name(job.full_name)
        await rules_tasks.submit(tx, [replica.runtime.submission(SUBMITTER, "lab", name, request)])
        is_open.set()
        await may_commit.wait()

    statements = other.record_statements()
    async with asyncio.timeout(TIMEOUT):
        slow = asyncio.create_task(replica.runtime.write(submit_slowly))
        await is_open.wait()
        ending = asyncio.create_task(other.report(tasks[0].id, "completed"))
        await wait_for_lock(replica)
        may_commit.set()
        await asyncio.gather(slow, ending)
    assert [statement.is_alone for statement in statements][:2] == [True, False]
    assert len(await replica.rows(WAVES)) == 1


@every_kind
async def test_whoever_ends_a_task_counts(replica: Replica) -> None:
    """Reports, cancels, operators, an expiry, a lost worker; a retry takes the end back."""
    job = await replica.register()
    group = await create(replica)
    ends = [TaskStatus.FAILED, TaskStatus.CANCELLED, TaskStatus.COMPLETED]
    for end in ends:
        await replica.submit(job, group=group.id)
        task = await replica.start(job.worker_id)
        await replica.report(task.id, end, by=ADMIN if end is TaskStatus.CANCELLED else OWNER)
    await replica.submit(job, group=group.id)
    task = await replica.start(job.worker_id)
    await replica.act(rules_task_actions.fail, task.id)
    counts = (await read(replica, group)).counts
    assert (counts.failed, counts.cancelled, counts.completed) == (2, 1, 1)
    await replica.act(rules_task_actions.retry, task.id)
    counts = (await read(replica, group)).counts
    assert (counts.failed, counts.pending) == (1, 1)
    await replica.start(job.worker_id)
    await replica.leave(job.worker_id)
    counts = (await read(replica, group)).counts
    assert (counts.failed, counts.running, counts.pending) == (2, 0, 0)


@every_kind
async def test_many_groups_in_one_batch(replica: Replica) -> None:
    """Each ends with its own last task."""
    job, report = await replica.register(), await replica.register("Report")
    groups = [await create(replica, report) for _ in range(5)]
    tasks = [await fill(replica, job, group, 1 + index) for index, group in enumerate(groups)]
    await replica.runtime.report_many([end_of(task.id) for some in tasks for task in some[1:]])
    assert [(await read(replica, group)).ended_at for group in groups] == [None] * 5
    await replica.runtime.report_many([end_of(some[0].id) for some in tasks])
    ended = [await read(replica, group) for group in groups]
    assert len({group.on_end_task for group in ended}) == 5
    assert None not in {group.ended_at for group in ended}


async def deleted(replica: Replica) -> dict[str, bool]:
    """Return the names of the jobs that have a row, and whether they are soft-deleted."""
    return {row.name: row.deleted for row in await replica.rows(Job.__table__)}


@every_kind
async def test_the_last_step_waits_for_a_worker_that_returns(
    replica: Replica, open_replica: OpenReplica
) -> None:
    """The end restores the job of `on_end`; a task that waits for the group has kept its own."""
    other = open_replica()
    job, report, step = [await replica.register(name) for name in ("Rotate", "Report", "Step")]
    group = await create(replica, report, payload={"counts": {"$group": "counts"}})
    await replica.submit(step, after={"groups": [group.id]})
    [task] = await fill(replica, job, group, 1)
    for left in (report, step):
        await replica.leave(left.worker_id)
    later = datetime(2100, 1, 1, tzinfo=UTC)
    await replica.runtime.write(sql_jobs.prune, later, sql_jobs.FIRST, 100)
    assert await deleted(replica) == {"Rotate": False, "Report": True, "Step": False}
    await other.report(task.id, "completed")
    ended = await read(replica, group)
    assert (ended.error, await deleted(replica)) == (None, dict.fromkeys(("Rotate", "Report", "Step"), False))
    again = await other.register("Report")
    last = await other.start(again.worker_id)
    assert (again.id, last.id) == (report.id, ended.on_end_task)
    assert last.payload == {"counts": {"total": 1, "completed": 1, "failed": 0, "cancelled": 0}}
    await other.report(last.id, "completed")
    await other.leave(again.worker_id)
    assert (await deleted(replica))["Report"]


@every_kind
async def test_an_end_that_submits_nothing_restores_no_job(replica: Replica) -> None:
    """An operator has forgotten a job that refuses tasks while it has no worker."""
    job, report = await replica.register(), await replica.register("Report", without_workers="reject")
    group = await create(replica, report)
    [task] = await fill(replica, job, group, 1)
    await replica.leave(report.worker_id)
    await replica.runtime.write(rules_jobs.delete, parse_job_name(report.full_name))
    await replica.report(task.id, "completed")
    assert ((await read(replica, group)).error or "").startswith("no-workers-available")
    assert await deleted(replica) == {"Rotate": False, "Report": True}


@on_postgresql
async def test_a_group_whose_job_is_locked_holds_up_no_other(
    replica: Replica, open_replica: OpenReplica
) -> None:
    """The sweeper seals the groups that are due later all the same, and that one in a later cycle."""
    jobs = [await replica.register(name) for name in ("Locked", "Free")]
    groups = [await create(replica, job) for job in jobs]
    await replica.execute(update(GROUPS).values(due_at=datetime(2020, 1, 1, tzinfo=UTC)))
    is_locked, is_over = asyncio.Event(), asyncio.Event()

    async def lock(tx: Transaction) -> None:
        await sql_jobs.lock(tx, [jobs[0].id])
        is_locked.set()
        await is_over.wait()

    locking = asyncio.create_task(open_replica().runtime.write(lock))
    await is_locked.wait()
    sweeper = Sweeper(replica.runtime.write, JobLibSettings())
    cycle = await sweeper.cycle()
    assert cycle.errors == 1
    assert [(await read(replica, group)).ended_at is None for group in groups] == [True, False]
    is_over.set()
    await locking
    await sweeper.cycle()
    assert (await read(replica, groups[0])).on_end_state == "submitted"
