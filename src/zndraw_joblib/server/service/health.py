"""Check that the database accepts writes."""

from zndraw_joblib.server.store import health as store
from zndraw_joblib.server.store.database import Transaction


async def write(tx: Transaction) -> None:
    """Write to the database without a lasting change."""
    await store.write(tx)
