"""Internal jobs in the server's own process: threads beside the event loop, and bounded memory."""

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from rest import V1
from waiting import until

from internal.crew import COUNT, HEED, JOBS, ONCE, TOKEN, TWIST, end_of, running, submit, told
from zndraw_joblib.server.app import create_app
from zndraw_joblib.server.settings import ServerSettings


@pytest.fixture
def settings(database_url: str) -> ServerSettings:
    """Let two tasks run at once."""
    return ServerSettings(
        database_url=database_url,
        admin_token=TOKEN,
        internal_extensions=JOBS,
        internal_concurrency=2,
        validate_payload=False,
    )


@pytest.fixture
def app(settings: ServerSettings) -> FastAPI:
    """Make a server with internal jobs."""
    return create_app(settings)


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """Run it."""
    async with running(app) as client:
        yield client


async def workers(client: httpx.AsyncClient) -> list[dict[str, Any]]:
    """Return the workers."""
    items: list[dict[str, Any]] = (await client.get(f"{V1}/workers")).json()["items"]
    return items


@pytest.mark.timeout(30)
async def test_a_room_has_its_internal_tasks_one_after_the_other(
    settings: ServerSettings, journal: Path
) -> None:
    """With `room_max_in_flight`: who ends lets the next one in, at once and not at the next sweep."""
    settings.room_max_in_flight = 1
    settings.sweeper_interval_seconds = 60
    async with running(create_app(settings)) as client:
        tasks = [await submit(client, COUNT, journal=str(journal)) for _ in range(10)]
        assert {(await end_of(client, task))["status"] for task in tasks} == {"completed"}
    lines = journal.read_text().splitlines()  # noqa: ASYNC240 - an instant
    assert [line.split()[0] for line in lines] == ["begin", "end"] * 10


async def test_the_server_is_not_drained(client: httpx.AsyncClient) -> None:
    """An operator is told so, and what to do instead; it goes on."""
    await end_of(client, await submit(client, TWIST))
    [worker] = await workers(client)
    refused = await client.post(f"{V1}/workers/{worker['id']}/drain")
    assert (refused.status_code, refused.json()["type"].rsplit("/", 1)[-1]) == (409, "conflict")
    assert "SIGTERM" in refused.json()["detail"]
    assert (await end_of(client, await submit(client, TWIST)))["status"] == "completed"


async def test_a_task_runs_to_its_end_without_any_remote_worker(client: httpx.AsyncClient) -> None:
    """Claimed in the answer, started by the server's own worker, completed with what `run` returns."""
    task = await submit(client, TWIST, how="well")
    assert (task["status"], task["worker_id"], task["attempt"]) == ("claimed", None, 1)
    ended = await end_of(client, task)
    assert (ended["status"], ended["result"]) == ("completed", {"how": "well", "room": "lab"})
    [worker] = await workers(client)
    assert (worker["id"], worker["job_count"]) == (ended["worker_id"], 0)
    listed = (await client.get(f"{V1}/rooms/lab/jobs")).json()["items"]
    assert TWIST in {job["full_name"] for job in listed}


@pytest.mark.parametrize(
    ("how", "error", "attempt"),
    [
        ("exit", "SystemExit: 3", 2),
        ("interrupt", "KeyboardInterrupt", 2),
        ("give up", "NonRetryable: no use", 1),
        ("large", "The result has 1,048,578 bytes as JSON; 1,048,576 are allowed", 2),
        ("strange", "The result cannot be kept as JSON: ", 2),
        ("nan", "The result cannot be kept as JSON: ", 2),
    ],
)
async def test_a_run_may_go_wrong_and_takes_nothing_with_it(
    client: httpx.AsyncClient, how: str, error: str, attempt: int
) -> None:
    """The task fails with the reason, tried again as its policy says; the next one runs as if nothing was."""
    ended = await end_of(client, await submit(client, TWIST, how=how))
    assert (ended["status"], ended["attempt"]) == ("failed", attempt)
    assert ended["error"].startswith(error)
    assert (await end_of(client, await submit(client, TWIST)))["status"] == "completed"


