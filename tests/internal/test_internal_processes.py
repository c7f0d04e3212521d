"""Internal jobs in processes of their own, over Valkey: events, kills and stops."""

import asyncio
import json
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, aclosing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
import redis.asyncio
import socketio
from cli.program import Program, RunningServer
from rest import V1
from servers import ServerProcess
from waiting import until

from internal.conftest import Valkey
from internal.processes import (
    BURN,
    COUNT,
    END_AS,
    FOLDER,
    INTERNAL_WORKER,
    JOBS,
    ONCE,
    PYTHONPATH,
    SHORT_INTERVALS,
    TASKIQ_WORKER,
    WAIT_FOR_CANCEL,
    WorkerProcess,
    count,
    journal_entries,
    submit,
    wait_for_end,
)
from zndraw_joblib.client.job_client import JobClient
from zndraw_joblib.server.internal.dispatcher import send_to_broker
from zndraw_joblib.server.internal.registry import OrderedTask
from zndraw_joblib.server.internal.setup import QueueBroker
from zndraw_joblib.wire.messages import TaskResponse
from zndraw_joblib.wire.statuses import TaskStatus
from zndraw_joblib.worker.rest import RestApi

pytestmark = pytest.mark.slow


async def owners(url: str) -> list[str]:
    """Return the owner of each worker."""
    connection = await asyncpg.connect(url)
    rows = await connection.fetch("SELECT owner_id FROM joblib_worker")
    await connection.close()
    return [row["owner_id"] for row in rows]


async def test_events_of_another_process_reach_sockets_and_waiters(
    server: ServerProcess, settings: dict[str, Any], journal: Path
) -> None:
    """The sockets of the server get each status in order; the end of the task wakes its waiter."""
    seen: list[str] = []
    async with server.client() as client:
        with WorkerProcess(INTERNAL_WORKER, **settings):
            front = socketio.AsyncClient()
            front.on("task_status_event", lambda event: seen.append(event["status"]))
            token = {"token": server.token}
            await front.connect(server.url, auth=token, transports=["websocket"], wait_timeout=60)
            assert await front.call("join_room", {"room_id": "lab"}) == {}
            assert (await wait_for_end(client, await submit(client, END_AS)))["result"]["room"] == "lab"
            await until(lambda: seen == ["claimed", "running", "completed"])
            task = await submit(client, COUNT, journal=str(journal), seconds=3)
            waiting = asyncio.create_task(wait_for_end(client, task))
            await until(lambda: journal_entries(journal, "end"))
            before = time.monotonic()
            assert (await waiting)["status"] == "completed"
            assert time.monotonic() - before < 1.2  # a re-check would come at 4.75 s
            await front.disconnect()


async def test_a_forged_message_runs_no_other_job(
    server: ServerProcess, settings: dict[str, Any], valkey: Valkey, journal: Path
) -> None:
    """A process runs a task with its payload and its job from the database, whatever Valkey contains."""
    queue = QueueBroker(valkey.url, "zndraw-joblib:internal:queue")
    async with server.client() as client:
        task = await submit(client, END_AS, how="well")
        forged = {"task_id": task["id"], "room_id": "elsewhere"}
        async with redis.asyncio.Redis.from_url(valkey.url) as messages:
            await messages.delete("zndraw-joblib:internal:queue")
        for job, payload in ((ONCE, {"journal": str(journal)}), (END_AS, {"how": "forged"})):
            await queue.register_task(_nothing, job).kiq(**forged, payload=payload)
        with WorkerProcess(INTERNAL_WORKER, **settings):
            ended = await wait_for_end(client, task)
    await queue.shutdown()
    assert (ended["result"], ended["attempt"]) == ({"how": "well", "room": "lab"}, 1)
    assert not journal_entries(journal, "begin")


@pytest.mark.parametrize("command", [INTERNAL_WORKER, TASKIQ_WORKER], ids=["internal-worker", "taskiq"])
async def test_the_tasks_of_a_killed_process_follow_their_policy(
    command: list[str], server: ServerProcess, settings: dict[str, Any], journal: Path
) -> None:
    """By default a task fails with "Worker disconnected"; with retries it runs again in another process."""
    async with server.client() as client:
        with WorkerProcess(command, **settings) as first:
            once = await submit(client, ONCE, journal=str(journal), seconds=30)
            again = await submit(client, COUNT, journal=str(journal), seconds=1)
            await until(lambda: len(journal_entries(journal, "begin")) == 2)
            first.kill()
        ended = await wait_for_end(client, once)
        assert (ended["status"], ended["error"]) == ("failed", "Worker disconnected")
        assert ended["error_code"] == "worker-lost"
        with WorkerProcess(command, **settings):
            ended = await wait_for_end(client, again)
        assert (ended["status"], ended["attempt"]) == ("completed", 2)


