"""Register, list and remove providers, and reassign open requests when the worker changes."""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.process.ports import Identity, Page, provider_key, request_wait_key, requests_key
from zndraw_joblib.server.queue import rules_answers, rules_transitions, sql_providers, sql_workers
from zndraw_joblib.server.queue.sql_providers import ProviderRow, RegistrationRecord
from zndraw_joblib.wire.events import (
    Emission,
    ProviderRequest,
    ProviderResultReady,
    ProvidersInvalidate,
    providers_of,
    room_of,
)
from zndraw_joblib.wire.messages import PaginatedResponse
from zndraw_joblib.wire.names import GLOBAL, INTERNAL, JobName
from zndraw_joblib.wire.problems import (
    Forbidden,
    InvalidCategory,
    ProviderNotConnected,
    ProviderNotFound,
    StaleResult,
    TooManyRequests,
    WorkerNotFound,
)
from zndraw_joblib.wire.providers import ClaimedProviderRequest, ProviderRegisterRequest, ProviderResponse

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


class ProviderToRegister(NamedTuple):
    """The request of a worker to answer the requests to a provider in a room.

    `add_provider()`, for a new one, raises a problem if the caller may have no further one.
    """

    caller: Identity
    room_id: str
    request: ProviderRegisterRequest
    add_provider: Callable[[], None] = lambda: None


def check(item: ProviderToRegister, allowed_categories: Sequence[str] | None) -> None:
    """Raise the problem of a registration that is invalid whatever the database contains."""
    if item.room_id == INTERNAL:
        raise Forbidden(
            "Providers of @internal are registered by the server's code (ensure_internal_providers), not by "
            "requests: register yours in another room"
        )
    if item.room_id == GLOBAL and not item.caller.serves(GLOBAL):
        raise Forbidden(
            f"Only a superuser may register providers in {GLOBAL}, or a caller with the role worker whose "
            f"rooms include {GLOBAL}"
        )
    category = item.request.category
    if allowed_categories is not None and category not in allowed_categories:
        raise InvalidCategory(
            f"Category {category!r} is not allowed; allowed are: {', '.join(allowed_categories)}"
        )
    rules_transitions.check_size("schema", item.request.schema_)


async def register(tx: Transaction, item: ProviderToRegister) -> tuple[ProviderResponse, bool]:
    """Register a worker for a provider, in place of its current worker. Return whether it is new too.

    Raises `WorkerNotFound` for a worker that is unknown or not the caller's, `Forbidden` for a provider
    of another user.
    """
    caller, room_id, request, add_provider = item
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
    provider, is_new = await sql_providers.add_or_lock(tx, name, values)
    if is_new:
        add_provider()
    if provider.owner_id != caller.id:
        if not caller.is_superuser:
            raise Forbidden(f"Not authorized: provider {str(name)!r} belongs to another user")
        await sql_providers.unlink(tx, provider.id)
    if not is_new:
        if provider.worker_id == worker_id:
            values["connected_until"] = max(connected_until, provider.connected_until)
        provider = provider._replace(**values)
        await sql_providers.replace(tx, provider)
        await notify_pending(tx, provider.id, name, worker_id)
    await sql_providers.link(tx, provider.id, registration)
    _publish_changed(tx, name)
    return _response(provider), is_new


async def register_internal(tx: Transaction, offers: Sequence[InternalProvider], owner_id: str) -> None:
    """Insert or update internal providers. They have no worker."""
    for name, schema, content_type in sorted(offers, key=lambda offer: str(offer.name)):
        fields: dict[str, Any] = {
            "schema": schema,
            "content_type": content_type,
            "owner_id": owner_id,
            "worker_id": None,
        }
        values = {**fields, "registration": uuid4(), "connected_until": await tx.now()}
        provider, is_new = await sql_providers.add_or_lock(tx, name, values)
        if not is_new:
            if all(getattr(provider, field) == value for field, value in fields.items()):
                continue
            await sql_providers.unlink(tx, provider.id)
            await sql_providers.replace(tx, provider._replace(**values))
        _publish_changed(tx, name)


async def _worker(tx: Transaction, item: ProviderToRegister) -> UUID:
    worker_id = item.request.worker_id
    if worker_id is None:
        return await sql_workers.add(tx, item.caller.id, info=item.request.worker)
    worker = (await sql_workers.lock(tx, [worker_id])).get(worker_id)
    if worker is None or worker.owner_id != item.caller.id:
        raise WorkerNotFound(f"Worker {worker_id} not found")
    return worker_id


