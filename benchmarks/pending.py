"""The costs of single requests while many tasks are pending."""

from statistics import median

import uvloop

from benchmarks import scenarios
from benchmarks.backlog import add_pending_tasks
from benchmarks.bench import Bench, Scenario
from benchmarks.http_client import Rate, connections, measure
from benchmarks.scenarios import ROOM, V1
from benchmarks.servers import TOKEN

_BACKLOGS = (0, 250_000)
_FEW = 10_000  # enough for the claims without a backlog


def run(bench: Bench) -> None:
    """Report submit, claim, list and read with few and with many pending tasks, as p50 in ms."""
    server, url = bench.shared_server
    first: dict[str, float] = {}
    pending = 0
    uvloop.run(scenarios.submit(server, 1, 0.5))
    for backlog in _BACKLOGS:
        uvloop.run(add_pending_tasks(url, max(_FEW, backlog) - pending))
        pending = max(_FEW, backlog)
        for name, scenario in _SCENARIOS.items():
            p50 = median(uvloop.run(scenario(server, 1, bench.seconds)).p50 for _ in range(bench.repeats))
            bench.report.add(f"{name}, {backlog:,} pending", p50, "ms")
            first.setdefault(name, p50)
            if backlog == _BACKLOGS[-1]:
                bench.report.add(f"{name}, {backlog:,} pending ÷ none", p50 / first[name], "x")


async def _list(server: str, count: int, seconds: float) -> Rate:
    async with connections(server, TOKEN, count) as opened:
        return await measure(opened, lambda c: c.json("GET", f"{ROOM}/tasks?limit=50"), seconds)


async def _read(server: str, count: int, seconds: float) -> Rate:
    """Read the newest task, which has the longest queue before it."""
    async with connections(server, TOKEN, count) as opened:
        task = await scenarios.submit_task(opened[0])
        return await measure(opened, lambda c: c.json("GET", f"{V1}/tasks/{task['id']}"), seconds)


_SCENARIOS: dict[str, Scenario] = {
    "submit": scenarios.submit,
    "claim": scenarios.claim,
    "list 50": _list,
    "read one": _read,
}
