"""Lists come newest first, in pages without repeats and gaps."""

from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest
from replica import OWNER, Replica
from seeds import LONG_AGO, add_tasks, seconds, task
from sqlalchemy import text

from zndraw_joblib.server.admin import rules_lists
from zndraw_joblib.server.db.tables import Job, Worker, WorkerJobLink
from zndraw_joblib.server.process.ports import Page
from zndraw_joblib.server.queue import rules_jobs, rules_tasks
from zndraw_joblib.wire.problems import ContentTooLarge
from zndraw_joblib.wire.statuses import TaskStatus

COUNT = 57
list_workers = partial(rules_lists.list_workers, caller=OWNER, interval=15)


async def all_pages(replica: Replica, page: Any, limit: int, **wanted: Any) -> list[Any]:
    """Return the items of all pages of a list."""
    seen: list[Any] = []
    while True:
        read = partial(page, part=Page(limit, len(seen)), **wanted)
        answer = await replica.runtime.database.read(read)
        assert (answer.limit, answer.offset) == (limit, len(seen))
        assert len(answer.items) <= limit
        if not answer.items:
            assert len(seen) == answer.total
            return seen
        seen += answer.items


async def test_tasks_with_equal_times_are_listed_once(replica: Replica, subtests: pytest.Subtests) -> None:
    """Every page breaks ties in the same order: the later submission first."""
    job = await replica.register()
    statuses = [TaskStatus.PENDING, TaskStatus.COMPLETED, TaskStatus.CANCELLED]
    ids = await add_tasks(replica, [task(job.id, statuses[index % 3]) for index in range(COUNT)])
    for limit in (1, 10, 57, 500):
        with subtests.test(limit=limit):
            seen = await all_pages(replica, rules_tasks.page, limit, room_id="lab", status=None)
            assert [item.id for item in seen] == ids[::-1]
            seen = await all_pages(
                replica, rules_tasks.page, limit, room_id="lab", status=TaskStatus.COMPLETED
            )
            assert [item.id for item in seen] == ids[1::3][::-1]
            seen = await all_pages(
                replica, rules_tasks.page, limit, room_id="lab", status=None, jobs=[job.id]
            )
            assert [item.id for item in seen] == ids[::-1]


@pytest.mark.parametrize("kind", ["sqlite"])
async def test_the_order_does_not_depend_on_an_index(replica: Replica) -> None:
    """Ties are broken in the same order if no index provides it."""
    job = await replica.register()
    ids = await add_tasks(replica, [task(job.id) for _ in range(COUNT)])
    for index in ("room", "room_status", "job_room"):
        await replica.execute(text(f"DROP INDEX ix_joblib_task_{index}"))
    seen = await all_pages(replica, rules_tasks.page, 10, room_id="lab", status=None)
    assert [item.id for item in seen] == ids[::-1]


async def test_the_creation_time_comes_before_seq(replica: Replica) -> None:
    """A task with a later creation time comes first, even if its row was inserted first."""
    job = await replica.register()
    ids = await add_tasks(
        replica, [task(job.id, created_at=LONG_AGO + seconds(order)) for order in (3, 1, 2)]
    )
    seen = await all_pages(replica, rules_tasks.page, 2, room_id="lab", status=None)
    assert [item.id for item in seen] == [ids[0], ids[2], ids[1]]


async def test_a_list_filters_by_room_status_and_job(replica: Replica) -> None:
    """Tasks that do not match are neither listed nor counted."""
    job, other = await replica.register("A"), await replica.register("B")
    wanted = await add_tasks(replica, [task(job.id, TaskStatus.FAILED) for _ in range(3)])
    await add_tasks(
        replica,
        [
            task(job.id, TaskStatus.FAILED, room_id="elsewhere"),
            task(job.id),
            task(other.id, TaskStatus.FAILED),
        ],
    )
    seen = await all_pages(
        replica, rules_tasks.page, 2, room_id="lab", status=TaskStatus.FAILED, jobs=[job.id]
    )
    assert [item.id for item in seen] == wanted[::-1]
    assert await all_pages(replica, rules_tasks.page, 2, room_id="nowhere", status=None) == []