async def test_a_payload_that_does_not_fit_fails_the_task(client: httpx.AsyncClient) -> None:
    """Where it was not checked at the submit: with the reason, and not tried again."""
    ended = await end_of(client, await submit(client, TWIST, how=["no", "text"]))
    assert (ended["status"], ended["attempt"]) == ("failed", 1)
    assert ended["error"].startswith("The payload does not fit Twist: ")


async def test_thousands_of_submits_wait_in_the_database(
    app: FastAPI, client: httpx.AsyncClient, journal: Path
) -> None:
    """The broker in memory holds a handful at any time, the loop goes on, and all of them run once."""
    places, free = asyncio.Semaphore(64), app.state.internal_registry.free
    most = free()
    lags, lowest = [0.0], [most]

    async def watch() -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.01)
            lags.append(time.monotonic() - before - 0.01)
            lowest.append(free())

    async def call() -> dict[str, Any]:
        async with places:
            return await submit(client, COUNT, journal=str(journal), seconds=0)

    watching = asyncio.create_task(watch())
    tasks = await asyncio.gather(*(call() for _ in range(1000)))
    for task in tasks:
        assert (await end_of(client, task))["status"] == "completed"
    watching.cancel()
    assert most == 4
    assert 0 <= min(lowest) < most
    assert median(lags) < 0.2
    begun = told(journal, "begin")
    assert (len(begun), set(begun.values())) == (1000, {1})


async def test_a_run_that_blocks_its_thread_blocks_nobody_else(
    client: httpx.AsyncClient, journal: Path
) -> None:
    """While two tasks keep both threads busy, the server answers; a third one waits, claimed."""
    held = [await submit(client, HEED, journal=str(journal)) for _ in range(2)]
    await until(lambda: len(told(journal, "begin")) == 2)
    third = await submit(client, TWIST)
    before = time.monotonic()
    assert (await client.get("/health/ready")).status_code == 200
    assert (await client.get(f"{V1}/tasks/{third['id']}")).json()["status"] == "claimed"
    assert time.monotonic() - before < 1
    for task in held:
        await client.patch(f"{V1}/tasks/{task['id']}", json={"status": "cancelled"})
    assert (await end_of(client, third))["status"] == "completed"


async def test_a_cancelled_run_hears_of_it_and_its_late_result_is_refused(
    client: httpx.AsyncClient, journal: Path
) -> None:
    """At once, by the event of its context; the task stays cancelled."""
    task = await submit(client, HEED, journal=str(journal))
    await until(lambda: told(journal, "begin"))
    answer = await client.patch(f"{V1}/tasks/{task['id']}", json={"status": "cancelled"})
    assert answer.status_code == 200
    await until(lambda: told(journal, "heard"), timeout=5)
    await submit(client, TWIST)
    after = (await client.get(f"{V1}/tasks/{task['id']}")).json()
    assert (after["status"], after["result"]) == ("cancelled", None)


async def test_a_released_run_hears_of_it_by_a_heartbeat(settings: ServerSettings, journal: Path) -> None:
    """It was taken away while it ran: another attempt begins, and the first one's result is refused."""
    settings.heartbeat_interval_seconds = 0.2
    async with running(create_app(settings)) as client:
        task = await submit(client, HEED, journal=str(journal))
        await until(lambda: told(journal, "begin"))
        assert (await client.post(f"{V1}/tasks/{task['id']}/release", json={})).status_code == 200
        await until(lambda: told(journal, "heard"), timeout=5)
        await until(lambda: len(told(journal, "begin")) == 2, timeout=5)
        assert {attempt for _, attempt, _ in told(journal, "begin")} == {"1", "2"}
        assert (await client.get(f"{V1}/tasks/{task['id']}")).json()["status"] == "running"
        await client.patch(f"{V1}/tasks/{task['id']}", json={"status": "cancelled"})


