"""Access: the state of a mounted queue, the caller of a request, and the guards of rooms."""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from datetime import datetime
from functools import cached_property, partial
from math import inf
from typing import Annotated, Any
from uuid import UUID

from cachetools import TTLCache
from fastapi import Depends, FastAPI, Path, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from zndraw_joblib.server.admin.overviews import Overviews
from zndraw_joblib.server.background.loops import Health, Metrics
from zndraw_joblib.server.background.sweeper import Sweeper
from zndraw_joblib.server.background.webhooks import Webhooks
from zndraw_joblib.server.http.identity import BearerTokens, identity_dependency
from zndraw_joblib.server.http.requests import (
    QUEUE,
    bytes_of_bodies,
    bytes_of_responses,
    fresh_copy,
    open_downloads,
    solve,
)
from zndraw_joblib.server.internal.dispatcher import Dispatcher
from zndraw_joblib.server.internal.registry import WorkerTokens
from zndraw_joblib.server.process.ports import Identity, ResultBackend, UploadKey, identity_key
from zndraw_joblib.server.process.settings import JobLibSettings
from zndraw_joblib.server.process.shared_limit import SharedLimit
from zndraw_joblib.server.process.waiters import CallerAccess
from zndraw_joblib.server.queue import rules_task_tokens, rules_transitions, rules_workers
from zndraw_joblib.server.queue.rules_task_tokens import PREFIX
from zndraw_joblib.server.queue.rules_tasks import Report
from zndraw_joblib.server.queue.rules_workers import ServedRooms
from zndraw_joblib.server.realtime.group_streams import GroupStreams
from zndraw_joblib.server.realtime.publisher import SocketIoPublisher
from zndraw_joblib.server.realtime.streams import Streams
from zndraw_joblib.server.results.provider_requests import ProviderRequests, Uploads
from zndraw_joblib.server.results.results import TaskResults
from zndraw_joblib.server.runtime.problem_responses import as_problem
from zndraw_joblib.server.runtime.runtime import Runtime
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.names import GLOBAL, RESERVED, RESERVED_IDS, JobName, validate_room_id
from zndraw_joblib.wire.operations import Access, ForTask, Operation
from zndraw_joblib.wire.problems import (
    Forbidden,
    GroupNotFound,
    InternalServerError,
    JobNotFound,
    ProblemException,
    TaskNotFound,
    Unauthorized,
)
from zndraw_joblib.wire.scopes import Scope
from zndraw_joblib.wire.statuses import TaskStatus

# The guards of rooms: arguments of `JobLib`, or overrides in ``app.dependency_overrides``.

Guard = Callable[..., Any]
# In the scope of a request while a guard runs.
_GUARDING = "zndraw_joblib.guarding"


async def verify_readable_room(room_id: Annotated[str, Path()], request: Request = None) -> str:  # type: ignore[assignment]
    """Return the room to read from. A host may override it, but should pass ``JobLib(readable_room=…)``.

    As a dependency of a host's own route it runs the guards of the queue; called with a room alone, it
    only checks the id.
    """
    return await _guarded(request, verify_readable_room, room_id)


async def verify_writable_room(room_id: Annotated[str, Path()], request: Request = None) -> str:  # type: ignore[assignment]
    """Return the room to write to. A host may override it, but should pass ``JobLib(writable_room=…)``.

    As a dependency of a host's own route it runs the guards of the queue; called with a room alone, it
    only checks the id.
    """
    return await _guarded(request, verify_writable_room, room_id)


async def _guarded(request: Request | None, dependency: Guard, room_id: str) -> str:
    queue = None if request is None else getattr(request.app.state, "joblib", None)
    # A guard may depend on this function itself.
    if request is None or queue is None or request.scope.get(_GUARDING):
        return validate_room_id(room_id)
    guards: RoomGuards = queue.guards
    return await guards.resolve(request, dependency, room_id)


def check_room_writer(caller: Identity, room_id: str, what: str) -> None:
    """Raise `Forbidden` for a caller who operates no reserved room, in one."""
    if room_id in RESERVED and not caller.operates(room_id):
        raise Forbidden(f"Not authorized: only superusers may change {what} of {room_id}")


