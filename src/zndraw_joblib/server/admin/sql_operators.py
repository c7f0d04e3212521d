"""Server processes, the cycles of their sweepers, and bearer tokens."""

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import bindparam, delete, func, insert, select
from sqlalchemy.exc import IntegrityError

from zndraw_joblib.server.db.bulk import among, padded
from zndraw_joblib.server.db.database import Database, Transaction, dialect
from zndraw_joblib.server.db.tables import Server, SweepCycle, Token

servers = Server.__table__
cycles = SweepCycle.__table__


async def put_server(tx: Transaction, row: Mapping[str, Any]) -> None:
    """Insert or replace the row of a server; its `started_at` stays."""
    added = dialect(tx).insert(servers).values(dict(row))
    changing = {name: added.excluded[name] for name in row if name not in {"id", "started_at"}}
    await tx.execute(added.on_conflict_do_update(index_elements=["id"], set_=changing))


async def add_cycle(tx: Transaction, row: Mapping[str, Any]) -> None:
    """Insert the summary of a cycle."""
    await tx.execute(insert(cycles), [dict(row)])


async def remove_server(tx: Transaction, server_id: UUID) -> None:
    """Delete a server. Its cycles stay."""
    await tx.execute(delete(servers).where(servers.c.id == server_id))


async def prune_servers(tx: Transaction, *, seen_since: datetime, cycles_since: datetime, limit: int) -> None:
    """Delete servers that were not seen since a time, old cycles, and all but the newest `limit` cycles."""
    await tx.execute(delete(servers).where(servers.c.seen_at < seen_since))
    await tx.execute(delete(cycles).where(cycles.c.at < cycles_since))
    newest = select(func.max(cycles.c.n)).scalar_subquery()
    await tx.execute(delete(cycles).where(cycles.c.n <= newest - limit))


async def seen_since(tx: Transaction, at: datetime) -> list[Any]:
    """Return the rows of the servers that have reported since a time, the oldest first."""
    statement = select(servers).where(servers.c.seen_at >= at).order_by(servers.c.started_at, servers.c.id)
    return list(await tx.execute(statement))


async def last_cycles(tx: Transaction, limit: int) -> list[Any]:
    """Return the rows of the last cycles of all servers, newest first."""
    return list(await tx.execute(select(cycles).order_by(cycles.c.n.desc()).limit(limit)))


# Bearer tokens of the standalone server. Only the SHA-256 of a token is stored.

tokens = Token.__table__


class TokenRecord(NamedTuple):
    """A token's row, without the digest."""

    name: str
    is_superuser: bool
    created_at: datetime


_EXISTING = select(tokens.c.digest).where(among(tokens.c.digest, bindparam("digests")))
_SELECT = select(tokens.c.name, tokens.c.is_superuser, tokens.c.created_at)


async def add_token(tx: Transaction, name: str, digest: str, *, is_superuser: bool) -> bool:
    """Store a token's digest. Return whether the name was free."""
    same = select(tokens.c.name).where((tokens.c.name == name) | (tokens.c.digest == digest))
    if (await tx.execute(same)).first() is not None:
        return False
    row = {"name": name, "digest": digest, "is_superuser": is_superuser, "created_at": await tx.now()}
    await tx.execute(insert(tokens), [row])
    return True


async def token_by_digest(tx: Transaction, digest: str) -> TokenRecord | None:
    """Return the token with this digest."""
    row = (await tx.execute(_SELECT.where(tokens.c.digest == digest))).first()
    return None if row is None else TokenRecord(*row)


async def token_by_name(tx: Transaction, name: str) -> TokenRecord | None:
    """Return the token with this name."""
    row = (await tx.execute(_SELECT.where(tokens.c.name == name))).first()
    return None if row is None else TokenRecord(*row)


async def existing_tokens(tx: Transaction, digests: Collection[str]) -> set[str]:
    """Return which of these digests belong to a token."""
    return set((await tx.execute(_EXISTING, {"digests": padded(list(digests))})).scalars())


async def list_tokens(tx: Transaction) -> list[TokenRecord]:
    """Return all tokens by name."""
    return [TokenRecord(*row) for row in await tx.execute(_SELECT.order_by(tokens.c.name))]


async def count_tokens(tx: Transaction) -> int:
    """Count the tokens."""
    number: int = (await tx.execute(select(func.count()).select_from(tokens))).scalar_one()
    return number


async def remove_token(tx: Transaction, name: str) -> bool:
    """Delete a token. Return whether it existed."""
    deleted = delete(tokens).where(tokens.c.name == name).returning(tokens.c.name)
    return (await tx.execute(deleted)).first() is not None


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
