"""Find tasks and workers by the first characters of their ids."""

import re
from collections.abc import Sequence
from uuid import UUID

from zndraw_joblib.contract.problems import InvalidRequest
from zndraw_joblib.contract.searches import PrefixMatches
from zndraw_joblib.server.ports import Identity
from zndraw_joblib.server.store import ids as store
from zndraw_joblib.server.store.database import Transaction

_MOST = 10
_DIGITS = 32
_PREFIX = re.compile(r"[0-9a-f]{4,32}")


def parse(prefix: str) -> tuple[UUID, UUID]:
    """Return the first and the last id with a prefix. Raises `InvalidRequest`."""
    digits = prefix.replace("-", "").lower()
    if len(prefix) > _DIGITS + 4 or not _PREFIX.fullmatch(digits):
        raise InvalidRequest(
            f"query.prefix: {prefix[:40]!r} is no part of an id; send its first 4 to 36 characters"
        )
    return UUID(digits.ljust(_DIGITS, "0")), UUID(digits.ljust(_DIGITS, "f"))


async def find(
    tx: Transaction, caller: Identity, span: tuple[UUID, UUID], rooms: Sequence[str]
) -> PrefixMatches:
    """Return tasks and workers with ids in a range: tasks of these rooms or of all, a user's own workers."""
    owners = [] if caller.is_superuser else [caller.id]
    return PrefixMatches(
        tasks=await store.tasks_with(tx, *span, rooms, _MOST),
        workers=await store.workers_with(tx, *span, owners, _MOST),
    )
