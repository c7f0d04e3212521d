"""Rows that tests insert directly into the database: many tasks at once, in any status, of any time."""

from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from replica import SUBMITTER, Replica
from sqlalchemy import delete, func, insert, select

from zndraw_joblib.server.db.tables import RoomQueue, Task
from zndraw_joblib.server.process.settings import JobLibSettings
from zndraw_joblib.server.queue import rules_task_retention
from zndraw_joblib.server.queue.rules_task_retention import PrunedTasks, TaskPruning
from zndraw_joblib.wire.statuses import HELD, TERMINAL, TaskStatus

tasks, queues = Task.__table__, RoomQueue.__table__

LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)
_STARTED = {TaskStatus.RUNNING, TaskStatus.COMPLETED}


def task(job_id: UUID, status: TaskStatus = TaskStatus.PENDING, **fields: Any) -> dict[str, Any]:
    """Return a valid row of a task; `fields` override the defaults."""
    row = {
        "id": uuid4(),
        "job_id": job_id,
        "room_id": "lab",
        "status": status.value,
        "created_by": SUBMITTER.id,
        "payload": {},
        "created_at": LONG_AGO,
        "claimed_at": LONG_AGO if status in HELD | _STARTED else None,
        "started_at": LONG_AGO if status in _STARTED else None,
        "completed_at": LONG_AGO if status in TERMINAL else None,
        "worker_id": None,
        "worker_owner_id": None,
        "attempt": 1 if status in HELD | _STARTED else 0,
    }
    return row | fields


async def add_tasks(replica: Replica, rows: Iterable[dict[str, Any]]) -> list[UUID]:
    """Insert tasks in order, and correct the kept counts."""
    listed = list(rows)
    await replica.add(Task.__table__, listed)
    for job_id in {row["job_id"] for row in listed}:
        queued = select(tasks.c.job_id, tasks.c.room_id, func.min(tasks.c.lane), func.min(tasks.c.seq))
        queued = queued.where(tasks.c.status == "pending", tasks.c.job_id == job_id)
        queued = queued.group_by(tasks.c.job_id, tasks.c.room_id)
        await replica.execute(delete(queues).where(queues.c.job_id == job_id))
        await replica.execute(insert(queues).from_select(list(queues.c.keys()), queued))
    return [row["id"] for row in listed]


def seconds(count: float) -> timedelta:
    """Return a timedelta."""
    return timedelta(seconds=count)


async def prune_ended(write: Callable[..., Awaitable[Any]], days: float = 1e-9) -> list[int]:
    """Delete the tasks that ended so long ago; return how many each batch deleted."""
    settings, state = JobLibSettings(keep_finished_days=days), TaskPruning()
    deleted, may_be_more = list[int](), True
    while may_be_more:
        pruned: PrunedTasks = await write(rules_task_retention.prune, settings, state)
        deleted.append(pruned.deleted)
        may_be_more, state = pruned.may_be_more, pruned.state
    return deleted
