"""The time of each answer that the dashboard reads, and of the metrics, with a million tasks."""

import asyncio
import time
from functools import partial

import uvloop
from sqlalchemy import Connection, text

from benchmarks.bench import Bench
from benchmarks.http_client import Connection as Client
from benchmarks.http_client import connections, quantiles
from benchmarks.pages import PAGES, TASKS
from benchmarks.scenarios import V1
from benchmarks.servers import TOKEN, serving
from zndraw_joblib.server.db.engine import open_database
from zndraw_joblib.server.queue import sql_recount

_ROWS_PER_INSERT = 50_000
_JOBS, _ROOMS, _WORKERS = 50, 300, 200
_CALLS = 40
_MINUTES, _HOURS = 1440, 24 * 30

_NUMBERS = {
    "sqlite": "WITH RECURSIVE n(i) AS (SELECT {first} UNION ALL SELECT i + 1 FROM n WHERE i < {last})",
    "postgresql": "WITH n(i) AS (SELECT generate_series({first}, {last}))",
}
_UUID = {"sqlite": "printf('%032x', {})", "postgresql": "lpad(to_hex({}), 32, '0')::uuid"}
_AGO = {
    "sqlite": "strftime('%Y-%m-%d %H:%M:%S.000000', 'now', '-' || ({}) || ' seconds')",
    "postgresql": "date_trunc('second', now()) - ({}) * interval '1 second'",
}
_STATUS = f"""
    CASE WHEN i <= {TASKS} * 9 / 10 THEN CASE i % 20 WHEN 0 THEN 'failed' WHEN 1 THEN 'cancelled'
        ELSE 'completed' END
        WHEN i <= {TASKS} * 9 / 10 + 2000 THEN 'running' ELSE 'pending' END"""
_HISTOGRAM = "'[" + ", ".join(["3"] * 16) + "]'"


def run(bench: Bench) -> None:
    """Report p95 of each page, one request at a time."""
    url = bench.new_url()
    began = time.monotonic()
    with serving("joblib", url):
        pass  # it creates the tables of a SQLite database
    uvloop.run(_seed(url))
    bench.report.add("time to insert the tasks", time.monotonic() - began, "s")
    with serving("joblib", url) as server:
        for name, path in PAGES.items():
            p50, p95 = uvloop.run(_time(server, path))
            bench.add_times({f"{name}, p50": p50, f"{name}, p95": p95})


async def _time(server: str, path: str) -> tuple[float, float]:
    async with connections(server, TOKEN, 1) as [client]:
        return quantiles([await _once(client, path) for _ in range(_CALLS)])


async def _once(client: Client, path: str) -> float:
    await asyncio.sleep(0.005)  # the time between two requests of a page
    start = time.perf_counter()
    status, body = await client.request("GET", f"{V1}/{path}")
    took = time.perf_counter() - start
    assert status == 200, (path, status, body[:500])
    return took


async def _seed(url: str) -> None:
    database = open_database(url)
    await database.run_sync(_insert_others)
    for first in range(1, TASKS, _ROWS_PER_INSERT):
        await database.run_sync(partial(_insert_tasks, first=first))
    await sql_recount.repair(database)
    await database.run_sync(_finish)
    await database.close()


def _parts(connection: Connection, first: int, last: int) -> tuple[str, str, str]:
    kind = connection.dialect.name
    return _UUID[kind], _AGO[kind], _NUMBERS[kind].format(first=first, last=last)


