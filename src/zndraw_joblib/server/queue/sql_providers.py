"""Providers, and which workers are registered for them."""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from zndraw_joblib.server.db.bulk import check_listed, padded
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.statements import FLOAT, INTEGER, TEXT, UUID_TYPE, one_row, statement
from zndraw_joblib.server.process.ports import Page
from zndraw_joblib.wire.names import GLOBAL, INTERNAL, JobName


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


# The columns of a `ProviderRow`.
COLUMNS = tuple(["name" if field == "short_name" else field for field in ProviderRow._fields])
_SELECT = f"SELECT {', '.join(COLUMNS)} FROM joblib_provider"
_IS_NAMED = "room_id = :room_id AND category = :category AND name = :name"
_BY_NAME = statement(f"{_SELECT} WHERE {_IS_NAMED}", *COLUMNS)
_LOCK_NAMED = statement(f"{_SELECT} WHERE {_IS_NAMED}\nFOR UPDATE", *COLUMNS)
# The first statement of a transaction selects the time too.
_SELECT_WITH_TIME = f"SELECT {', '.join(COLUMNS)}, CURRENT_TIMESTAMP FROM joblib_provider"
_BY_ID = statement(f"{_SELECT_WITH_TIME} WHERE id = :id", *COLUMNS, "now")
_BY_IDS = f"{_SELECT_WITH_TIME} WHERE id = ANY (:all_id) ORDER BY id"
_LOCK = statement(f"{_BY_IDS}\nFOR NO KEY UPDATE", *COLUMNS, "now")
_LOCK_SHARED = statement(f"{_BY_IDS}\nFOR KEY SHARE", *COLUMNS, "now")
_LOCK_ALONE = statement("SELECT id FROM joblib_provider WHERE id = :id\nFOR UPDATE", "id")
_ADD = statement(f"INSERT INTO joblib_provider {one_row(COLUMNS)} ON CONFLICT DO NOTHING RETURNING id", "id")
_REPLACE = statement(
    """
UPDATE joblib_provider SET
    schema = :schema, content_type = :content_type, owner_id = :owner_id, worker_id = :worker_id,
    registration = :registration, connected_until = :connected_until
WHERE id = :id
"""
)
_REMOVE = [
    statement("DELETE FROM joblib_provider_call WHERE provider_id = :id"),
    statement("DELETE FROM joblib_provider_worker WHERE provider_id = :id"),
    statement("DELETE FROM joblib_provider WHERE id = :id"),
]
# Both parameters are null if no providers are hidden.
_IS_HIDDEN = "room_id IS NOT DISTINCT FROM :room_id AND category IS NOT DISTINCT FROM :category"
_IS_LISTED = f"room_id = ANY (:all_room_id) AND NOT ({_IS_HIDDEN})"
_PAGE = statement(
    f"{_SELECT} WHERE {_IS_LISTED} ORDER BY created_at DESC, id DESC LIMIT :limit OFFSET :offset", *COLUMNS
)
_LISTED_BYTES = statement(
    f"""
SELECT coalesce(sum(octet_length(schema)), 0) FROM (
    SELECT schema FROM joblib_provider WHERE {_IS_LISTED}
    ORDER BY created_at DESC, id DESC LIMIT :limit OFFSET :offset
) AS listed
""",
    "size",
)
_COUNT_LISTED = statement(f"SELECT count(*) FROM joblib_provider WHERE {_IS_LISTED}", "number")
_CURRENT_WORKERS = statement(
    "SELECT id, worker_id FROM joblib_provider WHERE id = ANY (:all_id)", *("id", "worker_id")
)


def _set_connected(condition: str) -> str:
    return f"""
WITH locked AS (
    SELECT id FROM joblib_provider WHERE worker_id = :worker_id AND {condition}
    ORDER BY id
    FOR NO KEY UPDATE
)
UPDATE joblib_provider SET connected_until = :connected_until WHERE id IN (SELECT id FROM locked)
"""


