"""The lists of operators read kept counts, held tasks and the heads of queues: no backlog, no history."""

import re

from plans.explained import Explainer, Plan
from zndraw_joblib.server.admin import sql_lists
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.process.ports import CursorPage
from zndraw_joblib.server.queue import sql_counts

HELD, QUEUE, TURN = "ix_joblib_task_held", "ix_joblib_task_queue", "ix_joblib_task_turn"
ROOM = "ix_joblib_task_room_status"


def assert_reads(plans: list[Plan], *indexes: str) -> None:
    """Check that only these indexes and that of held tasks read the tasks, the queues by a bound.

    The first task of a queue is also read by its number.
    """
    listed = [plan for plan in plans if not re.search(r"joblib_task\.seq (IN|= ANY)", plan.statement)]
    assert {name for plan in listed for name in plan.by("joblib_task")} == {HELD, *indexes}
    for plan in plans:
        assert None not in plan.by("joblib_task"), plan.text
        # SQLite would scan an index from its start.
        found = re.search(rf"SCAN joblib_task USING INDEX ({'|'.join(indexes)})", plan.text)
        assert found is None, f"{plan.statement}\n{plan.text}"


async def test_a_list_of_jobs_counts_no_task(explainer: Explainer) -> None:
    """It reads held tasks and the first task of each queue."""

    async def read(tx: Transaction) -> None:
        page = await sql_lists.read(tx, sql_lists.JOBS, CursorPage(50, None), {})
        assert sum(sum(dict(job.counts).values()) for job in page.items) == 100_000
        assert [job.queued for job in page.items] == [job.counts.pending for job in page.items]
        assert all(job.oldest_waiting_at is not None for job in page.items if job.queued)

    assert_reads(await explainer.plans(read), QUEUE)


async def test_a_list_of_rooms_counts_no_task(explainer: Explainer) -> None:
    """It reads held tasks and the first tasks of the rooms of one part, for some rooms in each queue."""

    async def read(tx: Transaction) -> None:
        page = await sql_lists.read(tx, sql_lists.ROOMS, CursorPage(50, None), {})
        assert len(page.items) == 50
        assert all(room.oldest_waiting_at is not None for room in page.items if room.counts.pending)
        waiting = {room.id: room.oldest_waiting_at for room in page.items if room.oldest_waiting_at}
        assert await sql_counts.oldest_by_queue(tx, list(waiting)) == waiting

    indexes = (TURN,) if explainer.is_postgresql else (ROOM, TURN)
    assert_reads(await explainer.plans(read), *indexes)
