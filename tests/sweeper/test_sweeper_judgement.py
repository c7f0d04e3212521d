"""Whom the sweeper removes, and whom not: silence alone counts, and the fault may be on its own side."""

import asyncio
import logging
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from sweeper.queue import V1, Broker, Queue
from zndraw_joblib.server.background import sweeper as sweeper_module
from zndraw_joblib.server.internal.registry import InternalRegistry
from zndraw_joblib.server.service.workers import Counts

Sessions = async_sessionmaker[AsyncSession]
# By default a worker is given up after 60 s of silence, and the sweeper looks every 30 s.
pytestmark = pytest.mark.usefixtures("wall")


async def fleet(queue: Queue, count: int) -> list[str]:
    """Make workers; return their ids."""
    return [(await queue.ask("POST", "/workers"))["id"] for _ in range(count)]


async def test_silence_ends_a_worker_and_its_tasks(queue: Queue) -> None:
    """What it held fails and is told, its links go, its orphan job is hidden; who reported stays."""
    job, alive = await queue.register(), await queue.register("Scale")
    held = [await queue.hold(job), await queue.hold(job, running=True)]
    kept = await queue.hold(alive)
    queue.watch()
    await queue.silence(spare=[alive["worker_id"]])
    cycle = await queue.sweep()
    assert (cycle.scanned, cycle.stale, cycle.expired, cycle.errors) == (2, 1, 1, 0)
    assert await queue.workers() == {alive["worker_id"]}
    for task in held:
        after = await queue.read(task)
        assert (after["status"], after["error"]) == ("failed", "Worker disconnected")
        assert queue.told.statuses(task)[-1] == "failed"
    assert (await queue.read(kept))["status"] == "claimed"
    assert [await queue.is_shown(which) for which in (job, alive)] == [False, True]


async def test_an_idle_dead_worker_goes_too(queue: Queue) -> None:
    """One that serves nothing and holds nothing."""
    await fleet(queue, 1)
    queue.watch()
    await queue.silence()
    assert (await queue.sweep()).expired == 1
    assert await queue.workers() == set()


async def test_the_age_of_a_task_counts_for_nothing(queue: Queue) -> None:
    """A worker that reports may run one task for a year."""
    job = await queue.register()
    task = await queue.hold(job, running=True)
    queue.watch()
    await queue.silence(365 * 86400, spare=[job["worker_id"]])
    cycle = await queue.sweep()
    assert (cycle.expired, cycle.counts.failed) == (0, 0)
    assert await queue.read(task) == task
    await queue.report(task, "completed")


async def test_the_end_is_neither_early_nor_late(queue: Queue) -> None:
    """At the timeout a worker lives, a moment later it does not."""
    timeout = queue.joblib.settings.worker_timeout_seconds
    await fleet(queue, 1)
    queue.watch()
    queue.clock.advance(timeout)
    assert (await queue.sweep()).expired == 0
    queue.clock.advance(1e-6)
    assert (await queue.sweep()).expired == 1


async def test_every_request_of_a_worker_is_a_sign_of_life(queue: Queue) -> None:
    """Heartbeat, claim and a report that names the worker: each saves it."""
    jobs = [await queue.register(name) for name in ("A", "B", "C", "D")]
    ids = [job["worker_id"] for job in jobs]
    held = await queue.hold(jobs[2])
    queue.clock.advance(50)
    # When it last noted a sign of life the server knows by the clock on the wall, which did not move.
    queue.joblib.runtime._seen.clear()
    await queue.beat(ids[0])
    await queue.claim(ids[1])
    answer = await queue.client.patch(
        f"{V1}/tasks/{held['id']}", json={"status": "running", "worker_id": ids[2], "attempt": 1}
    )
    assert answer.status_code == 200
    last = {w["id"]: w["last_heartbeat"] for w in (await queue.ask("GET", "/workers"))["items"]}
    assert last[ids[0]] == last[ids[1]] == last[ids[2]] > last[ids[3]]


