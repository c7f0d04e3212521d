"""Server processes are killed while the last tasks of a group end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from uuid import uuid4

import httpx
import pytest
from databases import on_postgresql
from rest import V1, register
from servers import ServerProcess

_TASKS, _RUNNERS, _ROUNDS = 40, 4, 4
# Of the ended tasks when a server is killed: while the last ones end, the group is locked by its writers.
_KILL_AT = (_TASKS - 12, _TASKS - 6, _TASKS - 3, _TASKS - 1)
_SECONDS = 120.0


class Pair:
    """Two servers of one database. A request goes to the other one if its own was killed."""

    def __init__(self, database_url: str, stack: AsyncExitStack) -> None:
        self._url, self._stack = database_url, stack
        self.servers: list[ServerProcess] = []
        self.clients: list[httpx.AsyncClient] = []

    async def start(self) -> None:
        """Start one more server, instead of a killed one."""
        server = self._stack.enter_context(ServerProcess(self._url))
        client = await self._stack.enter_async_context(server.client())
        assert (await client.get("/health/live")).status_code == 200
        self.servers.append(server)
        self.clients.append(client)

    async def kill(self, number: int) -> None:
        """Kill a server, and start another one."""
        server = self.servers.pop(number)
        server.process.kill()
        await self.start()
        self.clients.pop(number)

    async def send(self, turn: int, method: str, path: str, **options: Any) -> httpx.Response:
        """Send a request until a server answers it."""
        while True:
            try:
                return await self.clients[turn % 2].request(method, f"{V1}{path}", **options)
            except httpx.HTTPError:
                turn += 1
                await asyncio.sleep(0)


@asynccontextmanager
async def pair_of(database_url: str) -> AsyncIterator[Pair]:
    """Start two servers."""
    async with AsyncExitStack() as stack:
        pair = Pair(database_url, stack)
        for _ in range(2):
            await pair.start()
        yield pair


async def work(pair: Pair, runner: int, worker: str, group: str) -> None:
    """Claim and end tasks one by one until the group has ended."""
    while True:
        body = {"worker_id": worker, "max": 1, "start": True, "claim_id": str(uuid4())}
        claimed = await pair.send(runner, "POST", "/tasks/claim", json=body)
        for task in claimed.json().get("tasks") or []:
            end = {"status": "failed" if runner == 0 else "completed", "attempt": task["attempt"]}
            response = await pair.send(runner, "PATCH", f"/tasks/{task['id']}", json=end)
            # A repeated report whose first answer was lost.
            assert response.status_code in {200, 409}, response.text
        state = (await pair.send(runner, "GET", f"/groups/{group}")).json()
        if state["ended_at"] is not None:
            return


@pytest.mark.slow
@on_postgresql
async def test_a_group_ends_once_although_servers_are_killed(database_url: str) -> None:
    """Its counts are those of its tasks, and the task of its end is submitted once."""
    async with asyncio.timeout(_SECONDS), pair_of(database_url) as pair:
        job = await register(pair.clients[0])
        last = await register(pair.clients[0], "Last")
        for number in range(_ROUNDS):
            item = {"room_id": "lab", "job_name": job["full_name"], "payload": {}}
            made = {"room": "lab", "name": str(number), "on_end": {"job": last["full_name"]}}
            body = {"tasks": [item] * _TASKS, "group": made}
            response = await pair.send(0, "POST", "/tasks/submit", json=body)
            task = (await pair.send(0, "GET", f"/tasks/{response.json()['results'][0]['id']}")).json()
            runners = [
                asyncio.create_task(work(pair, runner, job["worker_id"], task["group"]))
                for runner in range(_RUNNERS)
            ]
            url = f"/groups/{task['group']}"
            while sum(_ended(await pair.send(1, "GET", url))) < _KILL_AT[number]:
                pass
            await pair.kill(number % 2)
            await asyncio.gather(*runners)
            assert sum(_ended(await pair.send(0, "GET", url))) == _TASKS
            query = {"room": "lab", "job": last["full_name"]}
            submitted = (await pair.send(0, "GET", "/tasks", params=query)).json()["items"]
            assert len(submitted) == number + 1


def _ended(response: httpx.Response) -> list[int]:
    counts = response.json()["counts"]
    return [counts[status] for status in ("completed", "failed", "cancelled")]
