"""The migrations create the tables that the code declares, up and down, on both databases."""

import asyncio
import json
import re
import sqlite3
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from pydantic_core import from_json
from replica import TIMEOUT
from sqlalchemy import Connection, column, func, insert, inspect, select, table, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from zndraw_joblib.server.admin import sql_operators
from zndraw_joblib.server.db import schema
from zndraw_joblib.server.db.column_types import UtcDateTime
from zndraw_joblib.server.db.engine import open_database, open_engine, open_sessions
from zndraw_joblib.server.db.host_sessions import SessionDatabase
from zndraw_joblib.server.db.tables import metadata
from zndraw_joblib.server.process.ports import Identity, Page
from zndraw_joblib.server.queue import (
    rules_rates,
    sql_details,
    sql_executors,
    sql_groups,
    sql_idempotency,
    sql_jobs,
    sql_providers,
    sql_queues,
    sql_results,
    sql_successors,
    sql_tasks,
    sql_transitions,
)
from zndraw_joblib.server.queue.rules_providers import InternalProvider, register_internal
from zndraw_joblib.server.queue.sql_idempotency import StoredAnswer
from zndraw_joblib.server.queue.sql_task_rows import TaskRecord
from zndraw_joblib.wire.names import JobName
from zndraw_joblib.wire.policy import JobPolicy
from zndraw_joblib.wire.problems import TooManyRequests
from zndraw_joblib.wire.statuses import TaskStatus


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of a database without any table."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'empty.db'}"
    url: str = request.getfixturevalue("empty_postgres_url")
    return url


@pytest.fixture
async def empty(empty_url: str) -> AsyncIterator[AsyncEngine]:
    """Return an engine on a database without any table."""
    engine = open_engine(empty_url)
    yield engine
    await engine.dispose()


async def tables(engine: AsyncEngine) -> set[str]:
    """Return the names of all tables."""
    async with engine.connect() as connection:
        return set(await connection.run_sync(lambda c: inspect(c).get_table_names()))


async def add(connection: AsyncConnection, rows: Mapping[str, dict[str, Any]]) -> None:
    """Insert a row into each table."""
    for name, row in rows.items():
        await connection.execute(insert(metadata.tables[name]), row)


async def counts(connection: AsyncConnection, names: Iterable[str]) -> list[int]:
    """Return the number of rows of each table."""
    selects = [select(func.count()).select_from(table(name)) for name in names]
    return [(await connection.execute(each)).scalar_one() for each in selects]


def migrate(connection: Connection, go: Callable[[Config, str], None], target: str) -> None:
    """Run one of Alembic's commands in a transaction, which SQLite's driver begins for no DDL."""
    if connection.dialect.name == "sqlite" and not connection.connection.driver_connection.in_transaction:
        connection.exec_driver_sql("BEGIN")
    config = Config()
    config.set_main_option("script_location", str(schema.scripts()))
    config.attributes["connection"] = connection
    go(config, target)


COUNTS = ("joblib_room_count", "joblib_queue_block")
_DESCRIPTIONS = {
    "postgresql": [
        "SELECT table_name, column_name, data_type, character_maximum_length, is_nullable, column_default,"
        " generation_expression FROM information_schema.columns WHERE table_schema = 'public'",
        "SELECT indexdef FROM pg_indexes WHERE schemaname = 'public'",
        "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint"
        " WHERE conrelid::regclass::text LIKE 'joblib%'",
    ],
    "sqlite": ["SELECT sql FROM sqlite_master WHERE sql IS NOT NULL"],
}


async def described(engine: AsyncEngine) -> list[str]:
    """Return every column, index and constraint as the database describes it."""
    parts: list[str] = []
    async with engine.connect() as connection:
        for query in _DESCRIPTIONS[engine.dialect.name]:
            for row in await connection.execute(text(query)):
                if schema.VERSION_TABLE in str(row):
                    continue
                if len(row) == 1:  # SQL text: split it into its parts
                    parts += _parts(row[0])
                else:
                    parts.append(str(row))
    return sorted(parts)


def _parts(sql: str) -> list[str]:
    """Return the parts of a CREATE statement, regardless of line breaks and later ALTERs."""
    title, _, body = re.sub(r"\s+", " ", sql).partition("(")
    # Commas in parentheses do not separate parts.
    bodies = re.split(r",(?![^(]*\))", body.strip().removesuffix(")"))
    parts = [part.strip() for each in bodies for part in re.split(r" (?=CONSTRAINT \S+ CHECK)", each)]
    return [f"{title.strip()}: {part}" for part in parts if part]


async def test_an_upgrade_creates_what_the_code_declares(empty: AsyncEngine) -> None:
    """Alembic finds no difference, and the database describes every part as if `metadata` had created it."""
    await schema.upgrade(SessionDatabase(open_sessions(empty)))
    async with empty.connect() as connection:
        assert await connection.run_sync(_differences) == []
    migrated = await described(empty)
    async with empty.begin() as connection:
        await connection.run_sync(metadata.drop_all)
        await connection.run_sync(metadata.create_all)
    assert await described(empty) == migrated


def _differences(connection: Connection) -> list[Any]:
    options = {"version_table": schema.VERSION_TABLE, "compare_type": True, "compare_server_default": True}
    return compare_metadata(MigrationContext.configure(connection, opts=options), metadata)


async def test_an_upgrade_sets_the_version(empty: AsyncEngine) -> None:
    """An empty database has no version, an upgraded one the newest; a second upgrade changes nothing."""
    sessions = SessionDatabase(open_sessions(empty))
    assert await schema.current(sessions) is None
    for _ in range(2):
        await schema.upgrade(sessions)
        assert await schema.current(sessions) == schema.newest()


async def test_downgrade_and_upgrade(empty: AsyncEngine) -> None:
    """A downgrade to base drops all tables of the queue, and a new upgrade creates them again."""
    await schema.upgrade(SessionDatabase(open_sessions(empty)))
    before = await described(empty)
    async with empty.begin() as connection:
        await connection.run_sync(migrate, command.downgrade, "base")
    assert await tables(empty) == {schema.VERSION_TABLE}
    await schema.upgrade(SessionDatabase(open_sessions(empty)))
    assert await described(empty) == before


async def test_a_host_keeps_its_tables_and_its_own_versions(empty: AsyncEngine) -> None:
    """The host's tables and its own Alembic version table do not change."""
    async with empty.begin() as connection:
        await connection.execute(text("CREATE TABLE alembic_version (version_num VARCHAR(32))"))
        await connection.execute(text("INSERT INTO alembic_version VALUES ('of-the-host')"))
        await connection.execute(text("CREATE TABLE rooms (id INTEGER)"))
    await schema.upgrade(SessionDatabase(open_sessions(empty)))
    async with empty.begin() as connection:
        await connection.run_sync(migrate, command.downgrade, "base")
        kept = await connection.execute(text("SELECT version_num FROM alembic_version"))
        assert kept.scalar_one() == "of-the-host"
    assert await tables(empty) == {"alembic_version", "rooms", schema.VERSION_TABLE}


async def test_a_start_upgrades_sqlite_and_only_checks_postgresql(empty: AsyncEngine) -> None:
    """A start upgrades SQLite. On PostgreSQL it stops with the command to run and changes nothing."""
    if empty.dialect.name == "sqlite":
        await schema.prepare(SessionDatabase(open_sessions(empty)))
        assert await schema.current(SessionDatabase(open_sessions(empty))) == schema.newest()
        return
    with pytest.raises(schema.OutdatedSchema, match="zndraw-joblib db upgrade"):
        await schema.prepare(SessionDatabase(open_sessions(empty)))
    assert await tables(empty) == set()
    await schema.upgrade(SessionDatabase(open_sessions(empty)))
    await schema.prepare(SessionDatabase(open_sessions(empty)))


@pytest.mark.parametrize("writer", ["9.1.0", None])
async def test_a_schema_of_a_newer_release_stops_the_start(empty: AsyncEngine, writer: str | None) -> None:
    """The error names the schema's version and the release to install; the database does not change."""
    database = SessionDatabase(open_sessions(empty))
    await schema.upgrade(database)
    async with empty.begin() as connection:
        stored = await connection.execute(text("SELECT value FROM joblib_switch WHERE name = 'upgraded_by'"))
        assert stored.scalar_one() == version("zndraw-joblib")
        await connection.execute(text("UPDATE joblib_alembic_version SET version_num = '0999'"))
        if writer is None:
            await connection.execute(text("DELETE FROM joblib_switch"))
        else:
            await connection.execute(text("UPDATE joblib_switch SET value = :release"), {"release": writer})
    release = rf"zndraw-joblib {writer}" if writer else "A newer zndraw-joblib"
    for work in (schema.prepare, schema.upgrade, schema.check):
        with pytest.raises(schema.OutdatedSchema, match=rf"'0999'.*{release}.*Install"):
            await work(database)
    assert await schema.current(database) == "0999"


