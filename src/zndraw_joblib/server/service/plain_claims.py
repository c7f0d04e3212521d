"""Claim for workers of one queue without limits, as most workers are, with one statement on PostgreSQL.

If a claim is not plain, `claims.claim` takes the whole batch.
"""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from zndraw_joblib.contract.messages import EmptyReason
from zndraw_joblib.contract.names import GLOBAL, parse_job_name
from zndraw_joblib.contract.problems import ProblemException
from zndraw_joblib.contract.status import TaskStatus
from zndraw_joblib.server.service import claims, fairness, serializers
from zndraw_joblib.server.service.claims import Claim, ClaimResult
from zndraw_joblib.server.store.database import Transaction
from zndraw_joblib.server.store.tasks.plain_claimants import Claimant
from zndraw_joblib.server.store.tasks.plain_claims import Demand, Found, claim

# For how many batches at most the statement is skipped after it could not serve one.
_MAX_SKIPPED = 16
_ONLY_GLOBAL = frozenset({GLOBAL})


class PlainClaims:
    """Claims in batches, with one statement unless it could not serve the last batches."""

    def __init__(self) -> None:
        self._failed = self._left_out = 0

    async def claim(self, tx: Transaction, items: Sequence[Claim]) -> list[ClaimResult | ProblemException]:
        """Do what `claims.claim` does."""
        if not tx.is_sqlite and _may_be_plain(items):
            if self._left_out < min(self._failed, _MAX_SKIPPED):
                self._left_out += 1
            else:
                self._left_out = 0
                if (found := await claim_plain(tx, items)) is not None:
                    self._failed = 0
                    return found
                self._failed += 1
        return await claims.claim(tx, items)


async def claim_plain(tx: Transaction, items: Sequence[Claim]) -> list[ClaimResult | ProblemException] | None:
    """Give each worker the oldest tasks of its queue. Return None if a claim is not plain."""
    claimants: dict[UUID, Claimant] = {}
    for item in items:
        known = claimants.get(item.worker_id)
        is_marked = item.claim_id is not None or (known is not None and known.is_marked)
        serves_global = GLOBAL not in item.refused_rooms
        claimants[item.worker_id] = Claimant(
            *(item.worker_id, item.caller.id, serves_global, item.interval / 4, is_marked)
        )
    demands = [Demand(item.worker_id, item.caller.id, item.claim_id, item.start, item.most) for item in items]
    most_bytes = None if fairness.are_few(item.most for item in items) else fairness.MAX_PAYLOAD_BYTES
    found = await claim(tx, list(claimants.values()), demands, most_bytes)
    if found is None:
        return None
    now = await tx.now()
    return [_result(tx, item, got, now) for item, got in zip(items, found, strict=True)]


def _may_be_plain(items: Sequence[Claim]) -> bool:
    callers = {item.worker_id: (item.caller.id, item.refused_rooms) for item in items}
    ids = [(item.worker_id, item.claim_id) for item in items if item.claim_id is not None]
    return (
        not items[0].order.is_by_room
        and all(_ONLY_GLOBAL.issuperset(item.refused_rooms) for item in items)
        and sum(item.most for item in items) <= claims.MAX_CLAIMED
        and len(set(ids)) == len(ids)
        and all(callers[item.worker_id] == (item.caller.id, item.refused_rooms) for item in items)
    )


def _result(tx: Transaction, item: Claim, found: Found, now: datetime) -> ClaimResult | ProblemException:
    status = TaskStatus.RUNNING if item.start else TaskStatus.CLAIMED
    if found.tasks:
        started_at = now if item.start else None
        tasks = [
            serializers.claimed_response(task, status, item.worker_id, started_at) for task in found.tasks
        ]
        serializers.publish_changed(tx, tasks)
        return ClaimResult(tasks)
    reason = EmptyReason.PAUSED if found.is_paused else EmptyReason.EMPTY
    names = [parse_job_name(name) for name in found.job_names]
    return item.empty(names, reason, is_contended=found.is_contended)
