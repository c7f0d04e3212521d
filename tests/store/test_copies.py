"""Copies of a database: all tables, both ways, and what stops a copy."""

import asyncio
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from shutil import copyfile
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from servers import free_port
from sqlalchemy import (
    Boolean,
    Column,
    Float,
    Integer,
    LargeBinary,
    String,
    Table,
    create_engine,
    insert,
    literal_column,
    select,
)
from sqlalchemy import Uuid as SqlUuid
from sqlalchemy import text as sql_text

from zndraw_joblib.cli.display import CommandError
from zndraw_joblib.cli.server import database_copy
from zndraw_joblib.server.db.column_types import JsonText, UtcDateTime, Uuid
from zndraw_joblib.server.db.tables import Payload, Server, Task, metadata
from zndraw_joblib.server.queue import sql_copy

_ROWS = 3
_AT = datetime(2026, 1, 1, 12, 30, 15, 123456, tzinfo=UTC)
_LONG = json.dumps({"text": "ü" * 5_000})
_PENDING = {"status": "pending", "worker_id": None, "started_at": None, "completed_at": None}


def value(column: Column[Any], n: int) -> Any:
    """Return a value of a column in row `n`; ids are the same in all tables, so that references hold."""
    values = {
        (Uuid, SqlUuid): UUID(int=n + 1),
        UtcDateTime: _AT + timedelta(microseconds=n),
        JsonText: {"z": [n, 0.1, None], "a": "\u0000ü", "big": 10**15 + n},
        Boolean: n % 2 == 1,
        Float: n + 0.1,
        Integer: n + 1,
        LargeBinary: bytes([0, n, 255]),
        String: f"{n}-{column.name}"[: getattr(column.type, "length", None)],
    }
    return values[next((kind for kind in values if isinstance(column.type, kind)), String)]


def rows_of(table: Table) -> list[dict[str, Any]]:
    """Return rows with a value in each column of a table."""
    rows = [{it.name: value(it, n) for it in table.columns if it.computed is None} for n in range(_ROWS)]
    if table.name == Task.__tablename__:
        rows = [row | _PENDING for row in rows]
    return (
        [row | {"size": len(_LONG.encode()), "content": _LONG} for row in rows] if is_payload(table) else rows
    )


def is_payload(table: Table) -> bool:
    """Return whether it is the table of long payloads."""
    return table.name == Payload.__tablename__


@pytest.fixture
def full(sqlite_template: Path, tmp_path: Path) -> Path:
    """Return an SQLite database with rows in every table; the last task has a long payload."""
    path = tmp_path / "full.db"
    copyfile(sqlite_template, path)
    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM joblib_switch")
        for table in metadata.sorted_tables:
            rows = rows_of(table)
            connection.execute(insert(table), rows[-1:] if is_payload(table) else rows)
        connection.exec_driver_sql("UPDATE joblib_task SET payload = '' WHERE seq = ?", (_ROWS,))
        connection.exec_driver_sql("UPDATE joblib_server SET seen_at = '2026-01-01 00:00:00.000000'")
    engine.dispose()
    return path


