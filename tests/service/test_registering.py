"""Registration of jobs; a job without workers and pending tasks is soft-deleted, and can be restored."""

import asyncio
from dataclasses import replace
from functools import partial
from itertools import product
from uuid import uuid4

import pytest
from replica import ADMIN, OWNER, STRANGER, SUBMITTER, Replica, internal

from zndraw_joblib.server.db.tables import Job, Worker, WorkerJobLink
from zndraw_joblib.server.process.ports import Page
from zndraw_joblib.server.queue import rules_jobs, rules_tasks
from zndraw_joblib.wire.events import Emission, JobsInvalidate, room_of
from zndraw_joblib.wire.messages import JobRegisterRequest, JobResponse, TaskSubmitRequest
from zndraw_joblib.wire.names import INTERNAL, JobName, parse_job_name
from zndraw_joblib.wire.policy import WithoutWorkers
from zndraw_joblib.wire.problems import (
    Forbidden,
    InvalidCategory,
    JobNotFound,
    ProblemException,
    SchemaConflict,
    WorkerNotFound,
)
from zndraw_joblib.wire.statuses import TaskStatus

SCHEMA = {"type": "object", "properties": {"angle": {"type": "number"}}, "required": ["angle"]}


OTHER = {"type": "object", "properties": {"angle": {"type": "string"}}, "required": ["angle"]}


async def active(replica: Replica) -> list[str]:
    """Return the names of the active jobs."""
    return sorted(job.full_name for job in await replica.rows(Job.__table__) if not job.deleted)


async def test_the_first_registration_creates_the_job(replica: Replica) -> None:
    """Only the first one is new; each adds its own worker, and all are listed."""
    first, is_new = await replica.register_job(schema=SCHEMA)
    assert is_new
    again, is_new = await replica.register_job(schema=SCHEMA)
    assert not is_new
    assert again.id == first.id
    assert again.worker_id != first.worker_id
    assert set(again.workers) == {first.worker_id, again.worker_id}
    assert again.schema_ == SCHEMA


async def test_a_repeat_by_the_same_worker_changes_nothing(replica: Replica) -> None:
    """A worker that registers a job twice serves it once."""
    first = await replica.register()
    again, is_new = await replica.register_job(worker=first.worker_id)
    assert not is_new
    assert (again.worker_id, again.workers) == (first.worker_id, [first.worker_id])
    assert len(await replica.rows(WorkerJobLink.__table__)) == 1


async def test_equal_schemas_are_equal_in_any_order_of_keys(replica: Replica) -> None:
    """The order of the keys in a schema does not matter."""
    await replica.register(schema=SCHEMA)
    _, is_new = await replica.register_job(schema=dict(reversed(SCHEMA.items())))
    assert not is_new


async def test_another_schema_is_refused_and_leaves_no_worker_behind(replica: Replica) -> None:
    """The schema of an active job stays; the refused registration creates nothing."""
    await replica.register(schema=SCHEMA)
    with pytest.raises(SchemaConflict, match="Schema mismatch") as caught:
        await replica.register(schema=OTHER)
    assert caught.value.problem.model_extra == {
        "differences": [{"pointer": "/properties/angle/type", "old": "number", "new": "string"}]
    }
    assert len(await replica.rows(Worker.__table__)) == 1


async def test_only_the_owner_registers_for_a_worker(replica: Replica) -> None:
    """An unknown worker or another user's worker is not found, for superusers too."""
    job = await replica.register("A")
    with pytest.raises(WorkerNotFound):
        await replica.register("B", worker=uuid4())
    for other in (STRANGER, ADMIN):
        with pytest.raises(WorkerNotFound):
            await replica.register("B", worker=job.worker_id, by=other)
    assert await active(replica) == ["@global:modifiers:A"]


