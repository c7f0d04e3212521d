"""What goes when a worker goes, to the letter: its tasks, its links, itself, orphan jobs; what is told."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from sweeper.queue import Broker, Queue
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


async def worker_of(session: AsyncSession, worker_id: str) -> Worker:
    """Return a worker's row, as a host has it."""
    worker = await session.get(Worker, UUID(worker_id))
    assert worker is not None
    return worker


class TestOneWorker:
    """`cleanup_worker(session, worker)`."""

    async def test_it_fails_what_the_worker_held(self, queue: Queue, sessions: Sessions) -> None:
        """Claimed and running tasks fail with the exact text; pending, finished and others' tasks stay."""
        job = await queue.register()
        other = await queue.register()
        done = await queue.hold(job, running=True)
        await queue.report(done, "completed")
        held = [await queue.hold(job), await queue.hold(job, running=True)]
        spared = await queue.hold(job, other["worker_id"])
        pending = await queue.submit(job)
        async with sessions() as session:
            await cleanup_worker(session, await worker_of(session, job["worker_id"]))
            await session.commit()
        for task in held:
            after = await queue.read(task)
            assert (after["status"], after["error"]) == ("failed", "Worker disconnected")
            assert after["completed_at"] is not None
            assert after["worker_id"] == job["worker_id"]
        assert (await queue.read(done))["error"] is None
        assert [(await queue.read(t))["status"] for t in (done, spared, pending)] == [
            "completed",
            "claimed",
            "pending",
        ]
        assert await queue.workers() == {other["worker_id"]}
        [shown] = (await queue.ask("GET", "/rooms/lab/jobs"))["items"]
        assert shown["workers"] == [other["worker_id"]]

    async def test_it_returns_what_is_to_be_told(self, queue: Queue, sessions: Sessions) -> None:
        """An event for each failed task with its old worker, one for each room of its jobs; none twice."""
        job = await queue.register()
        for name, room in (("Scale", "@global"), ("Rotate", "lab")):
            await queue.register(name, room, job["worker_id"])
        await queue.register()
        held = [await queue.hold(job), await queue.hold(job, running=True)]
        async with sessions() as session:
            emissions = await cleanup_worker(session, await worker_of(session, job["worker_id"]))
            await session.commit()
        assert len(emissions) == len(set(emissions)) == 4
        told = {str(e.event.id): e for e in emissions if isinstance(e.event, TaskStatusEvent)}
        for task in held:
            event, room = told[task["id"]]
            assert (event.status, event.error, room) == ("failed", "Worker disconnected", "room:lab")
            assert str(event.worker_id) == job["worker_id"]
            assert event.completed_at is not None
        rooms = {e.room for e in emissions if e.event == JobsInvalidate()}
        assert rooms == {"room:@global", "room:lab"}

    async def test_it_does_not_commit(self, queue: Queue, sessions: Sessions) -> None:
        """The caller does: after a rollback all is as it was, and may be done again."""
        job = await queue.register()
        task = await queue.hold(job)
        before = await queue.read(task)
        async with sessions() as session:
            worker = await worker_of(session, job["worker_id"])
            assert await cleanup_worker(session, worker)
            await session.rollback()
        assert await queue.read(task) == before
        assert await queue.workers() == {job["worker_id"]}
        assert await queue.is_shown(job)
        async with sessions() as session:
            assert await cleanup_worker(session, await worker_of(session, job["worker_id"]))
            await session.commit()
        assert (await queue.read(task))["status"] == "failed"

    async def test_several_go_in_one_transaction(self, queue: Queue, sessions: Sessions) -> None:
        """The caller may clean up as many as it likes before it commits."""
        jobs = [await queue.register(), await queue.register("Scale")]
        async with sessions() as session:
            for job in jobs:
                await cleanup_worker(session, await worker_of(session, job["worker_id"]))
            await session.commit()
        assert await queue.workers() == set()
        assert [await queue.is_shown(job) for job in jobs] == [False, False]


class TestOrphans:
    """A job is hidden when nobody serves it and nothing waits for it, unless it is internal."""

    async def clean(self, sessions: Sessions, job: dict[str, Any]) -> None:
        """Remove a job's worker."""
        async with sessions() as session:
            await cleanup_worker(session, await worker_of(session, job["worker_id"]))
            await session.commit()

    async def test_a_job_that_nobody_serves_is_hidden(self, queue: Queue, sessions: Sessions) -> None:
        """What the worker held does not keep it: that has failed with it."""
        job = await queue.register()
        await queue.hold(job)
        await self.clean(sessions, job)
        assert not await queue.is_shown(job)

    async def test_a_job_that_another_serves_stays(self, queue: Queue, sessions: Sessions) -> None:
        """It stays until its last worker goes."""
        job, other = await queue.register(), await queue.register()
        await self.clean(sessions, job)
        assert await queue.is_shown(job)
        await self.clean(sessions, other)
        assert not await queue.is_shown(job)

    async def test_a_job_that_something_waits_for_stays(self, queue: Queue, sessions: Sessions) -> None:
        """A worker that registers later takes up what is pending."""
        job = await queue.register()
        task = await queue.submit(job)
        await self.clean(sessions, job)
        assert await queue.is_shown(job)
        later = await queue.register()
        assert later["id"] == job["id"]
        assert (await queue.claim(later["worker_id"]))["id"] == task["id"]

    async def test_an_internal_job_stays(self, queue: Queue, sessions: Sessions) -> None:
        """Nobody serves it from outside, and it stays, even where a link to a worker was left behind."""
        inside = await queue.register(room="@internal")
        job = await queue.register("Scale")
        sql = "INSERT INTO joblib_worker_job (worker_id, job_id) VALUES (:worker, :job)"
        ids = [UUID(job["worker_id"]), UUID(inside["id"])]
        worker, internal = (i.hex if queue.is_sqlite else i for i in ids)
        await queue.execute(sql, worker=worker, job=internal)
        await self.clean(sessions, job)
        assert await queue.is_shown(inside)
        assert not await queue.is_shown(job)


