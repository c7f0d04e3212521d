"""What PostgreSQL writes for a task from its submit to its end: WAL, dead rows and commits."""

import asyncio
import itertools
import json

import asyncpg
import uvloop

from benchmarks.bench import CONNECTIONS, Bench
from benchmarks.http_client import Connection, connections
from benchmarks.scenarios import JOB, PAYLOAD, V1, claim_task, register, report_status, submit_task
from benchmarks.servers import TOKEN, serving

_TASKS = 1_000
_SIZE = 100
# Sums over all tables of the queue: each update or deletion of a row leaves a dead row.
_COUNTS = """
SELECT pg_current_wal_lsn() - '0/0' AS wal_bytes, (SELECT wal_records FROM pg_stat_wal) AS wal_records,
    sum(n_tup_upd + n_tup_del) AS dead_rows, sum(n_tup_upd) AS updates, sum(n_tup_hot_upd) AS hot_updates,
    (SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()) AS commits
FROM pg_stat_user_tables
"""


def run(bench: Bench) -> None:
    """Report what is written for a task, with a request for each step and with requests of 100 tasks."""
    if bench.kind != "postgresql":
        return
    for name, work in (("singly", _run_singly), (f"{_SIZE} per request", _run_in_batches)):
        url = bench.new_url()
        before = uvloop.run(_counts(url))
        with serving("joblib", url) as server:
            uvloop.run(work(server))
        # A backend reports what it has counted when it ends, so the counts are read after the server's end.
        after = uvloop.run(_counts(url))
        _report(bench, name, {key: after[key] - before[key] for key in before})


def _report(bench: Bench, name: str, written: dict[str, float]) -> None:
    for key, unit in (("wal_bytes", "B"), ("wal_records", ""), ("dead_rows", ""), ("commits", "")):
        bench.report.add(f"{key.replace('_', ' ')} per task, {name}", written[key] / _TASKS, unit)
    share = 100 * written["hot_updates"] / written["updates"]
    bench.report.add(f"HOT updates, {name}", share, "%")


async def _counts(url: str) -> dict[str, float]:
    connection = await asyncpg.connect(url)
    try:
        return {key: float(value) for key, value in (await connection.fetchrow(_COUNTS)).items()}
    finally:
        await connection.close()


async def _run_singly(server: str) -> None:
    """Submit, claim, start and complete each task with a request of its own, over all connections."""
    remaining = iter(range(_TASKS))

    async def run_tasks(connection: Connection) -> None:
        worker_id = await register(connection)
        for _ in remaining:
            await submit_task(connection)
            task = await claim_task(connection, worker_id)
            for status in ("running", "completed"):
                await report_status(connection, task, status)

    async with connections(server, TOKEN, CONNECTIONS) as opened:
        await asyncio.gather(*map(run_tasks, opened))


async def _run_in_batches(server: str) -> None:
    """Submit tasks, claim them started, and complete them, as many in each request as the SDK has."""
    submits = {"tasks": [{"room_id": "bench", "job_name": JOB, **PAYLOAD}] * _SIZE}
    async with connections(server, TOKEN, 1) as (connection,):
        worker_id = await register(connection)
        for _ in itertools.repeat(None, _TASKS // _SIZE):
            await connection.json("POST", f"{V1}/tasks/submit", submits)
            claim = {"worker_id": worker_id, "max": _SIZE, "start": True}
            tasks = (await connection.json("POST", f"{V1}/tasks/claim", claim))["tasks"]
            reports = [{"id": task["id"], "attempt": 1, "status": "completed"} for task in tasks]
            assert len(reports) == _SIZE
            body = json.dumps({"worker_id": worker_id, "reports": reports}).encode()
            status, content = await connection.request("POST", f"{V1}/tasks/report", body)
            assert status == 200, content[:500]
