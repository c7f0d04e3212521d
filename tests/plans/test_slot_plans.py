"""What claims read of the slots of workers: the held tasks of each, and the first tasks of rooms."""

from plans.explained import Explainer
from plans.seeding import BIG, job_id, worker_id
from plans.test_plans import HELD, KEY, ROOM, describe
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.queue import rules_slots
from zndraw_joblib.server.queue.sql_claims import QueueHead

# The tasks of a room in a queue.
TURN = "ix_joblib_task_turn"


async def test_kept_slots_read_no_other_tasks(explainer: Explainer) -> None:
    """Neither the history nor the backlog of the queue, however many workers and rooms there are."""
    columns = (job_id(BIG), 0, 62_001, 30_000, False, None, None, "lab", None, True, False, 4)
    head = QueueHead(*columns)

    async def work(tx: Transaction) -> None:
        await rules_slots.free(tx, worker_id(5), 4, has_batches=True)
        for room_cap in (None, 1000):
            await rules_slots.Reservations().kept_for(tx, head, worker_id(5), room_cap)

    plans = [plan for plan in await explainer.plans(work) if "joblib_task" in plan.statement]
    assert len(plans) >= 4
    for plan in plans:
        assert plan.by("joblib_task") <= {HELD, ROOM, TURN} | KEY, describe(plan)
        assert None not in plan.by("joblib_worker_job"), describe(plan)
