"""A thousand internal tasks, with duplicate messages, a killed process and a restart of the broker."""

import asyncio
import os
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
from internal.processes import (
    COUNT,
    INTERNAL_WORKER,
    TASKIQ_WORKER,
    WorkerProcess,
    count,
    journal_entries,
    submit,
)

TASKS = 1000
CONCURRENCY = 4  # of each process, by the fixture `settings`
QUEUE = "zndraw-joblib:internal:queue"


async def submit_all(client: httpx.AsyncClient, journal: Path, gate: Path) -> list[dict[str, Any]]:
    """Submit all tasks, 32 at a time; those after the first quarter wait for the gate."""
    limit = asyncio.Semaphore(32)

    async def call(number: int) -> dict[str, Any]:
        is_gated = TASKS // 4 <= number < TASKS // 4 + 2 * CONCURRENCY
        async with limit:
            return await submit(client, COUNT, journal=str(journal), gate=str(gate) if is_gated else "")

    return await asyncio.gather(*(call(number) for number in range(TASKS)))


async def duplicate_messages(url: str) -> None:
    """Add a copy of each message, as a broker does that delivers a message more than once."""
    async with redis.asyncio.Redis.from_url(url) as client:
        messages = await client.zrange(QUEUE, 0, -1, withscores=True)
        # With a space, the same JSON is another member of the set.
        await client.zadd(QUEUE, {message + b" ": place for message, place in messages})  # type: ignore[str-unpack]


def runs_gated_task(process: WorkerProcess, journal: Path) -> bool:
    """Return whether every slot is occupied by a gated task, some of them in this process."""
    running = journal_entries(journal, "begin") - journal_entries(journal, "end")
    pids = [int(pid) for _, _, pid in running]
    return len(pids) == 2 * CONCURRENCY and process.process.pid in map(os.getpgid, pids)


async def all_completed(client: httpx.AsyncClient) -> bool:
    """Return whether every task is completed; no task may fail."""
    assert await count(client, "failed") == 0
    return await count(client, "completed") == TASKS


@pytest.mark.slow
@pytest.mark.timeout(420)
@pytest.mark.parametrize("command", [INTERNAL_WORKER, TASKIQ_WORKER], ids=["internal-worker", "taskiq"])
async def test_a_thousand_tasks_survive_a_kill_and_a_restart_of_the_broker(
    command: list[str], server: ServerProcess, settings: dict[str, Any], valkey: Valkey, journal: Path
) -> None:
    """Every task completes, and each attempt begins once, though each message is delivered twice."""
    gate = journal.with_name("gate")
    async with server.client() as client:
        tasks = await submit_all(client, journal, gate)
        assert {task["status"] for task in tasks} == {"claimed"}
        await duplicate_messages(valkey.url)
        began = time.monotonic()
        with ExitStack() as stack:
            first, _ = (stack.enter_context(WorkerProcess(command, **settings)) for _ in range(2))
            await until(lambda: runs_gated_task(first, journal), timeout=90)
            first.kill()
            gate.touch()
            await until(lambda: len(journal_entries(journal, "end")) > TASKS // 2, timeout=90)
            await asyncio.to_thread(valkey.stop)
            await asyncio.to_thread(valkey.start)
            await until(lambda: all_completed(client), timeout=240, interval=0.1)
        took = time.monotonic() - began
        ended = [(await client.get(f"{V1}/tasks/{task['id']}")).json() for task in tasks]
    retried = [task for task in ended if task["attempt"] > 1]
    print(f"{TASKS} tasks in {took:.1f} s, {len(retried)} of them retried: {' '.join(command[1:4])}")
    begun = Counter((task, attempt) for task, attempt, _ in journal_entries(journal, "begin").elements())
    assert {task for task, _ in begun} == {task["id"] for task in tasks}
    assert set(begun.values()) == {1}
    assert 0 < len(retried) <= CONCURRENCY
    assert all(task["worker_id"] for task in ended)
