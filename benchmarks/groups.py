"""What a group costs: the same tasks through four workers, of one group and of none, in turns."""

import asyncio
import time
from statistics import median
from typing import Any
from uuid import UUID

from benchmarks.bench import Bench
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
    """Report the processor time of this process and of the database for a task, and what a group adds."""
    spent = asyncio.run(_compare(bench.new_url()))
    for step in (*_STEPS, "in all"):
        kinds = [median(one[step] for one in spent[is_grouped]) for is_grouped in (False, True)]
        for name, seconds in zip(("no group", "one group"), kinds, strict=True):
            bench.report.add(f"{step}, {name}", 1e6 * seconds / _TASKS, "µs")
        bench.report.add(f"{step}, added by the group", 100 * (kinds[1] / kinds[0] - 1), "%")
    bench.report.add("from the last end to its answer", 1000 * median(o["last"] for o in spent[True]), "ms")


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