async def test_an_empty_page_has_the_total(replica: Replica) -> None:
    """`limit=0` and an offset behind the end return no items and the right total."""
    job = await replica.register()
    await add_tasks(replica, [task(job.id) for _ in range(3)])
    for part in (Page(0, 0), Page(10, 3), Page(10, 2**62)):
        pages: tuple[Callable[..., Any], ...] = (
            partial(rules_tasks.page, room_id="lab", status=None),
            partial(rules_jobs.page, room_id="lab"),
            partial(list_workers, room_id=None),
        )
        for page in pages:
            answer = await replica.runtime.database.read(page, part=part)
            assert answer.items == []
            assert answer.total > 0


async def test_jobs_and_workers_with_equal_times_are_listed_once(
    replica: Replica, subtests: pytest.Subtests
) -> None:
    """Ties among jobs and among workers are broken too."""
    worker_ids, job_ids = [uuid4() for _ in range(COUNT)], [uuid4() for _ in range(COUNT)]
    await replica.add(
        Worker.__table__,
        [
            {"id": id_, "owner_id": OWNER.id, "created_at": LONG_AGO, "last_heartbeat": LONG_AGO}
            for id_ in worker_ids
        ],
    )
    named = {"room_id": "lab", "category": "modifiers", "deleted": False, "pending": 0, "schema": {}}
    await replica.add(
        Job.__table__,
        [{**named, "id": id_, "name": f"J{i}", "created_at": LONG_AGO} for i, id_ in enumerate(job_ids)],
    )
    links = [{"worker_id": w, "job_id": j} for w, j in zip(worker_ids, job_ids, strict=True)]
    await replica.add(WorkerJobLink.__table__, links)
    names = {f"lab:modifiers:J{i}": worker_id for i, worker_id in enumerate(worker_ids)}
    for limit in (1, 10, 500):
        with subtests.test(limit=limit):
            seen = await all_pages(replica, rules_jobs.page, limit, room_id="lab")
            assert {item.full_name: item.workers for item in seen} == {n: [w] for n, w in names.items()}
            assert len(seen) == COUNT
            for room in (None, "lab"):
                listed = await all_pages(replica, list_workers, limit, room_id=room)
                assert sorted(item.id for item in listed) == sorted(worker_ids)
                assert {item.job_count for item in listed} == {1}


async def test_a_room_lists_its_own_jobs_and_the_reserved_ones(replica: Replica) -> None:
    """A room lists its own and the reserved rooms' jobs; a reserved room only its own. No deleted jobs."""
    rooms = ["lab", "other", "@global", "@internal"]
    served: dict[str, UUID | None] = {}
    for room in rooms:
        served[room] = (await replica.register("Shown", room)).worker_id
    deleted = await replica.register("Hidden", "lab")
    await replica.leave(deleted.worker_id)
    expected = {
        "lab": {"lab", "@global", "@internal"},
        "nowhere": {"@global", "@internal"},
        "@global": {"@global"},
        "@internal": {"@internal"},
    }
    for room, sees in expected.items():
        seen = await all_pages(replica, rules_jobs.page, 10, room_id=room)
        assert {item.full_name for item in seen} == {f"{name}:modifiers:Shown" for name in sees}
        listed = await all_pages(replica, list_workers, 10, room_id=room)
        assert {item.id for item in listed} == {served[name] for name in sees} - {None}


async def test_a_worker_of_several_visible_jobs_is_listed_once(replica: Replica) -> None:
    """`job_count` counts all jobs of a worker, also those that the room does not list."""
    worker = (await replica.register("A", "lab")).worker_id
    await replica.register("B", "lab", worker=worker)
    await replica.register("C", "other", worker=worker)
    [listed] = await all_pages(replica, list_workers, 10, room_id="lab")
    assert (listed.id, listed.job_count) == (worker, 3)
    idle = await replica.worker()
    seen = await all_pages(replica, list_workers, 10, room_id=None)
    assert {item.id: item.job_count for item in seen} == {worker: 3, idle: 0}


async def test_a_page_of_large_tasks_is_refused(replica: Replica) -> None:
    """The size of a page is bounded; smaller pages of the same tasks are returned."""
    job = await replica.register()
    bulky = {"payload": {"text": "x" * 1_000_000}, "result": "y" * 1_000_000}
    ids = await add_tasks(replica, [task(job.id, TaskStatus.COMPLETED, **bulky) for _ in range(20)])
    with pytest.raises(ContentTooLarge, match=r"limit: these 50 .* Request fewer"):
        await all_pages(replica, rules_tasks.page, 50, room_id="lab", status=None)
    seen = await all_pages(replica, rules_tasks.page, 10, room_id="lab", status=None)
    assert [item.id for item in seen] == ids[::-1]
