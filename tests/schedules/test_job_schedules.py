"""A schedule submits one task for each due time, with any number of servers, and whatever stops one."""

import asyncio
from datetime import timedelta

import pytest
from databases import OpenDatabase, every_kind, on_postgresql
from recovery.test_internal_dispatch import serve
from replica import ADMIN, OWNER, SUBMITTER, InternalExecutor, ManualClock, OpenReplica, Replica, internal
from sqlalchemy import text
from waiting import until

from zndraw_joblib.server.background.schedules import Schedules
from zndraw_joblib.server.process.ports import Page
from zndraw_joblib.server.queue import rules_jobs, rules_schedules, rules_tasks, rules_workers
from zndraw_joblib.wire.messages import JobResponse, PaginatedResponse, TaskResponse, WorkerInfo
from zndraw_joblib.wire.names import parse_job_name
from zndraw_joblib.wire.problems import Conflict, InvalidRequest, JobNotFound, ScheduleNotFound
from zndraw_joblib.wire.schedules import ScheduleTimes
from zndraw_joblib.wire.statuses import TaskStatus

MINUTE = timedelta(minutes=1)


async def page(replica: Replica, room: str) -> PaginatedResponse[TaskResponse]:
    """Return the newest tasks of a room."""
    return await replica.runtime.database.read(rules_tasks.page, room, None, part=Page(500, 0))


async def tasks(replica: Replica, room: str = "lab") -> list[TaskResponse]:
    """Return the tasks of a room, oldest first."""
    return (await page(replica, room)).items[::-1]


async def end(replica: Replica, job: JobResponse, count: int = 1) -> None:
    """Complete the oldest tasks."""
    for _ in range(count):
        task = await replica.claim_task(job.worker_id)
        await replica.report(task.id, "running")
        await replica.report(task.id, "completed")


@every_kind
async def test_each_due_time_has_one_task(timed: Replica, clock: ManualClock) -> None:
    """It is the owner's, and has the payload, the options, the schedule and the due time."""
    job = await timed.register(schema={"type": "object", "required": ["k"]})
    schedule = await timed.put_schedule(
        job, every_seconds=60, payload={"k": 1}, priority=3, max_attempts=2, expires_in_seconds=600
    )
    start = clock.now
    assert (schedule.next_due_at, schedule.created_by) == (start + MINUTE, SUBMITTER.id)
    assert await timed.submit_due() == pytest.approx(15)
    assert await tasks(timed) == []
    for number in range(1, 4):
        clock.now = start + number * MINUTE
        await timed.submit_due()
        await timed.submit_due()
        assert [task.due_at for task in await tasks(timed)] == [
            start + n * MINUTE for n in range(1, number + 1)
        ]
    task = (await tasks(timed))[-1]
    assert (task.schedule, task.created_by, task.payload, task.priority) == (
        "nightly",
        SUBMITTER.id,
        {"k": 1},
        3,
    )
    assert (task.status, task.expires_at) == (TaskStatus.PENDING, clock.now + 10 * MINUTE)
    schedule = await timed.schedule()
    assert (schedule.last_due_at, schedule.last_task_id) == (clock.now, task.id)
    assert (schedule.next_due_at, schedule.error) == (clock.now + MINUTE, None)
    claimed = await timed.claim_task(job.worker_id)
    assert (claimed.schedule, claimed.due_at) == ("nightly", start + MINUTE)
    await timed.report(claimed.id, "running")
    reported = await timed.report(claimed.id, "completed")
    assert (reported.schedule, reported.due_at) == ("nightly", start + MINUTE)


@every_kind
async def test_servers_submit_a_due_time_once(
    timed: Replica, clock: ManualClock, new_database: OpenDatabase, open_replica: OpenReplica
) -> None:
    """Two servers that look at the same moment, many times."""
    other = Replica(new_database(clock), timed.engine)
    job = await timed.register()
    for number in range(5):
        await timed.put_schedule(job, f"n{number}", every_seconds=60)
    for _ in range(10):
        clock.advance(60)
        await asyncio.gather(timed.submit_due(), other.submit_due(), timed.submit_due())
    await asyncio.gather(timed.submit_due(), other.submit_due())
    due = [(task.schedule, task.due_at) for task in await tasks(timed)]
    assert len(due) == len(set(due)) == 50
    await other.runtime.finish()


