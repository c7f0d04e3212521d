"""Detect connection poolers that give each transaction another session, which the queue cannot use."""

import asyncio
import logging

from zndraw_joblib.server.store.database import Database
from zndraw_joblib.server.store.notify_connection import NotifyConnection

logger = logging.getLogger(__name__)

_CHECK_SECONDS = 5.0
# A busy pooler may give two statements different sessions or, by chance, the same one.
_TRIES = 5


class TransactionPooling(RuntimeError):
    """The database is behind a connection pooler in transaction mode."""


async def check_sessions(database: Database) -> None:
    """Raise `TransactionPooling` if two connections share sessions of PostgreSQL."""
    try:
        async with asyncio.timeout(_CHECK_SECONDS):
            is_shared = await _share_sessions(database)
    except Exception as error:
        # The next use of the database reports the cause.
        logger.debug("The sessions of the database were not checked: %r", error)
        return
    if is_shared:
        raise TransactionPooling(
            "The database is behind a connection pooler in transaction mode, which gives each "
            "transaction another session. The queue needs sessions, for LISTEN and for its time limits. "
            "Connect to PostgreSQL directly, or set pool_mode = session for this database in PgBouncer"
        )


async def _share_sessions(database: Database) -> bool:
    open_connection = await database.pubsub_connection()
    if open_connection is None:
        return False
    async with open_connection() as one, open_connection() as two:
        if not isinstance(one, NotifyConnection) or not isinstance(two, NotifyConnection):
            return False
        mark = await one.mark_session()
        for _ in range(_TRIES):
            if await two.has_mark(mark) or not await one.has_mark(mark):
                return True
    return False
