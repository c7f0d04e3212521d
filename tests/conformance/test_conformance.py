"""The conformance kit passes the workers of this repository, and fails broken ones."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sitegen import ROOT

from zndraw_joblib.testing.conformance.__main__ import main
from zndraw_joblib.testing.conformance.runs import Result, Run
from zndraw_joblib.testing.conformance.scenarios import SCENARIOS

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

BASH = ROOT / "clients/bash/worker.sh"
COMMANDS = {
    "bash": ["bash", str(BASH)],
    "python": [sys.executable, "-m", "zndraw_joblib", "worker", str(ROOT / "examples/conformance.py")],
}
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Return a run, whose server all tests of this module use."""
    with Run(tmp_path_factory.mktemp("conformance"), patience=4) as run:
        yield run


@pytest.mark.parametrize(
    ("worker", "names"),
    [("bash", ("claim", "lost-claim-answer", "drain-idle", "large-result")), ("python", ("claim",))],
)
def test_the_workers_pass(run: Run, worker: str, names: tuple[str, ...]) -> None:
    """Some fast scenarios of the worker in bash, and of the Python one."""
    results = [run.play(BY_NAME[name], COMMANDS[worker]) for name in names]
    assert [result for result in results if not result.passed] == []


# A change of the worker in bash, the scenario that shows it, and a part of what the kit says.
BROKEN = {
    "no attempt": ('\\"attempt\\":$2,', "", "claim", "without the attempt"),
    "no result": ('$result"', '"', "claim", "has the result None, not 5"),
    "new key for each repeat": ("$key", "$key$RANDOM", "lost-claim-answer", "did not repeat the claim"),
    "no heartbeats": ('while sleep "$BEAT"', "while false", "heartbeat", "0 heartbeats"),
    "ignores verdicts": ("*cancel|*lost)", "*never)", "cancel", "'next' is pending"),
    "no repeats": ("000*|", "", "lost-report", "is running"),
    "ignores drain": ('"draining"', '"never"', "drain-idle", "still runs"),
    "no wait": ("sleep 1; continue", "continue", "claim", "requests in"),
}
FAST = {"no result", "no attempt"}


def _play_broken(run: Run, folder: Path, name: str) -> Result:
    old, new, scenario, _ = BROKEN[name]
    text = BASH.read_text()
    assert old in text
    (folder / "broken.sh").write_text(text.replace(old, new))
    return run.play(BY_NAME[scenario], ["bash", str(folder / "broken.sh")])


@pytest.mark.parametrize("name", FAST)
def test_a_broken_worker_fails(run: Run, tmp_path: Path, name: str) -> None:
    """The report says what the worker did."""
    result = _play_broken(run, tmp_path, name)
    assert not result.passed
    assert BROKEN[name][-1] in result.did


def test_the_scenarios_are_data(capsys: pytest.CaptureFixture[str]) -> None:
    """`--list --json` has each with its steps; an unknown name is an error."""
    assert main(["--list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [scenario["name"] for scenario in listed] == [*BY_NAME]
    assert all(scenario["must"] and scenario["steps"] for scenario in listed)
    with pytest.raises(SystemExit, match="2"):
        main(["--only", "clam"])