async def test_a_clock_that_goes_back_repeats_nothing(timed: Replica, clock: ManualClock) -> None:
    """Nor does it after the same schedule was deleted and created again."""
    job = await timed.register()
    await timed.put_schedule(job, every_seconds=3600)
    clock.advance(3600)
    await timed.submit_due()
    clock.advance(-3600)
    await timed.submit_due()
    assert len(await tasks(timed)) == 1
    await timed.runtime.write(rules_schedules.delete, "lab", "nightly")
    await timed.put_schedule(job, every_seconds=3600)
    clock.advance(3600)
    await timed.submit_due()
    assert len(await tasks(timed)) == 1
    assert (await timed.schedule()).next_due_at == clock.now + timedelta(hours=1)


async def test_overlaps(timed: Replica, clock: ManualClock, subtests: pytest.Subtests) -> None:
    """`skip` has one task that has not ended, `queue_one` one more that waits, `allow` any number."""
    for overlap, counts in (("allow", [1, 2, 3, 4]), ("skip", [1, 1, 1, 1]), ("queue_one", [1, 2, 2, 2])):
        with subtests.test(overlap):
            job = await timed.register(f"Rotate-{overlap}")
            await timed.put_schedule(job, "s", overlap, every_seconds=60, overlap=overlap)
            for index, count in enumerate(counts):
                clock.advance(60)
                await timed.submit_due()
                assert len(await tasks(timed, overlap)) == count
                if index == 0:
                    held = await timed.claim_task(job.worker_id)
            schedule = await timed.schedule("s", overlap)
            assert (schedule.error, schedule.next_due_at) == (None, clock.now + MINUTE)
            await timed.report(held.id, "running")
            await timed.report(held.id, "completed")
            clock.advance(60)
            await timed.submit_due()
            ended = len(await tasks(timed, overlap)) - counts[-1]
            assert ended == (0 if overlap == "queue_one" else 1)


async def test_a_full_share_costs_only_the_schedules_beyond_it(timed: Replica, clock: ManualClock) -> None:
    """Each schedule takes its own places, and those that `overlap` skips take none."""
    job = await timed.register()
    timed.runtime.settings.max_pending_tasks, timed.runtime.settings.max_share_per_user = 4, 0.5
    await timed.put_schedule(job, "skipped", every_seconds=60, overlap="skip")
    clock.advance(60)
    await timed.submit_due()
    for name in ("a", "b"):
        await timed.put_schedule(job, name, every_seconds=60)
    clock.advance(60)
    await timed.submit_due()
    assert [task.schedule for task in await tasks(timed)] == ["skipped", "a"]
    assert [(await timed.schedule(name)).error is None for name in ("skipped", "a", "b")] == [
        True,
        True,
        False,
    ]


async def test_a_retried_task_overlaps_too(timed: Replica, clock: ManualClock) -> None:
    """A task that waits for its next attempt has not ended."""
    job = await timed.register(
        max_attempts=3, retry_on=["error"], backoff={"base_seconds": 1000, "cap_seconds": 9999}
    )
    await timed.put_schedule(job, every_seconds=60, overlap="skip")
    clock.advance(60)
    await timed.submit_due()
    task = await timed.claim_task(job.worker_id)
    await timed.report(task.id, "running")
    assert (await timed.report(task.id, "failed")).status == TaskStatus.PENDING
    clock.advance(60)
    await timed.submit_due()
    assert len(await tasks(timed)) == 1


