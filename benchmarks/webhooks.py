"""What a webhook costs: the ends of tasks with one and without, in turns, and how fast it is delivered to."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from statistics import median
from uuid import UUID

from benchmarks.bench import Bench
from benchmarks.unique import Used
from zndraw_joblib.server.background.webhooks import Webhooks
from zndraw_joblib.server.db import schema
from zndraw_joblib.server.db.engine import open_database
from zndraw_joblib.server.process.ports import Identity
from zndraw_joblib.server.process.settings import JobLibSettings
from zndraw_joblib.server.queue import rules_jobs, rules_webhooks
from zndraw_joblib.server.queue.rules_tasks import Report
from zndraw_joblib.server.queue.rules_webhooks import NewWebhook
from zndraw_joblib.server.runtime.runtime import Runtime
from zndraw_joblib.wire.messages import (
    JobRegisterRequest,
    TaskClaimRequest,
    TaskResponse,
    TaskSubmitRequest,
    TaskUpdateRequest,
)
from zndraw_joblib.wire.names import GLOBAL, JobName
from zndraw_joblib.wire.statuses import TaskStatus
from zndraw_joblib.wire.webhooks import WebhookRequest, new_webhook_secret

_TASKS, _SINGLE, _AT_ONCE, _ROUNDS = 150, 50, 25, 3
_TARGETS = 4
_JOB = JobName(GLOBAL, "modifiers", "sent")
_USER = Identity("bench", is_superuser=True)
_ROOMS = {"no webhook": 0, "one webhook": 1, f"{_TARGETS} webhooks": _TARGETS}


def run(bench: Bench) -> None:
    """Report the processor time of an end, here and in the database, and deliveries per second."""
    asyncio.run(_measure(bench, bench.new_url()))


async def _measure(bench: Bench, url: str) -> None:
    async with _receiver() as port:
        database = open_database(url)
        await schema.upgrade(database)
        settings = JobLibSettings(
            webhook_http=True, webhook_ports=[str(port)], webhook_networks=["127.0.0.0/8"]
        )
        runtime, used = Runtime(database, settings), Used(url)
        webhooks = Webhooks(runtime)
        worker = await _set_up(runtime, f"http://127.0.0.1:{port}/")
        spent: dict[tuple[str, str], list[float]] = {}
        rates: dict[str, list[float]] = {}
        for number in range(_ROUNDS + 1):
            for room, targets in _ROOMS.items():
                singly, together = await _end_tasks(runtime, used, worker, room)
                began = time.perf_counter()
                await webhooks.deliver_due()
                seconds = time.perf_counter() - began
                if number:  # the first ones compile statements
                    spent.setdefault((room, "singly"), []).append(singly)
                    spent.setdefault((room, f"{_AT_ONCE} together"), []).append(together)
                    rates.setdefault(room, []).append(targets * (_SINGLE + _TASKS) / seconds)
        await database.close()
    for (room, how), times in spent.items():
        bench.report.add(f"end of a task, {how}, {room}", 1e6 * median(times), "µs")
    for room, targets in _ROOMS.items():
        if targets:
            bench.report.add(f"deliveries, {room}", median(rates[room]), "/s")


async def _set_up(runtime: Runtime, url: str) -> UUID:
    """Register a worker, and write the webhooks of each room."""
    request = JobRegisterRequest(category=_JOB.category, name=_JOB.name)
    job, _ = await runtime.write(rules_jobs.register, item=rules_jobs.JobToRegister(_USER, GLOBAL, request))
    for room, targets in _ROOMS.items():
        for number in range(targets):
            new = WebhookRequest(url=f"{url}{number}", secret=new_webhook_secret())
            await runtime.write(
                rules_webhooks.put, NewWebhook(_USER, room, f"hook{number}", new, runtime.settings)
            )
    assert job.worker_id is not None
    return job.worker_id


async def _end_tasks(runtime: Runtime, used: Used, worker: UUID, room: str) -> tuple[float, float]:
    """Return the processor time of an end: with a report of its own, and with 25 in one."""
    task = TaskSubmitRequest(payload={"angle": 1.5})
    items = [runtime.submission(_USER, room, _JOB, task) for _ in range(_SINGLE + _TASKS)]
    for start in range(0, len(items), 400):
        results = await runtime.submit_many(items[start : start + 400])
        assert all(isinstance(result, TaskResponse) for result in results)
    held: list[UUID] = []
    request = TaskClaimRequest(worker_id=worker, max=100, start=True)
    while tasks := (await runtime.claim(_USER, request)).tasks:
        held += [claimed.id for claimed in tasks]
    update = TaskUpdateRequest(status=TaskStatus.COMPLETED, worker_id=worker, result={"energy": -1.5})
    reports = [Report(_USER, task_id, update, wants_body=False) for task_id in held]
    began = used.seconds()
    for report in reports[:_SINGLE]:
        await runtime.report(report)
    between = used.seconds()
    for start in range(_SINGLE, len(reports), _AT_ONCE):
        await runtime.report_many(reports[start : start + _AT_ONCE])
    return (between - began) / _SINGLE, (used.seconds() - between) / _TASKS


@asynccontextmanager
async def _receiver() -> AsyncIterator[int]:
    """Run a receiver that accepts everything, in this process; yield its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                size = head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]
                await reader.readexactly(int(size))
                writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]
