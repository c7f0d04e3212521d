"""A pending task's position is its rank in the queue of its job, for every length of the queue."""

import random
from functools import partial
from uuid import UUID

import pytest
from replica import SUBMITTER, Replica
from seeds import add_tasks, task

from zndraw_joblib.server.background.sweeper import Sweeper
from zndraw_joblib.server.db.tables import QueueBlock
from zndraw_joblib.server.process.ports import Page
from zndraw_joblib.server.queue import rules_task_actions, rules_tasks, sql_tasks
from zndraw_joblib.server.queue.sql_counts import BLOCK_BITS
from zndraw_joblib.server.queue.sql_tasks import positions
from zndraw_joblib.wire.messages import JobResponse
from zndraw_joblib.wire.statuses import TaskStatus

# With the tasks in between, this queue has three blocks.
LENGTH = 6000
OTHER = [TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED]


@pytest.fixture
async def queue(replica: Replica) -> list[UUID]:
    """Return the pending tasks of one job, interleaved with ended tasks and tasks of another job."""
    job, other = await replica.register("Long"), await replica.register("Other")
    rows, ids = [], []
    chance = random.Random(1)
    for _ in range(LENGTH):
        rows.append(task(job.id))
        ids.append(rows[-1]["id"])
        if chance.random() < 0.3:
            rows.append(task(other.id))
        if chance.random() < 0.3:
            rows.append(task(job.id, chance.choice(OTHER)))
    await add_tasks(replica, rows)
    return ids


async def test_the_position_is_exact_in_every_block(replica: Replica, queue: list[UUID]) -> None:
    """The first task has position 1, the last one the queue length; the others are consecutive."""
    database = replica.runtime.database
    first = await database.read(sql_tasks.by_id, task_id=queue[0])
    last = await database.read(sql_tasks.by_id, task_id=queue[-1])
    assert first is not None
    assert last is not None
    assert (last.seq >> BLOCK_BITS) - (first.seq >> BLOCK_BITS) >= 2
    for index in [*range(0, LENGTH, 499), LENGTH - 2, LENGTH - 1]:
        assert (await replica.get(queue[index])).queue_position == index + 1


async def test_positions_follow_priorities_and_returns(replica: Replica, queue: list[UUID]) -> None:
    """A task of a higher priority is before all blocks of the others; a released one returns to its block."""
    job = await replica.register("Long")
    urgent = [await replica.submit(job, priority=priority) for priority in (1, 7, 1)]
    assert [(await replica.get(each.id)).queue_position for each in urgent] == [2, 1, 3]
    assert (await replica.get(queue[-1])).queue_position == LENGTH + 3
    claimed = [await replica.claim_task(job.worker_id) for _ in range(4)]
    assert claimed[-1].id == queue[0]
    assert (await replica.get(queue[-1])).queue_position == LENGTH - 1
    await replica.act(rules_task_actions.release, queue[0])
    assert (await replica.get(queue[0])).queue_position == 1
    assert (await replica.get(queue[-1])).queue_position == LENGTH


async def test_the_rows_of_empty_blocks_are_deleted(replica: Replica) -> None:
    """A sweep deletes them; the next task gets a new row."""
    job = await replica.register()
    for _ in range(2):
        await replica.submit(job)
        assert [row.queued for row in await replica.rows(QueueBlock.__table__)] == [1]
        await replica.claim_task(job.worker_id)
        assert [row.queued for row in await replica.rows(QueueBlock.__table__)] == [0]
        await Sweeper(replica.runtime.write, replica.runtime.settings).cycle()
        assert await replica.rows(QueueBlock.__table__) == []


async def test_the_positions_of_a_page_are_exact(replica: Replica, queue: list[UUID]) -> None:
    """On every page each pending task has its rank, and other tasks have none."""
    ranks = {task_id: rank for rank, task_id in enumerate(queue, 1)}
    for offset in (0, 700, 4500, 9000):
        page = partial(rules_tasks.page, room_id="lab", status=None, part=Page(500, offset))
        items = (await replica.runtime.database.read(page)).items
        assert len(items) > 100
        for item in items:
            if item.job_name.endswith("Long"):
                assert item.queue_position == ranks.get(item.id)
            else:
                assert item.queue_position is not None


async def test_all_tasks_move_up_when_the_first_is_claimed(replica: Replica, queue: list[UUID]) -> None:
    """A cancellation in the middle moves only the tasks behind it."""
    job = await replica.register("Long")
    claimed = await replica.claim(job.worker_id)
    assert claimed is not None
    assert claimed.id == queue[0]
    await replica.report(queue[4100], TaskStatus.CANCELLED, by=SUBMITTER)
    assert (await replica.get(queue[0])).queue_position is None
    assert (await replica.get(queue[4000])).queue_position == 4000
    assert (await replica.get(queue[4200])).queue_position == 4199
    assert (await replica.get(queue[-1])).queue_position == LENGTH - 2


async def test_a_new_task_has_the_last_position(replica: Replica, queue: list[UUID]) -> None:
    """A submitted task is behind all pending tasks of its job in all rooms."""
    job = await replica.register("Long")
    submitted = await replica.submit(job, room="elsewhere")
    assert submitted.queue_position == LENGTH + 1
    assert (await replica.get(submitted.id)).queue_position == LENGTH + 1


async def test_queues_of_several_jobs_do_not_mix(replica: Replica) -> None:
    """The positions of each job are independent, also on one page."""
    found: list[JobResponse] = [await replica.register(name) for name in ("A", "B", "C")]
    for job in (0, 1, 0, 2, 0, 1):
        await replica.submit(found[job])
    page = partial(rules_tasks.page, room_id="lab", status=None, part=Page(50, 0))
    items = (await replica.runtime.database.read(page)).items
    assert [(item.job_name[-1], item.queue_position) for item in reversed(items)] == [
        ("A", 1),
        ("B", 1),
        ("A", 2),
        ("C", 1),
        ("A", 3),
        ("B", 2),
    ]


@pytest.mark.parametrize("index", [5, LENGTH // 2, LENGTH - 60])
async def test_a_task_that_left_the_queue_since_it_was_read_has_no_position(
    replica: Replica, queue: list[UUID], index: int
) -> None:
    """A page takes several statements: a task claimed in between has no position; the others keep theirs."""
    database = replica.runtime.database
    records = [await database.read(sql_tasks.by_id, task_id=queue[i]) for i in (index, index + 10)]
    await replica.report(queue[index], TaskStatus.CANCELLED, by=SUBMITTER)
    found = await database.read(positions, records=records)
    assert found == {queue[index + 10]: index + 10}
