"""Socket.IO rooms: who may join which, and what becomes of a worker whose socket is gone."""

import inspect
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

import socketio
from engineio.packet import NOOP, Packet
from fastapi import FastAPI, Request
from pydantic import ValidationError

from zndraw_joblib.contract import events
from zndraw_joblib.contract.names import parse_job_name, parse_provider_name, validate_room_id
from zndraw_joblib.contract.problems import TooManyRequests, Unauthorized
from zndraw_joblib.server.ports import Identity
from zndraw_joblib.server.problem_responses import as_problem, invalid_part
from zndraw_joblib.server.realtime.disconnects import DisconnectTracker
from zndraw_joblib.server.realtime.presence import Presence
from zndraw_joblib.server.runtime import Runtime
from zndraw_joblib.server.service import workers

logger = logging.getLogger(__name__)
Event = TypeVar("Event", bound=events.Event)

MAX_ROOMS = 1000  # of one socket
_MAX_TOKEN = 4096
_NAMESPACE = "/"


class SocketAccess(NamedTuple):
    """How a host identifies sockets and guards its rooms. `requires_identity`: to connect at all."""

    app: FastAPI
    identify: Callable[[Request], Awaitable[Identity | None]]
    check_readable: Callable[[Request, str], Awaitable[None]]
    requires_identity: bool = False


