"""Internal jobs in the process of the server: in threads, with bounded memory."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from databases import on_both
from endings import ENDINGS, RAISED_BY_VALIDATORS
from fastapi import FastAPI
from rest import V1
from waiting import until

from internal.processes import (
    ANY_END,
    AWAIT_CANCEL,
    COUNT,
    END_AS,
    JOBS,
    ONCE,
    TOKEN,
    WAIT_FOR_CANCEL,
    journal_entries,
    running,
    submit,
    wait_for_end,
)
from zndraw_joblib.server.host.app import create_app
from zndraw_joblib.server.process.settings import ServerSettings


@pytest.fixture
def settings(database_url: str) -> ServerSettings:
    """Return settings with which two tasks run at once."""
    return ServerSettings(
        database_url=database_url,
        admin_token=TOKEN,
        internal_extensions=JOBS,
        internal_concurrency=2,
        validate_payload=False,
    )


@pytest.fixture
def app(settings: ServerSettings) -> FastAPI:
    """Return a server with internal jobs."""
    return create_app(settings)


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """Run the server; return a client."""
    async with running(app) as client:
        yield client


async def workers(client: httpx.AsyncClient) -> list[dict[str, Any]]:
    """Return all workers."""
    items: list[dict[str, Any]] = (await client.get(f"{V1}/workers")).json()["items"]
    return items


@on_both
async def test_room_max_in_flight_runs_internal_tasks_one_by_one(
    settings: ServerSettings, journal: Path
) -> None:
    """The end of a task starts the next one at once, not at the next sweep."""
    settings.room_max_in_flight = 1
    settings.sweeper_interval_seconds = 60
    async with running(create_app(settings)) as client:
        tasks = [await submit(client, COUNT, journal=str(journal)) for _ in range(10)]
        assert {(await wait_for_end(client, task))["status"] for task in tasks} == {"completed"}
    lines = journal.read_text().splitlines()  # noqa: ASYNC240 - the file is small
    assert [line.split()[0] for line in lines] == ["begin", "end"] * 10


async def test_the_worker_of_the_server_cannot_be_drained(client: httpx.AsyncClient) -> None:
    """The problem explains what to do instead; the worker continues."""
    await wait_for_end(client, await submit(client, END_AS))
    [worker] = await workers(client)
    refused = await client.post(f"{V1}/workers/{worker['id']}/drain")
    assert (refused.status_code, refused.json()["type"].rsplit("/", 1)[-1]) == (409, "conflict")
    assert "SIGTERM" in refused.json()["detail"]
    assert (await wait_for_end(client, await submit(client, END_AS)))["status"] == "completed"


async def test_an_internal_task_needs_no_remote_worker(client: httpx.AsyncClient) -> None:
    """The submission returns it claimed; the worker of the server starts and completes it."""
    task = await submit(client, END_AS, how="well")
    assert (task["status"], task["worker_id"], task["attempt"]) == ("claimed", None, 1)
    ended = await wait_for_end(client, task)
    assert (ended["status"], ended["result"]) == ("completed", {"how": "well", "room": "lab"})
    [worker] = await workers(client)
    assert (worker["id"], worker["job_count"]) == (ended["worker_id"], 0)
    listed = (await client.get(f"{V1}/rooms/lab/jobs")).json()["items"]
    assert END_AS in {job["full_name"] for job in listed}


@pytest.mark.parametrize(
    ("how", "error", "attempt"),
    [
        ("exit", "SystemExit: 3", 2),
        ("interrupt", "KeyboardInterrupt", 2),
        ("give up", "NonRetryable: no use", 1),
        ("again", "Retry: busy", 2),
        ("key", "KeyError: 'no use'", 1),
        ("strange", "The result cannot be sent as JSON: ", 2),
    ],
)
async def test_a_failed_run_affects_no_other_task(
    client: httpx.AsyncClient, how: str, error: str, attempt: int
) -> None:
    """The task fails with the reason, retried by its policy; the next task runs as usual."""
    ended = await wait_for_end(client, await submit(client, END_AS, how=how))
    assert (ended["status"], ended["attempt"]) == ("failed", attempt)
    assert ended["error"].startswith(error)
    assert (await wait_for_end(client, await submit(client, END_AS)))["status"] == "completed"


@on_both
@pytest.mark.parametrize(
    ("how", "content"),
    [("large", b'"' + b"x" * 1024 * 1024 + b'"'), ("nan", b'{"$zndraw":"float","value":"NaN"}')],
)
async def test_a_result_of_any_size_is_kept(client: httpx.AsyncClient, how: str, content: bytes) -> None:
    """A large one is stored as bytes, without HTTP; NaN is tagged JSON."""
    ended = await wait_for_end(client, await submit(client, END_AS, how=how))
    assert (ended["status"], ended["error"]) == ("completed", None)
    assert ("stored_result" in ended) == (how == "large")
    got = await client.get(f"{V1}/tasks/{ended['id']}/result")
    assert (got.headers["content-type"], got.content) == ("application/json", content)


async def test_an_invalid_payload_fails_the_task(client: httpx.AsyncClient) -> None:
    """With `validate_payload` off, the run reports the reason; the task is not retried."""
    ended = await wait_for_end(client, await submit(client, END_AS, how=["no", "text"]))
    assert (ended["status"], ended["attempt"]) == ("failed", 1)
    assert ended["error"].startswith("The payload does not fit EndAs: ")


@pytest.mark.slow
async def test_a_thousand_submissions_wait_in_the_database(
    app: FastAPI, client: httpx.AsyncClient, journal: Path
) -> None:
    """The broker in memory holds at most four; each task runs once."""
    limit, free = asyncio.Semaphore(64), app.state.internal_registry.free
    most = free()
    lowest = [most]

    async def watch() -> None:
        while True:
            await asyncio.sleep(0.01)
            lowest.append(free())

    async def call() -> dict[str, Any]:
        async with limit:
            return await submit(client, COUNT, journal=str(journal), seconds=0)

    watching = asyncio.create_task(watch())
    tasks = await asyncio.gather(*(call() for _ in range(1000)))
    for task in tasks:
        assert (await wait_for_end(client, task))["status"] == "completed"
    watching.cancel()
    assert most == 4
    assert 0 <= min(lowest) < most
    begun = journal_entries(journal, "begin")
    assert (len(begun), set(begun.values())) == (1000, {1})


async def test_a_run_that_blocks_its_thread_blocks_no_request(
    client: httpx.AsyncClient, journal: Path
) -> None:
    """While two tasks keep both threads busy, the server responds; a third task stays claimed."""
    held = [await submit(client, WAIT_FOR_CANCEL, journal=str(journal)) for _ in range(2)]
    await until(lambda: len(journal_entries(journal, "begin")) == 2)
    third = await submit(client, END_AS)
    assert (await client.get("/health/ready")).status_code == 200
    assert (await client.get(f"{V1}/tasks/{third['id']}")).json()["status"] == "claimed"
    assert not journal_entries(journal, "end")
    for task in held:
        await client.patch(f"{V1}/tasks/{task['id']}", json={"status": "cancelled"})
    assert (await wait_for_end(client, third))["status"] == "completed"


@pytest.mark.parametrize("job", [WAIT_FOR_CANCEL, AWAIT_CANCEL])
async def test_a_cancelled_run_is_notified_and_its_late_result_refused(
    client: httpx.AsyncClient, journal: Path, job: str
) -> None:
    """The event of its context is set at once, or its coroutine is cancelled; the task stays cancelled."""
    task = await submit(client, job, journal=str(journal))
    await until(lambda: journal_entries(journal, "begin"))
    response = await client.patch(f"{V1}/tasks/{task['id']}", json={"status": "cancelled"})
    assert response.status_code == 200
    await until(lambda: journal_entries(journal, "cancelled"))
    assert (await wait_for_end(client, await submit(client, END_AS)))["status"] == "completed"
    after = (await client.get(f"{V1}/tasks/{task['id']}")).json()
    assert (after["status"], after["result"]) == ("cancelled", None)


async def test_a_heartbeat_notifies_a_released_run(settings: ServerSettings, journal: Path) -> None:
    """The task is released while it runs: another attempt begins, and the first result is refused."""
    settings.heartbeat_interval_seconds = 0.2
    async with running(create_app(settings)) as client:
        task = await submit(client, WAIT_FOR_CANCEL, journal=str(journal))
        await until(lambda: journal_entries(journal, "begin"))
        assert (await client.post(f"{V1}/tasks/{task['id']}/release", json={})).status_code == 200
        await until(lambda: journal_entries(journal, "cancelled"))
        await until(lambda: len(journal_entries(journal, "begin")) == 2)
        assert {attempt for _, attempt, _ in journal_entries(journal, "begin")} == {"1", "2"}
        assert (await client.get(f"{V1}/tasks/{task['id']}")).json()["status"] == "running"
        await client.patch(f"{V1}/tasks/{task['id']}", json={"status": "cancelled"})


async def test_a_removed_worker_continues_under_a_new_id(client: httpx.AsyncClient, journal: Path) -> None:
    """Its task fails and its run is notified; the next task runs under a new worker id."""
    task = await submit(client, WAIT_FOR_CANCEL, journal=str(journal))
    await until(lambda: journal_entries(journal, "begin"))
    [worker] = await workers(client)
    assert (await client.delete(f"{V1}/workers/{worker['id']}")).status_code == 204
    assert (await wait_for_end(client, task))["error"] == "Worker disconnected"
    await until(lambda: journal_entries(journal, "cancelled"))
    ended = await wait_for_end(client, await submit(client, END_AS))
    assert (ended["status"], ended["worker_id"] != worker["id"]) == ("completed", True)
    assert (await client.get(f"{V1}/tasks/{task['id']}")).json()["status"] == "failed"


async def test_a_scheduled_task_and_a_paused_job_wait_in_the_queue(
    client: httpx.AsyncClient, journal: Path
) -> None:
    """No task is dispatched before its time or while its job is paused."""
    await client.post(f"{V1}/rooms/@internal/jobs/{ONCE}/pause")
    waits = await submit(client, ONCE, journal=str(journal))
    assert (waits["status"], waits["queue_position"]) == ("pending", 1)
    body = {"payload": {"journal": str(journal)}, "delay_seconds": 0.5}
    later = (await client.post(f"{V1}/rooms/lab/tasks/{COUNT}", json=body)).json()
    assert (later["status"], later["run_at"] is not None) == ("pending", True)
    ended = await wait_for_end(client, later)
    assert (ended["status"], ended["started_at"] > later["run_at"]) == ("completed", True)
    assert (await client.get(f"{V1}/tasks/{waits['id']}")).json()["status"] == "pending"
    await client.post(f"{V1}/rooms/@internal/jobs/{ONCE}/resume")
    assert (await wait_for_end(client, waits))["status"] == "completed"


@on_both
async def test_the_next_server_runs_the_tasks_of_a_stopped_one(
    settings: ServerSettings, journal: Path
) -> None:
    """Running tasks finish, the next server runs the waiting ones, and the first worker is removed."""
    settings.internal_concurrency = 1
    async with running(create_app(settings)) as client:
        tasks = [await submit(client, COUNT, journal=str(journal), seconds=0.3) for _ in range(5)]
        await until(lambda: journal_entries(journal, "begin"))
    assert len(journal_entries(journal, "end")) == len(journal_entries(journal, "begin")) < 5
    async with running(create_app(settings)) as client:
        ends = [await wait_for_end(client, task) for task in tasks]
        assert {end["status"] for end in ends} == {"completed"}
        assert len(await workers(client)) == 1
    assert set(journal_entries(journal, "begin").values()) == {1}


async def test_a_run_that_does_not_end_fails_when_the_server_stops(
    settings: ServerSettings, journal: Path
) -> None:
    """After the grace period its worker leaves and the task fails with "Worker disconnected"."""
    async with running(create_app(settings)) as client:
        task = await submit(client, WAIT_FOR_CANCEL, journal=str(journal))
        await until(lambda: journal_entries(journal, "begin"))
    async with running(create_app(settings)) as client:
        after = (await client.get(f"{V1}/tasks/{task['id']}")).json()
    assert (after["status"], after["error_code"]) == ("failed", "worker-lost")


def execute(path: str, statement: str) -> None:
    """Execute a statement on a SQLite file, and commit it."""
    with closing(sqlite3.connect(path, timeout=60)) as connection, connection:
        connection.execute(statement)


@asynccontextmanager
async def without_task_table(url: str) -> AsyncIterator[None]:
    """Rename the table of tasks inside the `with` block."""
    path = url.removeprefix("sqlite:///")
    # In a thread: the server of this event loop may be in a transaction, which has to end first.
    await asyncio.to_thread(execute, path, "ALTER TABLE joblib_task RENAME TO away")
    yield
    await asyncio.to_thread(execute, path, "ALTER TABLE away RENAME TO joblib_task")


async def test_a_report_is_repeated_until_the_database_responds(
    client: httpx.AsyncClient, journal: Path, database_url: str
) -> None:
    """A run that ends while the database fails is reported when the database works again."""
    task = await submit(client, COUNT, journal=str(journal), seconds=0.5)
    await until(lambda: journal_entries(journal, "begin"))
    async with without_task_table(database_url):
        await until(lambda: journal_entries(journal, "end"))
        await asyncio.sleep(0.3)
    ended = await wait_for_end(client, task)
    assert (ended["status"], ended["attempt"]) == ("completed", 1)


async def test_any_ending_is_reported(client: httpx.AsyncClient, subtests: pytest.Subtests) -> None:
    """The task fails with a text, and no slot is lost: more tasks than slots run afterwards."""
    for how in (*ENDINGS, *(f"validator: {how}" for how in RAISED_BY_VALIDATORS)):
        with subtests.test(how=how):
            ended = await wait_for_end(client, await submit(client, ANY_END, how=how))
            assert ended["status"] == "failed"
            is_invalid = how.startswith("validator")
            assert ended["error"].startswith(
                "The payload does not fit AnyEnd: " if is_invalid else ENDINGS[how][1]
            )
            for task in [await submit(client, ANY_END) for _ in range(3)]:
                assert (await wait_for_end(client, task))["result"] == "well"


@on_both
async def test_a_result_that_the_server_refuses_fails_the_task(client: httpx.AsyncClient) -> None:
    """A text that the database cannot store is an error with a reason, on both databases."""
    ended = await wait_for_end(client, await submit(client, ANY_END, how="nul"))
    assert ended["status"] in {"completed", "failed"}


@pytest.fixture
def impatient(settings: ServerSettings) -> ServerSettings:
    """Return settings with one slot, which sweep often; a test sets the time limit once its task runs."""
    settings.internal_concurrency = 1
    settings.sweeper_interval_seconds = 0.2
    settings.heartbeat_interval_seconds = 0.1
    settings.internal_abandon_seconds = 0.2
    return settings


async def test_a_run_that_never_ends_frees_its_slot(
    impatient: ServerSettings, journal: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its task fails at its time limit; soon after, the next task runs."""
    gate = tmp_path / "gate"
    async with running(create_app(impatient)) as client:
        endless = await submit(client, ONCE, journal=str(journal), gate=str(gate))
        await until(lambda: journal_entries(journal, "begin"))
        impatient.internal_task_timeout_seconds = 0.1
        assert (await wait_for_end(client, endless))["error"] == "Internal worker timeout"
        await until(lambda: "its thread is abandoned and its slot freed" in caplog.text)
        impatient.internal_task_timeout_seconds = 60
        assert (await wait_for_end(client, await submit(client, END_AS)))["status"] == "completed"
        gate.touch()
        await until(lambda: journal_entries(journal, "end"))
        assert (await client.get(f"{V1}/tasks/{endless['id']}")).json()["status"] == "failed"