async def notify_pending(
    tx: Transaction, provider_id: UUID, name: JobName, worker_id: UUID
) -> list[ClaimedProviderRequest]:
    """Wake a worker, after the commit, for the unclaimed requests to a provider. Return the requests."""
    pending = [
        ClaimedProviderRequest(
            request_id=request.request_hash,
            provider_id=provider_id,
            provider_name=str(name),
            params=request.params,
        )
        for request in await sql_providers.unclaimed(tx, provider_id, MAX_PENDING_REQUESTS)
    ]
    if pending:
        tx.wake(requests_key(worker_id), len(pending))
    return pending


def _publish_changed(tx: Transaction, name: JobName) -> None:
    """Notify the room and the waiting requests, after the commit, that a provider has changed."""
    room = room_of(name.room_id)
    tx.emit(("providers", room), lambda: Emission(ProvidersInvalidate(), room))
    tx.wake(provider_key(name))


async def remove(tx: Transaction, caller: Identity, provider_id: UUID, worker_id: UUID | None = None) -> None:
    """Remove a provider, or only the registration of one worker, for its owner or a superuser."""
    [*locked] = await sql_providers.lock(tx, [provider_id])
    if not locked:
        raise ProviderNotFound(f"Provider {provider_id} not found")
    check_owner(locked[0].owner_id, caller)
    if locked[0].room_id == INTERNAL and locked[0].worker_id is None:
        raise Forbidden("Providers of @internal belong to the server's code: no request can remove them")
    if worker_id is not None and not await sql_providers.unlink(tx, provider_id, worker_id):
        raise ProviderNotFound(f"Worker {worker_id} has no provider {provider_id}")
    if worker_id is None:
        await sql_providers.unlink(tx, provider_id)
    await _use_newest_registration(tx, locked[0])


async def remove_workers(tx: Transaction, worker_ids: Sequence[UUID]) -> None:
    """Delete the registrations of workers that are removed, which the caller has locked.

    A provider continues with the newest registration of another worker; without one it is deleted.
    """
    for provider in await sql_providers.lock_and_unlink(tx, worker_ids):
        if not await _use_newest_registration(tx, provider):
            tx.removed_providers.append(str(provider.name))


async def _use_newest_registration(tx: Transaction, provider: ProviderRow) -> bool:
    """Continue with the newest registration of a provider, or delete it; return whether it continues."""
    newest = await sql_providers.newest_registration(tx, provider.id)
    if newest is None:
        await sql_providers.remove(tx, provider.id)
    elif newest.worker_id == provider.worker_id:
        return True
    else:
        provider = provider._replace(**newest._asdict(), registration=uuid4())
        await sql_providers.replace(tx, provider._replace(connected_until=await tx.now() + GRACE))
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
    records, total = await sql_providers.page(tx, room_id, part, FILES if hides_files else None)
    items = [_response(provider) for provider in records]
    return rules_answers.page_response(PaginatedResponse[ProviderResponse], items, total, part)


async def get(tx: Transaction, room_id: str, name: JobName, *, cross_room: bool) -> ProviderResponse:
    """Return a provider. Raises `ProviderNotFound`, also for a provider of another room."""
    record = (
        await sql_providers.by_name(tx, name) if is_visible(room_id, name, cross_room=cross_room) else None
    )
    if record is None:
        raise not_found(room_id, name)
    return _response(record)


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
    return ProviderResponse(**provider.shown())


class Connected(NamedTuple):
    """A worker that is connected for a provider. `is_current`: it answers the provider's requests."""

    provider_id: UUID
    is_current: bool


async def connect(tx: Transaction, worker_id: UUID, name: JobName, lease: timedelta) -> Connected:
    """Record that a worker is connected for a provider, for `lease`. Raises `ProviderNotFound`."""
    provider = await sql_providers.by_name(tx, name)
    if provider is None or not await sql_providers.is_linked(tx, provider.id, worker_id):
        raise ProviderNotFound(f"Worker {worker_id} has no provider {str(name)!r}")
    is_current = provider.worker_id == worker_id
    if is_current:
        await sql_providers.extend_connection(tx, worker_id, await tx.now() + lease, [provider.id])
    return Connected(provider.id, is_current)


async def extend_connections(
    tx: Transaction, connected: Mapping[UUID, Sequence[UUID]], lease: timedelta
) -> dict[UUID, UUID]:
    """Record that workers are still connected, each for these providers. Return the providers' workers."""
    until = await tx.now() + lease
    await sql_providers.lock(tx, sorted({provider_id for ids in connected.values() for provider_id in ids}))
    for worker_id, ids in sorted(connected.items()):
        await sql_providers.extend_connection(tx, worker_id, until, ids)
    return await sql_providers.current_workers(
        tx, sorted({provider_id for ids in connected.values() for provider_id in ids})
    )


