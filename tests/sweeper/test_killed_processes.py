"""A killed worker process, and the readiness of a server whose database stops and starts again."""

import asyncio
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from databases import start_postgres
from rest import V1
from servers import ServerProcess
from sqlalchemy import text
from waiting import until

from zndraw_joblib.server.db import schema
from zndraw_joblib.server.db.engine import open_database, open_engine
from zndraw_joblib.server.host.app import create_app
from zndraw_joblib.server.process.settings import ServerSettings

pytestmark = pytest.mark.processes

TOKEN = "a-token-of-the-tests"
# Long enough that a worker on a busy machine sends its heartbeats in time.
TIMEOUT, INTERVAL = 5.0, 1.0
# A worker that claims a task, starts it and sends heartbeats.
WORKER = """
import sys, time
import httpx

client = httpx.Client(base_url=sys.argv[1], headers={"Authorization": "Bearer " + sys.argv[2]}, timeout=60)
job = client.put("/v1/joblib/rooms/lab/jobs", json={"category": "modifiers", "name": "Hang"}).json()
print(job["worker_id"], flush=True)
claim = {"worker_id": job["worker_id"]}
task = None
while task is None:
    response = client.post("/v1/joblib/tasks/claim", json=claim, headers={"Prefer": "wait=20"})
    task = response.raise_for_status().json()["task"]
client.patch(f"/v1/joblib/tasks/{task['id']}", json={"status": "running"}).raise_for_status()
while True:
    client.patch(f"/v1/joblib/workers/{job['worker_id']}").raise_for_status()
    print("beat", flush=True)
    time.sleep(0.3)
"""


def at(text: str) -> datetime:
    """Parse a time."""
    return datetime.fromisoformat(text)


async def test_the_task_of_a_killed_worker_fails_in_time(sqlite_url: str, postgres_url: str) -> None:
    """Not before the timeout after its last heartbeat, and in the first cycle of the sweeper after it."""
    await asyncio.gather(kill_a_worker(sqlite_url), kill_a_worker(postgres_url))


async def kill_a_worker(database_url: str) -> None:
    """Kill a worker that runs a task; check the time until the server fails the task."""
    settings = {"worker_timeout_seconds": TIMEOUT, "sweeper_interval_seconds": INTERVAL}
    with ServerProcess(database_url, **settings) as server:
        worker = await asyncio.create_subprocess_exec(
            sys.executable, "-c", WORKER, server.url, server.token, stdout=subprocess.PIPE
        )
        async with server.client() as client, asyncio.timeout(100):
            worker_id = (await worker.stdout.readline()).decode().strip()
            url = f"{V1}/rooms/lab/tasks/lab:modifiers:Hang"
            task = (await client.post(url, json={})).json()
            for _ in range(3):
                assert await worker.stdout.readline() == b"beat\n"
            worker.send_signal(signal.SIGKILL)
            await worker.wait()
            [silent] = (await client.get(f"{V1}/workers")).json()["items"]
            assert silent["id"] == worker_id
            failed = (await client.get(f"{V1}/tasks/{task['id']}", headers={"Prefer": "wait=60"})).json()
            assert (failed["status"], failed["error"]) == ("failed", "Worker disconnected")
            assert failed["worker_id"] == worker_id
            silence = (at(failed["completed_at"]) - at(silent["last_heartbeat"])).total_seconds()
            assert silence >= TIMEOUT
            await check_cycles(client)
            assert (await client.get(f"{V1}/workers")).json()["total"] == 0
            assert (await client.get(f"{V1}/rooms/lab/jobs")).json()["total"] == 0


async def check_cycles(client: httpx.AsyncClient) -> None:
    """Check that the first cycle that found the worker silent for too long has removed it."""

    async def cycles() -> list[Any]:
        found: list[Any] = (await client.get(f"{V1}/admin/sweeper")).json()["cycles"]
        return found if any(cycle["expired"] for cycle in found) else []

    latest = await until(cycles)
    last, *earlier = [cycle["expired"] for cycle in latest if cycle["stale"]]
    times = [at(cycle["at"]) for cycle in latest]
    longest = max(after - before for after, before in pairwise(times)).total_seconds()
    # If the machine stopped the server for that long, the worker had a full timeout again.
    assert (last, earlier) == (1, []) or (longest > TIMEOUT / 2 and not any(earlier))


