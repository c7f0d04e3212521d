"""Check that the database accepts writes, without a lasting change."""

from uuid import uuid4

from sqlalchemy import delete, insert

from zndraw_joblib.server.store.database import Transaction
from zndraw_joblib.server.store.tables import IdempotencyKey

keys = IdempotencyKey.__table__

# On SQLite it needs more new pages than other small writes, so it fails before them when the disk is full.
_SQLITE_SIZE = 64 * 1024
_SIZE = 64


async def write(tx: Transaction) -> None:
    """Insert a row and delete it again. The commit writes to the disk."""
    row_id, now = uuid4(), await tx.now()
    answer = "." * (_SQLITE_SIZE if tx.is_sqlite else _SIZE)
    row = {"id": row_id, "fingerprint": row_id, "created_at": now, "answer": answer}
    await tx.execute(insert(keys), [row])
    await tx.execute(delete(keys).where(keys.c.id == row_id))
