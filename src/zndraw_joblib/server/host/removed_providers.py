"""Call the host after providers were removed with their workers."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Protocol

from fastapi import Depends, FastAPI, Request

from zndraw_joblib.contract.names import rooms_with_frames
from zndraw_joblib.server.http.host_dependencies import solve

logger = logging.getLogger(__name__)
OnProvidersRemoved = Callable[[list[str]], Awaitable[object]]

_SECONDS = 60.0


class HasHook(Protocol):
    """What has the host's function."""

    on_providers_removed: Any


class FrameRoomCleanup(Protocol):
    """A host's function that removes the frames of rooms, as in version 0.1.x."""

    async def __call__(self, room_ids: set[str]) -> object:
        """Remove the frames of these rooms."""


async def _do_nothing(room_ids: set[str]) -> None:
    """Clean up nothing."""


async def get_frame_room_cleanup() -> FrameRoomCleanup:
    """Return the function that gets the rooms whose providers of the category ``frames`` were removed.

    A host of version 0.1.x overrides it in ``app.dependency_overrides``. The function is called after the
    commit. New code sets `JobLib.on_providers_removed`.
    """
    return _do_nothing


FrameRoomCleanupDep = Annotated[FrameRoomCleanup, Depends(get_frame_room_cleanup)]


async def notify_removed(host: HasHook, app: FastAPI, full_names: list[str]) -> None:
    """Call the host's functions with the full names of removed providers; log what they raise."""
    try:
        async with asyncio.timeout(_SECONDS):
            if host.on_providers_removed is not None:
                await host.on_providers_removed(full_names)
            await _clean_up_frames(app, rooms_with_frames(full_names))
    except Exception:
        logger.exception("on_providers_removed failed: providers=%s", full_names)


async def _clean_up_frames(app: FastAPI, room_ids: set[str]) -> None:
    """Call the function of the host, if it overrides `get_frame_room_cleanup`."""
    if room_ids and get_frame_room_cleanup in app.dependency_overrides:
        scope: dict[str, Any] = {"type": "http", "app": app, "method": "DELETE", "path": "/", "headers": []}
        request = Request({**scope, "query_string": b"", "path_params": {}})
        clean_up: FrameRoomCleanup = await solve(request, get_frame_room_cleanup)
        await clean_up(room_ids)
