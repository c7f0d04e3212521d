"""Server processes, the cycles of their sweepers, and bearer tokens."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from pydantic_core import from_json, to_json
from sqlalchemy.exc import IntegrityError

from zndraw_joblib.server.db.bulk import padded
from zndraw_joblib.server.db.column_types import UtcDateTime
from zndraw_joblib.server.db.database import Database, Transaction
from zndraw_joblib.server.db.statements import one_row, statement
from zndraw_joblib.server.db.tables import Server, SweepCycle
from zndraw_joblib.server.process.ports import Identity, WorkerGrant

_SERVER, _CYCLE = Server.__table__.c.keys(), SweepCycle.__table__.c.keys()
_PUT_SERVER = statement(
    f"""
INSERT INTO joblib_server {one_row(_SERVER)}
ON CONFLICT (id) DO UPDATE SET
    {", ".join(f"{name} = excluded.{name}" for name in _SERVER if name not in {"id", "started_at"})}
"""
)
_ADD_CYCLE = statement(f"INSERT INTO joblib_sweep_cycle {one_row([name for name in _CYCLE if name != 'n'])}")
_REMOVE_SERVER = statement("DELETE FROM joblib_server WHERE id = :id")
_PRUNE_SERVERS = statement("DELETE FROM joblib_server WHERE seen_at < :at")
_PRUNE_CYCLES = statement("DELETE FROM joblib_sweep_cycle WHERE at < :at")
_LIMIT_CYCLES = statement(
    "DELETE FROM joblib_sweep_cycle WHERE n <= (SELECT max(n) FROM joblib_sweep_cycle) - :limit"
)
_SEEN_SINCE = statement(
    f"SELECT {', '.join(_SERVER)} FROM joblib_server WHERE seen_at >= :at ORDER BY started_at, id", *_SERVER
)
_LAST_CYCLES = statement(
    f"SELECT {', '.join(_CYCLE)} FROM joblib_sweep_cycle ORDER BY n DESC LIMIT :limit", *_CYCLE
)


async def put_server(tx: Transaction, row: Mapping[str, Any]) -> None:
    """Insert or replace the row of a server; its `started_at` stays."""
    await tx.execute(_PUT_SERVER, row)


async def add_cycle(tx: Transaction, row: Mapping[str, Any]) -> None:
    """Insert the summary of a cycle."""
    await tx.execute(_ADD_CYCLE, row)


async def remove_server(tx: Transaction, server_id: UUID) -> None:
    """Delete a server. Its cycles stay."""
    await tx.execute(_REMOVE_SERVER, {"id": server_id})


async def prune_servers(tx: Transaction, *, seen_since: datetime, cycles_since: datetime, limit: int) -> None:
    """Delete servers that were not seen since a time, old cycles, and all but the newest `limit` cycles."""
    await tx.execute(_PRUNE_SERVERS, {"at": seen_since})
    await tx.execute(_PRUNE_CYCLES, {"at": cycles_since})
    await tx.execute(_LIMIT_CYCLES, {"limit": limit})


async def seen_since(tx: Transaction, at: datetime) -> list[Any]:
    """Return the rows of the servers that have reported since a time, the oldest first."""
    return list(await tx.execute(_SEEN_SINCE, {"at": at}))


async def last_cycles(tx: Transaction, limit: int) -> list[Any]:
    """Return the rows of the last cycles of all servers, newest first."""
    return list(await tx.execute(_LAST_CYCLES, {"limit": limit}))


# Bearer tokens of the standalone server. Only the SHA-256 of a token is stored.


class TokenRights(NamedTuple):
    """The roles, scopes, rooms and patterns of jobs of a token; None for what users without roles may do."""

    roles: Sequence[str] | None = None
    rooms: Sequence[str] | None = None
    jobs: Sequence[str] | None = None
    expires_at: datetime | None = None


DEFAULT_RIGHTS = TokenRights()


class TokenRecord(NamedTuple):
    """A token's row, without the digest. Lists are JSON."""

    name: str
    is_superuser: bool
    created_at: datetime
    roles: str | None
    rooms: str | None
    jobs: str | None
    expires_at: datetime | None
    last_used_at: datetime | None
    issued_by: str | None
    max_tasks: int | None
    claims: int | None
    labels: dict[str, Any] | None

    @property
    def identity(self) -> Identity:
        """The identity of who has the token."""
        roles, rooms, jobs = [
            None if text is None else from_json(text) for text in (self.roles, self.rooms, self.jobs)
        ]
        identity = Identity(self.name, self.is_superuser, roles, rooms, jobs).limited()
        if self.issued_by is None:
            return identity
        labels = tuple((self.labels or {}).items())
        return identity._replace(worker=WorkerGrant(self.max_tasks, labels))


