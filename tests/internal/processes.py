"""Processes that run internal tasks, and the journal of their jobs."""

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
from fastapi import FastAPI
from rest import V1

TOKEN = "a-token-of-the-tests"
FOLDER = Path(__file__).parents[1]
# The jobs of the tests, and this checkout.
PYTHONPATH = os.pathsep.join([str(FOLDER), str(FOLDER.parent / "src")])
JOBS = ",".join(
    f"internal.jobs:{name}"
    for name in ("Count", "Burn", "Once", "WaitForCancel", "AwaitCancel", "EndAs", "AnyEnd")
)
SHORT_INTERVALS = {"worker_timeout_seconds": 2, "sweeper_interval_seconds": 0.5}
COUNT, ONCE = "@internal:analysis:Count", "@internal:analysis:Once"
BURN, ANY_END = "@internal:analysis:Burn", "@internal:analysis:AnyEnd"
AWAIT_CANCEL = "@internal:modifiers:AwaitCancel"
WAIT_FOR_CANCEL, END_AS = "@internal:modifiers:WaitForCancel", "@internal:selections:EndAs"
INTERNAL_WORKER = [sys.executable, "-m", "zndraw_joblib", "internal-worker", "--log-level", "warning"]
TASKIQ_WORKER = [
    sys.executable,
    *("-m", "taskiq", "worker", "--workers", "1", "--log-level", "WARNING"),
    "zndraw_joblib.server.internal.process:broker",
]


class WorkerProcess:
    """A process that runs internal tasks inside the `with` block; settings come as keywords."""

    def __init__(self, command: list[str], **settings: object) -> None:
        given = {"internal_extensions": JOBS, **SHORT_INTERVALS, **settings}
        environment = {f"ZNDRAW_JOBLIB_{name.upper()}": str(value) for name, value in given.items()}
        self.process = subprocess.Popen(
            command,
            cwd=FOLDER,
            env={**os.environ, **environment, "PYTHONPATH": PYTHONPATH},
            start_new_session=True,
        )

    def kill(self) -> None:
        """Kill the process and its children, as the kernel does when memory runs out."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(60)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.kill()


def journal_entries(journal: Path, event: str) -> Counter[tuple[str, ...]]:
    """Return the task, the attempt and the process of each line of an event."""
    text = journal.read_text() if journal.exists() else ""
    lines = [line.split() for line in text.splitlines()]
    return Counter(tuple(rest) for first, *rest in lines if first == event)


@asynccontextmanager
async def running(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """Run the lifespan of a standalone app in this process; return a superuser's client."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://test", headers=headers
        ) as client,
    ):
        yield client


async def submit(client: httpx.AsyncClient, job: str, **payload: Any) -> dict[str, Any]:
    """Submit a task of an internal job."""
    response = await client.post(f"{V1}/rooms/lab/tasks/{job}", json={"payload": payload})
    assert response.status_code == 202, response.text
    task: dict[str, Any] = response.json()
    return task


async def wait_for_end(
    client: httpx.AsyncClient, task: dict[str, Any], seconds: float = 120
) -> dict[str, Any]:
    """Wait until a task ends; return it."""
    async with asyncio.timeout(seconds):
        while True:
            response = await client.get(f"{V1}/tasks/{task['id']}", headers={"Prefer": "wait=20"})
            if response.status_code == 200 and response.json()["completed_at"]:
                found: dict[str, Any] = response.json()
                return found


async def count(client: httpx.AsyncClient, status: str) -> int:
    """Return the number of tasks with a status in the room."""
    response = await client.get(f"{V1}/rooms/lab/tasks", params={"status": status, "limit": 0})
    found: int = response.json()["total"]
    return found
