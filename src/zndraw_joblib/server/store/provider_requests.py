"""Requests to providers that have no result yet."""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Executable, and_, bindparam, case, delete, func, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite

from zndraw_joblib.contract.names import JobName
from zndraw_joblib.server.store.bulk import among, padded
from zndraw_joblib.server.store.database import Transaction
from zndraw_joblib.server.store.providers import COLUMNS, NAME, ProviderRow, providers, requests


class RequestRecord(NamedTuple):
    """An open request, with the name of its provider."""

    n: int
    provider_id: UUID
    request_hash: str
    params: str
    room_id: str
    category: str
    short_name: str

    @property
    def provider_name(self) -> JobName:
        """The full name of the provider."""
        return JobName(self.room_id, self.category, self.short_name)


class OpenRequest(NamedTuple):
    """For which registration a request was made, and until when its result is wanted."""

    registration: UUID
    expires_at: datetime


_NAMED = [providers.c[part] == bindparam(part) for part in JobName._fields]
_PROVIDER_AND_REQUEST = (
    select(
        *COLUMNS,
        requests.c.registration.label("request_registration"),
        requests.c.expires_at.label("request_expires_at"),
        func.now().label("now"),
    )
    .outerjoin_from(
        providers,
        requests,
        and_(requests.c.provider_id == providers.c.id, requests.c.request_hash == bindparam("hash")),
    )
    .where(*_NAMED)
)
_COUNT = (
    select(func.count(), func.count(case((requests.c.user_id == bindparam("user"), 1))))
    .select_from(requests)
    .where(requests.c.provider_id == bindparam("provider"), requests.c.expires_at > bindparam("now"))
)
_REMOVE = delete(requests).where(
    requests.c.provider_id == bindparam("provider"), requests.c.request_hash == bindparam("hash")
)
_SELECT = select(
    requests.c.n, requests.c.provider_id, requests.c.request_hash, requests.c.params, *NAME
).join_from(requests, providers, requests.c.provider_id == providers.c.id)
_BY_CLAIM = _SELECT.where(
    requests.c.claimed_by == bindparam("worker"), requests.c.claim_id == bindparam("claim")
)
_LOCK_OLDEST = (
    _SELECT.where(
        providers.c.worker_id == bindparam("worker"),
        requests.c.expires_at > bindparam("now"),
        or_(requests.c.claimed_at.is_(None), requests.c.claimed_at < bindparam("lost_before")),
    )
    .order_by(requests.c.n)
    .limit(1)
    .with_for_update(of=requests, skip_locked=True)
)
_LOCK_OLDEST_ELSEWHERE = _LOCK_OLDEST.where(~among(providers.c.room_id, bindparam("refused")))
_CLAIM = (
    update(requests)
    .where(requests.c.n == bindparam("number"))
    .values(claimed_by=bindparam("worker"), claimed_at=bindparam("now"), claim_id=bindparam("claim"))
)
_WORKERS = (
    select(providers.c.worker_id)
    .join_from(requests, providers, requests.c.provider_id == providers.c.id)
    .where(
        among(providers.c.worker_id, bindparam("ids")),
        requests.c.claimed_at.is_(None),
        requests.c.expires_at > bindparam("now"),
    )
    .distinct()
)


@cache
def _add(is_sqlite: bool) -> Executable:
    added: Any = (sqlite if is_sqlite else postgresql).insert(requests)
    renewed = {name: added.excluded[name] for name in ("registration", "sent_at", "expires_at", "user_id")}
    is_over = or_(
        requests.c.expires_at <= added.excluded.sent_at,
        requests.c.registration != added.excluded.registration,
    )
    statement: Executable = added.on_conflict_do_update(
        index_elements=["provider_id", "request_hash"], set_=renewed, where=is_over
    ).returning(requests.c.n)
    return statement


async def provider_and_request(
    tx: Transaction, name: JobName, request_hash: str
) -> tuple[ProviderRow, OpenRequest | None] | None:
    """Return the provider of this name, and its open request of this hash if there is one."""
    rows = (await tx.execute(_PROVIDER_AND_REQUEST, {**name._asdict(), "hash": request_hash})).all()
    tx.record_now(rows)
    if not rows:
        return None
    *columns, registration, expires_at, _ = rows[0]
    request = None if registration is None else OpenRequest(registration, expires_at)
    return ProviderRow(*columns), request