async def test_pauses(timed: Replica, clock: ManualClock, subtests: pytest.Subtests) -> None:
    """What was due in a pause follows `catch_up` after it."""
    job = await timed.register()
    for catch_up, count in (("none", 1), ("last", 1), ("all", 10)):
        with subtests.test(catch_up):
            await timed.put_schedule(job, "s", catch_up, every_seconds=60, catch_up=catch_up, paused=True)
            for _ in range(10):
                clock.advance(60)
                await timed.submit_due()
            assert await tasks(timed, catch_up) == []
            # A registration or an update without `paused` keeps the pause.
            assert (await timed.put_schedule(job, "s", catch_up, every_seconds=60, catch_up=catch_up)).paused
            await timed.runtime.write(rules_schedules.pause, catch_up, "s", paused=False)
            await timed.submit_due()
            assert [task.due_at for task in await tasks(timed, catch_up)][-1] == clock.now
            assert len(await tasks(timed, catch_up)) == count


async def test_jitter(timed: Replica, clock: ManualClock) -> None:
    """A task is submitted at its due time, and enters its queue within the jitter."""
    job = await timed.register()
    await timed.put_schedule(job, every_seconds=3600, jitter_seconds=600)
    for _ in range(20):
        clock.advance(3600)
        await timed.submit_due()
    delays = [task.run_at - task.due_at for task in await tasks(timed) if task.run_at and task.due_at]
    assert len(delays) == 20
    assert all(timedelta() < delay <= timedelta(seconds=600) for delay in delays)
    assert len(set(delays)) == 20


async def test_a_task_that_cannot_be_submitted(timed: Replica, clock: ManualClock) -> None:
    """The schedule says why, and goes on; the next due time that can be is submitted."""
    job = await timed.register(schema={"type": "object"})
    await timed.put_schedule(job, every_seconds=60)
    await timed.runtime.write(rules_workers.remove, caller=OWNER, worker_id=job.worker_id)
    clock.advance(60)
    await timed.submit_due()
    schedule = await timed.schedule()
    assert (schedule.error or "").startswith("job-not-found: ")
    overview = await timed.overview()
    [finding] = [finding for finding in overview.findings if finding.code == "schedule-failing"]
    assert (finding.room, finding.job, finding.since) == ("lab", job.full_name, schedule.error_at)
    assert "job-not-found" in finding.detail
    assert schedule.next_due_at == clock.now + MINUTE
    job = await timed.register(schema={"type": "object", "required": ["k"]})
    clock.advance(60)
    await timed.submit_due()
    schedule = await timed.schedule()
    assert (schedule.error or "").startswith("invalid-payload: ")
    assert (schedule.error_at, schedule.next_due_at) == (clock.now, clock.now + MINUTE)
    assert await tasks(timed) == []
    await timed.put_schedule(job, every_seconds=60, payload={"k": 1})
    clock.advance(60)
    await timed.submit_due()
    assert (await timed.schedule()).error is None
    assert len(await tasks(timed)) == 1


async def test_due_tasks_have_requirements(timed: Replica, clock: ManualClock) -> None:
    """They go to a worker that meets them. A schedule may only narrow what its job requires, also later."""
    job = await timed.register(
        about=WorkerInfo(labels={"gpu": "t4"}), requires={"gpu": {"in": ["t4", "a100"]}}
    )
    other = await timed.register(about=WorkerInfo(labels={"gpu": "a100"}))
    with pytest.raises(InvalidRequest, match=r"requires\.gpu"):
        await timed.put_schedule(job, every_seconds=60, requires={"gpu": "h100"})
    schedule = await timed.put_schedule(job, every_seconds=60, requires={"gpu": "a100"})
    assert schedule.requires == {"gpu": "a100"}
    for _ in range(2):
        clock.advance(60)
        await timed.submit_due()
        assert await timed.claim(job.worker_id) is None
        assert (await timed.claim_task(other.worker_id)).requires == {"gpu": "a100"}
    await timed.register(about=WorkerInfo(labels={"gpu": "h100"}), requires={"gpu": "h100"})
    clock.advance(60)
    await timed.submit_due()
    assert "requires.gpu" in ((await timed.schedule()).error or "")