def check_in_room(caller: Identity | None, room_id: str) -> None:
    """Raise `Forbidden` for a caller that has rights in other rooms only."""
    if caller is not None and caller.rooms is not None and room_id not in caller.rooms:
        raise rules_transitions.outside_rooms(caller, room_id)


def check_job(caller: Identity, name: JobName) -> None:
    """Raise `Forbidden` for a job that the caller may not name, `JobNotFound` for one of another room."""
    if caller.rooms is None and caller.jobs is None:
        return
    if is_of_other_room(caller, str(name)):
        raise JobNotFound(f"Job {str(name)!r} not found")
    if not caller.names_job(str(name)):
        raise rules_transitions.other_job(caller, str(name))


def check_provider(caller: Identity, full_name: str) -> None:
    """Raise `Forbidden` for a provider that the caller may not serve: patterns of jobs hold for it too."""
    if not caller.names_job(full_name):
        raise rules_transitions.other_job(caller, full_name, "provider")


def check_operates_job(caller: Identity, name: JobName) -> None:
    """Raise `Forbidden` for a job of a reserved room that the caller does not operate."""
    if not caller.operates(name.room_id):
        raise rules_transitions.outside_rooms(caller, name.room_id)


def _has_signed_token(request: Request) -> bool:
    """Return whether the caller of a request has the token of a task, or of a request to a provider."""
    caller = request.scope.get(CALLER)
    return caller is not None and caller.has_signed_token


class RoomGuards:
    """The guards of one mounted queue. They pass no room in which the caller itself has no rights.

    An argument always applies. An override that is set when the queue is mounted or the app starts still
    applies after its removal, because tests often clean up with ``app.dependency_overrides = {}``.
    """

    def __init__(self, readable: Guard | None, writable: Guard | None) -> None:
        # A user who cannot read a room cannot write to it either.
        self._arguments = {verify_readable_room: readable, verify_writable_room: writable or readable}
        self.arguments = {"readable_room": readable, "writable_room": writable}
        self._remembered: dict[Guard, Guard] = {}
        self._reported: set[Guard] = set()

    def remember(self, app: FastAPI) -> None:
        """Keep the overrides that are set now and were not set at an earlier call."""
        for dependency in self._arguments:
            if dependency in app.dependency_overrides:
                self._remembered.setdefault(dependency, app.dependency_overrides[dependency])

    def has(self, request: Request, dependency: Guard) -> bool:
        """Return whether a guard is set."""
        is_override = dependency in request.app.dependency_overrides or dependency in self._remembered
        return is_override or self._arguments[dependency] is not None

    def dependencies(self, request: Request) -> list[Guard]:
        """Return the dependencies that a request may run."""
        guards = [*self._arguments.values(), *self._remembered.values()]
        guards += [
            dependency for dependency in self._arguments if dependency in request.app.dependency_overrides
        ]
        return [guard for guard in guards if guard is not None]

    async def resolve(self, request: Request, dependency: Guard, room_id: str) -> str:
        """Return the room that a request names after the guards have passed.

        The guards get valid ids; an override has its own rule for the id in the request.
        """
        if dependency not in request.app.dependency_overrides and dependency not in self._remembered:
            room_id = validate_room_id(room_id)
            if self._arguments[dependency] is None:
                check_in_room(request.scope.get(CALLER), room_id)
                return room_id
        elif _has_signed_token(request):
            room_id = validate_room_id(room_id)
        checked = await self.check(request, dependency, room_id)
        return room_id if checked is None else checked

    async def check(self, request: Request, dependency: Guard, room_id: str) -> str | None:
        """Run the guards for a room. Return the room that they return, None without a guard.

        Raises `Forbidden` for a room in which the caller has no rights.
        """
        result = None
        # A host's guard knows its users, not the tokens of tasks.
        has_guards = not _has_signed_token(request)
        for guard in (self._override(request, dependency), self._arguments[dependency]):
            if guard is not None and has_guards:
                path_params = {**request.path_params, "room_id": room_id}
                outer = request.scope.get(_GUARDING)
                request.scope[_GUARDING] = True
                try:
                    result = await solve(request, guard, **path_params)
                finally:
                    request.scope[_GUARDING] = outer
                room_id = result = room_id if result is None else result
        check_in_room(request.scope.get(CALLER), room_id)
        return result

    def _override(self, request: Request, dependency: Guard) -> Guard | None:
        if dependency in request.app.dependency_overrides:
            return dependency
        if dependency in self._remembered and dependency not in self._reported:
            self._reported.add(dependency)
            name = dependency.__name__
            logger.warning(
                "The override of %s was removed from app.dependency_overrides; its guard still applies. "
                "Pass the guard as JobLib(%s=...) instead",
                name,
                name.removeprefix("verify_"),
            )
        return self._remembered.get(dependency)


