"""Results of real worker processes: servers that share a store, are killed, and how much memory it takes."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from rest import V1, get_task
from servers import ServerProcess
from sqlalchemy.ext.asyncio import AsyncEngine
from tcp_proxy import TcpProxy
from waiting import until

pytestmark = pytest.mark.processes

MIB = 1024 * 1024
RESULTS = "joblib_task_result"
JOBS = """
from pathlib import Path
from zndraw_joblib import Category, Extension, ResultFile

class Write(Extension):
    category = Category.ANALYSIS
    mebibytes: int

    def run(self, vis, **kwargs):
        path = Path(f"{self.mebibytes}.bin")
        with path.open("wb") as file:
            for n in range(self.mebibytes):
                file.write(bytes([n % 256]) * 1024 * 1024)
        return ResultFile(path)
"""


@pytest.fixture(params=["database", "files"])
def settings_of_servers(
    request: pytest.FixtureRequest, kind: str, database_url: str, tmp_path: Path
) -> dict[str, Any]:
    """Return the settings of servers of one store."""
    return {
        "database_url": database_url,
        "task_result_backend": request.param,
        "task_result_directory": tmp_path / "results",
        "sweeper_interval_seconds": 0.2,
    }


class Worker:
    """A worker process with JOBS; `close` kills it."""

    def __init__(self, folder: Path, url: str, token: object) -> None:
        (folder / "write_jobs.py").write_text(JOBS)
        environment = {"ZNDRAW_JOBLIB_URL": url, "ZNDRAW_JOBLIB_TOKEN": str(token)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "zndraw_joblib", "worker", "write_jobs.py"],
            cwd=folder,
            env={**os.environ, **environment},
            stderr=subprocess.DEVNULL,
        )

    def close(self) -> None:
        """Kill the process."""
        self.process.kill()
        self.process.wait(10)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Return a stack that ends processes."""
    with ExitStack() as stack:
        yield stack


async def registered(client: httpx.AsyncClient) -> None:
    """Wait until the worker has registered its job."""

    async def is_there() -> bool:
        return bool((await client.get(f"{V1}/rooms/lab/jobs")).json()["total"])

    await until(is_there)


async def submitted(client: httpx.AsyncClient, mebibytes: int) -> dict[str, Any]:
    """Submit a task that returns so many MiB."""
    url = f"{V1}/rooms/lab/tasks/@global:analysis:Write"
    response = await client.post(url, json={"payload": {"mebibytes": mebibytes}})
    task: dict[str, Any] = response.json()
    return task


async def ended(client: httpx.AsyncClient, task: dict[str, Any]) -> dict[str, Any]:
    """Wait for the end of a task."""
    while True:
        found = await get_task(client, task)
        if found["status"] in {"completed", "failed", "cancelled"}:
            return found
        await client.get(f"{V1}/tasks/{task['id']}", headers={"Prefer": "wait=20"})


async def check_result(client: httpx.AsyncClient, task: dict[str, Any], mebibytes: int) -> None:
    """Check that the result of a task is what its job wrote."""
    async with client.stream("GET", f"{V1}/tasks/{task['id']}/result") as response:
        assert response.status_code == 200
        n = 0
        async for piece in response.aiter_bytes(MIB):
            assert piece == bytes([n]) * MIB
            n += 1
        assert n == mebibytes


def peak(pid: int) -> int:
    """Return the most memory that a process has used so far."""
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "VmHWM" in line]
    return int(line.split()[1]) * 1024


async def test_a_large_output_needs_little_memory(
    settings_of_servers: dict[str, Any], stack: ExitStack, tmp_path: Path
) -> None:
    """Of 100 MB, in the worker and in the server, when it is uploaded and when it is read."""
    server = stack.enter_context(ServerProcess(**settings_of_servers))
    worker = Worker(tmp_path, server.url, server.token)
    stack.callback(worker.close)
    async with server.client() as client:
        await registered(client)
        assert (await ended(client, await submitted(client, 2)))["status"] == "completed"
        processes = [
            each.pid
            for root in (worker.process.pid, server.process.pid)
            for each in (psutil.Process(root), *psutil.Process(root).children(recursive=True))
        ]
        before = {pid: peak(pid) for pid in processes}
        task = await ended(client, await submitted(client, 100))
        assert (task["status"], task["stored_result"]["size"]) == ("completed", 100 * MIB)
        await check_result(client, task, 100)
        assert {pid: growth for pid in processes if (growth := peak(pid) - before[pid]) > 60 * MIB} == {}


@pytest.mark.parametrize("kind", ["postgresql"])
async def test_a_server_that_is_killed_during_the_upload_of_a_worker(
    settings_of_servers: dict[str, Any], stack: ExitStack, tmp_path: Path, engine: AsyncEngine
) -> None:
    """The worker uploads it again, to another server; only that content stays, and a third server has it."""
    first, second = (stack.enter_context(ServerProcess(**settings_of_servers)) for _ in range(2))
    async with second.client() as client, TcpProxy(httpx.URL(first.url).port or 0).running() as proxy:
        # So the upload does not end before the server is killed.
        proxy.most_bytes = 20 * MIB
        worker = Worker(tmp_path, f"http://127.0.0.1:{proxy.port}", first.token)
        stack.callback(worker.close)
        await registered(client)
        task = await submitted(client, 60)
        await until(partial(count, engine, f"{RESULTS} WHERE task_seq IS NULL"))
        proxy.silence()
        first.process.kill()
        assert await count(engine, f"{RESULTS} WHERE task_seq IS NULL") == 1
        proxy.target_port, proxy.most_bytes = httpx.URL(second.url).port or 0, inf
        proxy.cut()
        done = await ended(client, task)
        assert (done["status"], done.get("error"), done["attempt"]) == ("completed", None, 1)
        await expire(engine)

        async def is_clean() -> bool:
            return await count(engine, RESULTS) == 1 and await contents(engine, tmp_path / "results") == 1

        await until(is_clean)
    with ServerProcess(**settings_of_servers) as third:
        async with third.client() as client:
            await check_result(client, task, 60)


async def count(engine: AsyncEngine, what: str) -> int:
    """Return a number of rows."""
    async with engine.connect() as connection:
        found = await connection.exec_driver_sql(f"SELECT count(*) FROM {what}")  # noqa: S608 - constants
        return int(found.scalar_one())


async def expire(engine: AsyncEngine) -> None:
    """Let the time of interrupted uploads have passed."""
    past = "SET expires_at = now() - interval '1 s'"
    async with engine.begin() as connection:
        await connection.exec_driver_sql(f"UPDATE {RESULTS} {past} WHERE task_seq IS NULL")
        await connection.exec_driver_sql(f"UPDATE joblib_result {past} WHERE key LIKE 'draft:%%'")


async def contents(engine: AsyncEngine, directory: Path) -> int:
    """Return how many contents either store keeps, with those that are not complete."""
    in_database = await count(engine, "(SELECT DISTINCT result_n FROM joblib_result_part) AS n")
    return in_database + sum(len(files) for _, _, files in os.walk(directory))
