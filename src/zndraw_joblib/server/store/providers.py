"""Providers, which workers are registered for them, and the reads that wait for an answer."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import ColumnElement, Row, and_, bindparam, delete, func, insert, or_, select, update

from zndraw_joblib.contract.names import GLOBAL, JobName
from zndraw_joblib.server.ports import Page
from zndraw_joblib.server.store.database import Transaction, dialect
from zndraw_joblib.server.store.lists import among, padded
from zndraw_joblib.server.store.tables import ProviderCall, ProviderLink, ProviderRecord

providers = ProviderRecord.__table__
links = ProviderLink.__table__
calls = ProviderCall.__table__

Found = Row[*tuple[Any, ...]]

# Of the sweep, which asks this for each batch of workers.
_UNLINK = delete(links).where(among(links.c.worker_id, bindparam("ids"))).returning(links.c.provider_id)


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


async def with_call(tx: Transaction, name: JobName, request_hash: str) -> Found | None:
    """Return the provider of this name, and as `is_asked` whether it is asked for this read already."""
    is_asked = and_(calls.c.registration == providers.c.registration, calls.c.expires_at > await tx.now())
    same = and_(calls.c.provider_id == providers.c.id, calls.c.request_hash == request_hash)
    statement = select(providers, is_asked.label("is_asked")).outerjoin_from(providers, calls, same)
    return (await tx.execute(statement.where(_is_named(name)))).first()


async def by_id(tx: Transaction, provider_id: UUID) -> Found | None:
    """Return a provider."""
    return (await tx.execute(select(providers).where(providers.c.id == provider_id))).first()


async def lock(tx: Transaction, ids: Sequence[UUID], *, shared: bool = False) -> list[Found]:
    """Return those of these providers that exist, locked; `shared` keeps them from being removed alone."""
    statement = select(providers).where(providers.c.id.in_(padded(ids))).order_by(providers.c.id)
    return list(await tx.execute(statement.with_for_update(key_share=True, read=shared)))


async def change(tx: Transaction, provider_id: UUID, **values: Any) -> None:
    """Write what is known of a provider."""
    await tx.execute(update(providers).where(providers.c.id == provider_id).values(**values))


async def remove(tx: Transaction, provider_id: UUID) -> None:
    """Remove a provider, which the caller has locked, with its registrations and the reads that wait."""
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


async def hear(tx: Transaction, worker_id: UUID, until: datetime, only: Sequence[UUID] = ()) -> None:
    """Note until when a worker may be taken for connected: for all its providers, or for some of them."""
    wanted = [providers.c.worker_id == worker_id, providers.c.heard_until < until]
    if only:
        wanted.append(providers.c.id.in_(padded(only)))
    await tx.execute(update(providers).where(*wanted).values(heard_until=until))


async def part(tx: Transaction, worker_id: UUID, at: datetime, only: Sequence[UUID] = ()) -> list[JobName]:
    """Note that a worker is connected no more after a time: for all its providers, or for some of them.

    Return which.
    """
    wanted = [providers.c.worker_id == worker_id, providers.c.heard_until > at]
    if only:
        wanted.append(providers.c.id.in_(padded(only)))
    named = [providers.c[part] for part in JobName._fields]
    parted = await tx.execute(update(providers).where(*wanted).values(heard_until=at).returning(*named))
    return [JobName(*row) for row in parted]


async def answerers(tx: Transaction, ids: Sequence[UUID]) -> dict[UUID, UUID]:
    """Return the worker that answers the reads of each provider."""
    statement = select(providers.c.id, providers.c.worker_id).where(providers.c.id.in_(padded(ids)))
    return {row.id: row.worker_id for row in await tx.execute(statement)}


async def ask(tx: Transaction, provider: Found, request_hash: str, params: str, until: datetime) -> bool:
    """Let a read wait for its answer. Tell whether it did not wait already."""
    now = await tx.now()
    asked = {"registration": provider.registration, "sent_at": now, "expires_at": until}
    statement = (
        dialect(tx)
        .insert(calls)
        .values(provider_id=provider.id, request_hash=request_hash, params=params, **asked)
    )
    is_over = or_(calls.c.expires_at <= now, calls.c.registration != provider.registration)
    written = await tx.execute(
        statement.on_conflict_do_update(
            index_elements=["provider_id", "request_hash"], set_=asked, where=is_over
        ).returning(calls.c.n)
    )
    return written.first() is not None


async def count_waiting(tx: Transaction, provider_id: UUID) -> int:
    """Count the reads of a provider that somebody waits for."""
    wanted = calls.c.provider_id == provider_id, calls.c.expires_at > await tx.now()
    found: int = (await tx.execute(select(func.count()).select_from(calls).where(*wanted))).scalar_one()
    return found


async def waiting(tx: Transaction, provider_id: UUID, limit: int) -> list[Found]:
    """Return the reads of a provider that somebody waits for and nobody has claimed, oldest first."""
    wanted = [calls.c.provider_id == provider_id, calls.c.expires_at > await tx.now()]
    statement = select(calls).where(*wanted, calls.c.claimed_at.is_(None)).order_by(calls.c.n).limit(limit)
    return list(await tx.execute(statement))


async def pass_on(tx: Transaction, provider_id: UUID, registration: UUID) -> None:
    """Ask a new registration for what the one before was asked."""
    values = {"registration": registration, "claimed_by": None, "claimed_at": None, "claim_id": None}
    await tx.execute(update(calls).where(calls.c.provider_id == provider_id).values(**values))


async def answered(tx: Transaction, provider_id: UUID, request_hash: str) -> None:
    """Forget a read that has its answer."""
    wanted = calls.c.provider_id == provider_id, calls.c.request_hash == request_hash
    await tx.execute(delete(calls).where(*wanted))


def _with_provider() -> Any:
    return select(calls, *[providers.c[name] for name in ("room_id", "category", "name")]).join_from(
        calls, providers, calls.c.provider_id == providers.c.id
    )


async def claimed(tx: Transaction, worker_id: UUID, claim_id: UUID) -> Found | None:
    """Return the read that a worker has got by a claim of its own."""
    statement = _with_provider().where(calls.c.claimed_by == worker_id, calls.c.claim_id == claim_id)
    return (await tx.execute(statement)).first()


async def claim(tx: Transaction, worker_id: UUID, claim_id: UUID | None, lease: timedelta) -> Found | None:
    """Give the oldest read that waits for a provider of this worker to it, for `lease`; None without one."""
    now = await tx.now()
    statement = (
        _with_provider()
        .where(
            providers.c.worker_id == worker_id,
            calls.c.expires_at > now,
            or_(calls.c.claimed_at.is_(None), calls.c.claimed_at < now - lease),
        )
        .order_by(calls.c.n)
        .limit(1)
        .with_for_update(of=calls, skip_locked=True)
    )
    found: Found | None = (await tx.execute(statement)).first()
    if found is not None:
        taken = {"claimed_by": worker_id, "claimed_at": now, "claim_id": claim_id}
        await tx.execute(update(calls).where(calls.c.n == found.n).values(**taken))
    return found


async def awaited_from(tx: Transaction, worker_ids: Sequence[UUID]) -> list[UUID]:
    """Return those of these workers for whose providers reads wait that nobody has claimed."""
    statement = (
        select(providers.c.worker_id)
        .join_from(calls, providers, calls.c.provider_id == providers.c.id)
        .where(
            providers.c.worker_id.in_(padded(worker_ids)),
            calls.c.claimed_at.is_(None),
            calls.c.expires_at > await tx.now(),
        )
        .distinct()
    )
    return list((await tx.execute(statement)).scalars())


async def prune(tx: Transaction, before: datetime, limit: int) -> int:
    """Forget up to `limit` reads that nobody has waited for since a time. Tell how many."""
    old = select(calls.c.n).where(calls.c.expires_at < before).order_by(calls.c.expires_at).limit(limit)
    ids = (await tx.execute(old.with_for_update(skip_locked=True))).scalars().all()
    if ids:
        await tx.execute(delete(calls).where(calls.c.n.in_(padded(ids))))
    return len(ids)
