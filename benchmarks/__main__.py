"""Run benchmarks: `make bench`, or some sections and databases: `make bench ARGS="worker batch sqlite"`."""

import argparse
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from benchmarks import (
    batches,
    chains,
    control,
    dead_workers,
    event_streams,
    fanout,
    groups,
    inference,
    labels,
    limits,
    long_ends,
    many_clients,
    many_jobs,
    payloads,
    pending,
    providers,
    rates,
    replicas,
    rooms,
    sdk_worker,
    start,
    unique,
    watched,
    webhooks,
    writes,
)
from benchmarks.bench import CONNECTIONS, Bench, databases
from benchmarks.figures import Report, machine, versions
from benchmarks.peers import run as peers
from benchmarks.peers import together
from benchmarks.servers import serving

DATABASES = ("sqlite", "postgresql")
SECTIONS: dict[str, Callable[[Bench], None]] = {
    "rates": rates.run,
    "latencies": rates.run_latencies,
    "batch": batches.run,
    "providers": providers.run,
    "payloads": payloads.run,
    "many-clients": many_clients.run,
    "fanout": fanout.run,
    "jobs": many_jobs.run,
    "backlog": pending.run,
    "writes": writes.run,
    "limits": limits.run,
    "start": start.run,
    "worker": sdk_worker.run,
    "inference": inference.run,
    "watched": watched.run,
    "sockets": rates.run_socketio_overhead,
    "dead-workers": dead_workers.run,
    "rooms": rooms.run,
    "unique": unique.run,
    "groups": groups.run,
    "chains": chains.run,
    "long-ends": long_ends.run,
    "labels": labels.run,
    "webhooks": webhooks.run,
    "replicas": replicas.run,
    "streams": event_streams.run,
    "control": control.run,
}
# The sections of a group use one server, one after another. It is stopped at the end of the group.
# The memory of clients is measured on a new server, and many pending tasks come last.
SHARING = (
    ("rates", "latencies", "batch", "providers", "payloads"),
    ("many-clients", "fanout", "jobs", "backlog"),
)
# Sections that run only if they are named, because they take longer.
ON_REQUEST = {"streams", "control", "limits", "webhooks", "chains", "long-ends", "labels"}
# Runs that compare queues, each of which has databases of its own.
_COMPARISONS = ("peers", "together")


_NAMES = " ".join((*SECTIONS, *_COMPARISONS, *DATABASES))
_HELP = (
    f"sections and databases: {_NAMES}. By default all but streams, limits, webhooks, chains, "
    "long-ends, labels, control (a million tasks), peers and together, on both databases"
)


def main() -> None:
    """Run the given sections on the given databases."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=_HELP)
    parser.add_argument("--seconds", type=float, default=0.3, help="duration of one measurement")
    parser.add_argument("--repeats", type=int, default=3, help="use the median of this many measurements")
    parser.add_argument("--rounds", type=int, default=3, help="the same for peers and together")
    parser.add_argument("--only", nargs="+", default=[], metavar="PEER", help="measure only these peers")
    parser.add_argument("--slots", type=int, help="tasks at once in a worker process of these peers")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - {*SECTIONS, *DATABASES, *_COMPARISONS}:
        parser.error(f"unknown sections or databases {sorted(unknown)}; choose from {_NAMES}")
    print(", ".join(f"{name} {value}" for name, value in (machine() | versions()).items()))
    report, began = Report(), time.monotonic()
    if "peers" in arguments.names:
        peers.run(report, arguments.rounds, arguments.only, arguments.slots)
    elif "together" in arguments.names:
        together.run(report, arguments.rounds, arguments.only)
    else:
        _run_sections(report, arguments)
    report.seconds["in all"] = round(time.monotonic() - began, 1)
    print(f"\nTook {report.seconds['in all']:.0f} s")
    if arguments.json:
        report.write(arguments.json)


def _run_sections(report: Report, arguments: argparse.Namespace) -> None:
    default = [name for name in SECTIONS if name not in ON_REQUEST]
    sections = [name for name in SECTIONS if name in arguments.names] or default
    kinds = [name for name in DATABASES if name in arguments.names] or list(DATABASES)
    print(
        "The load generator, the database and the server share the cores. Each rate is the median of "
        f"{arguments.repeats} measurements of {arguments.seconds:g} s.\nRatio: the rate, three times that "
        "for a life cycle (three calls), divided by the rate of an empty\nFastAPI endpoint over as many "
        f"connections ({CONNECTIONS} for batches and workers), measured just before and just\nafter; "
        "the median, so not always the quotient of the printed rates."
    )
    with serving("noop") as noop:
        for kind in kinds:
            with (
                tempfile.TemporaryDirectory() as folder,
                databases(kind, Path(folder)) as new_url,
                ExitStack() as exits,
            ):
                bench = Bench(kind, new_url, noop, arguments.seconds, arguments.repeats, report, exits)
                last: tuple[str, ...] = ()
                for name in sections:
                    group = next((names for names in SHARING if name in names), ())
                    if group != last:
                        bench.stop_shared_server()
                    report.database, report.section, last = kind, name, group
                    print(f"\n{name}, {kind}", flush=True)
                    began = time.monotonic()
                    SECTIONS[name](bench)
                    report.seconds[f"{name}, {kind}"] = seconds = round(time.monotonic() - began, 1)
                    print(f"  ({seconds} s)", flush=True)


if __name__ == "__main__":
    main()