def _insert_others(connection: Connection) -> None:
    uuid, ago, _ = _parts(connection, 0, 0)

    def numbers(last: int) -> str:
        return _parts(connection, 1, last)[2]

    false = "false" if connection.dialect.name == "postgresql" else "0"
    for statement in (
        f"INSERT INTO joblib_job (id, room_id, category, name, schema, created_at, deleted, pending) "
        f"{numbers(_JOBS)} SELECT {uuid.format('i')}, '@global', 'modifiers', 'J' || i, '{{}}', "
        f"{ago.format('90000')}, {false}, 0 FROM n",
        f"INSERT INTO joblib_worker (id, owner_id, created_at, last_heartbeat, name, slots) "
        f"{numbers(_WORKERS)} SELECT {uuid.format('1000000 + i')}, 'owner', {ago.format('90000')}, "
        f"{ago.format('0')}, 'worker-' || i, 4 FROM n",
        f"INSERT INTO joblib_worker_job (worker_id, job_id) {numbers(_WORKERS)} "
        f"SELECT {uuid.format('1000000 + i')}, {uuid.format(f'1 + i % {_JOBS}')} FROM n",
    ):
        connection.execute(text(statement))
    for resolution, intervals in ((60, _MINUTES), (3600, _HOURS)):
        start = {
            "sqlite": f"strftime('%Y-%m-%d %H:%M:%S.000000', (strftime('%s', 'now') / {resolution} - i) "
            f"* {resolution}, 'unixepoch')",
            "postgresql": f"to_timestamp((floor(extract(epoch FROM now()) / {resolution}) - i) "
            f"* {resolution})",
        }[connection.dialect.name]
        connection.execute(
            text(
                "INSERT INTO joblib_statistic (resolution, job_id, start, submitted, completed, waiting, "
                f"running, causes) {numbers(intervals)}, j(job) AS (SELECT i FROM n WHERE i <= {_JOBS} "
                f"UNION ALL SELECT 0) SELECT {resolution}, {uuid.format('job')}, {start}, 48, 48, "
                f"{_HISTOGRAM}, {_HISTOGRAM}, '{{}}' FROM n, j"
            )
        )


def _insert_tasks(connection: Connection, first: int) -> None:
    uuid, ago, numbers = _parts(connection, first, first + _ROWS_PER_INSERT - 1)
    at = ago.format(f"({TASKS} - i) / 100 + 60")
    connection.execute(
        text(
            "INSERT INTO joblib_task (id, job_id, room_id, status, created_by, payload, created_at, "
            "claimed_at, started_at, completed_at, worker_id, worker_owner_id, attempt, error, error_code) "
            f"{numbers}, t(i, status) AS (SELECT i, {_STATUS} FROM n) "
            f"SELECT {uuid.format('5000000 + i')}, {uuid.format(f'1 + i % {_JOBS}')}, "
            f"'room-' || (i / {_JOBS} % {_ROOMS}), status, 'user-' || (i % 1000), "
            f'\'{{"angle": \' || i || \', "name": "a payload of some length"}}\', {at}, '
            f"CASE WHEN status <> 'pending' THEN {at} END, CASE WHEN status <> 'pending' THEN {at} END, "
            f"CASE WHEN status NOT IN ('pending', 'running') THEN {at} END, "
            f"CASE WHEN status <> 'pending' THEN {uuid.format(f'1000001 + i % {_WORKERS}')} END, "
            "CASE WHEN status <> 'pending' THEN 'owner' END, CASE status WHEN 'pending' THEN 0 ELSE 1 END, "
            "CASE WHEN status = 'failed' THEN 'ValueError: the angle is too large' END, "
            "CASE WHEN status = 'failed' THEN 'error' END FROM t ORDER BY i"
        )
    )


def _finish(connection: Connection) -> None:
    connection.execute(
        text(
            "INSERT INTO joblib_room_queue (job_id, room_id, lane, seq) SELECT job_id, room_id, 0, min(seq) "
            "FROM joblib_task WHERE status = 'pending' GROUP BY job_id, room_id"
        )
    )
    # Else the sweeper would fail their tasks as soon as it may.
    connection.execute(text("UPDATE joblib_worker SET last_heartbeat = CURRENT_TIMESTAMP"))
    # As autovacuum would have by then.
    if connection.dialect.name == "postgresql":
        connection.execute(text("ANALYZE"))