# The guards for workers: an owner that may no longer write to a room does not serve its jobs.
#
# Claims, reports and uploads name no room. They are checked against the guards of the rooms of the worker's
# jobs and providers, with outcomes that are cached for some seconds. Without guards, nothing is read, and
# only ``@global`` is refused, to callers that are no superusers.

_MAX_CACHED = 10_000
# Other refusals, like 423, are a state of the room and take no right away.
_LOST_RIGHTS = frozenset({401, 403, 404})
_NONE: frozenset[str] = frozenset()
_ONLY_GLOBAL = frozenset({GLOBAL})
_UNKNOWN = ProblemException("")
_REPORTS = Scope.WORK | Scope.OPERATE
Refusals = Mapping[str, ProblemException]


class WorkerRooms:
    """Which rooms the owners of workers may serve. The guards are those that let them register.

    Superusers may serve every room; ``@global`` also workers of a role with this room.
    """

    def __init__(self, guards: RoomGuards, runtime: Runtime, *, cache_seconds: float = 3.0) -> None:
        self._guards = guards
        self._database = runtime.database
        # When the rights of a user changed last, in monotonic seconds.
        self.changed_at = 0.0
        runtime.waiters.subscribe(identity_key(""), self._forget)
        self._served: TTLCache[tuple[str, UUID], ServedRooms] = TTLCache(_MAX_CACHED, cache_seconds)
        self._outcomes: TTLCache[tuple[str, str], ProblemException | None] = TTLCache(
            _MAX_CACHED, cache_seconds
        )
        # The first job of a worker that its owner may not name with the token of the request; None for none.
        self._unnamed: TTLCache[tuple[Identity, UUID], str | None] = TTLCache(_MAX_CACHED, cache_seconds)

    def _forget(self, _: str) -> None:
        self.changed_at = time.monotonic()
        self._served.clear()
        self._outcomes.clear()
        self._unnamed.clear()

    async def refused_jobs(self, request: Request, caller: Identity, worker_id: UUID) -> Collection[str]:
        """Return the rooms whose jobs a worker must not claim from. Raises the refusal if these are all.

        Raises `Forbidden` for a worker that serves jobs which the caller may not name.
        """
        # The workers of a token that an operator issued belong to no other token.
        if caller.jobs is not None and caller.worker is None:
            await self._check_jobs(caller, worker_id)
        if not self._apply_to(request, caller):
            return _refused_without_guards(caller)
        return await self._refused(request, caller, (await self._rooms(caller, worker_id)).jobs)

    async def refused_providers(self, request: Request, caller: Identity, worker_id: UUID) -> Collection[str]:
        """Return the rooms whose provider requests a worker must not claim, as `refused_jobs` does."""
        if not self._apply_to(request, caller):
            return _refused_without_guards(caller)
        return await self._refused(request, caller, (await self._rooms(caller, worker_id)).providers)

    async def check(self, request: Request, caller: Identity, room_id: str) -> None:
        """Raise the refusal of a room. That of ``@global`` needs no guard."""
        if not caller.serves(room_id):
            raise rules_transitions.cannot_serve(caller, room_id)
        problem = await self._refusal(request, caller, room_id) if self._apply_to(request, caller) else None
        if problem is not None:
            raise problem

    async def check_task(self, request: Request, caller: Identity, task_id: UUID) -> None:
        """Raise the refusal of the room of a task's job, if the task is one of the caller's worker."""
        if self._apply_to(request, caller):
            for problem in (await self._refusals(request, caller, [task_id])).values():
                raise problem

    async def refused_reports(
        self, request: Request, caller: Identity, reports: Iterable[Report]
    ) -> Mapping[UUID, ProblemException]:
        """Return the refusals of reports of the caller's workers, by task; not of cancels and releases."""
        if not caller.may(_REPORTS):
            refusal = rules_transitions.missing_scope(caller, Scope.WORK)
            return {item.task_id: refusal for item in reports if item.update.status != TaskStatus.CANCELLED}
        if not self._apply_to(request, caller):
            return {}
        by_worker: dict[UUID | None, set[UUID]] = {}
        for report in reports:
            if report.update.status not in {TaskStatus.CANCELLED, TaskStatus.PENDING}:
                by_worker.setdefault(report.update.worker_id, set()).add(report.task_id)
        suspects: set[UUID] = set()
        for worker_id, task_ids in by_worker.items():
            if worker_id is None or await self._serves_refused(request, caller, worker_id):
                suspects |= task_ids
        return await self._refusals(request, caller, suspects) if suspects else {}

    async def refused_tasks(
        self, request: Request, caller: Identity, worker_id: UUID, task_ids: Collection[UUID]
    ) -> Collection[UUID]:
        """Return those of the tasks that a worker names whose jobs it may not serve."""
        if not task_ids or not self._apply_to(request, caller):
            return ()
        if not await self._serves_refused(request, caller, worker_id):
            return ()
        return (await self._refusals(request, caller, task_ids)).keys()

    async def own_tasks(
        self, request: Request, caller: Identity, task_ids: Collection[UUID]
    ) -> Collection[UUID]:
        """Return those of these tasks that a worker of the caller, which may serve them, has or had last."""
        rooms = await self._database.read_short(rules_workers.of_own_tasks, caller, list(task_ids))
        if not self._apply_to(request, caller):
            return rooms.keys()
        refusals = await self._refusals_of(request, caller, set(rooms.values()))
        return {task_id for task_id, room_id in rooms.items() if room_id not in refusals}

    async def _check_jobs(self, caller: Identity, worker_id: UUID) -> None:
        key = caller, worker_id
        name = self._unnamed.get(key, "")
        if name == "":
            name = await self._database.read_short(rules_workers.first_unnamed, caller, worker_id)
            self._unnamed[key] = name
        if name is not None:
            raise rules_transitions.other_job(caller, name)

    def _apply_to(self, request: Request, caller: Identity) -> bool:
        # The token of a task is checked by its task.
        if caller.is_superuser or caller.has_signed_token:
            return False
        return caller.rooms is not None or self._guards.has(request, verify_writable_room)

    async def _rooms(self, caller: Identity, worker_id: UUID) -> ServedRooms:
        key = caller.id, worker_id
        served = self._served.get(key)
        if served is None:
            served = await self._database.read_short(rules_workers.served, caller, worker_id)
            self._served[key] = served
        return served

    async def _serves_refused(self, request: Request, caller: Identity, worker_id: UUID) -> bool:
        served = await self._rooms(caller, worker_id)
        return bool(await self._refusals_of(request, caller, served.jobs | served.held))

    async def _refused(self, request: Request, caller: Identity, rooms: Collection[str]) -> Collection[str]:
        refusals = await self._refusals_of(request, caller, rooms)
        if refusals and len(refusals) == len(rooms):
            raise next(iter(refusals.values()))
        return frozenset(refusals)

    async def _refusals_of(self, request: Request, caller: Identity, rooms: Collection[str]) -> Refusals:
        refusals = {room: await self._refusal(request, caller, room) for room in rooms}
        return {room: problem for room, problem in refusals.items() if problem is not None}

    async def _refusals(
        self, request: Request, caller: Identity, task_ids: Collection[UUID]
    ) -> Mapping[UUID, ProblemException]:
        rooms = await self._database.read_short(rules_workers.of_own_tasks, caller, list(task_ids))
        refusals = await self._refusals_of(request, caller, set(rooms.values()))
        return {task_id: refusals[room] for task_id, room in rooms.items() if room in refusals}

    async def _refusal(self, request: Request, caller: Identity, room_id: str) -> ProblemException | None:
        """Return why the caller may not serve a room; None if it may."""
        if not caller.serves(room_id):
            return rules_transitions.cannot_serve(caller, room_id)
        key = caller.id, room_id
        outcome = self._outcomes.get(key, _UNKNOWN)
        if outcome is _UNKNOWN:
            outcome = await self._ask(request, room_id)
            # An expired token refuses no other request of the user.
            if outcome is None or outcome.problem.status != 401:
                self._outcomes[key] = outcome
        return None if outcome is None else outcome.with_traceback(None)

    async def _ask(self, request: Request, room_id: str) -> ProblemException | None:
        # A copy, because a host's dependencies may store values in the request.
        try:
            await self._guards.check(fresh_copy(request), verify_writable_room, room_id)
        except (ProblemException, HTTPException, RequestValidationError) as error:
            problem = as_problem(error)
            if problem.problem.status >= 500:
                raise
            return problem if problem.problem.status in _LOST_RIGHTS else None
        return None


