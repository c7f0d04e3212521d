"""A host's code registers and forgets jobs, and pauses jobs and rooms, on its own or for a user."""

from collections.abc import AsyncIterator

import pytest
from databases import on_both
from rest import V1

from host.queues import Host, running_host
from zndraw_joblib import (
    Forbidden,
    Identity,
    InvalidPayload,
    InvalidRequest,
    JobNotFound,
    Rate,
    ScheduleNotFound,
    WebhookNotFound,
    new_webhook_secret,
)
from zndraw_joblib.wire.problems import LimitNotFound

ADA = Identity("ada", is_superuser=False)


@pytest.fixture
async def host(async_url: str) -> AsyncIterator[Host]:
    """Run a host."""
    async with running_host(async_url) as host:
        yield host


@on_both
async def test_a_job_without_a_worker(host: Host) -> None:
    """It takes tasks, and is forgotten once it has none; wrong fields and reserved rooms are refused."""
    name = "lab:jobs:early"
    job = await host.joblib.register_job(name, {"type": "object"}, max_attempts=2)
    assert (job.full_name, job.workers, job.max_attempts) == (name, [], 2)
    task = await host.joblib.submit(name, {})
    await host.joblib.cancel(task.id)
    await host.joblib.forget_job(name)
    with pytest.raises(JobNotFound):
        await host.joblib.submit(name, {})
    with pytest.raises(InvalidRequest, match="max_attempts"):
        await host.joblib.register_job(name, max_attempts=0)
    with pytest.raises(Forbidden):
        await host.joblib.register_job("@global:jobs:early", identity=ADA)


@on_both
async def test_pauses_of_jobs_and_rooms(host: Host) -> None:
    """For a user, who need not be a superuser: the host decides. The audit trail has the user."""
    job = await host.register()
    assert (await host.joblib.pause_job(job["full_name"], identity=ADA)).paused
    assert not (await host.joblib.resume_job(job["full_name"])).paused
    assert (await host.joblib.pause_room("lab", identity=ADA)).paused
    assert (await host.joblib.room_pause("lab")).pauses[0].paused_by == "ada"
    assert not (await host.joblib.resume_room("lab")).paused
    assert (await host.joblib.pause_room(None)).paused
    assert (await host.joblib.room_pause("lab")).paused
    assert not (await host.joblib.resume_room(None)).paused
    audit = (await host.client.get(f"{V1}/audit")).json()["items"]
    assert [(entry["action"], entry["actor"]) for entry in audit][::-1][:3] == [
        ("job.pause", "ada"),
        ("job.resume", "@host"),
        ("room.pause", "ada"),
    ]


@on_both
async def test_a_pause_in_the_hosts_transaction(host: Host) -> None:
    """It holds if and when the host commits."""
    async with host.sessions() as session:
        await host.joblib.pause_room("lab", session=session)
        await session.rollback()
    assert not (await host.joblib.room_pause("lab")).paused
    async with host.sessions() as session:
        await host.joblib.pause_room("lab", session=session)
        await session.commit()
    assert (await host.joblib.room_pause("lab")).paused


@on_both
async def test_a_schedule_from_its_creation_to_its_deletion(host: Host) -> None:
    """Its tasks are those of the identity; wrong fields, names and payloads are refused."""
    job = await host.register(schema={"type": "object", "required": ["k"]})
    queue, name = host.joblib, job["full_name"]
    schedule = await queue.put_schedule(
        "nightly", name, {"k": 1}, room="lab", cron="0 3 * * *", identity=ADA, priority=2, unique={"key": "n"}
    )
    assert (schedule.created_by, schedule.room_id, schedule.priority) == ("ada", "lab", 2)
    assert [each.name for each in await queue.list_schedules("lab")] == ["nightly"]
    assert len((await queue.get_schedule("nightly", "lab", next=3)).next or []) == 3
    assert (await queue.pause_schedule("nightly", "lab")).paused
    assert not (await queue.pause_schedule("nightly", "lab", paused=False)).paused
    task = await queue.run_schedule("nightly", "lab", identity=ADA)
    assert (task.schedule, task.created_by, task.payload) == ("nightly", "ada", {"k": 1})
    assert (await queue.run_schedule("nightly", "lab", identity=ADA)).id == task.id
    with pytest.raises(InvalidRequest, match="cron"):
        await queue.put_schedule("wrong", name, {"k": 1}, room="lab")
    with pytest.raises(InvalidRequest, match="name"):
        await queue.put_schedule("not a name", name, {"k": 1}, room="lab", cron="0 3 * * *")
    with pytest.raises(InvalidPayload):
        await queue.put_schedule("wrong", name, {}, room="lab", cron="0 3 * * *")
    await queue.delete_schedule("nightly", "lab")
    with pytest.raises(ScheduleNotFound):
        await queue.get_schedule("nightly", "lab")
    async with host.sessions() as session:
        await queue.put_schedule("later", name, {"k": 1}, room="lab", every_seconds=60, session=session)
        await session.rollback()
    assert await queue.list_schedules("lab") == []