_IS_EARLIER, _IS_LATER = "connected_until < :connected_until", "connected_until > :connected_until"
_IS_SOME, _IS_ELSEWHERE = "id = ANY (:all_id)", "NOT (room_id = ANY (:all_room_id))"
_EXTEND = statement(_set_connected(_IS_EARLIER))
_EXTEND_SOME = statement(_set_connected(f"{_IS_EARLIER} AND {_IS_SOME}"))
_EXTEND_ELSEWHERE = statement(_set_connected(f"{_IS_EARLIER} AND {_IS_ELSEWHERE}"))
_END, _END_SOME = (
    statement(f"{_set_connected(condition)}RETURNING room_id, category, name", *JobName._fields)
    for condition in (_IS_LATER, f"{_IS_LATER} AND {_IS_SOME}")
)
# The registrations of workers for providers. A row that a host has written by itself has none.
_LINK = statement(
    f"INSERT INTO joblib_provider_worker {one_row(('provider_id', *RegistrationRecord._fields))}"
)
_IS_LINK = "provider_id = :provider_id AND worker_id = :worker_id"
_UNLINK = {
    True: statement(f"DELETE FROM joblib_provider_worker WHERE {_IS_LINK} RETURNING n", "n"),
    False: statement("DELETE FROM joblib_provider_worker WHERE provider_id = :provider_id RETURNING n", "n"),
}
_UNLINK_WORKERS = statement("DELETE FROM joblib_provider_worker WHERE worker_id = ANY (:all_worker_id)")
_LINKED = statement(
    """
SELECT provider_id FROM joblib_provider_worker WHERE worker_id = ANY (:all_worker_id)
UNION ALL
SELECT id FROM joblib_provider WHERE worker_id = ANY (:all_worker_id)
""",
    "provider_id",
)
_IS_LINKED = statement(f"SELECT n FROM joblib_provider_worker WHERE {_IS_LINK}", "n")
_NEWEST = statement(
    f"""
SELECT {", ".join(RegistrationRecord._fields)} FROM joblib_provider_worker
WHERE provider_id = :provider_id ORDER BY n DESC LIMIT 1
""",
    *RegistrationRecord._fields,
)


async def add_or_lock(tx: Transaction, name: JobName, values: dict[str, Any]) -> tuple[ProviderRow, bool]:
    """Insert the provider of this name unless it exists. Return it, locked, and whether it is new."""
    row = {"id": uuid4(), "created_at": await tx.now(), **name._asdict(), **values}
    while True:
        is_new = (await tx.execute(_ADD, row)).first() is not None
        record = (await tx.execute(_LOCK_NAMED, row)).first()
        # Unlike a job, a provider may be deleted between the two statements.
        if record is not None:
            return ProviderRow(*record), is_new


async def by_name(tx: Transaction, name: JobName) -> ProviderRow | None:
    """Return the provider of this name."""
    row = (await tx.execute(_BY_NAME, name._asdict())).first()
    return None if row is None else ProviderRow(*row)


async def by_id(tx: Transaction, provider_id: UUID) -> ProviderRow | None:
    """Return a provider."""
    rows = (await tx.execute(_BY_ID, {"id": provider_id})).all()
    tx.record_now(rows)
    return ProviderRow(*rows[0][:-1]) if rows else None


async def lock(tx: Transaction, ids: Sequence[UUID], *, shared: bool = False) -> list[ProviderRow]:
    """Lock and return those of these providers that exist; a `shared` lock only prevents their deletion."""
    rows = (await tx.execute(_LOCK_SHARED if shared else _LOCK, {"all_id": padded(ids)})).all()
    tx.record_now(rows)
    return [ProviderRow(*row[:-1]) for row in rows]


async def replace(tx: Transaction, provider: ProviderRow) -> None:
    """Write a locked provider with a new registration, and assign its open requests to this, unclaimed."""
    row = provider._asdict()
    await tx.execute(_REPLACE, row)
    await tx.execute(_REASSIGN, row)


async def remove(tx: Transaction, provider_id: UUID) -> None:
    """Delete a provider, which the caller has locked, with its registrations and its open requests."""
    # A transaction that adds a request holds a shared lock. Waiting for it leaves no request behind.
    for locks_or_removes in (_LOCK_ALONE, *_REMOVE):
        await tx.execute(locks_or_removes, {"id": provider_id})


async def page(
    tx: Transaction, room_id: str, part: Page, hidden: tuple[str, str] | None = None
) -> tuple[list[ProviderRow], int]:
    """Return one page of the providers that a room lists, newest first, and the count of all.

    Those of the room and category `hidden` are left out. Raises `ContentTooLarge`.
    """
    room, category = hidden or (None, None)
    rooms = padded(sorted({room_id, GLOBAL, INTERNAL}))
    params = {"all_room_id": rooms, "room_id": room, "category": category, **part._asdict()}
    check_listed((await tx.execute(_LISTED_BYTES, params)).scalar_one(), part.limit)
    rows = (await tx.execute(_PAGE, params)).all()
    return [ProviderRow(*row) for row in rows], (await tx.execute(_COUNT_LISTED, params)).scalar_one()