class EndingToken(NamedTuple):
    """A token that ends soon, and how operators know its workers: by name, by host, or by id."""

    name: str
    expires_at: datetime
    workers: list[str]


_SELECT = f"SELECT {', '.join(TokenRecord._fields)} FROM joblib_token"
_BY_DIGEST = statement(f"{_SELECT} WHERE digest = :digest", *TokenRecord._fields)
_BY_NAME = statement(f"{_SELECT} WHERE name = :name", *TokenRecord._fields)
_LIST = statement(f"{_SELECT} ORDER BY name", *TokenRecord._fields)
_EXISTING = statement(
    "SELECT digest, expires_at FROM joblib_token WHERE digest = ANY (:all_digest)", "digest", "expires_at"
)
# It locks the rows in the order in which claims lock those of tokens with a limit.
_RECORD_USE = statement(
    """
WITH locked AS (
    SELECT name FROM joblib_token
    WHERE digest = ANY (:all_digest) AND (last_used_at IS NULL OR last_used_at < :at)
    ORDER BY name
    FOR NO KEY UPDATE
)
UPDATE joblib_token SET last_used_at = :now WHERE name IN (SELECT name FROM locked)
"""
)
_USE_INTERVAL = timedelta(minutes=1)
_COUNT = statement("SELECT count(*) FROM joblib_token", "number")
_IS_TAKEN = statement("SELECT name FROM joblib_token WHERE name = :name OR digest = :digest", "name")
_STORED = ("name", "digest", "is_superuser", "created_at", *TokenRights._fields)
_ADD = statement(f"INSERT INTO joblib_token {one_row(_STORED)}")
_LOCK_ONE = statement(f"{_SELECT} WHERE name = :name\nFOR UPDATE", *TokenRecord._fields)
_BY_NAMES = statement(f"{_SELECT} WHERE name = ANY (:all_name)", *TokenRecord._fields)
_SET_RIGHTS = statement(
    """
UPDATE joblib_token
SET is_superuser = :is_superuser, roles = :roles, rooms = :rooms, jobs = :jobs, expires_at = :expires_at
WHERE name = :name
"""
)
_MAX_ENDING = 100
_ENDING = statement(
    """
SELECT name, expires_at FROM joblib_token
WHERE expires_at IS NOT NULL AND issued_by IS NULL AND expires_at > :now AND expires_at <= :until
ORDER BY expires_at LIMIT :limit
""",
    *("name", "expires_at"),
    until=UtcDateTime(),
)
_WORKERS_OF = statement(
    """
SELECT owner_id, id, name, host, pid FROM joblib_worker
WHERE owner_id = ANY (:all_name) AND last_heartbeat >= :silent_since
ORDER BY created_at, id
""",
    *("owner_id", "id", "name", "host", "pid"),
    silent_since=UtcDateTime(),
)
_OF_ISSUER = "name = :name OR issued_by = :name"
_LOCK = statement(f"SELECT name FROM joblib_token WHERE {_OF_ISSUER} ORDER BY name\nFOR UPDATE", "name")
_REMOVE = statement(f"DELETE FROM joblib_token WHERE {_OF_ISSUER} RETURNING name", "name")


async def add_token(
    tx: Transaction, name: str, digest: str, *, is_superuser: bool, rights: TokenRights = DEFAULT_RIGHTS
) -> bool:
    """Store a token's digest. Return whether the name was free.

    Servers of an earlier schema know only `is_superuser`.
    """
    row = {"name": name, "digest": digest, "is_superuser": is_superuser, "created_at": await tx.now()}
    row |= _columns(rights)
    if (await tx.execute(_IS_TAKEN, row)).first() is not None:
        return False
    await tx.execute(_ADD, row)
    return True


def _columns(rights: TokenRights) -> dict[str, Any]:
    lists = {field: value and to_json(value).decode() for field, value in rights._asdict().items()}
    return {**lists, "expires_at": rights.expires_at}