@pytest.mark.parametrize("empty_url", ["sqlite"], indirect=True)
async def test_a_start_waits_for_another_process_on_a_new_file(empty_url: str) -> None:
    """While another process writes to a new file without a WAL, a start waits."""
    other = sqlite3.connect(empty_url.removeprefix("sqlite:///"), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    other.execute("CREATE TABLE rooms (id INTEGER)")
    database = open_database(empty_url)
    starting = asyncio.create_task(schema.prepare(database))
    done, _ = await asyncio.wait({starting}, timeout=0.2)
    other.execute("COMMIT")
    other.close()
    assert not done
    async with asyncio.timeout(TIMEOUT):
        await starting
        assert await schema.current(database) == schema.newest()
        await database.close()


_STARTER = """
import asyncio, sys
from zndraw_joblib.server.db import schema
from zndraw_joblib.server.queue import sql_idempotency, sql_providers
from zndraw_joblib.server.db.engine import open_database

async def start():
    database = open_database(sys.argv[1])
    print("ready", flush=True)
    sys.stdin.readline()
    await schema.upgrade(database)
    await database.close()

asyncio.run(start())
"""


@pytest.mark.processes
@pytest.mark.parametrize("empty_url", ["sqlite"], indirect=True)
async def test_processes_that_start_together_upgrade_once(empty_url: str, empty: AsyncEngine) -> None:
    """Processes that upgrade at the same time all succeed, and one of them does the work."""
    starters = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", _STARTER, empty_url, stdin=PIPE, stdout=PIPE, stderr=PIPE
        )
        for _ in range(2)
    ]
    async with asyncio.timeout(100):
        for starter in starters:
            assert starter.stdout is not None
            await starter.stdout.readline()
        ends = await asyncio.gather(*[starter.communicate(b"go\n") for starter in starters])
    assert [starter.returncode for starter in starters] == [0, 0], ends
    assert await schema.current(SessionDatabase(open_sessions(empty))) == schema.newest()


async def test_concurrent_upgrades_in_one_process_succeed(empty: AsyncEngine) -> None:
    """Two apps of one process that start together both succeed."""
    async with asyncio.timeout(TIMEOUT):
        upgrades = [schema.upgrade(SessionDatabase(open_sessions(empty))) for _ in range(3)]
        assert await asyncio.gather(*upgrades, return_exceptions=True) == [None] * 3
    assert await schema.current(SessionDatabase(open_sessions(empty))) == schema.newest()