async def link(tx: Transaction, provider_id: UUID, registration: RegistrationRecord) -> None:
    """Store a registration as the newest one of a provider."""
    await unlink(tx, provider_id, registration.worker_id)
    await tx.execute(_LINK, {"provider_id": provider_id, **registration._asdict()})


async def unlink(tx: Transaction, provider_id: UUID, worker_id: UUID | None = None) -> bool:
    """Delete the registration of a worker, or all of them. Return whether there was one."""
    params = {"provider_id": provider_id, "worker_id": worker_id}
    return bool((await tx.execute(_UNLINK[worker_id is not None], params)).all())


async def lock_and_unlink(tx: Transaction, worker_ids: Sequence[UUID]) -> list[ProviderRow]:
    """Delete all registrations of these workers. Return their providers, locked."""
    params = {"all_worker_id": padded(worker_ids)}
    ids = sorted(set((await tx.execute(_LINKED, params)).scalars()))
    unlinked = await lock(tx, ids) if ids else []
    if ids:
        await tx.execute(_UNLINK_WORKERS, params)
    return unlinked


async def is_linked(tx: Transaction, provider_id: UUID, worker_id: UUID) -> bool:
    """Return whether a worker is registered for a provider."""
    params = {"provider_id": provider_id, "worker_id": worker_id}
    return (await tx.execute(_IS_LINKED, params)).first() is not None


async def newest_registration(tx: Transaction, provider_id: UUID) -> RegistrationRecord | None:
    """Return the newest registration of a provider."""
    row = (await tx.execute(_NEWEST, {"provider_id": provider_id})).first()
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
    params = {"worker_id": worker_id, "connected_until": until}
    if only:
        await tx.execute(_EXTEND_SOME, {**params, "all_id": padded(only)})
    elif refused_rooms:
        await tx.execute(_EXTEND_ELSEWHERE, {**params, "all_room_id": padded([*refused_rooms])})
    else:
        await tx.execute(_EXTEND, params)


async def end_connection(
    tx: Transaction, worker_id: UUID, at: datetime, only: Sequence[UUID] = ()
) -> list[JobName]:
    """Let a worker count as connected only until `at`, for all its providers or for some of them.

    Return the names of the providers that changed.
    """
    params = {"worker_id": worker_id, "connected_until": at}
    if only:
        params["all_id"] = padded(only)
    return [JobName(*row) for row in await tx.execute(_END_SOME if only else _END, params)]


async def current_workers(tx: Transaction, ids: Sequence[UUID]) -> dict[UUID, UUID]:
    """Return the worker that answers the requests of each provider."""
    rows = await tx.execute(_CURRENT_WORKERS, {"all_id": padded(ids)})
    return {provider_id: worker_id for provider_id, worker_id in rows}


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


_PROVIDER_AND_REQUEST = statement(
    f"""
SELECT {", ".join(f"joblib_provider.{name}" for name in COLUMNS)},
    joblib_provider_call.registration AS request_registration, joblib_provider_call.expires_at,
    CURRENT_TIMESTAMP
FROM joblib_provider LEFT JOIN joblib_provider_call
    ON joblib_provider_call.provider_id = joblib_provider.id
    AND joblib_provider_call.request_hash = :request_hash
WHERE {_IS_NAMED}
""",
    *(*COLUMNS, "request_registration", "expires_at", "now"),
    request_registration=UUID_TYPE,
)
_COUNT = statement(
    """
SELECT count(*), count(CASE WHEN user_id = :user_id THEN 1 END) FROM joblib_provider_call
WHERE provider_id = :provider_id AND expires_at > :now
""",
    *("total", "own"),
)
_REQUEST_COLUMNS = (
    *("provider_id", "request_hash", "params", "registration", "sent_at", "expires_at", "user_id"),
)
_RENEWED = ("registration", "sent_at", "expires_at", "user_id")
_RENEW = f"""ON CONFLICT (provider_id, request_hash) DO UPDATE
SET {", ".join(f"{name} = excluded.{name}" for name in _RENEWED)}
WHERE joblib_provider_call.expires_at <= excluded.sent_at
    OR joblib_provider_call.registration <> excluded.registration"""
