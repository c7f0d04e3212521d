"""The tables reject inconsistent rows."""

from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest
from replica import Replica
from sqlalchemy import CheckConstraint, delete, update
from sqlalchemy.exc import IntegrityError

from zndraw_joblib.server.db.tables import (
    Job,
    Task,
    TaskResultShare,
    TaskResultTotal,
    Worker,
    WorkerJobLink,
    metadata,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
GOOD_TASK = {
    "room_id": "lab",
    "status": "pending",
    "created_by": "submitter",
    "payload": {},
    "created_at": NOW,
    "attempt": 0,
}
BAD_TASKS: dict[str, list[dict[str, Any]]] = {
    "status_known": [{"status": "lost"}, {"status": ""}, {"status": "PENDING"}],
    "completed_when_terminal": [
        {"completed_at": NOW},
        {"status": "running", "claimed_at": NOW, "started_at": NOW, "completed_at": NOW},
        {"status": "completed", "started_at": NOW},
        {"status": "failed"},
        {"status": "cancelled"},
    ],
    "pending_is_free": [{"worker_id": uuid4()}, {"started_at": NOW}],
    "held_was_claimed": [{"status": "claimed"}, {"status": "running", "started_at": NOW}],
    "running_was_started": [
        {"status": "running", "claimed_at": NOW},
        {"status": "completed", "completed_at": NOW},
    ],
    "attempt_counts": [{"attempt": -1}],
}


async def job_id(replica: Replica) -> Any:
    """Register a job and return its id."""
    return (await replica.register()).id


async def test_an_inconsistent_task_is_rejected(replica: Replica, subtests: pytest.Subtests) -> None:
    """Each CHECK of the task table rejects its invalid rows by name, at INSERT and at UPDATE."""
    for constraint, faults in BAD_TASKS.items():
        with subtests.test(constraint=constraint):
            good = {**GOOD_TASK, "id": uuid4(), "job_id": await job_id(replica)}
            await replica.add(Task.__table__, [good | {"status": "failed", "completed_at": NOW}])
            row = Task.__table__.c.id == good["id"]
            for fault in faults:
                with pytest.raises(IntegrityError, match=f"ck_joblib_task_{constraint}"):
                    await replica.add(Task.__table__, [good | {"id": uuid4()} | fault])
                undone = {**GOOD_TASK, "completed_at": None} | fault
                with pytest.raises(IntegrityError, match=f"ck_joblib_task_{constraint}"):
                    await replica.execute(update(Task.__table__).where(row).values(undone))


async def test_a_count_of_pending_tasks_is_never_negative(replica: Replica) -> None:
    """A wrong count aborts its transaction."""
    job = await job_id(replica)
    for counted in ("pending", "scheduled"):
        change = update(Job.__table__).where(Job.__table__.c.id == job).values({counted: -1})
        with pytest.raises(IntegrityError, match=f"ck_joblib_job_{counted}_counts"):
            await replica.execute(change)


async def test_the_sizes_of_results_are_never_negative(replica: Replica) -> None:
    """A wrong size aborts its transaction."""
    with pytest.raises(IntegrityError, match="ck_joblib_task_result_total_size_counts"):
        await replica.add(TaskResultTotal.__table__, [{"id": 2, "size": -1}])
    with pytest.raises(IntegrityError, match="ck_joblib_task_result_share_size_counts"):
        await replica.add(TaskResultShare.__table__, [{"user_id": "ada", "size": -1}])


def test_every_check_is_tested() -> None:
    """A new CHECK needs invalid rows in this file."""
    checks = {
        str(constraint.name)
        for table in metadata.tables.values()
        for constraint in table.constraints
        if isinstance(constraint, CheckConstraint) and constraint.name
    }
    assert checks == {
        "ck_joblib_job_pending_counts",
        "ck_joblib_job_scheduled_counts",
        "ck_joblib_task_result_share_size_counts",
        "ck_joblib_task_result_total_size_counts",
        *[f"ck_joblib_task_{name}" for name in BAD_TASKS],
    }


async def test_job_names_are_unique(replica: Replica) -> None:
    """Two jobs cannot have the same room, category and name, even if one is soft-deleted."""
    job = await replica.register()
    named = {"room_id": job.room_id, "category": job.category, "name": job.name}
    rest = {"id": uuid4(), "schema": {}, "created_at": NOW, "pending": 0}
    for deleted in (False, True):
        with pytest.raises(IntegrityError):
            await replica.add(Job.__table__, [{**named, **rest, "deleted": deleted}])


async def test_task_ids_are_unique(replica: Replica) -> None:
    """Two tasks cannot have the same id."""
    task = {
        **GOOD_TASK,
        "id": uuid4(),
        "job_id": await job_id(replica),
        "status": "failed",
        "completed_at": NOW,
    }
    with pytest.raises(IntegrityError):
        await replica.add(Task.__table__, [task, task])


async def test_references_are_checked(replica: Replica) -> None:
    """Tasks and links refer to existing rows, and a referenced row cannot be deleted."""
    job = await replica.register()
    finished = {**GOOD_TASK, "status": "failed", "completed_at": NOW}
    for table, row in (
        (Task, {**finished, "id": uuid4(), "job_id": uuid4()}),
        (WorkerJobLink, {"worker_id": uuid4(), "job_id": job.id}),
        (WorkerJobLink, {"worker_id": await replica.worker(), "job_id": uuid4()}),
    ):
        with pytest.raises(IntegrityError):
            await replica.add(table.__table__, [row])
    for table, used in ((Worker, job.worker_id), (Job, job.id)):
        with pytest.raises(IntegrityError):
            await replica.execute(delete(table.__table__).where(table.__table__.c.id == used))


async def test_a_task_outlives_its_worker(replica: Replica) -> None:
    """A finished task keeps the id of a deleted worker."""
    gone = uuid4()
    row = {**GOOD_TASK, "id": uuid4(), "job_id": await job_id(replica), "worker_id": gone}
    await replica.add(Task.__table__, [row | {"status": "failed", "completed_at": NOW}])
    [task] = await replica.rows(Task.__table__)
    assert task.worker_id == gone
