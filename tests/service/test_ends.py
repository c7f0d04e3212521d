"""The end of a linked task is settled in the transaction that ends it, whoever does."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest
from databases import every_kind
from replica import ADMIN, Replica
from sqlalchemy import select, update

from zndraw_joblib.server.db.database import TaskEnd, Transaction
from zndraw_joblib.server.db.tables import Task
from zndraw_joblib.server.queue import rules_task_actions
from zndraw_joblib.wire.messages import JobResponse, TaskResponse
from zndraw_joblib.wire.statuses import TERMINAL, TaskStatus

TASKS = Task.__table__
COMPLETED, FAILED, CANCELLED = TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED
Ends = list[tuple[TaskStatus, str]]


async def complete(replica: Replica, job: JobResponse, task: TaskResponse) -> None:
    """Start and complete it: twice the shortest statements."""
    await replica.claim_task(job.worker_id)
    await replica.report(task.id, TaskStatus.RUNNING)
    await replica.report(task.id, COMPLETED)


async def fail(replica: Replica, job: JobResponse, task: TaskResponse) -> None:
    """Report an error."""
    await replica.start(job.worker_id)
    await replica.report(task.id, FAILED, error="broken")


async def lose(replica: Replica, job: JobResponse, task: TaskResponse) -> None:
    """The worker leaves, in one statement for all its tasks."""
    await replica.start(job.worker_id)
    await replica.leave(job.worker_id)


async def expire(replica: Replica, job: JobResponse, task: TaskResponse) -> None:
    """Nobody claims it in time; the sweeper fails it."""
    await replica.execute(update(TASKS).where(TASKS.c.id == task.id).values(expires_at=task.created_at))
    assert await replica.fail_expired() == 1


async def expire_at_claim(replica: Replica, job: JobResponse, task: TaskResponse) -> None:
    """A claim meets it after its time."""
    await replica.execute(update(TASKS).where(TASKS.c.id == task.id).values(expires_at=task.created_at))
    assert await replica.claim(job.worker_id) is None


async def cancel(replica: Replica, job: JobResponse, task: TaskResponse) -> None:
    """Its submitter cancels it while it is pending."""
    await replica.report(task.id, CANCELLED, by=ADMIN)


async def fail_by_operator(replica: Replica, job: JobResponse, task: TaskResponse) -> None:
    """An operator fails it."""
    await replica.act(rules_task_actions.fail, task.id)


@every_kind
@pytest.mark.parametrize(
    ("end", "status"),
    [
        (complete, COMPLETED),
        (fail, FAILED),
        (lose, FAILED),
        (expire, FAILED),
        (expire_at_claim, FAILED),
        (cancel, CANCELLED),
        (fail_by_operator, FAILED),
    ],
)
async def test_each_end_of_a_linked_task_is_settled_once(
    replica: Replica, end: Callable[[Replica, JobResponse, TaskResponse], Awaitable[None]], status: TaskStatus
) -> None:
    """Before the commit, with the row as it is then; that of another task is not."""
    ends: list[Any] = []

    async def settle(tx: Transaction, ended: Mapping[int, TaskEnd]) -> None:
        rows = await tx.execute(select(TASKS.c.id, TASKS.c.status).where(TASKS.c.seq.in_(list(ended))))
        ends.extend(
            (row.id, row.status, task_end.status) for row, task_end in zip(rows, ended.values(), strict=True)
        )

    replica.runtime.database.settle = settle
    for is_linked in (False, True):
        job = await replica.register()
        task = await replica.submit(job, expires_in_seconds=60)
        if is_linked:
            await replica.execute(update(TASKS).where(TASKS.c.id == task.id).values(linked=True))
        await end(replica, job, task)
        assert (await replica.get(task.id)).status is status
        assert ends == ([(task.id, status, status)] if is_linked else [])


@every_kind
async def test_an_end_that_cannot_be_settled_does_not_happen(replica: Replica) -> None:
    """A fault of what follows rolls the end back, and the worker may report it again."""
    job = await replica.register()
    task = await replica.submit(job)
    await replica.execute(update(TASKS).where(TASKS.c.id == task.id).values(linked=True))
    await replica.start(job.worker_id)
    working = replica.runtime.database.settle
    replica.runtime.database.settle = None
    with pytest.raises(RuntimeError, match="cannot settle"):
        await replica.report(task.id, COMPLETED)
    assert (await replica.get(task.id)).status is TaskStatus.RUNNING
    replica.runtime.database.settle = working
    assert (await replica.report(task.id, COMPLETED)).status in TERMINAL
