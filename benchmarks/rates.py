"""Rates of single requests, latencies of waiting ones, and the cost of Socket.IO."""

from statistics import median
from typing import Any

import uvloop

from benchmarks import scenarios
from benchmarks.backlog import add_pending_tasks
from benchmarks.bench import CONNECTIONS, Bench
from benchmarks.servers import serving_all

_MAX_TASKS_PER_SECOND = 10_000  # faster than any scenario
_ROUNDS = 60
_SUBMIT = ("submit", scenarios.submit, 1)
_LIFE_CYCLE = ("life cycle", scenarios.life_cycle, 3)
# A lone life cycle has a lone claim.
_SCENARIOS = {1: (_SUBMIT, _LIFE_CYCLE), CONNECTIONS: (_SUBMIT, ("claim", scenarios.claim, 1), _LIFE_CYCLE)}


def run(bench: Bench) -> None:
    """Report the rates of submit, claim and the whole life cycle of a task, which is three calls."""
    server, url = bench.shared_server
    for count, measured in _SCENARIOS.items():
        uvloop.run(scenarios.submit(server, count, bench.seconds))
        noop = median(bench.empty_rate(count) for _ in range(bench.repeats))
        bench.report.add(f"empty endpoint, {_counted(count)}", noop, "/s")
        for name, scenario, calls in measured:
            if scenario is not scenarios.submit:
                needed = bench.repeats * bench.seconds * _MAX_TASKS_PER_SECOND
                uvloop.run(add_pending_tasks(url, int(needed)))
            rate, ratio = bench.scenario(server, scenario, count, calls)
            bench.report.add(f"{name}, {_counted(count)}", rate, "/s", ratio)


def _counted(connections: int) -> str:
    return "1 connection" if connections == 1 else f"{connections} connections"


def run_latencies(bench: Bench) -> None:
    """Report how long one submit takes, and when waiting claims and waiting submitters get their response."""
    server, _ = bench.shared_server
    lone = [uvloop.run(scenarios.submit(server, 1, bench.seconds)) for _ in range(bench.repeats)]
    bench.add_times({"lone submit, p50": median(each.p50 for each in lone)})
    report_latencies(bench, server, server)


def report_latencies(bench: Bench, submitter: str, worker: str) -> None:
    """Report the time from submit to a waiting claim, and from completion to a waiting submitter."""
    figures: Any = uvloop.run(scenarios.latencies(submitter, worker, _ROUNDS))
    for name, (p50, p95) in zip(
        ("submit to waiting claim", "completion to waiting submitter"), figures, strict=True
    ):
        bench.add_times({f"{name}, p50": p50, f"{name}, p95": p95})


def run_socketio_overhead(bench: Bench) -> None:
    """Report the rates with Socket.IO and no client, divided by the rates without Socket.IO."""
    urls = bench.new_url(), bench.new_url()
    with serving_all(("joblib", urls[0]), ("no-events", urls[1])) as servers:
        for name, scenario, _ in (_SUBMIT, _LIFE_CYCLE):
            for server, url in zip(servers, urls, strict=True):
                uvloop.run(scenarios.submit(server, CONNECTIONS, bench.seconds / 4))
                if scenario is not scenarios.submit:
                    needed = bench.repeats * bench.seconds * _MAX_TASKS_PER_SECOND
                    uvloop.run(add_pending_tasks(url, int(needed)))
            ratios = []
            for _ in range(bench.repeats):
                with_, without = (
                    uvloop.run(scenario(server, CONNECTIONS, bench.seconds)).per_second for server in servers
                )
                ratios.append(with_ / without)
            bench.report.add(f"{name} with Socket.IO ÷ without", median(ratios), "x")