def _refused_without_guards(caller: Identity) -> Collection[str]:
    return _NONE if caller.serves(GLOBAL) else _ONLY_GLOBAL


# The state of a mounted queue: ``app.state.joblib``.

logger = logging.getLogger(__name__)


class QueueState(ABC):
    """A queue that is mounted into an app. `JobLib` builds it."""

    runtime: Runtime
    dispatcher: Dispatcher
    sweeper: Sweeper
    health: Health
    metrics: Metrics
    provider_requests: ProviderRequests
    uploads: Uploads
    task_results: TaskResults
    streams: Streams
    webhooks: Webhooks
    group_streams: GroupStreams
    overviews: Overviews
    guards: RoomGuards
    worker_tokens: WorkerTokens
    publisher: SocketIoPublisher
    worker_rooms: WorkerRooms
    # What the queue takes for the time; None for the database's own clock.
    clock: Callable[[], datetime] | None
    # What precedes ``/v1`` in the paths of its routes.
    prefix: str = ""
    # The URL of the operators' page, relative to that of the queue; None without a page.
    page: str | None = None
    # A waiting request or an event stream trusts a check of its caller for this long. With the 3 s for which
    # tokens are cached, a revoked one works for at most 5 s.
    trusted_seconds: float = 2.0
    # An idle event stream sends a comment after this time, which keeps its connection open.
    keep_alive_seconds: float = 15.0
    # The host's dependency, and its value for a request.
    identity: Callable[..., Any]

    @cached_property
    def body_bytes(self) -> SharedLimit:
        """The bytes of the bodies that this process receives."""
        return bytes_of_bodies(self.runtime.settings)

    @cached_property
    def response_bytes(self) -> SharedLimit:
        """The bytes of the large responses that this process is sending."""
        return bytes_of_responses(self.runtime.settings)

    @cached_property
    def downloads(self) -> SharedLimit:
        """The downloads that this process is sending."""
        return open_downloads(self.runtime.settings)

    @cached_property
    def _identify(self) -> Callable[[Request], Awaitable[Identity | None]]:
        if isinstance(self.identity, BearerTokens):
            return self.identity.identify
        return partial(solve, dependency=identity_dependency(self.identity))

    async def identify(self, request: Request) -> Identity | None:
        """Return the caller of a request; None without an identity. Raises `Forbidden` for reserved ids.

        The token of a task needs no user of the host.
        """
        token = _task_token_of(request)
        if token is not None:
            return await self.runtime.task_tokens.identify(token)
        identity = await self._identify(request)
        if identity is not None and identity.id in RESERVED_IDS:
            raise Forbidden(f"The identity {identity.id!r} is reserved for the server's code and processes")
        return identity

    async def identify_socket(self, request: Request) -> Identity | None:
        """Return the caller of a socket. Raises `Forbidden` for the token of a task, which opens none."""
        identity = await self.identify(request)
        if identity is not None and identity.has_signed_token:
            raise Forbidden(
                "Not authorized: the token of a task opens no socket; follow its events over HTTP"
            )
        return identity

    def token_seconds(self, request: Request) -> float | None:
        """Return for how long the token of a request is valid; None without an end, and in a host's app."""
        return self.identity.seconds_left(request) if isinstance(self.identity, BearerTokens) else None

    async def find_reader(self, identity: Identity, at: datetime, room_id: str) -> Identity | None:
        """Return the caller that had this identity, and a right to read a room, at a time.

        None if what it had is revoked. A host's user is returned as it is.
        """
        if not isinstance(self.identity, BearerTokens):
            return identity
        return await self.identity.find_reader(identity, at, room_id)

    @property
    @abstractmethod
    def results(self) -> ResultBackend:
        """The result backend, unless a host overrides `get_result_backend`."""


