"""Internal jobs in processes of their own, over Valkey: what is told, who is killed, and how they stop."""

import asyncio
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import redis.asyncio
import socketio
from cli.program import Program, RunningServer
from rest import V1
from servers import ServerProcess
from waiting import until

from internal.conftest import Valkey
from internal.crew import (
    BURN,
    COUNT,
    FOLDER,
    HEED,
    JOBS,
    ONCE,
    OURS,
    QUICK,
    TASKIQ,
    TWIST,
    Hand,
    count,
    end_of,
    submit,
    told,
)
from zndraw_joblib.worker.client import JobClient
from zndraw_joblib.worker.rest import RestApi


async def owners(url: str) -> list[str]:
    """Return the owners of all workers."""
    connection = await asyncpg.connect(url)
    rows = await connection.fetch("SELECT owner_id FROM joblib_worker")
    await connection.close()
    return [row["owner_id"] for row in rows]


@pytest.mark.timeout(90)
async def test_what_happens_elsewhere_is_heard_at_the_server(
    server: ServerProcess, settings: dict[str, Any], journal: Path
) -> None:
    """Its sockets hear of each status in order; whoever waits for the end is woken by it."""
    seen: list[str] = []
    async with server.client() as client:
        with Hand(OURS, **settings):
            front = socketio.AsyncClient()
            front.on("task_status_event", lambda event: seen.append(event["status"]))
            await front.connect(server.url, auth={"token": server.token}, transports=["websocket"])
            assert await front.call("join_room", {"room_id": "lab"}) == {}
            assert (await end_of(client, await submit(client, TWIST)))["result"]["room"] == "lab"
            await until(lambda: seen == ["claimed", "running", "completed"])
            task = await submit(client, COUNT, journal=str(journal), seconds=2)
            waiting = asyncio.create_task(end_of(client, task))
            await until(lambda: told(journal, "end"))
            before = time.monotonic()
            assert (await waiting)["status"] == "completed"
            assert time.monotonic() - before < 0.4
            await front.disconnect()


@pytest.mark.timeout(90)
@pytest.mark.parametrize("command", [OURS, TASKIQ], ids=["internal-worker", "taskiq"])
async def test_the_tasks_of_a_killed_process_follow_their_policy(
    command: list[str], server: ServerProcess, settings: dict[str, Any], journal: Path
) -> None:
    """By default they fail with "Worker disconnected"; where the job says so they run again elsewhere."""
    async with server.client() as client:
        with Hand(command, **settings) as first:
            once = await submit(client, ONCE, journal=str(journal), seconds=30)
            again = await submit(client, COUNT, journal=str(journal), seconds=1)
            await until(lambda: len(told(journal, "begin")) == 2)
            first.kill()
        ended = await end_of(client, once)
        assert (ended["status"], ended["error"]) == ("failed", "Worker disconnected")
        assert ended["error_code"] == "worker-lost"
        with Hand(command, **settings):
            ended = await end_of(client, again)
        assert (ended["status"], ended["attempt"]) == ("completed", 2)


@pytest.mark.slow
@pytest.mark.timeout(90)
async def test_jobs_that_burn_the_processor_do_not_look_dead(
    server: ServerProcess, settings: dict[str, Any], journal: Path
) -> None:
    """Four of them fight for the interpreter for twice the timeout of a worker: its heartbeats go out."""
    async with server.client() as client:
        with Hand(OURS, **settings):
            tasks = [await submit(client, BURN, journal=str(journal), seconds=4) for _ in range(4)]
            ends = [await end_of(client, task) for task in tasks]
    assert {(end["status"], end["attempt"]) for end in ends} == {("completed", 1)}


