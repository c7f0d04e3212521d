"""What a health check does in the database."""

from zndraw_joblib.server.store import health as store
from zndraw_joblib.server.store.database import Transaction


async def write(tx: Transaction) -> None:
    """Write to the database, and leave nothing behind."""
    await store.write(tx)
