"""The results of other tasks that an internal job gets, on both databases."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from httpx import AsyncClient

from internal.processes import TOKEN, running, wait_for_end
from zndraw_joblib import job
from zndraw_joblib.server.host.app import create_app
from zndraw_joblib.server.process.settings import ServerSettings
from zndraw_joblib.server.results import inputs


@job
def many(count: int) -> list[int]:
    """Return numbers; more than 1 MiB of them are stored."""
    return list(range(count))


@job
def length(values: Any) -> list[int]:
    """Return the lengths of lists."""
    return [len(value) for value in values]


@pytest.fixture
async def client(database_url: str) -> AsyncIterator[AsyncClient]:
    """Run a server with both jobs."""
    names = ",".join(f"{__name__}:{name}" for name in ("many", "length"))
    settings = ServerSettings(database_url=database_url, admin_token=TOKEN, internal_extensions=names)
    async with running(create_app(settings)) as client:
        yield client


async def _submit(client: AsyncClient, job_name: str, **body: Any) -> dict[str, Any]:
    path = f"/v1/joblib/rooms/lab/tasks/%40internal:jobs:{job_name}"
    return _checked(await client.post(path, json=body))


def _checked(response: httpx.Response) -> dict[str, Any]:
    assert response.is_success, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def test_results_for_an_internal_job_are_bounded(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of predecessors that are too large for a payload, stored or not, and those of a group."""
    on_end = {"job": "@internal:jobs:length", "payload": {"values": {"$group": "results"}}}
    groups = [
        _checked(await client.post("/v1/joblib/groups", json={"room": "lab", "on_end": on_end}))["id"]
        for _ in range(2)
    ]
    tasks = [await _submit(client, "many", payload={"count": 200_000}, group=groups[0])]
    tasks += [
        await _submit(client, "many", payload={"count": 20_000}, group=group)
        for group in [*groups, *groups[:1] * 2]
    ]
    steps = []
    for chosen in (tasks[:1], tasks[1:3]):
        ids = [task["id"] for task in chosen]
        payload = {"values": [{"$result": {"task": id_}} for id_ in ids]}
        steps.append(await _submit(client, "length", payload=payload, after={"tasks": ids}))
    monkeypatch.setattr(inputs, "MAX_INPUT_BYTES", 300_000)
    for group in groups:
        _checked(await client.patch(f"/v1/joblib/groups/{group}", json={"sealed": True}))
        _checked(await client.get(f"/v1/joblib/groups/{group}", headers={"Prefer": "wait=30"}))
    ends = [_checked(await client.get(f"/v1/joblib/groups/{group}"))["on_end_task"] for group in groups]
    for chosen in (steps, [{"id": id_} for id_ in ends]):
        too_large, fits = [await wait_for_end(client, task) for task in chosen]
        assert too_large["error_code"] == "predecessor-result-invalid"
        assert "let a worker run this job" in too_large["error"]
        assert fits["result"] == [20_000] * len(fits["result"])


async def test_long_json_is_parsed_while_the_event_loop_runs() -> None:
    """A parser in C would keep the interpreter until its end."""
    content = json.dumps([{"name": "x", "values": [1.5, None, True]}] * 50_000).encode()
    rounds, is_done = 0, asyncio.Event()

    async def count() -> None:
        nonlocal rounds
        while not is_done.is_set():
            await asyncio.sleep(0.001)
            rounds += 1

    counting = asyncio.create_task(count())
    value = await inputs._beside_loop(inputs._loads, content)
    is_done.set()
    await counting
    assert value == json.loads(content)
    assert rounds > 20
