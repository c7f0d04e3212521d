"""Edges, and the ends for which tasks wait, are read by their indexes, with any statistics."""

from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from replica import ADMIN, SUBMITTER

from plans.explained import FEW, Explainer, Plan
from plans.seeding import ENDED_FROM, FAN, TASKS, WAITING, group_id, task_id
from plans.test_plans import describe, name
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.process.settings import JobLibSettings
from zndraw_joblib.server.queue import (
    rules_history,
    rules_successors,
    rules_task_actions,
    rules_task_retention,
    rules_tasks,
    rules_waves,
    sql_groups,
    sql_results,
    sql_successors,
    sql_task_tokens,
    sql_transitions,
)
from zndraw_joblib.server.queue.rules_fairness import ClaimOrder
from zndraw_joblib.server.queue.rules_task_retention import TaskPruning
from zndraw_joblib.wire.messages import TaskActionRequest, TaskSubmitRequest

AT = datetime(2026, 1, 2, tzinfo=UTC)
# One of the history that has waited, and others that wait: in the fan, and in the chain.
OLD, IN_FAN, IN_CHAIN = 30_010, TASKS + 20, TASKS + WAITING // 2 + 301
TABLES = ("joblib_edge", "joblib_successor", "joblib_task")
# These read the last tasks, at the end of the index, and one block of a queue by the key.
_BOUNDED = ("UPDATE joblib_statistic_position", "joblib_queue_block")
# Reads what waits for one predecessor, of which most may be released already.
_OPEN = "AND is_open AND (status IS NULL"


def _waves(plan: Plan) -> set[str | None]:
    return plan.by("joblib_wave") | plan.by("other")


def check(plans: list[Plan]) -> None:
    """No table is read whole, and PostgreSQL sorts no more than a few rows."""
    assert any("joblib_edge" in plan.statement for plan in plans)
    faults = [
        describe(plan)
        for plan in plans
        if (
            not any(part in plan.statement for part in _BOUNDED)
            and any(None in plan.by(table) for table in TABLES)
        )
        or (plan.text.startswith("force") and plan.sorted_rows > FEW)
        or ("other.cancels" in plan.statement and "ix_joblib_wave_cancels" not in _waves(plan))
        or (_OPEN in plan.statement and plan.by("joblib_edge") != {"ix_joblib_edge_open"})
    ]
    assert not faults, "\n\n".join(faults)


async def test_ends_are_recorded_and_handled_by_indexes(explainer: Explainer) -> None:
    """Of each end the first tasks that wait are read, of those for a group too, and of the fan."""
    check(await explainer.plans(rules_waves.handle))

    async def end(tx: Transaction) -> None:
        await sql_successors.add_waves_of_tasks(tx, [FAN, IN_CHAIN, ENDED_FROM])
        await sql_successors.add_wave_of_group(tx, 7)
        await rules_waves.handle(tx, rules_waves.Rules(only=await sql_successors.last_wave_number(tx)))
        behind = [sql_successors.WaitsBehind(source, source > 0, 101, 0) for source in (FAN, -7, IN_CHAIN)]
        await sql_successors.open_edges(tx, behind)
        await sql_successors.unrecorded(tx, (-(2**62), 0), 1000)

    check(await explainer.plans(end))


async def test_a_submit_reads_its_predecessors(explainer: Explainer, subtests: pytest.Subtests) -> None:
    """For any number of tasks that wait for these already; also one that joins a group."""
    for after, group in (
        ({"tasks": [task_id(ENDED_FROM + 100), task_id(IN_CHAIN)], "groups": [group_id(1)]}, None),
        ({"tasks": [task_id(IN_CHAIN)]}, group_id(101)),
    ):
        with subtests.test(group=group):
            options = TaskSubmitRequest.model_validate({"after": after, "group": group})
            items = [rules_tasks.Submission(SUBMITTER, "room-1", name(0), {}, options=options)] * 2
            plans = await explainer.plans(partial(rules_tasks.submit, items=items))
            check(plans)


async def test_actions_read_the_edges_of_their_tasks(explainer: Explainer) -> None:
    """A retry of one that waits again, a cancel of what waits, and a task that is run by hand."""

    async def act(tx: Transaction) -> None:
        for action, seq in (
            (rules_task_actions.retry, OLD),
            (rules_task_actions.run_now, IN_FAN + 1),
            (rules_task_actions.run_now, IN_FAN + 2),
        ):
            await action(tx, ADMIN, task_id(seq), TaskActionRequest())
        await rules_successors.cancel_waiting(tx, FAN)
        waiting = await sql_successors.unreleased(tx, range(IN_CHAIN, IN_CHAIN + 200))
        assert tx.is_sqlite or await sql_successors.lock_sources(tx, waiting)
        await sql_successors.reopen(tx, waiting, [])
        await sql_successors.predecessors(tx, list(waiting))
        await sql_successors.remove(tx, list(waiting))

    check(await explainer.plans(act))


async def test_a_task_is_shown_with_its_edges(explainer: Explainer) -> None:
    """Of the fan only the tasks that are shown; with the reasons why a task waits."""

    async def show(tx: Transaction) -> None:
        for seq in (FAN, IN_CHAIN, OLD):
            await rules_tasks.get(tx, task_id(seq))
        await rules_history.explain(tx, task_id(IN_CHAIN), ClaimOrder())
        assert await rules_successors.status_of_successor(tx, task_id(IN_FAN), task_id(FAN)) == "pending"

    check(await explainer.plans(show))


async def test_the_token_of_a_task_is_checked_by_keys(explainer: Explainer) -> None:
    """Each use reads the task, and whether the tasks that it names are children or predecessors."""

    async def use(tx: Transaction) -> None:
        assert await sql_task_tokens.get(tx, task_id(IN_CHAIN)) is not None
        for own in (FAN, IN_CHAIN, OLD):
            await sql_task_tokens.related(tx, task_id(own), [task_id(seq) for seq in (FAN, IN_FAN, OLD)])

    check(await explainer.plans(use))


async def test_what_tasks_need_is_looked_up_by_keys(explainer: Explainer) -> None:
    """Before tasks, groups and stored content are deleted."""

    async def prune(tx: Transaction) -> None:
        await rules_task_retention.prune(tx, JobLibSettings(keep_finished_days=1e-9), TaskPruning())
        await sql_transitions.delete_ended(tx, [1, OLD, OLD - 10_000, 60_000], AT)
        await sql_groups.prune(tx, AT, 0, 100)

    check(await explainer.plans(prune))
    for plan in await explainer.plans(partial(sql_results.needed, soon=AT + timedelta(days=1), limit=100)):
        assert plan.by("joblib_task_result") == {"ix_joblib_task_result_expiring"}, describe(plan)
