"""A host's code submits, reads and cancels tasks, on its own or for a user."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, ClassVar
from uuid import uuid4

import pytest
from databases import on_both
from rest import V1

from host.queues import Host, running_host
from zndraw_joblib import (
    Category,
    Extension,
    Forbidden,
    IdempotencyKeyReused,
    Identity,
    InvalidPayload,
    InvalidRequest,
    InvalidTaskTransition,
    JobNotFound,
    NewTask,
    TaskNotFound,
    TaskStatus,
    job,
)
from zndraw_joblib.wire.messages import TaskToSubmit
from zndraw_joblib.wire.successors import After

ADA = Identity("ada", is_superuser=False)
BOUND = 30
SCHEMA = {"type": "object", "properties": {"width": {"type": "integer"}}, "required": ["width"]}


class Area(Extension):
    """A job as its class."""

    category: ClassVar[Category] = Category.ANALYSIS
    width: int = 1

    def run(self, vis: Any, **kwargs: Any) -> int:
        """Return the width."""
        return self.width


@pytest.fixture
async def host(async_url: str) -> AsyncIterator[Host]:
    """Run a host."""
    async with running_host(async_url) as host:
        yield host


async def test_a_task_by_name_runs_and_is_read(host: Host) -> None:
    """A worker gets the payload; `get` returns the result, and `created_by` is the host."""
    job = await host.register(schema=SCHEMA)
    task = await host.joblib.submit(job["full_name"], {"width": 2}, room="lab", priority=3)
    assert (task.room_id, task.created_by, task.priority, task.queue_position) == ("lab", "@host", 3, 1)
    claimed = await host.end(job, result=[4])
    assert (claimed["id"], claimed["payload"]) == (str(task.id), {"width": 2})
    ended = await host.joblib.get(str(task.id))
    assert (ended.status, ended.result) == ("completed", [4])


async def test_a_task_by_class_and_instance(host: Host) -> None:
    """The class names the job; an instance is the payload; a user may be the submitter."""
    await host.register("Area", category="analysis")
    by_class = await host.joblib.submit(Area, {"width": 5}, room="lab")
    task = await host.joblib.submit(Area(width=7), room="lab", identity=ADA)
    assert (by_class.job_name, by_class.payload) == ("@global:analysis:Area", {"width": 5})
    assert (task.payload, task.created_by) == ({"width": 7}, "ada")
    assert [item.full_name for item in (await host.joblib.jobs("lab")).items] == ["@global:analysis:Area"]


async def test_a_task_without_a_room(host: Host) -> None:
    """It is in the room of its job, or in `default`, as from every other client."""
    common, own = await host.register(), await host.register("Area", "lab")
    names = [common["full_name"], own["full_name"]]
    assert [(await host.joblib.submit(name)).room_id for name in names] == ["default", "lab"]


@job(room="lab")
def double(width: int) -> int:
    """Return twice the width."""
    return 2 * width


async def test_a_task_of_a_function(host: Host) -> None:
    """The decorated function stands for its class; its task has the room of the job."""
    await host.register("double", "lab", category="jobs", schema=double.model_json_schema())
    by_name = await host.joblib.submit(double, {"width": 5})
    task = await host.joblib.submit(double.task(width=7))
    assert {by_name.job_name, task.job_name} == {"lab:jobs:double"}
    assert (task.room_id, by_name.payload, task.payload) == ("lab", {"width": 5}, {"width": 7})


@on_both
async def test_many_tasks_are_submitted_or_none(host: Host) -> None:
    """The problem names the first faulty task."""
    await host.register("Area", category="analysis", schema=SCHEMA)
    other = await host.register()
    named = TaskToSubmit(room_id="attic", job_name=other["full_name"])
    made = await host.joblib.submit_many([Area(width=1), named], room="lab", idempotency_key="order-7")
    assert [(task.room_id, task.job_name) for task in made] == [
        ("lab", "@global:analysis:Area"),
        ("attic", other["full_name"]),
    ]
    again = await host.joblib.submit_many([Area(width=1), named], room="lab", idempotency_key="order-7")
    assert [task.id for task in again] == [task.id for task in made]
    faulty = TaskToSubmit(room_id="lab", job_name="@global:analysis:Area")
    with pytest.raises(InvalidPayload, match=r"tasks\.1"):
        await host.joblib.submit_many([Area(width=1), faulty], room="lab")
    assert (await host.client.get(f"{V1}/rooms/lab/tasks")).json()["total"] == 1
    assert await host.joblib.submit_many([]) == []


async def test_a_batch_waits_for_earlier_items_and_not_for_too_many(host: Host) -> None:
    """As a batch of the REST API."""
    job = await host.register()

    def task(*tasks: Any) -> TaskToSubmit:
        after = After(tasks=list(tasks)) if tasks else None
        return TaskToSubmit(room_id="lab", job_name=job["full_name"], after=after)

    first, second = await host.joblib.submit_many([task(), task(0)])
    after = (await host.joblib.get(second.id)).after
    assert after is not None
    assert (second.waits, after.tasks) == (True, [first.id])
    many = [task(*(uuid4() for _ in range(100)))] * 101
    for refused, text in (
        ([task(), task(1)], r"tasks\.1\.after\.tasks: 1 is no earlier item"),
        (many, "tasks: they wait for 10100 tasks and groups in all; at most 10000 in one batch"),
    ):
        with pytest.raises(InvalidRequest, match=text):
            await host.joblib.submit_many(refused)
    with pytest.raises(InvalidRequest, match="only a batch takes indexes"):
        await host.joblib.submit(task(0))


async def test_a_key_submits_one_task(host: Host) -> None:
    """The same arguments get the same task, in a session too; others are an error."""
    job = await host.register()
    first = await host.joblib.submit(job["full_name"], {"a": 1}, room="lab", idempotency_key="k")
    again = await host.joblib.submit(job["full_name"], {"a": 1}, room="lab", idempotency_key="k")
    async with host.sessions.begin() as session:
        third = await host.joblib.submit(
            job["full_name"], {"a": 1}, room="lab", idempotency_key="k", session=session
        )
        with pytest.raises(IdempotencyKeyReused):
            await host.joblib.submit(job["full_name"], idempotency_key="k", session=session)
    assert first.id == again.id == third.id


async def test_a_job_may_be_what_a_queue_takes(host: Host) -> None:
    """A short name that the room sees, or a `NewTask`, alone or among others; with room and options."""
    [name, other] = [(await host.register(name))["full_name"] for name in ("Rotate", "Turn")]
    submit, after = host.joblib.submit, await host.joblib.submit("Rotate", room="lab")
    named = await submit("modifiers:Turn", {"a": 1}, room="lab")
    whole = await submit(NewTask("Turn", {"a": 2}, room="lab", priority=3, after=after.id), room="vault")
    assert [task.job_name for task in (after, named, whole)] == [name, other, other]
    assert (whole.room_id, whole.priority, whole.payload, whole.status) == (
        *("lab", 3, {"a": 2}),
        TaskStatus.PENDING,
    )
    assert whole.waits
    many = await host.joblib.submit_many([NewTask("Turn", priority=5), NewTask(name)], room="lab", priority=1)
    assert [(task.job_name, task.priority) for task in many] == [(other, 5), (name, 1)]
    with pytest.raises(
        JobNotFound, match=r"Room 'lab' sees no job 'Tun'. Did you mean @global:modifiers:Turn\?"
    ):
        await submit("Tun", room="lab")
    with pytest.raises(JobNotFound, match=r"^tasks\.1: Room"):
        await host.joblib.submit_many([NewTask("Turn"), NewTask("Tun")], room="lab")
    with pytest.raises(TypeError, match="NewTask, which has its payload"):
        await submit(NewTask("Turn"), {"a": 1})


@on_both
async def test_an_unknown_job_is_an_error_with_near_names(host: Host) -> None:
    """Of the jobs that the task's room sees, also in a transaction of the host."""
    job = await host.register()
    tasks = [TaskToSubmit(room_id="lab", job_name=name) for name in (job["full_name"], "a:b:c")]
    known = r"tasks\.1: Job 'a:b:c' not found\. Room 'lab' sees @global:modifiers:Rotate\. Check the name"
    async with host.sessions() as own:
        for session in (None, own):
            with pytest.raises(JobNotFound, match=r"Did you mean @global:modifiers:Rotate\?"):
                await host.joblib.submit("@global:modifiers:Rotat", room="lab", session=session)
            with pytest.raises(JobNotFound, match=known):
                await host.joblib.submit_many(tasks, session=session)