async def add(
    tx: Transaction,
    provider: ProviderRow,
    request_hash: str,
    params: str,
    until: datetime,
    user_id: str | None = None,
) -> bool:
    """Open a request of a user. Return whether it was not open already."""
    row = {
        "provider_id": provider.id,
        "request_hash": request_hash,
        "params": params,
        "registration": provider.registration,
        "sent_at": await tx.now(),
        "expires_at": until,
        "user_id": user_id,
    }
    return (await tx.execute(_add(tx.is_sqlite), row)).first() is not None


async def count(tx: Transaction, provider_id: UUID, user_id: str | None) -> tuple[int, int]:
    """Count the open requests of a provider, and those of them that a user has opened."""
    given = {"provider": provider_id, "now": await tx.now(), "user": user_id}
    total, own = (await tx.execute(_COUNT, given)).one()
    return total, own


async def unclaimed(tx: Transaction, provider_id: UUID, limit: int) -> list[RequestRecord]:
    """Return the open requests of a provider that no worker has claimed, oldest first."""
    wanted = [requests.c.provider_id == provider_id, requests.c.expires_at > await tx.now()]
    statement = _SELECT.where(*wanted, requests.c.claimed_at.is_(None)).order_by(requests.c.n).limit(limit)
    return [RequestRecord(*row) for row in await tx.execute(statement)]


async def reassign(tx: Transaction, provider_id: UUID, registration: UUID) -> None:
    """Assign the open requests of a provider to a new registration, unclaimed."""
    values = {"registration": registration, "claimed_by": None, "claimed_at": None, "claim_id": None}
    await tx.execute(update(requests).where(requests.c.provider_id == provider_id).values(**values))


async def remove(tx: Transaction, provider_id: UUID, request_hash: str) -> None:
    """Delete a request."""
    await tx.execute(_REMOVE, {"provider": provider_id, "hash": request_hash})


async def by_claim(tx: Transaction, worker_id: UUID, claim_id: UUID) -> RequestRecord | None:
    """Return the request that a worker has claimed with this claim id."""
    row = (await tx.execute(_BY_CLAIM, {"worker": worker_id, "claim": claim_id})).first()
    return None if row is None else RequestRecord(*row)


async def claim(
    tx: Transaction,
    worker_id: UUID,
    claim_id: UUID | None,
    lease: timedelta,
    refused_rooms: Collection[str] = (),
) -> RequestRecord | None:
    """Claim the oldest open request to a provider of this worker, in none of the refused rooms.

    A request that was claimed longer than `lease` ago may be claimed again.
    """
    now = await tx.now()
    given = {"worker": worker_id, "now": now}
    statement: Any = _LOCK_OLDEST
    limits: dict[str, Any] = {"lost_before": now - lease}
    if refused_rooms:
        statement, limits["refused"] = _LOCK_OLDEST_ELSEWHERE, padded([*refused_rooms])
    row = (await tx.execute(statement, {**given, **limits})).first()
    if row is None:
        return None
    found = RequestRecord(*row)
    await tx.execute(_CLAIM, {**given, "number": found.n, "claim": claim_id})
    return found


async def workers_with_unclaimed(tx: Transaction, worker_ids: Sequence[UUID]) -> list[UUID]:
    """Return those of these workers whose providers have unclaimed open requests."""
    given = {"ids": padded(worker_ids), "now": await tx.now()}
    return list((await tx.execute(_WORKERS, given)).scalars())


async def prune(tx: Transaction, before: datetime, limit: int) -> int:
    """Delete up to `limit` requests that expired before a time. Return how many."""
    old = select(requests.c.n).where(requests.c.expires_at < before).order_by(requests.c.expires_at)
    ids = (await tx.execute(old.limit(limit).with_for_update(skip_locked=True))).scalars().all()
    if ids:
        await tx.execute(delete(requests).where(requests.c.n.in_(padded(ids))))
    return len(ids)
