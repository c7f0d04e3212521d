"""Functions that are due are found by name in the partial index of the ended tasks that have one."""

from datetime import timedelta

from plans.explained import FEW, Explainer
from plans.seeding import task_id
from plans.test_plans import describe
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.queue import rules_details, sql_details

# Of ended tasks, and of tasks that wait: the index does not have the second ones.
ENDED, WAITING = range(1, 100), range(70_000, 70_100)


async def test_due_functions_are_read_by_their_index(explainer: Explainer) -> None:
    """And neither the history nor the backlog; a call is recorded by the id of its task."""

    async def work(tx: Transaction) -> None:
        past = await tx.now() - timedelta(hours=1)
        await sql_details.attach(tx, {task_id(seq): "mail" for seq in (*ENDED, *WAITING)}, past)
        due = await rules_details.take(tx, {"mail": 10, "unused": 10}, 10, 60.0)
        assert len(due.leases) == 10
        assert due.seconds is not None
        await rules_details.finish(tx, due.leases[0])
        await rules_details.retry(tx, due.leases[1])

    plans = await explainer.plans(work)
    reads = [plan for plan in plans if plan.statement.startswith("SELECT") and "on_end" in plan.statement]
    assert {"LIMIT" in plan.statement for plan in reads} == {True, False}
    for plan in reads:
        assert plan.by("joblib_task") == {"ix_joblib_task_on_end"}, describe(plan)
        assert plan.sorted_rows <= FEW, describe(plan)
        assert explainer.is_postgresql or "(on_end=?" in plan.text, describe(plan)
    writes = [plan for plan in plans if plan.statement.startswith("UPDATE")]
    assert writes
    for plan in writes:
        assert None not in plan.by("joblib_task"), describe(plan)
