"""Registration of jobs; a job without workers and pending tasks is soft-deleted, and can be restored."""

from functools import partial
from uuid import uuid4

import pytest
from replica import ADMIN, OWNER, STRANGER, SUBMITTER, Replica, internal

from zndraw_joblib.server.db.tables import Job, Worker, WorkerJobLink
from zndraw_joblib.server.process.ports import Page
from zndraw_joblib.server.queue import rules_jobs, rules_tasks
from zndraw_joblib.wire.events import Emission, JobsInvalidate, room_of
from zndraw_joblib.wire.messages import JobRegisterRequest
from zndraw_joblib.wire.names import INTERNAL, JobName, parse_job_name
from zndraw_joblib.wire.problems import (
    Forbidden,
    InvalidCategory,
    JobNotFound,
    SchemaConflict,
    WorkerNotFound,
)
from zndraw_joblib.wire.statuses import TaskStatus

SCHEMA = {"type": "object", "properties": {"angle": {"type": "number"}}, "required": ["angle"]}


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
    with pytest.raises(SchemaConflict, match="Schema mismatch"):
        await replica.register(schema={})
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
    page = partial(rules_tasks.page, room_id="lab", status=None, part=Page(50, 0), job=job.id)
    [old] = (await replica.runtime.database.read(page)).items
    assert (old.id, old.result, old.worker_id) == (done.id, 7, job.worker_id)


async def test_the_history_of_a_soft_deleted_job_is_readable(replica: Replica) -> None:
    """Its tasks are listed under its name in its room, and can be read by their ids."""
    job = await replica.register(room="lab")
    done = await replica.running(job)
    await replica.report(done.id, TaskStatus.COMPLETED)
    await replica.leave(job.worker_id)
    name = parse_job_name(job.full_name)
    find = partial(rules_jobs.id_of, room_id="lab", name=name, cross_room=False)
    assert await replica.runtime.database.read(find) == job.id
    assert (await replica.get(done.id)).job_name == job.full_name


async def test_a_rooms_job_is_visible_in_that_room_only(replica: Replica) -> None:
    """Other rooms cannot find, read or call it, unless `cross_room_jobs` is set."""
    job = await replica.register(room="lab")
    name = JobName("lab", "modifiers", "Rotate")
    for work in (rules_jobs.get, rules_jobs.id_of):
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
