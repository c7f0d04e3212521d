"""A worker that is killed between two parts of its log."""

import asyncio
import signal
import subprocess
import sys
from typing import Any

import pytest
from rest import V1, expect_problem
from servers import ServerProcess

pytestmark = pytest.mark.processes

# A worker that reports progress and two lines of its log, and after a line of input two more and the end.
# It sends heartbeats from the first report on.
WORKER = """
import sys, threading, time
import httpx

client = httpx.Client(base_url=sys.argv[1], headers={"Authorization": "Bearer " + sys.argv[2]}, timeout=60)
policy = {"max_attempts": 2, "retry_on": ["worker_lost"], "backoff": {"base_seconds": 0}}
job = client.put("/v1/joblib/rooms/lab/jobs", json={"category": "modifiers", "name": "Run", **policy}).json()
print("ready", flush=True)
claim = {"worker_id": job["worker_id"], "start": True}
response = client.post("/v1/joblib/tasks/claim", json=claim, headers={"Prefer": "wait=60"})
task = response.raise_for_status().json()["task"]

def report(first, **fields):
    texts = [f"{task['attempt']}.{n}" for n in (first, first + 1)]
    lines = [{"at": "2026-01-01T00:00:00Z", "text": text} for text in texts]
    log = {"first": first, "lines": lines}
    body = {"attempt": task["attempt"], "progress": {"current": first}, "log": log}
    client.patch(f"/v1/joblib/tasks/{task['id']}", json=body | fields).raise_for_status()

def beat():
    while True:
        client.patch(f"/v1/joblib/workers/{job['worker_id']}").raise_for_status()
        time.sleep(0.3)

report(1)
threading.Thread(target=beat, daemon=True).start()
print("reported", flush=True)
sys.stdin.readline()
report(3, status="completed")
"""


async def start_worker(server: ServerProcess) -> asyncio.subprocess.Process:
    """Start a worker process."""
    command = (sys.executable, "-c", WORKER, server.url, server.token)
    pipe = subprocess.PIPE
    return await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)


async def kill_a_worker(database_url: str) -> None:
    """Kill the first worker after its first part; let a second one finish the task."""
    with ServerProcess(database_url, worker_timeout_seconds=5, sweeper_interval_seconds=0.5) as server:
        async with server.client() as client, asyncio.timeout(100):

            async def get(path: str) -> Any:
                return (await client.get(f"{V1}/tasks/{task['id']}{path}")).raise_for_status().json()

            first = await start_worker(server)
            assert await first.stdout.readline() == b"ready\n"
            task = (await client.post(f"{V1}/rooms/lab/tasks/lab:modifiers:Run", json={})).json()
            assert await first.stdout.readline() == b"reported\n"
            first.send_signal(signal.SIGKILL)
            await first.wait()
            second = await start_worker(server)
            assert [await second.stdout.readline() for _ in range(2)] == [b"ready\n", b"reported\n"]
            stale = {
                "attempt": 1,
                "log": {"first": 3, "lines": [{"at": "2026-01-01T00:00:00Z", "text": "x"}]},
            }
            expect_problem(await client.patch(f"{V1}/tasks/{task['id']}", json=stale), 409, "stale-report")
            second.stdin.write(b"\n")
            assert await second.wait() == 0
            ended = await get("")
            assert (ended["status"], ended["attempt"], ended["progress"]["current"]) == ("completed", 2, 3)
            for attempt, numbers in ((1, [1, 2]), (2, [1, 2, 3, 4])):
                lines = (await get(f"/log?attempt={attempt}"))["lines"]
                assert [(line["n"], line["text"]) for line in lines] == [
                    (n, f"{attempt}.{n}") for n in numbers
                ]
            history = await get("/history")
            assert [each["progress"]["current"] for each in history["attempts"]] == [1, 3]
            assert "worker-lost" in [each["reason"] for each in history["transitions"]]


async def test_each_attempt_keeps_what_it_reported_before_its_worker_was_killed(
    sqlite_url: str, postgres_url: str
) -> None:
    """The next attempt has a log of its own, and the killed one adds nothing to either."""
    await asyncio.gather(kill_a_worker(sqlite_url), kill_a_worker(postgres_url))
