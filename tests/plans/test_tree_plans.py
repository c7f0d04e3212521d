"""Tasks of a tree and tasks with a tag are read by their indexes, with any statistics."""

from functools import partial
from itertools import product
from typing import Any
from uuid import UUID

import pytest

from plans.explained import FEW, Explainer, Plan
from plans.seeding import task_id
from plans.test_plans import describe
from plans.test_search_plans import IDS, KEY, PARENT
from zndraw_joblib.server.admin import rules_searches, rules_statistics
from zndraw_joblib.server.admin.sql_searches import Budget
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.process.ports import CursorPage, Page
from zndraw_joblib.server.queue import sql_tasks, sql_trees
from zndraw_joblib.server.queue.sql_trees import Link
from zndraw_joblib.wire.operators import MINUTE, TaskFilter
from zndraw_joblib.wire.statuses import TaskStatus

ROOT = "ix_joblib_task_root"
TAG, ROOM_TAG = "ix_joblib_task_tag_tag_task_seq", "ix_joblib_task_tag_room_id_tag_task_seq"
OF_TASK = {"pk_joblib_task_tag", "sqlite_autoindex_joblib_task_tag_1"}
NUMBERED = KEY - {None}
BUDGET = Budget(rows=4_000, seconds=60, grow_below=60, shrink_above=60)
# The filter, and the indexes of the tables of tasks and of tags.
CASES: list[tuple[dict[str, Any], set[str], set[str]]] = [
    ({"tag": ["night"]}, NUMBERED, {TAG}),
    ({"tag": ["night", "tag-7"], "status": ["failed"]}, NUMBERED, {TAG}),
    ({"tag": ["night"], "room": ["lab"]}, NUMBERED, {ROOM_TAG, TAG}),
    ({"tag": ["tag-8", "night"], "room": ["lab", "quiet"], "text": "no"}, NUMBERED, {ROOM_TAG, TAG}),
    ({"parent": task_id(5001)}, {PARENT}, set()),
    ({"root": task_id(1), "status": ["failed"]}, {ROOT}, set()),
    (
        {"root": task_id(1), "parent": task_id(5001), "tag": ["night"], "room": ["lab"]},
        {PARENT},
        OF_TASK | {TAG},
    ),
]


def assert_by_index(plan: Plan, tasks: set[str], tags: set[str], *, is_postgresql: bool) -> None:
    """Check that no other index reads the tables, and that no long result is sorted."""
    assert plan.by("joblib_task") <= tasks, describe(plan)
    assert plan.by("joblib_task_tag") <= tags, describe(plan)
    if is_postgresql:
        assert plan.sorted_rows <= 5 * FEW, describe(plan)


@pytest.mark.parametrize("case", range(len(CASES)))
async def test_a_search_reads_a_tag_or_a_tree(explainer: Explainer, case: int) -> None:
    """In windows of its index; whether a task has children is one look for each."""
    wanted, tasks, tags = CASES[case]
    work = partial(
        rules_searches.find, task_filter=TaskFilter(**wanted), page=CursorPage(50, None), budget=BUDGET
    )
    for plan in await explainer.plans(work):
        is_of_page = "SELECT name FROM joblib_worker" in plan.statement
        allowed = NUMBERED | {PARENT} if is_of_page else tasks
        assert_by_index(plan, allowed, tags, is_postgresql=explainer.is_postgresql)


@pytest.mark.parametrize("status", [None, TaskStatus.FAILED])
async def test_a_room_lists_a_tag_or_a_tree(explainer: Explainer, status: TaskStatus | None) -> None:
    """Also of one status or job: the tasks are found by the tag or the tree."""
    links = [
        (Link(tag="night"), NUMBERED, {ROOM_TAG, TAG}),
        (Link(parent=task_id(5001)), {PARENT, *NUMBERED}, set()),
        (Link(root=task_id(1)), {ROOT, *NUMBERED}, set()),
        (Link("night", task_id(5001), task_id(1)), {PARENT, *NUMBERED}, OF_TASK | {TAG}),
    ]
    jobs = [UUID(int=2), UUID(int=3)]
    for (link, tasks, tags), job_ids in product(links, ([], jobs)):
        work = partial(
            sql_tasks.page, room_id="lab", status=status, part=Page(50, 100), link=link, job_ids=job_ids
        )
        for plan in await explainer.plans(work):
            assert_by_index(plan, tasks, tags, is_postgresql=explainer.is_postgresql)


async def test_counts_of_a_tree_have_a_bound(explainer: Explainer) -> None:
    """The newest 10,001 tasks are counted, and reading their statuses scans no table on SQLite."""
    for wanted in ({"root": task_id(1)}, {"tag": ["tag-7"]}, {"tag": ["tag-7"], "room": ["lab"]}):

        async def count(tx: Transaction, wanted: dict[str, Any] = wanted) -> None:
            counts = await rules_searches.count(tx, TaskFilter(**wanted))
            assert counts.is_complete == ("tag" in wanted)

        for plan in await explainer.plans(count):
            if not explainer.is_postgresql or "root" in wanted:
                assert plan.by("joblib_task") <= {ROOT, *NUMBERED}, describe(plan)
            assert plan.by("joblib_task_tag") <= {TAG, ROOM_TAG}, describe(plan)


async def test_tags_are_listed_by_looks_into_an_index(explainer: Explainer) -> None:
    """A list of tags reads one row for each."""
    for rooms in ([], ["lab"]):

        async def read(tx: Transaction, rooms: list[str] = rooms) -> None:
            listed = await rules_searches.tags(tx, rooms, "tag-1")
            assert len(listed.tags) == 50
            assert listed.tags[0] == ("tag-1" if not rooms else "tag-10")

        for plan in await explainer.plans(read):
            assert plan.by("joblib_task_tag") == {ROOM_TAG if rooms else TAG}, describe(plan)
            assert "Seq Scan" not in plan.text, describe(plan)
            assert "SCAN joblib_task_tag" not in plan.text, describe(plan)


async def test_a_tree_is_read_in_parts(explainer: Explainer) -> None:
    """And its tops, parents and tags by their keys."""

    async def read(tx: Transaction) -> None:
        assert len(await sql_trees.scan(tx, task_id(1), 50_000, 2_000)) == 2_000
        assert await sql_trees.top(tx, task_id(7)) is not None
        assert task_id(1) in await sql_trees.with_trees(tx, [task_id(number) for number in range(1, 501)])
        assert len(await sql_trees.lock_parents(tx, [task_id(7), task_id(8)])) == 2
        await sql_trees.remove_tags(tx, [7, 8])

    for plan in await explainer.plans(read):
        assert_by_index(plan, {ROOT, *IDS}, OF_TASK, is_postgresql=explainer.is_postgresql)


async def test_statistics_of_a_tag_read_its_tasks(explainer: Explainer) -> None:
    """Up to 10,000 of them."""
    for room_id in (None, "lab"):
        work = partial(
            rules_statistics.read_tagged,
            tag="tag-7",
            room_id=room_id,
            resolution=MINUTE,
            since=None,
            until=None,
        )
        for plan in await explainer.plans(work):
            assert plan.by("joblib_task_tag") <= {TAG, ROOM_TAG}, describe(plan)
            assert None not in plan.by("joblib_task"), describe(plan)