async def test_due_tasks_go_first_to_preferred_workers_that_wait(timed: Replica, clock: ManualClock) -> None:
    """Also if another worker has waited for longer, which gets the next one."""
    cold, warm = [await timed.register(about=WorkerInfo(labels={"host": host})) for host in ("n1", "n2")]
    schedule = await timed.put_schedule(cold, every_seconds=60, prefer={"host": "n2"})
    assert schedule.prefer == {"host": "n2"}
    claims = []
    for number, job in enumerate((cold, warm)):
        claims.append(asyncio.create_task(timed.claim(job.worker_id, wait=30)))
        await until(lambda number=number: timed.runtime.waiters.waiting_count > number)
    for claim in (claims[1], claims[0]):
        assert not claim.done()
        clock.advance(60)
        await timed.submit_due()
        assert (await asyncio.wait_for(claim, 20)) is not None


async def test_a_full_queue_delays_due_times(timed: Replica, clock: ManualClock) -> None:
    """Beyond the limit of all users they wait until there is room."""
    job = await timed.register()
    await timed.put_schedule(job, every_seconds=60)
    waiting = await timed.submit(job, by=OWNER)
    timed.runtime.settings.max_pending_tasks = 1
    timed.runtime.stored.pending_tasks.pauses = 0, 0
    due = clock.now + MINUTE
    clock.advance(60)
    await timed.submit_due()
    schedule = await timed.schedule()
    assert (schedule.next_due_at, schedule.error) == (due, None)
    await timed.report(waiting.id, TaskStatus.CANCELLED, by=OWNER)

    async def is_submitted() -> bool:
        await Schedules(timed.runtime, timed.dispatcher.configure).submit_due()
        return [task.due_at for task in await tasks(timed)] == [None, due]

    await until(is_submitted)


@on_postgresql
async def test_a_job_that_is_locked_stops_no_other(
    timed: Replica, clock: ManualClock, new_database: OpenDatabase
) -> None:
    """Schedules of other jobs are submitted; those of the locked one follow once it is free."""
    locked, free = await timed.register("Locked"), await timed.register("Free")
    await timed.put_schedule(locked, "locked", every_seconds=60)
    await timed.put_schedule(free, "free", every_seconds=60)
    clock.advance(60)
    timed.runtime.settings.database_lock_timeout_seconds = 0.2
    async with timed.engine.begin() as connection:
        await connection.execute(text("SELECT id FROM joblib_job WHERE name = 'Locked' FOR UPDATE"))
        await timed.submit_due()
        assert [task.schedule for task in await tasks(timed)] == ["free"]
    other = Replica(new_database(clock), timed.engine)
    await other.submit_due()
    assert [task.schedule for task in await tasks(timed)] == ["free", "locked"]
    await other.runtime.finish()


async def put_internal(replica: Replica) -> InternalExecutor:
    """Create a schedule of an internal job, which the server has forgotten; return the job's executor."""
    executor = await serve(replica)
    await replica.put_schedule(str(internal()), every_seconds=60)
    replica.registry = None
    return executor


@every_kind
async def test_an_internal_job_waits_for_its_executor(timed: Replica, clock: ManualClock) -> None:
    """A server without one leaves its due times to others, and stops no other schedule."""
    executor = await put_internal(timed)
    await timed.put_schedule(await timed.register(), "remote", every_seconds=60)
    due = clock.now + MINUTE
    clock.advance(61)
    await timed.submit_due()
    assert [task.schedule for task in await tasks(timed)] == ["remote"]
    schedule = await timed.schedule()
    assert (schedule.next_due_at, schedule.error) == (due, None)
    await serve(timed, executor=executor)
    await Schedules(timed.runtime, timed.dispatcher.configure).submit_due()
    assert [(task.schedule, task.due_at) for task in await tasks(timed)][1:] == [("nightly", due)]
    await timed.dispatcher.dispatch()
    assert len(executor.calls) == 1