async def test_an_internal_job_has_no_worker(replica: Replica) -> None:
    """Jobs of `@internal` are linked to no worker and stay active."""
    job = await replica.register("Render", INTERNAL, by=ADMIN)
    assert (job.worker_id, job.workers) == (None, [])
    assert await replica.rows(Worker.__table__) == []
    assert await active(replica) == [str(internal())]


def test_invalid_registrations_are_refused_without_the_database(subtests: pytest.Subtests) -> None:
    """Reserved rooms need a superuser, and the category must be allowed."""
    for room, request_, problem in [
        ("@global", {}, Forbidden),
        ("@internal", {}, Forbidden),
        ("lab", {"category": "elsewhere"}, InvalidCategory),
    ]:
        with subtests.test(room=room, request_=request_, problem=problem):
            request = JobRegisterRequest(**{"category": "modifiers", "name": "Rotate", **request_})
            with pytest.raises(problem):
                rules_jobs.check(rules_jobs.JobToRegister(OWNER, room, request), ["modifiers"])
            if problem is Forbidden:
                rules_jobs.check(rules_jobs.JobToRegister(ADMIN, room, request), ["modifiers"])


async def test_a_job_without_workers_and_tasks_is_soft_deleted(replica: Replica) -> None:
    """When the last worker leaves, the job cannot be listed, read or called; its room gets an event."""
    job = await replica.register(room="lab")
    replica.events.clear()
    await replica.leave(job.worker_id)
    assert await active(replica) == []
    assert replica.events == [Emission(JobsInvalidate(), room_of("lab"))]
    name = parse_job_name(job.full_name)
    with pytest.raises(JobNotFound):
        await replica.runtime.database.read(rules_jobs.get, room_id="lab", name=name, cross_room=False)
    with pytest.raises(JobNotFound):
        await replica.submit(job)


async def test_a_job_with_pending_tasks_stays_until_they_end(replica: Replica) -> None:
    """Cancelling the last pending task soft-deletes the job and publishes an event."""
    job = await replica.register(room="lab")
    waiting = [await replica.submit(job) for _ in range(2)]
    await replica.leave(job.worker_id)
    assert await active(replica) == [job.full_name]
    await replica.report(waiting[0].id, TaskStatus.CANCELLED, by=SUBMITTER)
    assert await active(replica) == [job.full_name]
    replica.events.clear()
    await replica.report(waiting[1].id, TaskStatus.CANCELLED, by=SUBMITTER)
    assert await active(replica) == []
    assert Emission(JobsInvalidate(), room_of("lab")) in replica.events


async def test_the_policy_decides_what_becomes_of_a_job_without_workers(
    pair: list[Replica], subtests: pytest.Subtests
) -> None:
    """Alone and in batches, for jobs that this server knows from submits, with the setting as the default."""
    settings = [replica.runtime.settings for replica in pair]
    for policy, default in product((None, *WithoutWorkers), WithoutWorkers):
        with subtests.test(policy=policy, default=default):
            for each in settings:
                each.without_workers = default
            job = await pair[0].register(f"J-{policy}-{default}", without_workers=policy)
            for replica in pair:
                await replica.submit(job)
                await replica.report((await replica.start(job.worker_id)).id, TaskStatus.COMPLETED)
            assert (await pair[0].register(job.name, worker=job.worker_id)).unserved_since is None
            await pair[0].leave(job.worker_id)
            for replica in pair:
                outcomes = [await outcome(replica, job), *await outcomes_of_batch(replica, job)]
                assert set(outcomes) == {
                    {"forget": "job-not-found", "reject": "no-workers-available"}.get(
                        policy or default, TaskStatus.PENDING
                    )
                }
            [row] = [row for row in await pair[0].rows(Job.__table__) if row.id == job.id]
            assert row.deleted == ((policy or default) == "forget")
            assert row.unserved_since is not None
            back = await pair[1].register(job.name)
            assert (back.id, back.unserved_since) == (job.id, None)
            assert await outcome(pair[0], job) == TaskStatus.PENDING
            await empty(pair[0], back)
            for each in settings:
                each.without_workers = WithoutWorkers.FORGET
            await pair[0].register(job.name, worker=back.worker_id, without_workers="forget")
            await pair[0].leave(back.worker_id)


