"""Reads: asked of a provider, claimed by its worker, answered for all who wait."""

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple
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
from zndraw_joblib.server.store import providers as store
from zndraw_joblib.server.store import workers as worker_store
from zndraw_joblib.server.store.database import Transaction

# Who asks for reads by hand may pause in between.
CLAIM_GRACE = timedelta(seconds=15)


class ProviderRef(NamedTuple):
    """A provider, as somebody who reads from it needs it.

    `connected_for` is for how many seconds somebody may be taken to be connected; less than zero: nobody is.
    It was made `age` seconds ago. `is_pending`: the read waits for its answer already.
    """

    id: UUID
    name: JobName
    owner_id: str
    worker_id: UUID
    content_type: str
    registration: UUID
    connected_for: float
    age: float
    is_pending: bool


class Claim(NamedTuple):
    """A worker asks for a read, for up to `wait`; it has `lease` to answer it."""

    caller: Identity
    worker_id: UUID
    claim_id: UUID | None
    wait: timedelta
    lease: timedelta


async def find(
    tx: Transaction, room_id: str, name: JobName, request_hash: str, *, cross_room: bool
) -> ProviderRef:
    """Return the provider to read from. Raises `ProviderNotFound`."""
    row = None
    if is_visible(room_id, name, cross_room=cross_room):
        row = await store.by_name_with_request(tx, name, request_hash)
    if row is None:
        raise not_found(room_id, name)
    is_pending = row.asked_of == row.registration and row.asked_until > await tx.now()
    return await _target(tx, row, is_pending=is_pending)


async def _target(tx: Transaction, row: Any, *, is_pending: bool = False) -> ProviderRef:
    now = await tx.now()
    return ProviderRef(
        id=row.id,
        name=store.name_of(row),
        owner_id=row.owner_id,
        worker_id=row.worker_id,
        content_type=row.content_type,
        registration=row.registration,
        connected_for=(row.heard_until - now).total_seconds(),
        age=(now - row.created_at).total_seconds(),
        is_pending=is_pending,
    )


async def create(
    tx: Transaction, target: ProviderRef, request_hash: str, params: str, wanted: timedelta
) -> None:
    """Let a read wait, and let whoever is connected know of it; unless it waits already.

    Raises `ProviderNotFound`, and `TooManyRequests` where too many wait already.
    """
    [*found] = await store.lock(tx, [target.id], shared=True)
    if not found:
        raise ProviderNotFound(f"Provider {str(target.name)!r} is gone")
    if await store.count_requests(tx, target.id) >= MAX_PENDING_REQUESTS:
        raise TooManyRequests(
            f"{MAX_PENDING_REQUESTS} reads wait for provider {str(target.name)!r} already",
            headers={"Retry-After": "2"},
        )
    if not await store.add_request(tx, found[0], request_hash, params, await tx.now() + wanted):
        return
    event = ProviderRequest(request_id=request_hash, provider_name=str(target.name), params=params)
    tx.emit((target.id, request_hash), lambda: Emission(event, providers_of(event.provider_name)))
    tx.wake(requests_key(found[0].worker_id), 1)


def not_connected(target: ProviderRef) -> ProviderNotConnected:
    """Return the problem of a provider that nobody is connected for."""
    return ProviderNotConnected(
        f"Nobody is connected for provider {str(target.name)!r}; its worker may come back",
        headers={"Retry-After": "2"},
    )


async def claim(tx: Transaction, item: Claim) -> ClaimedProviderRequest | None:
    """Give a worker the oldest read that waits for one of its providers; None if none does.

    Raises `WorkerNotFound`, and `Forbidden` for somebody else's worker.
    """
    row = (await worker_store.lock(tx, [item.worker_id])).get(item.worker_id)
    if row is None:
        raise WorkerNotFound(f"Worker {item.worker_id} not found")
    if row.owner_id != item.caller.id:
        raise Forbidden("Not authorized: the worker belongs to somebody else")
    # Who reads is there, even if it has no thread left that claims.
    is_busy = bool(await store.workers_with_requests(tx, [item.worker_id]))
    connected_for = max(item.wait + CLAIM_GRACE, item.lease if is_busy else timedelta())
    await store.extend_connection(tx, item.worker_id, await tx.now() + connected_for)
    found = (
        await store.request_of_claim(tx, item.worker_id, item.claim_id) if item.claim_id is not None else None
    )
    found = found or await store.claim_request(tx, item.worker_id, item.claim_id, item.lease)
    if found is None:
        return None
    return ClaimedProviderRequest(
        request_id=found.request_hash,
        provider_id=found.provider_id,
        provider_name=str(store.name_of(found)),
        params=found.params,
    )


async def workers_with_requests(tx: Transaction, worker_ids: Sequence[UUID]) -> list[UUID]:
    """Return those of these workers for whom reads wait."""
    return await store.workers_with_requests(tx, worker_ids) if worker_ids else []


async def find_for_upload(
    tx: Transaction, caller: Identity, provider_id: UUID, worker_id: UUID | None
) -> ProviderRef:
    """Return the provider for which somebody brings a result.

    Raises `ProviderNotFound`, `Forbidden`, and `StaleResult` where another worker answers for it by now.
    """
    row = await store.by_id(tx, provider_id)
    if row is None:
        raise ProviderNotFound(f"Provider {provider_id} not found")
    check_owner(row.owner_id, caller)
    if worker_id is not None and worker_id != row.worker_id:
        raise _stale(store.name_of(row))
    return await _target(tx, row)


async def check_current(tx: Transaction, target: ProviderRef) -> None:
    """Raise `StaleResult` where a provider was registered anew since it was looked at, or is gone."""
    row = await store.by_id(tx, target.id)
    if row is None or row.registration != target.registration:
        raise _stale(target.name)


async def discard(tx: Transaction, target: ProviderRef, request_hash: str) -> None:
    """Let those who wait for a read ask again: what was brought could not be kept."""
    await store.remove_request(tx, target.id, request_hash)
    tx.wake(request_wait_key(target.name, request_hash))


async def complete(tx: Transaction, target: ProviderRef, request_hash: str) -> None:
    """Note that a result is there, and let those who wait know. Raises `StaleResult` as `answering`."""
    [*found] = await store.lock(tx, [target.id], shared=True)
    if not found:
        raise ProviderNotFound(f"Provider {str(target.name)!r} is gone")
    if found[0].registration != target.registration:
        raise _stale(target.name)
    await store.remove_request(tx, target.id, request_hash)
    room = room_of(target.name.room_id)
    event = ProviderResultReady(provider_name=str(target.name), request_hash=request_hash)
    tx.emit((target.id, request_hash), partial(Emission, event, room))
    tx.wake(request_wait_key(target.name, request_hash))


def _stale(name: JobName) -> StaleResult:
    return StaleResult(f"Provider {str(name)!r} was registered anew since, or is gone; nobody waits for this")
