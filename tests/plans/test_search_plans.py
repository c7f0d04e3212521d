"""A search reads a window of one index, with any statistics."""

import re
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from replica import ADMIN

from plans.explained import FEW, Explainer, Plan
from plans.seeding import BIG, RARE, group_id, worker_id
from plans.test_plans import describe, name
from zndraw_joblib.server.admin import rules_lists, rules_searches, sql_searches
from zndraw_joblib.server.admin.sql_searches import Budget
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.process.ports import CursorPage
from zndraw_joblib.wire.operators import TaskFilter
from zndraw_joblib.wire.statuses import TaskStatus

UNSUCCESSFUL, HELD, QUEUE = "ix_joblib_task_unsuccessful", "ix_joblib_task_held", "ix_joblib_task_queue"
SCHEDULED, JOB_ROOM = "ix_joblib_task_scheduled", "ix_joblib_task_job_room"
ROOM, ROOM_STATUS = "ix_joblib_task_room", "ix_joblib_task_room_status"
IDS = {"sqlite_autoindex_joblib_task_1", "uq_joblib_task_id"}
PARENT = "ix_joblib_task_parent"
SINCE = datetime(2026, 1, 1, 12, tzinfo=UTC)
# The primary key backwards is also shown as a scan.
KEY = {"PRIMARY KEY", "pk_joblib_task", None}
CASES: dict[str, list[tuple[dict[str, Any], set[str | None]]]] = {
    "key": [({}, KEY), ({"text": "rare"}, KEY), ({"status": ["completed"], "created_by": "nobody"}, KEY)],
    "status": [
        ({"status": ["failed"]}, {UNSUCCESSFUL}),
        ({"status": ["failed", "cancelled"], "text": "rare"}, {UNSUCCESSFUL}),
    ],
    "room": [
        ({"room": ["quiet"]}, {ROOM}),
        ({"room": ["lab", "quiet"], "text": "rare"}, {ROOM}),
        ({"room": ["lab"], "status": ["failed"], "text": "rare"}, {ROOM_STATUS}),
        ({"room": ["lab"], "job": [str(name(RARE))]}, {JOB_ROOM}),
    ],
    "few": [
        ({"status": ["running"], "worker": worker_id(61_500 % 20_000)}, KEY | {HELD}),
        ({"status": ["pending"], "job": [str(name(RARE))]}, KEY | {QUEUE, SCHEDULED}),
        ({"job": [str(name(RARE))]}, KEY | {JOB_ROOM}),
        ({"job": [str(name(BIG))]}, KEY | {JOB_ROOM}),
    ],
}


@pytest.mark.parametrize("kind", CASES)
async def test_a_search_reads_its_index(explainer: Explainer, kind: str) -> None:
    """No window is read by another index, and no large result is sorted, however fast the windows grow."""
    budget = Budget(rows=4_000, seconds=60, grow_below=60, shrink_above=60)
    for wanted, indexes in CASES[kind]:
        page, task_filter = CursorPage(50, None), TaskFilter(**wanted)
        work = partial(rules_searches.find, task_filter=task_filter, page=page, budget=budget)
        backwards = await explainer.plans(work)
        for plan in [*backwards, *await explainer.plans(partial(work, oldest_first=True))]:
            # The tasks of a page are described by their numbers.
            of_page = {*KEY, PARENT} - {None} if "SELECT name FROM joblib_worker" in plan.statement else set()
            assert plan.by("joblib_task") <= (of_page or indexes), describe(plan)
            assert plan.by("joblib_worker") <= {"pk_joblib_worker", "sqlite_autoindex_joblib_worker_1"}
            if explainer.is_postgresql:
                assert "Seq Scan joblib_task" not in plan.text, describe(plan)
                assert plan.sorted_rows <= 5 * FEW, describe(plan)
            elif " < " in plan.statement and kind != "few":
                assert_begins_at_its_place(plan)
            elif " > " in plan.statement and "matches" in plan.statement and kind != "few":
                assert_begins_at_its_place(plan, ">?)")


def assert_begins_at_its_place(plan: Plan, bound: str = "<?)") -> None:
    """Check that a window on SQLite does not walk from the first task of the index to its place."""
    reads = [line for line in plan.text.splitlines() if re.match("(SEARCH|SCAN) joblib_task", line)]
    assert reads, describe(plan)
    assert all(bound in line for line in reads), describe(plan)


async def test_a_retry_reads_its_index_forwards(explainer: Explainer) -> None:
    """From the oldest task on, and with `since` from a place on."""
    budget = Budget(rows=4_000, seconds=60, grow_below=60, shrink_above=60)
    oldest: list[tuple[dict[str, Any], set[str | None]]] = [
        ({}, {UNSUCCESSFUL}),
        ({"text": "rare"}, {UNSUCCESSFUL}),
        ({"since": SINCE, "text": "rare"}, {UNSUCCESSFUL}),
        ({"room": ["lab"], "text": "rare"}, {ROOM_STATUS}),
        ({"room": ["lab", "quiet"], "text": "rare"}, {ROOM_STATUS}),
        ({"group": group_id(1)}, {"ix_joblib_task_group"}),
        ({"job": [str(name(RARE))]}, KEY | {JOB_ROOM}),
        ({"job": [str(name(BIG))]}, {UNSUCCESSFUL, JOB_ROOM}),
    ]
    for wanted, indexes in oldest:

        async def search(tx: Transaction, wanted: dict[str, Any] = wanted) -> None:
            statuses = [TaskStatus.FAILED, TaskStatus.CANCELLED]
            resolved = await rules_searches.resolve(tx, TaskFilter(status=statuses, **wanted))
            assert resolved is not None
            await sql_searches.find(tx, resolved.limited_to(2**60, oldest_first=True), None, 500, budget)

        for plan in await explainer.plans(search):
            # A time is found by halving the numbers.
            indexed = indexes if "matches" in plan.statement or "job" in wanted else KEY
            assert plan.by("joblib_task") <= indexed, describe(plan)
            if explainer.is_postgresql:
                assert "Seq Scan joblib_task" not in plan.text, describe(plan)
                assert plan.sorted_rows <= 5 * FEW, describe(plan)
            elif " > " in plan.statement and "matches" in plan.statement:
                assert_begins_at_its_place(plan, ">?)")


async def test_failures_are_grouped_by_their_index(explainer: Explainer) -> None:
    """It reads the newest failed tasks, and no others."""
    budget = Budget(rows=4_000, seconds=60, grow_below=60, shrink_above=60)
    for wanted in ({}, {"exception": ["ValueError"]}):
        work = partial(rules_searches.group_failures, task_filter=TaskFilter(**wanted), budget=budget)
        for plan in await explainer.plans(work):
            assert plan.by("joblib_task") <= {UNSUCCESSFUL}, describe(plan)


async def test_counts_and_ids_scan_no_tasks(explainer: Explainer) -> None:
    """Counts are kept; held tasks and ids are found by their indexes."""
    for rooms in ([], ["lab"]):
        for plan in await explainer.plans(partial(rules_searches.count, task_filter=TaskFilter(room=rooms))):
            assert plan.by("joblib_task") <= {HELD, ROOM_STATUS}, describe(plan)
    work = partial(
        rules_lists.find_ids, caller=ADMIN, span=rules_lists.parse_prefix("0000-0000"), rooms=["lab"]
    )
    for plan in await explainer.plans(work):
        assert plan.by("joblib_task") <= IDS, describe(plan)
