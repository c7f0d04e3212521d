"""Protections of the npm package's worker, each against a real server.

Its process is suspended, its token ends, reports do not arrive, and a proxy refuses long bodies.
"""

import asyncio
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from rest import V1
from sdk.proxy import Proxy, raw
from servers import ClockServer
from waiting import wait_until

from typescript.package import NodeProgram, node
from zndraw_joblib import NewTask, Queue, TaskFailed

pytestmark = pytest.mark.processes
# The clock of the server must move by more than the hour of a token, before a worker is removed as silent.
WORKER_TIMEOUT_SECONDS = 10_000
PREFETCH = 100
MAX_WAITING = 1000
TOO_LARGE = raw("413 Request Entity Too Large", b"<h1>413 Request Entity Too Large</h1>")


class RecordingProxy(Proxy):
    """A proxy that keeps the bodies of requests, and holds reports that contain `held` until it is empty."""

    def __init__(self, target: str, held: bytes = b"") -> None:
        super().__init__(target)
        self.requests: list[tuple[str, str, bytes]] = []
        self._held = held
        self._passes = threading.Event()
        if not held:
            self._passes.set()

    def respond(self, method: str, path: str, headers: dict[str, str], body: bytes) -> bytes:
        """Return the raw response to a request."""
        self.requests.append((method, path, body))
        if path.endswith("/report") and self._held in body:
            assert self._passes.wait(200)
        return super().respond(method, path, headers, body)

    def pass_reports(self) -> None:
        """Hold reports no longer."""
        self._passes.set()

    def count(self, method: str, part: str) -> int:
        """Return how many requests had a method and a part of a path."""
        return sum(method == sent and part in path for sent, path, _ in self.requests)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClockServer]:
    """Run a server with a test clock for the tests of this module."""
    url = f"sqlite:///{tmp_path_factory.mktemp('server') / 'queue.db'}"
    settings = {"heartbeat_interval_seconds": 0.3, "worker_timeout_seconds": WORKER_TIMEOUT_SECONDS}
    with ClockServer(url, **settings) as server:
        yield server


@pytest.fixture
def token_file(server: ClockServer, tmp_path: Path) -> Path:
    """Return a file with a valid token, which the worker reads for each request."""
    path = tmp_path / "token"
    path.write_text(server.token)
    return path


@pytest.fixture
def room() -> str:
    """Return a room whose jobs are those of one test."""
    return f"room-{uuid4().hex[:8]}"


@pytest.fixture
def queue(server: ClockServer, room: str) -> Iterator[Queue]:
    """Return a client of the room."""
    with Queue(server.url, server.token, room=room) as queue:
        yield queue


Start = Callable[..., AbstractContextManager[NodeProgram]]


@pytest.fixture
def start(programs: Path, server: ClockServer, token_file: Path, room: str) -> Start:
    """Return a function that runs a worker during a block."""

    @contextmanager
    def run(
        url: str = server.url, concurrency: int = 1, drain_seconds: str = "", **environment: str
    ) -> Iterator[NodeProgram]:
        arguments = url, str(token_file), room, str(concurrency), drain_seconds, server.url
        with node(programs / "protections.js", *arguments, **environment) as worker:
            worker.wait_for("serves")
            yield worker

    return run


def numbers(values: range) -> list[NewTask]:
    """Return a task for each value."""
    return [NewTask("number", {"value": value}) for value in values]


def test_the_token_of_a_task_is_renewed(start: Start, queue: Queue) -> None:
    """A task that runs for longer than its token is valid still submits tasks."""
    with start(concurrency=2):
        assert queue.task(str(queue.submit("renew").result(60))).result(60) == 7


async def test_tasks_that_waited_while_the_process_was_suspended_do_not_run(
    start: Start, server: ClockServer, queue: Queue, room: str
) -> None:
    """Meanwhile another worker got them: the worker asks the server before it starts one."""
    async with server.client() as client:
        with start() as worker:
            waiting = await suspend_with_waiting_tasks(worker, queue, client, room)
            # The worker is removed as silent; then its tasks wait before they are tried again.
            for seconds in (WORKER_TIMEOUT_SECONDS + 1, 1000):
                assert (await client.post("/clock/advance", json={"seconds": seconds})).status_code == 200
            taken = await take_all(client, room)
            assert waiting <= taken
            worker.process.send_signal(signal.SIGCONT)
            await asyncio.to_thread(worker.wait_for, "replaces")
            assert not waiting & set(await asyncio.to_thread(ran_by, worker))


