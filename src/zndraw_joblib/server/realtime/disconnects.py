"""Removal of workers that lost their last socket and do not return within a grace period."""

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
    """The sockets of this process by which each worker is connected.

    A worker that loses its last socket has `disconnect_grace_seconds` to connect again or to send a request.
    The removal checks the database, because other processes receive requests of the worker too.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._rooms: dict[str, dict[UUID, set[str]]] = {}
        self._sockets: dict[UUID, set[str]] = {}
        self._removals: dict[UUID, asyncio.Task[None]] = {}

    @property
    def is_idle(self) -> bool:
        """Whether no socket is tracked and no grace period runs."""
        return not self._sockets and not self._removals

    @property
    def in_grace_period(self) -> set[UUID]:
        """The workers whose grace period runs."""
        return set(self._removals)

    def joined_rooms(self) -> dict[str, list[tuple[UUID, str]]]:
        """Return by socket which workers have joined the rooms of which jobs and providers."""
        return {
            sid: [(worker_id, room) for worker_id, rooms in workers.items() for room in rooms]
            for sid, workers in self._rooms.items()
        }

    def joined(self, sid: str, worker_id: UUID, room: str) -> None:
        """Record that a worker has joined the room of a job or provider by a socket."""
        self._rooms.setdefault(sid, {}).setdefault(worker_id, set()).add(room)
        self._sockets.setdefault(worker_id, set()).add(sid)
        if removal := self._removals.pop(worker_id, None):
            removal.cancel()

    def left(self, sid: str, worker_id: UUID, room: str) -> None:
        """Record that a worker has left a room. After its last one it no longer depends on the socket."""
        rooms = self._rooms.get(sid, {}).get(worker_id, set())
        rooms.discard(room)
        if not rooms and self._rooms.get(sid, {}).pop(worker_id, None) is not None:
            self._forget_socket(sid, worker_id)

    def disconnected(self, sid: str) -> None:
        """Record that a socket is disconnected."""
        for worker_id in self._rooms.pop(sid, ()):
            if self._forget_socket(sid, worker_id):
                self._start_grace_period(worker_id)

    def _forget_socket(self, sid: str, worker_id: UUID) -> bool:
        """Remove one socket of a worker. Return whether it was the last one."""
        sockets = self._sockets[worker_id]
        sockets.discard(sid)
        if sockets:
            return False
        del self._sockets[worker_id]
        return True

    def stop(self) -> None:
        """Cancel all removals: a server that stops loses the sockets of live workers."""
        for removal in self._removals.values():
            removal.cancel()
        self._removals.clear()

    def _start_grace_period(self, worker_id: UUID) -> None:
        grace = self._runtime.settings.disconnect_grace_seconds
        if grace < 0 or self._runtime.waiters.is_closed:
            return
        self._runtime.force_heartbeat(worker_id)
        removal = asyncio.create_task(self._remove(worker_id, grace))
        self._removals[worker_id] = removal
        removal.add_done_callback(partial(self._removed, worker_id))

    def _removed(self, worker_id: UUID, removal: "asyncio.Task[None]") -> None:
        if self._removals.get(worker_id) is removal:
            del self._removals[worker_id]
        if not removal.cancelled() and (error := removal.exception()):
            # The sweeper removes it later.
            logger.warning(
                "Disconnected worker not removed: worker_id=%s error=%r",
                worker_id,
                error,
                extra={"worker_id": str(worker_id)},
            )

    async def _remove(self, worker_id: UUID, grace: float) -> None:
        since = await self._runtime.database.read(Transaction.now)
        await asyncio.sleep(grace)
        if self._runtime.waiters.has(worker_key(worker_id)):
            return  # a claim of the worker waits
        if await self._runtime.write(workers.remove_if_silent, worker_id, since):
            logger.info(
                "Disconnected worker removed: worker_id=%s grace_seconds=%g",
                worker_id,
                grace,
                extra={"worker_id": str(worker_id)},
            )
