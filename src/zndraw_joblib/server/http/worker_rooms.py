"""The host's guards for workers: an owner who may not write to a room any more does not serve its jobs.

Claims, reports and uploads name no room. They are checked against the guards of the rooms of the worker's
jobs and providers, with outcomes that are cached for some seconds. Without guards, nothing is read, and
only ``@global`` is refused, to callers who are no superusers.
"""

import time
from collections.abc import Collection, Iterable, Mapping
from uuid import UUID

from cachetools import TTLCache
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from zndraw_joblib.server.http.host_dependencies import fresh_copy
from zndraw_joblib.server.http.identity import RoomGuards, verify_writable_room
from zndraw_joblib.server.process.ports import Identity, identity_key
from zndraw_joblib.server.queue import rules_transitions, rules_workers
from zndraw_joblib.server.queue.rules_tasks import Report
from zndraw_joblib.server.queue.rules_workers import ServedRooms
from zndraw_joblib.server.runtime.problem_responses import as_problem
from zndraw_joblib.server.runtime.runtime import Runtime
from zndraw_joblib.wire.names import GLOBAL
from zndraw_joblib.wire.problems import ProblemException
from zndraw_joblib.wire.statuses import TaskStatus

_CACHE_SECONDS = 3.0
_MAX_CACHED = 10_000
# Other refusals, like 423, are a state of the room and take no right away.
_LOST_RIGHTS = frozenset({401, 403, 404})
_NONE: frozenset[str] = frozenset()
_ONLY_GLOBAL = frozenset({GLOBAL})
_UNKNOWN = ProblemException("")
Refusals = Mapping[str, ProblemException]


class WorkerRooms:
    """Which rooms the owners of workers may serve. The guards are those that let them register.

    Superusers may serve every room, and only they ``@global``.
    """

    def __init__(self, guards: RoomGuards, runtime: Runtime) -> None:
        self._guards = guards
        self._database = runtime.database
        # When the rights of a user changed last, in monotonic seconds.
        self.changed_at = 0.0
        runtime.waiters.subscribe(identity_key(""), self._forget)
        self._served: TTLCache[tuple[str, UUID], ServedRooms] = TTLCache(_MAX_CACHED, _CACHE_SECONDS)
        self._outcomes: TTLCache[tuple[str, str], ProblemException | None] = TTLCache(
            _MAX_CACHED, _CACHE_SECONDS
        )

    def _forget(self, _: str) -> None:
        self.changed_at = time.monotonic()
        self._served.clear()
        self._outcomes.clear()

    async def refused_jobs(self, request: Request, caller: Identity, worker_id: UUID) -> Collection[str]:
        """Return the rooms whose jobs a worker must not claim from. Raises the refusal if these are all."""
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
        if not rules_transitions.may_serve_room(caller, room_id):
            raise rules_transitions.only_superusers()
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
        """Return the refusals of reports of the caller's workers, by task. Cancels are not refused."""
        if not self._apply_to(request, caller):
            return {}
        by_worker: dict[UUID | None, set[UUID]] = {}
        for report in reports:
            if report.update.status != TaskStatus.CANCELLED:
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

    async def may_work_on(self, request: Request, caller: Identity, task_id: UUID) -> bool:
        """Return whether a task is, or was last, one of the caller's worker, which may serve its job."""
        rooms = await self._database.read_short(rules_workers.of_own_tasks, caller, [task_id])
        if task_id not in rooms:
            return False
        is_free = not self._apply_to(request, caller)
        return is_free or await self._refusal(request, caller, rooms[task_id]) is None

    def _apply_to(self, request: Request, caller: Identity) -> bool:
        return not caller.is_superuser and self._guards.has(request, verify_writable_room)

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
        found = {room: await self._refusal(request, caller, room) for room in rooms}
        return {room: problem for room, problem in found.items() if problem is not None}

    async def _refusals(
        self, request: Request, caller: Identity, task_ids: Collection[UUID]
    ) -> Mapping[UUID, ProblemException]:
        rooms = await self._database.read_short(rules_workers.of_own_tasks, caller, list(task_ids))
        refusals = await self._refusals_of(request, caller, set(rooms.values()))
        return {task_id: refusals[room] for task_id, room in rooms.items() if room in refusals}

    async def _refusal(self, request: Request, caller: Identity, room_id: str) -> ProblemException | None:
        """Return why the caller may not serve a room; None if it may."""
        if not rules_transitions.may_serve_room(caller, room_id):
            return rules_transitions.only_superusers()
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
    return _NONE if caller.is_superuser else _ONLY_GLOBAL
