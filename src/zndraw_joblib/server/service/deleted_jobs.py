"""Delete soft-deleted jobs to which nothing refers."""

from datetime import timedelta
from uuid import UUID

from zndraw_joblib.server.service.sweep import Pruned
from zndraw_joblib.server.store import deleted_jobs as store
from zndraw_joblib.server.store.database import Transaction

FIRST = store.FIRST
# A job whose worker restarts keeps its id, also without tasks.
_KEEP = timedelta(days=1)
_BATCH = 200


async def prune(tx: Transaction, after: UUID) -> tuple[Pruned, UUID]:
    """Delete jobs of a batch behind `after` that were soft-deleted a day ago, without tasks and statistics.

    Return where to continue.
    """
    deleted, following = await store.prune(tx, await tx.now() - _KEEP, after, _BATCH)
    return Pruned(deleted, deleted > 0 and following != FIRST), following
