"""Change the rules, one place at a time, and list the changes that no test notices.

``make mutants ARGS=batcher`` names a module. A second argument limits the changes: ``"*7"`` takes those whose
number ends in 7, ``"*_choose_*"`` those of a function. Source and tests are copied to .mutants. There,
``mutmut show NAME`` prints a change with its lines.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from generate import ROOT

WORK = ROOT / ".mutants"
MUTMUT = Path(sys.executable).with_name("mutmut")
# Types, texts of logs and messages that only a person reads.
LEFT_OUT = (r"\bcast\(", r"\blogger\.", r"\bTypeVar\(")
# One replica on SQLite: the other tests have the same rules, and need more time.
CHOSEN = ("-m", "not (processes or slow or signals or benchmark)", "-k", "not (of-a-host or two-replicas)")
# Its five garbage collections take longer than most tests.
QUICK = ("-p", "no:unraisableexception")
# Databases in memory, where the system has a folder for that.
MEMORY = Path("/dev/shm")  # noqa: S108 - a new folder is made in it


class Rules(NamedTuple):
    """A module and the fast tests of its rules."""

    path: str
    tests: tuple[str, ...]


MODULES = {
    "batcher": Rules("server/process/batcher.py", ("service/test_batcher.py", "service/test_event_loops.py")),
    "policy": Rules("wire/policy.py", ("recovery/test_retry_policies.py",)),
    "transitions": Rules(
        "server/queue/rules_transitions.py",
        (
            "http/test_http_batches.py",
            "http/test_http_bodies.py",
            "http/test_http_details.py",
            "http/test_http_transitions.py",
            "recovery/test_actions.py",
            "recovery/test_internal_dispatch.py",
            "recovery/test_retry_policies.py",
            "recovery/test_time_limits.py",
            "service/test_details.py",
            "service/test_heartbeats.py",
            "service/test_reporting.py",
            "sweeper/test_unnamed_tasks.py",
        ),
    ),
    "fairness": Rules(
        "server/queue/rules_fairness.py",
        (
            "recovery/test_fair_scheduling.py",
            "recovery/test_limits.py",
            "recovery/test_priorities.py",
            "recovery/test_repeated_claims.py",
            "service/test_claiming.py",
            "service/test_payloads.py",
        ),
    ),
    "claims": Rules(
        "server/queue/rules_claims.py",
        (
            "recovery/test_limits.py",
            "recovery/test_pausing.py",
            "recovery/test_repeated_claims.py",
            "service/test_claiming.py",
            "service/test_plain_claims.py",
        ),
    ),
    "tasks": Rules(
        "server/queue/rules_tasks.py",
        (
            "http/test_http_tasks.py",
            "http/test_http_batches.py",
            "recovery/test_schedules.py",
            "service/test_idempotency.py",
            "service/test_plain_reports.py",
            "service/test_plain_tasks.py",
            "service/test_reporting.py",
            "service/test_submitting.py",
        ),
    ),
}


def _copy(folder: Path, rules: Rules) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in ("src", "tests", "alembic", "generate"):
        ignored = shutil.ignore_patterns("node_modules", "__pycache__")
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for name in ("pyproject.toml", "alembic.ini"):
        shutil.copy2(ROOT / name, folder)
    options: dict[str, list[str]] = {
        "source_paths": ["src"],
        "only_mutate": [f"src/zndraw_joblib/{rules.path}"],
        "do_not_mutate_patterns": list(LEFT_OUT),
        "also_copy": ["alembic", "alembic.ini", "generate"],
        "pytest_add_cli_args_test_selection": [f"tests/{test}" for test in rules.tests],
        "pytest_add_cli_args": [*CHOSEN, *QUICK],
        # A change that makes the tests this much slower is noticed.
        "timeout_multiplier": ["3"],
        "timeout_constant": ["3"],
    }
    lines = [f"{name} =" + "".join(f"\n    {value}" for value in values) for name, values in options.items()]
    (folder / "setup.cfg").write_text("[mutmut]\n" + "\n".join(lines) + "\n", encoding="utf-8")


def _mutmut(folder: Path, *args: str) -> str:
    with TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as memory:
        env = {**os.environ, "TMPDIR": memory}
        process = subprocess.run(  # noqa: S603
            [MUTMUT, *args], cwd=folder, env=env, stdout=subprocess.PIPE, text=True, check=False
        )
    return process.stdout


def run(name: str, pattern: str | None) -> int:
    """Print the changes of a module that no test notices, and return their number."""
    rules = MODULES[name]
    folder = WORK / name
    _copy(folder, rules)
    module = rules.path.removesuffix(".py").replace("/", ".")
    pattern_args = [f"zndraw_joblib.{module}.{pattern}"] if pattern else []
    log = _mutmut(folder, "run", "--max-children", "2", *pattern_args)
    results = _mutmut(folder, "results", "--all", "true").split("\n")
    status = {
        mutant.strip(): result.strip() for mutant, _, result in (line.partition(": ") for line in results)
    }
    survivors = [mutant for mutant, result in status.items() if result in {"survived", "no tests"}]
    for mutant in survivors:
        diff = _mutmut(folder, "show", mutant).splitlines()
        print(f"{mutant.rpartition('.')[2]}: {status[mutant]}")
        print(*(line for line in diff if line[:1] in "+-" and line[:3] not in {"+++", "---"}), sep="\n")
    if all(result in {"", "not checked"} for result in status.values()):
        sys.exit(log)
    tried = sum(result not in {"", "not checked"} for result in status.values())
    print(f"{name}: {len(survivors)} of {tried} changes were not noticed")
    return len(survivors)


if __name__ == "__main__":
    _names = [name for name in sys.argv[1:] if name in MODULES]
    _patterns = [name for name in sys.argv[1:] if name not in MODULES]
    if len(_patterns) > 1 or not _names:
        sys.exit(f"Name a module of {', '.join(MODULES)}, and optionally a pattern of changes, such as '*7'")
    for _name in _names:
        run(_name, _patterns[0] if _patterns else None)
