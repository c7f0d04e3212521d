"""The checker finds out when a guard of the server is missing, and is content when it is there."""

import asyncio
import signal
import time
from pathlib import Path

import pytest
from chaos import journal
from chaos.evidence import Fault
from chaos.jobs import AGAIN, ONCE
from small import OpenStage, begin, broken, told, until_begun, until_noted

SHORT = {"worker_timeout_seconds": 1.0, "sweeper_interval_seconds": 0.3}
# All grow silent between the first cycle after a stop and the second.
SLOW = {"worker_timeout_seconds": 2.0, "sweeper_interval_seconds": 1.2}


@pytest.mark.parametrize(
    ("server", "rules"), [("look-then-remove", {"the living are spared"}), ("look-then-look-again", set())]
)
async def test_who_reports_in_time_is_not_removed(
    open_stage: OpenStage, gate: Path, server: str, rules: set[str]
) -> None:
    """The sweeper has seen a silent worker, which then reports, before it is removed."""
    async with open_stage(server, ONCE, 1, **SHORT) as on:
        given = await begin(on, ONCE, 1, gate)
        [place] = on.pool.places
        on.pool.send(place, signal.SIGSTOP)
        await told(on, "judged")
        on.pool.send(place, signal.SIGCONT)
        await told(on, "cycle:")
        gate.touch()  # noqa: ASYNC240 - an instant
        assert await broken(on, given) == rules


@pytest.mark.parametrize(("server", "rules"), [("credit", {"the living are spared"}), ("", set())])
async def test_a_server_that_was_away_judges_nobody_at_once(
    open_stage: OpenStage, gate: Path, server: str, rules: set[str]
) -> None:
    """The server stands still for longer than the timeout, and hears its workers a moment later."""
    async with open_stage(server, ONCE, 3, **SHORT) as on:
        given = await begin(on, ONCE, 3, gate)
        await told(on, "cycle:")
        fault = Fault("server stopped", time.time())
        on.server.send(signal.SIGSTOP)
        on.proxy.lose("request", 1000)
        on.proxy.cut()
        await asyncio.sleep(2 * SHORT["worker_timeout_seconds"])
        since = on.server.lines_said
        fault.back_at = time.time()
        on.server.send(signal.SIGCONT)
        await told(on, "cycle:", since)
        on.proxy.heal()
        on.faults.append(fault)
        gate.touch()  # noqa: ASYNC240 - an instant
        assert await broken(on, given) == rules


@pytest.mark.parametrize(("server", "rules"), [("brake", {"the brake holds"}), ("", set())])
async def test_the_brake_gives_most_workers_one_interval_more(
    open_stage: OpenStage, gate: Path, server: str, rules: set[str]
) -> None:
    """All workers fall silent at once, and are back right after the cycle that would remove them."""
    async with open_stage(server, ONCE, 5, **SLOW) as on:
        given = await begin(on, ONCE, 5, gate)
        await told(on, "stale=0")
        for place in on.pool.places:
            on.pool.send(place, signal.SIGSTOP)
        await told(on, "stale=5")
        for place in on.pool.places:
            on.pool.send(place, signal.SIGCONT)
        await told(on, "stale=0")
        gate.touch()  # noqa: ASYNC240 - an instant
        assert await broken(on, given) == rules


@pytest.mark.parametrize(
    ("server", "rules"),
    [("fence", {"the fence holds", "one end is accepted", "a result is of its attempt"}), ("", set())],
)
async def test_a_late_report_ends_nothing(
    open_stage: OpenStage, gate: Path, server: str, rules: set[str]
) -> None:
    """A worker was taken for lost, and reports while another one is at the next attempt."""
    async with open_stage(server, AGAIN, 2, **SHORT) as on:
        given = await begin(on, AGAIN, 1, gate)
        task = given[0].task or ""
        [first] = [it.pid for it in journal.read(on.folder)[0]]
        late, other = sorted(on.pool.places, key=lambda place: place.pid != first)
        on.pool.send(late, signal.SIGSTOP)
        await until_begun(on, (task, 2))
        on.pool.send(other, signal.SIGSTOP)
        gate.touch()  # noqa: ASYNC240 - an instant
        on.pool.send(late, signal.SIGCONT)
        await until_noted(on, lambda _, calls: any(it.asked == "completed" and it.code for it in calls))
        on.pool.send(other, signal.SIGCONT)
        assert await broken(on, given) == rules
