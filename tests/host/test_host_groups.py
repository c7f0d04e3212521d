"""A host's code makes groups, also in its own transaction; members of a room read its groups as its tasks."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from databases import on_both
from rest import V1

from host.queues import Host, Order, running_host
from zndraw_joblib import GroupNotFound, GroupSealed, Identity, InvalidRequest, JobNotFound

ADA = Identity("ada", is_superuser=False)
BOUND = 30


@pytest.fixture
async def host(async_url: str) -> AsyncIterator[Host]:
    """Run a host."""
    async with running_host(async_url) as host:
        yield host


@on_both
async def test_a_group_is_a_part_of_the_transaction(host: Host) -> None:
    """Its tasks and its seal too: the end follows the commit, a rollback leaves nothing."""
    job = await host.register()
    joblib, name = host.joblib, job["full_name"]
    payload = {"counts": {"$group": "counts"}}
    for is_kept in (False, True):
        async with asyncio.timeout(BOUND), host.sessions() as session:
            session.add(Order(id=1))
            group = await joblib.create_group(
                "lab", "orders", on_end=name, payload=payload, identity=ADA, session=session
            )
            await joblib.submit(name, room="lab", group=group.id, session=session)
            sealed = await joblib.seal_group(group.id, session=session)
            assert (sealed.sealed, sealed.total, sealed.ended_at) == (True, 1, None)
            assert (await host.client.get(f"{V1}/groups/{group.id}")).status_code == 404
            await (session.commit() if is_kept else session.rollback())
    waiting = asyncio.create_task(joblib.wait_for_group(group.id, BOUND))
    await host.end(job)
    ended = await waiting
    assert (ended.counts.completed, ended.created_by, ended.on_end_task is None) == (1, "ada", False)
    counts = {"total": 1, "completed": 1, "failed": 0, "cancelled": 0}
    assert (await host.claim(job) or {})["payload"] == {"counts": counts}


async def test_a_group_of_a_host_has_the_problems_of_rest(host: Host) -> None:
    """For an unknown job, a sealed group, an unknown one, and a wrong argument."""
    job = await host.register()
    with pytest.raises(JobNotFound):
        await host.joblib.create_group("lab", on_end="@global:modifiers:Missing")
    group = await host.joblib.create_group("lab")
    with pytest.raises(TimeoutError, match="has not ended"):
        await host.joblib.wait_for_group(group.id, 0.01)
    assert (await host.joblib.seal_group(str(group.id))).ended_at is not None
    with pytest.raises(GroupSealed):
        await host.joblib.submit(job["full_name"], room="lab", group=group.id)
    with pytest.raises(GroupNotFound):
        await host.joblib.get_group("00000000-0000-4000-8000-000000000000")
    with pytest.raises(InvalidRequest, match="group_id"):
        await host.joblib.get_group("x")
    with pytest.raises(TypeError, match="pass on_end too"):
        await host.joblib.create_group("lab", payload={})
