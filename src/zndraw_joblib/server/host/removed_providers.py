"""Call the host after providers were removed with their workers."""

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from fastapi import FastAPI

logger = logging.getLogger(__name__)
OnProvidersRemoved = Callable[[list[str]], Awaitable[object]]

_SECONDS = 60.0
# A host that overrides the dependency of version 0.1.x has imported it.
_OLD = "zndraw_joblib.compat_0_1.frames"


class HasHook(Protocol):
    """What has the host's function."""

    on_providers_removed: Any


async def notify_removed(host: HasHook, app: FastAPI, full_names: list[str]) -> None:
    """Call the host's function with the full names of removed providers; log what it raises."""
    try:
        async with asyncio.timeout(_SECONDS):
            if host.on_providers_removed is not None:
                await host.on_providers_removed(full_names)
            if (old := sys.modules.get(_OLD)) is not None:
                await old.clean_up(app, full_names)
    except Exception:
        logger.exception("on_providers_removed failed: providers=%s", full_names)
