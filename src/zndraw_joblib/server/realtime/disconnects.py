"""Workers whose socket is gone: they get a grace to come back, and are removed if they do not."""

import asyncio
import logging
from functools import partial
from uuid import UUID

from zndraw_joblib.server.ports import worker_key
from zndraw_joblib.server.runtime import Runtime
from zndraw_joblib.server.service import workers
from zndraw_joblib.server.store.database import Transaction

logger = logging.getLogger(__name__)


class DisconnectTracker:
    """Knows by which sockets of this process each worker is connected.

    When the last one is gone, the worker has `disconnect_grace_seconds` to come back by another, or to show
    by a request that it lives. The removal itself asks the database, where other processes write too.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._workers: dict[str, dict[UUID, set[str]]] = {}
        self._sockets: dict[UUID, set[str]] = {}
        self._leaving: dict[UUID, asyncio.Task[None]] = {}

    def arrived(self, sid: str, worker_id: UUID, job_name: str) -> None:
        """Note that a worker is connected by a socket, and hears there of a job."""
        self._workers.setdefault(sid, {}).setdefault(worker_id, set()).add(job_name)
        self._sockets.setdefault(worker_id, set()).add(sid)
        if leaving := self._leaving.pop(worker_id, None):
            leaving.cancel()

    def left(self, sid: str, worker_id: UUID, job_name: str) -> None:
        """Note that a worker hears no more of a job. One that has left all of them does without a socket."""
        jobs = self._workers.get(sid, {}).get(worker_id, set())
        jobs.discard(job_name)
        if not jobs and self._workers.get(sid, {}).pop(worker_id, None) is not None:
            self._without(sid, worker_id)

    def lost(self, sid: str) -> None:
        """Note that a socket is gone, for whatever reason."""
        for worker_id in self._workers.pop(sid, ()):
            if self._without(sid, worker_id):
                self._begin(worker_id)

    def _without(self, sid: str, worker_id: UUID) -> bool:
        """Forget one socket of a worker. Tell whether it was the last one."""
        sockets = self._sockets[worker_id]
        sockets.discard(sid)
        if sockets:
            return False
        del self._sockets[worker_id]
        return True

    def stop(self) -> None:
        """Let nobody go any more: the server stops, and all sockets with it."""
        for leaving in self._leaving.values():
            leaving.cancel()
        self._leaving.clear()

    def _begin(self, worker_id: UUID) -> None:
        grace = self._runtime.settings.disconnect_grace_seconds
        if grace < 0 or self._runtime.waiters.is_closed:
            return
        self._runtime.force_heartbeat(worker_id)
        leaving = asyncio.create_task(self._let_go(worker_id, grace))
        self._leaving[worker_id] = leaving
        leaving.add_done_callback(partial(self._ended, worker_id))

    def _ended(self, worker_id: UUID, leaving: "asyncio.Task[None]") -> None:
        if self._leaving.get(worker_id) is leaving:
            del self._leaving[worker_id]
        if not leaving.cancelled() and (error := leaving.exception()):
            # The sweeper removes it, later.
            logger.warning("worker %s, whose socket is gone, was not removed: %r", worker_id, error)

    async def _let_go(self, worker_id: UUID, grace: float) -> None:
        since = await self._runtime.database.read(Transaction.now)
        await asyncio.sleep(grace)
        if self._runtime.waiters.has(worker_key(worker_id)):
            return  # a claim is held open
        if await self._runtime.write(workers.remove_if_silent, worker_id=worker_id, since=since):
            logger.info("worker %s was removed: its socket is gone for %g s", worker_id, grace)
