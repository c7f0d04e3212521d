"""The rooms of what a worker serves and holds."""

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import bindparam, literal_column, select, union

from zndraw_joblib.server.store.bulk import among, padded
from zndraw_joblib.server.store.database import Transaction
from zndraw_joblib.server.store.tables import Job, ProviderRecord, Task, Worker, WorkerJobLink
from zndraw_joblib.server.store.tasks.records import IS_HELD

workers = Worker.__table__
links = WorkerJobLink.__table__
jobs = Job.__table__
tasks = Task.__table__
providers = ProviderRecord.__table__


_WORKER = bindparam("worker", type_=workers.c.id.type)
_IS_OWN = (
    select(workers.c.id).where(workers.c.id == _WORKER, workers.c.owner_id == bindparam("owner")).exists()
)
_ROOMS = union(
    select(literal_column("'jobs'").label("kind"), jobs.c.room_id)
    .join_from(links, jobs, links.c.job_id == jobs.c.id)
    .where(links.c.worker_id == _WORKER, _IS_OWN),
    select(literal_column("'held'"), jobs.c.room_id)
    .join_from(tasks, jobs, tasks.c.job_id == jobs.c.id)
    .where(IS_HELD, tasks.c.worker_id == _WORKER, _IS_OWN),
    select(literal_column("'providers'"), providers.c.room_id).where(
        providers.c.worker_id == _WORKER, _IS_OWN
    ),
)
_JOB_ROOMS = (
    select(tasks.c.id, jobs.c.room_id)
    .join_from(tasks, jobs, tasks.c.job_id == jobs.c.id)
    .where(among(tasks.c.id, bindparam("ids")), tasks.c.worker_owner_id == bindparam("owner"))
)


async def served(tx: Transaction, worker_id: UUID, owner_id: str) -> list[tuple[str, str]]:
    """Return the rooms of a worker: those of its `jobs`, of the jobs of `held` tasks, and of its `providers`.

    Each has its kind before it. There are none if the worker belongs to another user.
    """
    rows = await tx.execute(_ROOMS, {"worker": worker_id, "owner": owner_id})
    return [(kind, room_id) for kind, room_id in rows]


async def job_rooms(tx: Transaction, task_ids: Sequence[UUID], owner_id: str) -> dict[UUID, str]:
    """Return the rooms of the jobs of those of these tasks that a worker of this user has or had last."""
    given = {"ids": padded(task_ids), "owner": owner_id}
    return {task_id: room_id for task_id, room_id in await tx.execute(_JOB_ROOMS, given)}
