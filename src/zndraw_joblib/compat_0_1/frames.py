"""The dependency with which hosts of version 0.1.x removed the frames of removed providers."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from fastapi import FastAPI, Request

from zndraw_joblib.contract.names import parse_provider_name
from zndraw_joblib.server.http.fastapi_internals import solve

CleanUp = Callable[[set[str]], Awaitable[object]]
_CATEGORY = "frames"


async def _do_nothing(rooms: set[str]) -> None:
    """Clean up nothing."""


async def get_frame_room_cleanup() -> CleanUp:
    """Return the function that gets the rooms whose providers of the category ``frames`` were removed.

    A host overrides it in ``app.dependency_overrides``. The function is called after the commit.
    """
    return _do_nothing


def rooms_with_frames(full_names: Iterable[str]) -> set[str]:
    """Return the rooms of the providers that have the category ``frames``."""
    names = map(parse_provider_name, full_names)
    return {name.room_id for name in names if name.category == _CATEGORY}


async def clean_up(app: FastAPI, full_names: Iterable[str]) -> None:
    """Call the function of the host, if it overrides `get_frame_room_cleanup`."""
    rooms = rooms_with_frames(full_names)
    if rooms and get_frame_room_cleanup in app.dependency_overrides:
        scope: dict[str, Any] = {"type": "http", "app": app, "method": "DELETE", "path": "/", "headers": []}
        request = Request({**scope, "query_string": b"", "path_params": {}})
        clean_up_rooms: CleanUp = await solve(request, get_frame_room_cleanup)
        await clean_up_rooms(rooms)
