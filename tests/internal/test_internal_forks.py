"""Processes that an internal job forks: signals reach only them, and none of them returns to the server."""

from typing import Any

import httpx
import pytest
from databases import on_both
from forking import EXPECTED
from servers import ServerProcess

from internal.processes import INTERNAL_WORKER, PYTHONPATH, WorkerProcess, submit, wait_for_end

FORK = "@internal:analysis:Fork"
FORKING = "forking:Fork"


async def check_forks(client: httpx.AsyncClient, pid: int) -> None:
    """Run each kind of fork in process `pid`, and check that this process runs the next task."""
    for how, expected in EXPECTED.items():
        ended = await wait_for_end(client, await submit(client, FORK, how=how))
        assert (how, ended["result"], ended["error"]) == (how, expected, None)
        assert (await wait_for_end(client, await submit(client, FORK)))["result"] == pid


@on_both
async def test_a_job_in_the_server_may_fork(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminated process is not the server, whose signal handlers it inherited."""
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    with ServerProcess(database_url, internal_extensions=FORKING) as server:
        async with server.client() as client:
            await check_forks(client, server.process.pid)
        server.interrupt()
        assert server.process.wait(60) == 0


async def test_a_job_in_an_internal_worker_may_fork(settings: dict[str, Any]) -> None:
    """`Process.terminate()` in a job does not stop the whole process."""
    with ServerProcess(**settings, internal_extensions=FORKING) as server:
        async with server.client() as client:
            with WorkerProcess(INTERNAL_WORKER, **settings, internal_extensions=FORKING) as worker:
                await check_forks(client, worker.process.pid)
                worker.process.terminate()
                assert worker.process.wait(60) == 0