@asynccontextmanager
async def running(database_url: str, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Run a standalone app in this process."""
    app = create_app(ServerSettings(database_url=database_url, admin_token=TOKEN, **settings))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers) as client,
    ):
        yield client


async def wait_for_readiness(client: httpx.AsyncClient, status: int) -> dict[str, Any]:
    """Wait until `/health/ready` has a status code; return its body."""

    async def body() -> dict[str, Any] | None:
        response = await client.get("/health/ready")
        return response.json() if response.status_code == status else None

    found = await until(body, interval=0.05)
    assert found is not None
    return found


async def check_unavailable(client: httpx.AsyncClient) -> None:
    """Check that a write and a read are 503 with a Retry-After header."""
    for response in (await client.post(f"{V1}/workers"), await client.get(f"{V1}/workers")):
        assert response.status_code == 503
        assert response.headers["content-type"] == "application/problem+json"
        assert response.json()["type"] == "/v1/problems/service-unavailable"
        assert int(response.headers["retry-after"]) >= 1
    assert (await client.get("/health/live")).status_code == 200


async def test_readiness_follows_postgresql() -> None:
    """While PostgreSQL is stopped, readiness and requests are 503; after its start the server works again."""
    # Not below the folder of pytest: the user of PostgreSQL may lose access while other runs clean up.
    folder = Path(tempfile.mkdtemp(prefix="joblib-postgres-"))
    server = await asyncio.to_thread(start_postgres, folder)
    url = f"postgresql://postgres@/postgres?host={folder}"
    database = open_database(url)
    await schema.upgrade(database)
    await database.close()
    async with running(url) as client:
        assert (await wait_for_readiness(client, 200))["status"] == "ready"
        job = (await client.put(f"{V1}/rooms/lab/jobs", json={"category": "modifiers", "name": "X"})).json()
        await asyncio.to_thread(server.cleanup)
        body = await wait_for_readiness(client, 503)
        assert body["status"] == "not ready"
        assert any(check != "ok" for check in body["checks"].values())
        await check_unavailable(client)
        server = await asyncio.to_thread(start_postgres, folder)
        assert set((await wait_for_readiness(client, 200))["checks"].values()) == {"ok"}
        assert (await client.post(f"{V1}/rooms/lab/tasks/{job['full_name']}", json={})).status_code == 202
        claim = {"worker_id": job["worker_id"]}
        assert (await client.post(f"{V1}/tasks/claim", json=claim)).json()["task"] is not None
    await asyncio.to_thread(server.cleanup)
    shutil.rmtree(folder, ignore_errors=True)


async def test_readiness_follows_a_sqlite_file(sqlite_url: str) -> None:
    """While a table is missing, readiness is 503; afterwards the server is ready again."""
    async with running(sqlite_url) as client:
        assert (await wait_for_readiness(client, 200))["status"] == "ready"
        engine = open_engine(sqlite_url)

        async def rename(before: str, after: str) -> None:
            async with engine.begin() as connection:
                await connection.execute(text(f"ALTER TABLE {before} RENAME TO {after}"))

        await rename("joblib_worker", "joblib_away")
        assert (await wait_for_readiness(client, 503))["checks"]["work"] != "ok"
        await check_unavailable(client)
        await rename("joblib_away", "joblib_worker")
        await wait_for_readiness(client, 200)
        assert (await client.post(f"{V1}/workers")).status_code == 201
        await engine.dispose()


async def test_readiness_follows_the_sweeper(sqlite_url: str) -> None:
    """The server is not ready if its last successful cycle is older than three intervals."""
    async with running(sqlite_url, sweeper_interval_seconds=0.1) as client:
        assert (await wait_for_readiness(client, 200))["checks"]["sweeper"] == "ok"
        engine = open_engine(sqlite_url)
        async with engine.begin() as connection:
            await connection.execute(text("ALTER TABLE joblib_worker_job RENAME TO joblib_away"))
            await connection.execute(text("ALTER TABLE joblib_task RENAME TO joblib_task_away"))

        async def is_reported() -> bool:
            return (await wait_for_readiness(client, 503))["checks"]["sweeper"] != "ok"

        await until(is_reported, interval=0.1)
        await engine.dispose()
