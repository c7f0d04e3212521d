"""Statements for the tokens of tasks: the holder of a task, and the tasks that belong to it."""

from collections.abc import Collection
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from pydantic_core import from_json

from zndraw_joblib.server.db.bulk import padded
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.statements import UUID_TYPE, statement
from zndraw_joblib.server.process.ports import Identity
from zndraw_joblib.wire.names import RESERVED_IDS
from zndraw_joblib.wire.statuses import TaskStatus


class HeldTask(NamedTuple):
    """Which attempt a task has, and of whom: the owner of its worker, or its submitter.

    `job_room` is the room of its job. The rights are those of the stored token of that user, lists as JSON;
    without one, `is_superuser` is None.
    """

    status: TaskStatus
    attempt: int
    room_id: str
    worker_owner_id: str | None
    created_by: str | None
    job_room: str
    is_superuser: bool | None
    roles: str | None
    rooms: str | None
    jobs: str | None
    expires_at: datetime | None

    def identity(self, user: str) -> Identity | None:
        """Return the identity of the stored token, also if it has expired; None without one."""
        if self.is_superuser is None:
            return None
        lists = [None if text is None else from_json(text) for text in (self.roles, self.rooms, self.jobs)]
        return Identity(user, self.is_superuser, *lists).limited()


_RESERVED_IDS = ", ".join(f"'{id_}'" for id_ in sorted(RESERVED_IDS))
_GET = statement(
    f"""
SELECT joblib_task.status, joblib_task.attempt, joblib_task.room_id, joblib_task.worker_owner_id,
    joblib_task.created_by, joblib_job.room_id AS job_room, joblib_token.is_superuser, joblib_token.roles,
    joblib_token.rooms, joblib_token.jobs, joblib_token.expires_at
FROM joblib_task JOIN joblib_job ON joblib_job.id = joblib_task.job_id
LEFT JOIN joblib_token ON joblib_token.name = CASE
    WHEN joblib_task.worker_owner_id IS NULL OR joblib_task.worker_owner_id IN ({_RESERVED_IDS})
    THEN joblib_task.created_by ELSE joblib_task.worker_owner_id END
WHERE joblib_task.id = :id
""",
    *HeldTask._fields,
)
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
_BELOW = statement(
    "SELECT id FROM joblib_task WHERE id = ANY (:all_id) AND (parent = :parent OR root = :parent)",
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


async def get(tx: Transaction, task_id: UUID) -> HeldTask | None:
    """Return the state of a task; None if there is none."""
    row = (await tx.execute(_GET, {"id": task_id})).first()
    return None if row is None else HeldTask(*row)


async def owner_of_request(tx: Transaction, provider_id: UUID, request_hash: str) -> str | None:
    """Return the owner of a provider that has an open request; None if there is no such request."""
    params = {"id": provider_id, "request_hash": request_hash}
    owner_id: str | None = (await tx.execute(_OWNER_OF_REQUEST, params)).scalar()
    return owner_id


async def related(tx: Transaction, task_id: UUID, ids: Collection[UUID]) -> set[UUID]:
    """Return those of these ids that are predecessors of a task, what it has submitted, or its groups."""
    rows = await tx.execute(_RELATED, {"parent": task_id, "all_id": padded(sorted(ids))})
    return set(rows.scalars())


async def below(tx: Transaction, task_id: UUID, ids: Collection[UUID]) -> set[UUID]:
    """Return those of these tasks whose parent, or the first of whose tree, is a task."""
    rows = await tx.execute(_BELOW, {"parent": task_id, "all_id": padded(sorted(ids))})
    return set(rows.scalars())
