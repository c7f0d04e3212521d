"""Change the rules, one place at a time, and list the changes that no test notices.

``make mutants ARGS=batcher`` names a module. Further arguments limit the changes: ``"*7"`` takes those whose
number ends in 7, ``"*_choose_*"`` those of a function. Source and tests are copied to .mutants.

mutmut writes the changes. One process imports the tests, migrates a database, runs each test once to learn
which functions it needs, and forks for each change. A child runs the tests of the changed function until one
fails. Those that noticed most changes before run first.
"""

import ast
import gc
import os
import resource
import shutil
import sys
from argparse import ArgumentParser
from collections import Counter
from difflib import unified_diff
from fnmatch import fnmatch
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import NamedTuple

import pytest

from generate import ROOT

WORK = ROOT / ".mutants"
# Types, texts of logs and messages that only a person reads.
LEFT_OUT = (r"\bcast\(", r"\blogger\.", r"\bTypeVar\(")
# One replica on SQLite, and with --postgresql all kinds of databases: they need more time.
ON_SQLITE = ("-m", "not (processes or slow or signals or benchmark)", "-k", "not (of-a-host or two-replicas)")
ON_ALL = ("-m", "not (slow or signals or benchmark)")
# The garbage collections of `unraisableexception` take longer than most tests. A test that hangs, notices.
QUICK = (
    *("-q", "-s", "-p", "no:unraisableexception", "-p", "no:cacheprovider", "-o", "timeout=60"),
    *("-o", "tmp_path_retention_policy=failed"),
)
MAX_CPU_SECONDS = 60
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
            "service/test_plain_reports.py",
            "service/test_reporting.py",
            "sweeper/test_unnamed_tasks.py",
        ),
    ),
    "fairness": Rules(
        "server/queue/rules_fairness.py",
        (
            "recovery/test_claim_orders.py",
            "recovery/test_fair_scheduling.py",
            "recovery/test_job_limits.py",
            "recovery/test_limits.py",
            "recovery/test_pauses_of_rooms.py",
            "recovery/test_priorities.py",
            "recovery/test_repeated_claims.py",
            "service/test_claiming.py",
            "service/test_payloads.py",
            "service/test_versions.py",
        ),
    ),
    "claims": Rules(
        "server/queue/rules_claims.py",
        (
            "http/test_http_traces.py",
            "recovery/test_claim_orders.py",
            "recovery/test_draining.py",
            "recovery/test_fair_scheduling.py",
            "recovery/test_job_limits.py",
            "recovery/test_limits.py",
            "recovery/test_pauses_of_rooms.py",
            "recovery/test_pausing.py",
            "recovery/test_repeated_claims.py",
            "recovery/test_time_limits.py",
            "service/test_claiming.py",
            "service/test_many_jobs.py",
            "service/test_plain_claims.py",
            "service/test_versions.py",
        ),
    ),
    "tasks": Rules(
        "server/queue/rules_tasks.py",
        (
            "host/test_host_hooks.py",
            "http/test_http_batches.py",
            "http/test_http_bulk.py",
            "http/test_http_report_bodies.py",
            "http/test_http_tasks.py",
            "http/test_http_unique.py",
            "http/test_http_waiting.py",
            "recovery/test_bounded_queues.py",
            "recovery/test_internal_dispatch.py",
            "recovery/test_internal_order.py",
            "recovery/test_job_limits.py",
            "recovery/test_jobs_that_stay.py",
            "recovery/test_retry_policies.py",
            "recovery/test_schedules.py",
            "recovery/test_unique_tasks.py",
            "schedules/test_job_schedules.py",
            "service/test_details.py",
            "service/test_heartbeats.py",
            "service/test_idempotency.py",
            "service/test_plain_reports.py",
            "service/test_plain_tasks.py",
            "service/test_registering.py",
            "service/test_reporting.py",
            "service/test_submitting.py",
            "service/test_task_ids.py",
            "service/test_versions.py",
            "task_results/test_uploads.py",
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
    patterns = "".join(f"\n    {pattern}" for pattern in LEFT_OUT)
    config = f"[mutmut]\nsource_paths = src\ndo_not_mutate_patterns ={patterns}\n"
    (folder / "setup.cfg").write_text(config, encoding="utf-8")


def _mutate(path: Path) -> dict[str, list[str]]:
    """Write all changes into a module, and return the lines of its functions and of their changes."""
    from mutmut.mutation.file_mutation import mutate_file_contents  # noqa: PLC0415 - it reads setup.cfg

    code = mutate_file_contents(str(path), path.read_text(encoding="utf-8")).code
    path.write_text(code, encoding="utf-8")
    lines = code.splitlines()
    return {
        node.name: lines[node.lineno : node.end_lineno]
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and "__mutmut_" in node.name
    }


class Run:
    """A plugin of pytest that runs the collected tests once, and then for each change in a child process."""

    def __init__(self, module: str, names: list[str], children: int, limit: int) -> None:
        self.module, self.names, self.children, self.limit = module, names, children, limit
        self.results: dict[str, str] = {}
        self.running: dict[int, tuple[str, int, float]] = {}
        # How many changes each test noticed, and how many seconds that and its run without a change took.
        self.counts: Counter[int] = Counter()
        self.seconds: list[float] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run the tests."""
        tests = self._measure(session)
        # Garbage collections of the children skip, and so do not copy, the memory of this process.
        gc.collect()
        gc.freeze()
        for name in self.names:
            while len(self.running) >= self.children:
                self._wait(session)
            indexes = tests.get(f"{self.module}.{name.partition('__mutmut_')[0]}", set())
            self._start(session, name, sorted(indexes, key=self._rate, reverse=True)[: self.limit])
        while self.running:
            self._wait(session)
        return True

    def _rate(self, index: int) -> float:
        return (self.counts[index] + 0.01) / (self.seconds[index] + 0.01)

    @staticmethod
    def _run(session: pytest.Session, index: int) -> bool:
        item = session.items[index]
        # Fixtures of the session remain.
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=session)
        return not session.testsfailed

    def _measure(self, session: pytest.Session) -> dict[str, set[int]]:
        """Run each test once; return the tests of each function."""
        from mutmut.state import state  # noqa: PLC0415

        tests: dict[str, set[int]] = {}
        os.environ["MUTANT_UNDER_TEST"] = "stats"
        for index in range(len(session.items)):
            start = perf_counter()
            if not self._run(session, index):
                sys.exit(f"{session.items[index].nodeid} fails without a change")
            self.seconds.append(perf_counter() - start)
            for function in state()._stats:
                tests.setdefault(function, set()).add(index)
            state()._stats.clear()
        return tests

    def _start(self, session: pytest.Session, name: str, indexes: list[int]) -> None:
        read, write = os.pipe()
        if pid := os.fork():
            os.close(write)
            self.running[pid] = name, read, perf_counter()
            return
        resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_SECONDS, MAX_CPU_SECONDS))
        os.environ["MUTANT_UNDER_TEST"] = f"{self.module}.{name}"
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        for index in indexes:
            os.write(write, f"{index} ".encode())
            if not self._run(session, index):
                os._exit(1)
        os._exit(0)

    def _wait(self, session: pytest.Session) -> None:
        pid, status = os.wait()
        name, pipe, start = self.running.pop(pid)
        indexes = os.read(pipe, 65536).split()
        os.close(pipe)
        self.results[name] = "survived" if indexes else "no tests"
        if status and indexes:
            index = int(indexes[-1])
            self.counts[index] += 1
            self.seconds[index] += perf_counter() - start
            self.results[name] = session.items[index].nodeid
        print(f"{name}: {self.results[name]}", file=sys.stderr, flush=True)


def run(name: str, patterns: list[str], chosen: tuple[str, ...], children: int, limit: int) -> None:
    """Print the changes of a module that no test notices."""
    rules = MODULES[name]
    folder = WORK / name
    _copy(folder, rules)
    os.chdir(folder)
    sys.path[:0] = [str(folder / "src"), str(folder / "tests"), str(folder)]
    functions = _mutate(folder / "src" / "zndraw_joblib" / rules.path)
    names = [key for pattern in patterns for key in functions if fnmatch(key, pattern)]
    names = [key for key in dict.fromkeys(names) if not key.endswith("_orig")]
    plugin = Run("zndraw_joblib." + rules.path.removesuffix(".py").replace("/", "."), names, children, limit)
    with TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as os.environ["TMPDIR"]:
        pytest.main([*chosen, *QUICK, *(f"tests/{test}" for test in rules.tests)], [plugin])
    survivors = [key for key, result in plugin.results.items() if result in {"survived", "no tests"}]
    for key in survivors:
        print(f"{key}: {plugin.results[key]}")
        before, after = functions[key.partition("__mutmut_")[0] + "__mutmut_orig"], functions[key]
        diff = list(unified_diff(before, after, lineterm="", n=0))[2:]
        print(*(line for line in diff if not line.startswith("@@")), sep="\n")
    print(f"{name}: {len(survivors)} of {len(plugin.results)} changes were not noticed")


if __name__ == "__main__":
    _parser = ArgumentParser(description="List the changes of a module that no test notices.")
    _parser.add_argument("module", choices=MODULES)
    _parser.add_argument("patterns", nargs="*", default=["*"], help="such as '*7', or '*_choose_*'")
    _parser.add_argument("--postgresql", action="store_true", help="run the tests of all databases")
    _parser.add_argument("--children", type=int, default=2)
    _parser.add_argument("--tests", type=int, default=10_000, help="the most tests for one change")
    _args = _parser.parse_args()
    run(_args.module, _args.patterns, ON_ALL if _args.postgresql else ON_SQLITE, _args.children, _args.tests)
