"""A demand counts no tasks but the held ones, and reads the first task of each queue."""

import re

from plans.explained import Explainer
from plans.seeding import BIG, LAB, RARE, job_id
from plans.test_plans import HELD, PENDING, describe
from zndraw_joblib.server.admin import rules_demand
from zndraw_joblib.server.admin.rules_demand import Wanted
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.queue import sql_jobs
from zndraw_joblib.wire.names import parse_job_name


async def test_a_demand_reads_held_tasks_and_heads_of_queues(explainer: Explainer) -> None:
    """Of a job with a long backlog, of a room, and of all, for workers with labels and for all workers."""

    async def work(tx: Transaction) -> None:
        names = (await sql_jobs.full_names(tx, [job_id(BIG), job_id(RARE)])).values()
        jobs = [parse_job_name(name) for name, _ in names]
        for wanted in (Wanted(jobs, labels={"gpu": "a100"}), Wanted(rooms=[LAB]), Wanted()):
            await rules_demand.read(tx, wanted, 1e9)

    plans = [plan for plan in await explainer.plans(work) if "joblib_task" in plan.statement]
    assert len(plans) >= 4
    for plan in plans:
        if re.search(r"joblib_task\.seq (IN|= ANY)", plan.statement):
            assert None not in plan.by("joblib_task"), describe(plan)
        else:
            assert plan.by("joblib_task") <= {HELD, PENDING}, describe(plan)
