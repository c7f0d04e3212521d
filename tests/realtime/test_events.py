"""Each operation sends the events of the contract to the right rooms, and to no other room."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import httpx
import pytest
from rest import V1, claim, register, report, submit

from realtime.sockets import LiveServer, Socket
from zndraw_joblib.server.queue import rules_sweep

FRONT_END_ROOMS = ("lab", "attic", "@global")


@dataclass
class Recorder:
    """Sockets in every kind of room: a front-end in each of three rooms, and workers of jobs."""

    server: LiveServer
    rest: httpx.AsyncClient
    sockets: dict[str, Socket] = field(default_factory=dict)

    async def new_events(self) -> dict[str, list[str]]:
        """Return the new events of each socket that has some: statuses of tasks, else names."""
        received = {
            name: [data.get("status", event) for event, data in await socket.new_events()]
            for name, socket in self.sockets.items()
        }
        return {name: events for name, events in received.items() if events}

    async def add_worker(self, name: str, room: str = "@global", worker: str | None = None) -> dict[str, Any]:
        """Register a job; a socket of its worker joins the job's room."""
        job = await register(self.rest, name, room, **({"worker_id": worker} if worker else {}))
        self.sockets[name] = socket = await self.server.connect()
        joined = await socket.call("join_job_room", job_name=job["full_name"], worker_id=job["worker_id"])
        assert joined == {}
        return job


@pytest.fixture
async def recorder(server: LiveServer) -> Recorder:
    """Return a recorder with a front-end in each of three rooms."""
    recorder = Recorder(server, await server.rest())
    for room in FRONT_END_ROOMS:
        recorder.sockets[room] = await server.connect(room)
    return recorder


JOBS_CHANGED = ["jobs_invalidate"]


async def test_events_of_a_task_that_completes(recorder: Recorder) -> None:
    """Its room gets each status once; workers of its job get `task_available` once."""
    job = await recorder.add_worker("A")
    await recorder.add_worker("B")
    await recorder.new_events()
    task = await submit(recorder.rest, job)
    assert await recorder.new_events() == {"lab": ["pending"], "A": ["task_available"]}
    assert await claim(recorder.rest, job["worker_id"]) is not None
    assert await recorder.new_events() == {"lab": ["claimed"]}
    assert await claim(recorder.rest, job["worker_id"]) is None
    for status in ("running", "completed"):
        for _ in range(2):  # a repeated report sends no event
            assert (await report(recorder.rest, task, status)).status_code == 200
        assert await recorder.new_events() == {"lab": [status]}
    assert (await report(recorder.rest, task, "failed")).status_code == 409
    assert await recorder.new_events() == {}


@pytest.mark.parametrize("ending", ["failed", "cancelled"])
async def test_events_of_a_failed_or_cancelled_task(recorder: Recorder, ending: str) -> None:
    """Its room gets the status; the worker that runs the task gets a cancellation too."""
    job = await recorder.add_worker("A")
    await recorder.add_worker("B")
    task = await submit(recorder.rest, job)
    await claim(recorder.rest, job["worker_id"])
    await recorder.new_events()
    await report(recorder.rest, task, "running")
    await report(recorder.rest, task, ending, error="broken")
    expected = {"lab": ["running", ending], **({"A": [ending]} if ending == "cancelled" else {})}
    assert await recorder.new_events() == expected


async def test_a_cancellation_reaches_the_worker_of_a_room_without_front_ends(recorder: Recorder) -> None:
    """Statuses of a room without sockets are not made, except those that go to other rooms too."""
    job = await recorder.add_worker("A")
    task = await submit(recorder.rest, job, "cellar")
    await claim(recorder.rest, job["worker_id"])
    await recorder.new_events()
    await report(recorder.rest, task, "running")
    assert await recorder.new_events() == {}
    await report(recorder.rest, task, "cancelled")
    assert await recorder.new_events() == {"A": ["cancelled"]}


async def test_events_of_a_cancelled_pending_task(recorder: Recorder) -> None:
    """Only its room gets the event, because no worker holds the task."""
    job = await recorder.add_worker("A")
    task = await submit(recorder.rest, job)
    await recorder.new_events()
    await report(recorder.rest, task, "cancelled")
    assert await recorder.new_events() == {"lab": ["cancelled"]}