async def outcome(replica: Replica, job: JobResponse) -> str:
    """Return the status of a task that is submitted, or the problem."""
    try:
        return (await replica.submit(job)).status
    except ProblemException as problem:
        return problem.problem_id()


async def outcomes_of_batch(replica: Replica, job: JobResponse) -> list[str]:
    """Return the outcomes of two tasks that are submitted in one batch."""
    items = [
        replica.runtime.submission(SUBMITTER, "lab", parse_job_name(job.full_name), TaskSubmitRequest())
    ] * 2
    items = [replace(item) for item in items]
    results = await replica.runtime.submit_many(items)
    return [r.problem_id() if isinstance(r, ProblemException) else r.status for r in results]


async def empty(replica: Replica, job: JobResponse) -> None:
    """Complete all tasks of a job."""
    while (task := await replica.claim(job.worker_id)) is not None:
        await replica.report(task.id, TaskStatus.RUNNING)
        await replica.report(task.id, TaskStatus.COMPLETED)


async def test_an_older_known_policy_does_not_accept_what_is_rejected(pair: list[Replica]) -> None:
    """A server that submitted tasks of a job reads its new policy, which another server has registered."""
    job = await pair[1].register(room="lab")
    await empty_after_submits(pair[1], job)
    await pair[0].register(room="lab", worker=job.worker_id, without_workers="reject")
    await pair[0].leave(job.worker_id)
    assert await outcome(pair[1], job) == "no-workers-available"


async def empty_after_submits(replica: Replica, job: JobResponse) -> None:
    """Submit and complete two tasks, so that the server knows the job."""
    for _ in range(2):
        await replica.submit(job)
    await empty(replica, job)


async def test_an_unused_job_without_workers_takes_another_schema(replica: Replica) -> None:
    """Also one that stays by its policy; not while a task waits, nor while another worker serves it."""
    job = await replica.register(schema=SCHEMA, without_workers="queue")
    with pytest.raises(SchemaConflict):
        await replica.register(schema=OTHER)
    await replica.leave(job.worker_id)
    assert (await replica.register(schema=OTHER)).id == job.id
    [link] = await replica.rows(WorkerJobLink.__table__)
    task = await replica.submit(job, payload={"angle": ""})
    await replica.leave(link.worker_id)
    with pytest.raises(SchemaConflict):
        await replica.register(schema=SCHEMA)
    await replica.report(task.id, TaskStatus.CANCELLED, by=SUBMITTER)
    assert (await replica.register(schema=SCHEMA)).schema_ == SCHEMA


async def test_workers_come_and_go_at_once(pair: list[Replica]) -> None:
    """The time without workers is recorded exactly while there is none, whatever commits first."""
    for turn in range(12):
        job = await pair[0].register(f"T-{turn}", without_workers="queue")
        _, other = await asyncio.gather(pair[1].leave(job.worker_id), pair[0].register(f"T-{turn}"))
        [row] = [row for row in await pair[0].rows(Job.__table__) if row.id == job.id]
        assert (row.unserved_since, row.deleted) == (None, False)
        last = await pair[1].register(f"T-{turn}")
        await asyncio.gather(pair[0].leave(last.worker_id), pair[1].leave(other.worker_id))
        [row] = [row for row in await pair[0].rows(Job.__table__) if row.id == job.id]
        assert row.unserved_since is not None