class Rooms:
    """Lets sockets of a `socketio.AsyncServer` join rooms, and leave them.

    A join is acknowledged with ``{}``; one that is refused with a problem, which is also sent to the socket
    as the event `problem`. Who a socket is, is told at its connection, by the ``Authorization`` header or
    by ``auth={"token": …}``, and asked again at each join. The host's own handlers stay.
    """

    def __init__(self, sio: Any, runtime: Runtime, access: SocketAccess) -> None:
        self._sio = sio
        self._runtime = runtime
        self._access = access
        self._requests: dict[str, Request] = {}
        self._joined: dict[str, set[str]] = {}
        self.disconnects = DisconnectTracker(runtime)
        self.presence = Presence(runtime, sio, self._enter, self._leave)
        self._answers: dict[str, Any] = {}
        self._handle(events.JoinJobRoom, self._join_job)
        self._handle(events.LeaveJobRoom, self._leave_job)
        self._handle(events.JoinProviderRoom, self._join_provider)
        self._handle(events.LeaveProviderRoom, self._leave_provider)
        self._handle(events.JoinRoom, self._join_room)
        self._handle(events.LeaveRoom, self._leave_room)
        self.install_handlers()

    @property
    def requires_identity(self) -> bool:
        """Whether sockets without an identity cannot connect."""
        return self._access.requires_identity

    @property
    def owns_provider_rooms(self) -> bool:
        """Whether nobody but us lets sockets into the rooms of providers; a host may do so, also later."""
        event = events.JoinProviderRoom.event_name
        return event in self._answers and _former_handler(self._sio, event) is self._answers[event]

    def install_handlers(self) -> None:
        """Hear of connections and of their ends, before the host's own handlers do; also of late ones."""
        for event, ours in (("connect", self._connect), ("disconnect", self._disconnect)):
            former = _former_handler(self._sio, event)
            if getattr(former, "func", None) != ours:
                self._sio.on(event, partial(ours, former))

    async def close_sockets(self) -> None:
        """Break all connections: the server stops, and must not wait for polls that are held open.

        Nobody is told goodbye: clients in Python take that for good, and would not come back to a server that
        starts again. A WebSocket is closed; an open poll gets a packet without meaning, the next one a 400.
        """
        for client in list(self._sio.eio.sockets.values()):
            await client.close(wait=False, abort=True)
            await client.queue.put(None if client.upgraded else Packet(NOOP))

    async def _connect(self, former: Any, sid: str, environ: dict[str, Any], auth: Any = None) -> Any:
        request = self._requests[sid] = self._request(environ, auth)
        try:
            if self._access.requires_identity:
                await self._admit(request)
            answer = await _call(former, sid, environ, auth) if former else None
        except BaseException:
            self._requests.pop(sid, None)
            raise
        if answer is False:
            self._requests.pop(sid, None)
        return answer

    async def _admit(self, request: Request) -> None:
        try:
            if await self._access.identify(request) is None:
                raise Unauthorized("This needs an identity")
        except Exception as error:
            problem = as_problem(error).problem
            raise socketio.exceptions.ConnectionRefusedError(
                problem.detail or problem.title, _as_data(problem)
            ) from error

    def _request(self, environ: dict[str, Any], auth: Any) -> Request:
        """Return the connection as a request of HTTP, which dependencies of a host understand."""
        scope = environ["asgi.scope"]
        headers = list(scope.get("headers", ()))
        token = auth.get("token") if isinstance(auth, dict) else None
        if isinstance(token, str) and len(token) <= _MAX_TOKEN:
            headers = [(name, value) for name, value in headers if name != b"authorization"]
            headers.append((b"authorization", f"Bearer {token}".encode("utf-8", "replace")))
        changes = {
            "type": "http",
            "method": "GET",
            "app": self._access.app,
            "path_params": {},
            "headers": headers,
        }
        return Request({**scope, **changes})

    async def _disconnect(self, former: Any, sid: str, reason: Any = None) -> Any:
        self._requests.pop(sid, None)
        self._joined.pop(sid, None)
        self.presence.lost(sid)
        self.disconnects.lost(sid)
        return await _call(former, sid, reason) if former else None

    def _handle(self, kind: type[Event], handle: Callable[[str, Event], Awaitable[None]]) -> None:
        async def answer(sid: str, data: Any = None) -> dict[str, Any]:
            try:
                await handle(sid, _parsed(kind, data))
            except Exception as error:
                problem = _as_data(as_problem(error).problem)
                await self._sio.emit("problem", problem, room=sid)
                return problem
            return {}

        if _former_handler(self._sio, kind.event_name) is None:
            self._answers[kind.event_name] = answer
            self._sio.on(kind.event_name, answer)
        else:
            logger.warning("the host's own handler of %s stays; ours does not run", kind.event_name)

    async def _join_job(self, sid: str, event: events.JoinJobRoom) -> None:
        caller, name = await self._caller(sid), parse_job_name(event.job_name)
        # A sign of life, and the check of who may give it.
        await self._runtime.heartbeat(caller, event.worker_id)
        check = partial(workers.check_serves, worker_id=event.worker_id, name=name)
        await self._runtime.database.read(check)
        if await self._enter(sid, events.workers_of(str(name)), events.sockets_of(event.worker_id)):
            self.disconnects.arrived(sid, event.worker_id, str(name))

    async def _leave_job(self, sid: str, event: events.LeaveJobRoom) -> None:
        await self._leave(sid, events.workers_of(event.job_name))
        self.disconnects.left(sid, event.worker_id, event.job_name)

    async def _join_provider(self, sid: str, event: events.JoinProviderRoom) -> None:
        caller, name = await self._caller(sid), parse_provider_name(event.provider_name)
        await self._runtime.heartbeat(caller, event.worker_id)
        is_there = await self._enter(sid, events.sockets_of(event.worker_id))
        if is_there and await self.presence.join(sid, event.worker_id, name):
            self.disconnects.arrived(sid, event.worker_id, events.providers_of(str(name)))

    async def _leave_provider(self, sid: str, event: events.LeaveProviderRoom) -> None:
        self.presence.left(sid, event.provider_name)
        await self._leave(sid, events.providers_of(event.provider_name))
        self.disconnects.left(sid, event.worker_id, events.providers_of(event.provider_name))

    async def _join_room(self, sid: str, event: events.JoinRoom) -> None:
        await self._caller(sid)
        room_id = validate_room_id(event.room_id)
        await self._access.check_readable(self._requests[sid], room_id)
        await self._enter(sid, events.room_of(room_id), events.EVERY_ROOM)

    async def _leave_room(self, sid: str, event: events.LeaveRoom) -> None:
        await self._leave(sid, events.room_of(event.room_id))
        if not any(room.startswith("room:") for room in self._joined.get(sid, set()) - {events.EVERY_ROOM}):
            await self._leave(sid, events.EVERY_ROOM)

    async def _caller(self, sid: str) -> Identity:
        request = self._requests.get(sid)
        caller = None if request is None else await self._access.identify(request)
        if caller is None:
            raise Unauthorized("This needs an identity: connect with auth={'token': …}")
        return caller

    async def _enter(self, sid: str, *rooms: str) -> bool:
        """Join rooms, unless the socket is gone by now. Tell whether it is there."""
        if sid not in self._requests:
            return False
        joined = self._joined.setdefault(sid, set())
        if len(joined.union(rooms)) > MAX_ROOMS:
            raise TooManyRequests(f"A socket may join {MAX_ROOMS} rooms; leave one, or use another socket")
        for room in rooms:
            await self._sio.enter_room(sid, room)
            joined.add(room)
        return True

    async def _leave(self, sid: str, room: str) -> None:
        # What a socket has not joined here is nobody's business, a room of the host's too.
        with suppress(KeyError):
            self._joined.get(sid, set()).remove(room)
            await self._sio.leave_room(sid, room)


def _parsed(kind: type[Event], data: Any) -> Event:
    [*fields] = kind.model_fields
    if isinstance(data, str) and len(fields) == 1:
        data = {fields[0]: data}
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise invalid_part(error, kind.event_name) from error


def _as_data(problem: Any) -> dict[str, Any]:
    data: dict[str, Any] = problem.model_dump(mode="json", exclude_none=True)
    return data


def _former_handler(sio: Any, event: str) -> Any:
    handlers = sio.handlers.get(_NAMESPACE, {})
    if event in handlers:
        return handlers[event]
    namespace = sio.namespace_handlers.get(_NAMESPACE)
    if namespace is not None and hasattr(namespace, f"on_{event}"):
        return partial(namespace.trigger_event, event)
    return None


async def _call(handler: Callable[..., Any], *args: Any) -> Any:
    """Call a host's handler, which may take fewer arguments: older ones take neither `auth` nor a reason."""
    try:
        inspect.signature(handler).bind(*args)
    except TypeError:
        args = args[:-1]
    answer = handler(*args)
    return await answer if inspect.isawaitable(answer) else answer