_TASK_TOKEN = b"bearer " + PREFIX.encode()


def _task_token_of(request: Request) -> str | None:
    """Return the token of a task that a request has as its bearer token; None without one."""
    for name, value in request.scope["headers"]:
        if name == b"authorization":
            text: bytes = value
            is_token = text[: len(_TASK_TOKEN)].lower() == _TASK_TOKEN
            return text.decode("latin-1")[len("bearer ") :].strip() if is_token else None
    return None


def queue_state(request: Request) -> QueueState:
    """Return the queue of a request. Raises `InternalServerError` where the app has none."""
    queue = request.scope.get(QUEUE)
    if queue is None:
        queue = getattr(request.app.state, "joblib", None)
        if not isinstance(queue, QueueState):
            fault = "The app has no queue: call JobLib(...).mount(app) before it handles requests"
            logger.error("%s. It adds the queue's routes; do not include its router", fault)
            raise InternalServerError(fault)
    state: QueueState = queue
    return state


def remember_queue(request: Request) -> QueueState:
    """Return the queue, and keep it in the scope of a request that one of its routes handles."""
    queue = request.scope[QUEUE] = queue_state(request)
    return queue


# The caller of a request: identified before its body arrives, and again after a slow body.

# The keys of the caller, of the time at which it was identified, and of the guard of the path's room, in
# the request's scope.
CALLER = "zndraw_joblib.caller"
IDENTIFIED_AT = "zndraw_joblib.identified_at"
ROOM_GUARD = "zndraw_joblib.room_guard"
Recheck = Callable[[Request], Awaitable[object]]


