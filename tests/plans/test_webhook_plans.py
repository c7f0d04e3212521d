"""Webhooks and their outbox are read by indexes, whatever is due, fails or has been delivered."""

from datetime import timedelta
from typing import Any

from plans.explained import FEW, Explainer, Plan
from plans.test_plans import describe
from zndraw_joblib.server.admin import rules_lists
from zndraw_joblib.server.admin.rules_lists import DeliveryFilter
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.process.ports import CursorPage
from zndraw_joblib.server.process.settings import JobLibSettings
from zndraw_joblib.server.queue import rules_webhooks, sql_webhooks
from zndraw_joblib.server.queue.rules_webhooks import Outcome, Slots

SETTINGS = JobLibSettings()
TABLES = ("joblib_webhook", "joblib_outbox", "joblib_task_webhook")


# Statements that may read thousands of webhooks, for which PostgreSQL may scan their table, or the next ones
# by the primary key; and on SQLite those that sort the rows of a window, or of the tasks of a batch.
_OF_MANY = ("AS failing", "SELECT webhook_n, (", "AND due_at IS NULL RETURNING n", "SELECT count(*)", "n > ")
_OF_MANY += ("DELETE FROM joblib_webhook WHERE n =",)
_OF_WINDOWS = ("CO-ROUTINE page", "CO-ROUTINE failing", "SEARCH joblib_task USING INTEGER PRIMARY KEY")


def check(plans: list[Plan]) -> None:
    """Neither a table is read whole, nor more than a few rows are sorted."""
    for plan in plans:
        is_of_many = any(part in plan.statement for part in _OF_MANY)
        for table in TABLES[is_of_many:]:
            assert None not in plan.by(table), describe(plan)
        if not is_of_many and not any(part in plan.text for part in _OF_WINDOWS):
            assert plan.sorted_rows <= FEW, describe(plan)


async def test_deliveries_are_found_and_recorded_by_indexes(explainer: Explainer) -> None:
    """Of the due webhooks some are read, those of their owners too, and of each its first delivery."""

    async def work(tx: Transaction) -> None:
        slots = Slots(20, 10, 15, 8, {"owner-1": 15}, {})
        due = await rules_webhooks.take(tx, slots, 25)
        assert len(due.attempts) == 20
        now = await tx.now()
        await sql_webhooks.first_due(tx, now)
        await sql_webhooks.find_stuck(tx)
        [attempt, *_] = [item for item in due.attempts if item.delivery is None]
        await rules_webhooks.record(tx, attempt, None, SETTINGS, lease_seconds=25)
        webhook = await sql_webhooks.hold(tx, "lab", "hook-51")
        assert webhook is not None
        head = await sql_webhooks.head(tx, webhook.n)
        assert head is not None
        await sql_webhooks.record_attempt(
            tx, head.seq, delivered=False, is_over=False, status_code=500, error=Outcome(500).text
        )
        await sql_webhooks.end_waiting(tx, webhook.n, now, "given up", 1000)
        await sql_webhooks.of_tasks(tx, [20, 40, 60])
        await sql_webhooks.unlink(tx, [20, 40, 60])

    check(await explainer.plans(work))


FILTERS = [
    DeliveryFilter(),
    DeliveryFilter(webhook="hook-51"),
    DeliveryFilter(webhook="nope", state="failed"),
    DeliveryFilter(state="waiting"),
    DeliveryFilter(state="delivered"),
]


async def test_lists_and_figures_are_bounded(explainer: Explainer) -> None:
    """A list reads windows of a room's deliveries, also if none matches its filter."""

    async def work(tx: Transaction) -> None:
        for delivery_filter in FILTERS:
            await rules_lists.deliveries(tx, "lab", delivery_filter, CursorPage(50, None))
        task_id = (await sql_webhooks.deliveries(tx, "lab", 100, 1, {}, None))[0][0].task_id
        assert task_id is not None
        found = await rules_lists.deliveries(tx, "lab", DeliveryFilter(task=task_id), CursorPage(50, None))
        assert len(found.items) == 1
        await sql_webhooks.waiting(tx, [1, 51])
        await sql_webhooks.failing(tx, 3, 50)
        assert await sql_webhooks.count_failing(tx) > 1000
        assert len(await sql_webhooks.disabled(tx, 50)) == await sql_webhooks.count_disabled(tx) == 1

    check(await explainer.plans(work))


async def test_a_filter_that_nothing_matches_reads_a_part(explainer: Explainer) -> None:
    """The answer is empty and has a cursor; the requests after it come to the end."""
    parts: list[Any] = []

    async def work(tx: Transaction) -> None:
        cursor: str | None = None
        while not parts or cursor is not None:
            part = await rules_lists.deliveries(tx, "lab", DeliveryFilter("nope"), CursorPage(50, cursor))
            parts.append(part.items)
            cursor = part.next

    await explainer.plans(work)
    assert parts == [[]] * 3


async def test_old_deliveries_and_targets_are_deleted_by_indexes(explainer: Explainer) -> None:
    """The oldest deliveries, and the next thousand webhooks."""

    async def work(tx: Transaction) -> None:
        before = await tx.now() - timedelta(seconds=1)
        assert await sql_webhooks.prune_deliveries(tx, before, 1000) == 1000
        deleted, following = await sql_webhooks.prune_targets(tx, before, 0, 1000)
        assert following == 1000
        assert 0 < deleted < 500

    check(await explainer.plans(work))
