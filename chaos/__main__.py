"""Run tasks while faults are injected, then check that the documented guarantees hold."""

import argparse
import asyncio
import pickle
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from chaos.checker import check
from chaos.database import Database, temporary_database
from chaos.environment import open_environment
from chaos.faults import FaultInjector
from chaos.records import RunRecord
from chaos.report import format_table
from chaos.workload import Workload, run_workload


def main() -> int:
    """Run, print the report, return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="seed of the workload and of the faults")
    parser.add_argument("--seconds", type=float, default=100, help="duration of submissions and faults")
    parser.add_argument("--tasks", type=int, default=3000, help="number of tasks")
    parser.add_argument("--workers", type=int, default=20, help="number of worker processes")
    parser.add_argument("--pause", type=float, default=1.5, help="mean number of seconds between two faults")
    parser.add_argument("--database", choices=("postgresql", "sqlite"), default="postgresql")
    parser.add_argument("--folder", type=Path, help="keep the logs and the record of the run in this folder")
    arguments = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        with temporary_database(arguments.database, folder) as database:
            record = asyncio.run(run(database, folder, arguments))
    if arguments.folder:
        (folder / "record.pickle").write_bytes(pickle.dumps(record))
    print(format_table(record))
    violations = check(record)
    print(f"{_summarize(record)}; seed {arguments.seed}, {time.monotonic() - began:.0f} s")
    for violation in violations:
        print(violation)
    print(f"{len(violations)} violations")
    return 1 if violations else 0


async def run(database: Database, folder: Path, options: argparse.Namespace) -> RunRecord:
    """Run the workload with faults and return the record."""
    workload = Workload(options.seed, options.tasks, options.workers, options.seconds)
    async with open_environment(database, folder) as environment:
        injector = FaultInjector(environment, random.Random(options.seed))
        faults = injector.run(options.seconds, options.pause)
        return await run_workload(environment, workload, injector, faults)


def _summarize(record: RunRecord) -> str:
    accepted = sum(submission.task_id is not None for submission in record.submissions)
    statuses = Counter(task.status.value for task in record.tasks)
    ended = ", ".join(f"{count} {status}" for status, count in sorted(statuses.items()))
    return (
        f"{len(record.submissions)} submissions: {accepted} accepted, the others without a response; "
        f"{len(record.tasks)} tasks: {ended}; {len(record.lost_attempts)} attempts of removed workers"
    )


if __name__ == "__main__":
    sys.exit(main())
