"""The worker of the npm package, against real servers, with tasks that are submitted from Python."""

import asyncio
import signal
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from generate import types
from rest import V1
from servers import ServerProcess
from tcp_proxy import TcpProxy
from waiting import until, wait_until

from typescript.package import node
from zndraw_joblib import NewTask, Queue, TaskFailed, TaskHandle
from zndraw_joblib.testing.conformance.runs import Run
from zndraw_joblib.testing.conformance.scenarios import SCENARIOS

pytestmark = pytest.mark.processes
# Each request of a worker, whose first response is lost.
LOST = ("POST workers", "PUT jobs", "POST claim", "POST report", "PUT result", "refused POST echo")


def test_the_worker_runs_tasks(programs: Path, server: ServerProcess) -> None:
    """Values, files, failures and retries arrive, though the first response to each request is lost.

    After SIGTERM the task that runs ends, and the worker leaves.
    """
    with (
        node(programs / "worker.js", server.url, server.token, *LOST) as worker,
        Queue(server.url, server.token, room="lab") as queue,
    ):
        worker.wait_for("serves")
        check_results(queue)
        check_failures(queue)
        assert queue.submit("parent").result(60) == 2**60
        # One that takes both slots runs alone.
        costly, behind = queue.submit("wait", {"seconds": 0.5}, cost=2), queue.submit("echo", {"value": 1})
        assert behind.result(60) == 1
        assert costly.refresh().status == "completed"
        last = queue.submit("wait", {"seconds": 1})
        wait_until(lambda: last.refresh().status in {"running", "completed"})
        worker.process.send_signal(signal.SIGTERM)
        worker.wait_for("left")
        assert worker.end() == 0
        assert last.result(60) == 1
    assert {line.removeprefix("lost: ") for line in worker.lines if line.startswith("lost: ")} == set(LOST)


async def test_a_worker_follows_the_verdicts(programs: Path, server: ServerProcess) -> None:
    """Its heartbeats tell it which task is lost or cancelled; when an operator drains it, it leaves."""
    async with server.client() as client:
        with node(programs / "worker.js", server.url, server.token) as worker:
            await asyncio.to_thread(worker.wait_for, "serves")
            body = {"payload": {"seconds": 600}}
            task = (await client.post(f"{V1}/rooms/lab/tasks/@global:jobs:wait", json=body)).json()
            url = f"{V1}/tasks/{task['id']}"
            await until(lambda: is_attempt(client, url, 1))
            assert (await client.post(f"{url}/release", json={})).status_code == 200
            await asyncio.to_thread(worker.wait_for, "stopped: lost")
            await until(lambda: is_attempt(client, url, 2))
            assert (await client.patch(url, json={"status": "cancelled"})).status_code == 200
            await asyncio.to_thread(worker.wait_for, "stopped: cancelled")
            leaving = f"{V1}/workers/{(await client.get(url)).json()['worker_id']}"
            info = (await client.get(leaving)).json()
            assert (info["name"], info["slots"], info["tasks"]) == ("typescript", 2, [])
            await client.post(f"{leaving}/drain")
            assert await asyncio.to_thread(worker.end) == 0
            assert (await client.get(leaving)).status_code == 404


def test_a_worker_survives_odd_errors_and_refusals(programs: Path, server: ServerProcess) -> None:
    """Whatever a job throws, its task fails and the next one runs; so they do where the log throws.

    Registered again, the worker leaves out the job that is refused, and repeats what may succeed later.
    """
    with (
        node(programs / "faults.js", server.url, server.token) as worker,
        Queue(server.url, server.token, room="lab") as queue,
        httpx.Client(
            base_url=server.url, headers={"Authorization": f"Bearer {server.token}"}, timeout=60
        ) as client,
    ):
        invalid = worker.wait_for("invalid: ")
        assert 'JoblibError: headers: "Authorization" cannot be sent' in invalid
        assert "secret" not in invalid
        worker.wait_for("serves")
        assert fail(queue, "bare") == "Error: it has no text"
        assert fail(queue, "nameless") == "Error: no name"
        former = queue.submit("odd", {"thing": "stack"}).wait(60).worker_id
        assert client.delete(f"{V1}/workers/{former}").is_success
        assert "@global:jobs:refused" in worker.wait_for("error: ")
        worker.wait_for("replaces")
        assert fail(queue, "hostile") == "Error: it has no text"
        worker.process.send_signal(signal.SIGTERM)
        worker.wait_for("left")


def fail(queue: Queue, thing: str) -> str:
    """Run a job that throws a thing; return the message."""
    with pytest.raises(TaskFailed) as failed:
        queue.submit("odd", {"thing": thing}).result(60)
    return failed.value.message


def test_a_worker_gives_back_the_tasks_of_a_lost_claim(programs: Path, server: ServerProcess) -> None:
    """One that stops claims them again; otherwise they would fail when it leaves."""
    with (
        node(programs / "faults.js", server.url, server.token, "loses-claim") as worker,
        Queue(server.url, server.token, room="lab") as queue,
    ):
        worker.wait_for("serves")
        task = queue.submit("odd", {"thing": "stack"})
        worker.wait_for("lost")
        worker.wait_for("left")
        assert worker.end() == 0
        assert (task.refresh().status, task.refresh().attempt) == ("pending", 1)
        task.cancel()


def test_a_worker_that_may_not_claim_leaves(programs: Path, server: ServerProcess) -> None:
    """It says why, and its run rejects."""
    with node(programs / "faults.js", server.url, server.token, "forbidden") as worker:
        assert "the token may not serve these jobs" in worker.wait_for("error: ")
        assert worker.wait_for("refused: ") == "refused: Forbidden"
        assert worker.end() == 0


