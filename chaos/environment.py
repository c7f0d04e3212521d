"""The environment of a run: database, server, proxy and workers; it collects the record of the run."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from chaos.database import Database, wrong_counts
from chaos.jobs import GLOBAL, ORDERED, ROOMS, Job
from chaos.proxy import Proxy
from chaos.records import Fault, RunRecord, Submission, read_worker_logs
from chaos.server import COMMAND, TOKEN, Server
from chaos.worker_pool import WorkerPool
from zndraw_joblib.wire.history import TaskHistory
from zndraw_joblib.wire.messages import JobResponse, PaginatedResponse, TaskResponse
from zndraw_joblib.wire.operations import PREFIX
from zndraw_joblib.wire.policy import JobPolicy

DEFAULTS: dict[str, Any] = {"worker_timeout_seconds": 3.0, "sweeper_interval_seconds": 0.5}
_PAGE_SIZE = 500
_CONCURRENT_REQUESTS = 8
_WAIT_SECONDS = 20
_REGISTRATION_SECONDS = 20
_POLL_SECONDS = 0.02


@dataclass
class Environment:
    """A running server and its surroundings. `client` uses the proxy, `direct` does not."""

    database: Database
    server: Server
    proxy: Proxy
    workers: WorkerPool
    client: httpx.AsyncClient
    direct: httpx.AsyncClient
    log_folder: Path
    settings: dict[str, Any]
    faults: list[Fault] = field(default_factory=list)
    policies: dict[str, JobPolicy] = field(default_factory=dict)

    async def wait_for_jobs(self, jobs: Sequence[Job]) -> None:
        """Wait until workers have registered the jobs. Record the policies that the server stored."""
        async with asyncio.timeout(_REGISTRATION_SECONDS):
            for job in jobs:
                while (stored := await self._get_job(job)) is None:  # noqa: ASYNC110
                    await asyncio.sleep(_POLL_SECONDS)
                self.policies[job.name] = JobPolicy.model_validate(stored.model_dump())
                expected = JobPolicy.model_validate(job.policy)
                assert self.policies[job.name] == expected, f"The server stored {job.name} as {stored}"

    async def _get_job(self, job: Job) -> JobResponse | None:
        room = ROOMS[0] if job.room == GLOBAL else job.room
        response = await self.direct.get(f"{PREFIX}/rooms/{room}/jobs/{job.name}")
        return JobResponse.model_validate(response.json()) if response.is_success else None

    async def wait_until_ended(self, submissions: Sequence[Submission], seconds: float) -> bool:
        """Wait at most `seconds` until all accepted tasks have ended. Return whether they have."""
        ids = [submission.task_id for submission in submissions if submission.task_id is not None]
        try:
            async with asyncio.timeout(seconds):
                await self._for_each(ids, self._wait_for_end)
        except TimeoutError:
            return False
        return True

    async def _wait_for_end(self, task_id: str) -> None:
        headers = {"Prefer": f"wait={_WAIT_SECONDS}"}
        has_ended = False
        while not has_ended:
            response = await self.direct.get(f"{PREFIX}/tasks/{task_id}", headers=headers)
            response.raise_for_status()
            has_ended = TaskResponse.model_validate_json(response.content).completed_at is not None

    async def collect(self, submissions: list[Submission]) -> RunRecord:
        """Return the record: the tasks and histories of the server, the logs of the workers."""
        tasks = [task for room in ROOMS for task in await self._list_tasks(room)]
        executions, requests = read_worker_logs(self.log_folder)
        histories = await self._get_histories([str(task.id) for task in tasks])
        return RunRecord(
            submissions=submissions,
            tasks=tasks,
            executions=executions,
            requests=requests,
            faults=self.faults,
            histories=histories,
            policies=self.policies,
            ordered_jobs=frozenset({ORDERED.name}),
            deadlocks=self.database.deadlocks(),
            wrong_counts=await wrong_counts(self.database.url),
            worker_timeout_seconds=self.settings["worker_timeout_seconds"],
            sweeper_interval_seconds=self.settings["sweeper_interval_seconds"],
        )

    async def _list_tasks(self, room: str) -> list[TaskResponse]:
        tasks: list[TaskResponse] = []
        while True:
            query = {"limit": _PAGE_SIZE, "offset": len(tasks)}
            response = await self.direct.get(f"{PREFIX}/rooms/{room}/tasks", params=query)
            response.raise_for_status()
            page = PaginatedResponse[TaskResponse].model_validate_json(response.content)
            tasks += page.items
            # The total is a kept count, which may be wrong.
            if len(page.items) < _PAGE_SIZE:
                return tasks

    async def _get_histories(self, ids: Sequence[str]) -> dict[str, TaskHistory]:
        histories: dict[str, TaskHistory] = {}

        async def get(task_id: str) -> None:
            response = await self.direct.get(f"{PREFIX}/tasks/{task_id}/history")
            response.raise_for_status()
            histories[task_id] = TaskHistory.model_validate_json(response.content)

        await self._for_each(ids, get)
        return histories

    @staticmethod
    async def _for_each(ids: Sequence[str], function: Callable[[str], Awaitable[None]]) -> None:
        waiting = list(ids)

        async def work() -> None:
            while waiting:
                await function(waiting.pop())

        async with asyncio.TaskGroup() as group:
            for _ in range(_CONCURRENT_REQUESTS):
                group.create_task(work())


@asynccontextmanager
async def open_environment(
    database: Database, folder: Path, command: Sequence[str] = COMMAND, **settings: Any
) -> AsyncIterator[Environment]:
    """Start a server behind a proxy. The caller starts the workers."""
    settings = {**DEFAULTS, **settings}
    server = Server(database.url, folder / "server.log", command, **settings)
    await server.start()
    try:
        async with connect(database, server, folder / "workers", settings) as environment:
            yield environment
    finally:
        await server.stop()


@asynccontextmanager
async def connect(
    database: Database, server: Server, log_folder: Path, settings: dict[str, Any]
) -> AsyncIterator[Environment]:
    """Put a proxy, clients and workers in front of a running server. The caller starts the workers."""
    log_folder.mkdir(parents=True)  # noqa: ASYNC240
    async with AsyncExitStack() as stack:
        proxy = Proxy(server.port)
        await proxy.start()
        stack.push_async_callback(proxy.stop)
        workers = WorkerPool(proxy.url, log_folder)
        stack.push_async_callback(asyncio.to_thread, workers.stop)
        headers = {"Authorization": f"Bearer {TOKEN}"}
        client, direct = [
            await stack.enter_async_context(httpx.AsyncClient(base_url=url, headers=headers, timeout=30))
            for url in (proxy.url, server.url)
        ]
        yield Environment(database, server, proxy, workers, client, direct, log_folder, settings)
