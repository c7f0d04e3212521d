"""Limits of what the users have in the database, and the share of one user."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Literal

from zndraw_joblib.server.db.database import Database
from zndraw_joblib.server.process.ports import RequestKey
from zndraw_joblib.server.process.settings import JobLibSettings
from zndraw_joblib.server.process.shared_limit import StoredLimit
from zndraw_joblib.server.queue import sql_idempotency, sql_shares

Setting = Literal[
    "max_workers",
    "max_jobs",
    "max_providers",
    "max_pending_tasks",
    "max_schedules",
    "max_groups",
    "max_webhooks",
]
Start = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


class StoredLimits:
    """The limits of workers, active jobs, providers, schedules, webhooks, open groups, pending tasks.

    A job counts for each user with a worker of it. `start` starts work in the background.
    """

    def __init__(self, settings: JobLibSettings, database: Database, start: Start) -> None:
        def limit(what: str, setting: Setting, count: sql_shares.Count) -> StoredLimit:
            async def counted(enough: int) -> sql_shares.Counts:
                return await database.read(count, enough)

            allowed, share = partial(getattr, settings, setting), partial(settings.share_of_setting, setting)
            return StoredLimit(what, setting, allowed, share, counted, start)

        self._database = database
        self.workers = limit("workers", "max_workers", sql_shares.workers)
        self.jobs = limit("jobs", "max_jobs", sql_shares.jobs)
        self.providers = limit("providers", "max_providers", sql_shares.providers)
        self.schedules = limit("schedules", "max_schedules", sql_shares.schedules)
        self.groups = limit("groups", "max_groups", sql_shares.groups)
        self.webhooks = limit("webhooks", "max_webhooks", sql_shares.webhooks)
        self.pending_tasks = limit("pending tasks", "max_pending_tasks", sql_shares.pending_tasks)

    async def take(self, limit: StoredLimit, user: str, keys: Sequence[RequestKey | None]) -> None:
        """Let a user add one thing for each key, unless an earlier request with the same key has added it.

        Raises as `StoredLimit.take` does. The answers of earlier requests are read only before a refusal.
        """
        if limit.take_now(user, len(keys)):
            return
        ids = [key.id for key in keys if key is not None]
        repeated = await self._database.read(sql_idempotency.stored, ids) if ids else set()
        if count := sum(key is None or key.id not in repeated for key in keys):
            await limit.take(user, count)
