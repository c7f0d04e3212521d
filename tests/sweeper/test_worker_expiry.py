"""The sweeper removes silent workers, unless the server itself may have caused their silence."""

import asyncio
import logging
import re
from typing import Any
from uuid import UUID

import pytest
from rest import V1
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from waiting import until

from sweeper.mounted_queue import Broker, MountedQueue
from zndraw_joblib.server.internal.registry import InternalRegistry
from zndraw_joblib.server.process.ports import Identity
from zndraw_joblib.server.queue import rules_sweep, rules_workers
from zndraw_joblib.server.queue.rules_workers import Counts

Sessions = async_sessionmaker[AsyncSession]
# By default a worker expires after 60 s of silence, and the sweeper runs every 30 s.


def _summaries(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return the summaries."""
    return [record for record in caplog.records if "Swept" in record.message]


async def create_workers(queue: MountedQueue, count: int) -> list[str]:
    """Create workers; return their ids."""
    return [(await queue.request("POST", "/workers"))["id"] for _ in range(count)]


async def test_a_silent_worker_and_its_tasks_are_removed(queue: MountedQueue) -> None:
    """Its tasks fail with an event, its links are removed, its orphaned job is soft-deleted; others stay."""
    job, alive = await queue.register(), await queue.register("Scale")
    held = [await queue.submit_and_claim(job), await queue.submit_and_claim(job, running=True)]
    kept = await queue.submit_and_claim(alive)
    queue.end_startup_grace()
    await queue.pass_time(alive=[alive["worker_id"]])
    cycle = await queue.sweep()
    assert (cycle.scanned, cycle.stale, cycle.expired, cycle.errors) == (2, 1, 1, 0)
    assert await queue.worker_ids() == {alive["worker_id"]}
    for task in held:
        after = await queue.get_task(task)
        assert (after["status"], after["error"]) == ("failed", "Worker disconnected")
        assert queue.events.statuses(task)[-1] == "failed"
    assert (await queue.get_task(kept))["status"] == "claimed"
    assert [await queue.is_active(which) for which in (job, alive)] == [False, True]


async def test_a_silent_idle_worker_is_removed(queue: MountedQueue) -> None:
    """It serves no job and has no task."""
    await create_workers(queue, 1)
    queue.end_startup_grace()
    await queue.pass_time()
    assert (await queue.sweep()).expired == 1
    assert await queue.worker_ids() == set()


async def test_a_task_does_not_expire_by_its_age(queue: MountedQueue) -> None:
    """A worker that sends heartbeats may run one task for a year."""
    job = await queue.register()
    task = await queue.submit_and_claim(job, running=True)
    queue.end_startup_grace()
    await queue.pass_time(365 * 86400, alive=[job["worker_id"]])
    cycle = await queue.sweep()
    assert (cycle.expired, cycle.counts.failed) == (0, 0)
    assert await queue.get_task(task) == task
    await queue.report(task, "completed")


async def test_a_worker_expires_exactly_after_the_timeout(queue: MountedQueue) -> None:
    """At the timeout the worker stays; a microsecond later it is removed."""
    timeout = queue.joblib.settings.worker_timeout_seconds
    await create_workers(queue, 1)
    queue.end_startup_grace()
    queue.clock.advance(timeout)
    assert (await queue.sweep()).expired == 0
    queue.clock.advance(1e-6)
    assert (await queue.sweep()).expired == 1


async def test_every_request_of_a_worker_counts_as_a_heartbeat(queue: MountedQueue) -> None:
    """Heartbeat, claim, and a report that names the worker."""
    jobs = [await queue.register(name) for name in ("A", "B", "C", "D")]
    ids = [job["worker_id"] for job in jobs]
    held = await queue.submit_and_claim(jobs[2])
    queue.clock.advance(50)
    # The server writes at most one heartbeat per interval, and real time does not pass in this test.
    queue.joblib.settings.heartbeat_interval_seconds = 1e-6
    await queue.heartbeat(ids[0])
    await queue.claim(ids[1])
    response = await queue.client.patch(
        f"{V1}/tasks/{held['id']}", json={"status": "running", "worker_id": ids[2], "attempt": 1}
    )
    assert response.status_code == 200
    last = {w["id"]: w["last_heartbeat"] for w in (await queue.request("GET", "/workers"))["items"]}
    assert last[ids[0]] == last[ids[1]] == last[ids[2]] > last[ids[3]]


class TestStartupGrace:
    """After its own absence the server removes no worker before a full timeout has passed."""

    @pytest.fixture(autouse=True)
    async def two_silent_workers(self, queue: MountedQueue) -> None:
        """Create two workers that have been silent for an hour."""
        await create_workers(queue, 2)
        await queue.pass_time()

    async def test_after_a_start(self, queue: MountedQueue) -> None:
        """After a full timeout, workers without a heartbeat are removed."""
        for seconds in (0, 30, 29):
            queue.monotonic.advance(seconds)
            cycle = await queue.sweep()
            assert (cycle.stale, cycle.expired) == (2, 0)
        saved = (await queue.worker_ids()).pop()
        assert (await queue.heartbeat(saved)).status_code == 200
        queue.monotonic.advance(1)
        assert (await queue.sweep()).expired == 1
        assert await queue.worker_ids() == {saved}

    async def test_after_a_late_cycle(self, queue: MountedQueue) -> None:
        """All workers get a full timeout again, and then the mass-expiry guard waits one cycle."""
        for seconds, expired in ((0, 0), (61, 0), (30, 0), (29, 0), (1, 0), (30, 2)):
            queue.monotonic.advance(seconds)
            assert (await queue.sweep()).expired == expired

    async def test_after_an_outage_of_the_database(self, queue: MountedQueue) -> None:
        """While the sweeper could not write, the server could not store heartbeats either."""
        queue.end_startup_grace()
        await queue.execute("ALTER TABLE joblib_worker RENAME TO joblib_worker_away")
        for _ in range(2):
            assert (await queue.sweep()).errors
        await queue.execute("ALTER TABLE joblib_worker_away RENAME TO joblib_worker")
        cycle = await queue.sweep()
        assert (cycle.stale, cycle.expired, cycle.errors) == (2, 0, 0)
        queue.end_startup_grace()
        assert (await queue.sweep()).is_held_back
        assert (await queue.sweep()).expired == 2

    async def test_an_error_does_not_end_the_grace_period(self, queue: MountedQueue) -> None:
        """A cycle in the grace period removes no worker, whatever fails in it."""
        job = await queue.register()
        task = await queue.submit_and_claim(job)
        await reject_changes(queue, "joblib_task", "UPDATE", task["id"])
        await delete_worker_row(queue, job["worker_id"])
        cycle = await queue.sweep()
        assert (cycle.stale, cycle.expired) == (2, 0)
        assert len(await queue.worker_ids()) == 2


class TestMassExpiryGuard:
    """Before the sweeper removes most workers at once, it waits one cycle."""

    @pytest.fixture(autouse=True)
    def after_startup_grace(self, queue: MountedQueue) -> None:
        """End the grace period."""
        queue.end_startup_grace()

    async def test_most_workers_are_removed_one_cycle_later(
        self, queue: MountedQueue, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Five of nine: the first cycle logs a warning, the second one removes them."""
        ids = await create_workers(queue, 9)
        await queue.pass_time(alive=ids[5:])
        cycle = await queue.sweep()
        assert (cycle.stale, cycle.expired, cycle.is_held_back, cycle.errors) == (5, 0, True, 0)
        assert await queue.worker_ids() == set(ids)
        assert any(r.levelno == logging.WARNING and "5 of 9" in r.message for r in caplog.records)
        cycle = await queue.sweep()
        assert (cycle.expired, cycle.is_held_back) == (5, False)
        assert await queue.worker_ids() == set(ids[5:])

    async def test_workers_that_report_meanwhile_stay(self, queue: MountedQueue) -> None:
        """Only the workers that are still silent are removed."""
        ids = await create_workers(queue, 6)
        await queue.pass_time()
        assert (await queue.sweep()).is_held_back
        for worker_id in ids[1:]:
            await queue.heartbeat(worker_id)
        assert (await queue.sweep()).expired == 1
        assert await queue.worker_ids() == set(ids[1:])

    async def test_the_guard_works_again(self, queue: MountedQueue) -> None:
        """A second mass expiry is held back for one cycle too."""
        for _ in range(2):
            await create_workers(queue, 6)
            await queue.pass_time()
            assert (await queue.sweep()).is_held_back
            assert (await queue.sweep()).expired == 6

    async def test_one_user_does_not_hold_up_the_recovery_of_others(self, queue: MountedQueue) -> None:
        """Many silent workers of one user are kept for one cycle; the silent one of another is removed."""
        ids = await create_workers(queue, 3)
        for _ in range(2):
            for _ in range(10):
                await queue.joblib.runtime.write(
                    rules_workers.create, Identity("eve", is_superuser=False), 15
                )
            await queue.pass_time(alive=ids[1:])
            cycle = await queue.sweep()
            assert (cycle.stale, cycle.expired, cycle.is_held_back) == (11, 1, False)
            cycle = await queue.sweep()
            assert (cycle.expired, cycle.errors) == (10, 0)
            [ids[0]] = await create_workers(queue, 1)
        assert await queue.worker_ids() == set(ids)

    async def test_most_users_are_held_back_together(self, queue: MountedQueue) -> None:
        """A fault of the server silences the workers of most users, however few each has."""
        await create_workers(queue, 1)
        for name in ("eve", "bob"):
            await queue.joblib.runtime.write(rules_workers.create, Identity(name, is_superuser=False), 15)
        await queue.pass_time()
        assert (await queue.sweep()).is_held_back
        assert (await queue.sweep()).expired == 3

    @pytest.mark.parametrize(("dead", "alive"), [(1, 0), (5, 5)], ids=["one", "half"])
    async def test_few_workers_are_removed_at_once(self, queue: MountedQueue, dead: int, alive: int) -> None:
        """The only worker, or at most half of them: the guard does not apply."""
        ids = await create_workers(queue, dead + alive)
        await queue.pass_time(alive=ids[dead:])
        assert (await queue.sweep()).expired == dead

    async def test_an_error_does_not_end_the_guard(self, queue: MountedQueue) -> None:
        """A cycle that is held back removes no worker, whatever fails in it."""
        await create_workers(queue, 6)
        job = await queue.register()
        task = await queue.submit_and_claim(job)
        await reject_changes(queue, "joblib_task", "UPDATE", task["id"])
        await delete_worker_row(queue, job["worker_id"])
        await queue.pass_time()
        assert (await queue.sweep()).expired == 0
        assert len(await queue.worker_ids()) == 6


class TestClocks:
    """Only the database's clock counts; a heartbeat in its future is corrected."""

    @pytest.mark.parametrize("ahead", [4, 6, 3600, 10**8])
    async def test_a_heartbeat_in_the_future_expires(self, queue: MountedQueue, ahead: float) -> None:
        """A heartbeat up to 5 s ahead stays as it is; one further ahead is set to the current time."""
        [worker_id] = await create_workers(queue, 1)
        queue.end_startup_grace()
        queue.clock.advance(-ahead)
        assert (await queue.sweep()).expired == 0
        [worker] = (await queue.request("GET", "/workers"))["items"]
        is_corrected = worker["last_heartbeat"].startswith(queue.clock.now.isoformat()[:19])
        assert is_corrected == (ahead > 5)
        await queue.pass_time(min(ahead, 5) + 61)
        assert (await queue.sweep()).expired == 1
        assert (await queue.heartbeat(worker_id)).status_code == 404


async def reject_changes(queue: MountedQueue, table: str, what: str, row: str) -> None:
    """Add a trigger that rejects changes of one row."""
    if queue.is_sqlite:
        await queue.execute(
            f"CREATE TRIGGER reject BEFORE {what} ON {table} WHEN OLD.id = '{UUID(row).hex}' "
            "BEGIN SELECT RAISE(ABORT, 'this row is locked'); END"
        )
        return
    await queue.execute(
        "CREATE FUNCTION reject() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'this row is locked'; END $$",
        f"CREATE TRIGGER reject BEFORE {what} ON {table} FOR EACH ROW WHEN (OLD.id = '{row}') "
        "EXECUTE FUNCTION reject()",
    )


async def delete_worker_row(queue: MountedQueue, worker_id: str) -> None:
    """Delete the row of a worker; its tasks stay unchanged."""
    found = UUID(worker_id).hex if queue.is_sqlite else worker_id
    await queue.execute(
        f"DELETE FROM joblib_worker_job WHERE worker_id = '{found}'",  # noqa: S608
        f"DELETE FROM joblib_worker WHERE id = '{found}'",  # noqa: S608
    )


class TestFailures:
    """One failure stops only the work that it concerns."""

    async def test_a_worker_that_cannot_be_removed_does_not_block_others(self, queue: MountedQueue) -> None:
        """The others are removed in the same cycle; each cycle retries the failing one."""
        jobs = [await queue.register(name) for name in ("A", "B", "C", "D")]
        tasks = [await queue.submit_and_claim(job) for job in jobs]
        await reject_changes(queue, "joblib_worker", "DELETE", jobs[1]["worker_id"])
        queue.end_startup_grace()
        await queue.pass_time()
        assert (await queue.sweep()).is_held_back
        for expired in (3, 0):
            cycle = await queue.sweep()
            assert (cycle.expired, cycle.errors) == (expired, 1)
            assert await queue.worker_ids() == {jobs[1]["worker_id"]}
        states = [(await queue.get_task(task))["status"] for task in tasks]
        assert states == ["failed", "claimed", "failed", "failed"]
        await queue.execute("DROP TRIGGER reject" + ("" if queue.is_sqlite else " ON joblib_worker"))
        assert (await queue.sweep()).expired == 1
        assert (await queue.get_task(tasks[1]))["status"] == "failed"

    async def test_a_worker_that_cannot_be_removed_does_not_block_the_task_pass(
        self, queue: MountedQueue
    ) -> None:
        """A task without a worker still fails in the same cycle."""
        bad, lost = await queue.register(), await queue.register("Lost")
        task = await queue.submit_and_claim(lost)
        await delete_worker_row(queue, lost["worker_id"])
        await reject_changes(queue, "joblib_worker", "DELETE", bad["worker_id"])
        queue.end_startup_grace()
        await queue.pass_time()
        cycle = await queue.sweep()
        assert (cycle.errors, cycle.counts.failed) == (1, 1)
        assert (await queue.get_task(task))["error"] == "Worker disconnected"

    async def test_a_task_that_cannot_be_failed_does_not_block_worker_expiry(
        self, queue: MountedQueue
    ) -> None:
        """Silent workers are removed although the pass over tasks fails in every cycle."""
        lost = await queue.register()
        task = await queue.submit_and_claim(lost)
        await reject_changes(queue, "joblib_task", "UPDATE", task["id"])
        await delete_worker_row(queue, lost["worker_id"])
        await create_workers(queue, 2)
        await queue.pass_time()
        for _ in range(6):
            await queue.sweep()
            queue.monotonic.advance(30)
        assert await queue.worker_ids() == set()

    async def test_a_claimed_task_without_a_worker_fails(self, queue: MountedQueue) -> None:
        """A separate pass fails it at once, without a grace period. Tasks of other workers stay."""
        job, other = await queue.register(), await queue.register()
        lost = [await queue.submit_and_claim(job), await queue.submit_and_claim(job, running=True)]
        kept = await queue.submit_and_claim(other, other["worker_id"])
        pending = await queue.submit(job)
        await delete_worker_row(queue, job["worker_id"])
        cycle = await queue.sweep()
        assert (cycle.counts.failed, cycle.expired) == (2, 0)
        for task in lost:
            after = await queue.get_task(task)
            assert (after["status"], after["error"]) == ("failed", "Worker disconnected")
            assert queue.events.statuses(task)[-1] == "failed"
        assert [(await queue.get_task(task))["status"] for task in (kept, pending)] == ["claimed", "pending"]

    async def test_an_internal_task_needs_no_worker(self, queue: MountedQueue) -> None:
        """Claimed or running, it fails only after the timeout of internal tasks."""
        queue.app.state.internal_registry = InternalRegistry({"@internal:modifiers:Rotate": Broker()})
        job = await queue.register(room="@internal")
        claimed, other = await queue.submit(job), await queue.submit(job)
        running = await queue.report(other, "running")
        queue.end_startup_grace()
        await queue.pass_time(3600)
        cycle = await queue.sweep()
        assert cycle.counts == Counts()
        assert [await queue.get_task(claimed), await queue.get_task(running)] == [claimed, running]
        queue.clock.advance(1)
        assert (await queue.sweep()).counts.failed == 2
        assert (await queue.get_task(running))["error"] == "Internal worker timeout"

    @pytest.mark.parametrize("kind", ["postgresql"])
    async def test_a_hanging_statement_is_cancelled(self, queue: MountedQueue, sessions: Sessions) -> None:
        """A pass has a time limit. The cycle counts an error, and later cycles do the work.

        SQLite does not hang: its own busy timeout ends a statement.
        """
        await create_workers(queue, 1)
        queue.end_startup_grace()
        await queue.pass_time()
        async with sessions() as session:
            connection = await session.connection()
            await connection.exec_driver_sql("LOCK TABLE joblib_worker IN ACCESS EXCLUSIVE MODE")
            queue.restart_sweeper(pass_seconds=0.3)
            queue.end_startup_grace()
            async with asyncio.timeout(30):
                cycle = await queue.sweep()
            assert cycle.errors
            await session.rollback()
        queue.joblib.sweeper._pass_seconds = 60  # a busy machine needs longer for a pass

        async def is_removed() -> bool:
            queue.end_startup_grace()
            await queue.sweep()
            return not await queue.worker_ids()

        await until(is_removed)

    async def test_each_cycle_leaves_a_summary(
        self, queue: MountedQueue, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The summary is kept; it is logged if the cycle changed anything."""
        caplog.set_level(logging.INFO, "zndraw_joblib")
        sweeper = queue.joblib.sweeper
        await create_workers(queue, 3)
        queue.end_startup_grace()
        before = sweeper.last_good
        cycle = await queue.sweep()
        assert sweeper.last_cycles[-1] is cycle
        assert (cycle.scanned, cycle.stale, cycle.expired, cycle.counts) == (3, 0, 0, Counts())
        assert cycle.elapsed == 0
        assert sweeper.last_good == before + 60
        assert not _summaries(caplog)
        await queue.pass_time()
        await queue.sweep()
        await queue.sweep()
        held, record = _summaries(caplog)
        assert held.message.startswith("Swept: 3 silent workers kept until the next cycle (")
        assert record.message.startswith("Swept: 3 of 3 workers removed for silence: ")
        silent = re.findall(r"(\S+) \([0-9a-f]{8}, silent for [0-9]+ s\)", record.message)
        assert silent == ["unnamed"] * 3
        assert record.cycle["expired"] == 3  # type: ignore[attr-defined]


async def test_a_worker_that_cannot_be_removed_does_not_affect_readiness(
    queue: MountedQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each cycle counts and logs it; the cycle is successful if its passes finish."""

    async def raise_error(*_: Any, **__: Any) -> int:
        raise ValueError("this worker cannot be removed")

    await create_workers(queue, 1)
    queue.end_startup_grace()
    await queue.pass_time()
    before = queue.joblib.sweeper.last_good
    with monkeypatch.context() as broken:
        # An error in the code: the database has none that only this statement meets.
        broken.setattr(rules_sweep, "retire_stale", raise_error)
        cycle = await queue.sweep()
    assert cycle.errors == 1
    assert queue.joblib.sweeper.last_good > before


async def test_a_heartbeat_during_the_cycle_keeps_the_worker(queue: MountedQueue, sessions: Sessions) -> None:
    """The sweeper runs while the transaction of a heartbeat is open: the worker stays, without an error."""
    job = await queue.register()
    task = await queue.submit_and_claim(job)
    queue.end_startup_grace()
    await queue.pass_time()
    worker_id = UUID(job["worker_id"])
    found = worker_id.hex if queue.is_sqlite else worker_id
    async with sessions() as session:
        connection = await session.connection()
        if queue.is_sqlite:
            await connection.exec_driver_sql("BEGIN IMMEDIATE")
        at = f"'{queue.clock.now:%Y-%m-%d %H:%M:%S.%f}'" if queue.is_sqlite else f"'{queue.clock.now}'"
        await connection.exec_driver_sql(
            f"UPDATE joblib_worker SET last_heartbeat = {at} WHERE id = '{found}'"  # noqa: S608
        )
        sweeping = asyncio.create_task(queue.sweep())
        # The sweeper skips the locked row on PostgreSQL, and waits for the locked file on SQLite.
        await asyncio.wait([sweeping], timeout=0.3)
        await session.commit()
    cycle = await sweeping
    assert (cycle.expired, cycle.errors) == (0, 0)
    assert await queue.worker_ids() == {job["worker_id"]}
    assert await queue.get_task(task) == task


async def test_concurrent_heartbeats_and_sweeps_are_consistent(queue: MountedQueue) -> None:
    """A heartbeat is 200 and its worker stays, or it is 404 and its worker is removed."""
    ids = await create_workers(queue, 20)
    queue.end_startup_grace()
    await queue.pass_time()
    await queue.sweep()
    responses, *_ = await asyncio.gather(
        asyncio.gather(*(queue.heartbeat(worker_id) for worker_id in ids)), queue.sweep()
    )
    assert {response.status_code for response in responses} <= {200, 404}
    alive = {
        worker_id for worker_id, response in zip(ids, responses, strict=True) if response.status_code == 200
    }
    assert await queue.worker_ids() == alive


async def test_requests_of_a_removed_worker_are_rejected(queue: MountedQueue) -> None:
    """Heartbeat and claim are 404 `worker-not-found`; its late report is 409."""
    job = await queue.register()
    task = await queue.submit_and_claim(job, running=True)
    queue.end_startup_grace()
    await queue.pass_time()
    await queue.sweep()
    worker = {"worker_id": job["worker_id"]}
    for response in (
        await queue.heartbeat(job["worker_id"]),
        await queue.client.post(f"{V1}/tasks/claim", json=worker),
    ):
        assert (response.status_code, response.json()["type"]) == (404, "/v1/problems/worker-not-found")
    report = {"status": "completed", "attempt": task["attempt"], **worker}
    response = await queue.client.patch(f"{V1}/tasks/{task['id']}", json=report)
    assert (response.status_code, response.json()["reason"]) == (409, "finished")


async def test_the_sweeper_wakes_a_request_that_waits_for_a_task(queue: MountedQueue) -> None:
    """A long-poll returns after the commit of the sweeper."""
    queue.joblib.runtime.recheck.seconds = (600, 600)
    queue.joblib.settings.heartbeat_interval_seconds = 600  # with a heartbeat comes a recheck
    task = await queue.submit_and_claim(await queue.register())
    queue.end_startup_grace()
    await queue.pass_time()
    url, headers = f"{V1}/tasks/{task['id']}", {"Prefer": "wait=60"}
    waiting = asyncio.create_task(queue.client.get(url, headers=headers))
    await until(lambda: len(queue.joblib.runtime.waiters))
    await queue.sweep()
    async with asyncio.timeout(30):
        assert (await waiting).json()["status"] == "failed"
