"""Load the server's settings and open its database for a command; the commands of `db`."""

import asyncio
import os
import tomllib
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import typer
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from zndraw_joblib.cli.display import CommandError, UsageError, print_note
from zndraw_joblib.server.db import schema
from zndraw_joblib.server.db.asyncpg_options import InvalidDatabaseUrl
from zndraw_joblib.server.db.database import Database
from zndraw_joblib.server.db.schema import DatabaseLocation, UnusableDatabase
from zndraw_joblib.server.process.settings import ServerSettings, report
from zndraw_joblib.server.queue import sql_recount
from zndraw_joblib.wire.operators import Settings

Result = TypeVar("Result")
_PREFIX = "ZNDRAW_JOBLIB_"
_SECRET = frozenset({"admin_token", "database_url"})


def load_settings(database_url: str | None, **options: Any) -> ServerSettings:
    """Return the settings; options of the command line win. Raises `UsageError`."""
    options["database_url"] = database_url
    values = {name: value for name, value in options.items() if value is not None}
    try:
        return ServerSettings(**values)
    except ValidationError as error:
        raise UsageError("; ".join(map(_explain, error.errors()))) from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(
            f"pyproject.toml in the working directory is not valid TOML: {error}. Repair the file"
        ) from error


def report_settings(database_url: str | None) -> Settings:
    """Return the settings that a server here would have, with their sources. Raises `UsageError`."""
    return report(load_settings(database_url))


def _explain(error: ErrorDetails) -> str:
    message = error["msg"].removeprefix("Value error, ")
    field = str(error["loc"][0]) if error["loc"] else message.split(" ", 1)[0]
    variable = _PREFIX + field.upper()
    # pydantic-settings ignores the case of environment variables.
    is_set = variable in map(str.upper, os.environ)
    source = variable if is_set else f"{field} in [tool.zndraw.joblib] of pyproject.toml"
    value = "" if field in _SECRET or not error["loc"] else f" (it is {str(error['input'])[:100]!r})"
    return f"{source}: {message}{value}"


# The database that the settings name, and the commands for it.


def locate(url: str) -> DatabaseLocation:
    """Return which database a URL names. Raises `UsageError`."""
    try:
        return schema.locate(url)
    except InvalidDatabaseUrl as error:
        raise UsageError(str(error)) from error


def run_or_create(
    loaded: ServerSettings,
    work: Callable[[Database], Awaitable[Result]],
    *,
    allow_new: bool,
    allow_named: bool = False,
) -> Result:
    """Return the result of `work` as `run` does, and print a note if that created the database.

    Raises `CommandError` if the database does not exist, unless `allow_new`, or `allow_named` and a URL names
    it: the server's database is probably in another folder.
    """
    location = locate(loaded.database_url)
    is_new, is_named = location.is_missing, "database_url" in loaded.model_fields_set
    if is_new and not allow_new and not (allow_named and is_named):
        lack = "" if is_named else ", and no URL names another"
        raise CommandError(
            f"There is no database {location.text}: the file does not exist{lack}. Run the command in the "
            "server's folder, or pass the server's --database-url (ZNDRAW_JOBLIB_DATABASE_URL). To create a "
            "new database here, add --create-database"
        )
    result = run(loaded.database_url, work)
    if is_new:
        print_note(f"Created the database {location.text}, because the file did not exist.")
    return result


def run(url: str, work: Callable[[Database], Awaitable[Result]], *, allow_new: bool = True) -> Result:
    """Return the result of `work`, called with the database that a URL names.

    Raises `UsageError` for an invalid URL, and `CommandError` for a database that cannot be used or, unless
    `allow_new`, for an SQLite file that does not exist.
    """

    async def open_and_work() -> Result:
        async with schema.connected(url) as database:
            return await work(database)

    location = locate(url)
    if location.is_missing and not allow_new:
        raise CommandError(
            f"There is no database {location.text}: the file does not exist. Name another with --database-url"
        )
    try:
        return asyncio.run(open_and_work())
    except UnusableDatabase as error:
        raise CommandError(str(error)) from error


def upgrade(database_url: str | None, *, allow_new: bool) -> None:
    """Upgrade the schema to the newest version.

    Raises `CommandError` if the default database does not exist, unless `allow_new`.
    """
    loaded = load_settings(database_url)

    async def work(database: Database) -> str | None:
        before = await schema.check(database)
        await schema.upgrade(database)
        return before

    newest = schema.newest()
    before = run_or_create(loaded, work, allow_new=allow_new, allow_named=True)
    change = "was already at" if before == newest else f"went from {before or 'nothing'} to"
    typer.echo(f"{locate(loaded.database_url).text}: the schema {change} {newest}")


def check_counts(database_url: str | None, *, repair: bool) -> None:
    """Print wrong counts. Correct them, or raise `CommandError` if there are any."""
    url = load_settings(database_url).database_url

    async def work(database: Database) -> list[str]:
        await schema.prepare(database)
        differences = await database.run_sync(sql_recount.wrong)
        if differences and repair:
            await sql_recount.repair(database)
        return differences

    try:
        wrong = run(url, work, allow_new=False)
    except schema.OutdatedSchema as error:
        raise CommandError(str(error)) from error
    for line in wrong:
        typer.echo(f"Add to the counts of a {line}")
    if wrong and not repair:
        raise CommandError(
            f"{locate(url).text}: kept counts differ from the tasks and results. Run 'zndraw-joblib db "
            "check-counts --repair' with the same database URL"
        )
    typer.echo(f"{locate(url).text}: " + ("the counts are corrected" if wrong else "all counts are right"))


def current(database_url: str | None) -> None:
    """Print the schema's version, and how to upgrade it if it is not the newest."""
    url = load_settings(database_url).database_url
    version = run(url, schema.check, allow_new=False)
    if version == schema.newest():
        typer.echo(f"{version} (newest)")
    else:
        typer.echo(
            f"{version or 'no schema'}; the newest is {schema.newest()}: run 'zndraw-joblib db upgrade'"
        )
