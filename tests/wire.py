"""What the tests say to the server over and over, and what they expect of every answer."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

V1 = "/v1/joblib"
# The answer to a claim where nothing waits.
NOTHING = {"task": None, "reason": "empty"}
As = Callable[..., Awaitable[httpx.AsyncClient]]
# For what is decided before any database is asked.
ON_SQLITE = pytest.mark.parametrize("kind", ["sqlite"])
UNKNOWN_ID = "00000000-0000-4000-8000-000000000000"


async def register(
    client: httpx.AsyncClient, name: str = "Rotate", room: str = "@global", **fields: Any
) -> dict[str, Any]:
    """Register a job and return it."""
    body = {"category": "modifiers", "name": name, **fields}
    answer = await client.put(f"{V1}/rooms/{room}/jobs", json=body)
    assert answer.status_code in {200, 201}, answer.text
    return answer.json()


async def submit(
    client: httpx.AsyncClient, job: dict[str, Any], room: str = "lab", **payload: Any
) -> dict[str, Any]:
    """Submit a task and return it."""
    url = f"{V1}/rooms/{room}/tasks/{job['full_name']}"
    answer = await client.post(url, json={"payload": payload})
    assert answer.status_code == 202, answer.text
    return answer.json()


async def claim(
    client: httpx.AsyncClient, worker_id: str, wait: float | None = None
) -> dict[str, Any] | None:
    """Claim a task and return it, None where there was none."""
    headers = {} if wait is None else {"Prefer": f"wait={wait}"}
    answer = await client.post(f"{V1}/tasks/claim", json={"worker_id": worker_id}, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()["task"]


async def report(
    client: httpx.AsyncClient, task: dict[str, Any], status: str, **fields: Any
) -> httpx.Response:
    """Report on a task and return the answer, whatever it is."""
    return await client.patch(f"{V1}/tasks/{task['id']}", json={"status": status, **fields})


async def read(client: httpx.AsyncClient, task: dict[str, Any]) -> dict[str, Any]:
    """Return a task as it stands."""
    answer = await client.get(f"{V1}/tasks/{task['id']}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def problem(answer: httpx.Response, status: int, kind: str) -> dict[str, Any]:
    """Expect a problem of this kind, in the one shape that all have; return its body."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert body["type"] == f"/v1/problems/{kind}"
    assert body["status"] == status
    assert body["title"]
    assert None not in body.values()
    return body


def utc(text: str) -> datetime:
    """Expect a time in UTC that says so."""
    assert text.endswith("Z"), text
    found = datetime.fromisoformat(text)
    assert found.utcoffset() == UTC.utcoffset(None)
    return found
