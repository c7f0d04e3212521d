"""Providers: who answers reads, who may ask, and what becomes of a read when its answerer changes."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from zndraw_joblib.contract.events import (
    Emission,
    ProvidersInvalidate,
    room_of,
)
from zndraw_joblib.contract.messages import PaginatedResponse
from zndraw_joblib.contract.names import GLOBAL, RESERVED, JobName
from zndraw_joblib.contract.problems import (
    Forbidden,
    InvalidCategory,
    ProviderNotFound,
    WorkerNotFound,
)
from zndraw_joblib.contract.providers import ClaimedProviderRequest, ProviderRegisterRequest, ProviderResponse
from zndraw_joblib.server.ports import Identity, Page, provider_key, requests_key
from zndraw_joblib.server.service import rules
from zndraw_joblib.server.store import providers as store
from zndraw_joblib.server.store import workers as worker_store
from zndraw_joblib.server.store.database import Transaction

# After a registration, and after a connection was lost, somebody may be on the way.
GRACE = timedelta(seconds=2)
MAX_PENDING_REQUESTS = 1000


class Registration(NamedTuple):
    """Somebody offers to answer reads in a room."""

    caller: Identity
    room_id: str
    request: ProviderRegisterRequest


def check(item: Registration, allowed_categories: Sequence[str] | None) -> None:
    """Raise the problem of a registration that no state of the database could mend."""
    if item.room_id in RESERVED and not item.caller.is_superuser:
        raise Forbidden(f"Only a superuser may register providers in {item.room_id}")
    category = item.request.category
    if allowed_categories is not None and category not in allowed_categories:
        raise InvalidCategory(
            f"Category {category!r} is not allowed; allowed are: {', '.join(allowed_categories)}"
        )
    rules.check_size("schema", item.request.schema_)


async def register(tx: Transaction, item: Registration) -> tuple[ProviderResponse, bool]:
    """Let a worker answer the reads of a provider, in place of whoever did so far. Tell whether it is new.

    Raises `WorkerNotFound` for a worker that is unknown or not the caller's, `Forbidden` where the provider
    belongs to somebody else.
    """
    caller, room_id, request = item
    worker_id = await _worker(tx, item)
    name = JobName(room_id, request.category, request.name)
    registration, heard_until = uuid4(), await tx.now() + GRACE
    values = {
        "schema": request.schema_,
        "content_type": request.content_type,
        "owner_id": caller.id,
        "worker_id": worker_id,
        "registration": registration,
        "heard_until": heard_until,
    }
    row, is_new = await store.add_or_lock(tx, name, values)
    if row.owner_id != caller.id:
        if not caller.is_superuser:
            raise Forbidden(f"Not authorized: provider {str(name)!r} belongs to somebody else")
        await store.unlink(tx, row.id)
    if not is_new:
        if row.worker_id == worker_id:
            values["heard_until"] = max(heard_until, row.heard_until)
        await store.update_row(tx, row.id, **values)
        await store.reassign_requests(tx, row.id, registration)
        await notify_pending(tx, row.id, name, worker_id)
    await store.link(tx, row.id, worker_id, request.schema_, request.content_type)
    _tell_changed(tx, name)
    shown = {"id": row.id, "created_at": row.created_at, "worker_id": worker_id}
    return ProviderResponse(**shown, **_said(request), full_name=str(name), **name._asdict()), is_new


def _said(request: ProviderRegisterRequest) -> dict[str, Any]:
    return {"schema_": request.schema_, "content_type": request.content_type}


async def _worker(tx: Transaction, item: Registration) -> UUID:
    asked = item.request.worker_id
    if asked is None:
        return await worker_store.add(tx, item.caller.id)
    row = (await worker_store.lock(tx, [asked])).get(asked)
    if row is None or row.owner_id != item.caller.id:
        raise WorkerNotFound(f"Worker {asked} not found")
    return asked


async def notify_pending(
    tx: Transaction, provider_id: UUID, name: JobName, worker_id: UUID
) -> list[ClaimedProviderRequest]:
    """Let a worker know, after the commit, of the reads that nobody has claimed. Return them."""
    found = [
        ClaimedProviderRequest(
            request_id=row.request_hash, provider_id=provider_id, provider_name=str(name), params=row.params
        )
        for row in await store.unclaimed_requests(tx, provider_id, MAX_PENDING_REQUESTS)
    ]
    if found:
        tx.wake(requests_key(worker_id), len(found))
    return found


def _tell_changed(tx: Transaction, name: JobName) -> None:
    """Let its room and its readers know, after the commit, that a provider is new, another one, or gone."""
    room = room_of(name.room_id)
    tx.emit(("providers", room), lambda: Emission(ProvidersInvalidate(), room))
    tx.wake(provider_key(name))


async def remove(tx: Transaction, caller: Identity, provider_id: UUID, worker_id: UUID | None = None) -> None:
    """Remove a provider, or the registration of one of its workers alone; for its owner and superusers."""
    [*found] = await store.lock(tx, [provider_id])
    if not found:
        raise ProviderNotFound(f"Provider {provider_id} not found")
    check_owner(found[0].owner_id, caller)
    if worker_id is not None and not await store.unlink(tx, provider_id, worker_id):
        raise ProviderNotFound(f"Worker {worker_id} has no provider {provider_id}")
    if worker_id is None:
        await store.unlink(tx, provider_id)
    await _settle(tx, found[0])


async def remove_workers(tx: Transaction, worker_ids: Sequence[UUID]) -> None:
    """Take all providers off workers that go, which the caller has locked.

    A provider for which another worker is registered goes on with that one; the others go.
    """
    ids = await store.unlink_workers(tx, worker_ids)
    for provider in await store.lock(tx, ids) if ids else []:
        await _settle(tx, provider)


async def _settle(tx: Transaction, provider: Any) -> None:
    """Let the newest registration of a locked provider hold, or remove it where there is none."""
    name = store.name_of(provider)
    newest = await store.newest_link(tx, provider.id)
    if newest is None:
        await store.remove(tx, provider.id)
    elif newest.worker_id == provider.worker_id:
        return
    else:
        registration, heard_until = uuid4(), await tx.now() + GRACE
        taken = {"worker_id": newest.worker_id, "content_type": newest.content_type, "schema": newest.schema}
        await store.update_row(tx, provider.id, **taken, registration=registration, heard_until=heard_until)
        await store.reassign_requests(tx, provider.id, registration)
        await notify_pending(tx, provider.id, name, newest.worker_id)
    _tell_changed(tx, name)


def check_owner(owner_id: str, caller: Identity) -> None:
    """Raise `Forbidden` for who neither owns a provider nor is a superuser."""
    if owner_id != caller.id and not caller.is_superuser:
        raise Forbidden("Not authorized: the provider belongs to somebody else")


async def page(tx: Transaction, room_id: str, part: Page) -> PaginatedResponse[ProviderResponse]:
    """Return one page of the providers that a room sees."""
    rows, total = await store.page(tx, room_id, part)
    return PaginatedResponse[ProviderResponse](
        items=[_response(row) for row in rows], total=total, limit=part.limit, offset=part.offset
    )


async def get(tx: Transaction, room_id: str, name: JobName, *, cross_room: bool) -> ProviderResponse:
    """Return a provider. Raises `ProviderNotFound`, also where it belongs to another room."""
    row = await store.by_name(tx, name) if is_visible(room_id, name, cross_room=cross_room) else None
    if row is None:
        raise not_found(room_id, name)
    return _response(row)


def is_visible(room_id: str, name: JobName, *, cross_room: bool) -> bool:
    """Tell whether a room may read from a provider."""
    return cross_room or name.room_id in {room_id, GLOBAL}


def not_found(room_id: str, name: JobName) -> ProviderNotFound:
    """Return the problem of a provider that a room does not see."""
    return ProviderNotFound(f"Provider {str(name)!r} not found in room {room_id!r}")


def _response(row: Any) -> ProviderResponse:
    name = store.name_of(row)
    return ProviderResponse(
        id=row.id,
        full_name=str(name),
        schema_=row.schema,
        content_type=row.content_type,
        worker_id=row.worker_id,
        created_at=row.created_at,
        **name._asdict(),
    )


async def disconnect(tx: Transaction, worker_id: UUID, only: Sequence[UUID] = ()) -> None:
    """Note that a worker is not connected any more: its readers shall not wait for it for long."""
    for name in await store.end_connection(tx, worker_id, await tx.now() + GRACE, only):
        tx.wake(provider_key(name))


class Connected(NamedTuple):
    """A worker is connected for a provider. `is_current`: it is the one that answers."""

    provider_id: UUID
    is_current: bool


async def connect(tx: Transaction, worker_id: UUID, name: JobName, lease: timedelta) -> Connected:
    """Note that a worker is connected for a provider, for `lease`. Raises `ProviderNotFound`."""
    row = await store.by_name(tx, name)
    if row is None or not await store.is_linked(tx, row.id, worker_id):
        raise ProviderNotFound(f"Worker {worker_id} has no provider {str(name)!r}")
    is_current = row.worker_id == worker_id
    if is_current:
        await store.extend_connection(tx, worker_id, await tx.now() + lease, [row.id])
    return Connected(row.id, is_current)


async def extend_connections(
    tx: Transaction, joined: dict[UUID, list[UUID]], lease: timedelta
) -> dict[UUID, UUID]:
    """Note that workers are connected still, each for some providers. Return who answers for each."""
    until = await tx.now() + lease
    for worker_id, ids in sorted(joined.items()):
        await store.extend_connection(tx, worker_id, until, ids)
    return await store.current_workers(tx, sorted({each for ids in joined.values() for each in ids}))
