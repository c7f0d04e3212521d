"""The details of attempts are read and written by their key, and cost nothing where there are none."""

from datetime import UTC, datetime
from functools import partial

import pytest
from replica import ADMIN, OWNER
from sqlalchemy import text

from plans.explained import Explainer, Plan
from plans.seeding import LAB, WORKERS, task_id, worker_id
from plans.test_plans import describe
from zndraw_joblib.server.process.ports import Page
from zndraw_joblib.server.process.settings import JobLibSettings
from zndraw_joblib.server.queue import (
    rules_claims,
    rules_details,
    rules_history,
    rules_task_retention,
    rules_tasks,
    rules_workers,
    sql_details,
)
from zndraw_joblib.server.queue.rules_details import LogLimits
from zndraw_joblib.server.queue.rules_task_retention import TaskPruning
from zndraw_joblib.wire.messages import NamedTask, TaskUpdateRequest
from zndraw_joblib.wire.names import parse_job_name
from zndraw_joblib.wire.progress import Failure, LogLine, LogPart, Progress
from zndraw_joblib.wire.statuses import TaskStatus

TABLES = {"joblib_attempt_detail", "joblib_task_log"}
KEYS = {
    *("sqlite_autoindex_joblib_attempt_detail_1", "sqlite_autoindex_joblib_task_log_1"),
    *("pk_joblib_attempt_detail", "pk_joblib_task_log"),
}
# A running task.
RUNNING = 61_000
PROGRESS = Progress(current=1)
LOG = LogPart(first=1, lines=[LogLine(at=datetime(2026, 1, 1, tzinfo=UTC), text=str(n)) for n in range(5)])


def assert_by_key(plans: list[Plan], *tables: str) -> None:
    """Check that details are found by their key, and that these tables are among what is read."""
    for plan in plans:
        for table in TABLES:
            assert plan.by(table) <= KEYS, describe(plan)
    text = " ".join(plan.statement for plan in plans)
    assert {table for table in TABLES if table in text} == set(tables)


async def test_a_report_finds_the_details_of_its_attempts(
    explainer: Explainer, subtests: pytest.Subtests
) -> None:
    """It reads and writes only rows of its attempts, also where a log is at its bound."""
    for count in (1, 16):
        with subtests.test(count=count):
            update = TaskUpdateRequest(progress=PROGRESS, log=LOG)
            items = [rules_tasks.Report(ADMIN, task_id(RUNNING + turn), update) for turn in range(count)]
            plans = await explainer.plans(partial(rules_tasks.report, items=items, limits=LogLimits(4)))
            assert_by_key(plans, *TABLES)
            assert any("DELETE FROM joblib_task_log" in plan.statement for plan in plans)
            failed = TaskUpdateRequest(status=TaskStatus.FAILED, error="x", failure=Failure(type="KeyError"))
            plans = await explainer.plans(
                partial(rules_tasks.report, items=[rules_tasks.Report(ADMIN, task_id(RUNNING), failed)])
            )
            assert_by_key(plans, "joblib_attempt_detail")


# The last task of a group is found by its id, a successor by its number.
_BY_KEY = {"uq_joblib_task_id", "sqlite_autoindex_joblib_task_1", "pk_joblib_task"}


async def test_a_heartbeat_finds_the_details_of_its_tasks(explainer: Explainer) -> None:
    """So does a heartbeat with progress and lines."""
    named = [NamedTask(id=task_id(RUNNING), attempt=1, progress=PROGRESS, log=LOG)]
    items = [rules_workers.Heartbeat(OWNER, worker_id(RUNNING % WORKERS), 15, named)]
    assert_by_key(await explainer.plans(partial(rules_workers.heartbeat, items=items)), *TABLES)


async def test_readers_find_the_details_of_attempts(explainer: Explainer) -> None:
    """A task, a page, a log and a history are read by keys; an earlier attempt's details are deleted so."""
    wanted = task_id(RUNNING)
    assert_by_key(await explainer.plans(partial(rules_tasks.get, task_id=wanted)), "joblib_attempt_detail")
    page = partial(rules_tasks.page, room_id=LAB, status=TaskStatus.RUNNING, part=Page(500, 0))
    assert_by_key(await explainer.plans(page), "joblib_attempt_detail")
    log = partial(rules_details.log, task_id=wanted, attempt=1, after=0, limit=1000)
    assert_by_key(await explainer.plans(log), *TABLES)
    assert_by_key(
        await explainer.plans(partial(rules_history.history, task_id=wanted)), "joblib_attempt_detail"
    )
    assert_by_key(await explainer.plans(partial(sql_details.forget, seq=RUNNING, newest=1)), *TABLES)


async def test_pruning_finds_the_details_of_attempts(explainer: Explainer) -> None:
    """A batch of old tasks deletes only their rows."""
    settings = JobLibSettings(keep_finished_days=1)
    work = partial(rules_task_retention.prune, settings=settings, state=TaskPruning())
    plans = await explainer.plans(work)
    assert_by_key(plans, *TABLES)
    readings = [plan for plan in plans if "(completed_at, seq) >" in plan.statement]
    assert readings
    for reading in readings:
        assert reading.by("joblib_task") - _BY_KEY == {"ix_joblib_task_ended"}, describe(reading)


async def test_counting_old_tasks_reads_a_bounded_part_of_an_index(explainer: Explainer) -> None:
    """Of all jobs by the ends, of one job by its tasks."""
    settings = JobLibSettings(keep_finished_days=1)
    async with explainer._engine.connect() as connection:
        text_of = "SELECT full_name FROM joblib_job WHERE name = 'J0'"
        big = parse_job_name((await connection.execute(text(text_of))).scalar_one())
    for job, indexes in ((None, {"ix_joblib_task_ended"}), (big, {"ix_joblib_task_job_room"})):
        plans = await explainer.plans(partial(rules_task_retention.read, settings=settings, job=job))
        counts = [plan for plan in plans if "count(*) FROM ( SELECT" in " ".join(plan.statement.split())]
        assert counts
        for count in counts:
            assert count.by("joblib_task") - _BY_KEY == indexes, describe(count)


async def test_requests_without_progress_read_nothing_of_it(explainer: Explainer) -> None:
    """A claim, a report and a heartbeat run no statement for it."""
    claim = rules_claims.Claim(OWNER, worker_id(0), 15)
    plans = await explainer.plans(partial(rules_claims.claim, items=[claim]))
    for status in (TaskStatus.COMPLETED, TaskStatus.FAILED):
        item = rules_tasks.Report(ADMIN, task_id(RUNNING), TaskUpdateRequest(status=status, error="x"))
        plans += await explainer.plans(partial(rules_tasks.report, items=[item]))
    named = [NamedTask(id=task_id(RUNNING), attempt=1)]
    beat = rules_workers.Heartbeat(OWNER, worker_id(RUNNING % WORKERS), 15, named)
    plans += await explainer.plans(partial(rules_workers.heartbeat, items=[beat]))
    assert_by_key(plans)
