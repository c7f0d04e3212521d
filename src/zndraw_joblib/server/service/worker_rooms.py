"""Which rooms a worker serves, and in which room the job of a task is."""

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from zndraw_joblib.server.ports import Identity
from zndraw_joblib.server.store import worker_rooms as store
from zndraw_joblib.server.store.database import Transaction


class ServedRooms(NamedTuple):
    """The rooms of a worker's jobs, of the jobs of the tasks that it holds, and of its providers."""

    jobs: frozenset[str]
    held: frozenset[str]
    providers: frozenset[str]


async def served(tx: Transaction, caller: Identity, worker_id: UUID) -> ServedRooms:
    """Return the rooms of the jobs, held tasks and providers of a worker of the caller; of others none."""
    found = await store.served(tx, worker_id, caller.id)
    return ServedRooms(
        *(frozenset(room for kind, room in found if kind == wanted) for wanted in ServedRooms._fields)
    )


async def of_own_tasks(tx: Transaction, caller: Identity, task_ids: Sequence[UUID]) -> dict[UUID, str]:
    """Return the rooms of the jobs of those of these tasks that a worker of the caller has or had last."""
    return await store.job_rooms(tx, task_ids, caller.id)
