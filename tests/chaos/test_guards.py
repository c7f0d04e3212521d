"""Without a guard of the server, the checker reports a violation; with the guard it reports none."""

import asyncio
import signal
import time
from pathlib import Path

import pytest
from chaos.jobs import RETRIED, SINGLE_ATTEMPT
from chaos.records import Fault, read_worker_logs
from steps import (
    OpenEnvironment,
    broken_rules,
    start_tasks,
    wait_for_logs,
    wait_for_output,
    wait_until_started,
)

# Long enough that on a busy machine a worker that is not paused sends its heartbeats in time.
SHORT = {"worker_timeout_seconds": 2.0, "sweeper_interval_seconds": 0.5, "heartbeat_interval_seconds": 0.25}
# Workers that are paused right after a cycle expire between the next cycle and the one after it.
SLOW_SWEEPER = {
    "worker_timeout_seconds": 3.0,
    "sweeper_interval_seconds": 1.8,
    "heartbeat_interval_seconds": 0.2,
}
pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("server", "rules"), [("find-then-remove", {"live workers are kept"}), ("find-then-check-again", set())]
)
async def test_a_worker_that_reports_in_time_is_not_removed(
    start_environment: OpenEnvironment, release_file: Path, server: str, rules: set[str]
) -> None:
    """The sweeper finds a silent worker, which sends a heartbeat before the sweeper removes it."""
    async with start_environment(server, SINGLE_ATTEMPT, 1, **SHORT) as environment:
        submissions = await start_tasks(environment, SINGLE_ATTEMPT, 1, release_file)
        [worker] = environment.workers.slots
        environment.workers.pause(worker)
        await wait_for_output(environment, "found silent workers")
        environment.workers.resume(worker)
        await wait_for_output(environment, "cycle:")
        release_file.touch()  # noqa: ASYNC240
        assert await broken_rules(environment, submissions) == rules


@pytest.mark.parametrize(("server", "rules"), [("grace,mass-expiry", {"live workers are kept"}), ("", set())])
async def test_after_a_pause_the_server_removes_no_worker_at_once(
    start_environment: OpenEnvironment, release_file: Path, server: str, rules: set[str]
) -> None:
    """The server is paused for longer than the timeout, and gets the first heartbeats a moment later."""
    async with start_environment(server, SINGLE_ATTEMPT, 3, **SHORT) as environment:
        submissions = await start_tasks(environment, SINGLE_ATTEMPT, 3, release_file)
        await wait_for_output(environment, "cycle:")
        fault = Fault("server paused", time.time())
        environment.server.send(signal.SIGSTOP)
        environment.proxy.drop("request", 1000)
        environment.proxy.close_connections()
        await asyncio.sleep(SHORT["worker_timeout_seconds"] + 0.5)
        lines = len(environment.server.output)
        fault.server_back_at = time.time()
        environment.server.send(signal.SIGCONT)
        await environment.server.wait_for_output("cycle:", lines)
        environment.proxy.stop_dropping()
        environment.faults.append(fault)
        release_file.touch()  # noqa: ASYNC240
        assert await broken_rules(environment, submissions) == rules


@pytest.mark.parametrize(("server", "rules"), [("mass-expiry", {"the mass expiry guard holds"}), ("", set())])
async def test_the_mass_expiry_guard_waits_one_interval(
    start_environment: OpenEnvironment, release_file: Path, server: str, rules: set[str]
) -> None:
    """All workers are silent at once, and send heartbeats right after the cycle that finds them silent."""
    async with start_environment(server, SINGLE_ATTEMPT, 5, **SLOW_SWEEPER) as environment:
        submissions = await start_tasks(environment, SINGLE_ATTEMPT, 5, release_file)
        await wait_for_output(environment, "stale=0")
        for worker in environment.workers.slots:
            environment.workers.pause(worker)
        await wait_for_output(environment, "stale=5")
        for worker in environment.workers.slots:
            environment.workers.resume(worker)
        await wait_for_output(environment, "stale=0")
        release_file.touch()  # noqa: ASYNC240
        assert await broken_rules(environment, submissions) == rules


@pytest.mark.parametrize(
    ("server", "rules"),
    [
        (
            "fencing",
            {"stale reports are rejected", "one final report is accepted", "results belong to their attempt"},
        ),
        ("", set()),
    ],
)
async def test_a_stale_report_ends_no_task(
    start_environment: OpenEnvironment, release_file: Path, server: str, rules: set[str]
) -> None:
    """The server removed a worker, which reports while another worker executes the next attempt."""
    async with start_environment(server, RETRIED, 2, **SHORT) as environment:
        submissions = await start_tasks(environment, RETRIED, 1, release_file)
        [first] = [it.pid for it in read_worker_logs(environment.log_folder)[0]]
        stale, other = sorted(environment.workers.slots, key=lambda slot: slot.pid != first)
        environment.workers.pause(stale)
        await wait_until_started(environment, (submissions[0].task_id, 2))
        environment.workers.pause(other)
        release_file.touch()  # noqa: ASYNC240
        environment.workers.resume(stale)
        await wait_for_logs(
            environment,
            lambda _, requests: any(it.status == "completed" and it.status_code for it in requests),
        )
        environment.workers.resume(other)
        assert await broken_rules(environment, submissions) == rules