_OPEN = statement(
    f"""
INSERT INTO joblib_provider_call {one_row(_REQUEST_COLUMNS)}
{_RENEW}
RETURNING n
""",
    "n",
)
_SELECT_REQUESTS = """
SELECT n, provider_id, request_hash, params, room_id, category, name
FROM joblib_provider_call JOIN joblib_provider ON joblib_provider_call.provider_id = joblib_provider.id"""
_BY_CLAIM = statement(
    f"{_SELECT_REQUESTS} WHERE claimed_by = :claimed_by AND claim_id = :claim_id", *RequestRecord._fields
)
_UNCLAIMED = statement(
    f"""
{_SELECT_REQUESTS}
WHERE provider_id = :provider_id AND expires_at > :now AND claimed_at IS NULL
ORDER BY n LIMIT :limit
""",
    *RequestRecord._fields,
)
_REASSIGN = statement(
    """
UPDATE joblib_provider_call
SET registration = :registration, claimed_by = NULL, claimed_at = NULL, claim_id = NULL
WHERE provider_id = :id
"""
)
_REMOVE_REQUEST = statement(
    "DELETE FROM joblib_provider_call WHERE provider_id = :provider_id AND request_hash = :request_hash"
)
_LOCK_OLDEST, _LOCK_OLDEST_ELSEWHERE = (
    statement(
        f"""
{_SELECT_REQUESTS}
WHERE worker_id = :worker_id AND expires_at > :now AND (claimed_at IS NULL OR claimed_at < :since){condition}
ORDER BY n LIMIT 1
FOR UPDATE OF joblib_provider_call SKIP LOCKED
""",
        *RequestRecord._fields,
    )
    for condition in ("", f" AND {_IS_ELSEWHERE}")
)
_CLAIM = statement(
    """
UPDATE joblib_provider_call SET claimed_by = :worker_id, claimed_at = :now, claim_id = :claim_id WHERE n = :n
"""
)
_WORKERS = statement(
    """
SELECT DISTINCT worker_id
FROM joblib_provider_call JOIN joblib_provider ON joblib_provider_call.provider_id = joblib_provider.id
WHERE worker_id = ANY (:all_worker_id) AND claimed_at IS NULL AND expires_at > :now
""",
    "worker_id",
)
_LOCK_EXPIRED = statement(
    """
SELECT n FROM joblib_provider_call WHERE expires_at < :at ORDER BY expires_at LIMIT :limit
FOR UPDATE SKIP LOCKED
""",
    "n",
)
_REMOVE_REQUESTS = statement("DELETE FROM joblib_provider_call WHERE n = ANY (:all_n)")
# The locks are those of `_LOCK_SHARED`. A request that is lost in a crash of PostgreSQL is sent again.
_OPEN_ALONE = statement(
    f"""
WITH target AS (
    SELECT id, registration, worker_id, coalesce(:at, now()) AS sent_at FROM joblib_provider
    WHERE id = :provider_id AND worker_id IS NOT NULL
        AND set_config('synchronous_commit', 'off', true) = 'off'
    FOR KEY SHARE
), counted AS (
    SELECT count(*) AS total, count(*) FILTER (WHERE user_id = :user_id) AS own FROM joblib_provider_call
    WHERE provider_id = :provider_id AND expires_at > coalesce(:at, now())
), added AS (
    INSERT INTO joblib_provider_call ({", ".join(_REQUEST_COLUMNS)})
    SELECT id, :request_hash, :params, registration, sent_at,
        sent_at + make_interval(secs => :lifetime), :user_id
    FROM target, counted WHERE total < :request_limit AND own < :share
    {_RENEW}
    RETURNING n
)
SELECT worker_id FROM target, added
""",
    "worker_id",
    lifetime=FLOAT,
    request_limit=INTEGER,
    share=INTEGER,
    params=TEXT,
)
_REMOVE_ALONE = statement(
    """
WITH target AS (
    SELECT id FROM joblib_provider WHERE id = :provider_id AND registration = :registration FOR KEY SHARE
)
DELETE FROM joblib_provider_call USING target
WHERE joblib_provider_call.provider_id = target.id AND joblib_provider_call.request_hash = :request_hash
RETURNING joblib_provider_call.n
""",
    "n",
)


