"""Slots of workers, and what the tasks that they hold take of them."""

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from pydantic_core import from_json

from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.statements import INTEGER, UUID_TYPE, statement
from zndraw_joblib.server.process.ports import Identity
from zndraw_joblib.server.queue.sql_task_rows import TASK_IS_HELD

# A worker that does not say its slots has one.
SLOTS = "coalesce(joblib_worker.slots, 1)"


class HeldTasks(NamedTuple):
    """Tasks of a queue that a worker holds by one claim; `cost` and `policy` are those of the queue."""

    claim_id: UUID | None
    number: int
    cost: int | None
    policy: str | None


class SlotsOf(NamedTuple):
    """A worker of a queue, its slots, and how many of them the tasks that it holds take.

    The rest is of the token of its owner, if the server has it: `roles` and `rooms` are lists as JSON.
    """

    worker_id: UUID
    slots: int
    taken: int
    owner_id: str
    is_superuser: bool | None
    roles: str | None
    rooms: str | None

    def may_serve(self, room_id: str) -> bool:
        """Return whether its owner may still serve jobs of a room; a host's guards are not asked."""
        if self.is_superuser is None:
            return True
        roles, rooms = [None if text is None else from_json(text) for text in (self.roles, self.rooms)]
        return Identity(self.owner_id, self.is_superuser, roles, rooms).limited().serves(room_id)

    @property
    def free(self) -> int:
        """How many slots are free."""
        return self.slots - self.taken


_HELD = statement(
    f"""
SELECT held.claim_id, held.number, joblib_job.cost, joblib_job.policy
FROM (
    SELECT job_id, claim_id, count(*) AS number FROM joblib_task
    WHERE {TASK_IS_HELD} AND worker_id = :worker_id
    GROUP BY job_id, claim_id
) AS held
JOIN joblib_job ON joblib_job.id = held.job_id
""",
    *HeldTasks._fields,
    claim_id=UUID_TYPE,
)
# Each worker is looked up by itself, so that the tasks of others are not read.
_OF_WORKERS = statement(
    f"""
SELECT queue_worker.id, queue_worker.slots, CAST(coalesce((
    SELECT sum(coalesce(joblib_job.cost, 1))
    FROM joblib_task JOIN joblib_job ON joblib_job.id = joblib_task.job_id
    WHERE {TASK_IS_HELD} AND joblib_task.worker_id = queue_worker.id
), 0) AS integer) AS taken,
    queue_worker.owner_id, joblib_token.is_superuser, joblib_token.roles, joblib_token.rooms
FROM (
    SELECT joblib_worker.id, joblib_worker.owner_id, {SLOTS} AS slots
    FROM joblib_worker_job JOIN joblib_worker ON joblib_worker.id = joblib_worker_job.worker_id
    WHERE joblib_worker_job.job_id = :job_id AND NOT joblib_worker.draining
    ORDER BY joblib_worker.id LIMIT :limit
) AS queue_worker LEFT JOIN joblib_token ON joblib_token.name = queue_worker.owner_id
""",
    *SlotsOf._fields,
    slots=INTEGER,
    taken=INTEGER,
)


async def held(tx: Transaction, worker_id: UUID) -> list[HeldTasks]:
    """Return the tasks that a worker holds, by queue and claim."""
    return [HeldTasks(*row) for row in await tx.execute(_HELD, {"worker_id": worker_id})]


async def of_workers(tx: Transaction, queue_id: UUID, limit: int = 2**31 - 1) -> list[SlotsOf]:
    """Return the slots of the first `limit` workers of a queue, by id, that are not draining."""
    rows = await tx.execute(_OF_WORKERS, {"job_id": queue_id, "limit": limit})
    return [SlotsOf(*row) for row in rows]


def most_free(rows: Sequence[SlotsOf]) -> list[SlotsOf]:
    """Return the workers in the order of their free slots, those with most first."""
    return sorted(rows, key=lambda row: (-row.free, row.worker_id))
