"""A host's code waits for the end of a task, and follows what happens to it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest
from databases import on_both
from waiting import until

from host.queues import Host, running_host
from zndraw_joblib import JobLibSettings, ServiceUnavailable, TaskNotFound, TaskResponse, TooManyRequests
from zndraw_joblib.wire.history import Resync, RoomSnapshot, StreamEvent

BOUND = 30
UNKNOWN = "00000000-0000-4000-8000-000000000000"


@pytest.fixture
async def host(async_url: str) -> AsyncIterator[Host]:
    """Run a host that allows two streams to each user."""
    async with running_host(async_url, settings=JobLibSettings(max_streams_per_user=2)) as host:
        yield host


async def test_wait_returns_the_ended_task(host: Host) -> None:
    """The wait holds no session; a wait for an ended task returns at once."""
    job = await host.register()
    task = await host.joblib.submit(job["full_name"], room="lab")
    async with asyncio.timeout(BOUND):
        waiting = asyncio.ensure_future(host.joblib.wait(task.id))
        await until(lambda: host.joblib.runtime.waiters.waiting_count)
        # The loops of the host use sessions for a moment.
        await until(lambda: host.engine.sync_engine.pool.checkedout() == 0)  # type: ignore[attr-defined]
        await host.end(job, result=3)
        assert (await waiting).result == 3
        assert (await host.joblib.wait(str(task.id), timeout=0)).status == "completed"


async def test_a_wait_ends_with_its_timeout_or_the_server(host: Host) -> None:
    """The error says which task, and that it is pending."""
    job = await host.register()
    task = await host.joblib.submit(job["full_name"], room="lab")
    async with asyncio.timeout(BOUND):
        for seconds in (0, 0.05):
            with pytest.raises(TimeoutError, match=f"{task.id} .* pending"):
                await host.joblib.wait(task.id, timeout=seconds)
        with pytest.raises(TaskNotFound):
            await host.joblib.wait(UNKNOWN, timeout=5)
        waiting = asyncio.ensure_future(host.joblib.wait(task.id))
        await until(lambda: host.joblib.runtime.waiters.waiting_count)
        host.joblib.begin_stop()
        with pytest.raises(ServiceUnavailable):
            await waiting


@on_both
async def test_events_of_a_task(host: Host) -> None:
    """First its state, then each change, until it ends; with a position, what follows it."""
    job = await host.register()
    task = await host.joblib.submit(job["full_name"], room="lab")
    seen: list[object] = []
    async with asyncio.timeout(BOUND):
        async for event in host.joblib.events(task.id):
            seen.append(event)
            if len(seen) == 1:
                await host.end(job)
        assert isinstance(seen[0], TaskResponse)
        assert seen[0].status == "pending"
        changes = [each for each in seen[1:] if isinstance(each, StreamEvent)]
        assert [each.data["status"] for each in changes] == ["claimed", "running", "completed"]
        again = [each async for each in host.joblib.events(str(task.id), after=changes[0].n)]
        assert again == changes[1:]
        unknown = [type(each) async for each in host.joblib.events(task.id, after=10**6)]
        assert unknown == [Resync, TaskResponse]
        with pytest.raises(TaskNotFound):
            await anext(host.joblib.events(UNKNOWN))


async def test_events_of_a_room(host: Host) -> None:
    """The snapshot has its tasks; a submit in a host's transaction is an event after its commit."""
    job = await host.register()
    async with asyncio.timeout(BOUND), aclosing(host.joblib.events(room="lab")) as events:
        snapshot = await anext(events)
        assert isinstance(snapshot, RoomSnapshot)
        assert snapshot.total == 0
        async with host.sessions.begin() as session:
            task = await host.joblib.submit(job["full_name"], room="lab", session=session)
        event = await anext(events)
        assert isinstance(event, StreamEvent)
        assert (event.task_id, event.data["status"]) == (task.id, "pending")
    with pytest.raises(TypeError, match="task_id or room"):
        host.joblib.events()


async def test_the_streams_of_a_user_are_bounded(host: Host) -> None:
    """Left streams count no longer."""
    async with asyncio.timeout(BOUND):
        for _ in range(2):
            async with (
                aclosing(host.joblib.events(room="lab")) as one,
                aclosing(host.joblib.events(room="attic")) as two,
            ):
                await anext(one)
                await anext(two)
                with pytest.raises(TooManyRequests):
                    await anext(host.joblib.events(room="lab"))
