"""Find the queue positions of pending tasks, counted from 1, without ranking whole queues."""

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import BigInteger, ColumnElement, Integer, and_, bindparam, cast, func, select, tuple_

from zndraw_joblib.server.store.bulk import among, padded
from zndraw_joblib.server.store.database import Transaction
from zndraw_joblib.server.store.tables import QueueBlock, Task
from zndraw_joblib.server.store.tasks.counts import BLOCK_BITS
from zndraw_joblib.server.store.tasks.records import QUEUED, TaskRecord

tasks = Task.__table__
blocks = QueueBlock.__table__


async def positions(tx: Transaction, records: Sequence[TaskRecord]) -> dict[UUID, int]:
    """Return the positions of those of these tasks that are in a queue, by id.

    The kept counts of the blocks before a task's block are added to the task's rank in its own block.
    """
    together: dict[tuple[UUID, int, int], list[TaskRecord]] = {}
    for record in records:
        if record.is_queued:
            together.setdefault((record.job_id, record.lane, record.seq >> BLOCK_BITS), []).append(record)
    found: dict[UUID, int] = {}
    for (job_id, lane, block), queue in together.items():
        seqs = sorted(record.seq for record in queue)
        given = {"job": job_id, "lane": lane, "block": block, "first": seqs[0], "last": seqs[-1]}
        rows = await tx.execute(
            _POSITIONS, {**given, "block_first": block << BLOCK_BITS, "seqs": padded(seqs)}
        )
        by_seq = {seq: position for seq, position in rows}
        # A task that left the queue after it was read has no position.
        found |= {record.id: by_seq[record.seq] for record in queue if record.seq in by_seq}
    return found


def _seq(name: str) -> ColumnElement[int]:
    return bindparam(name, type_=BigInteger())


# Equality conditions: only with these SQLite finds the first task by the index.
_IN_LANE = and_(tasks.c.job_id == bindparam("job"), tasks.c.lane == bindparam("lane"), QUEUED)
_IN_BLOCKS_BEFORE = (
    select(func.coalesce(func.sum(blocks.c.queued), 0))
    .where(blocks.c.job_id == bindparam("job"))
    .where(tuple_(blocks.c.lane, blocks.c.block) < tuple_(bindparam("lane", type_=Integer()), _seq("block")))
)
_IN_BLOCK_BEFORE = (
    select(func.count())
    .select_from(tasks)
    .where(_IN_LANE, tasks.c.seq >= _seq("block_first"), tasks.c.seq < _seq("first"))
)
_RANKED = (
    select(tasks.c.seq, func.row_number().over(order_by=tasks.c.seq).label("rank"))
    .where(_IN_LANE, tasks.c.seq >= _seq("first"), tasks.c.seq <= _seq("last"))
    .subquery()
)
_START = _IN_BLOCKS_BEFORE.scalar_subquery() + _IN_BLOCK_BEFORE.scalar_subquery()
_POSITIONS = select(_RANKED.c.seq, cast(_START + _RANKED.c.rank, BigInteger)).where(
    among(_RANKED.c.seq, bindparam("seqs"))
)
