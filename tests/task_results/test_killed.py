"""What a killed worker or server leaves of an upload, with real processes and a store in a directory."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from databases import killing_on_both
from rest import V1, claim, register, report, submit
from servers import ServerProcess
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncEngine
from waiting import until

from zndraw_joblib.server.db.tables import TaskResult

pytestmark = [pytest.mark.processes, killing_on_both]

SIZE = 8_000_000
# Sends half of an upload, and waits until it is killed.
_HALF = """
import socket, sys, time
host, port, target, token = sys.argv[1:]
lines = [f"PUT {target} HTTP/1.1", "Host: x", f"Authorization: Bearer {token}", "Content-Length: 8000000"]
head = "\\r\\n".join([*lines, "", ""])
link = socket.create_connection((host, int(port)))
link.sendall(head.encode() + bytes(4_000_000))
time.sleep(600)
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return the directory of the store."""
    return tmp_path / "results"


@pytest.fixture
def settings_of_server(database_url: str, directory: Path) -> dict[str, Any]:
    """Return the settings of servers of one store."""
    return {
        "database_url": database_url,
        "task_result_backend": "files",
        "task_result_directory": directory,
        "sweeper_interval_seconds": 0.2,
    }


@pytest.fixture
def server(settings_of_server: dict[str, Any]) -> Iterator[ServerProcess]:
    """Return a server in a process."""
    with ServerProcess(**settings_of_server) as started:
        yield started


def files(directory: Path) -> list[Path]:
    """Return all files of the store that have content."""
    return [path for path in directory.rglob("*") if path.is_file() and path.stat().st_size]


async def held_task(client: httpx.AsyncClient) -> dict[str, Any]:
    """Return a running task."""
    job = await register(client)
    await submit(client, job)
    task = await claim(client, job["worker_id"])
    assert task is not None
    await report(client, task, "running", attempt=1)
    return task


def half_upload(server: ServerProcess, task: dict[str, Any]) -> "subprocess.Popen[bytes]":
    """Start a process that sends half of an upload."""
    host, port = httpx.URL(server.url).host, httpx.URL(server.url).port
    target = f"{V1}/tasks/{task['id']}/result?attempt=1"
    return subprocess.Popen([sys.executable, "-c", _HALF, host, str(port), target, str(server.token)])


async def total(engine: AsyncEngine) -> int:
    """Return the size of all content, as it is counted."""
    async with engine.connect() as connection:
        found = await connection.exec_driver_sql("SELECT size FROM joblib_task_result_total")
        return int(found.scalar_one())


async def expire_uploads(engine: AsyncEngine) -> None:
    """Let the lease of uploads have passed."""
    rows = TaskResult.__table__
    past = datetime.now(UTC) - timedelta(seconds=1)
    async with engine.begin() as connection:
        await connection.execute(update(rows).where(rows.c.task_seq.is_(None)).values(expires_at=past))


async def test_a_worker_killed_during_an_upload(
    server: ServerProcess, directory: Path, engine: AsyncEngine
) -> None:
    """What it sent is deleted at once, and another upload of the attempt succeeds."""
    async with server.client() as client:
        task = await held_task(client)
        sender = half_upload(server, task)
        try:
            await until(lambda: files(directory))
            assert 0 < await total(engine) < SIZE
        finally:
            sender.send_signal(signal.SIGKILL)
            sender.wait(10)
        await until(lambda: not files(directory))

        async def is_free() -> bool:
            return await total(engine) == 0

        await until(is_free)
        url = f"{V1}/tasks/{task['id']}/result"
        assert (await client.put(url, params={"attempt": 1}, content=bytes(SIZE))).status_code == 200
        await report(client, task, "completed", attempt=1)
        assert (await client.get(url)).content == bytes(SIZE)


async def test_a_server_killed_during_an_upload(
    settings_of_server: dict[str, Any], server: ServerProcess, directory: Path, engine: AsyncEngine
) -> None:
    """After the lease, another server deletes what it left; a repeated upload succeeds meanwhile."""
    async with server.client() as client:
        task = await held_task(client)
        sender = half_upload(server, task)
        try:
            await until(lambda: files(directory))
            server.process.kill()
            server.process.wait(10)
        finally:
            sender.kill()
            sender.wait(10)
    assert len(files(directory)) == 1
    with ServerProcess(**settings_of_server) as other:
        async with other.client() as client:
            url = f"{V1}/tasks/{task['id']}/result"
            assert (await client.put(url, params={"attempt": 1}, content=b"again")).status_code == 200
            await expire_uploads(engine)

            async def is_clean() -> bool:
                return len(files(directory)) == 1 and await total(engine) < SIZE

            await until(is_clean)
            await report(client, task, "completed", attempt=1)
            assert (await client.get(url)).content == b"again"
