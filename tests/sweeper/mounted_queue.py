"""A `JobLib` mounted in this process: its clients' requests, its sweeper, and the events it emits."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
from fastapi import FastAPI
from pydantic import BaseModel
from replica import ManualClock
from rest import V1
from sqlalchemy import Executable, text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from zndraw_joblib import JobLib, TaskStatusEvent
from zndraw_joblib.server.background.sweeper import PASS_SECONDS, Cycle, Sweeper


class User:
    """The only user of these tests, a superuser."""

    id = "ada"
    is_superuser = True


async def identify() -> User:
    """Return the user, for any request."""
    return User()


class MonotonicClock:
    """A replacement for `time.monotonic` that a test advances."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Advance the time."""
        self.now += seconds


class EventRecorder:
    """A host's typed wrapper around its Socket.IO server that records the emitted models."""

    def __init__(self) -> None:
        self.emitted: list[tuple[BaseModel, str]] = []

    async def emit(self, model: BaseModel, *, room: str) -> None:
        """Record a model and its room."""
        self.emitted.append((model, room))

    def statuses(self, task: Mapping[str, Any]) -> list[str]:
        """Return the emitted statuses of one task, in order."""
        events = [event for event, _ in self.emitted if isinstance(event, TaskStatusEvent)]
        return [event.status for event in events if str(event.id) == task["id"]]


class Broker:
    """The broker of an internal job."""

    async def kiq(self, **arguments: Any) -> None:
        """Accept a task."""


@dataclass
class MountedQueue:
    """A queue in this process. The test moves `clock` and `monotonic`, and runs each cycle of the sweeper."""

    client: httpx.AsyncClient
    joblib: JobLib
    sessions: async_sessionmaker[AsyncSession]
    clock: ManualClock
    monotonic: MonotonicClock
    events: EventRecorder
    app: FastAPI

    async def request(self, method: str, url: str, **options: Any) -> Any:
        """Send a request and return the body of the successful response."""
        response = await self.client.request(method, f"{V1}{url}", **options)
        assert response.is_success, response.text
        return response.json() if response.content else None

    async def register(
        self, name: str = "Rotate", room: str = "@global", worker_id: str | None = None, **policy: Any
    ) -> dict[str, Any]:
        """Register a job without a start timeout."""
        body = {
            "category": "modifiers",
            "name": name,
            "worker_id": worker_id,
            "start_timeout_seconds": 0,
            **policy,
        }
        job: dict[str, Any] = await self.request("PUT", f"/rooms/{room}/jobs", json=body)
        return job

    async def submit(self, job: Mapping[str, Any], room: str = "lab", **options: Any) -> dict[str, Any]:
        """Submit a task."""
        url = f"/rooms/{room}/tasks/{job['full_name']}"
        task: dict[str, Any] = await self.request("POST", url, json=options)
        return task

    async def claim(self, worker_id: str) -> dict[str, Any]:
        """Claim a task."""
        response = await self.request("POST", "/tasks/claim", json={"worker_id": worker_id})
        task: dict[str, Any] = response["task"]
        return task

    async def submit_and_claim(
        self, job: Mapping[str, Any], worker_id: str | None = None, *, running: bool = False
    ) -> dict[str, Any]:
        """Submit a task and claim it, by default with the job's worker; with `running`, also start it."""
        await self.submit(job)
        task = await self.claim(worker_id or job["worker_id"])
        return await self.report(task, "running") if running else task

    async def report(self, task: Mapping[str, Any], status: str) -> dict[str, Any]:
        """Report a status of a task."""
        updated: dict[str, Any] = await self.request("PATCH", f"/tasks/{task['id']}", json={"status": status})
        return updated

    async def heartbeat(self, worker_id: str) -> httpx.Response:
        """Send a heartbeat and return the response, whatever its status."""
        return await self.client.patch(f"{V1}/workers/{worker_id}")

    async def get_task(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """Return the current state of a task."""
        current: dict[str, Any] = await self.request("GET", f"/tasks/{task['id']}")
        return current

    async def worker_ids(self) -> set[str]:
        """Return the ids of all workers."""
        return {worker["id"] for worker in (await self.request("GET", "/workers?limit=500"))["items"]}

    async def is_active(self, job: Mapping[str, Any]) -> bool:
        """Return whether a job is not deleted."""
        response = await self.client.get(f"{V1}/rooms/lab/jobs/{job['full_name']}")
        return response.status_code == 200

    def restart_sweeper(self, pass_seconds: float = PASS_SECONDS) -> None:
        """Replace the sweeper with a new one, on the queue's monotonic clock."""
        self.joblib.sweeper = Sweeper(
            self.joblib.runtime.write,
            self.joblib.settings,
            monotonic=self.monotonic,
            pass_seconds=pass_seconds,
        )

    def end_startup_grace(self) -> None:
        """Advance the sweeper's own clock until it may expire workers."""
        self.monotonic.advance(self.joblib.settings.worker_timeout_seconds)
        self._stay_present()

    def _stay_present(self) -> None:
        """Let the next cycle follow as if the server had observed the clocks all the time."""
        self.joblib.sweeper.absence.forget()

    def run_for(self, seconds: float) -> None:
        """Advance all clocks."""
        self.clock.advance(seconds)
        self.monotonic.advance(seconds)

    async def sweep(self) -> Cycle:
        """Run one cycle of the sweeper."""
        return await self.joblib.sweeper.cycle()

    async def pass_time(self, seconds: float = 3600, *, alive: Iterable[str] = ()) -> None:
        """Advance the database's clock, then send heartbeats of the workers in `alive`."""
        self.clock.advance(seconds)
        self._stay_present()
        for worker_id in alive:
            assert (await self.heartbeat(worker_id)).is_success

    async def execute(self, *statements: str | Executable, **parameters: Any) -> None:
        """Execute statements directly in the database."""
        async with self.sessions() as session:
            for statement in statements:
                sql = text(statement) if isinstance(statement, str) else statement
                await (await session.connection()).execute(sql, parameters)
            await session.commit()

    @property
    def is_sqlite(self) -> bool:
        """Whether the database is SQLite."""
        bind = self.sessions.kw["bind"]
        return bool(bind.dialect.name == "sqlite")