async def test_a_registration_restores_a_soft_deleted_job(replica: Replica) -> None:
    """The schema may be new; the job's id and its history stay."""
    job = await replica.register(room="lab")
    done = await replica.running(job)
    await replica.report(done.id, TaskStatus.COMPLETED, result=7)
    await replica.leave(job.worker_id)
    back, is_new = await replica.register_job(room="lab", schema=SCHEMA)
    assert is_new
    assert (back.id, back.schema_) == (job.id, SCHEMA)
    assert back.workers == [back.worker_id]
    get = partial(rules_jobs.get, room_id="lab", name=parse_job_name(job.full_name), cross_room=False)
    assert (await replica.runtime.database.read(get)).schema_ == SCHEMA
    find = partial(rules_jobs.ids_of, room_id="lab", name=parse_job_name(job.full_name), cross_room=False)
    ids = await replica.runtime.database.read(find)
    assert len(ids) == 2
    page = partial(rules_tasks.page, room_id="lab", status=None, part=Page(50, 0), jobs=ids)
    [old] = (await replica.runtime.database.read(page)).items
    assert (old.id, old.result, old.worker_id) == (done.id, 7, job.worker_id)


async def test_the_history_of_a_soft_deleted_job_is_readable(replica: Replica) -> None:
    """Its tasks are listed under its name in its room, and can be read by their ids."""
    job = await replica.register(room="lab")
    done = await replica.running(job)
    await replica.report(done.id, TaskStatus.COMPLETED)
    await replica.leave(job.worker_id)
    name = parse_job_name(job.full_name)
    find = partial(rules_jobs.ids_of, room_id="lab", name=name, cross_room=False)
    assert await replica.runtime.database.read(find) == [job.id]
    assert (await replica.get(done.id)).job_name == job.full_name


async def test_a_rooms_job_is_visible_in_that_room_only(replica: Replica) -> None:
    """Other rooms cannot find, read or call it, unless `cross_room_jobs` is set."""
    job = await replica.register(room="lab")
    name = JobName("lab", "modifiers", "Rotate")
    for work in (rules_jobs.get, rules_jobs.ids_of):
        with pytest.raises(JobNotFound):
            await replica.runtime.database.read(work, room_id="other", name=name, cross_room=False)
        assert await replica.runtime.database.read(work, room_id="other", name=name, cross_room=True)
    with pytest.raises(JobNotFound):
        await replica.submit(job, room="other")
    replica.runtime.settings.cross_room_jobs = True
    assert (await replica.submit(job, room="other")).room_id == "other"


async def test_one_job_is_removed_from_a_worker(replica: Replica) -> None:
    """The worker keeps its other jobs and its tasks; a job without workers is soft-deleted."""
    job = await replica.register("A", "lab")
    other = await replica.register("B", "lab", worker=job.worker_id)
    held = await replica.running(job)
    replica.events.clear()
    await replica.unlink_job(job.worker_id, job)
    assert await active(replica) == [other.full_name]
    assert replica.events == [Emission(JobsInvalidate(), room_of("lab"))]
    assert (await replica.report(held.id, TaskStatus.COMPLETED)).status == TaskStatus.COMPLETED
    with pytest.raises(JobNotFound):
        await replica.unlink_job(job.worker_id, job)


async def test_tasks_of_a_removed_job_are_not_claimed(replica: Replica) -> None:
    """Its pending tasks wait for other workers."""
    job = await replica.register("A", "lab")
    waiting = await replica.submit(job)
    await replica.unlink_job(job.worker_id, job)
    assert await replica.claim(job.worker_id) is None
    other = await replica.register("A", "lab")
    claimed = await replica.claim(other.worker_id)
    assert claimed is not None
    assert claimed.id == waiting.id


async def test_a_job_is_removed_by_the_owner_or_a_superuser(replica: Replica) -> None:
    """Other users are refused; an unknown worker and a job that it does not serve are not found."""
    job, other = await replica.register("A"), await replica.register("B")
    with pytest.raises(Forbidden):
        await replica.unlink_job(job.worker_id, job, by=STRANGER)
    with pytest.raises(WorkerNotFound):
        await replica.unlink_job(uuid4(), job)
    with pytest.raises(JobNotFound):
        await replica.unlink_job(job.worker_id, other)
    await replica.unlink_job(job.worker_id, job, by=ADMIN)
    assert await active(replica) == [other.full_name]
