"""Checks that need the server's settings: variables, database, Redis and disk."""

import shutil
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import humanize
from redis import Redis, RedisError

from zndraw_joblib.cli.display import (
    CheckResult,
    CommandError,
    failed,
    format_duration,
    passed,
    skipped,
    warned,
)
from zndraw_joblib.cli.server import database
from zndraw_joblib.jobs import logs
from zndraw_joblib.server.db import schema
from zndraw_joblib.server.db.database import Database, Transaction
from zndraw_joblib.server.db.engine import check_sessions
from zndraw_joblib.server.db.schema import DatabaseLocation
from zndraw_joblib.server.process.settings import DEFAULT_DATABASE_URL, ServerSettings

_MIB = 1024 * 1024
_FULL_BYTES, _NEARLY_FULL_BYTES, _NEARLY_FULL_SHARE = 100 * _MIB, 1024 * _MIB, 0.05
_REDIS_SECONDS = 5.0
_UPGRADE = "Run 'zndraw-joblib db upgrade' with the same database URL"


def run(database_url: str | None) -> tuple[list[CheckResult], float | None]:
    """Return the checks, and how many seconds the database's clock is ahead of this machine's."""
    try:
        config = database.load_settings(database_url)
        location = database.locate(config.database_url)
    except CommandError as error:
        return [
            failed("settings", error.format_message(), "Correct the setting that the message names")
        ], None
    checks = list(_check_variables())
    if location.is_missing and config.database_url == DEFAULT_DATABASE_URL:
        detail = "No database is named here, so neither it nor its disk was checked"
        checks.append(skipped("database", f"{detail}; --database-url names the server's"))
        return [*checks, *_check_redis(config)], None
    check, ahead = _check_database(config.database_url, location)
    return [*checks, check, *_check_redis(config), *_check_disk(config, location)], ahead


def _check_variables() -> Iterator[CheckResult]:
    unknown = logs.unknown_variables(ServerSettings.model_fields)
    for name, nearest in unknown.items():
        text, _, remedy = logs.describe(name, nearest).partition(". ")
        yield warned("settings", text, remedy)
    if not unknown:
        yield passed("settings", "All settings are valid, and no variable is misspelt")


def _check_database(url: str, location: DatabaseLocation) -> tuple[CheckResult, float | None]:
    async def work(opened: Database) -> tuple[str | None, float, float]:
        started = time.monotonic()
        await check_sessions(opened)
        current = await schema.check(opened)
        before = datetime.now(UTC)
        now = await opened.read(_now)
        # It is ahead by what no moment of the request explains.
        ahead = max(now - datetime.now(UTC), min(timedelta(), now - before))
        return current, ahead.total_seconds(), time.monotonic() - started

    try:
        version, ahead, took = database.run(url, work, allow_new=False)
    except CommandError as error:
        text, _, remedy = error.format_message().partition(". ")
        return failed("database", text, remedy or _UPGRADE), None
    if version != schema.newest():
        detail = (
            f"{location.text}: the schema is {version or 'missing'}, this release needs {schema.newest()}"
        )
        return failed("database", detail, _UPGRADE), ahead
    detail = (
        f"{location.text} answers in {format_duration(timedelta(seconds=took))}, schema {version} (newest)"
    )
    return passed("database", detail), ahead


async def _now(tx: Transaction) -> datetime:
    return await tx.now()


def _check_redis(config: ServerSettings) -> Iterator[CheckResult]:
    if config.redis_url is None:
        yield skipped("redis", "No redis_url is set here, so no Redis was checked")
        return
    parts = urlsplit(config.redis_url)
    where = f"{parts.hostname}:{parts.port or 6379}" if parts.hostname else parts.path
    started = time.monotonic()
    limits = {"socket_timeout": _REDIS_SECONDS, "socket_connect_timeout": _REDIS_SECONDS}
    try:
        with Redis.from_url(config.redis_url, **limits) as redis:
            redis.ping()
    except (RedisError, OSError, ValueError) as error:
        remedy = (
            "Check that Redis runs and that ZNDRAW_JOBLIB_REDIS_URL names it; tasks wait for it meanwhile"
        )
        yield failed("redis", f"{where} cannot be used: {error}", remedy)
        return
    took = timedelta(seconds=time.monotonic() - started)
    yield passed("redis", f"{where} answers in {format_duration(took)}")


def _check_disk(config: ServerSettings, location: DatabaseLocation) -> Iterator[CheckResult]:
    """Check the file systems that this machine's settings name: of an SQLite file, and of results."""
    folders = {
        "the database": location.file.parent if location.file else None,
        "results": config.task_result_directory,
    }
    for what, folder in folders.items():
        if folder is not None and folder.is_dir():
            yield _check_space(what, folder)


def _check_space(what: str, folder: Path) -> CheckResult:
    usage = shutil.disk_usage(folder)
    free = humanize.naturalsize(usage.free, binary=True)
    detail = f"{folder} ({what}) has {free} free of {humanize.naturalsize(usage.total, binary=True)}"
    remedy = "Free space, set keep_finished_days to delete old tasks, or move it to a larger disk"
    if usage.free < _FULL_BYTES:
        return failed("disk", detail, remedy)
    if usage.free < _NEARLY_FULL_BYTES or usage.free < _NEARLY_FULL_SHARE * usage.total:
        return warned("disk", detail, remedy)
    return passed("disk", detail)
