"""Cancels of trees beside submits into them, and trees of any depth and width."""

import asyncio
from uuid import UUID, uuid4

import pytest
from databases import every_kind, on_both
from replica import ADMIN, SUBMITTER, TIMEOUT, Replica
from seeds import add_tasks, task
from sqlalchemy import func, select

from zndraw_joblib.server.admin import rules_searches
from zndraw_joblib.server.db.tables import Task, TaskTag
from zndraw_joblib.server.queue.rules_tasks import Report
from zndraw_joblib.wire.messages import TaskResponse, TaskUpdateRequest
from zndraw_joblib.wire.operators import BulkAction, TaskFilter
from zndraw_joblib.wire.problems import Conflict
from zndraw_joblib.wire.statuses import TaskStatus

tasks, tags = Task.__table__, TaskTag.__table__
CANCEL = TaskUpdateRequest(status=TaskStatus.CANCELLED, tree=True)
ROUNDS = 6


async def cancel_tree(replica: Replica, task_id: UUID) -> TaskResponse:
    """Cancel a task and all tasks below it."""
    async with asyncio.timeout(TIMEOUT):
        return await replica.runtime.cancel_tree(Report(SUBMITTER, task_id, CANCEL))


@every_kind
async def test_no_child_escapes_a_cancel(pair: list[Replica]) -> None:
    """A submit at the same moment is before the cancel of its parent, which finds it, or is refused."""
    one, other = pair
    job = await one.register()

    async def add(replica: Replica, parent: TaskResponse) -> TaskResponse | Conflict:
        try:
            return await replica.submit(job, parent=parent.id, tags=["a", "b"])
        except Conflict as problem:
            return problem

    for _ in range(ROUNDS):
        top = await one.submit(job)
        child = await one.submit(job, parent=top.id)
        submits = [add(replica, parent) for replica in pair for parent in (top, child, top)]
        cancelled, *answers = await asyncio.gather(cancel_tree(other, top.id), *submits)
        assert cancelled.status is TaskStatus.CANCELLED
        below = await one.rows(tasks, tasks.c.root == top.id)
        assert {row.status for row in below} == {"cancelled"}
        assert len(below) == 1 + sum(isinstance(answer, TaskResponse) for answer in answers)
        seqs = [row.seq for row in below if row.tags]
        assert len(await one.rows(tags, tags.c.task_seq.in_(seqs))) == 2 * len(seqs)


@pytest.mark.parametrize("is_chain", [True, False], ids=["chain", "fan"])
@every_kind
async def test_a_tree_of_any_shape_is_cancelled(replica: Replica, is_chain: bool) -> None:
    """A chain of 2,500 tasks, and as many children of one task: also below a task that is not the first."""
    job = await replica.register()
    root, ids = uuid4(), [uuid4() for _ in range(2_500)]
    parents = [root, *ids] if is_chain else [root] + [ids[0]] * len(ids)
    rows = [task(job.id, id=id_, parent=parent, root=root) for id_, parent in zip(ids, parents, strict=False)]
    await add_tasks(replica, [task(job.id, id=root, parent=None, root=None), *rows])
    assert (await cancel_tree(replica, ids[0])).status is TaskStatus.CANCELLED
    counted = select(tasks.c.status, func.count()).group_by(tasks.c.status)
    rows_of_status = (await replica.execute(counted)).all()
    assert {status: number for status, number in rows_of_status} == {"pending": 1, "cancelled": 2_500}
    assert (await cancel_tree(replica, root)).status is TaskStatus.CANCELLED


@on_both
async def test_a_bulk_cancel_reads_only_the_trees_that_there_are(replica: Replica) -> None:
    """It cancels what is below the tasks that match, and asks for all tasks without children at once."""
    job = await replica.register()
    tops = [await replica.submit(job) for _ in range(30)]
    child = await replica.submit(job, parent=tops[7].id)
    deep = await replica.submit(job, room="lab", parent=child.id)
    statements = replica.record_statements()
    confirmed = rules_searches.Confirmed(ADMIN, BulkAction.CANCEL, TaskFilter(room=["lab"]), 2**60, tree=True)
    read, write = replica.runtime.database.read, replica.runtime.write
    assert (await rules_searches.apply(read, write, confirmed, None)).affected == 32
    assert sum("(root, seq) >" in statement.sql for statement in statements) <= 3
    assert (await replica.get(deep.id)).status is TaskStatus.CANCELLED
