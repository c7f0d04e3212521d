"""The progress, the log and the failure of internal jobs, in the process of the server."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from rest import V1
from waiting import until

from internal.processes import TOKEN, running, submit, wait_for_end
from zndraw_joblib.server.host.app import create_app
from zndraw_joblib.server.process.settings import ServerSettings

TALK = "@internal:analysis:Talk"


@pytest.fixture
async def client(database_url: str) -> AsyncIterator[httpx.AsyncClient]:
    """Run a server with an internal job that reports; return a client."""
    settings = ServerSettings(
        database_url=database_url, admin_token=TOKEN, internal_extensions="sdk.talking:Talk"
    )
    async with running(create_app(settings)) as client:
        yield client


async def texts(client: httpx.AsyncClient, task: dict[str, Any], **query: Any) -> list[str]:
    """Return the lines of a task's log."""
    response = await client.get(f"{V1}/tasks/{task['id']}/log", params={"limit": 1000, **query})
    return [line["text"] for line in response.json()["lines"]]


async def test_internal_tasks_at_once_have_their_own_logs(client: httpx.AsyncClient) -> None:
    """Each prints in a thread of its own, and gets its `task`."""
    names = ["a", "b", "c", "d"]
    tasks = [await submit(client, TALK, name=name, lines=4) for name in names]
    for name, task in zip(names, tasks, strict=True):
        ended = await wait_for_end(client, task)
        assert (ended["status"], ended["result"]) == ("completed", name)
        assert ended["progress"]["current"] == 4
        assert await texts(client, task) == [*(f"{name} {number}" for number in range(4)), f"{name} error"]


async def test_a_running_internal_task_is_seen(client: httpx.AsyncClient, tmp_path: Path) -> None:
    """What it reports is there before it ends."""
    task = await submit(client, TALK, lines=2, gate=str(tmp_path / "gate"))

    async def is_seen() -> bool:
        return await texts(client, task) == ["a 0", "a 1", "a error"]

    await until(is_seen, 30)
    seen = (await client.get(f"{V1}/tasks/{task['id']}")).json()
    assert (seen["status"], seen["progress"]["current"]) == ("running", 2)
    (tmp_path / "gate").touch()
    assert (await wait_for_end(client, task))["status"] == "completed"
    assert len(await texts(client, task)) == 3


async def test_a_failed_internal_attempt_is_described(client: httpx.AsyncClient) -> None:
    """Each attempt keeps its own log and its own traceback."""
    task = await submit(client, TALK, then="fail", lines=1500)
    ended = await wait_for_end(client, task)
    assert (ended["error"], ended["attempt"]) == ("ValueError: attempt 2", 2)
    assert ended["failure"]["traceback"].endswith("ValueError: attempt 2\n")
    assert "runs.py" not in ended["failure"]["traceback"]
    history = (await client.get(f"{V1}/tasks/{task['id']}/history")).json()
    assert [attempt["log_lines"] for attempt in history["attempts"]] == [1501, 1501]
    assert (await texts(client, task, attempt=1, after=1499)) == ["a 1499", "a error"]
