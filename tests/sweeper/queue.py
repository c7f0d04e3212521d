"""The queue in short words: what its clients do, what its sweeper does, and what it tells."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
from pydantic import BaseModel
from sqlalchemy import Executable, text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from zndraw_joblib import JobLib, TaskStatusEvent
from zndraw_joblib.server.background.sweeper import Cycle, Sweeper

V1 = "/v1/joblib"


class Person:
    """The one user of these tests, who may do everything."""

    id = "ada"
    is_superuser = True


async def somebody() -> Person:
    """Believe everybody."""
    return Person()


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = datetime(2030, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        """Return the time."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Move on."""
        self.now += timedelta(seconds=seconds)


class Wall:
    """The clock on the wall of the sweeper's room, by which it knows how long it has watched."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        """Return the time, as the module `time` does."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Move on."""
        self.now += seconds


class Wrapper:
    """A host's typed wrapper around its Socket.IO server; it writes down what it is given."""

    def __init__(self) -> None:
        self.sent: list[tuple[BaseModel, str]] = []

    async def emit(self, model: BaseModel, *, room: str) -> None:
        """Send a model to a room."""
        self.sent.append((model, room))

    def statuses(self, task: Mapping[str, Any]) -> list[str]:
        """Return what was told of one task, in order."""
        events = [event for event, _ in self.sent if isinstance(event, TaskStatusEvent)]
        return [event.status for event in events if str(event.id) == task["id"]]


class Broker:
    """An executor's queue."""

    async def kiq(self, **call: Any) -> None:
        """Take one call."""


@dataclass
class Queue:
    """A queue in this process."""

    client: httpx.AsyncClient
    joblib: JobLib
    sessions: async_sessionmaker[AsyncSession]
    clock: Clock
    told: Wrapper
    wall: Wall

    async def ask(self, method: str, url: str, **options: Any) -> Any:
        """Ask over HTTP and return the body of a success."""
        answer = await self.client.request(method, f"{V1}{url}", **options)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    async def register(
        self, name: str = "Rotate", room: str = "@global", worker_id: str | None = None, **policy: Any
    ) -> dict[str, Any]:
        """Register a job, of which a task may be claimed for ever without being started."""
        body = {
            "category": "modifiers",
            "name": name,
            "worker_id": worker_id,
            "start_timeout_seconds": 0,
            **policy,
        }
        found: dict[str, Any] = await self.ask("PUT", f"/rooms/{room}/jobs", json=body)
        return found

    async def submit(self, job: Mapping[str, Any], room: str = "lab", **wish: Any) -> dict[str, Any]:
        """Submit a task."""
        url = f"/rooms/{room}/tasks/{job['full_name']}"
        found: dict[str, Any] = await self.ask("POST", url, json=wish)
        return found

    async def claim(self, worker_id: str) -> dict[str, Any]:
        """Claim a task."""
        found: dict[str, Any] = (await self.ask("POST", "/tasks/claim", json={"worker_id": worker_id}))[
            "task"
        ]
        return found

    async def hold(
        self, job: Mapping[str, Any], worker_id: str | None = None, *, running: bool = False
    ) -> dict[str, Any]:
        """Let a worker hold a new task of a job, its own worker unless told another."""
        await self.submit(job)
        task = await self.claim(worker_id or job["worker_id"])
        return await self.report(task, "running") if running else task

    async def report(self, task: Mapping[str, Any], status: str) -> dict[str, Any]:
        """Report on a task."""
        found: dict[str, Any] = await self.ask("PATCH", f"/tasks/{task['id']}", json={"status": status})
        return found

    async def beat(self, worker_id: str) -> httpx.Response:
        """Show that a worker lives."""
        return await self.client.patch(f"{V1}/workers/{worker_id}")

    async def read(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """Return a task as it stands."""
        found: dict[str, Any] = await self.ask("GET", f"/tasks/{task['id']}")
        return found

    async def workers(self) -> set[str]:
        """Return who is there."""
        return {worker["id"] for worker in (await self.ask("GET", "/workers?limit=500"))["items"]}

    async def is_shown(self, job: Mapping[str, Any]) -> bool:
        """Tell whether a job is active."""
        answer = await self.client.get(f"{V1}/rooms/lab/jobs/{job['full_name']}")
        return answer.status_code == 200

    def restart(self) -> None:
        """Start the sweeper anew."""
        self.joblib.sweeper = Sweeper(self.joblib.runtime.write, self.joblib.settings)

    def watch(self) -> None:
        """Let the sweeper watch for as long as it must before it judges."""
        self.wall.advance(self.joblib.settings.worker_timeout_seconds)

    async def sweep(self) -> Cycle:
        """Sweep once."""
        return await self.joblib.sweeper.cycle()

    async def silence(self, seconds: float = 3600, *, spare: Iterable[str] = ()) -> None:
        """Let time pass in which nobody reports but those to spare."""
        self.clock.advance(seconds)
        for worker_id in spare:
            assert (await self.beat(worker_id)).is_success

    async def execute(self, *statements: str | Executable, **parameters: Any) -> None:
        """Change the database behind the queue's back."""
        async with self.sessions() as session:
            for statement in statements:
                sql = text(statement) if isinstance(statement, str) else statement
                await (await session.connection()).execute(sql, parameters)
            await session.commit()

    @property
    def is_sqlite(self) -> bool:
        """Tell which database it is."""
        bind = self.sessions.kw["bind"]
        return bool(bind.dialect.name == "sqlite")