@on_both
async def test_a_webhook_from_its_creation_to_its_deletion(host: Host) -> None:
    """Also in a transaction of the host; wrong fields are refused; the audit trail has the identity."""
    queue, url, secret = host.joblib, "https://hooks.invalid/ci", new_webhook_secret()
    webhook = await queue.put_webhook("ci", "lab", url, events=["task.failed"], secret=secret, identity=ADA)
    assert (webhook.created_by, webhook.events, webhook.is_signed) == ("ada", ["task.failed"], True)
    assert [each.name for each in await queue.list_webhooks("lab")] == ["ci"]
    sent = await queue.test_webhook("ci", "lab", identity=ADA)
    again = await queue.repeat_delivery(sent.id, "lab")
    assert again.message_id == sent.message_id
    assert [each.id for each in await queue.list_deliveries("lab", "ci", limit=1)] == [again.id]
    assert [each.id for each in await queue.list_deliveries("lab", state="failed")] == []
    for field, wrong in {"url": "https://10.0.0.1/", "events": ["task.done"], "secret": "x"}.items():
        with pytest.raises(InvalidRequest, match=field):
            await queue.put_webhook("wrong", "lab", **{"url": url, field: wrong})
    with pytest.raises(InvalidRequest, match="name"):
        await queue.put_webhook("not a name", "lab", url)
    async with host.sessions() as session:
        await queue.put_webhook("later", "lab", url, session=session)
        assert len(await queue.list_webhooks("lab", session=session)) == 2
        await session.rollback()
    await queue.delete_webhook("ci", "lab")
    with pytest.raises(WebhookNotFound):
        await queue.get_webhook("ci", "lab")
    audit = (await host.client.get(f"{V1}/audit")).json()["items"]
    assert [(entry["action"], entry["actor"]) for entry in audit][::-1] == [
        *(("webhook.put", "ada"), ("webhook.test", "ada")),
        *(("webhook.repeat", "@host"), ("webhook.delete", "@host")),
    ]


@on_both
async def test_tasks_are_moved_to_the_current_version(host: Host) -> None:
    """Those whose payloads match its schema; a job has its versions. The audit trail names the identity."""
    queue, name = host.joblib, "lab:jobs:grows"
    await queue.register_job(name, {"properties": {"x": {"type": "integer", "maximum": 5}}})
    small, task = [(await queue.submit(name, {"x": x})).id for x in (3, 4)]
    await queue.register_job(name, {"properties": {"x": {"type": "integer"}}})
    assert [(one.version, one.pending) for one in (await queue.get_job(name)).versions] == [(2, 0), (1, 2)]
    result = await queue.retarget(name, [1], identity=ADA)
    assert (result.affected, result.refused, result.is_complete) == (2, [], True)
    assert [(await queue.get(task_id)).version for task_id in (small, task)] == [2, 2]
    assert (await queue.retarget(name)).affected == 0
    with pytest.raises(InvalidRequest, match=r"no earlier version 7: lab:jobs:grows has 2 \(current\), 1"):
        await queue.retarget(name, [7])
    with pytest.raises(InvalidRequest, match="there is no job 'lab:jobs:nope'"):
        await queue.retarget("lab:jobs:nope")
    with pytest.raises(InvalidRequest, match="version"):
        await queue.retarget(name, [0])
    audit = (await host.client.get(f"{V1}/audit?action=bulk.retarget")).json()["items"]
    assert [entry["actor"] for entry in audit] == ["@host", "ada"]


@on_both
async def test_limits_that_jobs_share(host: Host) -> None:
    """Also in a transaction of the host; the audit trail names the identity."""
    queue = host.joblib
    limit = await queue.put_limit("api", rate={"count": 2, "per_seconds": 1}, identity=ADA)
    assert (limit.updated_by, limit.rate) == ("ada", Rate(count=2, per_seconds=1))
    async with host.sessions() as session:
        await queue.put_limit("other", max_in_flight=1, session=session)
        assert len(await queue.list_limits(session=session)) == 2
        await session.rollback()
    assert [each.name for each in await queue.list_limits()] == ["api"]
    for name, values in (("a b", {"max_in_flight": 1}), ("api", {}), ("api", {"max_in_flight": 0})):
        with pytest.raises(InvalidRequest):
            await queue.put_limit(name, **values)
    await queue.delete_limit("api")
    with pytest.raises(LimitNotFound):
        await queue.get_limit("api")
