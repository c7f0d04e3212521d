"""Delete soft-deleted jobs, with their schemas, to which nothing refers."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import ColumnElement, and_, delete, select

from zndraw_joblib.contract.statistics import HOUR, MINUTE
from zndraw_joblib.server.store.bulk import padded
from zndraw_joblib.server.store.database import Transaction
from zndraw_joblib.server.store.operation_tables import Statistic
from zndraw_joblib.server.store.tables import Job, QueueBlock, RoomCount, RoomQueue, Task, WorkerJobLink

FIRST = UUID(int=0)
jobs = Job.__table__
statistics = Statistic.__table__
_REFERENCES = [table.__table__.c.job_id for table in (Task, WorkerJobLink, RoomQueue)]
# Rows without a meaning of their own once the job has no tasks and no statistics of minutes and hours.
_REST = [table.__table__.c.job_id for table in (RoomCount, QueueBlock, Statistic)]


def _is_unused() -> ColumnElement[bool]:
    has_statistics = select(statistics.c.start).where(
        statistics.c.resolution.in_([MINUTE, HOUR]), statistics.c.job_id == jobs.c.id
    )
    is_referred = [select(column).where(column == jobs.c.id).exists() for column in _REFERENCES]
    return and_(jobs.c.deleted, ~has_statistics.exists(), *[~found for found in is_referred])


async def prune(tx: Transaction, created_before: datetime, after: UUID, most: int) -> tuple[int, UUID]:
    """Delete those of the `most` soft-deleted jobs behind `after` that have no tasks and no statistics.

    Return how many, and the id to continue behind; `FIRST` at the end. A job that another transaction has
    locked stays: it may be registered again.
    """
    is_old = and_(jobs.c.deleted, jobs.c.created_at < created_before, jobs.c.id > after)
    following = select(jobs.c.id).where(is_old).order_by(jobs.c.id).limit(most)
    ids = list((await tx.execute(following)).scalars())
    if not ids:
        return 0, FIRST
    chosen = select(jobs.c.id).where(jobs.c.id.in_(padded(ids)), _is_unused()).order_by(jobs.c.id)
    unused = list((await tx.execute(chosen.with_for_update(skip_locked=True, of=jobs))).scalars())
    if unused:
        for column in _REST:
            await tx.execute(delete(column.table).where(column.in_(padded(unused))))
        await tx.execute(delete(jobs).where(jobs.c.id.in_(padded(unused))))
    return len(unused), ids[-1] if len(ids) == most else FIRST