async def current_identity(request: Request) -> Identity:
    """Return the caller. Raises `Unauthorized` without an identity: every endpoint needs one."""
    scope, began = request.scope, time.monotonic()
    identity = await (scope.get(QUEUE) or queue_state(request)).identify(request)
    if not isinstance(identity, Identity):
        raise Unauthorized(
            "The request needs an identity: this app finds no user in it",
            headers={"WWW-Authenticate": "Bearer"},
        )
    scope[CALLER], scope[IDENTIFIED_AT] = identity, began
    return identity


async def guarded_room(request: Request, guard: Guard, missing: type[ProblemException] = JobNotFound) -> str:
    """Return the room of a request's path after the host's guard has passed.

    Raises `missing` if the path also names a job or provider of a room in which the caller has no rights.
    """
    scope = request.scope
    scope[ROOM_GUARD] = guard
    room_id: str = await scope[QUEUE].guards.resolve(request, guard, scope["path_params"]["room_id"])
    caller: Identity = scope[CALLER]
    if caller.rooms is not None and "name" in scope["path_params"]:
        name = scope["path_params"]["name"]
        if is_of_other_room(caller, name):
            raise missing(f"{name!r} not found in room {room_id!r}")
    return room_id


def is_of_other_room(caller: Identity, full_name: str) -> bool:
    """Return whether a job or provider is in a room in which the caller has no rights, and not for all rooms.

    Without `cross_room_jobs` no other caller finds it from the room of its request either.
    """
    room_id, separator, _ = full_name.partition(":")
    return bool(separator) and room_id not in RESERVED and not caller.is_in(room_id)


async def permitted_caller(request: Request, operation: Operation[Any]) -> Identity:
    """Return the caller. Raises `Forbidden` unless the row of an operation permits it to the caller."""
    identity = await current_identity(request)
    if identity.task is not None:
        await _check_task_permits(request, identity, operation)
        return identity
    if identity.upload is not None:
        _check_upload(request, identity.upload, operation)
        return identity
    # Callers without roles have the scopes of all rows but those of superusers.
    if identity.scopes is not None and (missing := operation.missing(identity.scopes)):
        raise rules_transitions.missing_scope(identity, missing, operation.scopes)
    if operation.is_of_all_rooms and not identity.is_superuser:
        has_scope = identity.scopes is not None
        if has_scope and identity.rooms is None and Access.METRICS_TOKEN in operation.access:
            return identity
        if not has_scope:
            raise Forbidden("Not authorized: only superusers may do this")
        # The guards of the rooms in the path or the body let operators into their rooms.
        if not operation.access & (Access.ROOM_WRITE | Access.NAMED_ROOMS):
            raise Forbidden(
                "Not authorized: this is about all rooms, and the caller has rights in "
                f"{rules_transitions.own_rooms(identity)} only. Name one of these rooms in an operation of "
                "a room, or use a token that was created without `--rooms`"
            )
    return identity


