"""Claims of workers with labels, by the number of workers and of sets; claims of workers with little time."""

import time
from statistics import median
from typing import Any, NamedTuple

import uvloop

from benchmarks.bench import Bench
from benchmarks.http_client import Connection, connections
from benchmarks.scenarios import V1
from benchmarks.servers import TOKEN

_WORKERS, _SETS_PER_JOB = 1000, 100
_TASKS = 100
_DAY, _MINUTE = 86_400, 60


class _Case(NamedTuple):
    """What is claimed: tasks of a job with these requirements, by a worker that sends these fields."""

    name: str
    job: str
    worker_id: str
    requires: dict[str, Any] | None = None
    fields: dict[str, Any] = {}  # noqa: RUF012 - it is not changed


def run(bench: Bench) -> None:
    """Report the time of a claim with few and with many sets, and what time costs a claim."""
    server, _ = bench.shared_server
    figures = uvloop.run(_run(server, max(bench.repeats, 3)))
    for name, (value, unit) in figures.items():
        bench.report.add(name, value, unit)


async def _run(server: str, repeats: int) -> dict[str, tuple[float, str]]:
    async with connections(server, TOKEN, 1) as (connection,):
        cases = await _cases(connection)
        few = await _times(connection, cases, repeats)
        register, submit = await _add_workers(connection)
        many = await _times(connection, cases, repeats)
    plain, own, *timed = (case.name for case in cases)
    figures = {
        f"claim, {own}": (few[own], "ms"),
        f"claim, {own}, of {_WORKERS:,} workers and sets": (many[own], "ms"),
        # A job without requirements shows how the speed of the machine has changed.
        f"{_WORKERS:,} workers and sets ÷ 1": (many[own] / few[own] * few[plain] / many[plain], "x"),
        f"claim, {plain}": (few[plain], "ms"),
    }
    figures |= {f"claim, {name}": (few[name], "ms") for name in timed}
    return figures | {
        "register a worker with labels": (register, "ms"),
        "first submit of a set": (submit, "ms"),
    }


async def _cases(connection: Connection) -> list[_Case]:
    alone = await _register(connection, "Alone")
    labeled = await _register(connection, "Labels0", labels={"node": 0})
    brief = await _register(connection, "Brief", expected_seconds=_MINUTE)
    mixed = await _register(connection, "Brief")
    await _register(connection, "Long", worker_id=mixed["worker_id"], expected_seconds=_DAY)
    await _submit(connection, "@global:modifiers:Long", None, 1)
    remaining = {"remaining_seconds": 3600}
    return [
        _Case("no requirements", alone["full_name"], alone["worker_id"]),
        _Case("1 set of requirements", labeled["full_name"], labeled["worker_id"], {"node": 0}),
        _Case("with time for its job", brief["full_name"], brief["worker_id"], fields=remaining),
        _Case("with time for 1 of 2 jobs", brief["full_name"], mixed["worker_id"], fields=remaining),
    ]


async def _register(
    connection: Connection, name: str, labels: dict[str, Any] | None = None, **fields: Any
) -> dict[str, Any]:
    body = {"category": "modifiers", "name": name, "schema": {}, **fields}
    if labels is not None:
        body["worker"] = {"labels": labels}
    job: dict[str, Any] = await connection.json("PUT", f"{V1}/rooms/@global/jobs", body)
    return job


async def _submit(connection: Connection, job: str, requires: dict[str, Any] | None, number: int) -> None:
    task = {"room_id": "bench", "job_name": job, "payload": {}}
    if requires is not None:
        task["requires"] = requires
    await connection.json("POST", f"{V1}/tasks/submit", {"tasks": [task] * number})


async def _times(connection: Connection, cases: list[_Case], repeats: int) -> dict[str, float]:
    times: dict[str, list[float]] = {case.name: [] for case in cases}
    for _ in range(repeats):
        # In turns: the speed of a shared machine changes from second to second.
        for case in cases:
            times[case.name] += await _claims(connection, case)
    # One of ten is faster: others wait for a processor on a machine with other work.
    return {name: sorted(of_case)[len(of_case) // 10] for name, of_case in times.items()}


async def _claims(connection: Connection, case: _Case) -> list[float]:
    """Return the times in ms of claims of one task each. The tasks are completed."""
    await _submit(connection, case.job, case.requires, _TASKS)
    body = {"worker_id": case.worker_id, "start": True, **case.fields}
    times, reports = list[float](), list[dict[str, Any]]()
    for _ in range(_TASKS):
        began = time.perf_counter()
        task = (await connection.json("POST", f"{V1}/tasks/claim", body))["task"]
        times.append(1000 * (time.perf_counter() - began))
        reports.append({"id": task["id"], "attempt": task["attempt"], "status": "completed"})
    await connection.json("POST", f"{V1}/tasks/report", {"worker_id": case.worker_id, "reports": reports})
    return times


async def _add_workers(connection: Connection) -> tuple[float, float]:
    """Add workers, each with a set of requirements that only it meets, and a task that waits for it.

    Return the times in ms of a registration and of a submit that makes a queue.
    """
    registers, submits = list[float](), list[float]()
    for number in range(1, _WORKERS):
        name = f"Labels{number // _SETS_PER_JOB}"
        began = time.perf_counter()
        job = await _register(connection, name, labels={"node": number})
        registered = time.perf_counter()
        await _submit(connection, job["full_name"], {"node": number}, 1)
        registers.append(1000 * (registered - began))
        submits.append(1000 * (time.perf_counter() - registered))
    return median(registers), median(submits)