async def lock_token(tx: Transaction, name: str) -> TokenRecord | None:
    """Lock a token until the commit, and return it; None if there is none."""
    row = (await tx.execute(_LOCK_ONE, {"name": name})).first()
    return None if row is None else TokenRecord(*row)


async def set_rights(tx: Transaction, name: str, *, is_superuser: bool, rights: TokenRights) -> None:
    """Replace the rights of a token."""
    await tx.execute(_SET_RIGHTS, {"name": name, "is_superuser": is_superuser, **_columns(rights)})


async def tokens_by_name(tx: Transaction, names: Collection[str]) -> list[TokenRecord]:
    """Return those of the tokens with these names that have not expired."""
    rows = (await tx.execute(_BY_NAMES, {"all_name": padded(sorted(names))})).all()
    now = await tx.now() if any(row.expires_at is not None for row in rows) else None
    return [
        TokenRecord(*row) for row in rows if row.expires_at is None or now is None or row.expires_at > now
    ]


async def token_by_digest(tx: Transaction, digest: str) -> TokenRecord | None:
    """Return the token with this digest, unless it has expired."""
    return await _valid(tx, (await tx.execute(_BY_DIGEST, {"digest": digest})).first())


async def token_by_name(tx: Transaction, name: str) -> TokenRecord | None:
    """Return the token with this name, unless it has expired."""
    return await _valid(tx, (await tx.execute(_BY_NAME, {"name": name})).first())


async def _valid(tx: Transaction, row: Any) -> TokenRecord | None:
    if row is None or (row.expires_at is not None and row.expires_at <= await tx.now()):
        return None
    return TokenRecord(*row)


async def existing_tokens(tx: Transaction, digests: Collection[str]) -> set[str]:
    """Return which of these digests belong to a token that has not expired."""
    rows = (await tx.execute(_EXISTING, {"all_digest": padded(list(digests))})).all()
    now = await tx.now() if any(row.expires_at is not None for row in rows) else None
    return {row.digest for row in rows if row.expires_at is None or now is None or row.expires_at > now}


async def record_use(tx: Transaction, digests: Collection[str]) -> None:
    """Record that tokens are used now, unless that is recorded for the last minute."""
    now = await tx.now()
    await tx.execute(
        _RECORD_USE, {"now": now, "at": now - _USE_INTERVAL, "all_digest": padded(list(digests))}
    )


async def ending_tokens(tx: Transaction, within: timedelta, silent_since: datetime) -> list[EndingToken]:
    """Return the tokens with workers that end within a time, the first to end first.

    Those that were issued for workers end with their allocations, and are left out. Workers without a
    heartbeat since `silent_since` do not count.
    """
    now = await tx.now()
    params: dict[str, Any] = {"now": now, "until": now + within, "limit": _MAX_ENDING}
    ends = {row.name: row.expires_at for row in await tx.execute(_ENDING, params)}
    if not ends:
        return []
    workers: dict[str, list[str]] = {}
    params = {"all_name": padded(sorted(ends)), "silent_since": silent_since}
    for row in await tx.execute(_WORKERS_OF, params):
        shown = row.name or (f"{row.host} (pid {row.pid})" if row.host else str(row.id))
        workers.setdefault(row.owner_id, []).append(shown)
    return [EndingToken(name, at, workers[name]) for name, at in ends.items() if name in workers]


async def list_tokens(tx: Transaction) -> list[TokenRecord]:
    """Return all tokens by name."""
    return [TokenRecord(*row) for row in await tx.execute(_LIST)]


async def count_tokens(tx: Transaction) -> int:
    """Count the tokens."""
    number: int = (await tx.execute(_COUNT)).scalar_one()
    return number


async def remove_token(tx: Transaction, name: str) -> bool:
    """Delete a token, and those that it has issued. Return whether there was one."""
    # From then on it issues no more. The second statement also sees what it has issued until then.
    await tx.execute(_LOCK, {"name": name})
    return (await tx.execute(_REMOVE, {"name": name})).first() is not None


async def add_first_token(database: Database, name: str, digest: str) -> bool:
    """Store a superuser's token if there is no token yet. Return whether it was stored."""
    try:
        return (await database.write(_add_if_empty, name=name, digest=digest))[0]
    except IntegrityError:
        # Another server stored its first token at the same time.
        return False


async def _add_if_empty(tx: Transaction, name: str, digest: str) -> bool:
    if await count_tokens(tx):
        return False
    return await add_token(tx, name, digest, is_superuser=True)
