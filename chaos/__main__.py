"""Break everything for a while, and prove that nothing was lost: `make chaos`."""

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from chaos import jobs
from chaos.checker import check
from chaos.database import Database, database
from chaos.evidence import Evidence, Submission
from chaos.faults import Injector
from chaos.load import plan, submit_all
from chaos.report import table
from chaos.stage import Stage, stage

_QUIET_SECONDS = 45.0


def main() -> int:
    """Run, print what happened, return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="decides load and faults")
    parser.add_argument("--seconds", type=float, default=100, help="how long tasks and faults come")
    parser.add_argument("--tasks", type=int, default=3000)
    parser.add_argument("--workers", type=int, default=20)
    parser.add_argument("--pause", type=float, default=2.0, help="seconds between two faults, about")
    parser.add_argument("--database", choices=("postgresql", "sqlite"), default="postgresql")
    parser.add_argument("--folder", type=Path, help="keep journals and the server's log here")
    arguments = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        with database(arguments.database, folder) as used:
            evidence = asyncio.run(run(used, folder, arguments))
    print(table(evidence))
    violations = check(evidence)
    print(_summary(evidence), f"seed {arguments.seed}, {time.monotonic() - began:.0f} s")
    for violation in violations:
        print(violation)
    print(f"{len(violations)} violations")
    return 1 if violations else 0


async def run(used: Database, folder: Path, options: argparse.Namespace) -> Evidence:
    """Let tasks and faults come, wait until it is quiet, and return the evidence."""
    rng = random.Random(options.seed)
    planned = plan(rng, options.tasks)
    async with stage(used, folder) as on:
        populate(on, options.workers)
        await on.ready(jobs.ALL)
        injector = Injector(on, random.Random(options.seed))
        async with asyncio.TaskGroup() as group:
            group.create_task(submit_all(on.client, planned, options.seconds, rng))
            group.create_task(injector.run(options.seconds, options.pause))
        await injector.finish()
        await settle(on, planned)
        return await on.evidence(planned)


def populate(on: Stage, workers: int) -> None:
    """Start the workers; one of them serves the job that is done in a line."""
    for place in range(workers):
        on.pool.add([jobs.LINE] if not place else [job for job in jobs.ALL if job != jobs.LINE])


async def settle(on: Stage, planned: list[Submission]) -> None:
    """Wait until all has ended, and stop the workers."""
    await on.all_end(planned, _QUIET_SECONDS if on.is_recovering else _QUIET_SECONDS / 3)
    await asyncio.to_thread(on.pool.stop)


def _summary(evidence: Evidence) -> str:
    accepted = sum(submission.task is not None for submission in evidence.submissions)
    states = Counter(task.status.value for task in evidence.tasks)
    ended = ", ".join(f"{count} {status}" for status, count in sorted(states.items()))
    return (
        f"{len(evidence.submissions)} submits: {accepted} accepted, the others in doubt; "
        f"{len(evidence.tasks)} tasks: {ended}; {len(evidence.losses)} were taken from lost workers;"
    )


if __name__ == "__main__":
    sys.exit(main())
