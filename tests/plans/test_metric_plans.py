"""A scrape counts no tasks."""

import re
from functools import partial

from plans.explained import FEW, Explainer
from plans.test_plans import HELD, PENDING, describe
from zndraw_joblib.server.service import metrics


async def test_metrics_read_kept_counts_held_tasks_and_heads_of_queues(explainer: Explainer) -> None:
    """Of the tasks, the statements read the held ones and the head of each queue, without sorting it."""
    plans = await explainer.plans(partial(metrics.read, heartbeat_seconds=15))
    by_number = [plan for plan in plans if re.search(r"joblib_task\.seq (IN|= ANY)", plan.statement)]
    assert all(None not in plan.by("joblib_task") for plan in by_number)
    plans = [plan for plan in plans if plan not in by_number]
    for plan in plans:
        assert plan.by("joblib_task") <= {HELD, PENDING}, describe(plan)
        assert "RIGHT PART OF ORDER BY" not in plan.text, describe(plan)
        if explainer.is_postgresql and PENDING in plan.by("joblib_task"):
            assert plan.sorted_rows <= FEW, describe(plan)
    assert {index for plan in plans for index in plan.by("joblib_task")} == {HELD, PENDING}
