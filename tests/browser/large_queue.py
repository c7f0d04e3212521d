"""A large queue: 15,000 tasks, 200 jobs, 500 workers, names of 128 characters, texts that look like HTML."""

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

from seeds import task
from sqlalchemy import func, insert, select

from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.engine import open_database
from zndraw_joblib.server.db.tables import AttemptDetailRecord, Job, RoomQueue, Task, Worker, WorkerJobLink
from zndraw_joblib.server.queue import sql_recount
from zndraw_joblib.wire.statuses import TaskStatus

TASKS, JOBS, WORKERS = 15_000, 200, 500
LONG = ("a_very_long_name_" * 8)[:128]
HOSTILE = "<img src=x onerror=alert(1)>"
ERRORS = ["ValueError: The cell has no volume", "RuntimeError: CUDA out of memory", "TimeoutError: no answer"]
_STRUCTURES = ["CO-on-Pt-11", "Fe-bcc", "water-64", HOSTILE]
_ROOMS = ["lab", "teaching", "archive", LONG]
_tasks, _queues = Task.__table__, RoomQueue.__table__


def job_name(number: int) -> str:
    """Return the own name of a job."""
    names = ["relax_structure", "make_thumbnail", "crash_often", "predict", LONG]
    return names[number] if number < len(names) else f"job_{number:03}"


async def fill(database_url: str) -> None:
    """Insert the rows. The job `crash_often` fails half the time, and no worker serves `predict`."""
    database, now, chance = open_database(database_url), datetime.now(UTC), random.Random(1)
    first = {"room_id": "@global", "category": "jobs", "schema": {}, "created_at": now - timedelta(days=3)}
    jobs = [{**first, "id": UUID(int=1 + n), "name": job_name(n)} for n in range(JOBS)]
    workers = [_worker(n, now) for n in range(WORKERS)]
    served = [{"worker_id": worker["id"], "job_id": jobs[n % JOBS]["id"]} for n, worker in enumerate(workers)]
    links = [link for link in served if link["job_id"] != jobs[3]["id"]]
    rows = [_task(n, now, chance) for n in range(TASKS)]
    tables: list[tuple[Any, list[dict[str, Any]]]] = [
        (Job, jobs), (Worker, workers), (WorkerJobLink, links), (Task, rows)
    ]  # fmt: skip
    for table, listed in tables:
        await database.write(partial(_insert, table=table.__table__, rows=listed))
    await database.write(_finish)
    await sql_recount.repair(database)
    await database.close()


async def _insert(tx: Transaction, table: Any, rows: Sequence[dict[str, Any]]) -> None:
    for start in range(0, len(rows), 500):
        await tx.execute(insert(table), rows[start : start + 500])


def _worker(n: int, now: datetime) -> dict[str, Any]:
    name = LONG if n == 1 else f"gpu-{n:03}"
    times = {"created_at": now - timedelta(hours=1), "last_heartbeat": now + timedelta(hours=5)}
    return {
        "id": UUID(int=1000 + n),
        "owner_id": "ann",
        "name": name,
        "host": f"node-{n // 8}",
        "slots": 4,
        **times,
    }


def _task(n: int, now: datetime, chance: random.Random) -> dict[str, Any]:
    """Return a task: the last 60 are pending or running, the others have ended."""
    at, job = now - timedelta(seconds=1.2 * (TASKS - n)), n % 5 if n % 3 else n % JOBS
    status, has_ended = TaskStatus.COMPLETED, n < TASKS - 60
    if not has_ended:
        status = TaskStatus.RUNNING if n % 3 == 0 else TaskStatus.PENDING
    elif chance.random() < (0.5 if job == 2 else 0.03):
        status = TaskStatus.FAILED
    is_pending, error = status is TaskStatus.PENDING, None
    if status is TaskStatus.FAILED:
        error = ERRORS[n % len(ERRORS)]
    payload = {"structure": _STRUCTURES[n % 4], "steps": n, **({"note": "needle"} if n % 5000 == 40 else {})}
    return task(
        UUID(int=1 + job),
        status,
        room_id=_ROOMS[n // 3 % 4],
        payload=payload,
        created_at=at,
        claimed_at=None if is_pending else at,
        started_at=None if is_pending else at,
        completed_at=at + timedelta(seconds=1) if has_ended else None,
        worker_id=None if is_pending else UUID(int=1000 + n % WORKERS),
        worker_owner_id=None if is_pending else "ann",
        attempt=0 if is_pending else 1,
        run_at=now + timedelta(hours=2) if is_pending and n % 7 == 0 else None,
        error=error,
        error_code=error and "error",
    )


async def _finish(tx: Transaction) -> None:
    """Add the progress of running tasks and the queues of rooms."""
    running = select(_tasks.c.seq).where(_tasks.c.status == "running")
    progress = {"current": 42, "total": 100, "message": "Relaxing the cell"}
    rows = [
        {"task_seq": seq, "attempt": 1, "progress": progress} for seq in (await tx.execute(running)).scalars()
    ]
    await tx.execute(insert(AttemptDetailRecord.__table__), rows)
    columns = (_tasks.c.job_id, _tasks.c.room_id)
    queued = select(*columns, func.min(_tasks.c.lane), func.min(_tasks.c.seq)).group_by(*columns)
    queued = queued.where(_tasks.c.status == "pending", _tasks.c.run_at.is_(None))
    await tx.execute(insert(_queues).from_select(list(_queues.c.keys()), queued))