@pytest.mark.timeout(90)
async def test_a_server_that_is_killed_before_the_broker_hears_of_a_task_loses_nothing(
    settings: dict[str, Any], valkey: Valkey, journal: Path
) -> None:
    """It was committed, and another server hands it over: it runs once."""
    given = {**settings, **QUICK, "internal_extensions": JOBS}
    async with redis.asyncio.Redis.from_url(valkey.url) as broker:
        with ServerProcess(**given) as server:
            async with server.client() as client:
                await submit(client, TWIST)
                await broker.client_pause(60_000, all=False)
                hanging = asyncio.create_task(submit(client, COUNT, journal=str(journal)))
                while await count(client, "claimed") < 2:
                    assert not hanging.done()
                server.process.kill()
                server.process.wait(10)
                await asyncio.wait([hanging])
                assert hanging.exception() is not None
        await broker.client_unpause()
        assert await broker.llen("zndraw-joblib:internal") == 1
    with ServerProcess(**given) as server, Hand(OURS, **settings):
        async with server.client() as client:
            while await count(client, "completed") < 2:
                pass
    [(_, attempt, _)] = told(journal, "begin").elements()
    assert attempt == "1"


@pytest.mark.timeout(90)
async def test_a_task_that_is_cancelled_meanwhile_is_told_to_its_run(
    server: ServerProcess, settings: dict[str, Any], journal: Path
) -> None:
    """In the other process too; what it returns then is refused."""
    async with server.client() as client:
        with Hand(OURS, **settings):
            task = await submit(client, HEED, journal=str(journal))
            await until(lambda: told(journal, "begin"))
            assert (
                await client.patch(f"{V1}/tasks/{task['id']}", json={"status": "cancelled"})
            ).status_code == 200
            await until(lambda: told(journal, "heard"))
            await end_of(client, await submit(client, TWIST))
            after = (await client.get(f"{V1}/tasks/{task['id']}")).json()
            assert (after["status"], after["result"]) == ("cancelled", None)


@pytest.mark.timeout(90)
@pytest.mark.parametrize(
    ("number", "seconds"), [(signal.SIGINT, 1), pytest.param(signal.SIGTERM, 12, marks=pytest.mark.slow)]
)
async def test_a_signal_lets_running_tasks_end(
    number: signal.Signals, seconds: int, server: ServerProcess, settings: dict[str, Any], journal: Path
) -> None:
    """They are completed, what was not begun runs elsewhere, and the worker is gone at once."""
    given = {**settings, "internal_concurrency": 2}
    async with server.client() as client:
        with Hand(OURS, **given) as first:
            lasting = [seconds, seconds, 0]
            tasks = [await submit(client, COUNT, journal=str(journal), seconds=each) for each in lasting]
            await until(lambda: len(told(journal, "begin")) == 2)
            assert await owners(settings["database_url"]) == ["@internal"]
            first.process.send_signal(number)
            assert await asyncio.to_thread(first.process.wait, 20) == 0
            assert await owners(settings["database_url"]) == []
            assert len(told(journal, "end")) == len(told(journal, "begin"))
        with Hand(OURS, **given):
            ends = [await end_of(client, task) for task in tasks]
    assert {(end["status"], end["attempt"]) for end in ends} == {("completed", 1)}
    assert set(told(journal, "begin").values()) == {1}


@pytest.mark.timeout(90)
@pytest.mark.parametrize("line", ["valkey", "postgresql"])
async def test_a_server_that_knows_the_job_hears_of_what_another_one_lets_in(
    line: str, settings: dict[str, Any], journal: Path
) -> None:
    """One server resumes a job of which it has no executor; the other dispatches at once, not in a cycle."""
    if line == "postgresql":
        del settings["redis_url"]
    with (
        ServerProcess(**settings) as here,
        ServerProcess(**settings, internal_extensions=JOBS) as there,
        ExitStack() as stack,
    ):
        if line == "valkey":
            stack.enter_context(Hand(OURS, **settings))
        async with here.client() as client, there.client() as other:
            await end_of(
                other, await submit(other, COUNT, journal=str(journal), seconds=0)
            )  # all have started
            await other.post(f"{V1}/rooms/@internal/jobs/{COUNT}/pause")
            task = await submit(other, COUNT, journal=str(journal), seconds=0)
            assert task["status"] == "pending"
            await client.post(f"{V1}/rooms/@internal/jobs/{COUNT}/resume")
            assert (await end_of(client, task, seconds=10))["status"] == "completed"