async def test_a_process_that_is_taken_for_dead_goes_on_as_another_worker(
    client: httpx.AsyncClient, journal: Path
) -> None:
    """What it ran is settled, and its run hears of that; what comes next is run under a new id."""
    task = await submit(client, HEED, journal=str(journal))
    await until(lambda: told(journal, "begin"))
    [worker] = await workers(client)
    assert (await client.delete(f"{V1}/workers/{worker['id']}")).status_code == 204
    assert (await end_of(client, task))["error"] == "Worker disconnected"
    await until(lambda: told(journal, "heard"), timeout=5)
    ended = await end_of(client, await submit(client, TWIST))
    assert (ended["status"], ended["worker_id"] != worker["id"]) == ("completed", True)
    assert (await client.get(f"{V1}/tasks/{task['id']}")).json()["status"] == "failed"


async def test_what_is_for_later_or_has_no_room_waits_in_its_queue(
    client: httpx.AsyncClient, journal: Path
) -> None:
    """A delay is kept, and so is a pause of the job; nothing of it is a task of the broker before."""
    await client.post(f"{V1}/rooms/@internal/jobs/{ONCE}/pause")
    waits = await submit(client, ONCE, journal=str(journal))
    assert (waits["status"], waits["queue_position"]) == ("pending", 1)
    body = {"payload": {"journal": str(journal)}, "delay_seconds": 0.5}
    later = (await client.post(f"{V1}/rooms/lab/tasks/{COUNT}", json=body)).json()
    assert (later["status"], later["run_at"] is not None) == ("pending", True)
    ended = await end_of(client, later)
    assert (ended["status"], ended["started_at"] > later["run_at"]) == ("completed", True)
    assert (await client.get(f"{V1}/tasks/{waits['id']}")).json()["status"] == "pending"
    await client.post(f"{V1}/rooms/@internal/jobs/{ONCE}/resume")
    assert (await end_of(client, waits))["status"] == "completed"


async def test_a_server_that_stops_leaves_and_the_next_one_goes_on(
    settings: ServerSettings, journal: Path
) -> None:
    """What ran gets some seconds; what waited is run by the next server; the first one's worker is gone."""
    settings.internal_concurrency = 1
    async with running(create_app(settings)) as client:
        tasks = [await submit(client, COUNT, journal=str(journal), seconds=0.3) for _ in range(5)]
        await until(lambda: told(journal, "begin"))
    assert len(told(journal, "end")) == len(told(journal, "begin")) < 5
    async with running(create_app(settings)) as client:
        ends = [await end_of(client, task) for task in tasks]
        assert {end["status"] for end in ends} == {"completed"}
        assert len(await workers(client)) == 1
    assert set(told(journal, "begin").values()) == {1}


async def test_runs_that_do_not_end_are_settled_when_the_server_stops(
    settings: ServerSettings, journal: Path
) -> None:
    """After the grace its worker leaves, as any worker: "Worker disconnected". The stop hangs on nothing."""
    async with running(create_app(settings)) as client:
        task = await submit(client, HEED, journal=str(journal))
        await until(lambda: told(journal, "begin"))
    async with running(create_app(settings)) as client:
        after = (await client.get(f"{V1}/tasks/{task['id']}")).json()
    assert (after["status"], after["error_code"]) == ("failed", "worker-lost")


@asynccontextmanager
async def without_workers(url: str) -> AsyncIterator[None]:
    """Take the table of workers away for a while."""
    path = url.removeprefix("sqlite:///")
    for statement in ("ALTER TABLE joblib_task RENAME TO away", "ALTER TABLE away RENAME TO joblib_task"):
        with sqlite3.connect(path, timeout=10) as connection:
            connection.execute(statement)
        if "TO away" in statement:
            yield


@pytest.mark.parametrize("kind", ["sqlite"])
async def test_a_report_waits_for_the_database(
    client: httpx.AsyncClient, journal: Path, database_url: str
) -> None:
    """A run that ends while the database does not answer is told of when it does."""
    task = await submit(client, COUNT, journal=str(journal), seconds=0.5)
    await until(lambda: told(journal, "begin"))
    async with without_workers(database_url):
        await until(lambda: told(journal, "end"))
        await asyncio.sleep(0.3)
    ended = await end_of(client, task)
    assert (ended["status"], ended["attempt"]) == ("completed", 1)
