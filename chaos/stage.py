"""All that takes part in a run: database, server, proxy, workers; and the evidence that is left of them."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from chaos import journal
from chaos.database import Database
from chaos.evidence import Evidence, Fault, Submission
from chaos.jobs import GLOBAL, LINE, ROOMS, Job
from chaos.pool import Pool
from chaos.proxy import Proxy
from chaos.server import COMMAND, TOKEN, Server
from zndraw_joblib.contract.messages import JobResponse, PaginatedResponse, TaskHistory, TaskResponse
from zndraw_joblib.contract.policy import JobPolicy
from zndraw_joblib.worker.api import API_PREFIX

WORKER_TIMEOUT_SECONDS = 3.0
SWEEPER_INTERVAL_SECONDS = 0.5
_PAGE = 500
_READERS = 8
_WAIT_SECONDS = 20
_READY_SECONDS = 20
_LOOK_SECONDS = 0.02


@dataclass
class Stage:
    """A running server and what is around it. `client` goes through the proxy, `direct` does not."""

    database: Database
    server: Server
    proxy: Proxy
    pool: Pool
    client: httpx.AsyncClient
    direct: httpx.AsyncClient
    folder: Path
    settings: dict[str, Any]
    faults: list[Fault] = field(default_factory=list)
    policies: dict[str, JobPolicy] = field(default_factory=dict)

    async def ready(self, jobs: Sequence[Job]) -> None:
        """Wait until workers serve the jobs; note the policies that the server keeps."""
        async with asyncio.timeout(_READY_SECONDS):
            for job in jobs:
                kept = await self._job(job)
                while kept is None:
                    await asyncio.sleep(_LOOK_SECONDS)
                    kept = await self._job(job)
                self.policies[job.name] = JobPolicy.model_validate(kept.model_dump())
                wanted = JobPolicy.model_validate(job.policy)
                assert self.policies[job.name] == wanted, f"{job.name} is kept as {kept}"

    async def _job(self, job: Job) -> JobResponse | None:
        room = ROOMS[0] if job.room == GLOBAL else job.room
        answer = await self.direct.get(f"{API_PREFIX}/rooms/{room}/jobs/{job.name}")
        return JobResponse.model_validate(answer.json()) if answer.is_success else None

    async def all_end(self, submissions: Sequence[Submission], seconds: float) -> bool:
        """Wait until every accepted task has ended, `seconds` at most; tell whether it came to that."""
        ids = [submission.task for submission in submissions if submission.task is not None]
        try:
            async with asyncio.timeout(seconds):
                await self._each(ids, self._ends)
        except TimeoutError:
            return False
        return True

    async def _ends(self, task_id: str) -> None:
        while not (await self._read(task_id, wait=_WAIT_SECONDS)).completed_at:
            pass

    async def _read(self, task_id: str, wait: int = 0) -> TaskResponse:
        headers = {"Prefer": f"wait={wait}"} if wait else {}
        answer = await self.direct.get(f"{API_PREFIX}/tasks/{task_id}", headers=headers)
        answer.raise_for_status()
        return TaskResponse.model_validate_json(answer.content)

    async def evidence(self, submissions: list[Submission]) -> Evidence:
        """Return what is left: the server's tasks and their histories, the workers' journals."""
        tasks = [task for room in ROOMS for task in await self._tasks(room)]
        effects, calls = journal.read(self.folder)
        histories = await self._histories([str(task.id) for task in tasks])
        return Evidence(
            submissions=submissions,
            tasks=tasks,
            effects=effects,
            calls=calls,
            faults=self.faults,
            histories=histories,
            policies=self.policies,
            lines=frozenset({LINE.name}),
            deadlocks=self.database.deadlocks(),
            worker_timeout_seconds=self.settings["worker_timeout_seconds"],
            sweeper_interval_seconds=self.settings["sweeper_interval_seconds"],
        )

    async def _tasks(self, room: str) -> list[TaskResponse]:
        found: list[TaskResponse] = []
        while True:
            query = {"limit": _PAGE, "offset": len(found)}
            answer = await self.direct.get(f"{API_PREFIX}/rooms/{room}/tasks", params=query)
            answer.raise_for_status()
            page = PaginatedResponse[TaskResponse].model_validate_json(answer.content)
            found += page.items
            if len(found) >= page.total:
                return found

    async def _histories(self, ids: Sequence[str]) -> dict[str, TaskHistory]:
        found: dict[str, TaskHistory] = {}

        async def read(task_id: str) -> None:
            answer = await self.direct.get(f"{API_PREFIX}/tasks/{task_id}/history")
            if answer.status_code == 200:
                found[task_id] = TaskHistory.model_validate_json(answer.content)

        await self._each(ids, read)
        return found

    @staticmethod
    async def _each(ids: Sequence[str], do: Any) -> None:
        waiting = list(ids)

        async def go() -> None:
            while waiting:
                await do(waiting.pop())

        async with asyncio.TaskGroup() as group:
            for _ in range(_READERS):
                group.create_task(go())


@asynccontextmanager
async def stage(
    database: Database, folder: Path, command: Sequence[str] = COMMAND, **settings: Any
) -> AsyncIterator[Stage]:
    """Run a server with a proxy before it; workers are for the caller to start."""
    settings = {
        "worker_timeout_seconds": WORKER_TIMEOUT_SECONDS,
        "sweeper_interval_seconds": SWEEPER_INTERVAL_SECONDS,
        **settings,
    }
    journals = folder / "journals"
    journals.mkdir()
    async with AsyncExitStack() as stack:
        server = Server(database.url, folder / "server.log", command, **settings)
        await server.start()
        stack.push_async_callback(server.stop)
        proxy = Proxy(server.port)
        await proxy.start()
        stack.push_async_callback(proxy.stop)
        pool = Pool(proxy.url, journals)
        stack.push_async_callback(asyncio.to_thread, pool.stop)
        headers = {"Authorization": f"Bearer {TOKEN}"}
        client, direct = [
            await stack.enter_async_context(httpx.AsyncClient(base_url=url, headers=headers, timeout=30))
            for url in (proxy.url, server.url)
        ]
        yield Stage(database, server, proxy, pool, client, direct, journals, settings)