def dump(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Return all rows of a file as SQLite stores them."""
    engine = create_engine(f"sqlite:///{path}")
    with engine.connect() as connection:
        names = {table.name for table in metadata.sorted_tables} - {Server.__tablename__}
        plain = {name: select(literal_column("*")).select_from(sql_text(name)) for name in names}
        rows = {name: sorted(map(tuple, connection.execute(it)), key=repr) for name, it in plain.items()}
    engine.dispose()
    return rows


def fetch(url: str, statement: str) -> Any:
    """Return a value from PostgreSQL."""

    async def run() -> Any:
        connection = await asyncpg.connect(url, server_settings={"lock_timeout": "50ms"})
        try:
            return await connection.fetchval(statement)
        finally:
            await connection.close()

    return asyncio.run(run())


def test_a_copy_and_its_copy_have_every_row_of_every_table(
    full: Path, empty_postgres_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From SQLite to PostgreSQL and back; sequences continue; a copy that has ended is not repeated."""
    before, back = dump(full), tmp_path / "back.db"
    assert all(before.values())
    source, target = f"sqlite:///{full}", f"sqlite:///{back}"
    database_copy.copy(source, empty_postgres_url, is_dry_run=True)
    assert "is new. Nothing was written" in capsys.readouterr().out
    assert fetch(empty_postgres_url, "SELECT to_regclass('joblib_task') IS NULL")
    database_copy.copy(source, empty_postgres_url, is_dry_run=False)
    counted = capsys.readouterr().out.split("joblib_task ")[1].split()
    assert counted[0] == str(_ROWS)
    assert fetch(empty_postgres_url, "SELECT payload FROM joblib_task ORDER BY seq DESC LIMIT 1") == _LONG
    assert fetch(empty_postgres_url, "SELECT to_regclass('joblib_copy') IS NULL")
    for sequence in ("'joblib_task', 'seq'", "'joblib_audit', 'n'"):
        following = fetch(empty_postgres_url, "SELECT nextval(pg_get_serial_sequence(" + sequence + "))")
        assert following == _ROWS + 1
    with pytest.raises(CommandError, match="is not empty: joblib_"):
        database_copy.copy(source, empty_postgres_url, is_dry_run=False)
    database_copy.copy(empty_postgres_url, target, is_dry_run=False)
    assert dump(full) == dump(back) == before


class Interrupted(Exception):
    """The copy ended after all rows were copied."""


def interrupt(monkeypatch: pytest.MonkeyPatch, act: Callable[[], Any]) -> None:
    """Let a copy call a function, and end, before it compares."""

    async def stop(_: sql_copy.TableCopy) -> None:
        await asyncio.to_thread(act)
        raise Interrupted

    monkeypatch.setattr(sql_copy.TableCopy, "begin_comparison", stop)


def test_a_source_changes_only_between_the_parts_of_a_copy_which_notices_it(
    full: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checksum differs. No copy of something else, or with another schema, continues it."""
    source, target = f"sqlite:///{full}", f"sqlite:///{tmp_path / 'target.db'}"

    def write(path: Path, statement: str) -> None:
        with closing(sqlite3.connect(path, timeout=0)) as connection, connection:
            connection.execute(statement)

    change = partial(write, full, "UPDATE joblib_audit SET actor = 'eve' WHERE n = 1")

    def refused() -> None:
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            change()

    with monkeypatch.context() as patch:
        interrupt(patch, refused)
        with pytest.raises(Interrupted):
            database_copy.copy(source, target, is_dry_run=False)
    change()
    with pytest.raises(CommandError, match=r"joblib_audit has 3 rows with checksum .* changed since"):
        database_copy.copy(source, target, is_dry_run=False)
    copyfile(full, tmp_path / "other.db")
    with pytest.raises(CommandError, match=f"unfinished copy of {full}, not of"):
        database_copy.copy(f"sqlite:///{tmp_path / 'other.db'}", target, is_dry_run=False)
    write(tmp_path / "target.db", "UPDATE joblib_copy SET position = '0001' WHERE name = 'schema'")
    with pytest.raises(CommandError, match=r"another release began, with schema 0001.* Drop it"):
        database_copy.copy(source, target, is_dry_run=False)


def test_no_other_program_writes_to_postgresql_during_its_copy(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction that writes when the copy begins stops it with the reason."""
    target = f"sqlite:///{tmp_path / 'target.db'}"
    write = "INSERT INTO joblib_switch (name, value) VALUES ('x', 'y')"

    def refused() -> None:
        with pytest.raises(asyncpg.LockNotAvailableError):
            fetch(postgres_url, write)

    with monkeypatch.context() as patch:
        interrupt(patch, refused)
        with pytest.raises(Interrupted):
            database_copy.copy(postgres_url, target, is_dry_run=False)

    async def use() -> None:
        connection = await asyncpg.connect(postgres_url)
        async with connection.transaction():
            await connection.execute(write)
            with pytest.raises(CommandError, match=r"another program writes to it.*lock timeout"):
                await asyncio.to_thread(database_copy.copy, postgres_url, target, is_dry_run=False)
        await connection.close()

    monkeypatch.setattr(sql_copy, "_LOCK_SECONDS", 0.05)
    asyncio.run(use())


def test_messages_name_the_option_of_the_database(
    full: Path, tmp_path: Path, empty_postgres_url: str
) -> None:
    """A database that does not run, has no queue, or has another schema, and what to do."""
    source, target = f"sqlite:///{full}", f"sqlite:///{tmp_path / 'target.db'}"
    away = f"postgresql://user:secret@127.0.0.1:{free_port()}/x"
    newer, older = tmp_path / "newer.db", tmp_path / "older.db"
    for path, version in ((newer, "9999"), (older, "0040")):
        copyfile(full, path)
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("UPDATE joblib_alembic_version SET version_num = ?", [version])
    for pair, text in [
        ((away, target), "refused. Check that it runs and that --from names it"),
        ((source, away), "refused. Check that it runs and that --to names it"),
        (
            (empty_postgres_url, target),
            "has no queue, so there is nothing to copy. Name its database with --from",
        ),
        ((f"sqlite:///{newer}", target), "Install that release or a newer one"),
        ((source, f"sqlite:///{newer}"), "Install that release or a newer one"),
        ((f"sqlite:///{older}", target), "older.db: the schema is 0040.*db upgrade"),
        ((source, f"sqlite:///{older}"), "older.db: the schema is 0040.*db upgrade"),
    ]:
        with pytest.raises(CommandError, match=text) as refused:
            database_copy.copy(*pair, is_dry_run=False)
        assert "secret" not in str(refused.value)


def test_a_database_in_use_is_not_copied(full: Path, tmp_path: Path, postgres_url: str) -> None:
    """A server has reported lately, also one that is mounted in another app; no text has a password."""
    with closing(sqlite3.connect(full)) as connection, connection:
        now = datetime.now(UTC).replace(tzinfo=None).isoformat(" ", "microseconds")
        connection.execute(
            "UPDATE joblib_server SET seen_at = ?, sweep_interval_seconds = 60 WHERE pid = 2", [now]
        )
    target = f"sqlite:///{tmp_path / 'target.db'}"
    with pytest.raises(
        CommandError, match=r"A server uses .*full.db: process 2 on 1-host reported \d+ s ago"
    ):
        database_copy.copy(f"sqlite:///{full}", target, is_dry_run=True)
    url = postgres_url.replace("postgres@", "postgres:secret@")

    async def use() -> None:
        connection = await asyncpg.connect(
            postgres_url, server_settings={"application_name": "zndraw-joblib"}
        )
        try:
            with pytest.raises(CommandError, match="1 connections of servers use") as refused:
                await asyncio.to_thread(database_copy.copy, url, target, is_dry_run=False)
            assert "secret" not in str(refused.value)
        finally:
            await connection.close()

    asyncio.run(use())
