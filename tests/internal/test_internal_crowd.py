"""A thousand internal tasks, while everything that could lose or double one happens."""

import asyncio
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis.asyncio
from rest import V1
from servers import ServerProcess
from waiting import until

from internal.conftest import Valkey
from internal.crew import COUNT, OURS, TASKIQ, Hand, count, submit, told

TASKS = 1000
QUEUE = "zndraw-joblib:internal"


async def submit_all(client: httpx.AsyncClient, journal: Path) -> list[dict[str, Any]]:
    """Submit all tasks, 32 at a time."""
    places = asyncio.Semaphore(32)

    async def call() -> dict[str, Any]:
        async with places:
            return await submit(client, COUNT, journal=str(journal))

    return await asyncio.gather(*(call() for _ in range(TASKS)))


async def double(url: str) -> None:
    """Put a copy of each message next to it, as a broker does that delivers more than once."""
    async with redis.asyncio.Redis.from_url(url) as client:
        messages = await client.lrange(QUEUE, 0, -1)
        await client.delete(QUEUE)
        await client.rpush(QUEUE, *(copy for message in messages for copy in (message, message)))


async def until_all_completed(client: httpx.AsyncClient) -> None:
    """Wait until every task has ended well."""
    async with asyncio.timeout(90):
        while await count(client, "completed") < TASKS:
            assert await count(client, "failed") == 0
            await asyncio.sleep(0.1)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("command", [OURS, TASKIQ], ids=["internal-worker", "taskiq"])
async def test_a_thousand_tasks_survive_a_kill_and_a_restart_of_the_broker(
    command: list[str], server: ServerProcess, settings: dict[str, Any], valkey: Valkey, journal: Path
) -> None:
    """Every task ends well, and each attempt was begun once, though all messages come twice."""
    async with server.client() as client:
        tasks = await submit_all(client, journal)
        assert {task["status"] for task in tasks} == {"claimed"}
        await double(valkey.url)
        began = time.monotonic()
        with ExitStack() as stack:
            first, _ = (stack.enter_context(Hand(command, **settings)) for _ in range(2))
            await until(lambda: len(told(journal, "end")) > TASKS // 4)
            first.kill()
            await until(lambda: len(told(journal, "end")) > TASKS // 2)
            await asyncio.to_thread(valkey.stop)
            await asyncio.to_thread(valkey.start)
            await until_all_completed(client)
        took = time.monotonic() - began
        ended = [(await client.get(f"{V1}/tasks/{task['id']}")).json() for task in tasks]
    again = [task for task in ended if task["attempt"] > 1]
    print(f"{TASKS} tasks in {took:.1f} s, {len(again)} of them tried again: {' '.join(command[1:4])}")
    begun = Counter((task, attempt) for task, attempt, _ in told(journal, "begin").elements())
    assert {task for task, _ in begun} == {task["id"] for task in tasks}
    assert set(begun.values()) == {1}
    assert 0 < len(again) <= settings["internal_concurrency"]
    assert all(task["worker_id"] for task in ended)
