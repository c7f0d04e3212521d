"""Server processes are killed while tasks that wait for others are released, and fail."""

import asyncio
import random
from collections import Counter
from typing import Any
from uuid import uuid4

import pytest
from databases import on_postgresql
from rest import register

from recovery.test_killed_groups import Pair, pair_of

Json = dict[str, Any]
_CHAIN, _FAN, _FAILING, _AT_ONCE, _RUNNERS, _KILLS = 200, 200, 50, 100, 4, 6
_SECONDS = 240.0


def value_of(index: int) -> Json:
    """Return a value that stands for a number in the result of an earlier item."""
    return {"$result": {"task": index, "pointer": "/n"}}


def graph(job: str) -> list[Json]:
    """Return a chain, a fan that comes together again, and a chain whose first task fails, as one batch."""
    items: list[Json] = []

    def add(*after: int, fails: bool = False) -> int:
        payload = {"values": [value_of(index) for index in after], "fails": fails}
        item = {"room_id": "lab", "job_name": job, "payload": payload}
        items.append({**item, "after": {"tasks": list(after)}} if after else item)
        return len(items) - 1

    last = add()
    for _ in range(_CHAIN - 1):
        last = add(last)
    first = add()
    fan = [add(first) for _ in range(_FAN)]
    add(*[add(*fan[start : start + _AT_ONCE]) for start in range(0, _FAN, _AT_ONCE)])
    last = add(fails=True)
    for _ in range(_FAILING - 1):
        last = add(last)
    return items


class Run:
    """Runs the tasks of a batch. Checks that each runs once, after its predecessors and with their results.

    The result of a task is one more than the sum of those that it got.
    """

    def __init__(self, pair: Pair, worker: str, items: list[Json], ids: list[str]) -> None:
        self._pair, self._worker = pair, worker
        self.before = {
            id_: [ids[index] for index in item.get("after", {}).get("tasks", [])]
            for id_, item in zip(ids, items, strict=True)
        }
        self.reported: dict[str, int] = {}
        self.runs: Counter[str] = Counter()
        self.progress = asyncio.Condition()
        self.to_run = len(ids) - (_FAILING - 1)

    async def work(self, runner: int) -> None:
        """Claim and end tasks until all have run."""
        while len(self.reported) < self.to_run:
            body = {"worker_id": self._worker, "max": 8, "start": True, "claim_id": str(uuid4())}
            claimed = await self._pair.send(
                runner, "POST", "/tasks/claim", json=body, headers={"Prefer": "wait=1"}
            )
            for task in claimed.json().get("tasks") or []:
                await self._run(runner, task)

    async def _run(self, runner: int, task: Json) -> None:
        id_, values = task["id"], task["payload"]["values"]
        assert task["attempt"] == 1
        assert values == [self.reported.get(before) for before in self.before[id_]], "it ran too early"
        self.runs[id_] += 1
        result = 1 + sum(values)
        end = (
            {"status": "failed"}
            if task["payload"]["fails"]
            else {"status": "completed", "result": {"n": result}}
        )
        async with self.progress:
            self.reported[id_] = result
            self.progress.notify_all()
        response = await self._pair.send(runner, "PATCH", f"/tasks/{id_}", json={**end, "attempt": 1})
        # A repeated report whose first answer was lost.
        assert response.status_code in {200, 409}, response.text


async def kill_in_turn(pair: Pair, run: Run, moments: random.Random) -> None:
    """Kill the servers in turn, each some time after so many tasks have run."""
    for number, count in enumerate(sorted(moments.sample(range(1, run.to_run), _KILLS))):
        async with run.progress:
            await run.progress.wait_for(lambda count=count: len(run.reported) >= count)  # type: ignore[misc]
        await asyncio.sleep(moments.uniform(0, 0.1))
        await pair.kill(number % 2)


async def state_of(pair: Pair) -> tuple[Counter[str], Counter[str]]:
    """Return how many tasks have each status, and each code of an error."""
    query: Json = {"room": "lab", "limit": 100}
    statuses, codes = Counter[str](), Counter[str]()
    while True:
        page = (await pair.send(0, "GET", "/tasks", params=query)).json()
        statuses.update(task["status"] for task in page["items"])
        codes.update(task["error_code"] for task in page["items"] if task.get("error_code"))
        if page.get("next") is None:
            return statuses, codes
        query["cursor"] = page["next"]


@pytest.mark.slow
@on_postgresql
async def test_successors_run_once_although_servers_are_killed(database_url: str) -> None:
    """Each after its predecessors, those of a failed task never, and none waits for ever."""
    seed = random.randrange(1_000_000)
    print(f"{seed=}")
    moments = random.Random(seed)
    async with asyncio.timeout(_SECONDS), pair_of(database_url) as pair:
        job = await register(pair.clients[0])
        items = graph(job["full_name"])
        response = await pair.send(0, "POST", "/tasks/submit", json={"tasks": items, "atomic": True})
        ids = [result["id"] for result in response.json()["results"]]
        run = Run(pair, job["worker_id"], items, ids)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(kill_in_turn(pair, run, moments))
            for runner in range(_RUNNERS):
                tasks.create_task(run.work(runner))
        assert set(run.runs.values()) == {1}
        assert run.reported[ids[_CHAIN - 1]] == _CHAIN
        assert run.reported[ids[-_FAILING - 1]] == 2 * _FAN + _FAN // _AT_ONCE + 1
        waits = {"headers": {"Prefer": "wait=10"}}
        while (await pair.send(0, "GET", f"/tasks/{ids[-1]}", **waits)).json()["status"] == "pending":
            pass
        statuses, codes = await state_of(pair)
        assert statuses == {"completed": len(ids) - _FAILING, "failed": _FAILING}
        assert codes["predecessor-failed"] == _FAILING - 1
