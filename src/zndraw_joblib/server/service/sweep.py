"""One cycle of the sweeper, in bounded transactions: who is silent, what is stuck, what was abandoned.

Source: seed 000. Each function does one batch and tells how much it did; call it until that is nothing.
"""

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from zndraw_joblib.server.service import views, workers
from zndraw_joblib.server.store import tasks as task_store
from zndraw_joblib.server.store import workers as store
from zndraw_joblib.server.store.database import Transaction
from zndraw_joblib.server.store.tasks import Record

INTERNAL_TIMEOUT = "Internal worker timeout"
WORKERS_PER_BATCH = 200
TASKS_PER_BATCH = 1000
# A heartbeat this far ahead of the clock is jitter; beyond it the clock was set back.
_FUTURE = timedelta(seconds=5)


async def survey(tx: Transaction, timeout: timedelta) -> tuple[int, int]:
    """Count all workers, and those that are silent for longer than `timeout`."""
    return await store.count(tx), await store.count(tx, await tx.now() - timeout)


async def stale_workers(tx: Transaction, timeout: timedelta) -> list[UUID]:
    """Return a batch of workers that are silent for longer than `timeout`."""
    return await store.lock_if_stale(tx, await tx.now() - timeout, WORKERS_PER_BATCH)


async def retire_stale(tx: Transaction, timeout: timedelta, only: UUID | None = None) -> int:
    """Retire a batch of workers that are silent for longer than `timeout`, or one of them.

    They are judged and locked in one statement: a beat that arrives first saves its worker.
    """
    await store.mend_future(tx, _FUTURE)
    stale = await store.lock_if_stale(tx, await tx.now() - timeout, WORKERS_PER_BATCH, only)
    await workers.retire(tx, stale)
    return len(stale)


async def fail_lost(tx: Transaction, timeout: timedelta) -> tuple[int, int]:
    """Do what `fail_stuck` and `fail_abandoned` do."""
    return await fail_stuck(tx, timeout), await fail_abandoned(tx)


async def fail_stuck(tx: Transaction, timeout: timedelta) -> int:
    """Fail tasks of internal jobs that are held for longer than `timeout`."""
    wanted = task_store.stuck_inside(await tx.now() - timeout)
    return _tell(tx, await task_store.fail_held(tx, wanted, INTERNAL_TIMEOUT, limit=TASKS_PER_BATCH))


async def fail_abandoned(tx: Transaction) -> int:
    """Fail held tasks of remote jobs whose worker is gone without a trace."""
    wanted = task_store.abandoned()
    return _tell(tx, await task_store.fail_held(tx, wanted, workers.DISCONNECTED, limit=TASKS_PER_BATCH))


def _tell(tx: Transaction, failed: Sequence[Record]) -> int:
    for task in failed:
        views.tell(tx, task)
    return len(failed)