async def test_errors_are_those_of_rest(host: Host) -> None:
    """Each names what is wrong."""
    job = await host.register(schema=SCHEMA)
    name, submit = job["full_name"], host.joblib.submit
    with pytest.raises(InvalidPayload):
        await submit(name, {"width": "x"}, room="lab")
    with pytest.raises(JobNotFound, match="Missing"):
        await submit("@global:modifiers:Missing", room="lab")
    with pytest.raises(InvalidRequest, match="delay_seconds"):
        await submit(name, {"width": 1}, room="lab", delay_seconds=-1)
    with pytest.raises(InvalidRequest, match="payload"):
        await submit(name, {"width": object()}, room="lab")
    with pytest.raises(TypeError, match="colour"):
        await submit(name, {"width": 1}, room="lab", colour=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="neither a full name"):
        await submit(5)
    with pytest.raises(TypeError, match="own payload"):
        await submit(Area(), {"width": 1})
    with pytest.raises(TypeError, match="is_superuser"):
        await submit(name, {"width": 1}, identity="ada")
    with pytest.raises(TypeError, match="AsyncSession"):
        await submit(name, {"width": 1}, session=host.engine)
    with pytest.raises(TaskNotFound):
        await host.joblib.get("00000000-0000-4000-8000-000000000000")
    with pytest.raises(InvalidRequest, match="UUID"):
        await host.joblib.get("x")


