"""The connections of workers to providers by the sockets of this process."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from zndraw_joblib.server.process.ports import provider_key
from zndraw_joblib.server.queue import rules_providers
from zndraw_joblib.server.runtime.runtime import Runtime
from zndraw_joblib.wire.events import Emission, ProviderRequest, providers_of
from zndraw_joblib.wire.names import JobName
from zndraw_joblib.wire.problems import ProblemException

logger = logging.getLogger(__name__)
ChangeRoom = Callable[[str, str], Awaitable[None]]

_RENEW_SECONDS = 10.0
# The sockets of a server that crashed count as connected for this time.
_LEASE = timedelta(seconds=30)
_KEY_PREFIX = provider_key("")


@dataclass(slots=True)
class ProviderConnection:
    """A worker that is connected for a provider by a socket. `is_current`: it gets the requests."""

    name: JobName
    provider_id: UUID
    worker_id: UUID
    is_current: bool


class Presence:
    """The provider connections of this process, recorded in the database for all servers.

    A socket is in the room of a provider as long as its worker is the provider's current one.
    """

    def __init__(
        self,
        runtime: Runtime,
        sio: Any,
        enter: ChangeRoom,
        leave: ChangeRoom,
        is_connected: Callable[[str], bool],
    ) -> None:
        self._runtime = runtime
        self._sio = sio
        self._enter = enter
        self._leave = leave
        self._is_connected = is_connected
        self._connections: dict[str, dict[str, ProviderConnection]] = {}
        self._change: asyncio.Event | None = None
        self._disconnecting: set[asyncio.Task[Any]] = set()
        runtime.waiters.subscribe(_KEY_PREFIX, self._on_wake)

    @property
    def is_idle(self) -> bool:
        """Return whether no socket is connected for a provider."""
        return not self._connections

    async def join(self, sid: str, worker_id: UUID, name: JobName) -> None:
        """Connect a socket, and send it the pending requests. Drop a socket that disconnects meanwhile.

        Raises `ProviderNotFound` if the worker is not registered for the provider.
        """
        connected = await self._runtime.write(rules_providers.connect, worker_id, name, _LEASE)
        connection = ProviderConnection(name, connected.provider_id, worker_id, connected.is_current)
        self._connections.setdefault(sid, {})[str(name)] = connection
        try:
            if connection.is_current:
                await self._enter(sid, providers_of(str(name)))
                await self._send_pending(sid, connection)
        except BaseException:
            self.left_room(sid, str(name))
            raise
        finally:
            if not self._is_connected(sid):
                self.disconnected(sid)

    async def _send_pending(self, sid: str, connection: ProviderConnection) -> None:
        # Read after the socket has joined the room: it has not received the requests sent before.
        pending = await self._runtime.write(
            rules_providers.notify_pending, connection.provider_id, connection.name, connection.worker_id
        )
        self._runtime.events.put(
            self._send, [Emission(ProviderRequest(**request.model_dump()), sid) for request in pending]
        )

    async def _send(self, emissions: Sequence[Emission]) -> None:
        for event, sid in emissions:
            await self._sio.emit(event.event_name, event.model_dump(), room=sid)

    def left_room(self, sid: str, provider_name: str) -> None:
        """Record that a socket has left the room of a provider."""
        connection = self._connections.get(sid, {}).pop(provider_name, None)
        if connection is not None:
            self._disconnect([connection])

    def disconnected(self, sid: str) -> None:
        """Record that a socket is disconnected."""
        self._disconnect(list(self._connections.pop(sid, {}).values()))

    def _disconnect(self, connections: list[ProviderConnection]) -> None:
        """End connections in the database, unless the worker has another socket for the provider here."""
        if self._runtime.waiters.is_closed:
            return  # the server stops, and the workers connect to another one
        remaining = {(connection.provider_id, connection.worker_id) for connection in self._all_connections()}
        for connection in connections:
            worker_id, provider_id = connection.worker_id, connection.provider_id
            if connection.is_current and (provider_id, worker_id) not in remaining:
                write = self._runtime.write(rules_providers.disconnect, worker_id, [provider_id])
                task = asyncio.create_task(write)
                self._disconnecting.add(task)
                task.add_done_callback(self._on_disconnected)

    def _all_connections(self) -> list[ProviderConnection]:
        return [connection for table in self._connections.values() for connection in table.values()]

    def _on_disconnected(self, task: asyncio.Task[Any]) -> None:
        self._disconnecting.discard(task)
        if not task.cancelled() and (error := task.exception()):
            logger.warning("The end of a provider connection was not recorded: %r", error)

    def _on_wake(self, key: str) -> None:
        # The current worker of a provider may have changed.
        if self._change is not None:
            name = key.removeprefix(_KEY_PREFIX)
            if any(name in table for table in self._connections.values()):
                self._change.set()

    async def run(self) -> None:
        """Renew the connections in the database and follow changes of current workers, until cancelled."""
        self._change = asyncio.Event()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_RENEW_SECONDS):
                    await self._change.wait()
            self._change.clear()
            try:
                await self._renew()
            except Exception as error:
                logger.warning("Provider connections were not renewed: %r", error)

    async def _renew(self) -> None:
        provider_ids: dict[UUID, list[UUID]] = {}
        for connection in self._all_connections():
            provider_ids.setdefault(connection.worker_id, []).append(connection.provider_id)
        if not provider_ids:
            return
        current = await self._runtime.write(rules_providers.extend_connections, provider_ids, _LEASE)
        for sid, table in list(self._connections.items()):
            for connection in list(table.values()):
                await self._follow(sid, connection, current.get(connection.provider_id))

    async def _follow(self, sid: str, connection: ProviderConnection, current: UUID | None) -> None:
        """Join or leave the room of a provider whose current worker is `current`, None if it is removed."""
        is_current = current == connection.worker_id
        if connection.is_current and not is_current:
            connection.is_current = False
            await self._leave(sid, providers_of(str(connection.name)))
        if current is None:
            self._connections.get(sid, {}).pop(str(connection.name), None)
        elif is_current and not connection.is_current:
            try:
                await self.join(sid, connection.worker_id, connection.name)
            except ProblemException as problem:
                logger.debug(
                    "Provider connection ended: worker_id=%s provider=%s problem=%s",
                    connection.worker_id,
                    connection.name,
                    problem,
                    extra={"worker_id": str(connection.worker_id)},
                )
