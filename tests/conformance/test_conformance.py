"""The conformance kit passes the workers of this repository, and fails broken ones."""

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from databases import on_both
from sitegen import ROOT

from zndraw_joblib.testing.conformance.__main__ import main
from zndraw_joblib.testing.conformance.runs import Run
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


# Changes of the worker in bash, the scenario that shows them, and a part of what the kit says.
BROKEN = {
    "no attempt": ({'\\"attempt\\":$2,': ""}, "claim", "without the attempt"),
    "no result": ({'$result"': '"'}, "claim", "has the result None, not 5"),
    "new key for each repeat": ({"$key": "$key$RANDOM"}, "lost-claim-answer", "did not repeat the claim"),
    "no heartbeats": ({'while sleep "$BEAT"': "while false"}, "heartbeat", "sent 0 heartbeats"),
    "ignores verdicts": ({"*cancel|*lost)": "*never)"}, "cancel", "'next' is pending"),
    "no repeats": ({"000*|": ""}, "lost-report", "'completed' 1 of 2 times"),
    "ignores drain": ({'"draining"': '"never"'}, "drain-idle", "still runs"),
    "no wait": ({"wait=5": "wait=0", "|| sleep 1; continue": "; continue"}, "idle", "without a task"),
}
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in sorted(BROKEN.keys() - {"no result"})]


@pytest.mark.parametrize("name", ["no result", *SLOW])
def test_a_broken_worker_fails(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The report says what the worker did."""
    monkeypatch.setattr(run, "patience", 1)
    changes, scenario, did = BROKEN[name]
    text = BASH.read_text()
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "broken.sh").write_text(text)
    result = run.play(BY_NAME[scenario], ["bash", str(tmp_path / "broken.sh")])
    assert (result.passed, did in result.did) == (False, True), result.did


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("worker", COMMANDS)
@on_both
def test_the_workers_pass_all_scenarios(
    tmp_path: Path, database_url: str, kind: str, worker: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command plays all of them, on either database."""
    database = [] if kind == "sqlite" else ["--database-url", database_url]
    command = shlex.join(COMMANDS[worker])
    code = main(["--command", command, "--json", "--patience", "4", *database])
    report = json.loads(capsys.readouterr().out)
    assert [scenario for scenario in report["scenarios"] if not scenario["passed"]] == []
    assert (code, report["passed"], report["failed"]) == (0, len(SCENARIOS), 0)


def test_the_scenarios_are_data(capsys: pytest.CaptureFixture[str]) -> None:
    """`--list --json` has each with its steps; an unknown name is an error."""
    assert main(["--list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [scenario["name"] for scenario in listed] == [*BY_NAME]
    assert all(scenario["must"] and scenario["steps"] for scenario in listed)
    with pytest.raises(SystemExit, match="2"):
        main(["--only", "clam"])
