"""Socket.IO rooms: joining, leaving, connections of sockets, and what follows a disconnect."""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

import socketio
from fastapi import FastAPI, Request
from pydantic import ValidationError

from zndraw_joblib.jobs.logs import log_failed_work, one_line
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.process.ports import Identity, identity_key, worker_key
from zndraw_joblib.server.process.settings import ServerSettings
from zndraw_joblib.server.process.shared_limit import SharedLimit
from zndraw_joblib.server.queue import rules_workers
from zndraw_joblib.server.realtime import socketio_internals
from zndraw_joblib.server.realtime.presence import Presence
from zndraw_joblib.server.runtime.problem_responses import as_problem, invalid_part, prefixed
from zndraw_joblib.server.runtime.runtime import Runtime
from zndraw_joblib.wire import events
from zndraw_joblib.wire.names import parse_job_name, parse_provider_name, validate_room_id
from zndraw_joblib.wire.problems import InvalidRequest, TooManyRequests, Unauthorized

logger = logging.getLogger(__name__)


class DisconnectTracker:
    """The sockets of this process by which each worker is connected.

    A worker that loses its last socket has `disconnect_grace_seconds` to connect again or to send a request.
    The removal checks the database, because other processes receive requests of the worker too.
    """

    # How it waits for the end of a grace period.
    sleep = staticmethod(asyncio.sleep)

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

    def left_room(self, sid: str, worker_id: UUID, room: str) -> None:
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
        await self.sleep(grace)
        if self._runtime.waiters.has(worker_key(worker_id)):
            return  # a claim of the worker waits
        removed = await self._runtime.write(rules_workers.remove_if_silent, worker_id, since)
        if removed is not None:
            logger.info(
                "Disconnected worker removed: worker_id=%s name=%s grace_seconds=%g",
                *(worker_id, one_line(removed.name or "unnamed"), grace),
                extra={"worker_id": str(worker_id)},
            )


# Close sockets without an identity, with a revoked token, or of a disconnected user.

# This time and the lifetime of cached tokens add up to less than 5 s, after which no revoked token works.
_INTERVAL_SECONDS = 1.5
_DISCONNECT_SECONDS = 5.0
_KEY_PREFIX = identity_key("")
# Returns which of these digests belong to no token.
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
        limits = runtime.settings
        self._open = SharedLimit(
            "sockets",
            "are open",
            lambda: limits.max_sockets,
            lambda: limits.share_of_setting("max_sockets"),
            ("max_sockets", "max_share_per_user"),
            "close one, or retry later",
        )
        self._unauthenticated_since: dict[str, float] = {}
        self._disconnecting: set[asyncio.Task[None]] = set()
        self.is_closing = False
        self._waiters = runtime.waiters
        runtime.waiters.subscribe(_KEY_PREFIX, self._on_wake)
        if settings is not None:
            socketio_internals.guard_connections(sio, self._reason_to_refuse)

    def add(self, sid: str, owner: SocketOwner) -> None:
        """Record the owner of a socket. What it may read now does not replace what it has joined with.

        Raises `ServiceUnavailable` and `TooManyRequests` if too many sockets, or too many of the user's, are
        open in this process.
        """
        first = self.owners.get(sid)
        if first is None or first.identity.id != owner.identity.id:
            self._open.take(owner.identity.id)
            self.remove(sid)
            self.owners[sid] = owner

    def remove(self, sid: str) -> None:
        """Record that a socket is disconnected."""
        if (owner := self.owners.pop(sid, None)) is not None:
            self._open.give_back(owner.identity.id)

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
                    log_failed_work(logger, error, "Sockets were not checked; the next cycle retries")
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
            # A server that stops wakes all waits, also those for revoked users.
            reason = "the server stops" if self._waiters.is_closed else "its token or user was revoked"
            logger.info("Disconnected a socket: %s (sid=%s)", reason, sid)


# Joining and leaving, and the connections and disconnects of sockets.

Event = TypeVar("Event", bound=events.Event)

MAX_ROOMS = 1000  # of one socket
_MAX_TOKEN_LENGTH = 4096


