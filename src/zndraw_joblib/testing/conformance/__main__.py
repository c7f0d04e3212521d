"""The command: play the scenarios with a worker, and report which it passes."""

import argparse
import json
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from zndraw_joblib.testing.conformance.runs import Result, Run
from zndraw_joblib.testing.conformance.scenarios import SCENARIOS, Level, Scenario
from zndraw_joblib.testing.conformance.server import CannotStart

_USAGE_ERROR = 2


def parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments."""
    made = argparse.ArgumentParser(
        prog="python -m zndraw_joblib.testing.conformance",
        description="Play scenarios with a worker, a real server and a proxy that loses requests. The "
        "command finds the server in ZNDRAW_JOBLIB_URL and ZNDRAW_JOBLIB_TOKEN, and serves the job "
        "@global:jobs:conformance. Needs zndraw-joblib[server].",
    )
    made.add_argument("--command", metavar="COMMAND", help="what starts the worker, as 'node worker.js'")
    made.add_argument("--only", metavar="NAME", action="append", help="play this scenario; repeatable")
    made.add_argument("--level", choices=list(Level), default=Level.FULL, help="what kind of worker it is")
    made.add_argument("--list", action="store_true", help="list the scenarios, and play none")
    made.add_argument("--json", action="store_true", help="print JSON")
    made.add_argument(
        "--patience", metavar="FACTOR", type=float, default=1.0, help="multiply all times, on a slow machine"
    )
    made.add_argument("--database-url", metavar="URL", help="an empty database; by default a new SQLite file")
    return made


def selected(names: Sequence[str] | None, level: str) -> list[Scenario]:
    """Return the scenarios to play. Raises ValueError for an unknown name."""
    known = {scenario.name: scenario for scenario in SCENARIOS}
    if unknown := [name for name in names or () if name not in known]:
        raise ValueError(f"there is no scenario {unknown[0]!r}; --list lists them")
    if names:
        return [known[name] for name in names]
    return [scenario for scenario in SCENARIOS if level == Level.FULL or scenario.level == Level.MINIMAL]


def as_data(scenario: Scenario) -> dict[str, Any]:
    """Return a scenario as JSON, with the names of its steps."""
    steps = [
        {
            "step": type(step).__name__,
            **{name: value for name, value in vars(step).items() if value is not ...},
        }
        for step in scenario.steps
    ]
    return {"name": scenario.name, "level": scenario.level, "must": scenario.must, "steps": steps}


def _lines(scenario: Scenario, result: Result) -> Iterator[str]:
    yield f"{'ok    ' if result.passed else 'FAILED'}  {scenario.name}  ({result.seconds:.1f} s)"
    if result.passed:
        return
    yield f"        must: {scenario.must}"
    yield f"        did:  {result.did}"
    if result.requests:
        yield "        its last requests:"
        yield from (f"          {line}" for line in result.requests)
    if result.output:
        yield "        its output:"
        yield from (f"          {line}" for line in result.output.splitlines())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code: 1 if a scenario failed, 2 if none could be played."""
    made = parser()
    options = made.parse_args(arguments)
    try:
        scenarios = selected(options.only, options.level)
    except ValueError as error:
        made.error(str(error))
    if options.list:
        _print_list(scenarios, as_json=options.json)
        return 0
    if not options.command:
        made.error("--command is missing: what starts the worker, as --command 'node worker.js'")
    command = shlex.split(options.command)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="conformance-") as folder,
            Run(Path(folder), options.patience, database_url=options.database_url) as run,
        ):
            return _play(run, scenarios, command, as_json=options.json)
    except CannotStart as error:
        sys.stderr.write(f"{error}\n")
        return _USAGE_ERROR


def _print_list(scenarios: Sequence[Scenario], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps([as_data(scenario) for scenario in scenarios], ensure_ascii=False, indent=2))
        return
    for scenario in scenarios:
        print(f"{scenario.name:24}{scenario.level:9}{scenario.must}")


def _play(run: Run, scenarios: Sequence[Scenario], command: list[str], *, as_json: bool) -> int:
    results = []
    for scenario in scenarios:
        result = run.play(scenario, command)
        results.append(result)
        if not as_json:
            print("\n".join(_lines(scenario, result)), flush=True)
    passed = sum(result.passed for result in results)
    if as_json:
        report = {"command": command, "passed": passed, "failed": len(results) - passed}
        print(json.dumps({**report, "scenarios": [asdict(result) for result in results]}, indent=2))
    else:
        print(f"{passed} of {len(results)} scenarios passed")
    return 0 if passed == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