async def suspend_with_waiting_tasks(
    worker: NodeProgram, queue: Queue, client: httpx.AsyncClient, room: str
) -> set[int]:
    """Let a job suspend its process while tasks wait there; return their values."""
    # A claim whose last task suspends the process leaves none that wait.
    for first in range(0, 2000, 200):
        behind = numbers(range(first + 100, first + 150))
        tasks = [*numbers(range(first, first + 100)), NewTask("stop"), *behind]
        await asyncio.to_thread(queue.submit_many, tasks)
        await asyncio.to_thread(worker.wait_for, "stops")
        await asyncio.to_thread(os.waitid, os.P_PID, worker.process.pid, os.WSTOPPED)
        params = {"status": "claimed", "limit": 200}
        claimed = (await client.get(f"{V1}/rooms/{room}/tasks", params=params)).json()["items"]
        # Of those before it, some have run, and are not reported yet.
        if waiting := values_of(claimed) & set(range(first + 100, first + 150)):
            return waiting
        worker.process.send_signal(signal.SIGCONT)
    raise AssertionError("no task ever waited behind another one")


def ran_by(worker: NodeProgram) -> list[int]:
    """Return the numbers that a worker has run."""
    worker.send("ran")
    return numbers_of(worker.wait_for("ran "))


def numbers_of(line: str) -> list[int]:
    """Return the numbers of a line of the worker."""
    ran: list[int] = json.loads(line.removeprefix("ran "))
    return ran


async def test_a_worker_that_stops_releases_tasks_that_it_may_have_lost(
    start: Start, server: ClockServer, queue: Queue, room: str
) -> None:
    """The server does not say whether it holds them; so they do not run here."""
    async with server.client() as client:
        with RecordingProxy(server.url) as proxy, start(proxy.url) as worker:
            waiting = await suspend_with_waiting_tasks(worker, queue, client, room)
            too_busy = raw("503 Service Unavailable", b"busy", Retry_After="60")
            proxy.rule = lambda method, path: too_busy if method == "PATCH" else None
            worker.process.send_signal(signal.SIGCONT)
            await asyncio.to_thread(worker.wait_for, "Heartbeat: ")
            worker.process.send_signal(signal.SIGTERM)
            ran = numbers_of(await asyncio.to_thread(worker.wait_for, "ran "))
            assert not waiting & set(ran)
            params = {"status": "pending", "limit": 200}
            pending = (await client.get(f"{V1}/rooms/{room}/tasks", params=params)).json()["items"]
            assert waiting <= values_of(pending)


def values_of(tasks: list[dict[str, Any]]) -> set[int]:
    """Return the values of the numbers among some tasks."""
    return {task["payload"]["value"] for task in tasks if "value" in task["payload"]}


async def take_all(client: httpx.AsyncClient, room: str) -> set[int]:
    """Claim the tasks of a room by another worker, complete them, and return the values of the numbers."""
    worker = {"worker_id": (await client.post(f"{V1}/workers", json={})).json()["id"]}
    for name in ("number", "stop"):
        await client.put(f"{V1}/rooms/{room}/jobs", json={"category": "jobs", "name": name, **worker})
    claimed = (await client.post(f"{V1}/tasks/claim", json={**worker, "max": 1000})).json()["tasks"]
    for status in ("running", "completed"):
        reports = [{"id": task["id"], "attempt": task["attempt"], "status": status} for task in claimed]
        response = await client.post(f"{V1}/tasks/report", json={**worker, "reports": reports})
        assert {result["status"] for result in response.json()["results"]} == {200}
    await client.delete(f"{V1}/workers/{worker['worker_id']}")
    return values_of(claimed)


async def test_tasks_that_wait_behind_a_long_one_are_released(
    start: Start, server: ClockServer, queue: Queue, room: str
) -> None:
    """Another worker runs them, while the long one goes on here."""
    tasks = [*numbers(range(150)), NewTask("hold"), *numbers(range(150, 200))]
    async with server.client() as client:
        with start() as worker:
            await asyncio.to_thread(queue.submit_many, tasks)
            await asyncio.to_thread(worker.wait_for, "holds")
            await asyncio.to_thread(worker.wait_for, "Released")
            assert await take_all(client, room) == set(range(150, 200))
            # The second signal ends the process, though the task runs.
            for line in ("claims no more", ""):
                worker.process.send_signal(signal.SIGINT)
                if line:
                    await asyncio.to_thread(worker.wait_for, line)
            assert await asyncio.to_thread(worker.end) == 128 + signal.SIGINT


