"""Every event goes where the contract says and nowhere else: a recorded walk of each operation."""

from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

import httpx
import pytest
from rest import V1, claim, register, report, submit

from live.sockets import Live, Socket
from zndraw_joblib.server.service import sweep

FRONTS = ("lab", "attic", "@global")


@dataclass
class Stage:
    """Sockets in every kind of room: front-ends of three rooms, and a worker for each of two jobs."""

    live: Live
    rest: httpx.AsyncClient
    everybody: dict[str, Socket] = field(default_factory=dict)

    async def heard(self) -> dict[str, list[str]]:
        """Return what each has heard since the last time; those who heard nothing are left out."""
        found = {}
        for name, socket in self.everybody.items():
            told = [
                f"{data['status']}" if "status" in data else event for event, data in await socket.settled()
            ]
            if told:
                found[name] = told
        return found

    async def worker(self, name: str, room: str = "@global", worker: str | None = None) -> dict[str, Any]:
        """Register a job by a worker whose socket joins the job's room."""
        job = await register(self.rest, name, room, **({"worker_id": worker} if worker else {}))
        self.everybody[name] = socket = await self.live.socket()
        joined = await socket.ask("join_job_room", job_name=job["full_name"], worker_id=job["worker_id"])
        assert joined == {}
        return job


@pytest.fixture
async def stage(live: Live) -> Stage:
    """Return a stage where three front-ends listen."""
    made = Stage(live, await live.rest())
    for room in FRONTS:
        made.everybody[room] = await live.socket(room)
    return made


INVALID = ["jobs_invalidate"]


async def test_a_task_from_its_submission_to_its_end(stage: Stage) -> None:
    """Its room hears each status once, its job's workers hear of it once, nobody else hears anything."""
    job = await stage.worker("A")
    await stage.worker("B")
    await stage.heard()
    task = await submit(stage.rest, job)
    assert await stage.heard() == {"lab": ["pending"], "A": ["task_available"]}
    assert await claim(stage.rest, job["worker_id"]) is not None
    assert await stage.heard() == {"lab": ["claimed"]}
    assert await claim(stage.rest, job["worker_id"]) is None
    for status in ("running", "completed"):
        for _ in range(2):  # a repeat changes nothing, and is not told
            assert (await report(stage.rest, task, status)).status_code == 200
        assert await stage.heard() == {"lab": [status]}
    assert (await report(stage.rest, task, "failed")).status_code == 409
    assert await stage.heard() == {}


@pytest.mark.parametrize("ending", ["failed", "cancelled"])
async def test_other_ends(stage: Stage, ending: str) -> None:
    """The room hears of a failure; of a cancellation the worker that runs the task hears too."""
    job = await stage.worker("A")
    await stage.worker("B")
    task = await submit(stage.rest, job)
    await claim(stage.rest, job["worker_id"])
    await stage.heard()
    await report(stage.rest, task, "running")
    await report(stage.rest, task, ending, error="broken")
    heard = {"lab": ["running", ending], **({"A": [ending]} if ending == "cancelled" else {})}
    assert await stage.heard() == heard


async def test_a_pending_task_is_cancelled(stage: Stage) -> None:
    """Its room hears of it alone: nobody holds it."""
    job = await stage.worker("A")
    task = await submit(stage.rest, job)
    await stage.heard()
    await report(stage.rest, task, "cancelled")
    assert await stage.heard() == {"lab": ["cancelled"]}


@pytest.mark.parametrize(("room", "concerned"), [("@global", set(FRONTS)), ("lab", {"lab"})])
async def test_jobs_come_and_go(stage: Stage, room: str, concerned: set[str]) -> None:
    """The job's room hears that its jobs changed; of a global one all front-ends hear, once each."""
    everywhere = dict.fromkeys(concerned, INVALID)
    job = await stage.worker("A", room)
    assert await stage.heard() == everywhere
    await register(stage.rest, "A", room, worker_id=job["worker_id"])
    assert await stage.heard() == everywhere
    other = await register(stage.rest, "A", room)
    assert await stage.heard() == everywhere
    await stage.rest.delete(f"{V1}/workers/{other['worker_id']}")
    assert await stage.heard() == everywhere
    await stage.rest.delete(f"{V1}/workers/{job['worker_id']}/jobs/{job['full_name']}")
    assert await stage.heard() == everywhere


async def test_what_tells_nobody_anything(stage: Stage) -> None:
    """Reads, heartbeats, a worker without jobs, and whatever is refused."""
    job = await stage.worker("A")
    await stage.heard()
    worker = (await stage.rest.post(f"{V1}/workers")).json()["id"]
    await stage.rest.patch(f"{V1}/workers/{worker}")
    await stage.rest.delete(f"{V1}/workers/{worker}")
    for path in ("workers", "rooms/lab/jobs", "rooms/lab/tasks", f"rooms/lab/jobs/{job['full_name']}"):
        assert (await stage.rest.get(f"{V1}/{path}")).status_code == 200
    body = {"category": "modifiers", "name": "A", "schema": {"title": "other"}}
    assert (await stage.rest.put(f"{V1}/rooms/@global/jobs", json=body)).status_code == 409
    assert (await stage.rest.post(f"{V1}/rooms/lab/tasks/lab:modifiers:No", json={})).status_code == 404
    assert await stage.heard() == {}


@pytest.mark.parametrize("way", ["leaves", "is silent"])
async def test_a_worker_that_goes(stage: Stage, way: str) -> None:
    """Its tasks fail in their rooms, and its jobs' rooms hear of that; pending tasks are not told of."""
    job = await stage.worker("A", "lab")
    for _ in range(2):
        await submit(stage.rest, job)
    await claim(stage.rest, job["worker_id"])
    await stage.heard()
    if way == "leaves":
        await stage.rest.delete(f"{V1}/workers/{job['worker_id']}")
    else:
        retire = partial(sweep.retire_stale, timeout=timedelta(microseconds=1))
        assert await stage.live.runtime.write(retire) == 1
    heard = await stage.heard()
    assert sorted(heard.pop("lab")) == ["failed", "jobs_invalidate"]
    assert heard == {}


async def test_the_payload_of_a_status(stage: Stage) -> None:
    """It has the fields of the contract, times that end in Z, and ids as text."""
    job = await stage.worker("A")
    await stage.everybody["lab"].settled()
    task = await submit(stage.rest, job)
    [(name, data)] = await stage.everybody["lab"].settled()
    assert name == "task_status_event"
    assert data == {
        "id": task["id"],
        "name": "@global:modifiers:A",
        "room_id": "lab",
        "status": "pending",
        "created_at": task["created_at"],
        "started_at": None,
        "completed_at": None,
        "queue_position": 1,
        "worker_id": None,
        "error": None,
    }
    [*_, available] = await stage.everybody["A"].settled()
    fields = {"job_name": "@global:modifiers:A", "room_id": "lab", "task_id": task["id"]}
    assert available == ("task_available", fields)


async def test_all_hear_each_of_many_life_cycles_in_order(live: Live) -> None:
    """Nobody misses a status, and none comes twice or too early."""
    rest = await live.rest()
    job = await register(rest)
    fronts = [await live.socket("lab") for _ in range(20)]
    for _ in range(20):
        task = await submit(rest, job)
        await claim(rest, job["worker_id"])
        await report(rest, task, "running")
        await report(rest, task, "completed")
    for front in fronts:
        assert await front.statuses() == ["pending", "claimed", "running", "completed"] * 20
