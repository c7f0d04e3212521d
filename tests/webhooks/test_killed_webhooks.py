"""Servers are killed while tasks end and receivers fail: no event is lost, and the order stays."""

import asyncio
from contextlib import suppress
from itertools import count
from typing import Any

import httpx
import pytest
from databases import killing_on_both
from receiver import Received, Receiver, receiving
from rest import V1, register
from servers import ServerProcess
from waiting import until

_SETTINGS = {
    **{"webhook_http": True, "webhook_ports": "1-65535", "webhook_networks": "127.0.0.0/8"},
    "webhook_timeout_seconds": 1,
}
# What the receiver does with some of the first requests.
_FAULTS: dict[int, int | str] = {4: 500, 11: "reset", 19: "hang", 33: 500}
_KILLS, _TASKS_PER_KILL = 3, 12


class FlakyReceiver:
    """Lets some requests to a receiver fail, and records those that it accepts."""

    def __init__(self, receiver: Receiver) -> None:
        self.receiver, self.accepted = receiver, list[Received]()
        self._count = count()
        receiver.decide = self._decide

    def _decide(self, request: Received) -> int | str:
        fault = _FAULTS.get(next(self._count), 204)
        if fault == 204:
            self.accepted.append(request)
        return fault

    def tasks(self, path: str) -> list[str]:
        """Return the tasks whose ends were accepted, in the order of their first arrival."""
        ids = [request.event["data"]["id"] for request in self.accepted if request.path == path]
        return list(dict.fromkeys(ids))


async def end_tasks(server: ServerProcess, job: dict[str, Any], url: str) -> None:
    """Submit tasks with a webhook, claim and complete them, until the server is killed."""
    with suppress(httpx.HTTPError):
        async with server.client() as client:
            while True:
                body = {"webhook": {"url": url}}
                await client.post(f"{V1}/rooms/lab/tasks/{job['full_name']}", json=body)
                claim = {"worker_id": job["worker_id"], "start": True}
                task = (await client.post(f"{V1}/tasks/claim", json=claim)).json()["task"]
                if task is not None:
                    await client.patch(f"{V1}/tasks/{task['id']}", json={"status": "completed"})


async def completed(client: httpx.AsyncClient) -> set[str]:
    """Return the ids of all completed tasks."""
    query = {"status": "completed", "limit": 500}
    page = (await client.get(f"{V1}/rooms/lab/tasks", params=query)).json()
    assert page["total"] < 500
    return {task["id"] for task in page["items"]}


async def all_deliveries(client: httpx.AsyncClient) -> list[dict[str, Any]]:
    """Return all deliveries, newest first."""
    items: list[dict[str, Any]] = []
    query: dict[str, Any] = {}
    while query.get("cursor", "") is not None:
        part = (await client.get(f"{V1}/rooms/lab/deliveries", params=query)).json()
        items += part["items"]
        query = {"cursor": part["next"]}
    return items


@pytest.mark.slow
@killing_on_both
async def test_no_end_is_lost_and_the_order_is_kept(database_url: str) -> None:
    """Servers are killed amid ends and deliveries; the last one delivers what is left."""
    async with asyncio.timeout(220), receiving() as receiver:
        flaky = FlakyReceiver(receiver)
        job: dict[str, Any] = {}
        for kill in range(_KILLS):
            with ServerProcess(database_url, **_SETTINGS) as server:
                async with server.client() as client:
                    if not job:
                        job = await register(client, room="lab", without_workers="queue")
                        path = f"{V1}/rooms/lab/webhooks/ci"
                        assert (
                            await client.put(path, json={"url": receiver.url("/room")})
                        ).status_code == 201

                    async def are_ended(client: httpx.AsyncClient = client, kill: int = kill) -> bool:
                        return len(await completed(client)) >= (kill + 1) * _TASKS_PER_KILL

                    ending = asyncio.create_task(end_tasks(server, job, receiver.url("/task")))
                    await until(are_ended, 60)
                    server.process.kill()
                    await ending
        with ServerProcess(database_url, **_SETTINGS) as last:
            async with last.client() as client:
                ended = await completed(client)

                async def are_delivered() -> bool:
                    return all(set(flaky.tasks(path)) >= ended for path in ("/room", "/task"))

                await until(are_delivered, 150)
                items = await all_deliveries(client)
        for path, webhook in (("/room", "ci"), ("/task", None)):
            order = [item["task_id"] for item in reversed(items) if item["webhook"] == webhook]
            assert flaky.tasks(path) == order
            assert set(order) == ended
