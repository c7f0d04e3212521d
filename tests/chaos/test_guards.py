"""The checker finds out when a guard of the server is missing, and is content when it is there."""

import asyncio
import signal
import time
from pathlib import Path

import pytest

from chaos import jobs
from chaos.checker import check
from chaos.evidence import Fault, Submission
from chaos.load import submit
from chaos.stage import Stage

from conftest import OpenStage, told, until_begun

TIMEOUT, INTERVAL = 1.0, 0.3


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """Return the file that lets tasks end, once it is there."""
    return tmp_path / "gate"


async def begin(on: Stage, count: int, gate: Path) -> list[Submission]:
    """Submit tasks, and wait until all are worked on."""
    given = [Submission(number, jobs.ONCE.name, "lab-1") for number in range(count)]
    for submission in given:
        await submit(on.client, submission, gate=str(gate))
    await until_begun(on, [submission.task for submission in given])
    return given


async def broken(on: Stage, given: list[Submission], gate: Path) -> set[str]:
    """Let the tasks end; return the rules that the checker finds broken."""
    gate.touch()
    assert await on.all_end(given, 10)
    await asyncio.to_thread(on.pool.stop)
    return {violation.rule for violation in check(await on.evidence(given))}


@pytest.mark.parametrize(
    ("server", "rules"), [("look-then-remove", {"the living are spared"}), ("look-then-look-again", set())]
)
async def test_who_reports_in_time_is_not_removed(
    open_stage: OpenStage, gate: Path, server: str, rules: set[str]
) -> None:
    """The sweeper has seen a silent worker, which then reports, before it is removed."""
    async with open_stage(
        server, jobs.ONCE, 1, worker_timeout_seconds=TIMEOUT, sweeper_interval_seconds=INTERVAL
    ) as on:
        given = await begin(on, 1, gate)
        [place] = on.pool.places
        on.pool.send(place, signal.SIGSTOP)
        await told(on, "judged")
        on.pool.send(place, signal.SIGCONT)
        await told(on, "cycle:")
        assert await broken(on, given, gate) == rules


@pytest.mark.parametrize(("server", "rules"), [("credit", {"the living are spared"}), ("", set())])
async def test_a_server_that_was_away_judges_nobody_at_once(
    open_stage: OpenStage, gate: Path, server: str, rules: set[str]
) -> None:
    """The server stands still for longer than the timeout, and hears its workers a moment later."""
    async with open_stage(
        server, jobs.ONCE, 3, worker_timeout_seconds=TIMEOUT, sweeper_interval_seconds=INTERVAL
    ) as on:
        given = await begin(on, 3, gate)
        fault = Fault("server stopped", time.time())
        on.server.send(signal.SIGSTOP)
        await asyncio.sleep(2 * TIMEOUT)
        on.proxy.lose("request", 1000)
        on.proxy.cut()
        since = on.server.lines_said
        fault.back_at = time.time()
        on.server.send(signal.SIGCONT)
        await told(on, "cycle:", since)
        on.proxy.heal()
        on.faults.append(fault)
        assert await broken(on, given, gate) == rules


@pytest.mark.parametrize(("server", "rules"), [("brake", {"the brake holds"}), ("", set())])
async def test_the_brake_gives_most_workers_one_interval_more(
    open_stage: OpenStage, gate: Path, server: str, rules: set[str]
) -> None:
    """All workers fall silent at once, and are back right after the cycle that would remove them."""
    async with open_stage(
        server, jobs.ONCE, 5, worker_timeout_seconds=2.0, sweeper_interval_seconds=1.2
    ) as on:
        given = await begin(on, 5, gate)
        await told(on, "stale=0")  # from here on, all grow silent between the first cycle and the second
        for place in on.pool.places:
            on.pool.send(place, signal.SIGSTOP)
        await told(on, "stale=5")
        for place in on.pool.places:
            on.pool.send(place, signal.SIGCONT)
        await told(on, "stale=0")
        assert await broken(on, given, gate) == rules
