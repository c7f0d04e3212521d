"""A pending task's position is its rank in the queue of its job, for every length of the queue."""

import random
from functools import partial
from uuid import UUID

import pytest
from replica import SUBMITTER, Replica
from seeds import add_tasks, task

from zndraw_joblib.contract.messages import JobResponse
from zndraw_joblib.contract.status import TaskStatus
from zndraw_joblib.server.ports import Page
from zndraw_joblib.server.service import tasks
from zndraw_joblib.server.store import tasks as store
from zndraw_joblib.server.store.tasks.positions import MAX_NEAR_COUNT, positions

# Up to `MAX_NEAR_COUNT` tasks are counted from either end; this queue has tasks farther from both.
LENGTH = 2 * MAX_NEAR_COUNT + 300
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


async def test_the_position_is_exact_near_both_ends_and_far_from_them(
    replica: Replica, queue: list[UUID]
) -> None:
    """The first task has position 1, the last one the queue length; the others are consecutive."""
    edges = [0, 1, MAX_NEAR_COUNT - 1, MAX_NEAR_COUNT, MAX_NEAR_COUNT + 1, LENGTH // 2]
    for index in [*edges, *[LENGTH - 1 - edge for edge in edges]]:
        assert (await replica.get(queue[index])).queue_position == index + 1


async def test_the_positions_of_a_page_are_exact(replica: Replica, queue: list[UUID]) -> None:
    """On every page each pending task has its rank, and other tasks have none."""
    ranks = {task_id: rank for rank, task_id in enumerate(queue, 1)}
    for offset in (0, 700, 2500):
        page = partial(tasks.page, room_id="lab", status=None, part=Page(500, offset))
        items = (await replica.runtime.database.read(page)).items
        assert len(items) == 500
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
    await replica.report(queue[MAX_NEAR_COUNT + 100], TaskStatus.CANCELLED, by=SUBMITTER)
    assert (await replica.get(queue[0])).queue_position is None
    assert (await replica.get(queue[MAX_NEAR_COUNT])).queue_position == MAX_NEAR_COUNT
    assert (await replica.get(queue[MAX_NEAR_COUNT + 200])).queue_position == MAX_NEAR_COUNT + 199
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
    page = partial(tasks.page, room_id="lab", status=None, part=Page(50, 0))
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
    records = [await database.read(store.by_id, task_id=queue[i]) for i in (index, index + 10)]
    await replica.report(queue[index], TaskStatus.CANCELLED, by=SUBMITTER)
    found = await database.read(positions, records=records)
    assert found == {queue[index + 10]: index + 10}
