"""Limits of what the users have in the database, and the share of one user."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Literal

from zndraw_joblib.server.process.settings import JobLibSettings
from zndraw_joblib.server.process.shared_limit import StoredLimit
from zndraw_joblib.server.queue import sql_shares

Setting = Literal["max_workers", "max_jobs", "max_providers", "max_pending_tasks"]
Read = Callable[[sql_shares.Count, int], Awaitable[sql_shares.Counts]]
Start = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


class StoredLimits:
    """The limits of workers, of active jobs, of providers and of pending tasks.

    A job counts for each user with a worker of it. `read` reads a count from the database, and `start` starts
    work in the background.
    """

    def __init__(self, settings: JobLibSettings, read: Read, start: Start) -> None:
        def limit(what: str, setting: Setting, count: sql_shares.Count) -> StoredLimit:
            def allowed() -> int:
                return int(getattr(settings, setting))

            async def counted(enough: int) -> sql_shares.Counts:
                return await read(count, enough)

            return StoredLimit(what, setting, allowed, lambda: settings.share_of(allowed()), counted, start)

        self.workers = limit("workers", "max_workers", sql_shares.workers)
        self.jobs = limit("jobs", "max_jobs", sql_shares.jobs)
        self.providers = limit("providers", "max_providers", sql_shares.providers)
        self.pending_tasks = limit("pending tasks", "max_pending_tasks", sql_shares.pending_tasks)
