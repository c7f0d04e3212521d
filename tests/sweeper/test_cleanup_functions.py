"""The public cleanup functions: what they change, and which events they return."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from sweeper.mounted_queue import Broker, MountedQueue
from zndraw_joblib import (
    JobsInvalidate,
    TaskStatusEvent,
    Worker,
    cleanup_stale_workers,
    cleanup_stuck_internal_tasks,
    cleanup_worker,
)
from zndraw_joblib.server.internal.registry import InternalRegistry

Sessions = async_sessionmaker[AsyncSession]
MINUTE = timedelta(minutes=1)


async def get_worker(session: AsyncSession, worker_id: str) -> Worker:
    """Return the row of a worker."""
    worker = await session.get(Worker, UUID(worker_id))
    assert worker is not None
    return worker


class TestCleanupWorker:
    """`cleanup_worker(session, worker)`."""

    async def test_the_tasks_of_the_worker_fail(self, queue: MountedQueue, sessions: Sessions) -> None:
        """Claimed and running tasks fail with the exact text; pending, ended and others' tasks stay."""
        job = await queue.register()
        other = await queue.register()
        done = await queue.submit_and_claim(job, running=True)
        await queue.report(done, "completed")
        held = [await queue.submit_and_claim(job), await queue.submit_and_claim(job, running=True)]
        spared = await queue.submit_and_claim(job, other["worker_id"])
        pending = await queue.submit(job)
        async with sessions() as session:
            await cleanup_worker(session, await get_worker(session, job["worker_id"]))
            await session.commit()
        for task in held:
            after = await queue.get_task(task)
            assert (after["status"], after["error"]) == ("failed", "Worker disconnected")
            assert after["completed_at"] is not None
            assert after["worker_id"] == job["worker_id"]
        assert (await queue.get_task(done))["error"] is None
        assert [(await queue.get_task(t))["status"] for t in (done, spared, pending)] == [
            "completed",
            "claimed",
            "pending",
        ]
        assert await queue.worker_ids() == {other["worker_id"]}
        [shown] = (await queue.request("GET", "/rooms/lab/jobs"))["items"]
        assert shown["workers"] == [other["worker_id"]]

    async def test_it_returns_the_events(self, queue: MountedQueue, sessions: Sessions) -> None:
        """One event for each failed task, with its worker, and one for each room of the worker's jobs."""
        job = await queue.register()
        for name, room in (("Scale", "@global"), ("Rotate", "lab")):
            await queue.register(name, room, job["worker_id"])
        await queue.register()
        held = [await queue.submit_and_claim(job), await queue.submit_and_claim(job, running=True)]
        async with sessions() as session:
            emissions = await cleanup_worker(session, await get_worker(session, job["worker_id"]))
            await session.commit()
        assert len(emissions) == len(set(emissions)) == 4
        events = {
            str(e.event.id): (e.event, e.room) for e in emissions if isinstance(e.event, TaskStatusEvent)
        }
        for task in held:
            event, room = events[task["id"]]
            assert (event.status, event.error, room) == ("failed", "Worker disconnected", "room:lab")
            assert str(event.worker_id) == job["worker_id"]
            assert event.completed_at is not None
        rooms = {e.room for e in emissions if e.event == JobsInvalidate()}
        assert rooms == {"room:@global", "room:lab"}

    async def test_it_does_not_commit(self, queue: MountedQueue, sessions: Sessions) -> None:
        """After a rollback of the caller nothing has changed, and the function works again."""
        job = await queue.register()
        task = await queue.submit_and_claim(job)
        before = await queue.get_task(task)
        async with sessions() as session:
            worker = await get_worker(session, job["worker_id"])
            assert await cleanup_worker(session, worker)
            await session.rollback()
        assert await queue.get_task(task) == before
        assert await queue.worker_ids() == {job["worker_id"]}
        assert await queue.is_active(job)
        async with sessions() as session:
            assert await cleanup_worker(session, await get_worker(session, job["worker_id"]))
            await session.commit()
        assert (await queue.get_task(task))["status"] == "failed"

    async def test_several_workers_in_one_transaction(self, queue: MountedQueue, sessions: Sessions) -> None:
        """The caller may call it for several workers before it commits."""
        jobs = [await queue.register(), await queue.register("Scale")]
        async with sessions() as session:
            for job in jobs:
                await cleanup_worker(session, await get_worker(session, job["worker_id"]))
            await session.commit()
        assert await queue.worker_ids() == set()
        assert [await queue.is_active(job) for job in jobs] == [False, False]


class TestOrphans:
    """A job without workers and pending tasks is soft-deleted, unless it is internal."""

    async def remove_worker(self, sessions: Sessions, job: dict[str, Any]) -> None:
        """Remove the worker that registered a job."""
        async with sessions() as session:
            await cleanup_worker(session, await get_worker(session, job["worker_id"]))
            await session.commit()

    async def test_a_job_without_workers_is_deleted(self, queue: MountedQueue, sessions: Sessions) -> None:
        """A task that the worker had claimed does not keep the job: the task fails."""
        job = await queue.register()
        await queue.submit_and_claim(job)
        await self.remove_worker(sessions, job)
        assert not await queue.is_active(job)

    async def test_a_job_with_another_worker_stays(self, queue: MountedQueue, sessions: Sessions) -> None:
        """It stays until its last worker is removed."""
        job, other = await queue.register(), await queue.register()
        await self.remove_worker(sessions, job)
        assert await queue.is_active(job)
        await self.remove_worker(sessions, other)
        assert not await queue.is_active(job)

    async def test_a_job_with_pending_tasks_stays(self, queue: MountedQueue, sessions: Sessions) -> None:
        """A worker that registers later claims the pending task."""
        job = await queue.register()
        task = await queue.submit(job)
        await self.remove_worker(sessions, job)
        assert await queue.is_active(job)
        later = await queue.register()
        assert later["id"] == job["id"]
        assert (await queue.claim(later["worker_id"]))["id"] == task["id"]

    async def test_an_internal_job_stays(self, queue: MountedQueue, sessions: Sessions) -> None:
        """It stays although it has no remote worker, even if a link to a removed worker is left."""
        internal_job = await queue.register(room="@internal")
        job = await queue.register("Scale")
        sql = "INSERT INTO joblib_worker_job (worker_id, job_id) VALUES (:worker, :job)"
        ids = [UUID(job["worker_id"]), UUID(internal_job["id"])]
        worker, internal = (i.hex if queue.is_sqlite else i for i in ids)
        await queue.execute(sql, worker=worker, job=internal)
        await self.remove_worker(sessions, job)
        assert await queue.is_active(internal_job)
        assert not await queue.is_active(job)


