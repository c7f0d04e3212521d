"""A small stage, on either database."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from chaos import stage
from chaos.stage import Stage

LAUNCHER = str(Path(__file__).with_name("launcher.py"))
OpenStage = Callable[..., AbstractAsyncContextManager[Stage]]


class Kept:
    """A database that the test's own fixtures have made."""

    can_restart = False

    def __init__(self, url: str) -> None:
        self.url = url

    def restart(self, mode: str) -> None:
        """Do nothing: others use the server too."""


@pytest.fixture
def open_stage(database_url: str, tmp_path: Path) -> OpenStage:
    """Return what runs a server without some of its guards, and workers of one job."""

    @asynccontextmanager
    async def opened(without: str, job: Any, workers: int, **settings: Any) -> AsyncIterator[Stage]:
        command = (LAUNCHER, without)
        async with stage.stage(Kept(database_url), tmp_path, command, **settings) as on:
            await on.register([job])
            for _ in range(workers):
                on.pool.add([job])
            yield on

    return opened


async def told(on: Stage, text: str, since: int | None = None) -> str:
    """Wait until the server says something, from now on."""
    return await on.server.says(text, on.server.lines_said if since is None else since)


async def until_begun(on: Stage, tasks: list[str]) -> None:
    """Wait until tasks are worked on."""
    from chaos import journal

    async with asyncio.timeout(20):
        while not {effect.task for effect in journal.read(on.folder)[0]}.issuperset(tasks):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
