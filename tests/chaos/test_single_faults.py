"""One fault at a time: two faults leave no trace, and the table shows a planted loss and a planted double."""

import os
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from chaos.jobs import HEALTHY
from chaos.measures import Outcome, format_outcomes, longest_gap, recovery
from chaos.records import Submission
from chaos.scenarios import SCENARIOS, Scenario
from chaos.single import run_scenario
from chaos.stage import Stage, sqlite_file

from zndraw_joblib.wire.operations import PREFIX

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_no_task_is_lost_or_completed_twice(database: str, tmp_path: Path) -> None:
    """All workers of a job, the server, and the primary of PostgreSQL are killed."""
    faults = ["kill-worker", "kill-server", *(["standby-promoted"] if database == "postgresql" else [])]
    command = [sys.executable, "-m", "chaos", *(word for it in faults for word in ("--fault", it))]
    command += ["--database", database, "--folder", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, check=False)
    print(done.stdout, done.stderr)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines()]
    table = {row[0]: row for row in rows if len(row) == 11 and row[1] == database}
    assert set(table) == set(faults)
    for row in table.values():
        assert int(row[2]) > 0
        assert row[3:5] == ["0", "0"], row
        assert min(map(int, row[5:8])) > 0, row
    assert done.returncode == 0


async def lose_and_double(stage: Stage) -> None:
    """Remove a completed task from the database, and submit the work of another one a second time."""
    ended = [it for it in stage.lanes[0].submissions if it.task_id is not None]
    await stage.healthy.wait_until_ended(ended[:2], 30)
    with sqlite3.connect(sqlite_file(stage), timeout=30) as connection:
        connection.execute("PRAGMA foreign_keys = OFF")
        lost = str(ended[0].task_id)
        done = connection.execute("DELETE FROM joblib_task WHERE id IN (?, ?)", (lost, lost.replace("-", "")))
        assert done.rowcount == 1
    connection.close()
    url = f"{PREFIX}/rooms/{HEALTHY.room}/tasks/{HEALTHY.name}"
    response: httpx.Response = await stage.healthy.direct.post(
        url, json={"payload": {"number": ended[1].number}}
    )
    assert response.status_code == 202


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_the_table_shows_a_lost_and_a_doubled_task(tmp_path: Path) -> None:
    """A run whose fault removes one task, and repeats the work of another, is a failure and says so."""
    outcome = await run_scenario(Scenario("planted", lose_and_double), "sqlite", tmp_path / "planted")
    print(format_outcomes([outcome]))
    assert (len(outcome.lost), len(outcome.doubled)) == (1, 1)
    assert [text.partition(":")[0] for text in outcome.wrong_counts] == ["room"]
    assert outcome.is_failure
    assert outcome.cells[3:5] == ("1", "1")


def outcome_of(
    lost: tuple[int, ...] = (), doubled: tuple[int, ...] = (), recovery: float | None = 1.0
) -> Outcome:
    """Return an outcome."""
    return Outcome("a fault", "sqlite", 10, lost, doubled, "other jobs", 0.5, recovery)


def test_a_lost_a_doubled_and_a_stuck_task_are_failures() -> None:
    """Each of them alone makes the exit status non-zero."""
    assert not outcome_of().is_failure
    assert outcome_of(lost=(1,)).is_failure
    assert outcome_of(doubled=(1,)).is_failure
    assert outcome_of(recovery=None).is_failure
    wrong = replace(outcome_of(), wrong_counts=["job: queued=-1"])
    assert wrong.is_failure
    assert "queued=-1" in format_outcomes([wrong])
    assert replace(outcome_of(), violations=["a group ends once: …"]).is_failure


def test_a_fault_recovers_when_old_and_new_tasks_complete() -> None:
    """Recovery takes until the last task of before, and the first one of after, has completed."""
    before, after = Submission(0, "job", "lab", sent_at=9.0), Submission(1, "job", "lab", sent_at=11.0)
    after.response_at = 11.0
    assert recovery([before, after], {0: 15.0, 1: 12.0}, since=10.0) == 5.0
    assert recovery([before, after], {0: 9.5, 1: 12.0}, since=10.0) == 2.0
    assert recovery([before, after], {1: 12.0}, since=10.0) is None
    assert recovery([before, after], {0: 9.5}, since=10.0) is None
    assert longest_gap([11.0, 17.0, 30.0], since=10.0, until=20.0) == 6.0


def test_each_fault_needs_no_more_than_its_database_has() -> None:
    """Two replicas and an internal worker need PostgreSQL."""
    for scenario in SCENARIOS.values():
        parts = scenario.parts_on("sqlite")
        if "sqlite" in scenario.databases:
            assert parts.replicas == 1, scenario.name
            assert not parts.internal, scenario.name
