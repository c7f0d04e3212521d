"""Copy all tables from one database to another: resumable, in bounded batches, compared at the end.

The position of each table is in `joblib_copy` of the target, and is written in the transaction of its batch:
a copy that was killed continues behind the last row that was committed. Until all rows are compared, the
version of the target's schema is `UNFINISHED`, with which no server starts. A copy reads its source in one
transaction, which keeps others from writing to it.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from functools import cache
from hashlib import blake2b
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    Column,
    MetaData,
    String,
    Table,
    Text,
    column,
    func,
    insert,
    literal,
    literal_column,
    select,
    text,
    tuple_,
    update,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from zndraw_joblib.server.db.column_types import JsonText, UtcDateTime, Uuid
from zndraw_joblib.server.db.engine import database_engine
from zndraw_joblib.server.db.limits import Limits
from zndraw_joblib.server.db.schema import UNFINISHED, VERSION_TABLE, UnusableDatabase, locate, newest
from zndraw_joblib.server.db.tables import PAYLOAD_COLUMN, Payload, RuntimeSetting, Server, Task, metadata
from zndraw_joblib.server.queue import sql_payloads

Row = tuple[Any, ...]

# Rows are read in groups of this number. The largest have 2 MiB: a payload and a result.
_READ = 16
_BATCH_ROWS, _BATCH_BYTES = 2_000, 4 * 1024 * 1024
_PATIENT = Limits(response=60, statement=24 * 3600, lock=600, idle_transaction=24 * 3600)
# Distinguishes the lock of a copy from those of other applications on the same database.
_COPY_LOCK = 4_180_237_405_115_902_671
# How long a copy waits for other transactions that write to the source.
_LOCK_SECONDS = 10
_SILENT_SWEEPS = 3
# Long payloads are copied with their tasks, and servers report themselves when they start.
_TASK, _PAYLOAD, _SETTINGS = (table.__tablename__ for table in (Task, Payload, RuntimeSetting))
_NOT_COPIED = {_PAYLOAD, Server.__tablename__}
_copies = Table(
    "joblib_copy",
    MetaData(),
    Column("name", String(64), primary_key=True),
    Column("position", Text),
    Column("copied", BigInteger, nullable=False),
)
_versions = Table(VERSION_TABLE, MetaData(), Column("version_num", String(32)))
# Rows of the whole copy: their positions are the source, and the version of its schema.
_SOURCE, _SCHEMA = "", "schema"


class CopyRefused(RuntimeError):
    """The copy cannot begin, continue or end; the text says why, without a password."""


class TableState(NamedTuple):
    """The number of rows of a table, and a checksum that does not depend on their order."""

    rows: int
    checksum: str


# Is called with a table, and how many of its rows are copied, or compared, of how many.
OnProgress = Callable[[str, str, int, int], None]


def names() -> list[str]:
    """Return the names of the tables that are copied, those that others refer to first."""
    return [table.name for table in metadata.sorted_tables if table.name not in _NOT_COPIED]


class TableCopy:
    """A copy from one open database to another."""

    def __init__(self, source: AsyncEngine, target: AsyncConnection, texts: tuple[str, str]) -> None:
        self._source, self._target = source, target
        self._source_text, self._target_text = texts
        self._held: AsyncConnection | None = None
        self._own_pids = [0]
        self.is_continued = False

    @asynccontextmanager
    async def held_source(self) -> AsyncIterator[None]:
        """Read the source as it is now, in the block, and keep others from writing to it.

        Raises `CopyRefused` if another session writes to it.
        """
        async with self._source.connect() as source:
            try:
                await _hold(source)
            except DBAPIError as error:
                raise CopyRefused(
                    f"{self._source_text}: another program writes to it, or may not be kept from that: "
                    f"{str(error.orig).splitlines()[0]}. Stop what writes to it, and copy as the owner of "
                    "its tables"
                ) from error
            if source.dialect.name == "postgresql":
                self._own_pids.append(await source.scalar(text("SELECT pg_backend_pid()")))
            self._held = source
            try:
                yield
            finally:
                self._held = None
                await source.rollback()

    async def check_source(self) -> None:
        """Raise `CopyRefused` if a server uses the source."""
        async with self._reading(is_apart=True) as source:
            await _check_servers(source, self._source_text, self._own_pids)

    async def check_target(self) -> None:
        """Raise `CopyRefused` if a server or a copy uses the target, or it has rows of something else."""
        if self._target.dialect.name == "postgresql":
            lock = text("SELECT pg_try_advisory_lock(:key)")
            if not await self._target.scalar(lock, {"key": _COPY_LOCK}):
                raise CopyRefused(
                    f"{self._target_text}: another 'db copy' writes to it. Wait until it has ended"
                )
        if await _has_table(self._target, _copies.name):
            begun = await self._target.execute(select(_copies.c.name, _copies.c.position))
            positions = {name: position for name, position in begun}
            source_text, version = positions.get(_SOURCE), positions.get(_SCHEMA)
            if source_text != self._source_text:
                raise CopyRefused(
                    f"{self._target_text} has an unfinished copy of {source_text}, not of "
                    f"{self._source_text}. Name the same source, or a new database with --to"
                )
            if version != newest():
                raise CopyRefused(
                    f"{self._target_text} has an unfinished copy that another release began, with schema "
                    f"{version or 'unknown'} instead of {newest()}. Drop it, and copy again"
                )
            self.is_continued = True
            return
        await _check_servers(self._target, self._target_text)
        for table in metadata.sorted_tables:
            if table.name != _SETTINGS and await self._target.scalar(
                select(literal(1)).select_from(table).limit(1)
            ):
                raise CopyRefused(
                    f"{self._target_text} is not empty: {table.name} has rows, which no unfinished copy "
                    "wrote. Name a new database with --to. A copy that has ended is not repeated"
                )

    async def begin(self) -> None:
        """Mark the target as an unfinished copy, unless it is one."""
        if self.is_continued:
            return
        # On SQLite a change of rows begins a transaction, and one of the schema does not.
        await self._target.execute(update(_versions).values(version_num=UNFINISHED))
        await self._target.execute(text(f"DELETE FROM {_SETTINGS}"))
        await self._target.run_sync(_copies.create)
        rows = [(_SOURCE, self._source_text), (_SCHEMA, newest())]
        await self._target.execute(
            insert(_copies), [{"name": name, "position": position, "copied": 0} for name, position in rows]
        )
        await self._target.commit()

    async def counts(self) -> dict[str, int]:
        """Return how many rows each table of the source has."""
        async with self._reading() as source:
            return {
                name: await source.scalar(select(func.count()).select_from(metadata.tables[name])) or 0
                for name in names()
            }

    async def copy(self, name: str, total: int, on_progress: OnProgress) -> None:
        """Copy the rows of a table that the target does not have yet, in the order of its key."""
        state = (await self._target.execute(select(_copies).where(_copies.c.name == name))).first()
        if state is None:
            await self._target.execute(insert(_copies), {"name": name, "position": None, "copied": 0})
            await self._target.commit()
        copied = 0 if state is None else state.copied
        position = None if state is None or state.position is None else json.loads(state.position)
        on_progress("copy", name, copied, total)
        async for batch in self._batches(name, position):
            await self._insert(name, batch)
            copied += len(batch)
            values = {"position": json.dumps(_position(name, batch[-1])), "copied": copied}
            await self._target.execute(update(_copies).where(_copies.c.name == name).values(values))
            await self._target.commit()
            on_progress("copy", name, copied, total)

    async def begin_comparison(self) -> None:
        """Read the target as it is now until `finish`, which is a part of the same transaction."""
        await self._target.commit()
        if self._target.dialect.name == "sqlite":
            await self._target.exec_driver_sql("BEGIN IMMEDIATE")
        else:
            await self._target.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))

    async def compare(self, name: str, total: int, on_progress: OnProgress) -> TableState:
        """Return the state of a table. Raises `CopyRefused` if those of source and target differ."""
        async with self._reading() as source:
            expected = await _state(source, name, lambda rows: on_progress("check", name, rows, total))
        actual = await _state(self._target, name, lambda _: None)
        if actual != expected:
            raise CopyRefused(
                f"{name} has {expected.rows:,} rows with checksum {expected.checksum} in "
                f"{self._source_text}, and {actual.rows:,} with {actual.checksum} in the copy. The source "
                f"has changed since the copy began. Stop what writes to it, drop {self._target_text}, and "
                "copy again"
            )
        return actual

    async def finish(self) -> None:
        """Let servers start on the target, after its sequences continue those of the source."""
        if self._target.dialect.name == "postgresql":
            async with self._reading() as source:
                for table, key in _sequences():
                    last = await _last_number(source, table, key)
                    await self._target.execute(_SET_SEQUENCE, {"table": table, "key": key, "last": last})
        await self._target.execute(update(_versions).values(version_num=newest()))
        await self._target.run_sync(_copies.drop)
        await self._target.commit()

    async def has_missing_results(self) -> bool:
        """Return whether results of tasks are in a store outside the copied database."""
        return bool(await self._target.scalar(_IS_OUTSIDE))

    async def _batches(self, name: str, position: Sequence[Any] | None) -> AsyncIterator[list[Row]]:
        batch, size = list[Row](), 0
        async with self._reading() as source:
            async for row in _rows(source, name, position):
                batch.append(row)
                size += _size(row)
                if len(batch) >= _BATCH_ROWS or size >= _BATCH_BYTES:
                    yield batch
                    batch, size = [], 0
        if batch:
            yield batch

    async def _insert(self, name: str, batch: Sequence[Row]) -> None:
        table = _plain_tables()[name]
        rows = [dict(zip(table.c.keys(), row, strict=True)) for row in batch]
        if name == _TASK and self._target.dialect.name == "sqlite":
            long = [(row["seq"], row["payload"]) for row in rows if sql_payloads.is_long(row["payload"])]
            for row in rows:
                row["payload"] = sql_payloads.column(row["payload"])
            if long:
                await self._target.execute(insert(Payload.__table__), list(map(_long_payload, long)))
        try:
            await self._target.execute(insert(table), rows)
        except DBAPIError as error:
            first, last = (_position(name, row) for row in (batch[0], batch[-1]))
            raise CopyRefused(
                f"{self._target_text} refuses rows of {name} with keys from {first} to {last}: "
                f"{str(error.orig).splitlines()[0]}"
            ) from error

    @asynccontextmanager
    async def _reading(self, *, is_apart: bool = False) -> AsyncIterator[AsyncConnection]:
        try:
            if self._held is not None and not is_apart:
                yield self._held
                return
            async with self._source.connect() as connection:
                yield connection
        except (DBAPIError, OSError) as error:
            if (
                not isinstance(error, DBAPIError)
                or error.connection_invalidated
                or "SELECT" in str(error.statement)
            ):
                reason = str(getattr(error, "orig", error)).splitlines()[0]
                raise UnusableDatabase(
                    f"The database {self._source_text} cannot be read: {reason}"
                ) from error
            raise


@asynccontextmanager
async def opened(source_url: str, target_url: str) -> AsyncIterator[TableCopy]:
    """Open both databases for a copy."""
    source, target = database_engine(source_url, _PATIENT), database_engine(target_url, _PATIENT)
    texts = locate(source_url).text, locate(target_url).text
    try:
        async with target.connect() as connection:
            yield TableCopy(source, connection, texts)
    finally:
        await source.dispose()
        await target.dispose()


async def check_unused(url: str) -> None:
    """Raise `CopyRefused` if a server is connected to a database of PostgreSQL."""
    engine = database_engine(url, _PATIENT)
    try:
        async with engine.connect() as connection:
            await _check_connections(connection, locate(url).text)
    finally:
        await engine.dispose()


async def _hold(source: AsyncConnection) -> None:
    """Begin a transaction that reads one state, and in which no other one writes to the tables."""
    if source.dialect.name == "sqlite":
        await source.exec_driver_sql("BEGIN IMMEDIATE")
        return
    await source.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
    await source.execute(text(f"SET LOCAL lock_timeout = '{_LOCK_SECONDS}s'"))
    tables = ", ".join(table.name for table in metadata.sorted_tables)
    await source.execute(text(f"LOCK TABLE {tables} IN SHARE MODE"))


async def _check_servers(
    connection: AsyncConnection, text_of_url: str, own_pids: Sequence[int] = (0,)
) -> None:
    """Raise `CopyRefused` if a server has reported lately, or is connected to PostgreSQL."""
    now = (await connection.execute(select(func.now(type_=UtcDateTime())))).scalar_one()
    servers = Server.__table__
    columns = servers.c.host, servers.c.pid, servers.c.seen_at, servers.c.sweep_interval_seconds
    for host, pid, seen_at, seconds in await connection.execute(select(*columns)):
        silent, patience = max(0.0, (now - seen_at).total_seconds()), _SILENT_SWEEPS * seconds + 1
        if silent < patience:
            raise CopyRefused(
                f"A server uses {text_of_url}: process {pid} on {host} reported {silent:.0f} s ago. Stop it. "
                f"After a crash, wait {patience:.0f} s"
            )
    if connection.dialect.name == "postgresql":
        await _check_connections(connection, text_of_url, own_pids)


async def _check_connections(
    connection: AsyncConnection, text_of_url: str, own_pids: Sequence[int] = (0,)
) -> None:
    for _ in range(_CHECKS):
        count = await connection.scalar(_CONNECTED, {"own": list(own_pids)})
        # Within a transaction PostgreSQL shows the connections of its first look.
        await connection.rollback()
        if not count:
            return
        await asyncio.sleep(_CHECK_SECONDS)
    raise CopyRefused(
        f"{count} connections of servers use {text_of_url} (application_name zndraw-joblib in "
        "pg_stat_activity). Stop the servers"
    )


_CONNECTED = text(
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
    "AND application_name = 'zndraw-joblib' AND pid <> pg_backend_pid() "
    "AND pid <> ALL(CAST(:own AS integer[]))"
)
# A connection that was closed may be listed for a moment.
_CHECKS, _CHECK_SECONDS = 10, 0.3
_IS_OUTSIDE = text("""
SELECT 1 FROM joblib_task_result WHERE content_key IS NOT NULL AND attempt >= 0 AND NOT EXISTS (
    SELECT 1 FROM joblib_result WHERE joblib_result.key = 'value:' || joblib_task_result.content_key
) LIMIT 1
""")
_SET_SEQUENCE = text(
    "SELECT setval(pg_get_serial_sequence(:table, :key), greatest(1, CAST(:last AS bigint)), :last > 0)"
)


async def _has_table(connection: AsyncConnection, name: str) -> bool:
    return await connection.run_sync(lambda it: it.dialect.has_table(it, name))


@cache
def _plain_tables() -> dict[str, Table]:
    """Return the tables without computed columns and defaults, with JSON as the text that is stored."""
    plain = MetaData()
    return {
        table.name: Table(
            table.name,
            plain,
            *(
                Column(each.name, Text() if isinstance(each.type, JsonText) else each.type)
                for each in table.columns
                if each.computed is None
            ),
        )
        for table in metadata.sorted_tables
    }


def _keys(name: str) -> list[Column[Any]]:
    return list(metadata.tables[name].primary_key.columns)


async def _rows(
    connection: AsyncConnection, name: str, position: Sequence[Any] | None = None
) -> AsyncIterator[Row]:
    """Read the rows of a table behind a position, in the order of the database's keys."""
    columns = [column(each.name, each.type) for each in _plain_tables()[name].columns]
    if name == _TASK and connection.dialect.name == "sqlite":
        whole = PAYLOAD_COLUMN.format("payload", f"{_TASK}.seq", "content", "payload")
        columns = [literal_column(f"({whole})", Text()) if it.name == "payload" else it for it in columns]
    keys = _keys(name)
    named = [column(key.name, key.type) for key in keys]
    statement = select(*columns).select_from(text(name)).order_by(*named)
    if position is not None:
        values = [literal(_value(key, value), key.type) for key, value in zip(keys, position, strict=True)]
        statement = statement.where(tuple_(*named) > tuple_(*values))
    result = await connection.stream(statement.execution_options(yield_per=_READ))
    async for partition in result.partitions():
        for row in partition:
            yield tuple(row)


