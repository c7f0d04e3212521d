"""Requests to providers: opened by readers, claimed by the provider's worker, completed by its upload."""

from collections.abc import Collection, Sequence
from datetime import timedelta
from functools import partial
from typing import NamedTuple
from uuid import UUID

from zndraw_joblib.contract.events import (
    Emission,
    ProviderRequest,
    ProviderResultReady,
    providers_of,
    room_of,
)
from zndraw_joblib.contract.names import JobName
from zndraw_joblib.contract.problems import (
    Forbidden,
    ProviderNotConnected,
    ProviderNotFound,
    StaleResult,
    TooManyRequests,
    WorkerNotFound,
)
from zndraw_joblib.contract.providers import ClaimedProviderRequest
from zndraw_joblib.server.ports import Identity, request_wait_key, requests_key
from zndraw_joblib.server.service.providers import MAX_PENDING_REQUESTS, check_owner, is_visible, not_found
from zndraw_joblib.server.store import provider_requests as store
from zndraw_joblib.server.store import providers as provider_store
from zndraw_joblib.server.store import workers as worker_store
from zndraw_joblib.server.store.database import Transaction
from zndraw_joblib.server.store.providers import ProviderRow

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


class Claim(NamedTuple):
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
    found = None
    if is_visible(room_id, name, cross_room=cross_room):
        found = await store.provider_and_request(tx, name, request_hash)
    if found is None:
        raise not_found(room_id, name)
    provider, request = found
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
    tx: Transaction, target: ProviderRef, request_hash: str, params: str, wanted: timedelta, asker: Asker
) -> bool:
    """Open a request and notify the provider's worker, unless the request is open already.

    Return whether the caller has to send the request, to the broker of an internal provider.
    Raises `ProviderNotFound`, and `TooManyRequests` for a provider with too many open requests, or if the
    user has opened its share of them.
    """
    provider = await _lock(tx, target)
    total, own = await store.count(tx, target.id, asker.user)
    if total >= MAX_PENDING_REQUESTS:
        raise _too_many(target, f"{total} open requests, which is the limit")
    if own >= asker.share:
        raise _too_many(
            target, f"{own} open requests of this caller, which is its share (max_share_per_user)"
        )
    if not await store.add(tx, provider, request_hash, params, await tx.now() + wanted, asker.user):
        return False
    if provider.worker_id is None:
        return True
    event = ProviderRequest(request_id=request_hash, provider_name=str(target.name), params=params)
    tx.emit((target.id, request_hash), lambda: Emission(event, providers_of(event.provider_name)))
    tx.wake(requests_key(provider.worker_id), 1)
    return False


def _too_many(target: ProviderRef, has: str) -> TooManyRequests:
    return TooManyRequests(
        f"Provider {str(target.name)!r} has {has}; repeat the request later", headers={"Retry-After": "2"}
    )


async def _lock(tx: Transaction, target: ProviderRef) -> ProviderRow:
    [*found] = await provider_store.lock(tx, [target.id], shared=True)
    if not found:
        raise ProviderNotFound(f"Provider {str(target.name)!r} was removed")
    return found[0]


def not_connected(target: ProviderRef) -> ProviderNotConnected:
    """Return the problem of a provider without a connected worker."""
    return ProviderNotConnected(
        f"No worker is connected for provider {str(target.name)!r}; repeat the request later",
        headers={"Retry-After": "2"},
    )


async def claim(tx: Transaction, item: Claim) -> ClaimedProviderRequest | None:
    """Claim the oldest open request to the providers of a worker.

    Raises `WorkerNotFound`, and `Forbidden` for a worker of another user.
    """
    worker = (await worker_store.lock(tx, [item.worker_id])).get(item.worker_id)
    if worker is None:
        raise WorkerNotFound(f"Worker {item.worker_id} not found")
    if worker.owner_id != item.caller.id:
        raise Forbidden("Not authorized: the worker belongs to another user")
    # A worker whose threads are all busy does not claim, but it is connected.
    is_busy = bool(await store.workers_with_unclaimed(tx, [item.worker_id]))
    connected_for = max(item.wait + CLAIM_GRACE, item.lease if is_busy else timedelta())
    await provider_store.extend_connection(tx, item.worker_id, await tx.now() + connected_for)
    found = await store.by_claim(tx, item.worker_id, item.claim_id) if item.claim_id is not None else None
    found = found or await store.claim(tx, item.worker_id, item.claim_id, item.lease, item.refused_rooms)
    if found is None:
        return None
    return ClaimedProviderRequest(
        request_id=found.request_hash,
        provider_id=found.provider_id,
        provider_name=str(found.provider_name),
        params=found.params,
    )


async def workers_with_requests(tx: Transaction, worker_ids: Sequence[UUID]) -> list[UUID]:
    """Return those of these workers that have unclaimed requests."""
    return await store.workers_with_unclaimed(tx, worker_ids) if worker_ids else []


async def find_for_upload(
    tx: Transaction, caller: Identity, provider_id: UUID, worker_id: UUID | None
) -> ProviderRef:
    """Return the provider for which the caller uploads a result.

    Raises `ProviderNotFound`, `Forbidden`, and `StaleResult` if another worker answers its requests now.
    """
    provider = await provider_store.by_id(tx, provider_id)
    if provider is None:
        raise ProviderNotFound(f"Provider {provider_id} not found")
    check_owner(provider.owner_id, caller)
    if worker_id is not None and worker_id != provider.worker_id:
        raise _stale(provider.name)
    return await _ref(tx, provider)


async def check_current(tx: Transaction, target: ProviderRef) -> None:
    """Raise `StaleResult` if a provider was removed or registered again since it was read."""
    provider = await provider_store.by_id(tx, target.id)
    if provider is None or provider.registration != target.registration:
        raise _stale(target.name)


async def discard(tx: Transaction, target: ProviderRef, request_hash: str) -> None:
    """Delete a request whose result could not be stored, and wake its readers to repeat it."""
    await store.remove(tx, target.id, request_hash)
    tx.wake(request_wait_key(target.name, request_hash))


async def complete(tx: Transaction, target: ProviderRef, request_hash: str) -> None:
    """Delete a request whose result is stored, and notify its readers.

    Raises `ProviderNotFound`, and `StaleResult` if the provider was registered again since it was read.
    """
    provider = await _lock(tx, target)
    if provider.registration != target.registration:
        raise _stale(target.name)
    await store.remove(tx, target.id, request_hash)
    room = room_of(target.name.room_id)
    event = ProviderResultReady(provider_name=str(target.name), request_hash=request_hash)
    tx.emit((target.id, request_hash), partial(Emission, event, room))
    tx.wake(request_wait_key(target.name, request_hash))


def _stale(name: JobName) -> StaleResult:
    return StaleResult(f"Provider {str(name)!r} was removed or registered again; this result is not used")
