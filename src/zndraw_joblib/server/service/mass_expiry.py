"""The mass-expiry guard: whose silent workers are kept for one cycle, because the server may be at fault.

A fault of the server concerns the workers of most users. Workers of one user hold nobody else's recovery up.
"""

from collections.abc import Collection
from datetime import timedelta
from typing import NamedTuple

from zndraw_joblib.server.store import workers as store
from zndraw_joblib.server.store.database import Transaction

# So many silent workers of a user may be a fault.
MIN_SILENT = 2


class HeldBack(NamedTuple):
    """Whose silent workers are kept: those of all users, or those of `users`."""

    of_all: bool
    users: frozenset[str]


async def find(tx: Transaction, timeout: timedelta, spared: Collection[str]) -> HeldBack:
    """Return whose workers to keep when most workers are silent. Those of users in `spared` were kept before.

    They are those of all users if the workers of most users are mostly silent, and otherwise those of users
    with mostly silent workers.
    """
    owners = await store.count_by_owner(tx, await tx.now() - timeout)
    silent = [one for one in owners if 2 * one.silent > one.total and one.owner_id not in spared]
    of_all = 2 * len(silent) > len(owners)
    return HeldBack(of_all, frozenset(one.owner_id for one in silent if one.silent >= MIN_SILENT))
