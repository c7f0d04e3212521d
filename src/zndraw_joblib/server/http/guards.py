"""Run a host's guards of rooms: arguments of `JobLib`, or overrides in ``app.dependency_overrides``."""

import logging
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import FastAPI, Path, Request

from zndraw_joblib.contract.names import validate_room_id
from zndraw_joblib.server.http.host_dependencies import solve

logger = logging.getLogger(__name__)
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


class RoomGuards:
    """The guards of one mounted queue.

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

    async def room(self, request: Request, dependency: Guard) -> str:
        """Return the room of a request's path after the guards have passed."""
        return await self.resolve(request, dependency, request.path_params["room_id"])

    async def resolve(self, request: Request, dependency: Guard, given: str) -> str:
        """Return the room that a request names after the guards have passed.

        The guards get valid ids; an override has its own rule for the id in the request.
        """
        if self._override(request, dependency) is None:
            validate_room_id(given)
        checked = await self.check(request, dependency, given)
        return given if checked is None else checked

    async def check(self, request: Request, dependency: Guard, room_id: str) -> str | None:
        """Run the guards for a room. Return the room that they return, None without a guard."""
        result = None
        for guard in (self._override(request, dependency), self._arguments[dependency]):
            if guard is not None:
                path_params = {**request.path_params, "room_id": room_id}
                outer = request.scope.get(_GUARDING)
                request.scope[_GUARDING] = True
                try:
                    result = await solve(request, guard, **path_params)
                finally:
                    request.scope[_GUARDING] = outer
                room_id = result = room_id if result is None else result
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
