"""Effects of the end of a task on its group, its successors and webhooks, in the transaction that ends it."""

from collections.abc import Mapping

from zndraw_joblib.server.db.database import TaskEnd, Transaction
from zndraw_joblib.server.queue import rules_groups, rules_successors, rules_webhooks


async def settle(tx: Transaction, ended: Mapping[int, TaskEnd]) -> None:
    """Do what follows from the ends of these tasks, which are linked or in groups, by their `seq`.

    Their rows are locked. What ends further such tasks here is settled next, by another call.
    """
    taken = await rules_groups.settle(tx, ended)
    if taken.may_have_successors:
        await rules_successors.settle(tx, ended)
    if taken.may_have_webhooks:
        rules_webhooks.tasks_ended(tx, ended)
