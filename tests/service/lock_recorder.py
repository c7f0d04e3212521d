"""Record which rows each transaction locks, in order, and find violations of the lock order.

PostgreSQL stores the id of the transaction that locked or wrote a row in the row itself. After each statement
of the code under test, in the same transaction, the recorder reads which rows it has locked by then.
"""

import re
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy.dialects import postgresql

from zndraw_joblib.server.db.database import Database
from zndraw_joblib.server.db.postgres import PostgresDatabase

# Transactions wait for locks in the order of these tables, and within a table in the order of its keys.
ORDER = (
    *("joblib_worker", "joblib_task", "joblib_provider", "joblib_job"),
    *("joblib_room_count", "joblib_queue_block", "joblib_room_stream"),
)
_KEYS = {
    "joblib_task": "lpad(seq::text, 20, '0')",
    "joblib_room_count": "concat_ws(' ', room_id, job_id, part + 1)",
    "joblib_queue_block": "concat_ws(' ', job_id, lane, block)",
    "joblib_room_stream": "room_id",
}
_MINE = "(xmax = pg_current_xact_id_if_assigned()::xid OR xmin = pg_current_xact_id_if_assigned()::xid)"
_PROBE = " UNION ALL ".join(
    f"SELECT {level} AS level, {_KEYS.get(name, 'id::text')} AS key FROM {name} WHERE {_MINE}"  # noqa: S608
    for level, name in enumerate(ORDER)
)
_WRITTEN = re.compile(r"\b(?:UPDATE|INTO|DELETE FROM) (joblib_\w+)")
_INSERTED = re.compile(r"\bINSERT INTO (joblib_\w+)")
_DIALECT = postgresql.dialect()  # type: ignore[no-untyped-call]
_COLUMNS = re.compile(r"\b(SELECT|SET) .*? (FROM|WHERE)\b")
Lock = tuple[int, str]


class LockRecorder:
    """The locks of all transactions, and what violates the order.

    Not compared: rows that the transaction inserted, locks that it takes without waiting (SKIP LOCKED), and
    the shared locks of foreign keys, which only the deletion of a row waits for.
    """

    def __init__(self) -> None:
        self.violations: list[str] = []
        self.locked: set[int] = set()
        self.jobs: dict[object, set[str]] = {}
        self._transaction: object = None
        self._held: dict[Lock, str] = {}

    def install(self, database: Database) -> None:
        """Record the statements of a database if it is PostgreSQL. Transactions must run one at a time."""
        if not isinstance(database, PostgresDatabase):
            return

        async def record(connection: Any, statement: Any, parameters: Any) -> None:
            if connection.is_in_transaction():
                transaction = await connection.fetchval("SELECT pg_current_xact_id_if_assigned()")
                locks = {(row["level"], row["key"]) for row in await connection.fetch(_PROBE)}
                self._record(transaction, locks, str(statement.compile(dialect=_DIALECT)), parameters)

        database.on_statement = record

    def _record(self, transaction: object, locks: set[Lock], sql: str, parameters: Any) -> None:
        if transaction != self._transaction:
            self._transaction, self._held = transaction, {}
        sql = " ".join(sql.split())
        written = set(_WRITTEN.findall(sql))
        inserted = set(_INSERTED.findall(sql))
        new = locks - self._held.keys()
        waited = sorted(lock for lock in new if not written or ORDER[lock[0]] in written - inserted)
        sql = _COLUMNS.sub(r"\1 … \2", sql)
        if "pg_advisory_xact_lock" in sql and any(level > 0 for level, _ in self._held):
            self.violations.append(f"A lock of rooms is taken after locks of rows:\n  {sql}")
        if waited and "SKIP LOCKED" not in sql:
            self.locked |= {level for level, _ in waited}
            self._check(waited, sql, parameters)
        self._held |= dict.fromkeys(new, sql)
        self.jobs[transaction] = {key for level, key in self._held if ORDER[level] == "joblib_job"}

    def _check(self, new: Sequence[Lock], sql: str, parameters: Any) -> None:
        after = {lock: first for lock, first in self._held.items() if lock > new[0]}
        if after:
            (level, key), first = max(after.items())
            self.violations.append(
                f"{ORDER[new[0][0]]} {new[0][1]} is locked after {ORDER[level]} {key}:\n  {first}\n  {sql}"
            )
        is_ordered = len(new) == 1 or "ORDER BY" in sql or _is_sorted(parameters)
        if not is_ordered:
            self.violations.append(f"{len(new)} rows are locked in no order:\n  {sql}")


def _is_sorted(parameters: Any) -> bool:
    """Return whether a statement runs once for each item of a list, in the order of their keys."""
    if not isinstance(parameters, Sequence) or not parameters:
        return False
    keys = [next(value for value in row.values() if isinstance(value, UUID | int)) for row in parameters]
    return keys == sorted(keys)