async def disconnect(tx: Transaction, worker_id: UUID, only: Sequence[UUID] = ()) -> None:
    """Record that a worker has disconnected: requests wait for it only for a short grace period."""
    for name in await sql_providers.end_connection(tx, worker_id, await tx.now() + GRACE, only):
        tx.wake(provider_key(name))


# Requests to providers: opened by readers, claimed by the provider's worker, completed by its upload.

# A worker counts as connected for this long after its claim has ended, since it may pause between claims.
CLAIM_GRACE = timedelta(seconds=15)


class ProviderRef(NamedTuple):
    """A provider as a reader needs it.

    `connected_for`: for how many seconds its worker still counts as connected; 0 or less: it does not.
    `age`: seconds since its creation. `is_pending`: this request is open already.
    """

    id: UUID
    name: JobName
    owner_id: str
    worker_id: UUID | None
    content_type: str
    registration: UUID
    connected_for: float
    age: float
    is_pending: bool


class RequestClaim(NamedTuple):
    """The claim of a worker for a request: it waits up to `wait`, and the result is due within `lease`.

    The caller may not serve the providers of the rooms `refused_rooms`.
    """

    caller: Identity
    worker_id: UUID
    claim_id: UUID | None
    wait: timedelta
    lease: timedelta
    refused_rooms: Collection[str] = frozenset()


async def find(
    tx: Transaction, room_id: str, name: JobName, request_hash: str, *, cross_room: bool
) -> ProviderRef:
    """Return the provider for a request. Raises `ProviderNotFound`."""
    record = None
    if is_visible(room_id, name, cross_room=cross_room):
        record = await sql_providers.provider_and_request(tx, name, request_hash)
    if record is None:
        raise not_found(room_id, name)
    provider, request = record
    is_pending = (
        request is not None
        and request.registration == provider.registration
        and request.expires_at > await tx.now()
    )
    return await _ref(tx, provider, is_pending=is_pending)


async def _ref(tx: Transaction, provider: ProviderRow, *, is_pending: bool = False) -> ProviderRef:
    now = await tx.now()
    return ProviderRef(
        id=provider.id,
        name=provider.name,
        owner_id=provider.owner_id,
        worker_id=provider.worker_id,
        content_type=provider.content_type,
        registration=provider.registration,
        connected_for=(provider.connected_until - now).total_seconds(),
        age=(now - provider.created_at).total_seconds(),
        is_pending=is_pending,
    )


class Asker(NamedTuple):
    """The user who opens a request, None for the server itself, and how many requests the user may open."""

    user: str | None
    share: int


async def create(
    tx: Transaction, target: ProviderRef, request_hash: str, params: str, lifetime: timedelta, asker: Asker
) -> bool:
    """Open a request and notify the provider's worker, unless the request is open already.

    Return whether the caller has to send the request, to the broker of an internal provider.
    Raises `ProviderNotFound`, and `TooManyRequests` for a provider with too many open requests, or if the
    user has opened its share of them.
    """
    if not tx.is_sqlite:
        worker_id = await sql_providers.add_on_postgresql(
            *(tx, target.id, request_hash, params, lifetime, asker.user, MAX_PENDING_REQUESTS, asker.share)
        )
        if worker_id is not None:
            _publish_request(tx, target, worker_id, request_hash, params)
            return False
    provider = await _lock(tx, target)
    total, own = await sql_providers.count(tx, target.id, asker.user)
    if total >= MAX_PENDING_REQUESTS:
        raise _too_many(target, f"{total} open requests, which is the limit")
    if own >= asker.share:
        raise _too_many(
            target, f"{own} open requests of this caller, which is its share (max_share_per_user)"
        )
    if not await sql_providers.add(tx, provider, request_hash, params, await tx.now() + lifetime, asker.user):
        return False
    if provider.worker_id is None:
        return True
    _publish_request(tx, target, provider.worker_id, request_hash, params)
    return False


def _publish_request(
    tx: Transaction, target: ProviderRef, worker_id: UUID, request_hash: str, params: str
) -> None:
    """Notify the provider's worker of a request after the commit."""
    event = ProviderRequest(request_id=request_hash, provider_name=str(target.name), params=params)
    tx.emit((target.id, request_hash), lambda: Emission(event, providers_of(event.provider_name)))
    tx.wake(requests_key(worker_id), 1)


