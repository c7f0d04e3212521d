"""Bearer tokens of the standalone server. Their text is never stored."""

from typing import Any

from sqlalchemy import Row, delete, func, insert, select
from sqlalchemy.exc import IntegrityError

from zndraw_joblib.server.store.database import Database, Transaction
from zndraw_joblib.server.store.tables import Token

tokens = Token.__table__


async def add(tx: Transaction, name: str, digest: str, *, is_superuser: bool) -> bool:
    """Store a token's digest. Return whether the name was free."""
    known = select(tokens.c.name).where((tokens.c.name == name) | (tokens.c.digest == digest))
    if (await tx.execute(known)).first() is not None:
        return False
    row = {"name": name, "digest": digest, "is_superuser": is_superuser, "created_at": await tx.now()}
    await tx.execute(insert(tokens), [row])
    return True


async def by_digest(tx: Transaction, digest: str) -> Row[*tuple[Any, ...]] | None:
    """Return the token with this digest."""
    return (await tx.execute(select(tokens).where(tokens.c.digest == digest))).first()


async def list_all(tx: Transaction) -> list[Row[*tuple[Any, ...]]]:
    """Return all tokens by name."""
    return list(await tx.execute(select(tokens).order_by(tokens.c.name)))


async def count(tx: Transaction) -> int:
    """Count the tokens."""
    found: int = (await tx.execute(select(func.count()).select_from(tokens))).scalar_one()
    return found


async def remove(tx: Transaction, name: str) -> bool:
    """Remove a token. Return whether there was one."""
    gone = delete(tokens).where(tokens.c.name == name).returning(tokens.c.name)
    return (await tx.execute(gone)).first() is not None


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
