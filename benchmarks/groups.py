"""What a group costs: the same tasks through four workers, of one group and of none, in turns.

In this process without HTTP, and through a server over HTTP.
"""

import asyncio
import time
from statistics import median
from typing import Any
from uuid import UUID

import psutil
import uvloop

from benchmarks import scenarios
from benchmarks.bench import Bench
from benchmarks.http_client import Connection, connections
from benchmarks.scenarios import V1
from benchmarks.servers import TOKEN, serving
from benchmarks.unique import Used
from zndraw_joblib.server.db import schema
from zndraw_joblib.server.db.engine import open_database
from zndraw_joblib.server.process.ports import Identity
from zndraw_joblib.server.process.settings import JobLibSettings
from zndraw_joblib.server.queue import rules_groups, rules_jobs
from zndraw_joblib.server.queue.rules_tasks import Report
from zndraw_joblib.server.runtime.runtime import Runtime
from zndraw_joblib.wire.groups import NewGroup
from zndraw_joblib.wire.messages import (
    JobRegisterRequest,
    TaskClaimRequest,
    TaskResponse,
    TaskSubmitRequest,
    TaskUpdateRequest,
)
from zndraw_joblib.wire.names import GLOBAL, JobName
from zndraw_joblib.wire.statuses import TaskStatus

_TASKS, _WORKERS, _AT_ONCE, _ROUNDS = 10_000, 4, 25, 5
_TASKS_PER_SUBMIT = 1000
_JOB = JobName(GLOBAL, "modifiers", "grouped")
_USER = Identity("bench", is_superuser=True)
_STEPS = ("submit", "run")


def run(bench: Bench) -> None:
    """Report the processor time of a server and of the database for a task, and what a group adds."""
    spent = asyncio.run(_compare(bench.new_url()))
    _add(bench, spent, *_STEPS, "in all")
    over_http = uvloop.run(_compare_over_http(bench.new_url()))
    _add(bench, over_http, "processor time over HTTP", "duration over HTTP")
    bench.report.add("from the last end to its answer", 1000 * median(o["last"] for o in spent[True]), "ms")


def _add(bench: Bench, spent: dict[bool, list[dict[str, float]]], *steps: str) -> None:
    for step in steps:
        kinds = [median(one[step] for one in spent[is_grouped]) for is_grouped in (False, True)]
        for name, seconds in zip(("no group", "one group"), kinds, strict=True):
            bench.report.add(f"{step}, {name}", 1e6 * seconds / _TASKS, "µs")
        bench.report.add(f"{step}, added by the group", 100 * (kinds[1] / kinds[0] - 1), "%")


async def _compare(url: str) -> dict[bool, list[dict[str, float]]]:
    database = open_database(url)
    await schema.upgrade(database)
    runtime, used = Runtime(database, JobLibSettings()), Used(url)
    workers = [await _register(runtime) for _ in range(_WORKERS)]
    spent: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    for number in range(2 * _ROUNDS + 2):
        is_grouped = (number // 2 + number) % 2 == 0
        one = await _run_all(runtime, used, workers, is_grouped=is_grouped)
        if number >= 2:  # the first ones compile statements
            spent[is_grouped].append(one)
    await database.close()
    return spent


async def _register(runtime: Runtime) -> UUID:
    request = JobRegisterRequest(category=_JOB.category, name=_JOB.name)
    job, _ = await runtime.write(rules_jobs.register, item=rules_jobs.JobToRegister(_USER, GLOBAL, request))
    assert job.worker_id is not None
    return job.worker_id


async def _run_all(
    runtime: Runtime, used: Used, workers: list[UUID], *, is_grouped: bool
) -> dict[str, float]:
    options: dict[str, Any] = {}
    began = used.seconds()
    if is_grouped:
        make = rules_groups.GroupToMake(_USER, "lab", NewGroup())
        options["group"] = (await runtime.write(rules_groups.create, make)).id
    for _ in range(_TASKS // _TASKS_PER_SUBMIT):
        items = [
            runtime.submission(_USER, "lab", _JOB, TaskSubmitRequest(**options))
            for _ in range(_TASKS_PER_SUBMIT)
        ]
        results = await runtime.submit_many(items)
        assert all(isinstance(result, TaskResponse) for result in results)
    if is_grouped:
        await runtime.write(rules_groups.seal, options["group"])
    submitted = used.seconds()
    last = max(await asyncio.gather(*(_work(runtime, worker) for worker in workers)))
    ended = used.seconds()
    if is_grouped:
        assert (await runtime.get_group(options["group"])).ended_at is not None
    return {"submit": submitted - began, "run": ended - submitted, "in all": ended - began, "last": last}


async def _work(runtime: Runtime, worker: UUID) -> float:
    """Claim and complete tasks until there are none. Return how many seconds the last report took."""
    request, took = TaskClaimRequest(worker_id=worker, max=_AT_ONCE, start=True), 0.0
    while tasks := (await runtime.claim(_USER, request)).tasks:
        update = TaskUpdateRequest(status=TaskStatus.COMPLETED, worker_id=worker)
        began = time.perf_counter()
        await runtime.report_many([Report(_USER, task.id, update, wants_body=False) for task in tasks])
        took = time.perf_counter() - began
    return took


async def _compare_over_http(url: str) -> dict[bool, list[dict[str, float]]]:
    spent: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    own = psutil.Process()
    others = {process.pid for process in own.children()}
    with serving("joblib", url) as server:
        [process] = [child for child in own.children() if child.pid not in others]
        database = Used(url)

        def used() -> float:
            return database.seconds() - time.process_time() + sum(process.cpu_times()[:2])

        async with connections(server, TOKEN, _WORKERS) as opened:
            workers = [await scenarios.register(connection) for connection in opened]
            for number in range(2 * _ROUNDS + 2):
                is_grouped = (number // 2 + number) % 2 == 0
                began, began_at = used(), time.perf_counter()
                await _run_over_http(opened, workers, is_grouped=is_grouped)
                times = used() - began, time.perf_counter() - began_at
                if number >= 2:
                    names = "processor time over HTTP", "duration over HTTP"
                    spent[is_grouped].append(dict(zip(names, times, strict=True)))
    return spent


async def _run_over_http(opened: list[Connection], workers: list[str], *, is_grouped: bool) -> None:
    first, options = opened[0], dict[str, Any]()
    if is_grouped:
        options["group"] = (await first.json("POST", f"{V1}/groups", {"room": "bench"}))["id"]
    item = {"room_id": "bench", "job_name": scenarios.JOB, **scenarios.PAYLOAD, **options}
    for _ in range(_TASKS // _TASKS_PER_SUBMIT):
        await first.json("POST", f"{V1}/tasks/submit", {"tasks": [item] * _TASKS_PER_SUBMIT})
    if is_grouped:
        await first.json("PATCH", f"{V1}/groups/{options['group']}", {"sealed": True})
    await asyncio.gather(*map(_work_over_http, opened, workers))
    if is_grouped:
        assert (await first.json("GET", f"{V1}/groups/{options['group']}"))["ended_at"] is not None


async def _work_over_http(connection: Connection, worker: str) -> None:
    request = {"worker_id": worker, "max": _AT_ONCE, "start": True}
    while tasks := (await connection.json("POST", f"{V1}/tasks/claim", request))["tasks"]:
        reports = [{"id": task["id"], "attempt": task["attempt"], "status": "completed"} for task in tasks]
        body = {"worker_id": worker, "reports": reports}
        await connection.json("POST", f"{V1}/tasks/report", body, "Prefer: return=minimal\r\n")
