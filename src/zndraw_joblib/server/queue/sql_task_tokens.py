"""What the tokens of tasks need: who holds a task, and which tasks belong to it."""

from collections.abc import Collection
from typing import NamedTuple
from uuid import UUID

from zndraw_joblib.server.db.bulk import padded
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.statements import UUID_TYPE, statement
from zndraw_joblib.wire.statuses import TaskStatus


class HeldTask(NamedTuple):
    """Which attempt a task has, and of whom."""

    status: TaskStatus
    attempt: int
    room_id: str
    worker_owner_id: str | None
    created_by: str | None


_GET = statement(f"SELECT {', '.join(HeldTask._fields)} FROM joblib_task WHERE id = :id", *HeldTask._fields)
_RELATED = statement(
    """
SELECT id FROM joblib_task WHERE id = ANY (:all_id) AND parent = :parent
UNION ALL
SELECT joblib_edge.predecessor AS id
FROM joblib_task JOIN joblib_edge ON joblib_edge.task_seq = joblib_task.seq
WHERE joblib_task.id = :parent AND joblib_edge.predecessor = ANY (:all_id)
""",
    "id",
    id=UUID_TYPE,
)


async def get(tx: Transaction, task_id: UUID) -> HeldTask | None:
    """Return the state of a task; None if there is none."""
    row = (await tx.execute(_GET, {"id": task_id})).first()
    return None if row is None else HeldTask(*row)


async def related(tx: Transaction, task_id: UUID, ids: Collection[UUID]) -> set[UUID]:
    """Return those of these ids that are predecessors of a task, or tasks that it has submitted."""
    rows = await tx.execute(_RELATED, {"parent": task_id, "all_id": padded(sorted(ids))})
    return set(rows.scalars())
