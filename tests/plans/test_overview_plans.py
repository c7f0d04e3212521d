"""The statistics and the overview read an index or the newest tasks, never the history or the backlog."""

from datetime import UTC, datetime, timedelta
from functools import partial

from plans.explained import Explainer, Plan
from plans.seeding import LAB, TASKS
from plans.test_plans import describe
from zndraw_joblib.server.admin import rules_overview, sql_operators
from zndraw_joblib.server.admin.rules_capacity import Limits
from zndraw_joblib.server.queue import sql_executors, sql_occurrences, sql_schedules

START = datetime(2026, 1, 1, tzinfo=UTC)
# The last minute of the tasks, of which the last ten have greater numbers than the floor.
INTERVAL = sql_occurrences.TimeRange(
    START + timedelta(seconds=TASKS - 60), START + timedelta(seconds=TASKS), TASKS - 10
)


def assert_no_scan(plans: list[Plan], *, along_key: bool = False) -> None:
    """Check that no statement reads all tasks; with `along_key`, the newest ones by a range of the key."""
    for plan in plans:
        scanned = {name for name, index in plan.scans if index is None and name == "joblib_task"}
        if along_key and "Seq Scan joblib_task" not in plan.text and "SCAN joblib_task" not in plan.text:
            scanned = set()
        assert not scanned, describe(plan)


async def test_an_overview_scans_no_tasks(explainer: Explainer) -> None:
    """Neither that of the queue nor that of a room."""
    assert_no_scan(
        await explainer.plans(
            partial(rules_overview.read_overview, heartbeat_seconds=15, limits=Limits(1, 1, 1))
        )
    )
    assert_no_scan(await explainer.plans(partial(rules_overview.read_room, room_id=LAB)))


async def test_findings_read_few_schedules_and_tokens(explainer: Explainer) -> None:
    """Of 20,000 schedules those that were due last, and of 20,000 tokens those that end next."""
    plans = [
        *await explainer.plans(partial(sql_schedules.failed_runs, limit=50)),
        *await explainer.plans(
            partial(sql_operators.ending_tokens, within=timedelta(days=7), silent_since=START)
        ),
    ]
    scans = {scan for plan in plans for scan in plan.scans if scan[0] != "joblib_worker"}
    by_id = (
        "joblib_task",
        "uq_joblib_task_id" if explainer.is_postgresql else "sqlite_autoindex_joblib_task_1",
    )
    assert scans == {
        ("joblib_schedule", "ix_joblib_schedule_ran"),
        by_id,
        ("joblib_token", "ix_joblib_token_ending"),
    }


async def test_what_has_no_executor_is_read_by_its_room(explainer: Explainer) -> None:
    """The schedules of internal jobs, not all others; and the head of each queue."""
    plans = await explainer.plans(partial(sql_executors.schedules, executors=()))
    assert all(None not in plan.by("joblib_schedule") for plan in plans)
    assert_no_scan(await explainer.plans(partial(sql_executors.waiting_jobs, executors=(), since=START)))


async def test_a_pass_reads_the_newest_tasks_and_the_last_ends(explainer: Explainer) -> None:
    """Also after a long absence."""
    for read in (
        partial(sql_occurrences.read, interval=INTERVAL),
        partial(sql_occurrences.after, floor=INTERVAL.task_floor, at=INTERVAL.since),
        partial(sql_occurrences.last_before, interval=INTERVAL, at=INTERVAL.since),
        partial(sql_occurrences.next_end, attempt_floor=0, at=INTERVAL.since),
    ):
        assert_no_scan(await explainer.plans(read), along_key=True)
    plans = await explainer.plans(partial(sql_occurrences.read, interval=INTERVAL))
    assert any("ix_joblib_task_ended" in plan.by("joblib_task") for plan in plans)
