"""Register, list and remove providers, and reassign open requests when the worker changes."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from zndraw_joblib.contract.events import Emission, ProvidersInvalidate, room_of
from zndraw_joblib.contract.messages import PaginatedResponse
from zndraw_joblib.contract.names import GLOBAL, INTERNAL, JobName
from zndraw_joblib.contract.problems import Forbidden, InvalidCategory, ProviderNotFound, WorkerNotFound
from zndraw_joblib.contract.providers import ClaimedProviderRequest, ProviderRegisterRequest, ProviderResponse
from zndraw_joblib.server.ports import Identity, Page, provider_key, requests_key
from zndraw_joblib.server.service import rules, serializers
from zndraw_joblib.server.store import provider_requests as request_store
from zndraw_joblib.server.store import providers as store
from zndraw_joblib.server.store import workers as worker_store
from zndraw_joblib.server.store.database import Transaction
from zndraw_joblib.server.store.providers import ProviderRow, RegistrationRecord

# How long a worker counts as connected after it registers, and after its connection is lost. Clients of
# Socket.IO connect again after 0.5 to 1.5 s, and then after 1 to 3 s.
GRACE = timedelta(seconds=5)
MAX_PENDING_REQUESTS = 1000


# The room and the category of the file systems of the server itself.
FILES = (INTERNAL, "filesystem")


class InternalProvider(NamedTuple):
    """An internal provider as the server's code declares it."""

    name: JobName
    schema: dict[str, Any]
    content_type: str


class Registration(NamedTuple):
    """The request of a worker to answer the requests to a provider in a room."""

    caller: Identity
    room_id: str
    request: ProviderRegisterRequest


def check(item: Registration, allowed_categories: Sequence[str] | None) -> None:
    """Raise the problem of a registration that is invalid whatever the database contains."""
    if item.room_id == INTERNAL:
        raise Forbidden(
            "Providers of @internal are registered by the server's code (ensure_internal_providers), not by "
            "requests: register yours in another room"
        )
    if item.room_id == GLOBAL and not item.caller.is_superuser:
        raise Forbidden(f"Only a superuser may register providers in {item.room_id}")
    category = item.request.category
    if allowed_categories is not None and category not in allowed_categories:
        raise InvalidCategory(
            f"Category {category!r} is not allowed; allowed are: {', '.join(allowed_categories)}"
        )
    rules.check_size("schema", item.request.schema_)


async def register(tx: Transaction, item: Registration) -> tuple[ProviderResponse, bool]:
    """Register a worker for a provider, in place of its current worker. Return whether it is new too.

    Raises `WorkerNotFound` for a worker that is unknown or not the caller's, `Forbidden` for a provider
    of another user.
    """
    caller, room_id, request = item
    worker_id = await _worker(tx, item)
    name = JobName(room_id, request.category, request.name)
    registration = RegistrationRecord(worker_id, request.schema_, request.content_type)
    connected_until = await tx.now() + GRACE
    values = {
        **registration._asdict(),
        "owner_id": caller.id,
        "registration": uuid4(),
        "connected_until": connected_until,
    }
    provider, is_new = await store.add_or_lock(tx, name, values)
    if provider.owner_id != caller.id:
        if not caller.is_superuser:
            raise Forbidden(f"Not authorized: provider {str(name)!r} belongs to another user")
        await store.unlink(tx, provider.id)
    if not is_new:
        if provider.worker_id == worker_id:
            values["connected_until"] = max(connected_until, provider.connected_until)
        await store.update_row(tx, provider.id, **values)
        provider = provider._replace(**values)
        await request_store.reassign(tx, provider.id, provider.registration)
        await notify_pending(tx, provider.id, name, worker_id)
    await store.link(tx, provider.id, registration)
    _publish_changed(tx, name)
    return _response(provider), is_new


