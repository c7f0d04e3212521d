"""Providers, and which workers are registered for them."""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from sqlalchemy import (
    ColumnElement,
    Executable,
    Select,
    and_,
    bindparam,
    case,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from zndraw_joblib.server.db.bulk import among, padded
from zndraw_joblib.server.db.database import Transaction, dialect, fetch_page
from zndraw_joblib.server.db.tables import ProviderRecord, ProviderRequestRecord, ProviderWorkerLink
from zndraw_joblib.server.process.ports import Page
from zndraw_joblib.wire.names import GLOBAL, INTERNAL, JobName

providers = ProviderRecord.__table__
links = ProviderWorkerLink.__table__
requests = ProviderRequestRecord.__table__


class ProviderRow(NamedTuple):
    """A provider's row. `connected_until`: until then its worker counts as connected.

    `worker_id` is None for an internal provider.
    """

    id: UUID
    room_id: str
    category: str
    short_name: str
    schema: dict[str, Any]
    content_type: str
    owner_id: str
    worker_id: UUID | None
    registration: UUID
    created_at: datetime
    connected_until: datetime

    @property
    def name(self) -> JobName:
        """The provider's full name."""
        return JobName(self.room_id, self.category, self.short_name)

    def shown(self) -> dict[str, Any]:
        """Return the fields of every answer about the provider."""
        columns = {name: getattr(self, name) for name in ("id", "content_type", "worker_id", "created_at")}
        return {**columns, "full_name": str(self.name), "schema_": self.schema, **self.name._asdict()}


class RegistrationRecord(NamedTuple):
    """The registration of a worker for a provider."""

    worker_id: UUID
    schema: dict[str, Any]
    content_type: str


NAME = [providers.c.room_id, providers.c.category, providers.c.name]
COLUMNS = [
    providers.c.id,
    *NAME,
    providers.c.schema,
    providers.c.content_type,
    providers.c.owner_id,
    providers.c.worker_id,
    providers.c.registration,
    providers.c.created_at,
    providers.c.connected_until,
]
_SELECT = select(*COLUMNS)
# Statements of the hot paths are built once. The first one of a transaction selects the time too.
_BY_ID = select(*COLUMNS, func.now().label("now")).where(providers.c.id == bindparam("id"))
_LOCK = (
    select(*COLUMNS, func.now().label("now"))
    .where(among(providers.c.id, bindparam("ids")))
    .order_by(providers.c.id)
    .with_for_update(key_share=True)
)
_LOCK_SHARED = _LOCK.with_for_update(key_share=True, read=True)
_OF_WORKER = select(providers.c.id).where(
    providers.c.worker_id == bindparam("worker"), providers.c.connected_until < bindparam("until")
)


def _extend(query: Select[Any]) -> Executable:
    ordered = query.order_by(providers.c.id).with_for_update(key_share=True).cte("chosen")
    extended = update(providers).where(providers.c.id.in_(select(ordered.c.id)))
    return extended.values(connected_until=bindparam("until"))


_EXTEND = _extend(_OF_WORKER)
_EXTEND_SOME = _extend(_OF_WORKER.where(among(providers.c.id, bindparam("ids"))))
_EXTEND_ELSEWHERE = _extend(_OF_WORKER.where(~among(providers.c.room_id, bindparam("refused"))))
# A row that a host has written by itself has no registration.
_LINKED = (
    select(links.c.provider_id)
    .where(among(links.c.worker_id, bindparam("ids")))
    .union_all(select(providers.c.id).where(among(providers.c.worker_id, bindparam("ids"))))
)
_UNLINK = delete(links).where(among(links.c.worker_id, bindparam("ids")))


def visible_from(room_id: str) -> ColumnElement[bool]:
    """Match the providers that a room lists: its own, and those of ``@global`` and ``@internal``."""
    return providers.c.room_id.in_(sorted({room_id, GLOBAL, INTERNAL}))


def is_named(name: JobName) -> ColumnElement[bool]:
    """Match the provider of this name."""
    return and_(*[providers.c[part] == value for part, value in name._asdict().items()])


async def add_or_lock(tx: Transaction, name: JobName, values: dict[str, Any]) -> tuple[ProviderRow, bool]:
    """Insert the provider of this name unless it exists. Return it, locked, and whether it is new."""
    row = {"id": uuid4(), "created_at": await tx.now(), **name._asdict(), **values}
    statement = dialect(tx).insert(providers).values(**row).on_conflict_do_nothing()
    while True:
        is_new = (await tx.execute(statement.returning(providers.c.id))).first() is not None
        record = (await tx.execute(_SELECT.where(is_named(name)).with_for_update())).first()
        # Unlike a job, a provider may be deleted between the two statements.
        if record is not None:
            return ProviderRow(*record), is_new


async def by_name(tx: Transaction, name: JobName) -> ProviderRow | None:
    """Return the provider of this name."""
    row = (await tx.execute(_SELECT.where(is_named(name)))).first()
    return None if row is None else ProviderRow(*row)


async def by_id(tx: Transaction, provider_id: UUID) -> ProviderRow | None:
    """Return a provider."""
    rows = (await tx.execute(_BY_ID, {"id": provider_id})).all()
    tx.record_now(rows)
    return ProviderRow(*rows[0][:-1]) if rows else None


async def lock(tx: Transaction, ids: Sequence[UUID], *, shared: bool = False) -> list[ProviderRow]:
    """Lock and return those of these providers that exist; a `shared` lock only prevents their deletion."""
    rows = (await tx.execute(_LOCK_SHARED if shared else _LOCK, {"ids": padded(ids)})).all()
    tx.record_now(rows)
    return [ProviderRow(*row[:-1]) for row in rows]


async def update_row(tx: Transaction, provider_id: UUID, **values: Any) -> None:
    """Write columns of a provider."""
    await tx.execute(update(providers).where(providers.c.id == provider_id).values(**values))


async def remove(tx: Transaction, provider_id: UUID) -> None:
    """Delete a provider, which the caller has locked, with its registrations and its open requests."""
    # A transaction that adds a request holds a shared lock. Waiting for it leaves no request behind.
    await tx.execute(select(providers.c.id).where(providers.c.id == provider_id).with_for_update())
    for table in (requests, links):
        await tx.execute(delete(table).where(table.c.provider_id == provider_id))
    await tx.execute(delete(providers).where(providers.c.id == provider_id))


async def page(
    tx: Transaction, room_id: str, part: Page, hidden: tuple[str, str] | None = None
) -> tuple[list[ProviderRow], int]:
    """Return one page of the providers that a room lists, newest first, and the count of all.

    Those of the room and category `hidden` are left out.
    """
    condition = visible_from(room_id)
    if hidden is not None:
        room, category = hidden
        condition = and_(condition, or_(providers.c.room_id != room, providers.c.category != category))
    rows, total = await fetch_page(tx, providers, _SELECT, condition, part)
    return [ProviderRow(*row) for row in rows], total


async def link(tx: Transaction, provider_id: UUID, registration: RegistrationRecord) -> None:
    """Store a registration as the newest one of a provider."""
    await unlink(tx, provider_id, registration.worker_id)
    await tx.execute(insert(links), [{"provider_id": provider_id, **registration._asdict()}])


async def unlink(tx: Transaction, provider_id: UUID, worker_id: UUID | None = None) -> bool:
    """Delete the registration of a worker, or all of them. Return whether there was one."""
    conditions = [links.c.provider_id == provider_id]
    if worker_id is not None:
        conditions.append(links.c.worker_id == worker_id)
    return bool((await tx.execute(delete(links).where(*conditions).returning(links.c.n))).all())


async def lock_and_unlink(tx: Transaction, worker_ids: Sequence[UUID]) -> list[ProviderRow]:
    """Delete all registrations of these workers. Return their providers, locked."""
    params = {"ids": padded(worker_ids)}
    ids = sorted(set((await tx.execute(_LINKED, params)).scalars()))
    unlinked = await lock(tx, ids) if ids else []
    if ids:
        await tx.execute(_UNLINK, params)
    return unlinked


async def is_linked(tx: Transaction, provider_id: UUID, worker_id: UUID) -> bool:
    """Return whether a worker is registered for a provider."""
    conditions = links.c.provider_id == provider_id, links.c.worker_id == worker_id
    return (await tx.execute(select(links.c.n).where(*conditions))).first() is not None


async def newest_registration(tx: Transaction, provider_id: UUID) -> RegistrationRecord | None:
    """Return the newest registration of a provider."""
    columns = [links.c[name] for name in RegistrationRecord._fields]
    statement = select(*columns).where(links.c.provider_id == provider_id).order_by(links.c.n.desc())
    row = (await tx.execute(statement.limit(1))).first()
    return None if row is None else RegistrationRecord(*row)


async def extend_connection(
    tx: Transaction,
    worker_id: UUID,
    until: datetime,
    only: Sequence[UUID] = (),
    refused_rooms: Collection[str] = (),
) -> None:
    """Extend until when a worker counts as connected.

    For all its providers, or only for some of them, or only for those in none of the refused rooms.
    """
    params = {"worker": worker_id, "until": until}
    if only:
        await tx.execute(_EXTEND_SOME, {**params, "ids": padded(only)})
    elif refused_rooms:
        await tx.execute(_EXTEND_ELSEWHERE, {**params, "refused": padded([*refused_rooms])})
    else:
        await tx.execute(_EXTEND, params)


async def end_connection(
    tx: Transaction, worker_id: UUID, at: datetime, only: Sequence[UUID] = ()
) -> list[JobName]:
    """Let a worker count as connected only until `at`, for all its providers or for some of them.

    Return the names of the providers that changed.
    """
    conditions = [providers.c.worker_id == worker_id, providers.c.connected_until > at]
    if only:
        conditions.append(providers.c.id.in_(padded(only)))
    locked = (
        select(providers.c.id).where(*conditions).order_by(providers.c.id).with_for_update(key_share=True)
    )
    statement = update(providers).where(providers.c.id.in_(select(locked.cte("locked").c.id)))
    statement = statement.values(connected_until=at).returning(*NAME)
    return [JobName(*row) for row in await tx.execute(statement)]


async def current_workers(tx: Transaction, ids: Sequence[UUID]) -> dict[UUID, UUID]:
    """Return the worker that answers the requests of each provider."""
    statement = select(providers.c.id, providers.c.worker_id).where(providers.c.id.in_(padded(ids)))
    return {provider_id: worker_id for provider_id, worker_id in await tx.execute(statement)}


# Requests to providers that have no result yet.


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
_SELECT_REQUESTS = select(
    requests.c.n, requests.c.provider_id, requests.c.request_hash, requests.c.params, *NAME
).join_from(requests, providers, requests.c.provider_id == providers.c.id)
_BY_CLAIM = _SELECT_REQUESTS.where(
    requests.c.claimed_by == bindparam("worker"), requests.c.claim_id == bindparam("claim")
)
_LOCK_OLDEST = (
    _SELECT_REQUESTS.where(
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
    params = {"provider": provider_id, "now": await tx.now(), "user": user_id}
    total, own = (await tx.execute(_COUNT, params)).one()
    return total, own


async def unclaimed(tx: Transaction, provider_id: UUID, limit: int) -> list[RequestRecord]:
    """Return the open requests of a provider that no worker has claimed, oldest first."""
    conditions = [requests.c.provider_id == provider_id, requests.c.expires_at > await tx.now()]
    statement = (
        _SELECT_REQUESTS.where(*conditions, requests.c.claimed_at.is_(None))
        .order_by(requests.c.n)
        .limit(limit)
    )
    return [RequestRecord(*row) for row in await tx.execute(statement)]


async def reassign(tx: Transaction, provider_id: UUID, registration: UUID) -> None:
    """Assign the open requests of a provider to a new registration, unclaimed."""
    values = {"registration": registration, "claimed_by": None, "claimed_at": None, "claim_id": None}
    await tx.execute(update(requests).where(requests.c.provider_id == provider_id).values(**values))


async def remove_request(tx: Transaction, provider_id: UUID, request_hash: str) -> None:
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
    params = {"worker": worker_id, "now": now}
    statement: Any = _LOCK_OLDEST
    limits: dict[str, Any] = {"lost_before": now - lease}
    if refused_rooms:
        statement, limits["refused"] = _LOCK_OLDEST_ELSEWHERE, padded([*refused_rooms])
    row = (await tx.execute(statement, {**params, **limits})).first()
    if row is None:
        return None
    record = RequestRecord(*row)
    await tx.execute(_CLAIM, {**params, "number": record.n, "claim": claim_id})
    return record


async def workers_with_unclaimed(tx: Transaction, worker_ids: Sequence[UUID]) -> list[UUID]:
    """Return which of these workers have providers with unclaimed open requests."""
    params = {"ids": padded(worker_ids), "now": await tx.now()}
    return list((await tx.execute(_WORKERS, params)).scalars())


async def prune(tx: Transaction, before: datetime, limit: int) -> int:
    """Delete up to `limit` requests that expired before a time. Return how many."""
    old = select(requests.c.n).where(requests.c.expires_at < before).order_by(requests.c.expires_at)
    ids = (await tx.execute(old.limit(limit).with_for_update(skip_locked=True))).scalars().all()
    if ids:
        await tx.execute(delete(requests).where(requests.c.n.in_(padded(ids))))
    return len(ids)