async def provider_and_request(
    tx: Transaction, name: JobName, request_hash: str
) -> tuple[ProviderRow, OpenRequest | None] | None:
    """Return the provider of this name, and its open request of this hash if there is one."""
    rows = (await tx.execute(_PROVIDER_AND_REQUEST, {**name._asdict(), "request_hash": request_hash})).all()
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
    return (await tx.execute(_OPEN, row)).first() is not None


async def add_on_postgresql(  # noqa: PLR0913, PLR0917 - one argument per condition and value
    tx: Transaction,
    provider_id: UUID,
    request_hash: str,
    params: str,
    lifetime: timedelta,
    user_id: str | None,
    request_limit: int,
    share: int,
) -> UUID | None:
    """Open a request of a user in one statement, and return the provider's worker.

    Return None, after which nothing was written, if the request is open already, if the provider has no
    worker or does not exist, if it has `request_limit` open requests, or if the user has opened `share`.
    """
    values = {
        "provider_id": provider_id,
        "request_hash": request_hash,
        "params": params,
        "lifetime": lifetime.total_seconds(),
        "user_id": user_id,
        "request_limit": request_limit,
        "share": share,
        "at": await tx.now() if tx.has_own_clock else None,
    }
    rows = await tx.execute_alone(_OPEN_ALONE, values)
    return rows[0].worker_id if rows else None


async def remove_request_of(
    tx: Transaction, provider_id: UUID, registration: UUID, request_hash: str
) -> bool:
    """Delete a request of the provider's current registration, in one statement on PostgreSQL.

    Return whether there was one; otherwise nothing was written.
    """
    if tx.is_sqlite:
        return False
    values = {"provider_id": provider_id, "registration": registration, "request_hash": request_hash}
    return bool(await tx.execute_alone(_REMOVE_ALONE, values))


async def count(tx: Transaction, provider_id: UUID, user_id: str | None) -> tuple[int, int]:
    """Count the open requests of a provider, and those of them that a user has opened."""
    params = {"provider_id": provider_id, "now": await tx.now(), "user_id": user_id}
    total, own = (await tx.execute(_COUNT, params)).one()
    return total, own


async def unclaimed(tx: Transaction, provider_id: UUID, limit: int) -> list[RequestRecord]:
    """Return the open requests of a provider that no worker has claimed, oldest first."""
    params = {"provider_id": provider_id, "now": await tx.now(), "limit": limit}
    return [RequestRecord(*row) for row in await tx.execute(_UNCLAIMED, params)]


async def remove_request(tx: Transaction, provider_id: UUID, request_hash: str) -> None:
    """Delete a request."""
    await tx.execute(_REMOVE_REQUEST, {"provider_id": provider_id, "request_hash": request_hash})


async def by_claim(tx: Transaction, worker_id: UUID, claim_id: UUID) -> RequestRecord | None:
    """Return the request that a worker has claimed with this claim id."""
    row = (await tx.execute(_BY_CLAIM, {"claimed_by": worker_id, "claim_id": claim_id})).first()
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
    params = {"worker_id": worker_id, "now": now, "since": now - lease}
    if refused_rooms:
        params["all_room_id"] = padded([*refused_rooms])
    row = (await tx.execute(_LOCK_OLDEST_ELSEWHERE if refused_rooms else _LOCK_OLDEST, params)).first()
    if row is None:
        return None
    record = RequestRecord(*row)
    await tx.execute(_CLAIM, {"worker_id": worker_id, "now": now, "n": record.n, "claim_id": claim_id})
    return record


async def workers_with_unclaimed(tx: Transaction, worker_ids: Sequence[UUID]) -> list[UUID]:
    """Return which of these workers have providers with unclaimed open requests."""
    params = {"all_worker_id": padded(worker_ids), "now": await tx.now()}
    return list((await tx.execute(_WORKERS, params)).scalars())


async def prune(tx: Transaction, before: datetime, limit: int) -> int:
    """Delete up to `limit` requests that expired before a time. Return how many."""
    rows = (await tx.execute(_LOCK_EXPIRED, {"at": before, "limit": limit})).scalars().all()
    if rows:
        await tx.execute(_REMOVE_REQUESTS, {"all_n": padded(rows)})
    return len(rows)