async def register_internal(tx: Transaction, offers: Sequence[InternalProvider], owner_id: str) -> None:
    """Insert or update internal providers. They have no worker."""
    for name, schema, content_type in sorted(offers, key=lambda offer: str(offer.name)):
        fields = {"schema": schema, "content_type": content_type, "owner_id": owner_id, "worker_id": None}
        registration = uuid4()
        values = {**fields, "registration": registration, "connected_until": await tx.now()}
        provider, is_new = await store.add_or_lock(tx, name, values)
        if not is_new:
            if all(getattr(provider, field) == value for field, value in fields.items()):
                continue
            await store.unlink(tx, provider.id)
            await store.update_row(tx, provider.id, **values)
            await request_store.reassign(tx, provider.id, registration)
        _publish_changed(tx, name)


async def _worker(tx: Transaction, item: Registration) -> UUID:
    worker_id = item.request.worker_id
    if worker_id is None:
        return await worker_store.add(tx, item.caller.id, info=item.request.worker)
    worker = (await worker_store.lock(tx, [worker_id])).get(worker_id)
    if worker is None or worker.owner_id != item.caller.id:
        raise WorkerNotFound(f"Worker {worker_id} not found")
    return worker_id


async def notify_pending(
    tx: Transaction, provider_id: UUID, name: JobName, worker_id: UUID
) -> list[ClaimedProviderRequest]:
    """Wake a worker, after the commit, for the unclaimed requests to a provider. Return the requests."""
    found = [
        ClaimedProviderRequest(
            request_id=request.request_hash,
            provider_id=provider_id,
            provider_name=str(name),
            params=request.params,
        )
        for request in await request_store.unclaimed(tx, provider_id, MAX_PENDING_REQUESTS)
    ]
    if found:
        tx.wake(requests_key(worker_id), len(found))
    return found


def _publish_changed(tx: Transaction, name: JobName) -> None:
    """Notify the room and the waiting requests, after the commit, that a provider has changed."""
    room = room_of(name.room_id)
    tx.emit(("providers", room), lambda: Emission(ProvidersInvalidate(), room))
    tx.wake(provider_key(name))


async def remove(tx: Transaction, caller: Identity, provider_id: UUID, worker_id: UUID | None = None) -> None:
    """Remove a provider, or only the registration of one worker, for its owner or a superuser."""
    [*found] = await store.lock(tx, [provider_id])
    if not found:
        raise ProviderNotFound(f"Provider {provider_id} not found")
    check_owner(found[0].owner_id, caller)
    if found[0].room_id == INTERNAL and found[0].worker_id is None:
        raise Forbidden("Providers of @internal belong to the server's code: no request can remove them")
    if worker_id is not None and not await store.unlink(tx, provider_id, worker_id):
        raise ProviderNotFound(f"Worker {worker_id} has no provider {provider_id}")
    if worker_id is None:
        await store.unlink(tx, provider_id)
    await _use_newest_registration(tx, found[0])


async def remove_workers(tx: Transaction, worker_ids: Sequence[UUID]) -> None:
    """Delete the registrations of workers that are removed, which the caller has locked.

    A provider continues with the newest registration of another worker; without one it is deleted.
    """
    for provider in await store.lock_and_unlink(tx, worker_ids):
        if not await _use_newest_registration(tx, provider):
            tx.removed_providers.append(str(provider.name))


async def _use_newest_registration(tx: Transaction, provider: ProviderRow) -> bool:
    """Continue with the newest registration of a provider, or delete it; return whether it continues."""
    newest = await store.newest_registration(tx, provider.id)
    if newest is None:
        await store.remove(tx, provider.id)
    elif newest.worker_id == provider.worker_id:
        return True
    else:
        registration, connected_until = uuid4(), await tx.now() + GRACE
        values = {**newest._asdict(), "registration": registration, "connected_until": connected_until}
        await store.update_row(tx, provider.id, **values)
        await request_store.reassign(tx, provider.id, registration)
        await notify_pending(tx, provider.id, provider.name, newest.worker_id)
    _publish_changed(tx, provider.name)
    return newest is not None


