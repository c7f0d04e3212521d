"""Delete soft-deleted jobs, with their schemas, to which nothing refers."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from sqlalchemy import ColumnElement, and_, delete, or_, select, update

from zndraw_joblib.contract.statistics import HOUR, MINUTE
from zndraw_joblib.server.store.bulk import padded
from zndraw_joblib.server.store.database import Transaction
from zndraw_joblib.server.store.operation_tables import Statistic
from zndraw_joblib.server.store.tables import Job, QueueBlock, RoomCount, RoomQueue, Task, WorkerJobLink

FIRST = UUID(int=0)
# Of so many rooms the counts are deleted at once.
_MAX_ROOMS = 500
jobs = Job.__table__
rooms = RoomCount.__table__
blocks = QueueBlock.__table__
statistics = Statistic.__table__
_REFERENCES = [table.__table__.c.job_id for table in (Task, WorkerJobLink, RoomQueue)]


def _is_unused() -> ColumnElement[bool]:
    has_statistics = select(statistics.c.start).where(
        statistics.c.resolution.in_([MINUTE, HOUR]), statistics.c.job_id == jobs.c.id
    )
    # These are deleted in batches of their own.
    has_empty_blocks = select(blocks.c.block).where(blocks.c.job_id == jobs.c.id, blocks.c.queued == 0)
    found = [select(column).where(column == jobs.c.id) for column in _REFERENCES]
    return and_(jobs.c.deleted, *[~each.exists() for each in (*found, has_statistics, has_empty_blocks)])


async def prune(tx: Transaction, deleted_before: datetime, after: UUID, most: int) -> tuple[int, UUID]:
    """Delete those of the `most` soft-deleted jobs behind `after` that have no tasks and no statistics.

    Return how many rows were deleted, and the id to continue behind; `FIRST` at the end. A job that another
    transaction has locked stays: it may be registered again. So does one whose counts are too many.
    """
    is_old = or_(jobs.c.deleted_at.is_(None), jobs.c.deleted_at < deleted_before)
    following = select(jobs.c.id).where(jobs.c.deleted, is_old, jobs.c.id > after).order_by(jobs.c.id)
    ids = list((await tx.execute(following.limit(most))).scalars())
    if not ids:
        return 0, FIRST
    chosen = select(jobs.c.id, jobs.c.deleted_at).where(jobs.c.id.in_(padded(ids)), _is_unused())
    locked = chosen.order_by(jobs.c.id).with_for_update(skip_locked=True, of=jobs)
    rows = (await tx.execute(locked)).all()
    # A server of an earlier release deleted these.
    if undated := [row.id for row in rows if row.deleted_at is None]:
        dated = update(jobs).where(jobs.c.id.in_(padded(undated)))
        await tx.execute(dated.values(deleted_at=await tx.now()))
    at_end = ids[-1] if len(ids) == most else FIRST
    unused = [row.id for row in rows if row.deleted_at is not None]
    if not unused:
        return 0, at_end
    deleted, rest = await _delete_room_counts(tx, unused)
    if uncounted := [job_id for job_id in unused if rest is None or job_id < rest]:
        deleted += await _delete(tx, uncounted)
    return deleted, at_end if rest is None else UUID(int=rest.int - 1)


async def _delete_room_counts(tx: Transaction, job_ids: Sequence[UUID]) -> tuple[int, UUID | None]:
    """Delete counts of a limited number of rooms. Return how many, and the first job that may have more.

    All counts of a job in a room go at once: only their sum is right, and the job may be restored.
    """
    chosen = select(rooms.c.job_id, rooms.c.room_id).where(rooms.c.job_id.in_(padded(job_ids))).distinct()
    chosen = chosen.order_by(rooms.c.job_id, rooms.c.room_id).limit(_MAX_ROOMS)
    found = (await tx.execute(chosen)).all()
    if not found:
        return 0, None
    counted = sorted({row.job_id for row in found})
    room_ids = sorted({row.room_id for row in found})
    own = and_(rooms.c.room_id.in_(padded(room_ids)), rooms.c.job_id.in_(padded(counted)))
    deleted = (await tx.execute(delete(rooms).where(own).returning(rooms.c.part))).all()
    return len(deleted), counted[-1] if len(found) == _MAX_ROOMS else None


async def _delete(tx: Transaction, job_ids: Sequence[UUID]) -> int:
    """Delete jobs without tasks, and what has no meaning of its own then. Return the number of rows."""
    own = padded(job_ids)
    of_jobs = and_(statistics.c.resolution.in_([0, MINUTE, HOUR]), statistics.c.job_id.in_(own))
    deleted = (await tx.execute(delete(statistics).where(of_jobs).returning(statistics.c.start))).all()
    emptied = (
        await tx.execute(delete(blocks).where(blocks.c.job_id.in_(own)).returning(blocks.c.lane))
    ).all()
    await tx.execute(delete(jobs).where(jobs.c.id.in_(own)))
    return len(deleted) + len(emptied) + len(job_ids)