class SocketAccess(NamedTuple):
    """The host's functions that identify sockets and guard rooms.

    `requires_identity`: a socket without an identity cannot connect. `limits` bounds connections without an
    identity. `digest_of` returns the digest of a request's token, and `find_revoked` those that are revoked.
    `check_served` raises if a caller may not serve the jobs and providers of a room.
    """

    app: FastAPI
    identify: Callable[[Request], Awaitable[Identity | None]]
    check_readable: Callable[[Request, Identity, str], Awaitable[None]]
    requires_identity: bool = False
    limits: ServerSettings | None = None
    digest_of: Callable[[Request], str | None] = lambda _: None
    find_revoked: FindRevoked | None = None
    prefix: str = ""
    check_served: Callable[[Request, Identity, str], Awaitable[None]] | None = None


class Rooms:
    """The rooms of a `socketio.AsyncServer` that sockets join and leave.

    A join is acknowledged with ``{}``, or with a problem, which is also sent to the socket as the event
    `problem`. A socket identifies itself when it connects, by the ``Authorization`` header or by
    ``auth={"token": …}``; the server checks the identity again at each join. The host's handlers stay.
    """

    # Between checks of what the sockets of workers serve.
    check_seconds = 10.0

    def __init__(self, sio: Any, runtime: Runtime, access: SocketAccess) -> None:
        self.sio = sio
        self._runtime = runtime
        self._access = access
        self.requests: dict[str, Request] = {}
        self._joined: dict[str, set[str]] = {}
        self.disconnects = DisconnectTracker(runtime)
        self.presence = Presence(runtime, sio, self._enter, self._leave, self._is_connected)
        self.supervisor = SocketSupervisor(sio, runtime, access.limits, access.find_revoked)
        self._handlers: dict[str, Any] = {}
        self._handle(events.JoinJobRoom, self._join_job)
        self._handle(events.LeaveJobRoom, self._leave_job)
        self._handle(events.JoinProviderRoom, self._join_provider)
        self._handle(events.LeaveProviderRoom, self._leave_provider)
        self._handle(events.JoinRoom, self._join_room)
        self._handle(events.LeaveRoom, self._leave_room)
        self.install_handlers()

    @property
    def requires_identity(self) -> bool:
        """Whether a socket without an identity cannot connect."""
        return self._access.requires_identity

    @property
    def loops(self) -> dict[str, Callable[[], Coroutine[Any, Any, None]]]:
        """Return the loops to run while the server runs, by name."""
        return {
            "presence": self.presence.run,
            "sockets": self.supervisor.run,
            "served_rooms": self._check_served_rooms,
        }

    @property
    def is_idle(self) -> bool:
        """Return whether no socket is connected and no grace period runs."""
        is_tracked = self.requests or self._joined or self.supervisor.owners
        return not is_tracked and self.presence.is_idle and self.disconnects.is_idle

    @property
    def owns_provider_rooms(self) -> bool:
        """Whether sockets join the rooms of providers only here. A host may replace the handler later."""
        event = events.JoinProviderRoom.event_name
        handler = self._handlers.get(event)
        return handler is not None and socketio_internals.find_handler(self.sio, event) is handler

    def install_handlers(self) -> None:
        """Run before the host's handlers of `connect` and `disconnect`. Call it again after it sets them."""
        for event, handler in (("connect", self._connect), ("disconnect", self._disconnect)):
            hosts_handler = socketio_internals.find_handler(self.sio, event)
            if hosts_handler is None or hosts_handler is not self._handlers.get(event):
                self._handlers[event] = partial(handler, hosts_handler)
                self.sio.on(event, self._handlers[event])

    async def close_sockets(self) -> None:
        """Close all connections and refuse new ones, so that a stopping server waits for no open poll."""
        self.supervisor.is_closing = True
        await socketio_internals.close_sockets(self.sio)

    async def _connect(self, hosts_handler: Any, sid: str, environ: dict[str, Any], auth: Any = None) -> Any:
        request = self.requests[sid] = self._request(environ, auth)
        try:
            if self._access.requires_identity:
                await self._check_identity(sid, request)
            answer = await _call(hosts_handler, sid, environ, auth) if hosts_handler else None
        except BaseException:
            self._forget(sid)
            raise
        if answer is False:
            self._forget(sid)
        return answer

    async def _check_identity(self, sid: str, request: Request) -> None:
        try:
            if await self._identify(sid, request) is None:
                raise Unauthorized("A connection needs an identity: connect with auth={'token': …}")
        except Exception as error:
            problem = prefixed(as_problem(error).problem, self._access.prefix)
            raise socketio.exceptions.ConnectionRefusedError(
                problem.detail or problem.title, _to_data(problem)
            ) from error

    def _request(self, environ: dict[str, Any], auth: Any) -> Request:
        """Return the connection as an HTTP request, for the dependencies of a host."""
        scope = environ["asgi.scope"]
        headers = list(scope.get("headers", ()))
        token = auth.get("token") if isinstance(auth, dict) else None
        if isinstance(token, str) and len(token) <= _MAX_TOKEN_LENGTH:
            headers = [(name, value) for name, value in headers if name != b"authorization"]
            headers.append((b"authorization", f"Bearer {token}".encode("utf-8", "replace")))
        changes = {"type": "http", "method": "GET", "app": self._access.app, "path_params": {}}
        return Request({**scope, **changes, "headers": headers}, _no_body)

    async def _disconnect(self, hosts_handler: Any, sid: str, reason: Any = None) -> Any:
        self._forget(sid)
        return await _call(hosts_handler, sid, reason) if hosts_handler else None

    def _forget(self, sid: str) -> None:
        """Undo all that a disconnected socket has joined."""
        self.requests.pop(sid, None)
        self._joined.pop(sid, None)
        self.supervisor.remove(sid)
        self.presence.disconnected(sid)
        self.disconnects.disconnected(sid)

    def _record_join(self, sid: str, worker_id: UUID, room: str) -> None:
        """Record that a worker has joined a room by a socket, which may have disconnected already."""
        self.disconnects.joined(sid, worker_id, room)
        if not self._is_connected(sid):
            self._forget(sid)

    def _is_connected(self, sid: str) -> bool:
        return sid in self.requests

    def _handle(self, kind: type[Event], handle: Callable[[str, Event], Awaitable[None]]) -> None:
        async def handler(sid: str, data: Any = None) -> dict[str, Any]:
            try:
                await handle(sid, _parse(kind, data))
            except Exception as error:
                problem = _to_data(prefixed(as_problem(error).problem, self._access.prefix))
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._runtime.settings.publish_timeout_seconds):
                        await self.sio.emit("problem", problem, room=sid)
                return problem
            return {}

        if socketio_internals.find_handler(self.sio, kind.event_name) is None:
            self._handlers[kind.event_name] = handler
            self.sio.on(kind.event_name, handler)
        else:
            logger.warning("The host's handler replaces the server's: event=%s", kind.event_name)

    async def _join_job(self, sid: str, event: events.JoinJobRoom) -> None:
        worker_id = _worker_id(event)
        caller, name = await self._caller(sid), parse_job_name(event.job_name)
        # A heartbeat, which checks that the worker belongs to the caller.
        await self._runtime.heartbeat(caller, worker_id)
        await self._runtime.database.read(rules_workers.check_serves, worker_id, name)
        await self._check_served(sid, caller, name.room_id)
        await self._enter(sid, events.workers_of(str(name)), events.sockets_of(worker_id))
        self._record_join(sid, worker_id, str(name))

    async def _leave_job(self, sid: str, event: events.LeaveJobRoom) -> None:
        await self._end_job(sid, _worker_id(event), event.job_name)

    async def _end_job(self, sid: str, worker_id: UUID, name: str) -> None:
        await self._leave(sid, events.workers_of(name))
        self.disconnects.left_room(sid, worker_id, name)

    async def _join_provider(self, sid: str, event: events.JoinProviderRoom) -> None:
        worker_id = _worker_id(event)
        caller, name = await self._caller(sid), parse_provider_name(event.provider_name)
        await self._runtime.heartbeat(caller, worker_id)
        await self._check_served(sid, caller, name.room_id)
        await self._enter(sid, events.sockets_of(worker_id))
        await self.presence.join(sid, worker_id, name)
        self._record_join(sid, worker_id, events.providers_of(str(name)))

    async def _leave_provider(self, sid: str, event: events.LeaveProviderRoom) -> None:
        await self._end_provider(sid, _worker_id(event), event.provider_name)

    async def _end_provider(self, sid: str, worker_id: UUID, name: str) -> None:
        self.presence.left_room(sid, name)
        await self._leave(sid, events.providers_of(name))
        self.disconnects.left_room(sid, worker_id, events.providers_of(name))

    async def _join_room(self, sid: str, event: events.JoinRoom) -> None:
        caller = await self._caller(sid)
        room_id = validate_room_id(event.room_id)
        await self._access.check_readable(_copy(self.requests[sid]), caller, room_id)
        await self._enter(sid, events.room_of(room_id), events.EVERY_ROOM)

    async def _leave_room(self, sid: str, event: events.LeaveRoom) -> None:
        await self._leave(sid, events.room_of(event.room_id))
        if not any(room.startswith("room:") for room in self._joined.get(sid, set()) - {events.EVERY_ROOM}):
            await self._leave(sid, events.EVERY_ROOM)

    async def _check_served(self, sid: str, caller: Identity, room_id: str) -> None:
        request = self.requests.get(sid)
        if request is not None and self._access.check_served is not None:
            await self._access.check_served(request, caller, room_id)

    async def _check_served_rooms(self) -> None:
        """End repeatedly what the sockets of workers may no longer serve, until it is cancelled."""
        while True:
            await asyncio.sleep(self.check_seconds)
            for sid, joined in self.disconnects.joined_rooms().items():
                try:
                    await self._leave_refused(sid, joined)
                except Exception as error:
                    logger.warning("Rooms of a socket were not checked: sid=%s error=%r", sid, error)

    async def _leave_refused(self, sid: str, joined: list[tuple[UUID, str]]) -> None:
        for worker_id, room in joined:
            name = room.removeprefix(events.providers_of(""))
            if await self._is_refused(sid, name.split(":", 1)[0]):
                logger.info("A socket left a room that its user may not serve: sid=%s room=%s", sid, room)
                await (self._end_job if room == name else self._end_provider)(sid, worker_id, name)

    async def _is_refused(self, sid: str, room_id: str) -> bool:
        """Return whether the caller may no longer serve a room. A token that expired is no refusal."""
        try:
            await self._check_served(sid, await self._caller(sid), room_id)
        except Exception as error:
            return as_problem(error).problem.status in {403, 404}
        return False

    async def _caller(self, sid: str) -> Identity:
        request = self.requests.get(sid)
        caller = None if request is None else await self._identify(sid, request)
        if caller is None:
            raise Unauthorized("Joining a room needs an identity: connect with auth={'token': …}")
        return caller

    async def _identify(self, sid: str, request: Request) -> Identity | None:
        caller = await self._access.identify(_copy(request))
        if caller is not None and self._is_connected(sid):
            self.supervisor.add(sid, SocketOwner(caller, self._access.digest_of(request)))
        return caller

    async def _enter(self, sid: str, *rooms: str) -> None:
        """Join rooms, unless the socket is disconnected."""
        if not self._is_connected(sid):
            return
        joined = self._joined.setdefault(sid, set())
        if len(joined.union(rooms)) > MAX_ROOMS:
            raise TooManyRequests(
                f"A socket may join at most {MAX_ROOMS} rooms; leave one, or use another socket"
            )
        for room in rooms:
            if self._is_connected(sid):
                await self.sio.enter_room(sid, room)
                joined.add(room)

    async def _leave(self, sid: str, room: str) -> None:
        # A room that the socket has not joined here may be one of the host.
        with suppress(KeyError):
            self._joined.get(sid, set()).remove(room)
            await self.sio.leave_room(sid, room)


def _copy(request: Request) -> Request:
    """Return a copy of a request for one call of the host's dependencies, which may store values in it."""
    return Request(dict(request.scope), _no_body)


async def _no_body() -> dict[str, Any]:
    return {"type": "http.request", "body": b"", "more_body": False}


def _parse(kind: type[Event], data: Any) -> Event:
    [*fields] = kind.model_fields
    if isinstance(data, str) and len(fields) == 1:
        data = {fields[0]: data}
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise invalid_part(error, kind.event_name) from error


def _worker_id(event: Any) -> UUID:
    try:
        return UUID(event.worker_id)
    except ValueError as error:
        raise InvalidRequest(
            f"{event.event_name}.worker_id: {event.worker_id!r:.50} is not a UUID"
        ) from error


def _to_data(problem: Any) -> dict[str, Any]:
    data: dict[str, Any] = problem.model_dump(mode="json", exclude_none=True)
    return data


async def _call(handler: Callable[..., Any], *args: Any) -> Any:
    """Call a handler of the host, which may lack the last argument: `auth` or the reason of a disconnect."""
    try:
        inspect.signature(handler).bind(*args)
    except TypeError:
        args = args[:-1]
    answer = handler(*args)
    return await answer if inspect.isawaitable(answer) else answer