async def test_an_internal_job_without_an_executor(timed: Replica, clock: ManualClock) -> None:
    """After a minute its schedule says so, and goes on."""
    await put_internal(timed)
    clock.advance(120)
    await timed.submit_due()
    schedule = await timed.schedule()
    assert (schedule.error or "").startswith("internal-job-not-configured: ")
    assert schedule.next_due_at == clock.now + MINUTE


async def test_a_time_zone_that_a_server_does_not_have(timed: Replica, clock: ManualClock) -> None:
    """The schedule waits for a server that has it, and stops no other."""
    job = await timed.register()
    await timed.put_schedule(job, cron="* * * * *", time_zone="Europe/Berlin")
    await timed.put_schedule(job, "other", every_seconds=60)
    due = (await timed.schedule()).next_due_at
    async with timed.engine.begin() as connection:
        await connection.execute(
            text("UPDATE joblib_schedule SET spec = replace(spec, 'Europe/Berlin', 'Europe/Nowhere')")
        )
    clock.advance(61)
    await timed.submit_due()
    assert [task.schedule for task in await tasks(timed)] == ["other"]
    assert (await timed.schedule()).next_due_at == due


async def test_the_same_times_keep_the_next_one(timed: Replica, clock: ManualClock) -> None:
    """A worker that restarts registers its schedule again; other times begin anew."""
    job = await timed.register()
    first = await timed.put_schedule(job, every_seconds=3600)
    clock.advance(1800)
    again = await timed.put_schedule(job, every_seconds=3600, payload={"new": True})
    assert (again.next_due_at, again.payload) == (first.next_due_at, {"new": True})
    other = await timed.put_schedule(job, every_seconds=60)
    assert other.next_due_at == clock.now + MINUTE
    assert other.created_at == first.created_at


async def test_what_does_not_exist(timed: Replica, clock: ManualClock) -> None:
    """A schedule needs its job; reads, pauses and deletions need the schedule."""
    job = await timed.register()
    with pytest.raises(JobNotFound, match="before its schedule"):
        await timed.put_schedule(
            job.model_copy(update={"full_name": "@global:modifiers:Other"}), every_seconds=60
        )
    for work in (rules_schedules.get, rules_schedules.delete):
        with pytest.raises(ScheduleNotFound, match="'lab' has no schedule 'x'"):
            await timed.runtime.write(work, "lab", "x")
    with pytest.raises(ScheduleNotFound):
        await timed.runtime.write(rules_schedules.pause, "lab", "x", paused=True)


async def test_a_room_has_a_limited_number(timed: Replica, clock: ManualClock) -> None:
    """Beyond it a new one is a conflict; those that exist can be replaced."""
    job = await timed.register()
    name = parse_job_name(job.full_name)
    times = (await timed.put_schedule(job, "first", every_seconds=60)).model_copy()

    def item(schedule: str) -> rules_schedules.NewSchedule:
        body = ScheduleTimes(every_seconds=times.every_seconds)
        return rules_schedules.NewSchedule(ADMIN, "lab", schedule, name, body, max_schedules=1)

    with pytest.raises(Conflict, match="max_schedules_per_room"):
        await timed.runtime.write(rules_schedules.put, item("second"))
    _, is_new = await timed.runtime.write(rules_schedules.put, item("first"))
    assert not is_new


async def test_many_schedules_are_due_at_once(timed: Replica, clock: ManualClock) -> None:
    """More than one transaction takes; each gets its task."""
    job = await timed.register()
    for number in range(250):
        await timed.put_schedule(job, f"n{number}", "many", every_seconds=60)
    clock.advance(60)
    await timed.submit_due()
    assert (await page(timed, "many")).total == 250


async def test_a_paused_job_lets_its_tasks_wait(timed: Replica, clock: ManualClock) -> None:
    """Due times are submitted while the job is paused."""
    job = await timed.register()
    await timed.put_schedule(job, every_seconds=60)
    await timed.runtime.write(rules_jobs.pause, parse_job_name(job.full_name), paused=True)
    clock.advance(60)
    await timed.submit_due()
    assert [task.status for task in await tasks(timed)] == [TaskStatus.PENDING]