class TestOwnAbsence:
    """Who was not there to hear it cannot say that somebody was silent."""

    @pytest.fixture(autouse=True)
    async def dead(self, queue: Queue, wall: None) -> None:
        """Make two workers that have been silent for long."""
        await fleet(queue, 2)
        await queue.silence()

    async def test_after_a_start_nobody_is_judged_before_a_full_timeout(self, queue: Queue) -> None:
        """Then everybody is who still has not reported."""
        for seconds in (0, 30, 29):
            queue.wall.advance(seconds)
            cycle = await queue.sweep()
            assert (cycle.stale, cycle.expired) == (2, 0)
        saved = (await queue.workers()).pop()
        assert (await queue.beat(saved)).status_code == 200
        queue.wall.advance(1)
        assert (await queue.sweep()).expired == 1
        assert await queue.workers() == {saved}

    async def test_after_a_late_tick_neither(self, queue: Queue) -> None:
        """A tick that comes later than two intervals gives everybody a full timeout anew."""
        for seconds, expired in ((61, 0), (30, 0), (29, 0), (1, 2)):
            queue.wall.advance(seconds)
            assert (await queue.sweep()).expired == expired

    async def test_after_an_outage_of_the_database_neither(self, queue: Queue) -> None:
        """While nothing could be written no heartbeat could either: that silence is nobody's fault."""
        queue.watch()
        await queue.execute("ALTER TABLE joblib_worker RENAME TO joblib_worker_away")
        for _ in range(2):
            assert (await queue.sweep()).errors
        await queue.execute("ALTER TABLE joblib_worker_away RENAME TO joblib_worker")
        cycle = await queue.sweep()
        assert (cycle.stale, cycle.expired, cycle.errors) == (2, 0, 0)
        queue.watch()
        assert (await queue.sweep()).expired == 2

    async def test_an_error_gives_no_right_to_judge(self, queue: Queue) -> None:
        """Whatever fails in a cycle that may not judge: it removes nobody."""
        job = await queue.register()
        task = await queue.hold(job)
        await poison(queue, "joblib_task", "UPDATE", task["id"])
        await forget(queue, job["worker_id"])
        cycle = await queue.sweep()
        assert (cycle.stale, cycle.expired) == (2, 0)
        assert len(await queue.workers()) == 2


