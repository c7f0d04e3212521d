"""What the tests of hosts say over and over."""

from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

V1 = "/v1/joblib"
Client = Awaitable[httpx.AsyncClient]
Start = Callable[..., Client]
# For what is decided before any database is asked.
ON_SQLITE = pytest.mark.parametrize("kind", ["sqlite"])
ROTATE = {"category": "modifiers", "name": "Rotate"}


async def register(client: httpx.AsyncClient, room: str = "lab", **fields: Any) -> dict[str, Any]:
    """Register a job and return it."""
    answer = await client.put(f"{V1}/rooms/{room}/jobs", json={**ROTATE, **fields})
    assert answer.status_code in {200, 201}, answer.text
    return answer.json()


async def submit(client: httpx.AsyncClient, job: dict[str, Any], room: str = "lab") -> dict[str, Any]:
    """Submit a task and return it."""
    answer = await client.post(f"{V1}/rooms/{room}/tasks/{job['full_name']}", json={"payload": {"x": 1}})
    assert answer.status_code == 202, answer.text
    return answer.json()


async def claim(client: httpx.AsyncClient, worker_id: str, wait: int = 0) -> dict[str, Any] | None:
    """Claim a task and return it."""
    headers = {"Prefer": f"wait={wait}"}
    answer = await client.post(f"{V1}/tasks/claim", json={"worker_id": worker_id}, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()["task"]


async def report(
    client: httpx.AsyncClient, task: dict[str, Any], status: str, **fields: Any
) -> httpx.Response:
    """Report on a task and return the answer, whatever it is."""
    return await client.patch(f"{V1}/tasks/{task['id']}", json={"status": status, **fields})


async def walk(client: httpx.AsyncClient, room: str = "lab") -> dict[str, Any]:
    """Let a task go its whole way; return it as it ends."""
    job = await register(client, room)
    task = await submit(client, job, room)
    claimed = await claim(client, job["worker_id"])
    assert claimed is not None
    assert claimed["id"] == task["id"]
    for status in ("running", "completed"):
        answer = await report(client, task, status, attempt=claimed["attempt"], result=[1])
        assert answer.status_code == 200, answer.text
    ended = (await client.get(f"{V1}/tasks/{task['id']}")).json()
    assert (ended["status"], ended["result"]) == ("completed", [1])
    return ended