class TestStaleWorkers:
    """`cleanup_stale_workers(session, timeout)`, by the database's clock."""

    @pytest.fixture(autouse=True)
    def long_ago(self, queue: Queue) -> None:
        """What the queue does happened an hour ago; a worker that beats now is alive."""
        queue.clock.now = datetime.now(UTC) - timedelta(hours=1)

    async def test_those_that_are_silent_go_and_others_stay(self, queue: Queue, sessions: Sessions) -> None:
        """Count and emissions are returned, and all of it is committed."""
        jobs = [await queue.register() for _ in range(3)]
        held = await queue.hold(jobs[0])
        await queue.silence(spare=[jobs[2]["worker_id"]])
        async with sessions() as session:
            count, emissions = await cleanup_stale_workers(session, MINUTE)
            await session.rollback()
        assert count == 2
        assert await queue.workers() == {jobs[2]["worker_id"]}
        assert (await queue.read(held))["error"] == "Worker disconnected"
        assert [e.room for e in emissions if isinstance(e.event, TaskStatusEvent)] == ["room:lab"]
        assert (JobsInvalidate(), "room:@global") in emissions

    async def test_an_idle_worker_goes_too(self, queue: Queue, sessions: Sessions) -> None:
        """One that serves no job and holds no task is no better than any other."""
        await queue.ask("POST", "/workers")
        async with sessions() as session:
            assert await cleanup_stale_workers(session, MINUTE) == (1, [])
        assert await queue.workers() == set()

    async def test_silence_is_counted_exactly(self, queue: Queue, sessions: Sessions) -> None:
        """Nobody goes before the timeout, everybody after it."""
        await queue.ask("POST", "/workers")
        async with sessions() as session:
            assert await cleanup_stale_workers(session, timedelta(hours=1, seconds=30)) == (0, [])
            assert await cleanup_stale_workers(session, timedelta(minutes=59)) == (1, [])
            assert await cleanup_stale_workers(session, MINUTE) == (0, [])


class TestStuckInternalTasks:
    """`cleanup_stuck_internal_tasks(session, timeout)`, counted from `COALESCE(started_at, created_at)`."""

    @pytest.fixture
    async def job(self, queue: Queue) -> dict[str, Any]:
        """Register an internal job with an executor, an hour ago."""
        queue.clock.now = datetime.now(UTC) - timedelta(hours=1)
        queue.joblib.runtime.dispatcher.registry = lambda: InternalRegistry(
            {"@internal:modifiers:Rotate": Broker()}
        )
        return await queue.register(room="@internal")

    async def test_what_is_held_too_long_fails(
        self, queue: Queue, sessions: Sessions, job: dict[str, Any]
    ) -> None:
        """A claimed task counts from its making, a running one from its start; exact text, and an event."""
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
            after = await queue.read(task)
            assert (after["status"], after["error"]) == ("failed", "Internal worker timeout")
            assert after["completed_at"] is not None
        for task in (late, ended, fresh):
            assert await queue.read(task) == task
        told = {(str(e.event.id), e.event.status, e.room) for e in emissions}
        assert told == {(task["id"], "failed", "room:lab") for task in (claimed, running)}

    async def test_remote_tasks_are_left_to_their_workers(
        self, queue: Queue, sessions: Sessions, job: dict[str, Any]
    ) -> None:
        """However long a living worker holds one."""
        remote = await queue.register("Remote")
        held = await queue.hold(remote, running=True)
        pending = await queue.submit(remote)
        async with sessions() as session:
            assert await cleanup_stuck_internal_tasks(session, MINUTE) == (0, [])
        assert [await queue.read(held), await queue.read(pending)] == [held, pending]

    async def test_a_late_report_of_a_stuck_task_changes_nothing(
        self, queue: Queue, sessions: Sessions, job: dict[str, Any]
    ) -> None:
        """It has failed, whatever its executor says afterwards: 409."""
        task = await queue.report(await queue.submit(job), "running")
        async with sessions() as session:
            await cleanup_stuck_internal_tasks(session, MINUTE)
        answer = await queue.client.patch(f"/v1/joblib/tasks/{task['id']}", json={"status": "completed"})
        assert (answer.status_code, answer.json()["reason"]) == (409, "finished")