class TestBrake:
    """When most would go at once, the fault is more likely on this side: look again before acting."""

    @pytest.fixture(autouse=True)
    def watched(self, queue: Queue, wall: None) -> None:
        """The sweeper has been there long enough."""
        queue.watch()

    async def test_many_are_held_for_one_cycle_and_then_go(
        self, queue: Queue, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Five of nine: one cycle does nothing but say so, the next one acts."""
        ids = await fleet(queue, 9)
        await queue.silence(spare=ids[5:])
        cycle = await queue.sweep()
        assert (cycle.stale, cycle.expired, cycle.is_held_back, cycle.errors) == (5, 0, True, 0)
        assert await queue.workers() == set(ids)
        assert any(r.levelno == logging.WARNING and "5 of 9" in r.message for r in caplog.records)
        cycle = await queue.sweep()
        assert (cycle.expired, cycle.is_held_back) == (5, False)
        assert await queue.workers() == set(ids[5:])

    async def test_those_that_report_meanwhile_are_saved(self, queue: Queue) -> None:
        """That is what the cycle is for."""
        ids = await fleet(queue, 6)
        await queue.silence()
        assert (await queue.sweep()).is_held_back
        for worker_id in ids[1:]:
            await queue.beat(worker_id)
        assert (await queue.sweep()).expired == 1
        assert await queue.workers() == set(ids[1:])

    async def test_a_second_wave_is_held_anew(self, queue: Queue) -> None:
        """After it has acted, the brake is there for the next time."""
        for _ in range(2):
            await fleet(queue, 6)
            await queue.silence()
            assert (await queue.sweep()).is_held_back
            assert (await queue.sweep()).expired == 6

    @pytest.mark.parametrize(("dead", "alive"), [(4, 0), (5, 5)], ids=["fewer than five", "half"])
    async def test_few_go_at_once(self, queue: Queue, dead: int, alive: int) -> None:
        """Fewer than five, or no more than half: no reason to wait."""
        ids = await fleet(queue, dead + alive)
        await queue.silence(spare=ids[dead:])
        assert (await queue.sweep()).expired == dead

    async def test_an_error_does_not_release_the_brake(self, queue: Queue) -> None:
        """Whatever fails in a cycle that holds back: it removes nobody."""
        await fleet(queue, 6)
        job = await queue.register()
        task = await queue.hold(job)
        await poison(queue, "joblib_task", "UPDATE", task["id"])
        await forget(queue, job["worker_id"])
        await queue.silence()
        assert (await queue.sweep()).expired == 0
        assert len(await queue.workers()) == 6


class TestClocks:
    """The database's clock alone counts, and what lies in its future is a fault of the data."""

    @pytest.mark.parametrize("ahead", [4, 6, 3600, 10**8])
    async def test_nobody_is_immortal(self, queue: Queue, ahead: float) -> None:
        """A heartbeat up to 5 s ahead is jitter and stays; beyond that it is set to now, and then counts."""
        [worker_id] = await fleet(queue, 1)
        queue.watch()
        queue.clock.advance(-ahead)
        assert (await queue.sweep()).expired == 0
        [worker] = (await queue.ask("GET", "/workers"))["items"]
        is_mended = worker["last_heartbeat"].startswith(queue.clock.now.isoformat()[:19])
        assert is_mended == (ahead > 5)
        queue.clock.advance(min(ahead, 5) + 61)
        assert (await queue.sweep()).expired == 1
        assert (await queue.beat(worker_id)).status_code == 404


async def poison(queue: Queue, table: str, what: str, row: str) -> None:
    """Let the database refuse to change one row, whoever asks."""
    if queue.is_sqlite:
        await queue.execute(
            f"CREATE TRIGGER poison BEFORE {what} ON {table} WHEN OLD.id = '{UUID(row).hex}' "
            "BEGIN SELECT RAISE(ABORT, 'this row is poison'); END"
        )
        return
    await queue.execute(
        "CREATE FUNCTION poison() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'this row is poison'; END $$",
        f"CREATE TRIGGER poison BEFORE {what} ON {table} FOR EACH ROW WHEN (OLD.id = '{row}') "
        "EXECUTE FUNCTION poison()",
    )


async def forget(queue: Queue, worker_id: str) -> None:
    """Remove a worker behind the queue's back: its tasks stay as they are."""
    found = UUID(worker_id).hex if queue.is_sqlite else worker_id
    await queue.execute(
        f"DELETE FROM joblib_worker_job WHERE worker_id = '{found}'",  # noqa: S608 - an id of our own
        f"DELETE FROM joblib_worker WHERE id = '{found}'",  # noqa: S608
    )


class TestFaults:
    """One fault stops one thing."""

    async def test_a_worker_that_cannot_be_removed_stops_no_other(self, queue: Queue) -> None:
        """The others go in the same cycle; it is tried again in each, and goes when it can."""
        jobs = [await queue.register(name) for name in ("A", "B", "C", "D")]
        tasks = [await queue.hold(job) for job in jobs]
        await poison(queue, "joblib_worker", "DELETE", jobs[1]["worker_id"])
        queue.watch()
        await queue.silence()
        for expired in (3, 0):
            cycle = await queue.sweep()
            assert (cycle.expired, cycle.errors) == (expired, 1)
            assert await queue.workers() == {jobs[1]["worker_id"]}
        states = [(await queue.read(task))["status"] for task in tasks]
        assert states == ["failed", "claimed", "failed", "failed"]
        await queue.execute("DROP TRIGGER poison" + ("" if queue.is_sqlite else " ON joblib_worker"))
        assert (await queue.sweep()).expired == 1
        assert (await queue.read(tasks[1]))["status"] == "failed"

    async def test_nor_does_it_stop_the_other_passes(self, queue: Queue) -> None:
        """Tasks without a worker and stuck internal ones are found all the same."""
        bad, lost = await queue.register(), await queue.register("Lost")
        task = await queue.hold(lost)
        await forget(queue, lost["worker_id"])
        await poison(queue, "joblib_worker", "DELETE", bad["worker_id"])
        queue.watch()
        await queue.silence()
        cycle = await queue.sweep()
        assert (cycle.errors, cycle.counts.failed) == (1, 1)
        assert (await queue.read(task))["error"] == "Worker disconnected"

    async def test_a_task_that_cannot_be_failed_keeps_no_worker_alive(self, queue: Queue) -> None:
        """However often that pass fails: who is silent for long enough goes."""
        lost = await queue.register()
        task = await queue.hold(lost)
        await poison(queue, "joblib_task", "UPDATE", task["id"])
        await forget(queue, lost["worker_id"])
        await fleet(queue, 2)
        await queue.silence()
        for _ in range(6):
            await queue.sweep()
            queue.wall.advance(30)
        assert await queue.workers() == set()

    async def test_a_held_task_without_a_worker_fails(self, queue: Queue) -> None:
        """Found by a pass of its own, at once: no sweeper need have watched for that. Others' stay."""
        job, other = await queue.register(), await queue.register()
        lost = [await queue.hold(job), await queue.hold(job, running=True)]
        kept = await queue.hold(other, other["worker_id"])
        pending = await queue.submit(job)
        await forget(queue, job["worker_id"])
        cycle = await queue.sweep()
        assert (cycle.counts.failed, cycle.expired) == (2, 0)
        for task in lost:
            after = await queue.read(task)
            assert (after["status"], after["error"]) == ("failed", "Worker disconnected")
            assert queue.told.statuses(task)[-1] == "failed"
        assert [(await queue.read(task))["status"] for task in (kept, pending)] == ["claimed", "pending"]

    async def test_an_internal_task_has_no_worker_and_needs_none(self, queue: Queue) -> None:
        """Claimed or running, it is its executor's, and no fault of anybody before its own time is over."""
        queue.joblib.runtime.dispatcher.registry = lambda: InternalRegistry(
            {"@internal:modifiers:Rotate": Broker()}
        )
        job = await queue.register(room="@internal")
        claimed, other = await queue.submit(job), await queue.submit(job)
        running = await queue.report(other, "running")
        queue.watch()
        await queue.silence(3600)
        cycle = await queue.sweep()
        assert cycle.counts == Counts()
        assert [await queue.read(claimed), await queue.read(running)] == [claimed, running]
        queue.clock.advance(1)
        assert (await queue.sweep()).counts.failed == 2
        assert (await queue.read(running))["error"] == "Internal worker timeout"

    @pytest.mark.parametrize("kind", ["postgresql"])
    async def test_a_statement_that_hangs_is_given_up(
        self, queue: Queue, sessions: Sessions, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A pass has its time; then the cycle goes on, counts an error, and the next ones do the work.

        SQLite never hangs: it gives up by itself, after its busy timeout.
        """
        await fleet(queue, 1)
        queue.watch()
        await queue.silence()
        async with sessions() as session:
            connection = await session.connection()
            await connection.exec_driver_sql("LOCK TABLE joblib_worker IN ACCESS EXCLUSIVE MODE")
            with monkeypatch.context() as hurried:
                hurried.setattr(sweeper_module, "_PASS_SECONDS", 0.3)
                async with asyncio.timeout(30):
                    cycle = await queue.sweep()
            assert cycle.errors
            await session.rollback()
        await queue.sweep()
        queue.watch()
        await queue.sweep()
        assert await queue.workers() == set()

    async def test_each_cycle_leaves_a_summary(self, queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
        """Scanned, stale, expired, stuck, abandoned, errors, elapsed: kept, and logged where it acted."""
        caplog.set_level(logging.INFO, "zndraw_joblib")
        sweeper = queue.joblib.sweeper
        await fleet(queue, 3)
        queue.watch()
        before = sweeper.last_good
        cycle = await queue.sweep()
        assert sweeper.last_cycles[-1] is cycle
        assert (cycle.scanned, cycle.stale, cycle.expired, cycle.counts) == (3, 0, 0, Counts())
        assert cycle.elapsed == 0
        assert sweeper.last_good == before + 60
        assert not [record for record in caplog.records if "swept" in record.message]
        await queue.silence()
        await queue.sweep()
        [record] = [record for record in caplog.records if "swept" in record.message]
        assert "expired=3" in record.message


async def test_one_worker_that_cannot_be_retired_makes_the_server_no_less_ready(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is counted and logged in every cycle; a cycle that does its rounds is a good one all the same."""

    async def refuse(*_: Any, **__: Any) -> int:
        raise ValueError("this one cannot be retired")

    await fleet(queue, 1)
    queue.watch()
    await queue.silence()
    before = queue.joblib.sweeper.last_good
    with monkeypatch.context() as broken:
        broken.setattr(sweeper_module.sweep, "retire_stale", refuse)
        cycle = await queue.sweep()
    assert cycle.errors == 1
    assert queue.joblib.sweeper.last_good > before


async def test_a_beat_that_arrives_in_between_saves_the_worker(queue: Queue, sessions: Sessions) -> None:
    """It was judged while its heartbeat was on its way: what commits first counts, and nothing breaks."""
    job = await queue.register()
    task = await queue.hold(job)
    queue.watch()
    await queue.silence()
    worker_id = UUID(job["worker_id"])
    found = worker_id.hex if queue.is_sqlite else worker_id
    async with sessions() as session:
        connection = await session.connection()
        if queue.is_sqlite:
            await connection.exec_driver_sql("BEGIN IMMEDIATE")
        at = f"'{queue.clock.now:%Y-%m-%d %H:%M:%S.%f}'" if queue.is_sqlite else f"'{queue.clock.now}'"
        await connection.exec_driver_sql(
            f"UPDATE joblib_worker SET last_heartbeat = {at} WHERE id = '{found}'"  # noqa: S608 - our own
        )
        sweeping = asyncio.create_task(queue.sweep())
        # The sweeper passes over the locked row, or stands before the locked file.
        await asyncio.wait([sweeping], timeout=0.3)
        await session.commit()
    cycle = await sweeping
    assert (cycle.expired, cycle.errors) == (0, 0)
    assert await queue.workers() == {job["worker_id"]}
    assert await queue.read(task) == task


async def test_heartbeats_and_sweeps_side_by_side(queue: Queue) -> None:
    """Whoever gets there first: a heartbeat is 200 and its worker lives, or it is 404 and it is gone."""
    ids = await fleet(queue, 20)
    queue.watch()
    await queue.silence()
    await queue.sweep()
    answers, *_ = await asyncio.gather(
        asyncio.gather(*(queue.beat(worker_id) for worker_id in ids)), queue.sweep()
    )
    assert {answer.status_code for answer in answers} <= {200, 404}
    alive = {worker_id for worker_id, answer in zip(ids, answers, strict=True) if answer.status_code == 200}
    assert await queue.workers() == alive


async def test_a_removed_worker_learns_it_at_its_next_call(queue: Queue) -> None:
    """Heartbeat and claim are 404 `worker-not-found`, and its late report is refused."""
    job = await queue.register()
    task = await queue.hold(job, running=True)
    queue.watch()
    await queue.silence()
    await queue.sweep()
    worker = {"worker_id": job["worker_id"]}
    for answer in (
        await queue.beat(job["worker_id"]),
        await queue.client.post(f"{V1}/tasks/claim", json=worker),
    ):
        assert (answer.status_code, answer.json()["type"]) == (404, "/v1/problems/worker-not-found")
    report = {"status": "completed", "attempt": task["attempt"], **worker}
    answer = await queue.client.patch(f"{V1}/tasks/{task['id']}", json=report)
    assert (answer.status_code, answer.json()["reason"]) == (409, "finished")


async def test_who_waits_for_a_task_hears_from_the_sweeper(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long-poll is woken by the sweeper's commit as by any other."""
    monkeypatch.setattr("zndraw_joblib.server.runtime._RECHECK_FIRST", 600)
    task = await queue.hold(await queue.register())
    queue.watch()
    await queue.silence()
    url, headers = f"{V1}/tasks/{task['id']}", {"Prefer": "wait=30"}
    waiting = asyncio.create_task(queue.client.get(url, headers=headers))
    async with asyncio.timeout(10):
        while not len(queue.joblib.runtime.waiters):  # noqa: ASYNC110 - there is no event to await
            await asyncio.sleep(0)
        await queue.sweep()
        assert (await waiting).json()["status"] == "failed"
