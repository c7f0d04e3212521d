"""Insert a backlog of pending tasks directly into the database."""

from functools import partial

from sqlalchemy import Connection, text

from zndraw_joblib.server.db.engine import open_database
from zndraw_joblib.server.queue import sql_recount

_ROWS_PER_INSERT = 50_000
_JOB = "(SELECT id FROM joblib_job WHERE full_name = '@global:modifiers:Work')"
_COLUMNS = "id, job_id, room_id, status, created_by, payload, created_at, attempt"
_VALUES = f"{_JOB}, 'bench', 'pending', 'bench', '{{}}', CURRENT_TIMESTAMP, 0"
_SQLITE = (
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :count) "
    f"INSERT INTO joblib_task ({_COLUMNS}) SELECT printf('%032x', :last + i), {_VALUES} FROM n"
)
_POSTGRESQL = (
    f"INSERT INTO joblib_task ({_COLUMNS}) "
    f"SELECT CAST(lpad(to_hex(:last + i), 32, '0') AS uuid), {_VALUES} "
    "FROM generate_series(1, CAST(:count AS bigint)) AS i"
)
_LAST = "SELECT coalesce(max(seq), 0) FROM joblib_task"
_ROOM = (
    f"INSERT INTO joblib_room_queue (job_id, room_id, lane, seq) SELECT {_JOB}, 'bench', 0, 0 "
    "WHERE true ON CONFLICT DO NOTHING"
)


async def add_pending_tasks(url: str, count: int) -> None:
    """Add pending tasks of the benchmark's job, as submits do."""
    database = open_database(url)
    for done in range(0, count, _ROWS_PER_INSERT):
        await database.run_sync(partial(_insert, count=min(_ROWS_PER_INSERT, count - done)))
    await sql_recount.repair(database)
    await database.close()


def _insert(connection: Connection, count: int) -> None:
    insert = _SQLITE if connection.dialect.name == "sqlite" else _POSTGRESQL
    # Ids in order, like those of submitted tasks: random ones would change a page of the index for each task.
    last = connection.execute(text(_LAST)).scalar_one()
    connection.execute(text(insert), {"count": count, "last": last})
    connection.execute(text(_ROOM))