class TestStaleWorkers:
    """`cleanup_stale_workers(session, timeout)`, which uses the database's clock."""

    @pytest.fixture(autouse=True)
    def long_ago(self, queue: MountedQueue) -> None:
        """Set the queue's clock to one hour ago; a heartbeat after `pass_time` is current."""
        queue.clock.now = datetime.now(UTC) - timedelta(hours=1)

    async def test_silent_workers_are_removed(self, queue: MountedQueue, sessions: Sessions) -> None:
        """It returns their number and the events, and commits."""
        jobs = [await queue.register() for _ in range(3)]
        held = await queue.submit_and_claim(jobs[0])
        await queue.pass_time(alive=[jobs[2]["worker_id"]])
        async with sessions() as session:
            count, emissions = await cleanup_stale_workers(session, MINUTE)
            await session.rollback()
        assert count == 2
        assert await queue.worker_ids() == {jobs[2]["worker_id"]}
        assert (await queue.get_task(held))["error"] == "Worker disconnected"
        assert [e.room for e in emissions if isinstance(e.event, TaskStatusEvent)] == ["room:lab"]
        assert (JobsInvalidate(), "room:@global") in emissions

    async def test_an_idle_worker_is_removed(self, queue: MountedQueue, sessions: Sessions) -> None:
        """A worker without jobs and tasks is removed too."""
        await queue.request("POST", "/workers")
        async with sessions() as session:
            assert await cleanup_stale_workers(session, MINUTE) == (1, [])
        assert await queue.worker_ids() == set()

    async def test_the_timeout_is_exact(self, queue: MountedQueue, sessions: Sessions) -> None:
        """A worker is removed only after the timeout."""
        await queue.request("POST", "/workers")
        async with sessions() as session:
            assert await cleanup_stale_workers(session, timedelta(hours=1, seconds=30)) == (0, [])
            assert await cleanup_stale_workers(session, timedelta(minutes=59)) == (1, [])
            assert await cleanup_stale_workers(session, MINUTE) == (0, [])


class TestStuckInternalTasks:
    """`cleanup_stuck_internal_tasks(session, timeout)`, measured from `COALESCE(started_at, created_at)`."""

    @pytest.fixture
    async def job(self, queue: MountedQueue) -> dict[str, Any]:
        """Register an internal job with an executor, an hour ago."""
        queue.clock.now = datetime.now(UTC) - timedelta(hours=1)
        queue.app.state.internal_registry = InternalRegistry({"@internal:modifiers:Rotate": Broker()})
        return await queue.register(room="@internal")

    async def test_an_overdue_task_fails(
        self, queue: MountedQueue, sessions: Sessions, job: dict[str, Any]
    ) -> None:
        """The timeout of a claimed task begins at its creation, that of a running one at its start."""
        claimed = await queue.submit(job)
        running = await queue.report(await queue.submit(job), "running")
        late = await queue.submit(job)
        ended = await queue.report(await queue.submit(job), "cancelled")
        queue.clock.advance(3600)
        late = await queue.report(late, "running")
        fresh = await queue.submit(job)
        async with sessions() as session:
            count, emissions = await cleanup_stuck_internal_tasks(session, MINUTE)
            await session.rollback()
        assert count == 2
        for task in (claimed, running):
            after = await queue.get_task(task)
            assert (after["status"], after["error"]) == ("failed", "Internal worker timeout")
            assert after["completed_at"] is not None
        for task in (late, ended, fresh):
            assert await queue.get_task(task) == task
        events = {
            (str(e.event.id), e.event.status, e.room)
            for e in emissions
            if isinstance(e.event, TaskStatusEvent)
        }
        assert len(events) == len(emissions)
        assert events == {(task["id"], "failed", "room:lab") for task in (claimed, running)}

    async def test_remote_tasks_stay(
        self, queue: MountedQueue, sessions: Sessions, job: dict[str, Any]
    ) -> None:
        """A remote task stays however long its worker runs it."""
        remote = await queue.register("Remote")
        held = await queue.submit_and_claim(remote, running=True)
        pending = await queue.submit(remote)
        async with sessions() as session:
            assert await cleanup_stuck_internal_tasks(session, MINUTE) == (0, [])
        assert [await queue.get_task(held), await queue.get_task(pending)] == [held, pending]

    async def test_a_late_report_of_a_stuck_task_changes_nothing(
        self, queue: MountedQueue, sessions: Sessions, job: dict[str, Any]
    ) -> None:
        """The task stays failed; a report of its executor is 409."""
        task = await queue.report(await queue.submit(job), "running")
        async with sessions() as session:
            await cleanup_stuck_internal_tasks(session, MINUTE)
        response = await queue.client.patch(f"/v1/joblib/tasks/{task['id']}", json={"status": "completed"})
        assert (response.status_code, response.json()["reason"]) == (409, "finished")