def test_a_task_that_runs_for_too_long_returns_to_its_queue_when_the_worker_stops(
    start: Start, server: ClockServer, queue: Queue
) -> None:
    """Its signal is aborted, and the worker leaves. One whose result is uploaded is reported instead."""
    with RecordingProxy(server.url) as proxy, start(proxy.url, 2, "0.1") as worker:
        task = queue.submit("hold")
        worker.wait_for("holds")

        def hold_upload(method: str, path: str) -> None:
            if path.endswith("/result"):
                wait_until(lambda: task.refresh().status == "pending")

        proxy.rule = hold_upload
        uploaded = queue.submit("file", {"length": 100})
        wait_until(lambda: proxy.count("PUT", "/result"))
        worker.process.send_signal(signal.SIGTERM)
        worker.wait_for("stopped: released")
        worker.wait_for("left")
        assert (worker.end(), task.refresh().status, task.refresh().attempt) == (0, "pending", 1)
        assert (uploaded.refresh().status, uploaded.refresh().attempt) == ("completed", 1)
        task.cancel()


async def test_a_worker_that_stops_does_not_register_again(
    start: Start, server: ClockServer, queue: Queue
) -> None:
    """The server has forgotten it: its task is lost, and it leaves."""
    async with server.client() as client:
        with RecordingProxy(server.url) as proxy, start(proxy.url) as worker:
            task = await asyncio.to_thread(queue.submit, "hold")
            await asyncio.to_thread(worker.wait_for, "holds")
            worker.process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(worker.wait_for, "claims no more")
            former = (await asyncio.to_thread(task.refresh)).worker_id
            assert (await client.delete(f"{V1}/workers/{former}")).is_success
            await asyncio.to_thread(worker.wait_for, "stopped: lost")
            worker.send("ends")
            await asyncio.to_thread(worker.wait_for, "left")
            assert [path for _, path, _ in proxy.requests].count(f"{V1}/workers") == 1


def test_the_log_of_a_task_is_bounded_while_the_server_is_away(
    start: Start, server: ClockServer, queue: Queue
) -> None:
    """The last 10,000 lines are kept, of long lines a megabyte; lines in a request under way come too."""
    with RecordingProxy(server.url, held=b'"log"') as proxy, start(proxy.url) as worker:
        task = queue.submit("lines")
        worker.wait_for("logged")
        wait_until(lambda: logs_of(proxy))
        worker.send("go on")
        worker.wait_for("logged more")
        proxy.pass_reports()
        worker.send("ends")
        assert task.result(60) == "ends"
    sent = {line["number"]: line["text"] for line in logs_of(proxy)}
    assert min(sent) == 5001
    kept = {number: text for number, text in sent.items() if number > 6000}
    assert 100 < len(kept) < 200
    assert sum(map(len, kept.values())) < 1024 * 1024
    assert list(task.logs())[-1].text == "nul \\x00 last"


def test_the_logs_of_many_tasks_fit_into_requests(start: Start, server: ClockServer, queue: Queue) -> None:
    """One has about a megabyte, and each task has its turn."""
    with RecordingProxy(server.url) as proxy, start(proxy.url, 24) as worker:
        tasks = queue.submit_many([NewTask("chatty")] * 24)
        wait_until(lambda: len(logs_of(proxy)) == 24 * 7)
        assert 500_000 < max(len(body) for *_, body in proxy.requests) < 1_100_000
        worker.send("ends")
        assert queue.gather(*tasks) == ["ends"] * 24


def logs_of(proxy: RecordingProxy) -> list[dict[str, Any]]:
    """Return the lines of logs that were sent, with their numbers."""
    bodies = [json.loads(body) for *_, body in proxy.requests if b'"log"' in body]
    logs = [report["log"] for body in bodies for report in body["reports"] if "log" in report]
    return [{**line, "number": log["first"] + at} for log in logs for at, line in enumerate(log["lines"])]


