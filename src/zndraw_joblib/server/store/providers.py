"""Providers, which workers are registered for them, and the reads that wait for an answer."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import (
    ColumnElement,
    Executable,
    Row,
    and_,
    bindparam,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from zndraw_joblib.contract.names import GLOBAL, JobName
from zndraw_joblib.server.ports import Page
from zndraw_joblib.server.store.bulk import among, padded
from zndraw_joblib.server.store.database import Transaction, dialect
from zndraw_joblib.server.store.tables import Provider, ProviderRequest, ProviderWorkerLink

providers = Provider.__table__
links = ProviderWorkerLink.__table__
calls = ProviderRequest.__table__

Found = Row[*tuple[Any, ...]]

# Statements of reads are built once, and those that are first in a transaction tell the time too.
_WITH_CALL = (
    select(
        providers,
        calls.c.registration.label("asked_of"),
        calls.c.expires_at.label("asked_until"),
        func.now().label("now"),
    )
    .outerjoin_from(
        providers,
        calls,
        and_(calls.c.provider_id == providers.c.id, calls.c.request_hash == bindparam("hash")),
    )
    .where(*[providers.c[end_connection] == bindparam(end_connection) for end_connection in JobName._fields])
)
_BY_ID = select(providers, func.now().label("now")).where(providers.c.id == bindparam("id"))
_LOCK = (
    select(providers, func.now().label("now"))
    .where(among(providers.c.id, bindparam("ids")))
    .order_by(providers.c.id)
    .with_for_update(key_share=True)
)
_LOCK_SHARED = _LOCK.with_for_update(key_share=True, read=True)
_HEAR = (
    update(providers)
    .where(providers.c.worker_id == bindparam("worker"), providers.c.heard_until < bindparam("until"))
    .values(heard_until=bindparam("until"))
)
_HEAR_SOME = _HEAR.where(among(providers.c.id, bindparam("ids")))
_COUNT_WAITING = (
    select(func.count())
    .select_from(calls)
    .where(calls.c.provider_id == bindparam("provider"), calls.c.expires_at > bindparam("now"))
)
_ANSWERED = delete(calls).where(
    calls.c.provider_id == bindparam("provider"), calls.c.request_hash == bindparam("hash")
)
_CALLS_OF = select(calls, *[providers.c[end_connection] for end_connection in JobName._fields]).join_from(
    calls, providers, calls.c.provider_id == providers.c.id
)
_CLAIMED = _CALLS_OF.where(calls.c.claimed_by == bindparam("worker"), calls.c.claim_id == bindparam("claim"))
_OLDEST = (
    _CALLS_OF.where(
        providers.c.worker_id == bindparam("worker"),
        calls.c.expires_at > bindparam("now"),
        or_(calls.c.claimed_at.is_(None), calls.c.claimed_at < bindparam("lost_before")),
    )
    .order_by(calls.c.n)
    .limit(1)
    .with_for_update(of=calls, skip_locked=True)
)
_CLAIM = (
    update(calls)
    .where(calls.c.n == bindparam("number"))
    .values(claimed_by=bindparam("worker"), claimed_at=bindparam("now"), claim_id=bindparam("claim"))
)
_AWAITED_FROM = (
    select(providers.c.worker_id)
    .join_from(calls, providers, calls.c.provider_id == providers.c.id)
    .where(
        among(providers.c.worker_id, bindparam("ids")),
        calls.c.claimed_at.is_(None),
        calls.c.expires_at > bindparam("now"),
    )
    .distinct()
)
# Of the sweep, which asks this for each batch of workers.
_UNLINK = delete(links).where(among(links.c.worker_id, bindparam("ids"))).returning(links.c.provider_id)


@cache
def _ask(is_sqlite: bool) -> Executable:
    asked: Any = (sqlite if is_sqlite else postgresql).insert(calls)
    anew = {name: asked.excluded[name] for name in ("registration", "sent_at", "expires_at")}
    is_over = or_(
        calls.c.expires_at <= asked.excluded.sent_at, calls.c.registration != asked.excluded.registration
    )
    statement: Executable = asked.on_conflict_do_update(
        index_elements=["provider_id", "request_hash"], set_=anew, where=is_over
    ).returning(calls.c.n)
    return statement


def name_of(row: Found) -> JobName:
    """Return the full name of a provider."""
    return JobName(row.room_id, row.category, row.name)


def visible_from(room_id: str) -> ColumnElement[bool]:
    """Match the providers that a room sees: its own, and those of ``@global``."""
    return providers.c.room_id.in_(sorted({room_id, GLOBAL}))


def _is_named(name: JobName) -> ColumnElement[bool]:
    return and_(*[providers.c[part] == value for part, value in name._asdict().items()])


async def add_or_lock(tx: Transaction, name: JobName, values: dict[str, Any]) -> tuple[Found, bool]:
    """Return the provider of this name, locked, made if there is none. Tell whether it is new."""
    row = {"id": uuid4(), "created_at": await tx.now(), **name._asdict(), **values}
    statement = dialect(tx).insert(providers).values(**row).on_conflict_do_nothing()
    while True:
        is_new = (await tx.execute(statement.returning(providers.c.id))).first() is not None
        found = (await tx.execute(select(providers).where(_is_named(name)).with_for_update())).first()
        # Unlike a job it may have been removed in between.
        if found is not None:
            return found, is_new


async def by_name(tx: Transaction, name: JobName) -> Found | None:
    """Return the provider of this name."""
    return (await tx.execute(select(providers).where(_is_named(name)))).first()


async def by_name_with_request(tx: Transaction, name: JobName, request_hash: str) -> Found | None:
    """Return the provider of this name; `asked_of` is the registration asked for this read, if one is."""
    found = (await tx.execute(_WITH_CALL, {**name._asdict(), "hash": request_hash})).all()
    tx.record_now(found)
    return found[0] if found else None


async def by_id(tx: Transaction, provider_id: UUID) -> Found | None:
    """Return a provider."""
    found = (await tx.execute(_BY_ID, {"id": provider_id})).all()
    tx.record_now(found)
    return found[0] if found else None


async def lock(tx: Transaction, ids: Sequence[UUID], *, shared: bool = False) -> list[Found]:
    """Return those of these providers that exist, locked; `shared` keeps them from being removed alone."""
    found = list(await tx.execute(_LOCK_SHARED if shared else _LOCK, {"ids": padded(ids)}))
    tx.record_now(found)
    return found


async def update_row(tx: Transaction, provider_id: UUID, **values: Any) -> None:
    """Write what is known of a provider."""
    await tx.execute(update(providers).where(providers.c.id == provider_id).values(**values))


async def remove(tx: Transaction, provider_id: UUID) -> None:
    """Remove a provider, which the caller has locked, with its registrations and the reads that wait."""
    # Who is about to ask it holds a shared lock, and is waited for: else a read would be left.
    await tx.execute(select(providers.c.id).where(providers.c.id == provider_id).with_for_update())
    for table in (calls, links):
        await tx.execute(delete(table).where(table.c.provider_id == provider_id))
    await tx.execute(delete(providers).where(providers.c.id == provider_id))


async def page(tx: Transaction, room_id: str, part: Page) -> tuple[list[Found], int]:
    """Return one page of the providers that a room sees, newest first, and the count of all."""
    wanted = visible_from(room_id)
    order = providers.c.created_at.desc(), providers.c.id.desc()
    statement = select(providers).where(wanted).order_by(*order).limit(part.limit).offset(part.offset)
    total = await tx.execute(select(func.count()).select_from(providers).where(wanted))
    return list(await tx.execute(statement)), total.scalar_one()


async def link(tx: Transaction, provider_id: UUID, worker_id: UUID, schema: Any, content_type: str) -> None:
    """Note a registration as the newest one of a provider."""
    await unlink(tx, provider_id, worker_id)
    row = {
        "provider_id": provider_id,
        "worker_id": worker_id,
        "schema": schema,
        "content_type": content_type,
    }
    await tx.execute(insert(links), [row])


async def unlink(tx: Transaction, provider_id: UUID, worker_id: UUID | None = None) -> bool:
    """Forget the registration of a worker, or all of them. Tell whether there was any."""
    wanted = [links.c.provider_id == provider_id]
    if worker_id is not None:
        wanted.append(links.c.worker_id == worker_id)
    return bool((await tx.execute(delete(links).where(*wanted).returning(links.c.n))).all())


async def unlink_workers(tx: Transaction, worker_ids: Sequence[UUID]) -> list[UUID]:
    """Forget all registrations of some workers. Return the providers that they were for."""
    return sorted(set((await tx.execute(_UNLINK, {"ids": padded(worker_ids)})).scalars()))


async def is_linked(tx: Transaction, provider_id: UUID, worker_id: UUID) -> bool:
    """Tell whether a worker is registered for a provider."""
    wanted = links.c.provider_id == provider_id, links.c.worker_id == worker_id
    return (await tx.execute(select(links.c.n).where(*wanted))).first() is not None


async def newest_link(tx: Transaction, provider_id: UUID) -> Found | None:
    """Return the registration that is the newest one of a provider now."""
    statement = select(links).where(links.c.provider_id == provider_id).order_by(links.c.n.desc()).limit(1)
    return (await tx.execute(statement)).first()


async def extend_connection(
    tx: Transaction, worker_id: UUID, until: datetime, only: Sequence[UUID] = ()
) -> None:
    """Note until when a worker may be taken for connected: for all its providers, or for some of them."""
    given = {"worker": worker_id, "until": until}
    await tx.execute(*((_HEAR_SOME, {**given, "ids": padded(only)}) if only else (_HEAR, given)))


async def end_connection(
    tx: Transaction, worker_id: UUID, at: datetime, only: Sequence[UUID] = ()
) -> list[JobName]:
    """Note that a worker is connected no more after a time: for all its providers, or for some of them.

    Return which.
    """
    wanted = [providers.c.worker_id == worker_id, providers.c.heard_until > at]
    if only:
        wanted.append(providers.c.id.in_(padded(only)))
    named = [providers.c[part] for part in JobName._fields]
    parted = await tx.execute(update(providers).where(*wanted).values(heard_until=at).returning(*named))
    return [JobName(*row) for row in parted]


async def current_workers(tx: Transaction, ids: Sequence[UUID]) -> dict[UUID, UUID]:
    """Return the worker that answers the reads of each provider."""
    statement = select(providers.c.id, providers.c.worker_id).where(providers.c.id.in_(padded(ids)))
    return {row.id: row.worker_id for row in await tx.execute(statement)}


async def add_request(
    tx: Transaction, provider: Found, request_hash: str, params: str, until: datetime
) -> bool:
    """Let a read wait for its answer. Tell whether it did not wait already."""
    row = {
        "provider_id": provider.id,
        "request_hash": request_hash,
        "params": params,
        "registration": provider.registration,
        "sent_at": await tx.now(),
        "expires_at": until,
    }
    return (await tx.execute(_ask(tx.is_sqlite), row)).first() is not None


async def count_requests(tx: Transaction, provider_id: UUID) -> int:
    """Count the reads of a provider that somebody waits for."""
    found = await tx.execute(_COUNT_WAITING, {"provider": provider_id, "now": await tx.now()})
    count: int = found.scalar_one()
    return count


async def unclaimed_requests(tx: Transaction, provider_id: UUID, limit: int) -> list[Found]:
    """Return the reads of a provider that somebody waits for and nobody has claimed, oldest first."""
    wanted = [calls.c.provider_id == provider_id, calls.c.expires_at > await tx.now()]
    statement = select(calls).where(*wanted, calls.c.claimed_at.is_(None)).order_by(calls.c.n).limit(limit)
    return list(await tx.execute(statement))


async def reassign_requests(tx: Transaction, provider_id: UUID, registration: UUID) -> None:
    """Ask a new registration for what the one before was asked."""
    values = {"registration": registration, "claimed_by": None, "claimed_at": None, "claim_id": None}
    await tx.execute(update(calls).where(calls.c.provider_id == provider_id).values(**values))


async def remove_request(tx: Transaction, provider_id: UUID, request_hash: str) -> None:
    """Forget a read that has its answer."""
    await tx.execute(_ANSWERED, {"provider": provider_id, "hash": request_hash})


async def request_of_claim(tx: Transaction, worker_id: UUID, claim_id: UUID) -> Found | None:
    """Return the read that a worker has got by a claim of its own."""
    return (await tx.execute(_CLAIMED, {"worker": worker_id, "claim": claim_id})).first()


async def claim_request(
    tx: Transaction, worker_id: UUID, claim_id: UUID | None, lease: timedelta
) -> Found | None:
    """Give the oldest read that waits for a provider of this worker to it, for `lease`; None without one."""
    now = await tx.now()
    given = {"worker": worker_id, "now": now}
    found = (await tx.execute(_OLDEST, {**given, "lost_before": now - lease})).first()
    if found is not None:
        await tx.execute(_CLAIM, {**given, "number": found.n, "claim": claim_id})
    return found


async def workers_with_requests(tx: Transaction, worker_ids: Sequence[UUID]) -> list[UUID]:
    """Return those of these workers for whose providers reads wait that nobody has claimed."""
    given = {"ids": padded(worker_ids), "now": await tx.now()}
    return list((await tx.execute(_AWAITED_FROM, given)).scalars())


async def prune_requests(tx: Transaction, before: datetime, limit: int) -> int:
    """Forget up to `limit` reads that nobody has waited for since a time. Tell how many."""
    old = select(calls.c.n).where(calls.c.expires_at < before).order_by(calls.c.expires_at).limit(limit)
    ids = (await tx.execute(old.with_for_update(skip_locked=True))).scalars().all()
    if ids:
        await tx.execute(delete(calls).where(calls.c.n.in_(padded(ids))))
    return len(ids)
