"""REST requests that many tests send, and checks of their responses."""

import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import cache
from typing import Any

import httpx
from fastapi import FastAPI
from generate import openapi

from zndraw_joblib.server.admin import sql_operators
from zndraw_joblib.server.queue.rules_tokens import digest

PROBLEM = "application/problem+json"
V1 = "/v1/joblib"
# The response to a claim while no task is pending.
NO_TASK = {"task": None, "reason": "empty"}
AsUser = Callable[..., Awaitable[httpx.AsyncClient]]
ROTATE = {"category": "modifiers", "name": "Rotate"}
UNKNOWN_ID = "00000000-0000-4000-8000-000000000000"


async def register(
    client: httpx.AsyncClient, name: str = "Rotate", room: str = "@global", **fields: Any
) -> dict[str, Any]:
    """Register a job and return it."""
    body = {"category": "modifiers", "name": name, **fields}
    response = await client.put(f"{V1}/rooms/{room}/jobs", json=body)
    assert response.status_code in {200, 201}, response.text
    return response.json()


async def submit(
    client: httpx.AsyncClient, job: dict[str, Any], room: str = "lab", **payload: Any
) -> dict[str, Any]:
    """Submit a task and return it."""
    url = f"{V1}/rooms/{room}/tasks/{job['full_name']}"
    response = await client.post(url, json={"payload": payload})
    assert response.status_code == 202, response.text
    return response.json()


async def claim(
    client: httpx.AsyncClient, worker_id: str, wait: float | None = None
) -> dict[str, Any] | None:
    """Claim a task; return it, or None if none was pending."""
    headers = {} if wait is None else {"Prefer": f"wait={wait}"}
    response = await client.post(f"{V1}/tasks/claim", json={"worker_id": worker_id}, headers=headers)
    assert response.status_code == 200, response.text
    return response.json()["task"]


async def report(
    client: httpx.AsyncClient, task: dict[str, Any], status: str, **fields: Any
) -> httpx.Response:
    """Report on a task; return the response, which may be a problem."""
    return await client.patch(f"{V1}/tasks/{task['id']}", json={"status": status, **fields})


async def get_task(client: httpx.AsyncClient, task: dict[str, Any]) -> dict[str, Any]:
    """Return the current state of a task."""
    response = await client.get(f"{V1}/tasks/{task['id']}")
    assert response.status_code == 200, response.text
    return response.json()


async def run_task(client: httpx.AsyncClient, room: str = "lab") -> dict[str, Any]:
    """Register a job, submit a task, claim it, run it and complete it; return its final state."""
    job = await register(client, room=room)
    task = await submit(client, job, room, x=1)
    claimed = await claim(client, job["worker_id"])
    assert claimed is not None
    assert claimed["id"] == task["id"]
    for status in ("running", "completed"):
        response = await report(client, task, status, attempt=claimed["attempt"], result=[1])
        assert response.status_code == 200, response.text
    ended = await get_task(client, task)
    assert (ended["status"], ended["result"]) == ("completed", [1])
    return ended


def expect_problem(response: httpx.Response, status: int, kind: str) -> dict[str, Any]:
    """Check that a response is a complete problem of this kind; return its body."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == PROBLEM
    body = response.json()
    assert body["type"] == f"/v1/problems/{kind}"
    assert body["status"] == status
    assert body["title"]
    assert None not in body.values()
    assert kind in documented_problems(response.request.method, response.request.url.path)
    return body


@cache
def _operations() -> list[tuple[str, re.Pattern[str], set[str]]]:
    found = []
    for path, methods in openapi.document()["paths"].items():
        pattern = re.compile(
            re.sub(r"{(name|\w+)}", lambda part: ".+" if part[1] == "name" else "[^/]*", path)
        )
        for method, operation in methods.items():
            contents = [answer.get("content", {}) for answer in operation["responses"].values()]
            kinds = {kind for content in contents for kind in content.get(PROBLEM, {}).get("examples", {})}
            found.append((method.upper(), pattern, kinds))
    return found


def documented_problems(method: str, path: str) -> set[str]:
    """Return the problems that the OpenAPI document has for a request; an unknown path has two of its own."""
    fitting = [kinds for at, pattern, kinds in _operations() if at == method and pattern.fullmatch(path)]
    return set.union({"not-found", "method-not-allowed"}, *fitting)


def parse_utc(text: str) -> datetime:
    """Parse a time and check that it is in UTC, with a `Z`."""
    assert text.endswith("Z"), text
    found = datetime.fromisoformat(text)
    assert found.utcoffset() == UTC.utcoffset(None)
    return found


async def revoke_token(app: FastAPI, name: str, token: str) -> None:
    """Remove a user's token, and let the server look whether it exists, as it does for open sockets."""
    queue = app.state.joblib
    await queue.runtime.write(sql_operators.remove_token, name=name)
    assert await queue.identity.find_revoked([digest(token)]) == {digest(token)}
