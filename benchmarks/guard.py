"""Fail if requests have become much slower, compared with an empty FastAPI endpoint: `make guard`.

For each kind of request `ratios.json` stores two ratios to the endpoint, measured just before and just after:
of the rates, and of the processor time that one request takes in server and database. The ratio of the
processor times may fall by 30 %. The rate also shows waiting, but on a busy machine it varies by a factor of
two, so its ratio may fall by half. The start of a server is compared with that of an empty application; the
ratio of their memory hardly varies, and may fall by a tenth. The best of several tries counts; what is too
slow in all of them is measured once more with new servers and databases, whose processes vary.
`make guard ARGS=--write` stores new ratios, `make guard ARGS="watched start"` measures the checks that have
one of these words in their name.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from statistics import median
from uuid import UUID

import psutil
import uvloop

from benchmarks import batches, many_jobs, scenarios, start, watched
from benchmarks.backlog import add_pending_tasks
from benchmarks.bench import CONNECTIONS, databases
from benchmarks.http_client import Rate
from benchmarks.servers import serving

RATIOS = Path(__file__).with_name("ratios.json")
_ALLOWED = {"rate": 0.5, "processor time": 0.7, "memory": 0.9}  # of the stored ratio
_SECONDS = 0.3
_BATCH = 200
_WATCHED_BATCH = 20
_BACKLOG = 60_000
_TASKS_OF_MANY = 10_000
_DEADLINE_SECONDS = 25.0
# More would use up the backlog.
_MIN_TRIES, _MAX_TRIES, _WRITE_TRIES = 3, 10, 7
_SERVERS = 2
Key = tuple[str, str]
Ratios = dict[str, float]
Checks = dict[Key, Callable[[], Ratios]]


def main() -> None:
    """Measure until each ratio is good once, or the time is over; exit with 1 if one is not."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.guard", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="CHECK", help="words in the names of checks; default: all"
    )
    parser.add_argument("--write", action="store_true", help="store the medians of what is measured now")
    arguments = parser.parse_args()
    stored = json.loads(RATIOS.read_text(encoding="utf-8"))
    slow: dict[Key, list[str]] = {}
    for _ in range(_SERVERS):
        with checks() as all_checks:
            measures = {
                key: measure
                for key, measure in all_checks.items()
                if not arguments.names or any(word in key[1] for word in arguments.names)
            }
            if not measures:
                parser.error(
                    f"no check is named so; choose from {', '.join(sorted({name for _, name in all_checks}))}"
                )
            if arguments.write:
                _write(measures, stored)
                return
            slow = _measure({key: measures[key] for key in slow or measures}, stored)
        if not slow:
            break
    for (kind, name), faults in slow.items():
        print(
            f"{name} on {kind} is slower than benchmarks/ratios.json allows: {', '.join(faults)}. "
            "Profile it; if the change is wanted, run make guard ARGS=--write",
            file=sys.stderr,
        )
    sys.exit(bool(slow))


@contextmanager
def checks() -> Iterator[Checks]:
    """Yield functions that measure the ratios, by database and name, while their servers run."""
    measures: Checks = {}
    with ExitStack() as stack:
        noop = stack.enter_context(serving("noop"))
        for kind in ("sqlite", "postgresql"):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            new_url = stack.enter_context(databases(kind, folder))
            url = new_url()
            measures[kind, "start"] = partial(_start, new_url())
            server = stack.enter_context(serving("joblib", url))
            uvloop.run(scenarios.submit(server, CONNECTIONS, 0.1))
            uvloop.run(add_pending_tasks(url, _BACKLOG))
            processes = [server.rpartition(":")[2], str(folder)]
            workers = many_jobs.add_workers(server, url, many_jobs.MANY, _TASKS_OF_MANY, CONNECTIONS)
            for name, scenario in _scenarios(server, workers).items():
                measures[kind, name] = partial(_ratios, scenario, processes, noop)
        yield measures


