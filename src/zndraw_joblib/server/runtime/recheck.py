"""Re-check waiting requests for lost wake-ups: one query for all of them together."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID
from weakref import WeakSet

from zndraw_joblib.jobs.logs import ExponentialBackoff, create_shared_task
from zndraw_joblib.server.db.database import Database
from zndraw_joblib.server.process.ports import (
    Wake,
    group_key,
    job_key,
    requests_key,
    slot_key,
    task_key,
    worker_key,
)
from zndraw_joblib.server.process.settings import JobLibSettings
from zndraw_joblib.server.process.waiters import Waiters
from zndraw_joblib.server.queue import rules_groups, rules_providers, rules_queues, rules_tasks

logger = logging.getLogger(__name__)

_WORKER = worker_key("")
_HEARTBEATS_PER_WRITE = 1000


class Recheck:
    """Looks for what the waiting requests wait for after `seconds[0]`, growing to `seconds[1]`.

    It also records heartbeats of the workers that hold a claim open, with `keep_alive`.
    """

    def __init__(
        self,
        database: Database,
        waiters: Waiters,
        keep_alive: Callable[[Sequence[UUID]], Awaitable[None]],
        settings: JobLibSettings,
        seconds: tuple[float, float],
    ) -> None:
        self._database = database
        self._waiters = waiters
        self._keep_alive = keep_alive
        self._settings = settings
        self.seconds = seconds
        self._loops: WeakSet[asyncio.AbstractEventLoop] = WeakSet()

    def start(self) -> None:
        """Start to re-check for lost wake-ups, as long as requests wait."""
        loop = asyncio.get_running_loop()
        if loop not in self._loops:
            self._loops.add(loop)
            create_shared_task(self._run_while_requests_wait())

    async def _run_while_requests_wait(self) -> None:
        # One query, and one heartbeat write, for all waiting requests together. The first round comes before
        # the request that started it waits.
        backoff = ExponentialBackoff(*self.seconds, jitter=0, growth=1.5)
        last_heartbeat = time.monotonic()
        try:
            while True:
                interval = self._settings.heartbeat_seconds
                await asyncio.sleep(min(backoff.next(), interval))
                if not len(self._waiters):
                    return
                try:
                    if time.monotonic() >= last_heartbeat + interval:
                        last_heartbeat = time.monotonic()
                        await self._heartbeat_for_waiters()
                    await self.run()
                except Exception as error:
                    logger.warning("Did not re-check waiting requests: %r", error)
        finally:
            self._loops.discard(asyncio.get_running_loop())

    async def _heartbeat_for_waiters(self) -> None:
        """Record a heartbeat of each worker that holds a claim open."""
        ids = [
            UUID(key.removeprefix(_WORKER)) for key in self._waiters.waited_keys if key.startswith(_WORKER)
        ]
        for start in range(0, len(ids), _HEARTBEATS_PER_WRITE):
            await self._keep_alive(ids[start : start + _HEARTBEATS_PER_WRITE])

    async def run(self) -> None:
        """Wake the waiters whose condition holds, whatever happened to their wake-ups."""
        waited: dict[str, list[str]] = {}
        for kind, name in (key.split(":", 1) for key in self._waiters.waited_keys):
            waited.setdefault(kind, []).append(name)
        wakes: list[Wake] = []
        if task_ids := waited.get("task"):
            ended = await self._database.read(rules_tasks.ended, list(map(UUID, task_ids)))
            wakes += [Wake(task_key(task_id)) for task_id in ended]
        if group_ids := waited.get("group"):
            ended = await self._database.read(rules_groups.ended, list(map(UUID, group_ids)))
            wakes += [Wake(group_key(group_id)) for group_id in ended]
        # Tasks of the worker may have ended in another process, which publishes no freed slot.
        wakes += [Wake(slot_key(worker_id)) for worker_id in waited.get("slot", ())]
        full = set(waited.get("slot", ()))
        if claiming := [UUID(worker_id) for worker_id in waited.get("worker", ()) if worker_id not in full]:
            queues = await self._database.read(rules_queues.to_claim, waited.get("job", []), claiming)
            wakes += [Wake(job_key(name), count) for name, count in queues.pending.items()]
            wakes += [Wake(worker_key(worker_id)) for worker_id in queues.linked]
        if worker_ids := waited.get("requests"):
            workers_asked = await self._database.read(
                rules_providers.workers_with_requests, list(map(UUID, worker_ids))
            )
            wakes += [Wake(requests_key(worker_id), 1) for worker_id in workers_asked]
        for wake in wakes:
            self._waiters.wake(wake.key, wake.limit)
