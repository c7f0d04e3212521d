"""Close sockets without an identity, with a revoked token, or of a disconnected user."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from time import monotonic
from typing import Any, NamedTuple

from zndraw_joblib.server.ports import Identity, identity_key
from zndraw_joblib.server.realtime import socketio_internals
from zndraw_joblib.server.runtime import Runtime
from zndraw_joblib.server.settings import ServerSettings

logger = logging.getLogger(__name__)

# This time and the lifetime of cached tokens add up to less than 5 s, after which no revoked token works.
_INTERVAL_SECONDS = 1.5
_DISCONNECT_SECONDS = 5.0
_KEY_PREFIX = identity_key("")
# Returns those of the given digests that belong to no token.
FindRevoked = Callable[[Collection[str]], Awaitable[set[str]]]


class SocketOwner(NamedTuple):
    """The caller that a socket belongs to, and the digest of its token."""

    identity: Identity
    digest: str | None


class SocketSupervisor:
    """Records the owners of this process's sockets, and closes sockets that must not stay connected.

    With `settings` it also bounds connections without an identity, in time and in number. `is_closing`
    refuses new connections.
    """

    def __init__(
        self, sio: Any, runtime: Runtime, settings: ServerSettings | None, find_revoked: FindRevoked | None
    ) -> None:
        self._sio = sio
        self._settings = settings
        self._find_revoked = find_revoked
        self.owners: dict[str, SocketOwner] = {}
        self._unauthenticated_since: dict[str, float] = {}
        self._disconnecting: set[asyncio.Task[None]] = set()
        self.is_closing = False
        runtime.waiters.subscribe(_KEY_PREFIX, self._on_wake)
        if settings is not None:
            socketio_internals.guard_connections(sio, self._reason_to_refuse)

    def add(self, sid: str, owner: SocketOwner) -> None:
        """Record the owner of a socket."""
        self.owners[sid] = owner

    def remove(self, sid: str) -> None:
        """Record that a socket is disconnected."""
        self.owners.pop(sid, None)

    async def run(self) -> None:
        """Check the sockets repeatedly until it is cancelled."""
        while True:
            interval = _INTERVAL_SECONDS
            if self._settings is not None:
                interval = min(interval, self._settings.socket_auth_timeout_seconds)
            for check in (self._close_unauthenticated, self._disconnect_revoked):
                try:
                    await check()
                except Exception as error:
                    logger.warning("Sockets were not checked; the next cycle retries: %r", error)
            await asyncio.sleep(interval)

    def _reason_to_refuse(self) -> str | None:
        assert self._settings is not None  # noqa: S101 - the guard is installed with settings only
        if self.is_closing:
            return "The server is stopping; connect to another server, or retry later"
        limit = self._settings.max_unauthenticated_sockets
        # The count includes the new connection.
        if socketio_internals.count_connections(self._sio) - len(self.owners) > limit:
            return (
                f"{limit} connections without an identity are open (max_unauthenticated_sockets); retry later"
            )
        return None

    async def _close_unauthenticated(self) -> None:
        if self._settings is None:
            return
        seconds = self._settings.socket_auth_timeout_seconds
        unauthenticated, now = socketio_internals.unauthenticated(self._sio), monotonic()
        since = {eio_sid: self._unauthenticated_since.get(eio_sid, now) for eio_sid in unauthenticated}
        self._unauthenticated_since = since
        for eio_sid, first_seen in since.items():
            if now >= first_seen + seconds:
                await socketio_internals.close_connection(self._sio, eio_sid)

    async def _disconnect_revoked(self) -> None:
        digests = {owner.digest for owner in self.owners.values() if owner.digest is not None}
        if self._find_revoked is None or not digests:
            return
        revoked = await self._find_revoked(digests)
        self._disconnect(sid for sid, owner in self.owners.items() if owner.digest in revoked)

    def _on_wake(self, key: str) -> None:
        user_id = key.removeprefix(_KEY_PREFIX)
        self._disconnect(sid for sid, owner in self.owners.items() if owner.identity.id == user_id)

    def _disconnect(self, sids: Iterable[str]) -> None:
        for sid in list(sids):
            task = asyncio.create_task(self._disconnect_one(sid))
            self._disconnecting.add(task)
            task.add_done_callback(self._disconnecting.discard)

    async def _disconnect_one(self, sid: str) -> None:
        try:
            async with asyncio.timeout(_DISCONNECT_SECONDS):
                await self._sio.disconnect(sid)
        except Exception as error:
            logger.warning("Socket not disconnected: sid=%s error=%r", sid, error)
        else:
            logger.info("Disconnected a socket whose token or user was revoked: sid=%s", sid)
