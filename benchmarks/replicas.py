"""Two servers on one PostgreSQL database, compared with one."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from statistics import median
from typing import Any

import uvloop

from benchmarks import batches, scenarios
from benchmarks.backlog import add_pending_tasks
from benchmarks.bench import CONNECTIONS, Bench, Scenario
from benchmarks.rates import report_latencies
from benchmarks.servers import serving_all

_MAX_TASKS_PER_SECOND = 10_000


def run(bench: Bench) -> None:
    """Report the rates of two servers divided by those of one, and the latencies from one to the other."""
    if bench.kind != "postgresql":
        print("  only on PostgreSQL: one SQLite database has one server")
        return
    url = bench.new_url()
    with serving_all(("joblib", url), ("joblib", url)) as (first, second):
        for name, scenario in (
            ("submit", scenarios.submit),
            ("claim", scenarios.claim),
            ("life cycle", scenarios.life_cycle),
        ):
            uvloop.run(scenarios.submit(first, 1, 0.1))
            if scenario is not scenarios.submit:
                needed = 2 * bench.repeats * bench.seconds * _MAX_TASKS_PER_SECOND
                uvloop.run(add_pending_tasks(url, int(needed)))

            async def measure(*servers: str, scenario: Scenario = scenario) -> float:
                each = CONNECTIONS // len(servers)
                rates = await asyncio.gather(*[scenario(server, each, bench.seconds) for server in servers])
                return sum(rate.per_second for rate in rates)

            _report(bench, name, first, second, measure)
        print(
            "  Each server publishes an event for each task, for clients of the other one. Batches are\n"
            "  faster than that, so the queues of events fill and drop the oldest: this is expected."
        )
        _report(bench, "batch submit", first, second, partial(_batch_submit, seconds=bench.seconds))
        report_latencies(bench, first, second)


async def _batch_submit(*servers: str, seconds: float) -> float:
    rates = await asyncio.gather(*[batches.submit(server, 1_000, seconds) for server in servers])
    return sum(rate.per_second for rate in rates)


def _report(
    bench: Bench, name: str, first: str, second: str, measure: Callable[..., Coroutine[Any, Any, float]]
) -> None:
    both, ratios = [], []
    for _ in range(bench.repeats):
        one = uvloop.run(measure(first))
        both.append(uvloop.run(measure(first, second)))
        ratios.append(both[-1] / one)
    bench.report.add(f"{name}, two servers", median(both), "/s")
    bench.report.add(f"{name}, two servers ÷ one", median(ratios), "x")
