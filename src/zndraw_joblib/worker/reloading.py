"""Replace the processes of a worker when a file of its code changes."""

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from zndraw_joblib.jobs.failures import missing_extra
from zndraw_joblib.worker.supervisor import Supervisor

log = logging.getLogger(__name__)
Result = TypeVar("Result")

EXTRA = "reload"
_IGNORED = frozenset({"__pycache__", "node_modules", "site-packages", "venv"})
_MAX_LOGGED = 3


class CannotWatch(Exception):
    """The files cannot be watched; the text says why, and what to do."""


def import_watchfiles() -> Any:
    """Return the library that watches files. Raises `CannotWatch` if it is not installed."""
    try:
        import watchfiles  # noqa: PLC0415 - few workers need it
    except ModuleNotFoundError as error:
        raise CannotWatch(missing_extra("--reload", EXTRA, error)) from error
    return watchfiles


def folders_of(target: str, more: Sequence[Path] = ()) -> list[Path]:
    """Return the folders to watch: that of a ``.py`` file, else the working directory, and `more`."""
    first = Path(target).resolve().parent if target.endswith(".py") else Path.cwd()
    return list(dict.fromkeys([first, *(folder.resolve() for folder in more)]))


async def while_watching(
    supervisor: Supervisor, folders: Sequence[Path], work: Coroutine[Any, Any, Result]
) -> Result:
    """Return what `work` returns; meanwhile each change of a Python file replaces the children."""
    watching = asyncio.create_task(_replace_at_changes(supervisor, folders))
    try:
        return await work
    finally:
        watching.cancel()
        await asyncio.wait([watching])


async def _replace_at_changes(supervisor: Supervisor, folders: Sequence[Path]) -> None:
    try:
        async for paths in _changes(folders):
            log.info("Reloading: %s changed", _shown(paths))
            supervisor.replace()
    except OSError as error:  # the system watches no more files
        log.error("Changes no longer reload the worker, restart it: %s", error)


async def _changes(folders: Sequence[Path]) -> AsyncIterator[list[Path]]:
    """Yield the Python files that changed, each time after 50 ms without further changes."""
    watch = import_watchfiles().awatch(
        *folders, watch_filter=lambda _, path: _is_code(Path(path), folders), ignore_permission_denied=True
    )
    async for changes in watch:
        yield sorted({Path(path) for _, path in changes})


def _is_code(path: Path, folders: Sequence[Path]) -> bool:
    """Return whether a path is a Python file, and in no folder of installed or hidden files."""
    if path.suffix != ".py":
        return False
    inner = [path.relative_to(folder).parts for folder in folders if path.is_relative_to(folder)]
    return any(not any(part.startswith(".") or part in _IGNORED for part in parts) for parts in inner)


def _shown(paths: Sequence[Path]) -> str:
    names = ", ".join(path.name for path in paths[:_MAX_LOGGED])
    return f"{names}, …" if len(paths) > _MAX_LOGGED else names