def _check_upload(request: Request, upload: UploadKey, operation: Operation[Any]) -> None:
    """Raise `Forbidden` unless the token of a request to a provider permits an operation: its upload."""
    about = request.path_params.get("provider_id"), request.headers.get("x-request-hash")
    if operation is not ops.UPLOAD_PROVIDER_RESULT or about != (str(upload.provider_id), upload.request_hash):
        raise Forbidden(
            f"Not authorized: the token permits only the upload of the result of request "
            f"{upload.request_hash} to provider {upload.provider_id}, with its hash in X-Request-Hash"
        )


async def _check_task_permits(request: Request, caller: Identity, operation: Operation[Any]) -> None:
    """Raise `Forbidden` unless the token of a task permits an operation for what the path names."""
    assert caller.task is not None  # noqa: S101 - checked by the caller
    if operation.for_task is None:
        raise Forbidden(
            f"Not authorized: the token is of task {caller.task.id}. It reads and reports on this task, "
            "submits tasks below it, also in groups, cancels these, and reads jobs and providers of its room"
        )
    kind = "group" if operation.for_task is ForTask.GROUP else "task"
    text = request.path_params.get(f"{kind}_id")
    if text is None:
        return  # the guards check the room, and the work what the body names
    try:
        id_ = UUID(text)
    except ValueError:
        return  # the parameter is invalid
    if operation.for_task in {ForTask.RELATED, ForTask.GROUP}:
        await check_related(request, caller, [id_], kind)
    elif operation.for_task is ForTask.BELOW:
        for other in await not_below(request, caller, {id_} - {caller.task.id}):
            raise rules_transitions.not_below(caller, other)
    elif id_ != caller.task.id:
        raise rules_transitions.other_task(caller, id_)


async def check_related(
    request: Request, caller: Identity, ids: Collection[UUID], kind: str = "task"
) -> None:
    """Raise `Forbidden` for a task or a group that does not belong to the task of the caller's token."""
    for id_ in await unrelated(request, caller, ids):
        raise rules_transitions.other_task(caller, id_, kind)


async def unrelated(request: Request, caller: Identity, ids: Collection[UUID]) -> Collection[UUID]:
    """Return those of these ids that do not belong to the task of the caller's token."""
    assert caller.task is not None  # noqa: S101 - checked by the caller
    if set(ids) <= {caller.task.id}:
        return ()
    read = queue_state(request).runtime.database.read_short
    return await read(rules_task_tokens.unrelated, caller.task, ids)


async def not_below(request: Request, caller: Identity, ids: Collection[UUID]) -> Collection[UUID]:
    """Return those of these ids that are of no task below that of the caller's token."""
    if caller.task is None or not ids:
        return ()
    read = queue_state(request).runtime.database.read_short
    return await read(rules_task_tokens.not_below, caller.task, ids)


def is_trusted(queue: QueueState, checked_at: float) -> bool:
    """Return whether a check of the caller at a time, in monotonic seconds, is still valid."""
    is_recent = time.monotonic() < checked_at + queue.trusted_seconds
    return is_recent and queue.worker_rooms.changed_at < checked_at


async def check_again(request: Request, caller: Identity, recheck: Recheck | None = None) -> None:
    """Identify the caller again, and run `recheck` with a copy of the request."""
    copy = fresh_copy(request)
    if await current_identity(copy) != caller:
        raise Unauthorized("The caller's rights have changed: send the request again")
    if recheck is not None:
        await recheck(copy)


async def check_after_body(request: Request, recheck: Recheck | None = None) -> None:
    """Check the caller and the guard of the path's room again if the body took long to arrive.

    A slow body must not outlive the right to send it. `recheck` gets a copy of the request.
    """
    scope = request.scope
    checked_at = scope.get(IDENTIFIED_AT)
    if checked_at is None or is_trusted(queue_state(request), checked_at):
        return

    async def check_room(copy: Request) -> None:
        if (guard := scope.get(ROOM_GUARD)) is not None:
            await guarded_room(copy, guard)
        if recheck is not None:
            await recheck(copy)

    began = time.monotonic()
    await check_again(request, scope[CALLER], check_room)
    scope[IDENTIFIED_AT] = began


