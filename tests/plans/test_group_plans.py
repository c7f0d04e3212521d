"""The state of a group, its results and its counts are read by their indexes, with any statistics."""

from datetime import UTC, datetime
from functools import partial
from typing import Any

from plans.explained import Explainer
from plans.seeding import group_id
from plans.test_plans import describe
from zndraw_joblib.server.admin import sql_lists
from zndraw_joblib.server.db.database import TaskEnd, Transaction
from zndraw_joblib.server.process.ports import CursorPage
from zndraw_joblib.server.queue import rules_groups, sql_groups
from zndraw_joblib.wire.statuses import TaskStatus

UNSUCCESSFUL = "ix_joblib_task_unsuccessful"
TASKS, BY_STATUS = "ix_joblib_task_group", "ix_joblib_task_group_status"
AT = datetime(2026, 1, 2, tzinfo=UTC)
KEY = {"pk_joblib_task", "PRIMARY KEY"}
COUNTS = {"pk_joblib_group_count", "PRIMARY KEY", "sqlite_autoindex_joblib_group_count_1"}
GROUP = {"uq_joblib_group_id", "sqlite_autoindex_joblib_group_1"}
LARGE = group_id(0)


async def test_a_group_is_read_without_the_tasks_of_others(explainer: Explainer) -> None:
    """Its held and its failed tasks are ranges of indexes of their own, its counts a few rows."""
    for wanted in (LARGE, group_id(7)):
        plans = await explainer.plans(partial(rules_groups.get, group_id=wanted))
        indexes: set[str | None] = set()
        for plan in plans:
            indexes |= plan.by("joblib_task") - KEY
            assert plan.by("joblib_group_count") <= COUNTS, describe(plan)
            assert plan.by("joblib_group") <= GROUP, describe(plan)
            assert None not in plan.by("joblib_attempt_detail"), describe(plan)
        # PostgreSQL may read all failed tasks for a group that has a large part of them.
        assert indexes - ({UNSUCCESSFUL} if wanted == LARGE else set()) == {BY_STATUS}, [
            describe(plan) for plan in plans
        ]


async def test_groups_are_listed_with_the_counts_of_each(explainer: Explainer) -> None:
    """A page of a room, or of several, reads their rows, their counts and their held tasks."""
    read = partial(sql_lists.read, cursor_list=sql_lists.GROUPS, page=CursorPage(50, None))
    of_several = partial(read, values={}, rooms=["room-7", "room-8"])
    for work in (partial(read, values={"room": "room-7"}), of_several):
        for plan in await explainer.plans(work):
            assert plan.by("joblib_group") <= {"ix_joblib_group_room"}, describe(plan)
            assert plan.by("joblib_task") <= {BY_STATUS}, describe(plan)
            assert plan.by("joblib_group_count") <= COUNTS, describe(plan)


async def test_results_are_read_in_the_order_of_submission(explainer: Explainer) -> None:
    """From a place on, without a sort."""
    for plan in await explainer.plans(partial(rules_groups.results, group_id=LARGE, after=500)):
        assert plan.by("joblib_task") == {TASKS}, describe(plan)
        assert plan.sorted_rows == 0, describe(plan)


async def test_ends_change_the_counts_by_their_key(explainer: Explainer) -> None:
    """They do not read the tasks that have ended again."""

    async def take(tx: Transaction) -> Any:
        end = TaskEnd(TaskStatus.COMPLETED, LARGE, linked=False)
        return await sql_groups.take(tx, {60_004: end, 60_005: end._replace(group_id=group_id(7))})

    for plan in await explainer.plans(take):
        assert not plan.by("joblib_task"), describe(plan)
        assert plan.by("joblib_group_count") <= COUNTS, describe(plan)


async def test_old_groups_are_found_without_a_read_of_all_tasks(explainer: Explainer) -> None:
    """Whether a group has tasks is one look for each."""
    for plan in await explainer.plans(partial(sql_groups.prune, before=AT, after=0, limit=100)):
        assert plan.by("joblib_task") <= {TASKS}, describe(plan)
