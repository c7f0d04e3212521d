"""When to call a host's function after the end of a task: leases, and pauses between attempts."""

import random
from collections.abc import Mapping
from datetime import timedelta
from typing import NamedTuple

from zndraw_joblib.server.store.database import Transaction
from zndraw_joblib.server.store.tasks import end_hooks as store
from zndraw_joblib.server.store.tasks.end_hooks import Lease

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 3600.0


class Due(NamedTuple):
    """Calls to make now, and in how many seconds the next one is due; None without one."""

    leases: list[Lease]
    seconds: float | None


async def take(tx: Transaction, names: Mapping[str, int], limit: int, lease_seconds: float) -> Due:
    """Lease due calls for `lease_seconds`; each function is first at times.

    They are at most `limit`, and of each function at most as many as `names` has.
    """
    now = await tx.now()
    shuffled = dict(random.sample(sorted(names.items()), len(names)))
    leases = await store.take(tx, shuffled, limit, now, now + timedelta(seconds=lease_seconds))
    at = await store.next_due(tx, names)
    return Due(leases, None if at is None else (at - now).total_seconds())


async def extend(tx: Transaction, lease: Lease, lease_seconds: float) -> None:
    """Extend a lease, unless another process took the call after it ran out."""
    await store.postpone(tx, lease, await tx.now() + timedelta(seconds=lease_seconds))


async def finish(tx: Transaction, lease: Lease) -> None:
    """Record that the function was called, or that no further call is made."""
    await store.finish(tx, lease)


async def retry(tx: Transaction, lease: Lease) -> float:
    """Repeat a call that failed: after a second, then twice as long each time, at most an hour."""
    pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(lease.attempt - 1, 60))
    pause *= 1 - 0.3 * random.random()  # noqa: S311 - jitter
    await store.postpone(tx, lease, await tx.now() + timedelta(seconds=pause))
    return pause