async def body_of(request: Request, recheck: Recheck) -> AsyncIterator[bytes]:
    """Yield the chunks of an upload, and raise a refusal of the caller after the last one."""
    async for chunk in request.stream():
        yield chunk
    await check_after_body(request, recheck)


# What a caller may do again while its request waits, and in rooms that are not in the path.


async def check_readable(request: Request, room_id: str) -> None:
    """Run the host's guard for a room that is not in the request's path."""
    await queue_state(request).guards.check(request, verify_readable_room, room_id)


async def check_group_room(
    request: Request, group_id: UUID, room_id: str, guard: Guard = verify_readable_room
) -> None:
    """Run the host's guard for the room of a group; of a room that the request does not name.

    Raises `GroupNotFound` for a room in which the caller has no rights.
    """
    if not request.scope[CALLER].is_in(room_id):
        raise GroupNotFound(f"Group {group_id} not found")
    await queue_state(request).guards.check(request, guard, room_id)


async def check_task_readable(request: Request, caller: Identity, task_id: UUID, room_id: str) -> None:
    """Run the host's guard for the room of a task.

    The worker that has the task, or had it last, needs no right to read that room, only to serve the job.
    Raises `TaskNotFound` for a room in which the caller has no rights.
    """
    if caller.task is not None:
        await check_related(request, caller, [task_id])
        return
    try:
        await check_readable(request, room_id)
    except Exception as error:
        if await queue_state(request).worker_rooms.own_tasks(request, caller, [task_id]):
            return
        if not caller.is_in(room_id):
            raise TaskNotFound(f"Task {task_id} not found") from error
        raise


def access_of(
    request: Request,
    caller: Identity,
    recheck: Recheck | None = None,
    refused_rooms: Callable[[], Awaitable[Collection[str]]] | None = None,
) -> CallerAccess:
    """Return the access of a caller. A check that is due, every 2 s, identifies the caller again.

    It runs `recheck` with a copy of the request. `refused_rooms` runs at each check.
    """
    checked = request.scope.get(IDENTIFIED_AT) or time.monotonic()

    async def check() -> Collection[str]:
        nonlocal checked
        if not is_trusted(queue_state(request), checked):
            checked = time.monotonic()
            await check_again(request, caller, recheck)
        return () if refused_rooms is None else await refused_rooms()

    # No wake-up says that the claim of a token has ended.
    return CallerAccess(
        caller.id, check, inf if caller.task is None else queue_state(request).trusted_seconds
    )


# Dependencies for a host's own routes.


async def get_result_backend(request: Request) -> ResultBackend:
    """Return the result backend of providers. A host may override it, or pass it to `JobLib`."""
    return queue_state(request).results


async def get_joblib_settings(request: Request) -> JobLibSettings:
    """Return the settings of the queue, for a host's own routes."""
    return queue_state(request).runtime.settings


async def get_tsio(request: Request) -> Any:
    """Return what sends the events of the queue, for a host's own routes; None without Socket.IO."""
    return queue_state(request).publisher.tsio


async def result_backend(request: Request) -> ResultBackend:
    """Return the result backend, with the host's override."""
    backend: ResultBackend = queue_state(request).results
    if get_result_backend in request.app.dependency_overrides:
        backend = await solve(request, get_result_backend)
    return backend


ResultBackendDep = Annotated[ResultBackend, Depends(get_result_backend)]
JobLibSettingsDep = Annotated[JobLibSettings, Depends(get_joblib_settings)]
WritableRoomDep = Annotated[str, Depends(verify_writable_room)]


async def get_worker_token(request: Request) -> str:
    """Return a new token of `JobLib(worker_token=…)`, as a dependency of a host's route."""
    return await mint_internal_worker_token(queue_state(request))


async def mint_internal_worker_token(source: FastAPI | QueueState) -> str:
    """Return a new token of `JobLib(worker_token=…)`; `source` is the `JobLib`, or the app that has it.

    Raises `InternalServerError` if it has no `worker_token`.
    """
    state = source if isinstance(source, QueueState) else getattr(source.state, "joblib", None)
    token: str | None = await state.worker_tokens.mint() if isinstance(state, QueueState) else None
    if token is None:
        raise InternalServerError(
            "There is no token for internal executors: pass JobLib(worker_token=function)"
        )
    return token


WorkerTokenDep = Annotated[str, Depends(get_worker_token)]