def _position(name: str, row: Row) -> list[Any]:
    """Return the key of a row as JSON."""
    values = dict(zip(_plain_tables()[name].c.keys(), row, strict=True))
    return [_json(values[key.name]) for key in _keys(name)]


def _json(value: Any) -> Any:
    if isinstance(value, UUID):
        return value.hex
    return value.isoformat() if isinstance(value, datetime) else value


def _value(key: Column[Any], value: Any) -> Any:
    if isinstance(key.type, Uuid):
        return UUID(value)
    return datetime.fromisoformat(value) if isinstance(key.type, UtcDateTime) else value


def _size(row: Row) -> int:
    return sum(len(value) for value in row if isinstance(value, str | bytes))


def _long_payload(of_task: tuple[int, str]) -> dict[str, Any]:
    seq, payload = of_task
    return {"task_seq": seq, "size": len(payload.encode()), "content": payload}


async def _state(connection: AsyncConnection, name: str, on_rows: Callable[[int], None]) -> TableState:
    rows, total = 0, 0
    async for row in _rows(connection, name):
        rows += 1
        total += int.from_bytes(blake2b(repr(row).encode(errors="surrogatepass"), digest_size=16).digest())
        if rows % _BATCH_ROWS == 0:
            on_rows(rows)
            await asyncio.sleep(0)
    on_rows(rows)
    return TableState(rows, f"{total % 2**128:032x}"[:16])


def _sequences() -> Iterator[tuple[str, str]]:
    for name in names():
        key = metadata.tables[name].autoincrement_column
        if key is not None and key.autoincrement is True:
            yield name, key.name


async def _last_number(source: AsyncConnection, table: str, key: str) -> int:
    """Return the last number of a sequence: on SQLite that of the last row."""
    last: int = await source.scalar(text(f"SELECT max({key}) FROM {table}")) or 0
    if source.dialect.name == "sqlite":
        return last
    sequence = await source.scalar(
        text("SELECT pg_get_serial_sequence(:table, :key)"), {"table": table, "key": key}
    )
    used = await source.scalar(text(f"SELECT last_value FROM {sequence} WHERE is_called"))
    return max(last, used or 0)