@pytest.mark.parametrize(("room", "expected_rooms"), [("@global", set(FRONT_END_ROOMS)), ("lab", {"lab"})])
async def test_events_of_job_changes(recorder: Recorder, room: str, expected_rooms: set[str]) -> None:
    """The job's room gets one event for each change; for a global job every front-end gets it once."""
    expected = dict.fromkeys(expected_rooms, JOBS_CHANGED)
    job = await recorder.add_worker("A", room)
    assert await recorder.new_events() == expected
    await register(recorder.rest, "A", room, worker_id=job["worker_id"])
    assert await recorder.new_events() == expected
    other = await register(recorder.rest, "A", room)
    assert await recorder.new_events() == expected
    await recorder.rest.delete(f"{V1}/workers/{other['worker_id']}")
    assert await recorder.new_events() == expected
    await recorder.rest.delete(f"{V1}/workers/{job['worker_id']}/jobs/{job['full_name']}")
    assert await recorder.new_events() == expected


async def test_operations_without_events(recorder: Recorder) -> None:
    """GET requests, heartbeats, workers without jobs and refused requests send no event."""
    job = await recorder.add_worker("A")
    await recorder.new_events()
    worker = (await recorder.rest.post(f"{V1}/workers")).json()["id"]
    await recorder.rest.patch(f"{V1}/workers/{worker}")
    await recorder.rest.delete(f"{V1}/workers/{worker}")
    for path in ("workers", "rooms/lab/jobs", "rooms/lab/tasks", f"rooms/lab/jobs/{job['full_name']}"):
        assert (await recorder.rest.get(f"{V1}/{path}")).status_code == 200
    body = {"category": "modifiers", "name": "A", "schema": {"type": "integer"}}
    assert (await recorder.rest.put(f"{V1}/rooms/@global/jobs", json=body)).status_code == 409
    assert (await recorder.rest.post(f"{V1}/rooms/lab/tasks/lab:modifiers:No", json={})).status_code == 404
    assert await recorder.new_events() == {}


@pytest.mark.parametrize("reason", ["delete", "timeout"])
async def test_events_of_a_removed_worker(recorder: Recorder, reason: str) -> None:
    """Its claimed task fails and its job's room gets an event; its pending task sends none."""
    job = await recorder.add_worker("A", "lab")
    for _ in range(2):
        await submit(recorder.rest, job)
    await claim(recorder.rest, job["worker_id"])
    await recorder.new_events()
    if reason == "delete":
        await recorder.rest.delete(f"{V1}/workers/{job['worker_id']}")
    else:
        timeout = timedelta(microseconds=1)
        assert await recorder.server.runtime.write(rules_sweep.retire_stale, timeout=timeout) == 1
    events = await recorder.new_events()
    assert sorted(events.pop("lab")) == ["failed", "jobs_invalidate"]
    assert events == {}


async def test_the_payloads_of_events(recorder: Recorder) -> None:
    """They have the fields of the contract, times that end in Z, and ids as text."""
    job = await recorder.add_worker("A")
    await recorder.sockets["lab"].new_events()
    task = await submit(recorder.rest, job)
    [(name, data)] = await recorder.sockets["lab"].new_events()
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
    [*_, available] = await recorder.sockets["A"].new_events()
    fields = {"job_name": "@global:modifiers:A", "room_id": "lab", "task_id": task["id"]}
    assert available == ("task_available", fields)


async def test_every_front_end_gets_all_statuses_in_order(server: LiveServer) -> None:
    """No status is missing, repeated or out of order."""
    rest = await server.rest()
    job = await register(rest)
    fronts = [await server.connect("lab") for _ in range(20)]
    for _ in range(20):
        task = await submit(rest, job)
        await claim(rest, job["worker_id"])
        await report(rest, task, "running")
        await report(rest, task, "completed")
    for front in fronts:
        assert await front.new_statuses() == ["pending", "claimed", "running", "completed"] * 20
