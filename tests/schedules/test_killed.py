"""Servers are killed while schedules are due each second: no due time is submitted twice or never."""

import asyncio
from itertools import pairwise
from typing import Any

import httpx
import pytest
from databases import on_postgresql
from rest import V1, parse_utc, register
from servers import ServerProcess
from waiting import until

SCHEDULES = 5
URL = f"{V1}/rooms/lab/schedules"


async def number_of_tasks(client: httpx.AsyncClient) -> int:
    """Return how many tasks the room has."""
    total: int = (await client.get(f"{V1}/rooms/lab/tasks", params={"limit": 1})).json()["total"]
    return total


async def all_tasks(client: httpx.AsyncClient) -> list[dict[str, Any]]:
    """Return all tasks of the room."""
    tasks: list[dict[str, Any]] = []
    while len(tasks) < await number_of_tasks(client):
        page = await client.get(f"{V1}/rooms/lab/tasks", params={"limit": 500, "offset": len(tasks)})
        tasks += page.json()["items"]
    return tasks


async def more_tasks(client: httpx.AsyncClient, count: int) -> None:
    """Wait until there are so many more tasks."""
    wanted = await number_of_tasks(client) + count

    async def are_there() -> bool:
        return await number_of_tasks(client) >= wanted

    await until(are_there)


@pytest.mark.slow
@on_postgresql
async def test_no_due_time_is_lost_or_doubled(database_url: str) -> None:
    """One of two servers is killed again and again, then both; the next one catches up."""
    async with asyncio.timeout(200):
        with ServerProcess(database_url) as stays, ServerProcess(database_url) as first:
            async with stays.client() as client:
                job = await register(client)
                times = {"every_seconds": 1, "catch_up": "all", "max_catch_up": 1000}
                for number in range(SCHEDULES):
                    body = {"job": job["full_name"], **times}
                    assert (await client.put(f"{URL}/s{number}", json=body)).status_code == 201
                await more_tasks(client, SCHEDULES)
                first.process.kill()
                for _ in range(2):
                    with ServerProcess(database_url) as other:
                        async with other.client() as its_client:
                            await more_tasks(its_client, 2 * SCHEDULES)
                        other.process.kill()
                        await more_tasks(client, SCHEDULES)
        with ServerProcess(database_url) as last:
            async with last.client() as client:
                await more_tasks(client, 2 * SCHEDULES)
                for number in range(SCHEDULES):
                    await client.patch(f"{URL}/s{number}", json={"paused": True})
                tasks = await all_tasks(client)
    for number in range(SCHEDULES):
        due = sorted(parse_utc(task["due_at"]) for task in tasks if task["schedule"] == f"s{number}")
        gaps = [(later - earlier).total_seconds() for earlier, later in pairwise(due)]
        assert gaps == [1.0] * (len(due) - 1)
