"""Break everything for a while, and prove that nothing was lost: `make chaos`."""

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
from chaos.database import Database, database
from chaos.evidence import Evidence
from chaos.faults import Injector
from chaos.play import Load, play
from chaos.report import table
from chaos.stage import stage


def main() -> int:
    """Run, print what happened, return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="decides load and faults")
    parser.add_argument("--seconds", type=float, default=100, help="how long tasks and faults come")
    parser.add_argument("--tasks", type=int, default=3000)
    parser.add_argument("--workers", type=int, default=20)
    parser.add_argument("--pause", type=float, default=1.5, help="seconds between two faults, about")
    parser.add_argument("--database", choices=("postgresql", "sqlite"), default="postgresql")
    parser.add_argument("--folder", type=Path, help="keep journals, logs and the evidence here")
    arguments = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        with database(arguments.database, folder) as used:
            evidence = asyncio.run(run(used, folder, arguments))
    if arguments.folder:
        (folder / "evidence.pickle").write_bytes(pickle.dumps(evidence))
    print(table(evidence))
    violations = check(evidence)
    print(_summary(evidence), f"seed {arguments.seed}, {time.monotonic() - began:.0f} s")
    for violation in violations:
        print(violation)
    print(f"{len(violations)} violations")
    return 1 if violations else 0


async def run(used: Database, folder: Path, options: argparse.Namespace) -> Evidence:
    """Let tasks and faults come, and return the evidence."""
    load = Load(options.seed, options.tasks, options.workers, options.seconds)
    async with stage(used, folder) as on:
        injector = Injector(on, random.Random(options.seed))
        return await play(on, load, injector, injector.run(options.seconds, options.pause))


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