async def test_the_number_of_abandoned_runs_is_bounded(
    impatient: ServerSettings, journal: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Further runs keep their slots, the server is not ready, and recovers when they end."""
    impatient.internal_max_abandoned = 1
    gate = tmp_path / "gate"
    async with running(create_app(impatient)) as client:

        async def state() -> tuple[int, str]:
            found = await client.get("/health/ready")
            return found.status_code, found.json()["checks"]["internal"]

        async def is_ready() -> bool:
            return (await state())[0] == 200

        async def is_not_ready() -> bool:
            return not await is_ready()

        for number, text in enumerate(("its slot freed", "keeps its slot"), 1):
            await submit(client, ONCE, journal=str(journal), gate=str(gate))
            await until(lambda number=number: len(journal_entries(journal, "begin")) == number)
            impatient.internal_task_timeout_seconds = 0.1
            await until(lambda text=text: text in caplog.text)
            impatient.internal_task_timeout_seconds = 60
        await until(is_not_ready)
        status, text = await state()
        assert (status, "internal_max_abandoned" in text) == (503, True)
        waits = await submit(client, END_AS)
        assert (await client.get(f"{V1}/tasks/{waits['id']}")).json()["status"] == "claimed"
        gate.touch()
        assert (await wait_for_end(client, waits))["status"] == "completed"
        await until(is_ready)
