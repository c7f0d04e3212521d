"""The processor time of submits with unique keys, with few and with many keys held."""

import asyncio
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import make_url

from benchmarks.bench import Bench
from zndraw_joblib.server.db import schema
from zndraw_joblib.server.db.engine import open_database
from zndraw_joblib.server.process.ports import Identity
from zndraw_joblib.server.process.settings import JobLibSettings
from zndraw_joblib.server.queue import rules_jobs
from zndraw_joblib.server.runtime.runtime import Runtime
from zndraw_joblib.wire.messages import JobRegisterRequest, TaskResponse, TaskSubmitRequest
from zndraw_joblib.wire.names import GLOBAL, JobName

_HELD = (10, 10_000)
_ROUNDS, _SUBMITS = 10, 40
_TASKS_PER_SUBMIT = 1000
_JOB = JobName(GLOBAL, "modifiers", "unique")
_USER = Identity("bench", is_superuser=True)
_NUMBERS = count()
# What is submitted, by its name: each round has some of each.
_KINDS: dict[str, Callable[[], dict[str, Any]]] = {
    "plain": dict,
    "new key": lambda: {"unique": {"key": f"new {next(_NUMBERS)}"}},
    "duplicate": lambda: {"unique": {"key": "held 7"}},
    "replace": lambda: {"unique": {"key": "held 7", "on_conflict": "replace"}},
    "debounce": lambda: {"unique": {"key": "held 7"}, "debounce": {"seconds": 3600}},
}


def run(bench: Bench) -> None:
    """Report the time of this process and of the database for a submit, by kind and number of keys held."""
    for name, seconds in asyncio.run(_submits(bench.new_url())).items():
        bench.report.add(name, 1000 * seconds, "ms")


async def _submits(url: str) -> dict[str, float]:
    times: dict[str, float] = {}
    database = open_database(url)
    await schema.upgrade(database)
    runtime, used = Runtime(database, JobLibSettings()), Used(url)
    request = JobRegisterRequest(category=_JOB.category, name=_JOB.name)
    await runtime.write(rules_jobs.put, item=rules_jobs.JobToRegister(_USER, GLOBAL, request))
    held = 0
    for number in _HELD:
        while held < number:
            size = min(_TASKS_PER_SUBMIT, number - held)
            await _submit_many(runtime, [{"key": f"held {held + index}"} for index in range(size)])
            held += size
        spent = await _spent(runtime, used)
        times |= {f"submit, {name}, {number:,} keys held": spent[name] for name in _KINDS}
    keys = [[{"key": f"batch {number} {index}"} for index in range(_TASKS_PER_SUBMIT)] for number in range(3)]
    for name, batches in (
        ("plain", [[None] * _TASKS_PER_SUBMIT] * 3),
        ("new keys", keys),
        ("duplicates", keys),
    ):
        began = used.seconds()
        for uniques in batches:
            await _submit_many(runtime, uniques)
        times[f"submit of {_TASKS_PER_SUBMIT:,} tasks, {name}"] = (used.seconds() - began) / len(batches)
    await database.close()
    return times


async def _spent(runtime: Runtime, used: "Used") -> dict[str, float]:
    """Return the time of one submit of each kind."""
    spent = dict.fromkeys(_KINDS, 0.0)
    for _ in range(_ROUNDS):
        for name, options in _KINDS.items():
            began = used.seconds()
            for _ in range(_SUBMITS):
                await _submit(runtime, options())
            spent[name] += used.seconds() - began
    return {name: seconds / _ROUNDS / _SUBMITS for name, seconds in spent.items()}


class Used:
    """The processor time of this process, and of PostgreSQL with this URL."""

    def __init__(self, url: str) -> None:
        folder = make_url(url).query.get("host")
        self._postmaster = None
        if folder is not None:
            pid = int((Path(str(folder)) / "postmaster.pid").read_text(encoding="utf-8").split()[0])
            self._postmaster = psutil.Process(pid)

    def seconds(self) -> float:
        """Return the seconds so far."""
        others = self._postmaster.children() if self._postmaster else []
        return time.process_time() + sum(sum(process.cpu_times()[:2]) for process in others)


async def _submit(runtime: Runtime, options: dict[str, Any]) -> None:
    await runtime.submit(runtime.submission(_USER, "lab", _JOB, TaskSubmitRequest.model_validate(options)))


async def _submit_many(runtime: Runtime, uniques: list[Any]) -> None:
    items = [
        runtime.submission(_USER, "lab", _JOB, TaskSubmitRequest.model_validate({"unique": unique}))
        for unique in uniques
    ]
    results = await runtime.submit_many(items)
    assert all(isinstance(result, TaskResponse) for result in results)
