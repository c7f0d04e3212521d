"""Which workers are connected for which providers, by the sockets of this process."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

from zndraw_joblib.contract.events import ProviderRequest, providers_of
from zndraw_joblib.contract.names import JobName
from zndraw_joblib.contract.problems import ProblemException
from zndraw_joblib.server.ports import provider_key
from zndraw_joblib.server.runtime import Runtime
from zndraw_joblib.server.service import providers

logger = logging.getLogger(__name__)
Enter = Callable[[str, str], Awaitable[bool]]
Leave = Callable[[str, str], Awaitable[None]]

_RENEW_SECONDS = 10.0
# A server that dies takes nobody's word back: so long its sockets pass for connected.
_LEASE = timedelta(seconds=30)
_KIND = provider_key("")


@dataclass(slots=True)
class ProviderConnection:
    """A socket is connected for a provider, in the name of a worker. `is_current`: it gets the reads."""

    name: JobName
    provider_id: UUID
    worker_id: UUID
    is_current: bool


class Presence:
    """Lets sockets into the rooms of providers, as long as their worker is the one that answers.

    Who is connected is noted in the database, for all servers, and renewed while it is so.
    """

    def __init__(self, runtime: Runtime, sio: Any, enter: Enter, leave: Leave) -> None:
        self._runtime = runtime
        self._sio = sio
        self._enter = enter
        self._leave = leave
        self._seats: dict[str, dict[str, ProviderConnection]] = {}
        self._change: asyncio.Event | None = None
        self._parting: set[asyncio.Task[Any]] = set()
        runtime.waiters.subscribe(_KIND, self._hear)

    async def join(self, sid: str, worker_id: UUID, name: JobName) -> bool:
        """Seat a socket, and send it the reads that wait. Tell whether it is there still.

        Raises `ProviderNotFound` where the worker is not registered for the provider.
        """
        join = partial(providers.connect, worker_id=worker_id, name=name, lease=_LEASE)
        joined = await self._runtime.write(join)
        if joined.is_current and not await self._enter(sid, providers_of(str(name))):
            return False
        seat = ProviderConnection(name, joined.provider_id, worker_id, joined.is_current)
        self._seats.setdefault(sid, {})[str(name)] = seat
        if seat.is_current:
            await self._ask_again(sid, seat)
        return True

    async def _ask_again(self, sid: str, seat: ProviderConnection) -> None:
        # Looked for once it is in the room: what was asked before that went past it.
        look = partial(
            providers.notify_pending, provider_id=seat.provider_id, name=seat.name, worker_id=seat.worker_id
        )
        for read in await self._runtime.write(look):
            event = ProviderRequest(
                request_id=read.request_id, provider_name=read.provider_name, params=read.params
            )
            await self._sio.emit(event.event_name, event.model_dump(), room=sid)

    def left(self, sid: str, provider_name: str) -> None:
        """Note that a socket is connected for a provider no more."""
        seat = self._seats.get(sid, {}).pop(provider_name, None)
        if seat is not None:
            self._part([seat])

    def lost(self, sid: str) -> None:
        """Note that a socket is gone."""
        self._part(list(self._seats.pop(sid, {}).values()))

    def _part(self, seats: list[ProviderConnection]) -> None:
        """Let the readers know of providers for which nobody is connected here any more."""
        if self._runtime.waiters.is_closed:
            return  # we stop, and they come back to whoever comes next
        taken = {
            (seat.provider_id, seat.worker_id) for table in self._seats.values() for seat in table.values()
        }
        for seat in seats:
            if seat.is_current and (seat.provider_id, seat.worker_id) not in taken:
                part = partial(providers.disconnect, worker_id=seat.worker_id, only=[seat.provider_id])
                parting = asyncio.create_task(self._runtime.write(part))
                self._parting.add(parting)
                parting.add_done_callback(self._parted)

    def _parted(self, parting: asyncio.Task[Any]) -> None:
        self._parting.discard(parting)
        if not parting.cancelled() and (error := parting.exception()):
            logger.warning("it was not noted that a provider's socket is gone: %r", error)

    def _hear(self, key: str) -> None:
        # Another worker may answer from now on, be it that of a socket of ours.
        if self._change is not None and key.startswith(_KIND):
            name = key.removeprefix(_KIND)
            if any(name in table for table in self._seats.values()):
                self._change.set()

    async def run(self) -> None:
        """Renew who is connected, and follow changes of who answers, until cancelled."""
        self._change = asyncio.Event()
        while True:
            try:
                async with asyncio.timeout(_RENEW_SECONDS):
                    await self._change.wait()
            except TimeoutError:
                pass
            self._change.clear()
            try:
                await self._renew()
            except Exception as error:
                logger.warning("it was not noted who is connected for providers: %r", error)

    async def _renew(self) -> None:
        joined: dict[UUID, list[UUID]] = {}
        for table in self._seats.values():
            for seat in table.values():
                joined.setdefault(seat.worker_id, []).append(seat.provider_id)
        if not joined:
            return
        answers = await self._runtime.write(providers.extend_connections, connected=joined, lease=_LEASE)
        for sid, table in list(self._seats.items()):
            for seat in list(table.values()):
                await self._follow(sid, seat, answers.get(seat.provider_id))

    async def _follow(self, sid: str, seat: ProviderConnection, answers: UUID | None) -> None:
        is_current = answers == seat.worker_id
        if seat.is_current and not is_current:
            seat.is_current = False
            await self._leave(sid, providers_of(str(seat.name)))
        if answers is None:
            self._seats.get(sid, {}).pop(str(seat.name), None)
        elif is_current and not seat.is_current:
            try:
                await self.join(sid, seat.worker_id, seat.name)
            except ProblemException as problem:
                logger.debug("worker %s answers for %s no more: %s", seat.worker_id, seat.name, problem)