async def test_a_task_is_cancelled_by_those_who_may(host: Host) -> None:
    """The submitter and the host may; in a session it takes effect at the commit."""
    job = await host.register()
    mine, other = [await host.joblib.submit(job["full_name"], room="lab", identity=ADA) for _ in range(2)]
    with pytest.raises(Forbidden):
        await host.joblib.cancel(mine.id, identity=Identity("eve", is_superuser=False))
    assert (await host.joblib.cancel(mine.id, identity=ADA)).status == "cancelled"
    async with asyncio.timeout(BOUND), host.sessions() as session:
        await host.joblib.cancel(other.id, session=session)
        assert (await host.joblib.get(other.id, session=session)).status == "cancelled"
        await session.rollback()
        assert (await host.joblib.get(other.id)).status == "pending"
        await host.joblib.cancel(other.id, session=session)
        await session.commit()
    assert (await host.joblib.get(other.id)).status == "cancelled"
    await host.joblib.submit(job["full_name"], room="lab")
    ended = await host.end(job)
    with pytest.raises(InvalidTaskTransition):
        await host.joblib.cancel(ended["id"])


async def test_a_delayed_task_runs_now_for_those_who_may(host: Host) -> None:
    """The submitter and the host may; in a session it takes effect at the commit."""
    job = await host.register()
    mine, other = [
        await host.joblib.submit(job["full_name"], room="lab", identity=ADA, delay_seconds=60)
        for _ in range(2)
    ]
    with pytest.raises(Forbidden):
        await host.joblib.run_now(mine.id, identity=Identity("eve", is_superuser=False))
    assert (await host.joblib.run_now(mine.id, identity=ADA)).run_at is None
    async with asyncio.timeout(BOUND), host.sessions() as session:
        await host.joblib.run_now(other.id, session=session)
        await session.rollback()
        assert (await host.joblib.get(other.id)).run_at is not None
        await host.joblib.run_now(other.id, session=session)
        await session.commit()
    assert (await host.joblib.get(other.id)).run_at is None
    ended = await host.end(job)
    with pytest.raises(InvalidTaskTransition):
        await host.joblib.run_now(ended["id"])


async def test_no_user_is_the_host(async_url: str) -> None:
    """A request whose identity has the host's id is refused."""
    async with running_host(async_url) as host:
        host.app.dependency_overrides[host.joblib.identity] = lambda: Identity("@host", is_superuser=False)
        assert (await host.client.get(f"{V1}/me")).status_code == 403


async def test_a_payload_that_is_no_mapping_is_named(host: Host) -> None:
    """The error names the argument and shows a dict."""
    name = (await host.register(schema=SCHEMA))["full_name"]
    with pytest.raises(TypeError, match="payload: 3 is not a mapping"):
        await host.joblib.submit(name, 3)
