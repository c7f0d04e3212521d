"""What the tokens of tasks need: who holds a task, and which tasks belong to it."""

from collections.abc import Collection
from typing import NamedTuple
from uuid import UUID

from pydantic_core import from_json

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
UNION ALL
SELECT id FROM joblib_group WHERE id = ANY (:all_id) AND task_id = :parent
""",
    "id",
    id=UUID_TYPE,
)
_OWNER_OF_REQUEST = statement(
    """
SELECT joblib_provider.owner_id
FROM joblib_provider JOIN joblib_provider_call ON joblib_provider_call.provider_id = joblib_provider.id
WHERE joblib_provider.id = :id AND joblib_provider_call.request_hash = :request_hash
""",
    "owner_id",
)
_JOBS_OF = statement("SELECT jobs FROM joblib_token WHERE name = :name", "jobs")


async def get(tx: Transaction, task_id: UUID) -> HeldTask | None:
    """Return the state of a task; None if there is none."""
    row = (await tx.execute(_GET, {"id": task_id})).first()
    return None if row is None else HeldTask(*row)


async def jobs_of(
    tx: Transaction, user_id: str, without_token: frozenset[str] | None
) -> frozenset[str] | None:
    """Return the patterns of jobs of a user's token; None if it has none."""
    row = (await tx.execute(_JOBS_OF, {"name": user_id})).first()
    if row is None:
        return without_token
    return None if row[0] is None else frozenset(from_json(row[0]))


async def owner_of_request(tx: Transaction, provider_id: UUID, request_hash: str) -> str | None:
    """Return the owner of a provider that has an open request; None if there is no such request."""
    params = {"id": provider_id, "request_hash": request_hash}
    owner_id: str | None = (await tx.execute(_OWNER_OF_REQUEST, params)).scalar()
    return owner_id


async def related(tx: Transaction, task_id: UUID, ids: Collection[UUID]) -> set[UUID]:
    """Return those of these ids that are predecessors of a task, what it has submitted, or its groups."""
    rows = await tx.execute(_RELATED, {"parent": task_id, "all_id": padded(sorted(ids))})
    return set(rows.scalars())
