"""Internal jobs without a broker."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from zndraw_joblib.server.background.host_functions import open_session
from zndraw_joblib.server.db import schema
from zndraw_joblib.server.db.host_sessions import SessionDatabase
from zndraw_joblib.server.internal.registry import offer_of
from zndraw_joblib.server.queue import rules_internal


async def ensure_internal_jobs(extensions: Sequence[type[Any]], session_factory: Callable[[], Any]) -> None:
    """Create or update the rows of internal jobs; several replicas may do so at once.

    Creates missing tables on SQLite. Raises `OutdatedSchema` for a PostgreSQL database without them.
    """
    database = SessionDatabase(partial(open_session, session_factory))
    await schema.prepare(database)
    await database.write(rules_internal.register, [offer_of(cls) for cls in extensions])