def test_a_worker_whose_reports_do_not_arrive_claims_no_more(
    start: Start, server: ClockServer, queue: Queue, room: str
) -> None:
    """About a thousand outcomes wait at most; all arrive later."""
    count = MAX_WAITING + 250
    with RecordingProxy(server.url, held=b"{") as proxy, start(proxy.url) as worker:
        tasks = queue.submit_many(numbers(range(count)))
        wait_until(lambda: len(ran_by(worker)) >= MAX_WAITING)
        # It would claim within milliseconds: three heartbeats are much longer.
        beats = proxy.count("PATCH", "/workers/") + 4
        wait_until(lambda: proxy.count("PATCH", "/workers/") >= beats)
        assert len(ran_by(worker)) <= MAX_WAITING + PREFETCH + 1
        proxy.pass_reports()
        assert queue.gather(*tasks) == list(range(count))


def test_a_worker_whose_token_has_ended_tries_rarely_and_keeps_its_outcomes(
    start: Start, server: ClockServer, queue: Queue, token_file: Path
) -> None:
    """The outcome of a task arrives once there is a valid token; until then claims are rare."""
    with RecordingProxy(server.url) as proxy, start(proxy.url) as worker:
        task = queue.submit("hold")
        wait_until(lambda: task.refresh().status == "running")
        token_file.write_text("this one was revoked")
        worker.wait_for("Heartbeat: Unauthorized")
        claims, reports = (proxy.count("POST", path) for path in ("/claim", "/report"))
        worker.send("ends")
        worker.wait_for("Claiming: Unauthorized")
        wait_until(lambda: proxy.count("POST", "/report") >= reports + 3)
        assert proxy.count("POST", "/claim") <= claims + 2
        token_file.write_text(server.token)
        assert task.result(60) == "ends"
        assert task.refresh().attempt == 1


def test_a_worker_ends_when_its_token_is_refused_for_long(start: Start, queue: Queue) -> None:
    """With an error, after a minute of 401s alone; its task sees that it is lost.

    One whose token a function returns goes on, as the test before shows.
    """
    with start(TOKEN_IS_FIXED="1") as worker:
        queue.submit("hold")
        worker.wait_for("holds")
        for accepted_after in (50, None):
            worker.send("refuse")
            worker.wait_for("Heartbeat: Unauthorized")
            worker.send("ahead 50")
            worker.wait_for("Heartbeat: Unauthorized")
            if accepted_after:
                worker.send("accept")
                worker.wait_for("accepted")
        worker.send("ahead 10")
        assert "each response of 60 s: The bearer token is unknown" in worker.wait_for("error: ")
        worker.wait_for("stopped: lost")
        worker.send("ends")
        assert "Pass a valid token, or a function" in worker.wait_for("refused: Unauthorized: ")
        assert worker.end() == 0


def test_what_a_proxy_refuses_as_too_large(start: Start, server: ClockServer, queue: Queue) -> None:
    """Reports that are too large together are sent one by one; one that is too large alone fails its task."""
    with RecordingProxy(server.url, held=b"{") as proxy, start(proxy.url, 4) as worker:
        proxy.limit_body(100_000, TOO_LARGE)
        held = queue.submit("number", {"value": 1})
        wait_until(lambda: proxy.count("POST", "/report"))
        small = [queue.submit("text", {"length": 60_000}) for _ in range(3)]
        wait_until(lambda: all(task.refresh().status == "claimed" for task in small))
        large = queue.submit("text", {"length": 200_000})
        wait_until(lambda: large.refresh().status == "claimed")
        proxy.pass_reports()
        assert [held.result(60), *(len(task.result(60)) for task in small)] == [1, 60_000, 60_000, 60_000]
        assert "The server refused the result: UnexpectedResponse" in failure_of(large)
        assert proxy.answered["POST", "/v1/joblib/tasks/report"] == 2
        file = queue.submit("file", {"length": 200_000})
        wait_until(lambda: any(method == "PUT" and "/result" in path for method, path in proxy.answered))
        assert file.refresh().status in {"claimed", "running"}
        worker.send("ahead 31")
        assert "The result was not stored: UnexpectedResponse" in failure_of(file)


def failure_of(task: Any) -> str:
    """Wait for the failure of a task; return its message."""
    with pytest.raises(TaskFailed) as failed:
        task.result(60)
    return str(failed.value.message)
