"""Internal tasks of one request are dispatched together, within one time limit."""

import asyncio
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from replica import SUBMITTER, ManualClock, Replica, internal

from recovery.test_internal_dispatch import LEASE, serve
from zndraw_joblib.server.queue import rules_tasks
from zndraw_joblib.wire.messages import TaskSubmitRequest
from zndraw_joblib.wire.statuses import TaskStatus


def batch(length: int) -> list[rules_tasks.Submission]:
    """Return tasks of the internal job."""
    return [
        rules_tasks.Submission(SUBMITTER, "lab", internal(), {}, is_configured=True) for _ in range(length)
    ]


@pytest.mark.parametrize(
    ("is_atomic", "hangs", "sent"), [(True, False, 3), (False, False, 3), (False, True, 1)]
)
async def test_a_batch_waits_for_an_unavailable_broker(
    timed: Replica, clock: ManualClock, is_atomic: bool, hangs: bool, sent: int
) -> None:
    """Three failures in a row, or a time limit for all, end the dispatch. Later each task is sent once."""
    broker = await serve(timed)

    async def refuse(_: UUID) -> None:
        if hangs:
            await asyncio.Event().wait()
        raise ConnectionError("away")

    broker.on_call = refuse
    send_seconds = timed.dispatcher.send_seconds
    if hangs:
        timed.dispatcher.send_seconds = 0.2
    made: list[Any] = await (
        timed.dispatcher.submit_all(batch(10), None) if is_atomic else timed.dispatcher.submit_many(batch(10))
    )
    timed.dispatcher.send_seconds = send_seconds
    assert {task.status for task in made} == {TaskStatus.CLAIMED}
    assert len(broker.calls) == sent
    broker.on_call = None
    broker.calls.clear()
    for _ in range(3):
        assert await timed.dispatcher.dispatch()
        clock.advance(LEASE)
    assert [call["task_id"] for call in broker.calls] == [str(task.id) for task in made]


async def test_a_batch_is_dispatched_once(timed: Replica, clock: ManualClock) -> None:
    """Each task is confirmed after its dispatch; a task that is not due waits for its time."""
    broker = await serve(timed)
    made: list[Any] = await timed.dispatcher.submit_many(
        [*batch(3), replace(batch(1)[0], options=TaskSubmitRequest(delay_seconds=1000))]
    )
    assert [task.status for task in made] == [TaskStatus.CLAIMED] * 3 + [TaskStatus.PENDING]
    clock.advance(LEASE)
    await timed.dispatcher.dispatch()
    assert [call["task_id"] for call in broker.calls] == [str(task.id) for task in made[:3]]