@pytest.mark.slow
async def test_jobs_that_use_all_processors_keep_their_worker(
    server: ServerProcess, settings: dict[str, Any], journal: Path
) -> None:
    """Four tasks compete for the interpreter for twice the worker timeout; heartbeats are still sent."""
    async with server.client() as client:
        with WorkerProcess(INTERNAL_WORKER, **settings):
            tasks = [await submit(client, BURN, journal=str(journal), seconds=4) for _ in range(4)]
            ends = [await wait_for_end(client, task) for task in tasks]
    assert {(end["status"], end["attempt"]) for end in ends} == {("completed", 1)}


async def test_a_server_killed_before_the_dispatch_loses_no_task(
    settings: dict[str, Any], valkey: Valkey, journal: Path
) -> None:
    """The task is committed; another server dispatches it, and it runs once."""
    given = {**settings, **SHORT_INTERVALS, "internal_extensions": JOBS}
    async with redis.asyncio.Redis.from_url(valkey.url) as broker:
        with ServerProcess(**given) as server:
            async with server.client() as client:
                await submit(client, END_AS)
                await broker.client_pause(60_000, all=False)
                hanging = asyncio.create_task(submit(client, COUNT, journal=str(journal)))
                while await count(client, "claimed") < 2:
                    assert not hanging.done()
                server.process.kill()
                server.process.wait(60)
                await asyncio.wait([hanging])
                assert hanging.exception() is not None
        await broker.client_unpause()
        assert await broker.zcard("zndraw-joblib:internal:queue") == 1
    with ServerProcess(**given) as server, WorkerProcess(INTERNAL_WORKER, **settings):
        async with server.client() as client:
            while await count(client, "completed") < 2:
                pass
    [(_, attempt, _)] = journal_entries(journal, "begin").elements()
    assert attempt == "1"


async def test_a_cancellation_reaches_a_run_in_another_process(
    server: ServerProcess, settings: dict[str, Any], journal: Path
) -> None:
    """The result of the cancelled run is refused."""
    async with server.client() as client:
        with WorkerProcess(INTERNAL_WORKER, **settings):
            task = await submit(client, WAIT_FOR_CANCEL, journal=str(journal))
            await until(lambda: journal_entries(journal, "begin"))
            assert (
                await client.patch(f"{V1}/tasks/{task['id']}", json={"status": "cancelled"})
            ).status_code == 200
            await until(lambda: journal_entries(journal, "cancelled"))
            await wait_for_end(client, await submit(client, END_AS))
            after = (await client.get(f"{V1}/tasks/{task['id']}")).json()
            assert (after["status"], after["result"]) == ("cancelled", None)


@pytest.mark.parametrize(
    ("number", "seconds"), [(signal.SIGINT, 1), pytest.param(signal.SIGTERM, 12, marks=pytest.mark.slow)]
)
async def test_after_a_signal_running_tasks_finish(
    number: signal.Signals, seconds: int, server: ServerProcess, settings: dict[str, Any], journal: Path
) -> None:
    """Running tasks complete, waiting ones run in another process, and the worker is removed at once."""
    given = {**settings, "internal_concurrency": 2}
    async with server.client() as client:
        with WorkerProcess(INTERNAL_WORKER, **given) as first:
            durations = [seconds, seconds, 0]
            tasks = [await submit(client, COUNT, journal=str(journal), seconds=each) for each in durations]
            await until(lambda: len(journal_entries(journal, "begin")) == 2)
            assert await owners(settings["database_url"]) == ["@internal"]
            first.process.send_signal(number)
            assert await asyncio.to_thread(first.process.wait, 60) == 0
            assert await owners(settings["database_url"]) == []
            assert len(journal_entries(journal, "end")) == len(journal_entries(journal, "begin"))
        with WorkerProcess(INTERNAL_WORKER, **given):
            ends = [await wait_for_end(client, task) for task in tasks]
    assert {(end["status"], end["attempt"]) for end in ends} == {("completed", 1)}
    assert set(journal_entries(journal, "begin").values()) == {1}


@pytest.mark.parametrize("line", ["valkey", "postgresql"])
async def test_a_resume_at_one_server_dispatches_at_another(
    line: str, settings: dict[str, Any], journal: Path
) -> None:
    """One server resumes a job without having its executor; the other dispatches its task at once."""
    if line == "postgresql":
        del settings["redis_url"]
    with (
        ServerProcess(**settings) as here,
        ServerProcess(**settings, internal_extensions=JOBS) as there,
        ExitStack() as stack,
    ):
        if line == "valkey":
            stack.enter_context(WorkerProcess(INTERNAL_WORKER, **settings))
        async with here.client() as client, there.client() as other:
            await wait_for_end(
                other, await submit(other, COUNT, journal=str(journal), seconds=0)
            )  # all processes have started
            await other.post(f"{V1}/rooms/@internal/jobs/{COUNT}/pause")
            task = await submit(other, COUNT, journal=str(journal), seconds=0)
            assert task["status"] == "pending"
            await client.post(f"{V1}/rooms/@internal/jobs/{COUNT}/resume")
            assert (await wait_for_end(client, task, seconds=10))["status"] == "completed"