@pytest.mark.timeout(90)
async def test_several_server_processes_run_internal_tasks_themselves(
    postgres_url: str, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`serve --workers 2` without Redis: both take tasks, each of which runs once."""
    monkeypatch.setenv("PYTHONPATH", str(FOLDER))
    program = Program(FOLDER, DATABASE_URL=postgres_url, INTERNAL_EXTENSIONS=JOBS, INTERNAL_CONCURRENCY="1")
    program.env["ZNDRAW_JOBLIB_CREDENTIALS"] = str(journal.with_name("credentials.json"))
    program.credentials = journal.with_name("credentials.json")

    def call_all() -> list[Any]:
        with RunningServer(program, "--workers", "2") as serving, serving.connect() as connection:
            client = JobClient(RestApi(connection))
            payload = {"journal": str(journal), "seconds": 0.1}
            tasks = [client.submit(COUNT, payload, room="lab") for _ in range(20)]
            return [client.wait_for(task, 30) for task in tasks]

    ends = await asyncio.to_thread(call_all)
    assert {end.status for end in ends} == {"completed"}
    begun = told(journal, "begin")
    assert (len(begun), set(begun.values())) == (20, {1})
    assert len({process for _, _, process in begun}) == 2


WRONG = [
    ("nowhere.jobs:Count", "internal_extensions: 'nowhere.jobs:Count': there is no module 'nowhere.jobs'"),
    ("internal.jobs", "internal_extensions: 'internal.jobs' is not of the form module:Class"),
    ("internal.jobs:Missing", "'internal.jobs:Missing': the module 'internal.jobs' has no 'Missing'"),
    ("internal.jobs:note", "'internal.jobs:note' is no extension: no class with a category and a run method"),
]


@pytest.mark.parametrize(("entry", "sentence"), WRONG, ids=[entry for entry, _ in WRONG])
@pytest.mark.parametrize("command", ["serve", "internal-worker"])
def test_an_extension_that_cannot_be_loaded_is_named(
    command: str, entry: str, sentence: str, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one sentence, before anything begins."""
    monkeypatch.setenv("ZNDRAW_JOBLIB_INTERNAL_EXTENSIONS", entry)
    monkeypatch.setenv("ZNDRAW_JOBLIB_DATABASE_URL", postgres_url)
    monkeypatch.setenv("ZNDRAW_JOBLIB_REDIS_URL", "redis://127.0.0.1:9")
    monkeypatch.setenv("ZNDRAW_JOBLIB_ADMIN_TOKEN", "a-token-of-the-tests")
    options = ["--port", "0"] if command == "serve" else []
    done = subprocess.run(
        [sys.executable, "-m", "zndraw_joblib", command, *options],
        cwd=FOLDER,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (done.returncode, sentence in done.stderr, done.stderr.count("\n")) == (2, True, 1), done.stderr


def test_an_internal_worker_says_what_it_needs(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL, Redis and something to run."""
    command = [sys.executable, "-m", "zndraw_joblib", "internal-worker"]

    def said(**settings: str) -> str:
        for name, value in settings.items():
            monkeypatch.setenv(f"ZNDRAW_JOBLIB_{name.upper()}", value)
        done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, timeout=50, check=False)
        assert done.returncode == 2
        return done.stderr

    assert "SQLite is for one server process" in said(database_url=sqlite_url)
    assert "redis_url" in said(database_url="postgresql://nobody@127.0.0.1:9/none")
    assert "names nothing" in said(redis_url="redis://127.0.0.1:9")
