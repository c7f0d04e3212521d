"""Run tasks while faults are injected, then check that no task is lost or completed twice."""

import argparse
import asyncio
import pickle
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from chaos import isolation
from chaos.checker import check
from chaos.database import Database, temporary_database
from chaos.environment import open_environment
from chaos.faults import FaultInjector
from chaos.graphs import GraphLoad
from chaos.groups import GroupLoad, settings_for
from chaos.measures import Outcome, format_outcomes
from chaos.receiver import receiving
from chaos.records import RunRecord
from chaos.report import format_table
from chaos.scenarios import SCENARIOS
from chaos.single import missing, run_scenario
from chaos.workload import Workload, run_workload

MIXED = "mixed"


def main() -> int:
    """Run, print the report, return the exit code."""
    arguments = _parse()
    isolation.enter()
    names = arguments.fault or [*SCENARIOS, MIXED]
    databases = arguments.database or ["sqlite", "postgresql"]
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        outcomes = list(_run_single([name for name in names if name != MIXED], databases, folder))
        if outcomes:
            print(format_outcomes(outcomes), flush=True)
        has_failed = any(outcome.is_failure for outcome in outcomes)
        if MIXED in names:
            # Without an explicit choice on PostgreSQL alone, which has more faults.
            for database in arguments.database or ["postgresql"]:
                has_failed |= _run_mixed(database, folder / f"{MIXED}-{database}", arguments)
    print(f"{time.monotonic() - began:.0f} s")
    return 1 if has_failed else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    names = ", ".join([*SCENARIOS, MIXED])
    parser.add_argument(
        "--fault",
        action="append",
        choices=(*SCENARIOS, MIXED),
        metavar="NAME",
        help=f"inject only this fault; may be repeated: {names}. `{MIXED}` injects many at random",
    )
    parser.add_argument("--database", action="append", choices=("postgresql", "sqlite"))
    parser.add_argument("--folder", type=Path, help="keep the logs and the records in this folder")
    mixed = parser.add_argument_group(f"the fault `{MIXED}`")
    mixed.add_argument("--seed", type=int, default=1, help="seed of the workload and of the faults")
    mixed.add_argument("--seconds", type=float, default=100, help="duration of submissions and faults")
    mixed.add_argument("--tasks", type=int, default=3000, help="number of tasks")
    mixed.add_argument("--workers", type=int, default=20, help="number of worker processes")
    mixed.add_argument("--pause", type=float, default=1.5, help="mean number of seconds between two faults")
    return parser.parse_args()


def _run_single(names: list[str], databases: list[str], folder: Path) -> Iterator[Outcome]:
    """Run each fault on each database where it makes sense."""
    for name in names:
        for database in [each for each in databases if each in SCENARIOS[name].databases]:
            if reason := missing(SCENARIOS[name], database):
                print(f"{name} on {database} was not run: it {reason}", flush=True)
                continue
            outcome = asyncio.run(run_scenario(SCENARIOS[name], database, folder / f"{name}-{database}"))
            print(" | ".join([*outcome.cells, *outcome.all_notes]), flush=True)
            yield outcome


def _run_mixed(name: str, folder: Path, arguments: argparse.Namespace) -> bool:
    """Inject many faults at random; return whether a guarantee was violated."""
    folder.mkdir(parents=True)
    with temporary_database(name, folder) as database:
        record = asyncio.run(run(database, folder, arguments))
    (folder / "record.pickle").write_bytes(pickle.dumps(record))
    print(format_table(record))
    violations = check(record)
    print(f"{_summarize(record)}; seed {arguments.seed}")
    for violation in violations:
        print(violation)
    print(f"{len(violations)} violations")
    return bool(violations)


async def run(database: Database, folder: Path, options: argparse.Namespace) -> RunRecord:
    """Run the workload with random faults and return the record."""
    workload = Workload(options.seed, options.tasks, options.workers, options.seconds)
    async with (
        receiving() as receiver,
        open_environment(database, folder, **settings_for(receiver)) as environment,
    ):
        groups, graphs = GroupLoad(environment, receiver), GraphLoad(environment)
        injector = FaultInjector(environment, random.Random(options.seed))
        faults = injector.run(options.seconds, options.pause)
        return await run_workload(environment, workload, injector, faults, groups, graphs)


def _summarize(record: RunRecord) -> str:
    accepted = sum(submission.task_id is not None for submission in record.submissions)
    statuses = Counter(task.status.value for task in record.tasks)
    ended = ", ".join(f"{count} {status}" for status, count in sorted(statuses.items()))
    return (
        f"{len(record.submissions)} submissions: {accepted} accepted, the others without a response; "
        f"{len(record.tasks)} tasks: {ended}; {len(record.lost_attempts)} attempts of removed workers; "
        f"{len(record.groups)} groups, {len(record.arrivals)} deliveries; "
        f"{sum(len(graph.steps) for graph in record.graphs)} tasks of {len(record.graphs)} chains and fans"
    )


if __name__ == "__main__":
    sys.exit(main())
