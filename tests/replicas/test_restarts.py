"""PostgreSQL and Valkey restart under load: servers, workers and sockets continue, and no task is lost."""

import asyncio
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
import socketio
from databases import migrate, start_postgres
from rest import V1, register
from servers import ServerProcess, Valkey

RECOVERY_SECONDS = 10.0
WORKERS = 4


class Backends:
    """A PostgreSQL and a Valkey server that can be restarted."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="joblib-restarts-"))
        self._start_postgres()
        self._valkey = Valkey()
        self.database_url = f"postgresql://postgres@/live?host={self._folder}"
        self.redis_url = self._valkey.url
        asyncio.run(self._create_database())
        migrate(self.database_url)

    async def _create_database(self) -> None:
        connection = await asyncpg.connect(f"postgresql://postgres@/postgres?host={self._folder}")
        await connection.execute("CREATE DATABASE live")
        await connection.close()

    def _start_postgres(self) -> None:
        self._postgres = start_postgres(self._folder)

    def restart(self, name: str) -> None:
        """Stop one of them at once, and start it again."""
        if name == "postgresql":
            self._postgres.cleanup()
            self._start_postgres()
        else:
            self._valkey.stop()
            self._valkey.start()

    def stop(self) -> None:
        """Stop both."""
        self._postgres.cleanup()
        self._valkey.close()
        shutil.rmtree(self._folder, ignore_errors=True)


@pytest.fixture(scope="module")
def backends() -> Iterator[Backends]:
    """Start both."""
    started = Backends()
    yield started
    started.stop()


@dataclass
class TwoServers:
    """Two servers: the submitter uses the first, the workers and a Socket.IO client use the second."""

    first: httpx.AsyncClient
    second: httpx.AsyncClient
    job: dict[str, Any]
    workers: list[str]
    events: dict[str, list[str]]

    def record(self, task: dict[str, Any]) -> None:
        """Record a status that the Socket.IO client received."""
        self.events.setdefault(task["id"], []).append(task["status"])

    async def submit(self) -> str:
        """Submit until a server accepts the task; return its id."""
        url = f"{V1}/rooms/lab/tasks/{self.job['full_name']}"
        response = await _retry(lambda: self.first.post(url, json={}))
        assert response.status_code == 202, response.text
        return str(response.json()["id"])

    async def work(self, worker_id: str) -> None:
        """Claim, start and complete tasks for ever; retry requests that fail."""
        while True:
            claimed = await self._request("POST", "/tasks/claim", {"worker_id": worker_id}, wait=20)
            if (task := claimed["task"]) is not None:
                for status in ("running", "completed"):
                    body = {"status": status, "worker_id": worker_id, "attempt": task["attempt"]}
                    await self._request("PATCH", f"/tasks/{task['id']}", body)

    async def _request(self, method: str, path: str, body: dict[str, Any], wait: int = 0) -> Any:
        headers = {"Prefer": f"wait={wait}"} if wait else {}
        response = await _retry(lambda: self.second.request(method, V1 + path, json=body, headers=headers))
        assert response.status_code == 200, response.text
        return response.json()

    async def completed(self, task_id: str) -> dict[str, Any]:
        """Wait at the first server until a task is completed; return it."""
        url, headers = f"{V1}/tasks/{task_id}", {"Prefer": "wait=20"}
        while True:
            response = await _retry(lambda: self.first.get(url, headers=headers))
            assert response.status_code == 200, response.text
            if (task := response.json())["status"] == "completed":
                return dict(task)

    async def until_events_arrive(self) -> None:
        """Return when the Socket.IO client has received all statuses of a new task, in order."""
        while True:
            task_id = await self.submit()
            await self.completed(task_id)
            await asyncio.sleep(0.1)
            if self.events.get(task_id) == ["pending", "claimed", "running", "completed"]:
                return


async def _retry(request: Callable[[], Awaitable[httpx.Response]]) -> httpx.Response:
    """Return the first response that is not 503."""
    while True:
        try:
            response = await request()
        except httpx.TransportError:
            continue
        if response.status_code != 503:
            return response
        await asyncio.sleep(0.05)


@asynccontextmanager
async def two_servers(backends: Backends, pubsub: str) -> AsyncIterator[TwoServers]:
    """Run two servers with pub/sub over Valkey or PostgreSQL, and workers and a Socket.IO client."""
    settings = {"redis_url": backends.redis_url} if pubsub == "valkey" else {}
    async with AsyncExitStack() as stack:
        processes = [stack.enter_context(ServerProcess(backends.database_url, **settings)) for _ in range(2)]
        first, second = [await stack.enter_async_context(process.client()) for process in processes]
        job = await register(second)
        workers = [job["worker_id"]] + [(await register(second))["worker_id"] for _ in range(WORKERS - 1)]
        servers = TwoServers(first, second, job, workers, {})
        client = socketio.AsyncClient()
        client.on("task_status_event", servers.record)
        token = {"token": processes[1].token}
        await client.connect(processes[1].url, auth=token, transports=["websocket"], wait_timeout=60)
        stack.push_async_callback(client.disconnect)
        assert await client.call("join_room", {"room_id": "lab"}) == {}
        working = [asyncio.create_task(servers.work(worker)) for worker in workers]
        yield servers
        for task in working:
            task.cancel()
        await asyncio.wait(working)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pubsub", "restarted"), [("postgresql", "postgresql"), ("valkey", "postgresql"), ("valkey", "valkey")]
)
async def test_a_restart_under_load(backends: Backends, pubsub: str, restarted: str) -> None:
    """No accepted task is lost or executed twice; submits, execution and events work again soon.

    If the response of a committed claim is lost, its task stays claimed until its worker is removed.
    """
    async with two_servers(backends, pubsub) as servers:
        ids = [await servers.submit() for _ in range(20)]
        stop = asyncio.Event()

        async def submit_tasks() -> None:
            while not stop.is_set():
                ids.append(await servers.submit())

        submitting = asyncio.create_task(submit_tasks())
        await asyncio.to_thread(backends.restart, restarted)
        restarted_at = time.monotonic()
        stop.set()
        await submitting
        last = await servers.submit()
        async with asyncio.timeout(RECOVERY_SECONDS):
            assert (await servers.completed(last))["attempt"] == 1
            await servers.until_events_arrive()
        seconds = time.monotonic() - restarted_at
        print(f"Restarted {restarted}, pub/sub over {pubsub}: recovered after {seconds:.2f} s")
        for worker in servers.workers:
            await servers.second.delete(f"{V1}/workers/{worker}")
        tasks = [(await servers.first.get(f"{V1}/tasks/{task_id}")).json() for task_id in ids]
        held = [task for task in tasks if task["error"] == "Worker disconnected"]
        assert {task["status"] for task in tasks if task not in held} == {"completed"}
        assert len(held) <= WORKERS
        assert {task["attempt"] for task in tasks} == {1}