def test_a_worker_says_why_it_cannot_register(programs: Path, server: ServerProcess) -> None:
    """It logs each attempt while the server is away; a token that the server refuses ends it at once."""
    with node(programs / "worker.js", "http://127.0.0.1:9", server.token) as worker:
        assert "ServerUnreachable" in worker.wait_for("warning: Registering: ")
    with node(programs / "worker.js", server.url, "unknown") as worker:
        assert worker.end() == 1
        assert worker.lines == []


async def is_attempt(client: httpx.AsyncClient, url: str, attempt: int) -> bool:
    """Return whether a task runs by this attempt, and has a log."""
    task = (await client.get(url)).json()
    return bool((task["status"], task["attempt"]) == ("running", attempt))


def check_results(queue: Queue) -> None:
    """Run jobs that return values of all kinds."""
    big: dict[str, Any] = {"id": 2**63 + 1, "text": "ä😀", "number": 1.5}
    assert queue.submit("echo", {"value": big}).result(60) == big
    means = queue.submit("mean", {"values": np.arange(6.0).reshape(2, 3)}).result(60)
    assert means == {"mean": 2.5, "shape": [2, 3]}
    small, large = (queue.submit("grid", {"size": size}).result(60) for size in (2, 300))
    assert small.tolist() == [[0, 1], [2, 3]]
    assert (large.shape, large[1, 0], large.dtype) == ((300, 300), 300, np.float64)
    file = queue.submit("file", {"text": "a,b"})
    assert file.result(60) == b"a,b"
    stored = file.refresh().stored_result
    assert stored is not None
    assert (stored.content_type, stored.filename) == ("text/csv", "täble.csv")
    assert queue.submit("long", {"length": 600_000}).result(60) == "ä" * 600_000


def check_failures(queue: Queue) -> None:
    """Run jobs that fail, and are tried again as they say."""
    with pytest.raises(TaskFailed) as circle:
        queue.submit("circle").result(60)
    assert circle.value.code == "result-not-serializable"
    assert "result.map" in circle.value.message
    flaky = queue.submit("lab:modifiers:flaky")
    with pytest.raises(TaskFailed) as failed:
        flaky.result(60)
    task = failed.value.task
    assert (task.attempts, failed.value.message) == (2, "NonRetryable: never")
    assert task.failure is not None
    assert (task.failure.type, "worker.js" in task.failure.traceback) == ("NonRetryable", True)
    assert task.progress is not None
    assert (task.progress.current, task.progress.total, task.progress.message) == (2, 3, "trying")
    assert task.progress.data == {"big": 2**60 + 1}
    assert [line.text for line in flaky.logs()] == ["attempt 2", "second line"]
    last = flaky.history().attempts[-1].failure
    assert last is not None
    assert "Caused by: RangeError: the reason" in last.full_traceback


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_conformance_kit_passes_the_worker(programs: Path, tmp_path: Path, database_url: str) -> None:
    """Each scenario: claims, fences, lost answers, verdicts, restarts, drains, uploads, logs."""
    command = [str(types.NODE), str(programs / "conformance.mjs")]
    with Run(tmp_path, patience=4, database_url=database_url) as run:
        results = [run.play(scenario, command) for scenario in SCENARIOS]
    assert [result for result in results if not result.passed] == []
    assert len(results) == len(SCENARIOS)


SETTINGS = {"worker_timeout_seconds": 4, "sweeper_interval_seconds": 0.5, "startup_grace_seconds": 2}


@pytest.mark.slow
async def test_tasks_survive_kills(programs: Path, tmp_path: Path) -> None:
    """A killed server is replaced while tasks run: each completes once. Those of a killed worker rerun."""
    database = f"sqlite:///{tmp_path / 'queue.db'}"
    server = ServerProcess(database, **SETTINGS)
    proxy = TcpProxy(port_of(server))
    async with proxy.running():
        arguments = programs / "worker.js", f"http://127.0.0.1:{proxy.port}", server.token
        with node(*arguments) as worker, Queue(arguments[1], server.token) as queue:
            await asyncio.to_thread(worker.wait_for, "serves")
            long = await asyncio.to_thread(queue.submit, "wait", {"seconds": 3})
            for _ in range(3):
                short = await asyncio.to_thread(submit_numbers, queue, 100)
                await asyncio.to_thread(wait_until, partial(has_status, short[5], "completed"))
                server.process.kill()
                server.process.wait(10)
                server = ServerProcess(database, **SETTINGS)
                proxy.target_port = port_of(server)
                assert await asyncio.to_thread(queue.gather, *short) == list(range(100))
                assert await asyncio.to_thread(attempts_of, short) == {1}
            assert await asyncio.to_thread(long.result, 60) == 1
            orphan = await asyncio.to_thread(queue.submit, "wait", {"seconds": 2})
            await asyncio.to_thread(wait_until, partial(has_status, orphan, "running"))
            worker.process.kill()
            with node(*arguments), server:
                assert await asyncio.to_thread(orphan.result, 60) == 2


def attempts_of(tasks: list[TaskHandle]) -> set[int]:
    """Return how often the tasks were claimed."""
    return {task.refresh().attempt for task in tasks}


def submit_numbers(queue: Queue, count: int) -> list[Any]:
    """Submit a task for each number."""
    return queue.submit_many([NewTask("echo", {"value": number}) for number in range(count)])


def has_status(task: TaskHandle, status: str) -> bool:
    """Return whether a task has a status now."""
    return task.refresh().status == status


def port_of(server: ServerProcess) -> int:
    """Return the port of a server."""
    return int(server.url.rpartition(":")[2])
