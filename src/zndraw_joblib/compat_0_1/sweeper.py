"""The functions of version 0.1.x that clean up, whose results also have the rooms with removed frames."""

from datetime import timedelta
from typing import Any

from zndraw_joblib.server.background import host_functions
from zndraw_joblib.server.db.tables import Worker
from zndraw_joblib.wire.events import Emission
from zndraw_joblib.wire.names import rooms_with_frames


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