def _too_many(target: ProviderRef, has: str) -> TooManyRequests:
    return TooManyRequests(
        f"Provider {str(target.name)!r} has {has}; repeat the request later", headers={"Retry-After": "2"}
    )


async def _lock(tx: Transaction, target: ProviderRef) -> ProviderRow:
    [*locked] = await sql_providers.lock(tx, [target.id], shared=True)
    if not locked:
        raise ProviderNotFound(f"Provider {str(target.name)!r} was removed")
    return locked[0]


def not_connected(target: ProviderRef) -> ProviderNotConnected:
    """Return the problem of a provider without a connected worker."""
    return ProviderNotConnected(
        f"No worker is connected for provider {str(target.name)!r}; repeat the request later",
        headers={"Retry-After": "2"},
    )


async def claim(tx: Transaction, item: RequestClaim) -> ClaimedProviderRequest | None:
    """Claim the oldest open request to the providers of a worker.

    Raises `WorkerNotFound`, and `Forbidden` for a worker of another user.
    """
    # A claim that is lost in a crash of PostgreSQL has ended before its lease: the request is claimed again.
    await tx.commit_lazily()
    worker = (await sql_workers.lock(tx, [item.worker_id])).get(item.worker_id)
    if worker is None:
        raise WorkerNotFound(f"Worker {item.worker_id} not found")
    if worker.owner_id != item.caller.id:
        raise Forbidden("Not authorized: the worker belongs to another user")
    # A worker whose threads are all busy does not claim, but it is connected.
    is_busy = bool(await sql_providers.workers_with_unclaimed(tx, [item.worker_id]))
    connected_for = max(item.wait + CLAIM_GRACE, item.lease if is_busy else timedelta())
    until = await tx.now() + connected_for
    await sql_providers.extend_connection(tx, item.worker_id, until, refused_rooms=item.refused_rooms)
    record = (
        await sql_providers.by_claim(tx, item.worker_id, item.claim_id) if item.claim_id is not None else None
    )
    record = record or await sql_providers.claim(
        tx, item.worker_id, item.claim_id, item.lease, item.refused_rooms
    )
    if record is None:
        return None
    return ClaimedProviderRequest(
        request_id=record.request_hash,
        provider_id=record.provider_id,
        provider_name=str(record.provider_name),
        params=record.params,
    )


async def workers_with_requests(tx: Transaction, worker_ids: Sequence[UUID]) -> list[UUID]:
    """Return which of these workers have unclaimed requests."""
    return await sql_providers.workers_with_unclaimed(tx, worker_ids) if worker_ids else []


async def find_for_upload(
    tx: Transaction, caller: Identity, provider_id: UUID, worker_id: UUID | None
) -> ProviderRef:
    """Return the provider for which the caller uploads a result.

    Raises `ProviderNotFound`, `Forbidden`, and `StaleResult` if another worker answers its requests now.
    """
    provider = await sql_providers.by_id(tx, provider_id)
    if provider is None:
        raise ProviderNotFound(f"Provider {provider_id} not found")
    check_owner(provider.owner_id, caller)
    if worker_id is not None and worker_id != provider.worker_id:
        raise _stale(provider.name)
    return await _ref(tx, provider)


async def check_current(tx: Transaction, target: ProviderRef) -> None:
    """Raise `StaleResult` if a provider was removed or registered again since it was read."""
    provider = await sql_providers.by_id(tx, target.id)
    if provider is None or provider.registration != target.registration:
        raise _stale(target.name)


async def discard(tx: Transaction, target: ProviderRef, request_hash: str) -> None:
    """Delete a request whose result could not be stored, and wake its readers to repeat it."""
    await sql_providers.remove_request(tx, target.id, request_hash)
    tx.wake(request_wait_key(target.name, request_hash))


async def complete(tx: Transaction, target: ProviderRef, request_hash: str) -> None:
    """Delete a request whose result is stored, and notify its readers.

    Raises `ProviderNotFound`, and `StaleResult` if the provider was registered again since it was read.
    """
    if not await sql_providers.remove_request_of(tx, target.id, target.registration, request_hash):
        provider = await _lock(tx, target)
        if provider.registration != target.registration:
            raise _stale(target.name)
        await sql_providers.remove_request(tx, target.id, request_hash)
    room = room_of(target.name.room_id)
    event = ProviderResultReady(provider_name=str(target.name), request_hash=request_hash)
    tx.emit((target.id, request_hash), partial(Emission, event, room))
    tx.wake(request_wait_key(target.name, request_hash))


def _stale(name: JobName) -> StaleResult:
    return StaleResult(f"Provider {str(name)!r} was removed or registered again; this result is not used")
