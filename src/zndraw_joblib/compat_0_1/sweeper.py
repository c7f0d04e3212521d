"""The `run_sweeper` of version 0.1.x."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from zndraw_joblib.compat_0_1.frames import rooms_with_frames
from zndraw_joblib.server.background import host_functions
from zndraw_joblib.server.settings import JobLibSettings


async def run_sweeper(
    get_session: Callable[[], Any],
    settings: JobLibSettings,
    tsio: Any = None,
    on_frame_rooms: Callable[[set[str]], Awaitable[object]] | None = None,
) -> None:
    """Sweep until cancelled, like `zndraw_joblib.run_sweeper`.

    After a commit, `on_frame_rooms` gets the rooms whose providers of the category ``frames`` were removed.
    """

    async def call(full_names: Sequence[str]) -> None:
        rooms = rooms_with_frames(full_names)
        if on_frame_rooms is not None and rooms:
            await on_frame_rooms(rooms)

    await host_functions.run_sweeper(get_session, settings, tsio, on_providers_removed=call)