async def test_a_failed_upgrade_is_rolled_back(empty: AsyncEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an error in the middle of an upgrade, the next try starts from the old version."""

    def break_off(*_: Any, **__: Any) -> None:
        raise RuntimeError("the power is gone")

    with monkeypatch.context() as broken:
        broken.setattr("alembic.op.create_index", break_off)
        with pytest.raises(RuntimeError, match="the power is gone"):
            await schema.upgrade(SessionDatabase(open_sessions(empty)))
    assert await tables(empty) - {schema.VERSION_TABLE} == set()
    await schema.upgrade(SessionDatabase(open_sessions(empty)))
    assert await schema.current(SessionDatabase(open_sessions(empty))) == schema.newest()


async def test_a_provider_survives_the_rename_of_its_column(empty: AsyncEngine) -> None:
    """The upgrade from 0003 turns `heard_until` into `connected_until` with its value; the downgrade back."""
    until = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    worker = {"id": uuid4(), "owner_id": "ada", "created_at": until, "last_heartbeat": until}
    provider = {
        **{"id": uuid4(), "room_id": "lab", "category": "files", "name": "home", "owner_id": "ada"},
        **{"schema": {}, "content_type": "text/plain", "registration": uuid4()},
        **{"worker_id": worker["id"], "created_at": until, "heard_until": until},
    }
    async with empty.begin() as connection:
        await connection.run_sync(migrate, command.upgrade, "0003")
        for name, row in (("joblib_worker", worker), ("joblib_provider", provider)):
            columns = {
                **metadata.tables[name].c,
                "heard_until": metadata.tables[name].c.get("connected_until"),
            }
            old = table(name, *[column(key, columns[key].type) for key in row])
            await connection.execute(insert(old), row)
    database = SessionDatabase(open_sessions(empty))
    await schema.upgrade(database)
    found = await database.read(sql_providers.by_id, provider["id"])
    assert found is not None
    assert (str(found.name), found.connected_until) == ("lab:files:home", until)
    async with empty.begin() as connection:
        await connection.run_sync(migrate, command.downgrade, "0003")
        kept = select(column("heard_until", UtcDateTime)).select_from(table("joblib_provider"))
        assert (await connection.execute(kept)).scalar_one() == until


async def test_a_queue_with_tasks_gets_the_table_of_keys(empty: AsyncEngine) -> None:
    """The upgrade from 0004 keeps the rows; a downgrade drops the keys alone."""
    at = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    job_id = uuid4()
    job = {"id": job_id, "room_id": "lab", "category": "modifiers", "name": "Rotate", "created_at": at}
    task = {"id": uuid4(), "job_id": job_id, "room_id": "lab", "status": "pending", "created_by": "ada"}
    names = ("joblib_job", "joblib_task")
    rows = [job | {"schema": {}}, task | {"payload": {"x": 1}, "created_at": at}]
    database = SessionDatabase(open_sessions(empty))
    answer = StoredAnswer(uuid4(), uuid4(), at, "null", "ada")
    async with empty.begin() as connection:
        await connection.run_sync(migrate, command.upgrade, "0004")
        for name, row in zip(names, rows, strict=True):
            await connection.execute(insert(metadata.tables[name]), row)
    for _ in range(2):
        await schema.upgrade(database)
        assert (await database.write(sql_idempotency.add, [answer], at))[0]
        assert (await database.write(sql_idempotency.lock, [answer.id]))[0] == ({answer.id: answer}, set())
        async with empty.begin() as connection:
            await connection.run_sync(migrate, command.downgrade, "0004")
            assert await counts(connection, names) == [1, 1]
    assert "joblib_idempotency_key" not in await tables(empty)


async def test_a_queue_with_held_tasks_gets_the_table_of_unnamed_tasks(empty: AsyncEngine) -> None:
    """The upgrade from 0005 keeps the rows; a downgrade drops the table alone."""
    at = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    job_id = uuid4()
    job = {"id": job_id, "room_id": "lab", "category": "modifiers", "name": "Rotate", "created_at": at}
    task = {"id": uuid4(), "job_id": job_id, "room_id": "lab", "status": "claimed", "created_by": "ada"}
    rows = {
        "joblib_job": job | {"schema": {}},
        "joblib_task": task | {"payload": {}, "created_at": at, "claimed_at": at, "worker_id": uuid4()},
    }
    async with empty.begin() as connection:
        await connection.run_sync(migrate, command.upgrade, "0005")
        await add(connection, rows)
    await schema.upgrade(SessionDatabase(open_sessions(empty)))
    mark = {"task_seq": 1, "attempt": 1, "unnamed_since": at}
    async with empty.begin() as connection:
        await connection.execute(insert(metadata.tables["joblib_unnamed_task"]), mark)
        await connection.run_sync(migrate, command.downgrade, "0005")
        assert await counts(connection, rows) == [1] * len(rows)
    assert "joblib_unnamed_task" not in await tables(empty)


async def test_queued_tasks_get_the_queues_of_their_rooms(empty: AsyncEngine) -> None:
    """The upgrade from 0006 adds a row for each job and room with queued tasks, and none for others."""
    at = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    job_id = uuid4()
    job = {"id": job_id, "room_id": "lab", "category": "modifiers", "name": "Rotate", "created_at": at}
    task = {"job_id": job_id, "created_by": "ada", "payload": {}, "created_at": at, "status": "pending"}
    placed = [("a", 0, 1), ("a", -3, 2), ("b", 0, 3), ("b", 0, 4)]
    rows = [{**task, "id": uuid4(), "room_id": room, "lane": lane, "seq": seq} for room, lane, seq in placed]
    rows.append({**task, "id": uuid4(), "room_id": "later", "lane": 0, "seq": 5, "run_at": at})
    async with empty.begin() as connection:
        await connection.run_sync(migrate, command.upgrade, "0006")
        await connection.execute(insert(metadata.tables["joblib_job"]), job | {"schema": {}})
        for row in rows:
            await connection.execute(insert(metadata.tables["joblib_task"]), row)
    queues = metadata.tables["joblib_room_queue"]
    for _ in range(2):
        await schema.upgrade(SessionDatabase(open_sessions(empty)))
        async with empty.begin() as connection:
            found = await connection.execute(select(queues).order_by(queues.c.room_id))
            assert [tuple(row) for row in found] == [(job_id, "a", -3, 1), (job_id, "b", 0, 3)]
            await connection.run_sync(migrate, command.downgrade, "0006")
            assert len((await connection.execute(select(metadata.tables["joblib_task"].c.id))).all()) == 5
    assert queues.name not in await tables(empty)


async def test_existing_tasks_are_counted(empty: AsyncEngine) -> None:
    """The upgrade from 0007 counts the tasks of rooms and of blocks; a downgrade keeps the tasks."""
    at = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    job_id = uuid4()
    job = {"id": job_id, "room_id": "lab", "category": "modifiers", "name": "Rotate", "created_at": at}
    task = {"job_id": job_id, "created_by": "ada", "payload": {}, "created_at": at, "status": "pending"}
    ended = {"completed_at": at, "claimed_at": at, "started_at": at}
    states: list[dict[str, Any]] = [
        {"room_id": "a", "seq": 4095},
        {"room_id": "a", "seq": 4096, "lane": -3},
        {"room_id": "a", "seq": 4097},
        {"room_id": "a", "seq": 5000, "run_at": at},
        {"room_id": "a", "seq": 5001, "status": "claimed", "claimed_at": at},
        {"room_id": "a", "seq": 9000, "status": "completed", **ended},
        {"room_id": "b", "seq": 9001, "status": "failed", **ended},
        {"room_id": "b", "seq": 9002, "status": "cancelled", **ended},
        {"room_id": "b", "seq": 9003},
    ]
    async with empty.begin() as connection:
        await connection.run_sync(migrate, command.upgrade, "0007")
        values = job | {"schema": {}, "pending": 4, "scheduled": 1}
        await connection.execute(insert(metadata.tables["joblib_job"]), values)
        for state in states:
            row = task | {"id": uuid4()} | state
            await connection.execute(insert(metadata.tables["joblib_task"]), row)
    for _ in range(2):
        await schema.upgrade(SessionDatabase(open_sessions(empty)))
        rooms, blocks = [await rows_of(empty, name) for name in COUNTS]
        assert rooms == [("a", job_id, 0, 6, 4, 0, 0), ("b", job_id, 0, 3, 1, 1, 1)]
        assert blocks == [(job_id, -3, 1, 1), (job_id, 0, 0, 1), (job_id, 0, 1, 1), (job_id, 0, 2, 1)]
        async with empty.begin() as connection:
            await connection.run_sync(migrate, command.downgrade, "0007")
    assert not set(COUNTS) & await tables(empty)


async def test_attempts_get_the_tables_of_their_details(empty: AsyncEngine) -> None:
    """The upgrade from 0008 keeps tasks and attempts; a downgrade drops the details alone."""
    at = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    job_id = uuid4()
    job = {"id": job_id, "room_id": "lab", "category": "modifiers", "name": "Rotate", "created_at": at}
    task = {"id": uuid4(), "job_id": job_id, "room_id": "lab", "status": "claimed", "created_by": "ada"}
    held = {"payload": {}, "created_at": at, "claimed_at": at, "worker_id": uuid4(), "attempt": 2, "seq": 1}
    ended = {"task_seq": 1, "attempt": 1, "status": "running", "ended_at": at, "reason": "error"}
    of_attempt = {"task_seq": 1, "attempt": 2}
    rows = {"joblib_job": job | {"schema": {}}, "joblib_task": task | held, "joblib_attempt": ended}
    details: dict[str, dict[str, Any]] = {
        "joblib_attempt_detail": {**of_attempt, "progress": {"current": 3}},
        "joblib_task_log": {**of_attempt, "first": 1, "last": 1, "size": 2, "lines": "[]"},
    }
    async with empty.begin() as connection:
        await connection.run_sync(migrate, command.upgrade, "0008")
        await add(connection, rows)
    for _ in range(2):
        await schema.upgrade(SessionDatabase(open_sessions(empty)))
        for name in details:
            assert await rows_of(empty, name) == []
        async with empty.begin() as connection:
            await add(connection, details)
        detail, part = (1, 2, {"current": 3}, None, 0, 0, 0, None, None), (1, 2, 1, 1, 2, "[]")
        assert [await rows_of(empty, name) for name in details] == [[detail], [part]]
        async with empty.begin() as connection:
            await connection.run_sync(migrate, command.downgrade, "0008")
            assert await counts(connection, rows) == [1] * len(rows)
    assert not set(details) & await tables(empty)


async def test_rooms_get_the_tables_of_their_events(empty: AsyncEngine) -> None:
    """The upgrade from 0009 keeps tasks and their details; a downgrade drops the events alone."""
    at = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    job_id, task_id = uuid4(), uuid4()
    job = {"id": job_id, "room_id": "lab", "category": "modifiers", "name": "Rotate", "created_at": at}
    task = {"id": task_id, "job_id": job_id, "room_id": "lab", "status": "pending", "created_by": "ada"}
    rows: dict[str, dict[str, Any]] = {
        "joblib_job": job | {"schema": {}},
        "joblib_task": task | {"payload": {}, "created_at": at, "seq": 1},
        "joblib_attempt_detail": {"task_seq": 1, "attempt": 2, "progress": {"current": 3}},
    }
    stream = {"room_id": "lab", "first_n": 2**52, "last_n": 2**52 + 1, "size": 2, "max_events": 9}
    event = {"room_id": "lab", "n": 2**52 + 1, "task_id": task_id, "at": at, "kind": "status", "size": 2}
    added: dict[str, dict[str, Any]] = {
        "joblib_room_stream": stream | {"max_bytes": 2**40, "watched_until": at, "watched_by": "ada"},
        "joblib_room_event": event | {"data": "{}"},
    }
    async with empty.begin() as connection:
        await connection.run_sync(migrate, command.upgrade, "0009")
        await add(connection, rows)
    for _ in range(2):
        await schema.upgrade(SessionDatabase(open_sessions(empty)))
        for name, row in added.items():
            assert await rows_of(empty, name) == []
            async with empty.begin() as connection:
                await connection.execute(insert(metadata.tables[name]), row)
            assert [{*found} - {None} for found in await rows_of(empty, name)] == [set(row.values())]
        async with empty.begin() as connection:
            await connection.run_sync(migrate, command.downgrade, "0009")
            assert await counts(connection, rows) == [1] * len(rows)
    assert not set(added) & await tables(empty)


async def test_rooms_get_the_tables_of_their_webhooks(empty: AsyncEngine) -> None:
    """The upgrade from 0035 keeps watched rooms, which have no webhook; a downgrade drops what is new."""
    at = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    stream = {"room_id": "lab", "first_n": 1, "last_n": 2, "size": 3, "max_events": 9, "max_bytes": 99}
    rows = {"joblib_room_stream": stream | {"watched_until": at}}
    times = {"created_at": at, "updated_at": at, "used_at": at}
    of_room = {"room_id": "lab", "owner_id": "ada", "url": "https://example.org", "events": "task.failed"}
    sent = {"webhook_n": 1, "message": uuid4(), "event": "task.failed", "body": "{}", "created_at": at}
    added: dict[str, dict[str, Any]] = {
        "joblib_webhook": {"webhook_id": uuid4(), "name": "ci", **of_room, **times},
        "joblib_task_webhook": {"task_seq": 1, "webhook_n": 1},
        "joblib_outbox": {"room_id": "lab", **sent},
    }
    async with empty.begin() as connection:
        await connection.run_sync(migrate, command.upgrade, "0035")
        await add(connection, rows)
    for _ in range(2):
        await schema.upgrade(SessionDatabase(open_sessions(empty)))
        assert [row[-1] for row in await rows_of(empty, "joblib_room_stream")] == [None]
        async with empty.begin() as connection:
            assert await counts(connection, added) == [0] * len(added)
            await add(connection, added)
        [row] = await rows_of(empty, "joblib_outbox")
        assert {0} <= set(row)
        async with empty.begin() as connection:
            await connection.run_sync(migrate, command.downgrade, "0035")
            assert await counts(connection, rows) == [1]
    assert not set(added) & await tables(empty)


async def test_webhooks_that_are_due_keep_their_times(empty: AsyncEngine) -> None:
    """The upgrade from 0037 and the downgrade change indexes alone."""
    at = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    times = dict.fromkeys(("created_at", "updated_at", "used_at", "due_at"), at)
    webhook = {"webhook_id": uuid4(), "room_id": "lab", "owner_id": "ada", "url": "https://example.org"}
    async with empty.begin() as connection:
        await connection.run_sync(migrate, command.upgrade, "0037")
        await add(connection, {"joblib_webhook": {**webhook, **times, "events": "task.failed"}})
    [row] = await rows_of(empty, "joblib_webhook")
    await schema.upgrade(SessionDatabase(open_sessions(empty)))
    assert await rows_of(empty, "joblib_webhook") == [row]
    async with empty.begin() as connection:
        await connection.run_sync(migrate, command.downgrade, "0037")
    assert await rows_of(empty, "joblib_webhook") == [row]


async def test_tasks_of_groups_keep_their_rows(empty: AsyncEngine) -> None:
    """The upgrade from 0038 and the downgrade change an index alone."""
    at = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    job = {"id": uuid4(), "room_id": "lab", "category": "modifiers", "name": "Rotate", "created_at": at}
    task = {"id": uuid4(), "job_id": job["id"], "room_id": "lab", "created_by": "ada", "created_at": at}
    held = {"status": "claimed", "claimed_at": at, "payload": {}, "group_id": uuid4()}
    async with empty.begin() as connection:
        await connection.run_sync(migrate, command.upgrade, "0038")
        await add(connection, {"joblib_job": job | {"schema": {}}, "joblib_task": task | held})
    rows = await rows_of(empty, "joblib_task")
    await schema.upgrade(SessionDatabase(open_sessions(empty)))
    assert await rows_of(empty, "joblib_task") == rows
    async with empty.begin() as connection:
        await connection.run_sync(migrate, command.downgrade, "0038")
    assert await rows_of(empty, "joblib_task") == rows


async def test_tasks_and_workers_get_what_operators_see(empty: AsyncEngine) -> None:
    """The upgrade from 0012 keeps tasks, attempts and workers; a downgrade drops only what is new."""
    at = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    job_id, worker_id = uuid4(), uuid4()
    job = {"id": job_id, "room_id": "lab", "category": "modifiers", "name": "Rotate", "created_at": at}
    task = {"id": uuid4(), "job_id": job_id, "room_id": "lab", "status": "failed", "created_by": "ada"}
    attempt = {"task_seq": 1, "attempt": 1, "status": "running", "ended_at": at, "reason": "worker-lost"}
    rows: dict[str, dict[str, Any]] = {
        "joblib_job": job | {"schema": {}},
        "joblib_task": task | {"payload": {}, "created_at": at, "completed_at": at, "seq": 1},
        "joblib_attempt": attempt,
        "joblib_worker": {"id": worker_id, "owner_id": "ada", "created_at": at, "last_heartbeat": at},
    }
    added: dict[str, dict[str, Any]] = {
        "joblib_statistic": {"resolution": 60, "job_id": job_id, "start": at, "submitted": 2**40}
        | {"waiting": [1], "running": [2], "causes": {"error": 3}},
        "joblib_statistic_position": {"key": 1, "until": at, "next_at": at},
        "joblib_server": {"id": uuid4(), "host": "a", "pid": 1, "version": "1", "started_at": at}
        | {"seen_at": at, "sweep_interval_seconds": 30, "grace_remaining_seconds": 0},
        "joblib_sweep_cycle": {"server_id": uuid4(), "at": at, "elapsed": 0.1, "held_back": False}
        | dict.fromkeys(("scanned", "stale", "expired", "released", "failed", "pruned", "errors"), 1),
        "joblib_audit": {"at": at, "actor": "ada", "action": "job.pause", "target": "lab:modifiers:Rotate"},
    }
    async with empty.begin() as connection:
        await connection.run_sync(migrate, command.upgrade, "0012")
        await add(connection, rows)
    for _ in range(2):
        await schema.upgrade(SessionDatabase(open_sessions(empty)))
        async with empty.begin() as connection:
            [worker] = await connection.execute(select(metadata.tables["joblib_worker"]))
            assert (worker.id, worker.name, worker.slots) == (worker_id, None, None)
            [kept] = await connection.execute(select(metadata.tables["joblib_task"]))
            assert (kept.status, kept.queued_at, kept.traceparent) == ("failed", None, None)
            assert await counts(connection, added) == [0] * len(added)
            await add(connection, added)
        async with empty.begin() as connection:
            await connection.run_sync(migrate, command.downgrade, "0012")
            assert await counts(connection, rows) == [1] * len(rows)
    assert not set(added) & await tables(empty)


async def test_a_queue_with_ended_tasks_gets_the_columns_of_functions(empty: AsyncEngine) -> None:
    """The upgrade from 0013 keeps the tasks, without a function to call; a downgrade keeps them too."""
    at = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    job_id, task_id = uuid4(), uuid4()
    job = {"id": job_id, "room_id": "lab", "category": "modifiers", "name": "Rotate", "created_at": at}
    task = {"id": task_id, "job_id": job_id, "room_id": "lab", "status": "failed", "created_by": "ada"}
    rows: dict[str, dict[str, Any]] = {
        "joblib_job": job | {"schema": {}},
        "joblib_task": task | {"payload": {}, "created_at": at, "completed_at": at, "seq": 1},
    }
    async with empty.begin() as connection:
        await connection.run_sync(migrate, command.upgrade, "0013")
        await add(connection, rows)
    database = SessionDatabase(open_sessions(empty))
    for _ in range(2):
        await schema.upgrade(database)
        due, _ = await database.write(sql_details.take, {"record": 10}, 10, at, at)
        assert due == []
        await database.write(sql_details.attach, {task_id: "record"}, at)
        [lease], _ = await database.write(sql_details.take, {"record": 10}, 10, at, at)
        assert lease == (task_id, "record", 1, at)
        async with empty.begin() as connection:
            await connection.run_sync(migrate, command.downgrade, "0013")
            assert await counts(connection, rows) == [1, 1]


async def test_claims_that_never_started_are_counted(empty: AsyncEngine) -> None:
    """The upgrade from 0015 counts them in the earlier attempts of each task; a downgrade keeps the tasks."""
    at = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    job_id = uuid4()
    job = {"id": job_id, "room_id": "lab", "category": "modifiers", "name": "Rotate", "created_at": at}
    task = {"job_id": job_id, "room_id": "lab", "status": "pending", "created_by": "ada", "payload": {}}
    task |= {"created_at": at, "attempt": 3}
    ended = {"status": "claimed", "ended_at": at, "reason": "released", "claimed_at": at}
    async with empty.begin() as connection:
        await connection.run_sync(migrate, command.upgrade, "0015")
        await add(connection, {"joblib_job": job | {"schema": {}}})
        for seq in (1, 2):
            await add(connection, {"joblib_task": task | {"id": uuid4(), "seq": seq}})
        for attempt, started_at in ((1, None), (2, at), (3, None)):
            row = ended | {"task_seq": 2, "attempt": attempt, "started_at": started_at}
            await add(connection, {"joblib_attempt": row})
    for _ in range(2):
        await schema.upgrade(SessionDatabase(open_sessions(empty)))
        async with empty.begin() as connection:
            rows = await connection.execute(
                text("SELECT seq, attempt, unstarted FROM joblib_task ORDER BY seq")
            )
            assert [tuple(row) for row in rows] == [(1, 3, 0), (2, 3, 2)]
            await connection.run_sync(migrate, command.downgrade, "0015")
            assert await counts(connection, ["joblib_task"]) == [2]


async def test_stored_results_and_watched_rooms_count_for_users(empty: AsyncEngine) -> None:
    """The upgrade from 0014 sums the content of each user's results; watched rooms count for no user."""
    at = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    job = {"id": uuid4(), "room_id": "lab", "category": "modifiers", "name": "Rotate", "created_at": at}
    task = {"job_id": job["id"], "room_id": "lab", "status": "completed", "payload": {}}
    task |= {"created_at": at, "started_at": at, "completed_at": at}
    result = {"attempt": 1, "content_type": "text/plain", "etag": "x", "expires_at": at}
    stream = {"first_n": 1, "last_n": 2, "size": 3, "max_events": 4, "max_bytes": 5, "room_id": "lab"}
    rows: list[dict[str, Any]] = [
        {"joblib_job": job | {"schema": {}}, "joblib_room_stream": stream | {"watched_until": at}},
        {"joblib_task_result_total": {"id": 1, "size": 1117 + 4 * 1024}},
        {"joblib_task_result": result | {"n": 9, "task_seq": None, "size": 7, "content_key": "upload"}},
    ]
    # The content of the last one was deleted.
    for seq, user_id, key in ((1, "ada", "a"), (2, "ada", "b"), (3, "bob", "c"), (4, "bob", None)):
        stored = result | {"n": seq, "task_seq": seq, "size": 10**seq, "content_key": key}
        of_user = task | {"id": uuid4(), "seq": seq, "created_by": user_id}
        rows.append({"joblib_task": of_user, "joblib_task_result": stored})
    async with empty.begin() as connection:
        await connection.run_sync(migrate, command.upgrade, "0014")
        for each in rows:
            await add(connection, each)
    database = SessionDatabase(open_sessions(empty))
    for _ in range(2):
        await schema.upgrade(database)
        assert await rows_of(empty, "joblib_task_result_share") == [("ada", 110 + 2048), ("bob", 1000 + 1024)]
        assert [row[-1] for row in await rows_of(empty, "joblib_room_stream")] == [None]
        async with empty.begin() as connection:
            await connection.run_sync(migrate, command.downgrade, "0014")
    await schema.upgrade(database)
    await database.write(sql_results.forget, [1, 2, 9])
    assert await rows_of(empty, "joblib_task_result_share") == [("bob", 1000 + 1024)]
    assert await rows_of(empty, "joblib_task_result_total") == [(1, 1000 + 1024)]


async def test_a_provider_with_a_worker_keeps_it(empty: AsyncEngine) -> None:
    """From 0018 on others have none; the downgrade to 0017 deletes those, and keeps the first."""
    at = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    worker_id, provider_id = uuid4(), uuid4()
    rows: dict[str, dict[str, Any]] = {
        "joblib_worker": {"id": worker_id, "owner_id": "ada", "created_at": at, "last_heartbeat": at},
        "joblib_provider": {
            **{"id": provider_id, "room_id": "lab", "category": "files", "name": "home", "owner_id": "ada"},
            **{"schema": {}, "content_type": "text/plain", "registration": uuid4()},
            **{"worker_id": worker_id, "created_at": at, "connected_until": at},
        },
        "joblib_provider_worker": {
            **{"provider_id": provider_id, "worker_id": worker_id},
            **{"schema": {}, "content_type": "text/plain"},
        },
        "joblib_provider_call": {
            **{"provider_id": provider_id, "request_hash": "0", "params": "{}", "registration": uuid4()},
            **{"sent_at": at, "expires_at": at},
        },
    }
    async with empty.begin() as connection:
        await connection.run_sync(migrate, command.upgrade, "0017")
        await add(connection, rows)
    database = SessionDatabase(open_sessions(empty))
    offer = InternalProvider(JobName("@internal", "files", "Home"), {}, "text/plain")
    for _ in range(2):
        await schema.upgrade(database)
        kept = await database.read(sql_providers.by_id, provider_id)
        assert kept is not None
        assert kept.worker_id == worker_id
        await database.write(register_internal, [offer], "host")
        added = await database.read(sql_providers.by_name, offer.name)
        assert added is not None
        assert (added.worker_id, added.owner_id) == (None, "host")
        async with empty.begin() as connection:
            await connection.run_sync(migrate, command.downgrade, "0017")
            assert await counts(connection, rows) == [1] * len(rows)


async def test_open_requests_count_for_no_user(empty: AsyncEngine) -> None:
    """Requests that were open before the upgrade from 0018 stay open, without the user who asked."""
    at = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    until, provider_id = at + timedelta(days=36_500), uuid4()
    rows: dict[str, dict[str, Any]] = {
        "joblib_provider": {
            **{"id": provider_id, "room_id": "lab", "category": "files", "name": "home", "owner_id": "ada"},
            **{"schema": {}, "content_type": "text/plain", "registration": uuid4()},
            **{"created_at": at, "connected_until": at},
        },
        "joblib_provider_call": {
            **{"provider_id": provider_id, "request_hash": "0", "params": "{}", "registration": uuid4()},
            **{"sent_at": at, "expires_at": until},
        },
    }
    async with empty.begin() as connection:
        await connection.run_sync(migrate, command.upgrade, "0018")
        await add(connection, rows)
    database = SessionDatabase(open_sessions(empty))
    for number in (1, 2):
        await schema.upgrade(database)
        assert await database.read(sql_providers.count, provider_id, "ada") == (number, 0)
        provider = await database.read(sql_providers.by_id, provider_id)
        assert provider is not None
        added = await database.write(sql_providers.add, provider, str(number), "{}", until, "ada")
        assert added[0] is True
        assert await database.read(sql_providers.count, provider_id, "ada") == (number + 1, 1)
        async with empty.begin() as connection:
            await connection.run_sync(migrate, command.downgrade, "0018")
            assert await counts(connection, rows) == [1, number + 1]


async def test_a_deleted_job_was_deleted_at_the_upgrade(empty: AsyncEngine) -> None:
    """The upgrade from 0019 sets the time of deleted jobs only; a downgrade keeps all jobs."""
    at = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    job = {"room_id": "lab", "category": "modifiers", "schema": {}, "created_at": at}
    async with empty.begin() as connection:
        await connection.run_sync(migrate, command.upgrade, "0019")
        for name, deleted in (("Rotate", True), ("Turn", False)):
            await add(connection, {"joblib_job": job | {"id": uuid4(), "name": name, "deleted": deleted}})
    for _ in range(2):
        before = datetime.now(UTC)
        await schema.upgrade(SessionDatabase(open_sessions(empty)))
        async with empty.begin() as connection:
            jobs = metadata.tables["joblib_job"]
            found = await connection.execute(select(jobs.c.deleted_at).order_by(jobs.c.name))
            deleted_at, none = found.scalars()
            assert none is None
            assert abs(deleted_at - before) < timedelta(minutes=5)
            await connection.run_sync(migrate, command.downgrade, "0019")
            assert await counts(connection, ["joblib_job"]) == [2]


async def test_a_job_without_workers_has_none_since_the_upgrade(empty: AsyncEngine) -> None:
    """The upgrade from 0023 sets the time of active remote jobs without workers; a downgrade keeps all."""
    at = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    job = {"category": "modifiers", "schema": {}, "created_at": at, "room_id": "lab", "deleted": False}
    worker = {"id": uuid4(), "owner_id": "ada", "created_at": at, "last_heartbeat": at}
    changes: dict[str, dict[str, Any]] = {
        "A-served": {},
        "B-unserved": {},
        "C-deleted": {"deleted": True},
        "D-internal": {"room_id": "@internal"},
    }
    async with empty.begin() as connection:
        await connection.run_sync(migrate, command.upgrade, "0023")
        await add(connection, {"joblib_worker": worker})
        for name, fields in changes.items():
            row = job | {"id": uuid4(), "name": name} | fields
            await add(connection, {"joblib_job": row})
            if name == "A-served":
                await add(connection, {"joblib_worker_job": {"worker_id": worker["id"], "job_id": row["id"]}})
    for _ in range(2):
        before = datetime.now(UTC)
        await schema.upgrade(SessionDatabase(open_sessions(empty)))
        async with empty.begin() as connection:
            jobs = metadata.tables["joblib_job"]
            rows = (await connection.execute(select(jobs.c.unserved_since).order_by(jobs.c.name))).scalars()
            served, unserved, *others = rows
            assert [served, *others] == [None] * 3
            assert abs(unserved - before) < timedelta(minutes=5)
            await connection.run_sync(migrate, command.downgrade, "0023")
            assert await counts(connection, ["joblib_job"]) == [4]


async def test_stored_answers_count_for_no_user(empty: AsyncEngine) -> None:
    """Answers that were stored before the upgrade from 0020 stay, and new ones have their users."""
    at = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    old = StoredAnswer(uuid4(), uuid4(), at, "null", None)
    columns = {name: value for name, value in old._asdict().items() if name != "user_id"}
    async with empty.begin() as connection:
        await connection.run_sync(migrate, command.upgrade, "0020")
        await add(connection, {"joblib_idempotency_key": columns})
    database = SessionDatabase(open_sessions(empty))
    for number in (1, 2):
        await schema.upgrade(database)
        assert (await database.write(sql_idempotency.lock, [old.id]))[0] == ({old.id: old}, set())
        new = StoredAnswer(uuid4(), uuid4(), at, "null", "ada")
        assert (await database.write(sql_idempotency.add, [new], at))[0]
        assert await database.read(sql_idempotency.counts_beyond, 1) == {None: number, "ada": 1}
        async with empty.begin() as connection:
            await connection.run_sync(migrate, command.downgrade, "0020")
            assert await counts(connection, ["joblib_idempotency_key"]) == [number + 1]


async def test_tasks_of_earlier_releases_hold_no_key(empty: AsyncEngine) -> None:
    """The upgrade from 0021 keeps tasks; one live task holds a key. A downgrade drops the keys only."""
    at = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    job = {"id": uuid4(), "room_id": "lab", "category": "modifiers", "name": "Rotate", "schema": {}}
    task = {"job_id": job["id"], "room_id": "lab", "created_by": "ada", "payload": {}, "created_at": at}
    task |= {"attempt": 0, "lane": 0, "failures": 0, "crashes": 0, "status": "pending"}
    async with empty.begin() as connection:
        await connection.run_sync(migrate, command.upgrade, "0021")
        await add(connection, {"joblib_job": job | {"created_at": at}})
        for _ in range(2):
            await add(connection, {"joblib_task": task | {"id": uuid4()}})
    for number in (1, 2):
        await schema.upgrade(SessionDatabase(open_sessions(empty)))
        keyed = task | {"unique_id": uuid4(), "unique_text": "k", "unique_until": "ended"}
        ended = keyed | {"status": "failed", "completed_at": at}
        async with empty.begin() as connection:
            for row in (keyed, ended, ended):
                await add(connection, {"joblib_task": row | {"id": uuid4()}})
        with pytest.raises(IntegrityError, match="unique_id"):
            async with empty.begin() as connection:
                await add(connection, {"joblib_task": keyed | {"id": uuid4()}})
        async with empty.begin() as connection:
            await connection.run_sync(migrate, command.downgrade, "0021")
            assert await counts(connection, ["joblib_task"]) == [3 * number + 2]


async def test_jobs_of_earlier_releases_have_one_version(empty: AsyncEngine) -> None:
    """The upgrade from 0028 keeps jobs, and all that refers to them; so does a downgrade."""
    at = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    job = {
        "id": uuid4(),
        "room_id": "lab",
        "category": "modifiers",
        "name": "A",
        "schema": {},
        "created_at": at,
    }
    task = {"job_id": job["id"], "room_id": "lab", "created_by": "ada", "payload": {}, "created_at": at}
    worker = {"id": uuid4(), "owner_id": "ada", "created_at": at, "last_heartbeat": at}
    rows = {
        "joblib_job": job,
        "joblib_worker": worker,
        "joblib_worker_job": {"worker_id": worker["id"], "job_id": job["id"]},
        "joblib_task": task
        | {"id": uuid4(), "attempt": 0, "lane": 0, "failures": 0, "crashes": 0, "status": "pending"},
        "joblib_room_queue": {"job_id": job["id"], "room_id": "lab", "lane": 0, "seq": 1},
    }
    name = JobName("lab", "modifiers", "A")
    database = SessionDatabase(open_sessions(empty))
    async with empty.begin() as connection:
        await connection.run_sync(migrate, command.upgrade, "0028")
        await add(connection, rows)
    for _ in range(2):
        await schema.upgrade(database)
        [stored] = await database.read(sql_jobs.versions, name)
        assert (stored.id, stored.job_version, stored.superseded) == (job["id"], 1, False)
        async with empty.begin() as connection:
            assert await counts(connection, list(rows)) == [1] * len(rows)
        with pytest.raises(IntegrityError, match="full_name"):
            async with empty.begin() as connection:
                await add(connection, {"joblib_job": job | {"id": uuid4()}})
        async with empty.begin() as connection:
            await connection.run_sync(migrate, command.downgrade, "0028")
            assert await counts(connection, list(rows)) == [1] * len(rows)


async def test_a_job_with_versions_stops_a_downgrade(empty: AsyncEngine) -> None:
    """To 0028, where a full name is of one row. Nothing is changed then."""
    at = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    job = {"id": uuid4(), "room_id": "lab", "category": "modifiers", "name": "A", "schema": {}}
    name, database = JobName("lab", "modifiers", "A"), SessionDatabase(open_sessions(empty))
    await schema.upgrade(database)
    async with empty.begin() as connection:
        await add(connection, {"joblib_job": job | {"created_at": at}})
    current, _ = await database.write(sql_jobs.lock_versions, name)
    await database.write(sql_jobs.add_version, current[0], {"type": "object"}, 2)
    with pytest.raises(IntegrityError):
        async with empty.begin() as connection:
            await connection.run_sync(migrate, command.downgrade, "0028")
    assert len(await database.read(sql_jobs.versions, name)) == 2


async def test_ends_that_were_not_handled_before_the_upgrade_are_handled(empty: AsyncEngine) -> None:
    """The upgrade from 0040 keeps ends for which tasks wait, as those of no room, and their order."""
    ends = [{"source": number, "cancels": number == 8} for number in (7, 8)]
    async with empty.begin() as connection:
        await connection.run_sync(migrate, command.upgrade, "0040")
        for end in ends:
            await add(connection, {"joblib_wave": end})
    for _ in range(2):
        database = SessionDatabase(open_sessions(empty))
        await schema.upgrade(database)
        taken, _ = await database.write(sql_successors.take_waves, 10, "")
        assert [(wave.source, wave.cancels) for wave in taken.waves] == [(7, False), (8, True)]
        async with empty.begin() as connection:
            await connection.run_sync(migrate, command.downgrade, "0040")
            assert await counts(connection, ["joblib_wave"]) == [2]


async def test_workers_of_earlier_releases_have_no_labels(empty: AsyncEngine) -> None:
    """The upgrade from 0041 keeps them and their links; queues with requirements stop a downgrade."""
    at = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    job_id = uuid4()
    job = {"id": job_id, "room_id": "lab", "category": "modifiers", "name": "A", "schema": {}}
    worker = {"id": uuid4(), "owner_id": "ada", "created_at": at, "last_heartbeat": at}
    name, database = JobName("lab", "modifiers", "A"), SessionDatabase(open_sessions(empty))
    async with empty.begin() as connection:
        await connection.run_sync(migrate, command.upgrade, "0041")
        await add(connection, {"joblib_job": job | {"created_at": at}, "joblib_worker": worker})
        await add(connection, {"joblib_worker_job": {"worker_id": worker["id"], "job_id": job["id"]}})
    for _ in range(2):
        await schema.upgrade(database)
        [candidate] = await database.read(sql_queues.candidates, [job_id])
        assert (candidate.id, candidate.labels, candidate.is_fit) == (worker["id"], None, True)
        [row] = await database.read(sql_jobs.versions, name)
        async with empty.begin() as connection:
            await connection.run_sync(migrate, command.downgrade, "0041")
    await schema.upgrade(database)
    await database.write(sql_queues.add, row, '{"gpu":"a100"}', [])
    with pytest.raises(RuntimeError, match="requirements"):
        async with empty.begin() as connection:
            await connection.run_sync(migrate, command.downgrade, "0041")
    assert [queue.requires for queue in await database.read(sql_queues.of_job, name)] == ['{"gpu":"a100"}']


async def test_tasks_of_earlier_releases_have_no_schedule(empty: AsyncEngine) -> None:
    """The upgrade from 0024 keeps tasks; a due time is unique for a schedule of a room."""
    at = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    job = {"id": uuid4(), "room_id": "lab", "category": "modifiers", "name": "Rotate", "schema": {}}
    task = {"job_id": job["id"], "room_id": "lab", "created_by": "ada", "payload": {}, "created_at": at}
    counted = {"attempt": 0, "lane": 0, "failures": 0, "crashes": 0, "status": "pending"}
    async with empty.begin() as connection:
        await connection.run_sync(migrate, command.upgrade, "0024")
        await add(connection, {"joblib_job": job | {"created_at": at}})
        await add(connection, {"joblib_task": task | counted | {"id": uuid4()}})
    for number in (1, 2):
        await schema.upgrade(SessionDatabase(open_sessions(empty)))
        due = task | counted | {"schedule": "nightly", "due_at": at}
        async with empty.begin() as connection:
            for other in (
                {},
                {"room_id": "attic"},
                {"schedule": "hourly"},
                {"due_at": None},
                {"due_at": None},
            ):
                await add(connection, {"joblib_task": due | other | {"id": uuid4()}})
        with pytest.raises(IntegrityError, match=r"ix_joblib_task_schedule|due_at"):
            async with empty.begin() as connection:
                await add(connection, {"joblib_task": due | {"id": uuid4()}})
        async with empty.begin() as connection:
            await connection.run_sync(migrate, command.downgrade, "0024")
            assert await counts(connection, ["joblib_task"]) == [5 * number + 1]


async def test_tasks_of_earlier_releases_have_no_tags(empty: AsyncEngine) -> None:
    """The upgrade from 0033 keeps tasks; a downgrade drops tags and parents, and keeps the tasks too."""
    at = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    job = {"id": uuid4(), "room_id": "lab", "category": "modifiers", "name": "Rotate", "schema": {}}
    task = {"job_id": job["id"], "room_id": "lab", "created_by": "ada", "payload": {}, "created_at": at}
    counted = {"attempt": 0, "lane": 0, "failures": 0, "crashes": 0, "status": "pending"}
    first_id = uuid4()
    async with empty.begin() as connection:
        await connection.run_sync(migrate, command.upgrade, "0033")
        await add(connection, {"joblib_job": job | {"created_at": at}})
        await add(connection, {"joblib_task": task | counted | {"id": first_id}})
    for number in (1, 2):
        await schema.upgrade(SessionDatabase(open_sessions(empty)))
        async with empty.begin() as connection:
            stored = text(
                "SELECT count(*) FROM joblib_task WHERE tags IS NULL AND root IS NULL AND parent IS NULL"
            )
            assert (await connection.execute(stored)).scalar_one() == number
            child = {"id": uuid4(), "parent": first_id, "root": first_id, "tags": ["a"], "seq": 1000 + number}
            await add(connection, {"joblib_task": task | counted | child})
            await add(
                connection, {"joblib_task_tag": {"task_seq": 1000 + number, "tag": "a", "room_id": "lab"}}
            )
        assert [row[0] for row in await rows_of(empty, "joblib_task_tag")] == [1000 + number]
        async with empty.begin() as connection:
            await connection.run_sync(migrate, command.downgrade, "0033")
            assert await counts(connection, ["joblib_task"]) == [1 + number]
        assert "joblib_task_tag" not in await tables(empty)


async def test_paused_jobs_stay_paused(empty: AsyncEngine) -> None:
    """The upgrade from 0025 keeps them, without an end; a downgrade drops the pauses of rooms."""
    at = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    job = {
        "id": uuid4(),
        "room_id": "lab",
        "category": "modifiers",
        "name": "A",
        "schema": {},
        "paused": True,
    }
    async with empty.begin() as connection:
        await connection.run_sync(migrate, command.upgrade, "0025")
        await add(connection, {"joblib_job": job | {"created_at": at}})
    database = SessionDatabase(open_sessions(empty))
    for _ in range(2):
        await schema.upgrade(database)
        stored = await database.read(sql_jobs.by_name, JobName("lab", "modifiers", "A"))
        assert stored is not None
        assert (stored.is_paused(at), stored.paused_until) == (True, None)
        pause = {"room_id": "lab", "until": at, "paused_at": at, "paused_by": "ada"}
        async with empty.begin() as connection:
            await add(connection, {"joblib_pause": pause})
        async with empty.begin() as connection:
            await connection.run_sync(migrate, command.downgrade, "0025")
            assert await counts(connection, ["joblib_job"]) == [1]
    assert "joblib_pause" not in await tables(empty)


async def test_a_queue_gets_the_table_of_rates(empty: AsyncEngine) -> None:
    """The upgrade from 0027 keeps the jobs; a downgrade drops only the rates."""
    at = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    job = {"id": uuid4(), "room_id": "lab", "category": "modifiers", "name": "A", "schema": {}}
    async with empty.begin() as connection:
        await connection.run_sync(migrate, command.upgrade, "0027")
        await add(connection, {"joblib_job": job | {"created_at": at}})
    for _ in range(2):
        await schema.upgrade(SessionDatabase(open_sessions(empty)))
        async with empty.begin() as connection:
            await add(connection, {"joblib_submit_rate": {"user_id": "ada", "full_at": 2**60}})
        async with empty.begin() as connection:
            await connection.run_sync(migrate, command.downgrade, "0027")
            assert await counts(connection, ["joblib_job"]) == [1]
    assert "joblib_submit_rate" not in await tables(empty)


async def test_rates_of_an_earlier_release_keep_their_tokens(empty: AsyncEngine) -> None:
    """The upgrade from 0030 adds when they were written; a downgrade drops only that."""
    async with empty.begin() as connection:
        await connection.run_sync(migrate, command.upgrade, "0030")
        statement = "INSERT INTO joblib_submit_rate (user_id, full_at) VALUES ('ada', 9000000000000000)"
        await connection.execute(text(statement))
    for _ in range(2):
        database = SessionDatabase(open_sessions(empty))
        await schema.upgrade(database)
        assert await rows_of(empty, "joblib_submit_rate") == [("ada", 9_000_000_000_000_000, None)]
        taken, _ = await database.write(rules_rates.take, "ada", [None], 1, 10, timedelta(minutes=1))
        assert isinstance(taken, TooManyRequests)
        async with empty.begin() as connection:
            await connection.run_sync(migrate, command.downgrade, "0030")
            assert await counts(connection, ["joblib_submit_rate"]) == [1]


async def test_long_payloads_return_to_their_tasks(empty: AsyncEngine) -> None:
    """The upgrade from 0031 leaves payloads in the rows of tasks; a downgrade moves the others there."""
    at = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    job = {"id": uuid4(), "room_id": "lab", "category": "modifiers", "name": "Rotate", "schema": {}}
    task = {"job_id": job["id"], "room_id": "lab", "created_by": "ada", "created_at": at}
    task |= {"attempt": 0, "lane": 0, "failures": 0, "crashes": 0, "status": TaskStatus.PENDING}
    long = {"text": "ä" * 5_000}
    async with empty.begin() as connection:
        await connection.run_sync(migrate, command.upgrade, "0031")
        await add(connection, {"joblib_job": job | {"created_at": at}})
        for payload in (long, {}):
            await add(connection, {"joblib_task": task | {"id": uuid4(), "payload": payload}})
    database = SessionDatabase(open_sessions(empty))
    expected = [long, {}]
    for _ in range(2):
        await schema.upgrade(database)
        item = TaskRecord(**task, id=uuid4(), job_name="lab:modifiers:Rotate", payload=long, seq=0)
        await database.write(sql_transitions.add, [item])
        expected.append(long)
        records, _ = await database.read(sql_tasks.page, "lab", None, part=Page(10, 0))
        assert sorted((record.seq, len(str(record.payload))) for record in records) == [
            (number, len(str(payload))) for number, payload in enumerate(expected, 1)
        ]
        async with empty.begin() as connection:
            assert await counts(connection, ["joblib_payload"]) == [empty.dialect.name == "sqlite"]
            await connection.run_sync(migrate, command.downgrade, "0031")
            rows = await connection.execute(text("SELECT payload FROM joblib_task ORDER BY seq"))
            assert [from_json(payload) for payload in rows.scalars()] == expected
    assert "joblib_payload" not in await tables(empty)


async def rows_of(engine: AsyncEngine, name: str) -> list[tuple[Any, ...]]:
    """Return the rows of a table in the order of its key."""
    chosen = metadata.tables[name]
    async with engine.connect() as connection:
        rows = await connection.execute(select(chosen).order_by(*chosen.primary_key))
        return [tuple(row) for row in rows]


@pytest.mark.parametrize("empty_url", ["postgresql"], indirect=True)
async def test_postgresql_cleans_the_queue_tables_early(empty: AsyncEngine) -> None:
    """Dead rows of tables that change with each task are removed after a small share, not a fifth."""
    await schema.upgrade(SessionDatabase(open_sessions(empty)))
    listed = text("SELECT relname, unnest(reloptions) FROM pg_class WHERE relname LIKE 'joblib%'")
    async with empty.connect() as connection:
        options = {(name, option) for name, option in await connection.execute(listed)}
    for name in ("joblib_task", "joblib_job", "joblib_worker", "joblib_room_queue", *COUNTS):
        assert (name, "autovacuum_vacuum_scale_factor=0.01") in options
    assert ("joblib_job", "fillfactor=80") in options
    assert {
        (name, "fillfactor=50") for name in (*COUNTS, "joblib_attempt_detail", "joblib_room_stream")
    } <= options


@pytest.mark.parametrize("empty_url", ["postgresql"], indirect=True)
async def test_large_values_are_stored_as_they_are(empty: AsyncEngine) -> None:
    """A payload that was compressed before the upgrade from 0022 stays; a new one is not compressed."""
    at = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    job_id, payload = uuid4(), {"text": "x" * 100_000}
    job = {
        "id": job_id,
        "room_id": "lab",
        "category": "modifiers",
        "name": "A",
        "schema": {},
        "created_at": at,
    }
    task = {"job_id": job_id, "room_id": "lab", "created_by": "ada", "created_at": at, "payload": payload}
    sizes = text("SELECT pg_column_size(payload) FROM joblib_task ORDER BY seq")
    async with empty.begin() as connection:
        await connection.run_sync(migrate, command.upgrade, "0022")
        await add(connection, {"joblib_job": job, "joblib_task": task | {"id": uuid4()}})
    await schema.upgrade(SessionDatabase(open_sessions(empty)))
    async with empty.begin() as connection:
        await add(connection, {"joblib_task": task | {"id": uuid4()}})
        before, after = (await connection.execute(sizes)).scalars()
        assert before < 10_000
        assert after > 100_000
        await connection.run_sync(migrate, command.downgrade, "0022")
        await add(connection, {"joblib_task": task | {"id": uuid4()}})
        assert (await connection.execute(sizes)).scalars().all() == [before, after, before]
        stored = await connection.execute(text("SELECT payload FROM joblib_task"))
        assert len(set(stored.scalars())) == 1


async def test_tasks_without_groups_stay_as_they_are(empty: AsyncEngine) -> None:
    """The upgrade from 0033 adds groups; a downgrade keeps the tasks."""
    at = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    job = {"id": uuid4(), "room_id": "lab", "category": "modifiers", "name": "Rotate", "created_at": at}
    task = {"job_id": job["id"], "room_id": "lab", "created_by": "ada", "created_at": at, "payload": {}}
    async with empty.begin() as connection:
        await connection.run_sync(migrate, command.upgrade, "0033")
        await add(connection, {"joblib_job": job | {"schema": {}}, "joblib_task": task | {"id": uuid4()}})
    for _ in range(2):
        await schema.upgrade(SessionDatabase(open_sessions(empty)))
        async with empty.begin() as connection:
            rows = await connection.execute(text("SELECT group_id FROM joblib_task"))
            assert rows.scalars().all() == [None]
            await connection.run_sync(migrate, command.downgrade, "0033")
            assert await counts(connection, ["joblib_task"]) == [1]
    assert "joblib_group" not in await tables(empty)


async def test_jobs_without_times_keep_their_policies(empty: AsyncEngine) -> None:
    """The upgrade from 0036 adds how long ended tasks are kept; a downgrade keeps the job and its policy."""
    at = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    job = {"id": uuid4(), "room_id": "lab", "category": "modifiers", "name": "Rotate", "created_at": at}
    policy = JobPolicy(max_attempts=3).model_dump_json(exclude={"keep", "without_workers"})
    async with empty.begin() as connection:
        await connection.run_sync(migrate, command.upgrade, "0036")
        await add(connection, {"joblib_job": job | {"schema": {}, "policy": policy}})
    for _ in range(2):
        await schema.upgrade(SessionDatabase(open_sessions(empty)))
        async with empty.begin() as connection:
            rows = await connection.execute(text("SELECT policy, keep FROM joblib_job"))
            assert rows.all() == [(policy, None)]
            await connection.run_sync(migrate, command.downgrade, "0036")


async def test_tokens_of_earlier_releases_keep_their_rights(empty: AsyncEngine) -> None:
    """The upgrade from 0042 limits no token; a downgrade deletes those that would get more rights."""
    at = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    earlier = [
        {"name": name, "digest": name, "is_superuser": name == "boss", "created_at": at}
        for name in ("ann", "boss")
    ]
    async with empty.begin() as connection:
        await connection.run_sync(migrate, command.upgrade, "0042")
        for token in earlier:
            await add(connection, {"joblib_token": token})
    database = SessionDatabase(open_sessions(empty))
    for name in ("narrow", "again"):
        await schema.upgrade(database)
        tokens = {token.name: token for token in await database.read(sql_operators.list_tokens)}
        assert {name: token.identity for name, token in tokens.items()} == {
            "ann": Identity("ann", is_superuser=False),
            "boss": Identity("boss", is_superuser=True),
        }
        rights = sql_operators.TokenRights(["viewer"], ["lab"])
        add_token = partial(sql_operators.add_token, is_superuser=False, rights=rights)
        assert (await database.write(add_token, name, digest=name))[0]
        async with empty.begin() as connection:
            issued = {**earlier[0], "name": "jit", "digest": "jit", "issued_by": "boss", "max_tasks": 1}
            await add(connection, {"joblib_token": issued})
            await connection.run_sync(migrate, command.downgrade, "0043")
            assert await counts(connection, ["joblib_token"]) == [3]
        async with empty.begin() as connection:
            await connection.run_sync(migrate, command.downgrade, "0042")
            assert await counts(connection, ["joblib_token"]) == [2]


async def test_workers_of_earlier_releases_have_no_end(empty: AsyncEngine) -> None:
    """The upgrade from 0044 keeps the workers, and so does a downgrade."""
    at = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    worker = {"id": uuid4(), "owner_id": "ann", "created_at": at, "last_heartbeat": at, "draining": False}
    async with empty.begin() as connection:
        await connection.run_sync(migrate, command.upgrade, "0044")
        await add(connection, {"joblib_worker": worker})
    for _ in range(2):
        await schema.upgrade(SessionDatabase(open_sessions(empty)))
        async with empty.begin() as connection:
            rows = await connection.execute(text("SELECT owner_id, ends_at FROM joblib_worker"))
            assert rows.all() == [("ann", None)]
            await connection.run_sync(migrate, command.downgrade, "0044")


async def test_secret_values_of_existing_jobs_are_found(empty: AsyncEngine) -> None:
    """The upgrade from 0047 reads the schemas of all jobs; a downgrade keeps them."""
    secret, plain = {"properties": {"a": {"writeOnly": True}}}, {"properties": {"a": {}}}
    job = {"room_id": "lab", "category": "modifiers", "created_at": datetime(2026, 1, 2, tzinfo=UTC)}
    async with empty.begin() as connection:
        await connection.run_sync(migrate, command.upgrade, "0047")
        for name, job_schema in (("Secret", secret), ("Plain", plain)):
            await add(connection, {"joblib_job": {**job, "id": uuid4(), "name": name, "schema": job_schema}})
    for _ in range(2):
        await schema.upgrade(SessionDatabase(open_sessions(empty)))
        async with empty.begin() as connection:
            rows = await connection.execute(text("SELECT name, masked FROM joblib_job ORDER BY name"))
            assert rows.all() == [("Plain", None), ("Secret", '[["a"]]')]
            await connection.run_sync(migrate, command.downgrade, "0047")


async def test_tasks_of_earlier_releases_take_one_slot(empty: AsyncEngine) -> None:
    """The upgrade from 0048 keeps jobs with their policies; costs of tasks stop a downgrade."""
    job = {"id": uuid4(), "room_id": "lab", "category": "modifiers", "name": "Rotate", "schema": {}}
    about = {
        "created_at": datetime(2026, 1, 2, tzinfo=UTC),
        "policy": '{"max_attempts":3}',
        "max_in_flight": 2,
    }
    async with empty.begin() as connection:
        await connection.run_sync(migrate, command.upgrade, "0048")
        await add(connection, {"joblib_job": job | about})
    for _ in range(2):
        database = SessionDatabase(open_sessions(empty))
        await schema.upgrade(database)
        [row] = await database.read(sql_jobs.versions, JobName("lab", "modifiers", "Rotate"))
        assert (row.cost, row.policy.cost, row.policy.max_attempts, row.max_in_flight) == (None, 1, 3, 2)
        async with empty.begin() as connection:
            await connection.run_sync(migrate, command.downgrade, "0048")
    await schema.upgrade(database)
    await database.write(sql_queues.add, row, '{"@cost":4}', [])
    with pytest.raises(RuntimeError, match="costs"):
        async with empty.begin() as connection:
            await connection.run_sync(migrate, command.downgrade, "0048")


async def test_groups_of_earlier_releases_are_of_no_task(empty: AsyncEngine) -> None:
    """The upgrade from 0049 keeps groups, and so does a downgrade."""
    at = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    group = {
        "id": uuid4(),
        "room_id": "lab",
        "created_by": "ann",
        "created_at": at,
        "sealed": False,
        "due_at": at,
    }
    async with empty.begin() as connection:
        await connection.run_sync(migrate, command.upgrade, "0049")
        await add(connection, {"joblib_group": group})
    for _ in range(2):
        database = SessionDatabase(open_sessions(empty))
        await schema.upgrade(database)
        row = await database.read(sql_groups.get, group["id"])
        assert (row.created_by, row.due_at, row.task_id) == ("ann", at, None)
        async with empty.begin() as connection:
            await connection.run_sync(migrate, command.downgrade, "0049")


async def test_schedules_and_groups_get_the_secret_paths_of_their_jobs(empty: AsyncEngine) -> None:
    """The upgrade from 0050 joins those of all versions of a job; a downgrade keeps the rows."""
    at = datetime(2026, 1, 2, tzinfo=UTC)
    about = {"room_id": "lab", "category": "modifiers", "schema": {}, "created_at": at}
    async with empty.begin() as connection:
        await connection.run_sync(migrate, command.upgrade, "0050")
        for number, (name, masked) in enumerate((("A", '[["a"]]'), ("A", '[["b"]]'), ("B", None))):
            row = {**about, "id": uuid4(), "name": name, "masked": masked, "job_version": number + 1}
            await add(connection, {"joblib_job": row | ({"superseded": True} if number == 1 else {})})
        for name in ("A", "B"):
            job = f"lab:modifiers:{name}"
            times = {"created_at": at, "updated_at": at, "anchor_at": at}
            row = {"id": uuid4(), "room_id": "lab", "name": name, "owner_id": "ann", "job_name": job}
            await add(connection, {"joblib_schedule": {**row, "spec": "{}", **times}})
            row = {"id": uuid4(), "room_id": "lab", "name": name, "created_by": "ann", "created_at": at}
            await add(connection, {"joblib_group": {**row, "on_end": json.dumps({"job": job})}})
    for _ in range(2):
        await schema.upgrade(SessionDatabase(open_sessions(empty)))
        async with empty.begin() as connection:
            for table in ("joblib_schedule", "joblib_group"):
                rows = await connection.execute(text(f"SELECT name, masked FROM {table} ORDER BY name"))  # noqa: S608
                assert rows.all() == [("A", '[["a"], ["b"]]'), ("B", None)]
            await connection.run_sync(migrate, command.downgrade, "0050")


async def test_servers_of_an_earlier_release_have_unknown_executors(empty: AsyncEngine) -> None:
    """The upgrade from 0051 keeps their rows; until they report again, no job is without one."""
    at = datetime.now(UTC)
    row = {"id": uuid4(), "host": "n1", "pid": 1, "version": "1.0.0", "started_at": at, "seen_at": at}
    async with empty.begin() as connection:
        await connection.run_sync(migrate, command.upgrade, "0051")
        numbers = {"sweep_interval_seconds": 30, "grace_remaining_seconds": 0}
        await add(connection, {"joblib_server": {**row, **numbers}})
    for _ in range(2):
        database = SessionDatabase(open_sessions(empty))
        await schema.upgrade(database)
        assert await database.read(sql_executors.known) is None
        async with empty.begin() as connection:
            await connection.run_sync(migrate, command.downgrade, "0051")


def test_the_names_of_the_migrations_are_their_versions() -> None:
    """The newest version, and all older ones, are known without loading the migrations."""
    revisions = [script.revision for script in ScriptDirectory(str(schema.scripts())).walk_revisions()]
    assert schema.versions() == revisions[::-1]
    assert schema.newest() == ScriptDirectory(str(schema.scripts())).get_current_head()
