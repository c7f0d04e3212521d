"""Bearer tokens of the standalone server. Only the SHA-256 of a token is stored."""

from collections.abc import Collection
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import bindparam, delete, func, insert, select
from sqlalchemy.exc import IntegrityError

from zndraw_joblib.server.store.bulk import among, padded
from zndraw_joblib.server.store.database import Database, Transaction
from zndraw_joblib.server.store.tables import Token

tokens = Token.__table__


class TokenRecord(NamedTuple):
    """A token's row, without the digest."""

    name: str
    is_superuser: bool
    created_at: datetime


_EXISTING = select(tokens.c.digest).where(among(tokens.c.digest, bindparam("digests")))
_SELECT = select(tokens.c.name, tokens.c.is_superuser, tokens.c.created_at)


async def add(tx: Transaction, name: str, digest: str, *, is_superuser: bool) -> bool:
    """Store a token's digest. Return whether the name was free."""
    known = select(tokens.c.name).where((tokens.c.name == name) | (tokens.c.digest == digest))
    if (await tx.execute(known)).first() is not None:
        return False
    row = {"name": name, "digest": digest, "is_superuser": is_superuser, "created_at": await tx.now()}
    await tx.execute(insert(tokens), [row])
    return True


async def by_digest(tx: Transaction, digest: str) -> TokenRecord | None:
    """Return the token with this digest."""
    row = (await tx.execute(_SELECT.where(tokens.c.digest == digest))).first()
    return None if row is None else TokenRecord(*row)


async def by_name(tx: Transaction, name: str) -> TokenRecord | None:
    """Return the token with this name."""
    row = (await tx.execute(_SELECT.where(tokens.c.name == name))).first()
    return None if row is None else TokenRecord(*row)


async def existing(tx: Transaction, digests: Collection[str]) -> set[str]:
    """Return those of these digests that belong to a token."""
    return set((await tx.execute(_EXISTING, {"digests": padded(list(digests))})).scalars())


async def list_all(tx: Transaction) -> list[TokenRecord]:
    """Return all tokens by name."""
    return [TokenRecord(*row) for row in await tx.execute(_SELECT.order_by(tokens.c.name))]


async def count(tx: Transaction) -> int:
    """Count the tokens."""
    found: int = (await tx.execute(select(func.count()).select_from(tokens))).scalar_one()
    return found


async def remove(tx: Transaction, name: str) -> bool:
    """Delete a token. Return whether it existed."""
    deleted = delete(tokens).where(tokens.c.name == name).returning(tokens.c.name)
    return (await tx.execute(deleted)).first() is not None


async def add_first(database: Database, name: str, digest: str) -> bool:
    """Store a superuser's token if there is no token yet. Return whether it was stored."""
    try:
        return (await database.write(_add_if_empty, name=name, digest=digest))[0]
    except IntegrityError:
        # Another server stored its first token at the same time.
        return False


async def _add_if_empty(tx: Transaction, name: str, digest: str) -> bool:
    if await count(tx):
        return False
    return await add(tx, name, digest, is_superuser=True)
