"""A pending task that another transaction holds delays no other task."""

from contextlib import asynccontextmanager
from typing import Any

import pytest
from databases import on_postgresql
from replica import OWNER, Replica
from sqlalchemy import select

from zndraw_joblib.server.db.tables import Task
from zndraw_joblib.server.queue import rules_claims
from zndraw_joblib.server.queue.rules_claims import Claim
from zndraw_joblib.wire.messages import TaskResponse

tasks = Task.__table__
ORDERS = pytest.mark.parametrize(
    ("order", "cap"), [("fifo", None), ("fifo", 20), ("fair", None), ("fair", 20)], ids=str
)


@asynccontextmanager
async def locked(replica: Replica, held: list[TaskResponse]) -> Any:
    """Lock tasks as another session does."""
    async with replica.engine.connect() as other:
        ids = [task.id for task in held]
        await other.execute(select(tasks.c.id).where(tasks.c.id.in_(ids)).with_for_update())
        yield
        await other.rollback()


async def claimed(replica: Replica, worker: Any, count: int) -> list[Any]:
    """Claim in one transaction; return the ids of the tasks, None for an empty claim."""
    items = [Claim(OWNER, worker, 15, None, replica.runtime.order)] * count
    answers: list[Any] = await replica.runtime.write(lambda tx: rules_claims.claim(tx, items))
    assert all(answer.tasks or answer.is_contended for answer in answers)
    return [answer.tasks[0].id if answer.tasks else None for answer in answers]


@on_postgresql
@ORDERS
@pytest.mark.parametrize("is_one_room", [True, False])
@pytest.mark.parametrize("job_count", [1, 2])
async def test_claims_continue_with_the_next_tasks(
    replica: Replica, order: Any, cap: int | None, is_one_room: bool, job_count: int
) -> None:
    """The first tasks of all jobs are locked: the claims get all others, each once."""
    replica.runtime.settings.claim_order, replica.runtime.settings.room_max_in_flight = order, cap
    jobs = [await replica.register("Job0")]
    jobs += [await replica.register(f"Job{n}", worker=jobs[0].worker_id) for n in range(1, job_count)]
    rooms = ["lab"] * 12 if is_one_room else [f"lab-{n:02}" for n in range(12)]
    submitted = [await replica.submit(jobs[n % job_count], room=room) for n, room in enumerate(rooms)]
    async with locked(replica, submitted[:7]):
        one = await claimed(replica, jobs[0].worker_id, 1)
        rest = await claimed(replica, jobs[0].worker_id, 6)
        assert {*one, *rest} - {None} == {task.id for task in submitted[7:]}
        assert rest.count(None) == 2
    assert None not in await claimed(replica, jobs[0].worker_id, 7)