def _scenarios(server: str, workers: Sequence[UUID]) -> dict[str, Callable[[], Rate]]:
    return {
        "submit": lambda: uvloop.run(scenarios.submit(server, CONNECTIONS, _SECONDS)),
        "claim": lambda: uvloop.run(scenarios.claim(server, CONNECTIONS, _SECONDS)),
        "claim of 1,000 jobs": lambda: uvloop.run(many_jobs.claim(server, workers, _SECONDS)),
        "batch submit": lambda: uvloop.run(batches.submit(server, _BATCH, _SECONDS)),
        "batch claim and report": lambda: uvloop.run(batches.claim_and_report(server, _BATCH, _SECONDS)),
        "watched room": lambda: uvloop.run(watched.claim_and_report(server, _WATCHED_BATCH, 2 * _SECONDS)),
    }


def _ratios(scenario: Callable[[], Rate], processes: list[str], noop: str) -> Ratios:
    def empty() -> Rate:
        return uvloop.run(scenarios.noop(noop, CONNECTIONS, _SECONDS / 2))

    before = _timed(empty, [noop.rpartition(":")[2]])
    rate, cost = _timed(scenario, processes)
    after = _timed(empty, [noop.rpartition(":")[2]])
    return {"rate": 2 * rate / (before[0] + after[0]), "processor time": (before[1] + after[1]) / 2 / cost}


def _start(url: str) -> Ratios:
    before, server, after = start.empty(), start.serve(url), start.empty()
    return {
        "processor time": (before.processor + after.processor) / 2 / server.processor,
        "memory": before.memory / server.memory,
    }


def _timed(call: Callable[[], Rate], words: list[str]) -> tuple[float, float]:
    """Return the rate, and the processor time of one call in the processes with these words as arguments."""
    family: dict[int, psutil.Process] = {}
    for process in psutil.process_iter(["cmdline"]):
        if set(words) & set(process.info["cmdline"] or ()):
            with suppress(psutil.NoSuchProcess):
                family |= {member.pid: member for member in (process, *process.children(recursive=True))}
    before = _spent(family.values())
    rate = call()
    return rate.per_second, (_spent(family.values()) - before) / rate.count


def _spent(processes: Iterable[psutil.Process]) -> float:
    total = 0.0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def _measure(measures: Checks, stored: dict[str, dict[str, Ratios]]) -> dict[Key, list[str]]:
    """Return what was never good enough, by database and name."""
    began = time.monotonic()
    best: dict[Key, Ratios] = {}
    faults: dict[Key, list[str]] = {key: [""] for key in measures}
    for tries in range(1, _MAX_TRIES + 1):
        for key in list(faults):
            kind, name = key
            ratios = measures[key]()
            best[key] = {of: max(ratio, best.get(key, ratios)[of]) for of, ratio in ratios.items()}
            limits = {of: _ALLOWED[of] * ratio for of, ratio in stored[kind][name].items()}
            shown = {of: f"{of} {best[key][of]:.2f} (at least {limit:.2f})" for of, limit in limits.items()}
            print(f"{kind:<10} {name:<22} {', '.join(shown.values())}", flush=True)
            faults[key] = [shown[of] for of, limit in limits.items() if best[key][of] < limit]
        faults = {key: texts for key, texts in faults.items() if texts}
        if not faults or (tries >= _MIN_TRIES and time.monotonic() - began > _DEADLINE_SECONDS):
            break
    return faults


def _write(measures: Checks, stored: dict[str, dict[str, Ratios]]) -> None:
    for (kind, name), measure in measures.items():
        tries = [measure() for _ in range(_WRITE_TRIES)]
        medians = {of: round(median(ratios[of] for ratios in tries), 3) for of in tries[0]}
        stored.setdefault(kind, {})[name] = medians
        spread = {of: [round(ratios[of], 2) for ratios in tries] for of in tries[0]}
        print(f"{kind:<10} {name:<22} {medians} of {spread}", flush=True)
    RATIOS.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
