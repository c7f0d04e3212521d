"""The command `db copy`: check two databases, copy all rows from one to the other, and compare them."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from zndraw_joblib.cli.display import CommandError, UsageError, console, print_note
from zndraw_joblib.cli.server import database, serve
from zndraw_joblib.server.db import schema
from zndraw_joblib.server.db.schema import DatabaseLocation, OutdatedSchema, UnusableDatabase
from zndraw_joblib.server.queue import sql_copy
from zndraw_joblib.server.queue.sql_copy import CopyRefused, OnProgress, TableCopy

_NOTE_SECONDS = 10.0
_UPGRADE = "Run 'zndraw-joblib db upgrade --database-url URL' for it"
_RESULTS = (
    "The content of some results is not in the database: give the servers of the copy the same "
    "task_result_backend, and keep its files or bucket."
)


def copy(source_url: str, target_url: str, *, is_dry_run: bool) -> None:
    """Copy a database. Raises `UsageError` for wrong URLs, and `CommandError` if the copy cannot be made."""
    source, target = database.locate(source_url), database.locate(target_url)
    if source.is_in_memory or target.is_in_memory:
        raise UsageError("A database in memory ends with its process. Name a file or a PostgreSQL database")
    if source.text == target.text:
        raise UsageError(f"--from and --to name the same database, {source.text}. Name two")
    if source.is_missing:
        raise CommandError(
            f"There is no database {source.text}: the file does not exist. Name another with --from"
        )
    try:
        with _locked(source, target):
            asyncio.run(_copy(source_url, target_url, is_dry_run=is_dry_run))
    except (CopyRefused, OutdatedSchema, UnusableDatabase) as error:
        raise CommandError(str(error)) from error


@contextmanager
def _locked(*locations: DatabaseLocation) -> Iterator[None]:
    """Hold the locks of SQLite files, so that no server starts on them meanwhile."""
    with ExitStack() as stack:
        for location in locations:
            if location.file is not None:
                stack.enter_context(
                    serve.only_server(location.file, "db copy", " or wait until the copy has ended")
                )
        yield


async def _copy(source_url: str, target_url: str, *, is_dry_run: bool) -> None:
    await _check_source(source_url)
    is_ready = await _prepare_target(target_url, is_dry_run=is_dry_run)
    # A connection would create the file of a target that is new.
    async with sql_copy.opened(source_url, target_url if is_ready else "sqlite://") as tables:
        await tables.check_source()
        if is_ready:
            await tables.check_target()
        if is_dry_run:
            _print_plan(await tables.counts(), tables, is_ready=is_ready)
            return
        async with tables.held_source():
            await tables.check_source()
            await _copy_rows(tables)
        if await tables.has_missing_results():
            print_note(_RESULTS)
    location = database.locate(target_url).text
    typer.echo(f"{location} has all rows. Start the servers with it, and none with the source")


async def _copy_rows(tables: TableCopy) -> None:
    counts = await tables.counts()
    await tables.begin()
    with _shown() as on_progress:
        for name, total in counts.items():
            await tables.copy(name, total, on_progress)
        await tables.begin_comparison()
        states = {name: await tables.compare(name, total, on_progress) for name, total in counts.items()}
    # A server that was started meanwhile waits, and would go on with the source.
    await tables.check_source()
    await tables.finish()
    for name, state in states.items():
        if state.rows:
            typer.echo(f"{name:<32} {state.rows:>12,} rows  checksum {state.checksum}")


async def _check_source(url: str) -> None:
    async with schema.connected(url, "--from") as opened:
        version = await schema.check(opened)
    if version is None:
        raise CommandError(
            f"{database.locate(url).text} has no queue, so there is nothing to copy. Name its database with "
            "--from"
        )
    _check_version(url, version)


async def _prepare_target(url: str, *, is_dry_run: bool) -> bool:
    """Create the tables of a new database; return whether it has them."""
    if database.locate(url).is_missing and is_dry_run:
        return False
    async with schema.connected(url, "--to") as opened:
        if await schema.current(opened) == schema.UNFINISHED:
            return True
        version = await schema.check(opened)
        if version is None and not is_dry_run:
            await schema.upgrade(opened)
            return True
    if version is not None:
        _check_version(url, version)
    return version is not None


def _check_version(url: str, version: str) -> None:
    if version != schema.newest():
        raise CommandError(
            f"{database.locate(url).text}: the schema is {version}, and a copy needs {schema.newest()}. "
            f"{_UPGRADE}"
        )


def _print_plan(counts: dict[str, int], tables: TableCopy, *, is_ready: bool) -> None:
    for name, count in counts.items():
        if count:
            typer.echo(f"{name:<32} {count:>12,} rows")
    state = "has an unfinished copy, which continues" if tables.is_continued else "is empty"
    typer.echo(f"The target {state if is_ready else 'is new'}. Nothing was written")


@contextmanager
def _shown() -> Iterator[OnProgress]:
    """Yield a function that shows the progress: as a bar on a terminal, otherwise as a line now and then."""
    terminal = console(stderr=True)
    if terminal.is_terminal:
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        with Progress(*columns, console=terminal, transient=True) as bars:
            yield _Bars(bars)
    else:
        yield _Notes()


class _Bars:
    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._bar: TaskID | None = None
        self._title = ""

    def __call__(self, step: str, name: str, done: int, total: int) -> None:
        title = f"{step} {name}"
        if title != self._title:
            if self._bar is not None:
                self._bars.remove_task(self._bar)
            self._bar, self._title = self._bars.add_task(title, total=total), title
        if self._bar is not None:
            self._bars.update(self._bar, completed=done)


class _Notes:
    def __init__(self) -> None:
        self._noted_at = time.monotonic()

    def __call__(self, step: str, name: str, done: int, total: int) -> None:
        if time.monotonic() >= self._noted_at + _NOTE_SECONDS:
            self._noted_at = time.monotonic()
            print_note(f"{step} {name}: {done:,} of {total:,} rows")
