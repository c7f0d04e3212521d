"""A scrape counts no tasks, and the background's work on jobs reads neither all counts nor statistics."""

import re
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import uuid4

from sqlalchemy import insert

from plans.explained import FEW, Explainer
from plans.seeding import JOBS, job_id
from plans.test_plans import HELD, PENDING, describe
from zndraw_joblib.server.admin import rules_overview
from zndraw_joblib.server.admin.rules_capacity import Limits
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.tables import Job, RoomCount, Statistic
from zndraw_joblib.server.queue import rules_retention


async def test_metrics_read_kept_counts_held_tasks_and_heads_of_queues(explainer: Explainer) -> None:
    """Of the tasks, the statements read the held ones and the head of each queue, without sorting it.

    Those that wait for rates are read by their keys, from the waits on, and the last ones of schedules by
    their ids.
    """
    plans = await explainer.plans(
        partial(rules_overview.read_metrics, heartbeat_seconds=15, limits=Limits(1, 1, 1))
    )
    of_rates = [plan for plan in plans if "joblib_limit_wait" in plan.statement]
    for plan in of_rates:
        assert plan.by("joblib_task") <= {"ix_joblib_task_limited"}, describe(plan)
    plans = [plan for plan in plans if plan not in of_rates]
    by_number = [
        plan for plan in plans if re.search(r"(joblib_task\.seq|WHERE id) (IN|= ANY)", plan.statement)
    ]
    assert all(None not in plan.by("joblib_task") for plan in by_number)
    plans = [plan for plan in plans if plan not in by_number]
    for plan in plans:
        assert plan.by("joblib_task") <= {HELD, PENDING}, describe(plan)
        assert "RIGHT PART OF ORDER BY" not in plan.text, describe(plan)
        if explainer.is_postgresql and PENDING in plan.by("joblib_task"):
            assert plan.sorted_rows <= FEW, describe(plan)
    assert {index for plan in plans for index in plan.by("joblib_task")} == {HELD, PENDING}


async def test_deleted_jobs_are_deleted_by_indexes(explainer: Explainer) -> None:
    """Neither the counts nor the statistics of other jobs are read."""
    statistic = Statistic.__table__
    at = datetime(2026, 1, 1, tzinfo=UTC)
    totals = {column.name: 0 for column in statistic.c if not column.primary_key}
    row: dict[str, Any] = {**totals, "resolution": 60, "waiting": [], "running": [], "causes": {}}
    rows = [
        {**row, "job_id": job_id(number), "start": at + timedelta(minutes=minute)}
        for number in range(JOBS)
        for minute in range(1000)
    ]
    unused = {"id": uuid4(), "room_id": "lab", "category": "modifiers", "name": "Unused", "schema": {}}
    unused |= {"created_at": at, "deleted": True, "deleted_at": at}

    async def work(tx: Transaction) -> None:
        await tx.execute(
            insert(statistic), [*rows, {**row, "resolution": 0, "job_id": unused["id"], "start": at}]
        )
        await tx.execute(insert(Job.__table__), unused)
        count = {"room_id": "lab", "job_id": unused["id"], "part": 0}
        await tx.execute(
            insert(RoomCount.__table__), count | dict.fromkeys(("total", "pending", "failed", "cancelled"), 0)
        )
        jobs = rules_retention.JOBS
        pruned, _ = await rules_retention.prune(tx, jobs, timedelta(days=1), jobs.first)
        assert pruned.deleted == 3

    plans = [plan for plan in await explainer.plans(work) if not plan.statement.startswith("INSERT")]
    deletes = {table for plan in plans for table in re.findall(r"^DELETE FROM (\w+)", plan.statement)}
    assert deletes >= {"joblib_job", "joblib_room_count", "joblib_statistic"}
    for plan in plans:
        for table in ("joblib_room_count", "joblib_statistic", "joblib_task"):
            assert None not in plan.by(table), describe(plan)