async def test_several_server_processes_run_internal_tasks_themselves(
    postgres_url: str, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`serve --workers 2` without Redis: both processes run tasks, each task runs once."""
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
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
    begun = journal_entries(journal, "begin")
    assert (len(begun), set(begun.values())) == (20, {1})
    assert len({process for _, _, process in begun}) == 2


INVALID_EXTENSIONS = [
    ("nowhere.jobs:Count", "internal_extensions: 'nowhere.jobs:Count': there is no module 'nowhere.jobs'"),
    ("internal.jobs", "internal_extensions: 'internal.jobs' does not have the form module:Class"),
    ("internal.jobs:Missing", "'internal.jobs:Missing': the module 'internal.jobs' has no 'Missing'"),
    (
        "internal.jobs:note",
        "'internal.jobs:note': The function note() is no job: define it with def, and decorate it with @job",
    ),
]


@pytest.mark.parametrize(
    ("entry", "sentence"), INVALID_EXTENSIONS, ids=[entry for entry, _ in INVALID_EXTENSIONS]
)
@pytest.mark.parametrize("command", ["serve", "internal-worker"])
def test_the_error_names_an_extension_that_cannot_be_loaded(
    command: str, entry: str, sentence: str, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command prints one line before it starts."""
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
        timeout=200,
        check=False,
    )
    assert (done.returncode, sentence in done.stderr, done.stderr.count("\n")) == (2, True, 1), done.stderr


def test_an_internal_worker_prints_which_setting_is_missing(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It needs PostgreSQL, Redis and internal extensions."""
    command = [sys.executable, "-m", "zndraw_joblib", "internal-worker"]

    def error_of(**settings: str) -> str:
        for name, value in settings.items():
            monkeypatch.setenv(f"ZNDRAW_JOBLIB_{name.upper()}", value)
        done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 2
        return done.stderr

    assert "cannot use SQLite" in error_of(database_url=sqlite_url)
    assert "redis_url" in error_of(database_url="postgresql://nobody@127.0.0.1:9/none")
    assert "internal_extensions" in error_of(redis_url="redis://127.0.0.1:9")


async def test_a_backlog_runs_by_priority_and_not_while_its_job_is_paused(
    settings: dict[str, Any], valkey: Valkey, journal: Path
) -> None:
    """Also the tasks whose messages are in Redis already."""
    given = {**settings, **SHORT_INTERVALS, "internal_extensions": JOBS}
    with ServerProcess(**given) as server:
        async with server.client() as client:
            url, body = f"{V1}/rooms/lab/tasks", {"payload": {"journal": str(journal)}}
            paused = (await client.post(f"{url}/{END_AS}", json={"priority": 9})).raise_for_status().json()
            assert paused["status"] == "claimed"
            (await client.post(f"{V1}/rooms/lab/jobs/{END_AS}/pause")).raise_for_status()
            tasks = [
                (await client.post(f"{url}/{COUNT}", json={**body, "priority": priority})).json()
                for priority in (0, 0, 5, -5, 7)
            ]
            with WorkerProcess(INTERNAL_WORKER, **{**settings, "internal_concurrency": 1}):
                ends = [await wait_for_end(client, task) for task in tasks]
                starts = [end["started_at"] for end in ends]
                assert sorted(starts) == [starts[n] for n in (4, 2, 0, 1, 3)]
                # Its message was taken; the task itself returned to its queue.
                assert (await client.get(f"{V1}/tasks/{paused['id']}")).json()["status"] == "pending"
                (await client.post(f"{V1}/rooms/lab/jobs/{END_AS}/resume")).raise_for_status()
                assert (await wait_for_end(client, paused))["started_at"] > max(starts)


async def test_the_broker_gives_out_the_highest_priority_first(valkey: Valkey) -> None:
    """Then the oldest, over all jobs; a message without a place comes before those with one."""
    broker = QueueBroker(valkey.url, "test:order")
    now = datetime.now(UTC)
    tasks = {
        "old": (0, now - timedelta(seconds=1)),
        "lowest": (-1000, now - timedelta(days=20_000)),
        "new": (0, now),
        "high": (1, now + timedelta(days=20_000)),
        "highest": (1000, now),
    }
    names = {}
    for name, (priority, created_at) in tasks.items():
        task = TaskResponse(
            id=uuid4(),
            job_name=f"@internal:modifiers:{name}",
            room_id="lab",
            status=TaskStatus.CLAIMED,
            created_at=created_at,
            payload={},
            priority=priority,
        )
        names[str(task.id)] = name
        await send_to_broker(OrderedTask(broker.register_task(_nothing, name)), task, 30)
    taken = []
    async with aclosing(broker.listen()) as messages:
        async for message in messages:
            taken.append(names[json.loads(message)["kwargs"]["task_id"]])
            if len(taken) == len(tasks):
                break
    await broker.shutdown()
    assert taken == ["highest", "high", "old", "new", "lowest"]


async def _nothing(**_: Any) -> None:
    """Do nothing."""
