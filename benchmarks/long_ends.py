"""Chains, fans and groups of 10,000: how long they stop the server's event loop, and hold a transaction."""

import asyncio
import time
from collections.abc import Awaitable
from typing import Any

import psutil
import uvloop

from benchmarks.bench import Bench
from benchmarks.figures import Report
from benchmarks.http_client import Connection, connections
from benchmarks.scenarios import V1, claim_task, register, report_status, submit_task
from benchmarks.servers import TOKEN, serving

TASKS = 10_000
_PER_REQUEST = 1000
_STEP = "@global:modifiers:Step"
_WAIT_SECONDS = 600.0
_MINIMAL = "Prefer: return=minimal\r\n"


def run(bench: Bench) -> None:
    """Report the longest pause and the longest transaction of each step of such a chain, fan and group."""
    with serving("probed", bench.new_url()) as server:
        uvloop.run(_measure(server, TASKS, bench.report))
    print(f"  load {psutil.getloadavg()[0]:.1f}", flush=True)


async def _measure(server: str, number: int, report: Report) -> None:
    async with connections(server, TOKEN, 1) as (connection,):
        steps = _Steps(connection, await register(connection, "Step"), number, report)
        for kind in ("chain", "fan"):
            await steps.run_edges(kind)
        await steps.run_group()


class _Steps:
    """Measures the steps of a chain, a fan and a group, of `number` tasks each, one after another."""

    def __init__(self, connection: Connection, worker: str, number: int, report: Report) -> None:
        self._connection, self._worker, self._number, self._report = connection, worker, number, report
        self._room = ""

    async def run_edges(self, kind: str) -> None:
        """Submit the tasks; fail the first; retry all in bulk; cancel the first with its tree."""
        self._room = kind
        root = await submit_task(self._connection, _STEP, f"{V1}/rooms/{kind}")
        await self._step(f"{kind}, submit", self._submit(root["id"], is_chain=kind == "chain"))
        await self._step(f"{kind}, its first task fails", self._fail(root))
        await self._step(f"{kind}, retry in bulk", self._act("retry", ["failed", "cancelled"]))
        await self._step(f"{kind}, cancel with tree", self._cancel(root))
        await self._step(f"{kind}, retry in bulk after that", self._act("retry", ["failed", "cancelled"]))
        await self._step(f"{kind}, cancel in bulk", self._act("cancel", ["pending"]))

    async def run_group(self) -> None:
        """Submit the tasks of a group, complete them in large batches, and cancel those of another one."""
        self._room = "group"
        for name in ("completed", "cancelled in bulk"):
            await self._step(f"group, submit before it is {name}", self._submit_group())
            is_cancel = name == "cancelled in bulk"
            await self._step(
                f"group, {name}", self._act("cancel", ["pending"]) if is_cancel else self._complete_all()
            )

    async def _step(self, name: str, work: Awaitable[None]) -> None:
        await self._pauses()
        began = time.perf_counter()
        await work
        seconds, longest = time.perf_counter() - began, await self._pauses()
        self._report.add(f"{name}, in all", seconds, "s")
        self._report.add(f"{name}, longest pause", 1000 * longest["pause"], "ms")
        self._report.add(f"{name}, longest transaction", 1000 * longest["transaction"], "ms")

    async def _pauses(self) -> Any:
        return await self._connection.json("GET", "/pauses")

    async def _submit(self, first: str, *, is_chain: bool) -> None:
        # With the first one they are as many as a bulk action handles at once.
        for start in range(1, self._number, _PER_REQUEST):
            number = min(_PER_REQUEST, self._number - start)
            afters = [{"tasks": [i - 1 if is_chain and i else first]} for i in range(number)]
            tasks = [{"room_id": self._room, "job_name": _STEP, "after": after} for after in afters]
            body = {"tasks": tasks, "atomic": True}
            results = await self._connection.json("POST", f"{V1}/tasks/submit", body, _MINIMAL)
            if is_chain:
                first = results["results"][-1]["id"]

    async def _submit_group(self) -> None:
        body = {"room": self._room, "on_end": {"job": _STEP}}
        group = await self._connection.json("POST", f"{V1}/groups", body)
        for _ in range(self._number // _PER_REQUEST):
            tasks = [{"room_id": self._room, "job_name": _STEP, "group": group["id"]}] * _PER_REQUEST
            await self._connection.json("POST", f"{V1}/tasks/submit", {"tasks": tasks}, _MINIMAL)
        await self._connection.json("PATCH", f"{V1}/groups/{group['id']}", {"sealed": True})

    async def _fail(self, root: Any) -> None:
        task = await claim_task(self._connection, self._worker)
        assert task["id"] == root["id"], "Another task is pending"
        for status in ("running", "failed"):
            await report_status(self._connection, task, status)
        await self._until_none_waits()

    async def _cancel(self, root: Any) -> None:
        body = {"status": "cancelled", "tree": True}
        await self._connection.json("PATCH", f"{V1}/tasks/{root['id']}", body)
        await self._until_none_waits()

    async def _act(self, action: str, statuses: list[str]) -> None:
        body: dict[str, Any] = {"action": action, "filter": {"status": statuses, "room": [self._room]}}
        count = 1
        while count:
            preview = await self._connection.json("POST", f"{V1}/tasks/bulk/preview", body)
            count = preview["count"]
            await self._connection.json("POST", f"{V1}/tasks/bulk", {**body, "token": preview["token"]})

    async def _complete_all(self) -> None:
        count = 0
        while count < self._number:
            body = {"worker_id": self._worker, "max": _PER_REQUEST, "start": True}
            tasks = (await self._connection.json("POST", f"{V1}/tasks/claim", body))["tasks"]
            ends = [{"id": task["id"], "attempt": task["attempt"], "status": "completed"} for task in tasks]
            reports = {"worker_id": self._worker, "reports": ends}
            await self._connection.json("POST", f"{V1}/tasks/report", reports, _MINIMAL)
            count += len(tasks)

    async def _until_none_waits(self) -> None:
        deadline = time.monotonic() + _WAIT_SECONDS
        path = f"{V1}/rooms/{self._room}/tasks?status=pending&limit=1"
        while total := (await self._connection.json("GET", path))["total"]:
            assert time.monotonic() < deadline, f"{total} tasks wait"
            await asyncio.sleep(0.1)