def check_owner(owner_id: str, caller: Identity) -> None:
    """Raise `Forbidden` unless the caller owns the provider or is a superuser."""
    if owner_id != caller.id and not caller.is_superuser:
        raise Forbidden("Not authorized: the provider belongs to another user")


async def page(
    tx: Transaction, room_id: str, part: Page, *, hides_files: bool = False
) -> PaginatedResponse[ProviderResponse]:
    """Return one page of the providers that a room lists; `hides_files`: without internal file systems."""
    found, total = await store.page(tx, room_id, part, FILES if hides_files else None)
    items = [_response(provider) for provider in found]
    return serializers.page_response(PaginatedResponse[ProviderResponse], items, total, part)


async def get(tx: Transaction, room_id: str, name: JobName, *, cross_room: bool) -> ProviderResponse:
    """Return a provider. Raises `ProviderNotFound`, also for a provider of another room."""
    found = await store.by_name(tx, name) if is_visible(room_id, name, cross_room=cross_room) else None
    if found is None:
        raise not_found(room_id, name)
    return _response(found)


def is_visible(room_id: str, name: JobName, *, cross_room: bool) -> bool:
    """Return whether a room may send requests to a provider."""
    return cross_room or name.room_id in {room_id, GLOBAL, INTERNAL}


def check_reader(caller: Identity, name: JobName, *, require_superuser: bool) -> None:
    """Raise `Forbidden` for an internal file system, if only superusers may read those."""
    if require_superuser and not caller.is_superuser and (name.room_id, name.category) == FILES:
        raise Forbidden(
            f"Only superusers may use provider {str(name)!r} (setting filebrowser_require_superuser)"
        )


def not_found(room_id: str, name: JobName) -> ProviderNotFound:
    """Return the problem of a provider that does not exist for a room."""
    return ProviderNotFound(f"Provider {str(name)!r} not found in room {room_id!r}")


def _response(provider: ProviderRow) -> ProviderResponse:
    return ProviderResponse(
        id=provider.id,
        full_name=str(provider.name),
        schema_=provider.schema,
        content_type=provider.content_type,
        worker_id=provider.worker_id,
        created_at=provider.created_at,
        **provider.name._asdict(),
    )


class Connected(NamedTuple):
    """A worker that is connected for a provider. `is_current`: it answers the provider's requests."""

    provider_id: UUID
    is_current: bool


async def connect(tx: Transaction, worker_id: UUID, name: JobName, lease: timedelta) -> Connected:
    """Record that a worker is connected for a provider, for `lease`. Raises `ProviderNotFound`."""
    provider = await store.by_name(tx, name)
    if provider is None or not await store.is_linked(tx, provider.id, worker_id):
        raise ProviderNotFound(f"Worker {worker_id} has no provider {str(name)!r}")
    is_current = provider.worker_id == worker_id
    if is_current:
        await store.extend_connection(tx, worker_id, await tx.now() + lease, [provider.id])
    return Connected(provider.id, is_current)


async def extend_connections(
    tx: Transaction, connected: Mapping[UUID, Sequence[UUID]], lease: timedelta
) -> dict[UUID, UUID]:
    """Record that workers are still connected, each for these providers. Return the providers' workers."""
    until = await tx.now() + lease
    await store.lock(tx, sorted({each for ids in connected.values() for each in ids}))
    for worker_id, ids in sorted(connected.items()):
        await store.extend_connection(tx, worker_id, until, ids)
    return await store.current_workers(tx, sorted({each for ids in connected.values() for each in ids}))


async def disconnect(tx: Transaction, worker_id: UUID, only: Sequence[UUID] = ()) -> None:
    """Record that a worker has disconnected: requests wait for it only for a short grace period."""
    for name in await store.end_connection(tx, worker_id, await tx.now() + GRACE, only):
        tx.wake(provider_key(name))
