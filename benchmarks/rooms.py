"""Claims by room: fair scheduling and the limit of rooms, with few and with many rooms."""

import asyncio
import time
from statistics import median

from benchmarks.bench import Bench
from zndraw_joblib.server.db import schema
from zndraw_joblib.server.db.database import Database
from zndraw_joblib.server.db.engine import open_database
from zndraw_joblib.server.process.ports import Identity
from zndraw_joblib.server.queue import rules_claims, rules_jobs, rules_tasks
from zndraw_joblib.server.queue.rules_fairness import ClaimOrder
from zndraw_joblib.wire.messages import JobRegisterRequest
from zndraw_joblib.wire.names import GLOBAL, JobName

_TASKS = {10: 30, 10_000: 10_000}  # of each number of rooms
_TASKS_PER_SUBMIT = 1000
_CLAIMS = 40
_ORDERS = {
    "fifo": ClaimOrder(),
    "fair": ClaimOrder(is_fair=True),
    "room_max_in_flight=2": ClaimOrder(room_cap=2),
}
_USER = Identity("bench", is_superuser=True)


def run(bench: Bench) -> None:
    """Report the time of one claim for each claim order and number of rooms, and the longest claim."""
    bench.add_times(asyncio.run(_claims(bench.new_url())))


async def _claims(url: str) -> dict[str, float]:
    times: dict[str, float] = {}
    database = open_database(url)
    await schema.upgrade(database)
    for rooms in _TASKS:
        # Claims of all orders together take few of the tasks of many rooms, and all of those of few.
        claim = await _prepare(database, f"rooms{rooms}", rooms) if rooms > _CLAIMS else None
        for label, order in _ORDERS.items():
            of_order = claim or await _prepare(database, f"{label.split('_')[0]}{rooms}", rooms)
            spent = await _claim_times(database, of_order._replace(order=order))
            times[f"claim, {label}, {rooms:,} rooms, p50"] = median(spent)
            times[f"claim, {label}, {rooms:,} rooms, longest"] = max(spent)
    await database.close()
    return times


async def _prepare(database: Database, name: str, rooms: int) -> rules_claims.Claim:
    """Submit a few tasks from each of these rooms; return a claim of them."""
    request = JobRegisterRequest(category="modifiers", name=name, schema_={})
    item = rules_jobs.JobToRegister(_USER, GLOBAL, request)
    (job, _), _ = await database.write(rules_jobs.register, item=item)
    job_name = JobName(GLOBAL, "modifiers", name)
    rooms_of = [f"{name}-{number:05}" for number in range(rooms)] * (_TASKS[rooms] // rooms)
    for start in range(0, len(rooms_of), _TASKS_PER_SUBMIT):
        chunk = rooms_of[start : start + _TASKS_PER_SUBMIT]
        await database.write(
            rules_tasks.submit, [rules_tasks.Submission(_USER, room, job_name, {}) for room in chunk]
        )
    assert job.worker_id is not None
    return rules_claims.Claim(_USER, job.worker_id, 15)


async def _claim_times(database: Database, claim: rules_claims.Claim) -> list[float]:
    """Return how long each of some claims takes, in ms."""
    spent = []
    for _ in range(_CLAIMS):
        started = time.perf_counter()
        (result, *_), _ = await database.write_short(rules_claims.claim, [claim])
        spent.append(1000 * (time.perf_counter() - started))
        assert isinstance(result, rules_claims.ClaimResult)
        if not result.tasks:
            break
    return spent
