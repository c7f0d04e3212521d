"""Ids of tasks are UUIDs of version 7: neighbours in time are neighbours in the index of ids."""

import time
from uuid import RFC_4122

from replica import Replica

from zndraw_joblib.server.queue.rules_tasks import new_ids


def test_ids_are_unique_and_begin_with_the_time() -> None:
    """The first 48 bits are the milliseconds since 1970; the rest is random, except version and variant."""
    before = time.time_ns() // 1_000_000
    ids = new_ids(1000) + new_ids(1000)
    after = time.time_ns() // 1_000_000
    assert len(set(ids)) == 2000
    assert all(before <= each.int >> 80 <= after for each in ids)
    assert {(each.version, each.variant) for each in ids} == {(7, RFC_4122)}
    assert len({each.int & 0xFFFFFFFF for each in ids}) > 1990


async def test_every_submit_makes_such_ids(replica: Replica) -> None:
    """Plain tasks and tasks with options have ids of the same kind."""
    job = await replica.register()
    tasks = [await replica.submit(job), await replica.submit(job), await replica.submit(job, priority=1)]
    assert {task.id.version for task in tasks} == {7}
