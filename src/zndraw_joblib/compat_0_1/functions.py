"""Functions of version 0.1.x: internal jobs without a broker, cleaning up, and the header `Prefer`."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from zndraw_joblib.server.background import host_functions
from zndraw_joblib.server.db import schema
from zndraw_joblib.server.db.host_sessions import SessionDatabase
from zndraw_joblib.server.db.tables import Worker
from zndraw_joblib.server.http.requests import preferred_wait
from zndraw_joblib.server.internal.registry import offer_of
from zndraw_joblib.server.queue import rules_internal
from zndraw_joblib.wire.events import Emission
from zndraw_joblib.wire.names import rooms_with_frames


async def ensure_internal_jobs(extensions: Sequence[type[Any]], session_factory: Callable[[], Any]) -> None:
    """Create or update the rows of internal jobs; several replicas may do so at once.

    Creates missing tables on SQLite. Raises `OutdatedSchema` for a PostgreSQL database without them.
    """
    database = SessionDatabase(partial(host_functions.open_session, session_factory))
    await schema.prepare(database)
    await database.write(rules_internal.register, [offer_of(cls) for cls in extensions])


async def cleanup_worker(session: Any, worker: Worker) -> tuple[set[Emission], set[str]]:
    """Remove a worker, in the caller's session. Does not commit.

    Return the events to `emit` after the commit, and the rooms whose providers of frames were removed.
    """
    removed = await host_functions.remove_worker(session, worker)
    return set(removed.emissions), rooms_with_frames(removed.providers)


async def cleanup_stale_workers(session: Any, timeout: timedelta) -> tuple[int, set[Emission], set[str]]:
    """Remove all workers that have been silent for longer than `timeout`, in bounded transactions.

    Return how many there were, the events to `emit`, and the rooms whose providers of frames were removed.
    """
    removed = await host_functions.remove_stale_workers(session, timeout)
    return removed.total, set(removed.emissions), rooms_with_frames(removed.providers)


async def cleanup_stuck_internal_tasks(session: Any, timeout: timedelta) -> tuple[int, set[Emission]]:
    """Fail all internal tasks that have been held for longer than `timeout`, in bounded transactions.

    Return how many there were, and the events to `emit`.
    """
    count, emissions = await host_functions.cleanup_stuck_internal_tasks(session, timeout)
    return count, set(emissions)


def parse_prefer_wait(prefer: str | None) -> int | None:
    """Return the seconds of ``wait=N`` in a header `Prefer`; None without it."""
    seconds = preferred_wait([prefer or ""])
    return None if seconds is None else int(seconds)
