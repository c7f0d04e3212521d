"""Versions of a job: its schema grows while workers of several versions serve it at once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID

import pytest
from databases import on_postgresql
from replica import ADMIN, OWNER, STRANGER, SUBMITTER, Replica, wait_until_waiting
from sqlalchemy import delete
from waiting import until

from service.test_plain_reports import wait_for_lock
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.tables import AuditRecord, Job, QueueBlock, RoomCount, RoomQueue, Task
from zndraw_joblib.server.process.ports import Page
from zndraw_joblib.server.queue import (
    rules_claims,
    rules_jobs,
    rules_schemas,
    rules_task_actions,
    rules_tasks,
    sql_jobs,
)
from zndraw_joblib.server.queue.rules_claims import Claim, ClaimResult
from zndraw_joblib.wire.messages import EmptyReason, JobRegisterRequest, JobResponse, TaskResponse
from zndraw_joblib.wire.names import parse_job_name
from zndraw_joblib.wire.problems import Conflict, InvalidPayload, JobNotFound, SchemaConflict
from zndraw_joblib.wire.statuses import TaskStatus

OLD = {"type": "object", "properties": {"x": {"type": "integer"}}}
NEW = {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}}}
OTHER = {"type": "object", "properties": {"x": {"type": "string"}}}


def grown(number: int) -> dict[str, Any]:
    """Return a schema that accepts that of each smaller number."""
    return {"type": "object", "properties": {"x": {"enum": list(range(number + 1))}}}


async def read(replica: Replica, job: JobResponse) -> JobResponse:
    """Read a job."""
    name = parse_job_name(job.full_name)
    return await replica.runtime.database.read(rules_jobs.get, name.room_id, name, cross_room=True)


async def versions(replica: Replica, job: JobResponse) -> list[tuple[int, bool, int, int, int]]:
    """Return what a job lists about its versions."""
    return [tuple(version.model_dump().values()) for version in (await read(replica, job)).versions]


async def end(replica: Replica, task: TaskResponse) -> None:
    """Start and complete a task that is claimed."""
    await replica.report(task.id, TaskStatus.RUNNING)
    await replica.report(task.id, TaskStatus.COMPLETED)


async def test_workers_of_two_versions_serve_a_job_at_once(pair: list[Replica]) -> None:
    """The new worker gets the tasks of both versions, the old one only its own. The job keeps its id."""
    first, second = pair
    old = await first.register(schema=OLD)
    before = await first.submit(old, payload={"x": 1})
    new = await second.register(schema=NEW)
    assert (old.version, new.version, new.id, new.schema_) == (1, 2, old.id, NEW)
    after = [await second.submit(new, payload={"x": 2, "y": 3}), await first.submit(new, payload={"y": 4})]
    assert [before.version, *[task.version for task in after]] == [1, 2, 2]
    assert await versions(first, old) == [(2, True, 1, 2, 0), (1, False, 2, 1, 0)]
    assert (await read(first, old)).workers == sorted([old.worker_id, new.worker_id])
    claimed = await first.claim_task(old.worker_id)
    assert (claimed.id, claimed.version) == (before.id, 1)
    assert await second.claim(old.worker_id) is None
    for task in after:
        claimed = await first.claim_task(new.worker_id)
        assert (claimed.id, claimed.version) == (task.id, 2)
    # The old task returns to its queue, where the new worker finds it.
    await first.leave(old.worker_id)
    again = await first.act(rules_task_actions.retry, before.id)
    assert (again.status, again.version) == (TaskStatus.PENDING, 1)
    assert (await second.claim_task(new.worker_id)).id == before.id


async def test_tasks_wait_for_a_worker_of_their_version(pair: list[Replica]) -> None:
    """After the new worker has left, its tasks wait although the old one serves the job."""
    first, second = pair
    old = await first.register(schema=OLD)
    await first.submit(old, payload={"x": 1})
    new = await second.register(schema=NEW)
    task = await second.submit(new, payload={"y": 1})
    assert "no_worker_of_version" not in await first.explain(task.id)
    await second.leave(new.worker_id)
    await end(first, await first.claim_task(old.worker_id))
    assert await first.claim(old.worker_id) is None
    assert "no_worker_of_version" in await first.explain(task.id)
    back = await second.register(schema={**NEW, "title": "Another title"})
    assert back.version == 2
    assert (await first.claim_task(back.worker_id)).id == task.id


async def test_a_waiting_claim_of_another_version_takes_no_wake_up(pair: list[Replica]) -> None:
    """A claim of the old version waits first; the task of the new version wakes the claim that can run it."""
    first, second = pair
    old = await first.register(schema=OLD)
    await first.submit(old, payload={})
    new = await second.register(schema=NEW)
    await end(first, await first.claim_task(old.worker_id))

    waiting = asyncio.create_task(first.claim(old.worker_id, wait=30))
    claiming = asyncio.create_task(first.claim(new.worker_id, wait=30))
    await until(lambda: first.runtime.waiters.waiting_count == 2)
    task = await second.submit(new, payload={"y": 1})
    claimed = await asyncio.wait_for(claiming, 30)
    assert claimed is not None
    assert claimed.id == task.id
    assert not waiting.done()
    waiting.cancel()


@asynccontextmanager
async def registered_meanwhile(replica: Replica, job: JobResponse) -> AsyncIterator[None]:
    """Register a version of a job; commit at the end, after a statement waits for it."""
    name, is_registered, go = parse_job_name(job.full_name), asyncio.Event(), asyncio.Event()
    request = JobRegisterRequest(category=name.category, name=name.name, schema_=NEW)

    async def register(tx: Transaction) -> None:
        await rules_jobs.put(tx, rules_jobs.JobToRegister(OWNER, name.room_id, request))
        is_registered.set()
        await go.wait()

    registering = asyncio.create_task(replica.runtime.write(register))
    await is_registered.wait()
    yield
    await wait_for_lock(replica)
    go.set()
    await registering


@on_postgresql
@pytest.mark.parametrize("priority", [0, 1])
async def test_a_submit_waits_for_the_registration_of_a_version(pair: list[Replica], priority: int) -> None:
    """It gets the new version."""
    first, second = pair
    job = await first.register(schema=OLD)
    await first.running(job)
    async with registered_meanwhile(second, job):
        submitting = asyncio.create_task(first.submit(job, {"y": 1}, priority=priority))
    assert (await submitting).version == 2


@on_postgresql
async def test_a_pause_waits_for_the_registration_of_a_version(pair: list[Replica]) -> None:
    """It pauses the new version too."""
    first, second = pair
    job = await first.register(schema=OLD)
    await first.running(job)
    async with registered_meanwhile(second, job):
        pausing = asyncio.create_task(first.pause(job))
    await pausing
    versions = await first.rows(Job.__table__)
    assert sorted((version.job_version, version.paused) for version in versions) == [(1, True), (2, True)]


@on_postgresql
async def test_an_action_waits_for_the_registration_of_a_version(pair: list[Replica]) -> None:
    """It locks the new version too, so that no submit with the same unique key comes between."""
    first, second = pair
    job = await first.register(schema=OLD)
    await first.running(job)
    [row] = await first.rows(Job.__table__)

    async def lock(tx: Transaction) -> set[UUID]:
        return await sql_jobs.lock_with_versions(tx, [row.id])

    async with registered_meanwhile(second, job):
        locking = asyncio.create_task(first.runtime.write(lock))
    assert await locking == {version.id for version in await first.rows(Job.__table__)} > {row.id}


async def test_a_worker_leaves_all_versions_of_a_job(pair: list[Replica]) -> None:
    """A worker of an earlier version can leave, and one of the new version leaves the old queue too."""
    first, second = pair
    old = await first.register(schema=OLD)
    task = await first.submit(old, payload={})
    new = await second.register(schema=NEW)
    await second.unlink_job(new.worker_id, new)
    assert await second.claim(new.worker_id) is None
    await first.submit(new, payload={})
    await second.unlink_job(old.worker_id, old)
    assert await first.claim(old.worker_id) is None
    assert "no_worker" in await first.explain(task.id)
    with pytest.raises(JobNotFound):
        await second.unlink_job(old.worker_id, old)


async def test_an_old_worker_comes_back(replica: Replica) -> None:
    """It serves its own version. Once no worker serves the new one and nothing waits, its own is current."""
    old = await replica.register(schema=OLD)
    await replica.submit(old, payload={})
    new = await replica.register(schema=NEW)
    back = await replica.register(schema=OLD)
    assert (back.version, back.schema_) == (1, OLD)
    assert (await read(replica, old)).version == 2
    await replica.leave(new.worker_id)
    task = await replica.submit(old, payload={"y": 1})
    again = await replica.register(schema=OLD, worker=back.worker_id)
    assert (again.version, (await read(replica, old)).version) == (1, 2)
    await replica.report(task.id, TaskStatus.CANCELLED, by=SUBMITTER)
    again = await replica.register(schema=OLD, worker=back.worker_id)
    assert (again.version, (await read(replica, old)).version) == (1, 1)
    assert (await replica.submit(old, payload={})).version == 1


async def test_the_only_worker_replaces_the_schema_while_nothing_is_pending(replica: Replica) -> None:
    """Its running task keeps its version, and waits for a worker of it if it is retried."""
    job = await replica.register(schema=OLD, max_attempts=3, retry_on=["error"])
    running = await replica.submit(job, payload={"x": 1})
    with pytest.raises(SchemaConflict) as caught:
        await replica.register(schema=OTHER, worker=job.worker_id)
    [difference] = caught.value.problem.model_extra["differences"]
    assert difference == {"pointer": "/properties/x/type", "old": "integer", "new": "string"}
    claimed = await replica.start(job.worker_id)
    with pytest.raises(SchemaConflict):
        await replica.register(schema=OTHER, by=STRANGER)
    replaced = await replica.register(schema=OTHER, worker=job.worker_id)
    assert (replaced.version, replaced.max_attempts, replaced.id) == (2, 3, job.id)
    assert (await replica.submit(job, payload={"x": "a"})).version == 2
    await replica.report(claimed.id, TaskStatus.FAILED, error="again", attempt=claimed.attempt)
    assert (await replica.claim_task(job.worker_id)).version == 2
    assert await replica.claim(job.worker_id) is None
    assert "no_worker_of_version" in await replica.explain(running.id)
    old = await replica.get(running.id)
    assert (old.status, old.version) == (TaskStatus.PENDING, 1)
    entries = [row for row in await replica.rows(AuditRecord.__table__) if row.action == "job.schema"]
    assert [row.detail for row in entries] == [{"version": 2, "replaces": 1}]


async def test_a_version_without_tasks_is_changed_in_place(replica: Replica) -> None:
    """Development changes a schema often: versions are kept for their tasks only."""
    job = await replica.register(schema=OLD)
    for schema in (NEW, OTHER, OLD, OTHER):
        assert (await replica.register(schema=schema, worker=job.worker_id)).version == 1
    assert len(await replica.rows(Job.__table__)) == 1


async def test_a_limit_holds_over_all_versions(pair: list[Replica]) -> None:
    """Claims of two versions at once never hold more tasks together than `max_in_flight`."""
    first, second = pair
    old = await first.register(schema=OLD, max_in_flight=3)
    for _ in range(4):
        await first.submit(old, payload={})
    new = await second.register(schema=NEW)
    for _ in range(4):
        await second.submit(new, payload={})

    claims = [
        replica.claim(worker) for replica in pair for worker in (old.worker_id, new.worker_id, new.worker_id)
    ]
    claimed = [task for task in await asyncio.gather(*claims) if task is not None]
    assert len(claimed) == 3
    assert await first.claim(old.worker_id) is None
    assert (await second.claim_response(new.worker_id)).reason == "at_capacity"
    await end(first, claimed[0])
    assert await second.claim(new.worker_id) is not None


async def test_a_limit_holds_when_the_first_version_is_current_again(replica: Replica) -> None:
    """A task of the second one still has a slot, and its end wakes a claim of the first one."""
    old = await replica.register(schema=OLD, max_in_flight=1)
    await replica.submit(old)
    await end(replica, await replica.claim_task(old.worker_id))
    new = await replica.register(schema=OTHER, worker=old.worker_id)
    assert new.version == 2
    await replica.submit(new, payload={"x": "a"})
    running = await replica.claim_task(new.worker_id)
    again = await replica.register(schema=OLD, worker=old.worker_id)
    assert again.version == 1
    task = await replica.submit(again)
    assert (await replica.claim_response(old.worker_id)).reason == "at_capacity"
    claim = asyncio.create_task(replica.claim(old.worker_id, wait=30))
    await wait_until_waiting(replica, 1)
    await end(replica, running)
    async with asyncio.timeout(20):
        claimed = await claim
    assert claimed is not None
    assert claimed.id == task.id


@pytest.mark.parametrize("is_paused", [False, True])
@pytest.mark.parametrize("count", [1, 3])
async def test_versions_share_the_free_slots_in_the_order_of_tasks(
    replica: Replica, count: int, is_paused: bool
) -> None:
    """The oldest tasks get them; those of a paused room take none from another version."""
    # Which version comes first by its id is random.
    for number in range(3):
        name = f"Share{number}"
        old = await replica.register(name, schema=OLD, max_in_flight=count)
        before = [await replica.submit(old, room="closed") for _ in range(count)]
        new = await replica.register(name, schema=NEW)
        after = [await replica.submit(new) for _ in range(count)]
        if is_paused:
            await replica.pause_room("closed")
        response = await replica.claim_response(new.worker_id, max=count)
        claimed = [task.id for task in response.tasks or [response.task] if task]
        assert claimed == [task.id for task in (after if is_paused else before)]
        await replica.resume_room("closed")


async def test_a_batch_of_claims_of_two_versions_is_answered_at_once(replica: Replica) -> None:
    """The one free slot is for the oldest task. A claim without a slot is not repeated."""
    old = await replica.register(schema=OLD, max_in_flight=1)
    first = await replica.submit(old)
    new = await replica.register(schema=NEW)
    await replica.submit(new)
    items = [
        Claim(OWNER, worker, 15, None, replica.runtime.order)
        for worker in (old.worker_id, new.worker_id)
        if worker
    ]
    results = await replica.runtime.write(lambda tx: rules_claims.claim(tx, items))
    answers = [
        (list(one.tasks), one.reason, one.is_contended) for one in results if isinstance(one, ClaimResult)
    ]
    assert [task.id for tasks, *_ in answers for task in tasks] == [first.id]
    assert answers[1] == ([], EmptyReason.AT_CAPACITY, False)
    again = await replica.runtime.write(lambda tx: rules_claims.claim(tx, items))
    assert [(one.reason, one.is_contended) for one in again if isinstance(one, ClaimResult)] == [
        (EmptyReason.EMPTY, False),
        (EmptyReason.AT_CAPACITY, False),
    ]


async def test_a_pause_and_a_policy_are_of_all_versions(replica: Replica) -> None:
    """No version is claimed while the job is paused; a policy of a registration is that of all."""
    old = await replica.register(schema=OLD)
    await replica.submit(old, payload={})
    new = await replica.register(schema=NEW, max_attempts=2)
    await replica.submit(new, payload={})
    name = parse_job_name(old.full_name)
    await replica.runtime.write(rules_jobs.pause, name=name, paused=True)
    assert await replica.claim(old.worker_id) is None
    assert await replica.claim(new.worker_id) is None
    await replica.runtime.write(rules_jobs.pause, name=name, paused=False)
    claimed = await replica.claim_task(old.worker_id)
    assert claimed.version == 1
    rows = await replica.rows(Job.__table__)
    assert {row.policy for row in rows} == {rows[0].policy}
    assert "max_attempts" in str(rows[0].policy)


async def test_a_job_is_forgotten_with_all_its_versions(replica: Replica) -> None:
    """It stays while a version has a worker or a pending task, and comes back with its id and numbers."""
    old = await replica.register(schema=OLD)
    task = await replica.submit(old, payload={})
    new = await replica.register(schema=NEW)
    await replica.leave(new.worker_id)
    await replica.leave(old.worker_id)
    assert (await read(replica, old)).unserved_since is not None
    await replica.report(task.id, TaskStatus.CANCELLED, by=SUBMITTER)
    assert [row.deleted for row in await replica.rows(Job.__table__)] == [True, True]
    back, is_new = await replica.register_job(schema=OTHER)
    assert (is_new, back.id, back.schema_) == (True, old.id, OTHER)
    assert (await replica.submit(back, payload={"x": ""})).version == back.version


async def test_the_number_of_versions_is_limited(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest one without workers and tasks to run is used again; without such a one it is a conflict."""
    monkeypatch.setattr(rules_jobs, "MAX_VERSIONS", 3)
    job = await replica.register(schema=grown(1))
    workers = [job.worker_id]
    for number in (2, 3):
        await replica.submit(job, payload={"x": 0})
        workers.append((await replica.register(schema=grown(number))).worker_id)
    await replica.submit(job, payload={"x": 0})
    with pytest.raises(Conflict, match="3 versions"):
        await replica.register(schema=grown(4))
    await replica.leave(workers[0])
    with pytest.raises(Conflict, match="3 versions"):
        await replica.register(schema=grown(4))
    await end(replica, await replica.claim_task(workers[1]))
    # Workers of later versions still serve the first one.
    for worker in workers[1:]:
        await replica.leave(worker)
    newest = await replica.register(schema=grown(4))
    assert newest.version == 4
    assert len(await replica.rows(Job.__table__)) == 3


@pytest.mark.parametrize("status", [TaskStatus.FAILED, TaskStatus.CANCELLED])
async def test_a_version_with_tasks_to_retry_is_not_used_again(
    replica: Replica, monkeypatch: pytest.MonkeyPatch, status: TaskStatus
) -> None:
    """A task that is retried goes to workers of a schema that accepts it."""
    monkeypatch.setattr(rules_jobs, "MAX_VERSIONS", 2)
    first = await replica.register(schema=OTHER)
    task = await replica.submit(first, payload={"x": "text"})
    await replica.claim_task(first.worker_id)
    await replica.report(task.id, TaskStatus.RUNNING)
    if status is TaskStatus.FAILED:
        await replica.report(task.id, status, error="x")
    else:
        await replica.report(task.id, status, by=SUBMITTER)
    await replica.leave(first.worker_id)
    second = await replica.register(schema=grown(1))
    await replica.submit(second, payload={"x": 1})
    await end(replica, await replica.claim_task(second.worker_id))
    await replica.leave(second.worker_id)
    with pytest.raises(Conflict, match=r"2 versions .* purge"):
        await replica.register(schema=grown(2))
    again = await replica.act(rules_task_actions.retry, task.id)
    assert again.version == 1


async def test_an_operator_changes_a_schema_without_a_worker(replica: Replica) -> None:
    """A schema that grows is accepted while tasks wait, another one is not."""
    job = await replica.register(schema=OLD, without_workers="queue")
    task = await replica.submit(job, payload={})

    def item(schema: dict[str, Any]) -> rules_jobs.JobToRegister:
        request = JobRegisterRequest(category="modifiers", name="Rotate", schema_=schema)
        return rules_jobs.JobToRegister(ADMIN, "@global", request)

    with pytest.raises(SchemaConflict):
        await replica.runtime.write(rules_jobs.put, item=item(OTHER))
    changed, _ = await replica.runtime.write(rules_jobs.put, item=item(NEW))
    assert (changed.version, changed.schema_) == (2, NEW)
    assert (await replica.claim_task(job.worker_id)).id == task.id


async def test_the_tasks_of_a_job_are_listed_with_those_of_all_versions(replica: Replica) -> None:
    """Lists, totals and summaries are of the job."""

    old = await replica.register(schema=OLD, room="lab")
    tasks = [await replica.submit(old, payload={})]
    new = await replica.register(schema=NEW, room="lab")
    tasks.append(await replica.submit(new, payload={}))
    name = parse_job_name(old.full_name)
    ids = await replica.runtime.database.read(rules_jobs.ids_of, "lab", name, cross_room=False)
    for status in (None, TaskStatus.PENDING):
        page = await replica.runtime.database.read(
            rules_tasks.page, "lab", status, part=Page(50, 0), jobs=ids
        )
        assert ([task.id for task in page.items], page.total) == ([task.id for task in tasks][::-1], 2)
    jobs = await replica.runtime.database.read(rules_jobs.page, room_id="lab", part=Page(50, 0))
    [summary] = jobs.items
    assert (jobs.total, summary.workers) == (1, sorted([old.worker_id, new.worker_id]))


async def leave_all(replica: Replica, job: JobResponse, task_ids: list[UUID]) -> None:
    """Cancel the tasks of a job, and let its workers leave."""
    for task_id in task_ids:
        await replica.report(task_id, TaskStatus.CANCELLED, by=SUBMITTER)
    for worker_id in (await read(replica, job)).workers:
        await replica.leave(worker_id)


async def test_pages_of_a_job_have_the_tasks_of_its_versions_in_order(replica: Replica) -> None:
    """Newest first, for each size and offset, although the first version is used again after the third."""
    third = {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}, "z": {}}}
    tasks, numbers = [], []
    for schema in (OLD, NEW, third, OLD):
        job = await replica.register(schema=schema, room="lab")
        for _ in range(3):
            task = await replica.submit(job, payload={})
            tasks.append(task.id)
            numbers.append(task.version)
        if schema is third:
            await leave_all(replica, job, tasks)
    assert numbers == [1] * 3 + [2] * 3 + [3] * 3 + [1] * 3
    name = parse_job_name(job.full_name)
    ids = await replica.runtime.database.read(rules_jobs.ids_of, "lab", name, cross_room=False)
    for status, ordered in ((None, tasks[::-1]), (TaskStatus.PENDING, tasks[:8:-1])):
        for limit in (1, 2, 5, 50):
            for offset in range(len(tasks) + 1):
                part = Page(limit, offset)
                page = await replica.runtime.database.read(
                    rules_tasks.page, "lab", status, part=part, jobs=ids
                )
                ids_of_page = [task.id for task in page.items]
                assert (ids_of_page, page.total) == (ordered[offset : offset + limit], len(ordered))


class Walk:
    """Random operations on a job with many versions, and what claims have to return."""

    SCHEMAS = (grown(1), grown(2), grown(3), NEW, OTHER)

    def __init__(self, pair: list[Replica], seed: int) -> None:
        self.pair, self.random = pair, Random(seed)
        self.workers: dict[UUID, dict[str, Any]] = {}
        self.schemas: dict[int, dict[str, Any]] = {}
        self.pending: dict[UUID, int] = {}
        self.held: dict[UUID, int] = {}
        self.job: JobResponse | None = None

    @property
    def replica(self) -> Replica:
        """One of the servers."""
        return self.random.choice(self.pair)

    def serves(self, worker: UUID, version: int) -> bool:
        """Return whether a worker may get tasks of a version."""
        schema, other = self.workers[worker], self.schemas[version]
        return rules_schemas.are_same(schema, other) or rules_schemas.accepts(schema, other)

    async def register(self) -> None:
        """Register a new worker, or one that exists, with any schema."""
        schema = self.random.choice(self.SCHEMAS)
        worker = self.random.choice([None, None, *self.workers])
        try:
            self.job = await self.replica.register(
                schema=schema,
                worker=worker,
                without_workers="queue",
                max_attempts=100,
                retry_on=["error"],
                backoff={"base_seconds": 0.0},
            )
        except SchemaConflict:
            return
        assert self.job.worker_id is not None
        self.workers[self.job.worker_id] = schema
        self.schemas[self.job.version] = schema

    async def submit(self) -> None:
        """Submit a task of the current version."""
        if self.job is None:
            return
        payload = {} if self.random.random() < 0.5 else {"x": 0}
        try:
            task = await self.replica.submit(self.job, payload=payload)
        except InvalidPayload:
            return
        self.pending[task.id] = task.version

    async def claim(self) -> None:
        """Claim with any worker: it gets a task exactly if one of a version that it serves is pending."""
        if not self.workers:
            return
        worker = self.random.choice(list(self.workers))
        task = await self.replica.claim(worker)
        expected = {id_ for id_, version in self.pending.items() if self.serves(worker, version)}
        assert (task is None) == (not expected)
        if task is not None:
            assert task.id in expected
            self.held[task.id] = self.pending.pop(task.id)
            assert task.version == self.held[task.id]

    async def end(self) -> None:
        """Complete a task, or let it return to the queue of its version."""
        if not self.held:
            return
        task_id = self.random.choice(list(self.held))
        version = self.held.pop(task_id)
        if self.random.random() < 0.5:
            await self.replica.act(rules_task_actions.release, task_id)
            self.pending[task_id] = version
        else:
            await self.replica.report(task_id, TaskStatus.CANCELLED, by=SUBMITTER)

    async def leave(self) -> None:
        """Remove a worker without tasks."""
        idle = [] if self.held else list(self.workers)
        if idle:
            worker = self.random.choice(idle)
            await self.replica.leave(worker)
            del self.workers[worker]


@pytest.mark.parametrize("seed", range(3))
async def test_random_versions_tasks_and_workers(pair: list[Replica], seed: int) -> None:
    """A worker gets each task that its schema accepts, and no other; the counts stay right."""
    walk = Walk(pair, seed)
    for _ in range(150):
        operations = [walk.register, walk.submit, walk.submit, walk.claim, walk.claim, walk.end, walk.leave]
        await walk.random.choice(operations)()
    assert len(walk.schemas) > 1


async def test_versions_without_tasks_are_pruned(replica: Replica) -> None:
    """The first one stays as long as there are others; the statistics of the job are in one row."""
    old = await replica.register(schema=OLD, without_workers="queue")
    await replica.submit(old, payload={})
    new = await replica.register(schema=NEW)
    await replica.submit(new, payload={})
    newest = await replica.register(schema=grown(1) | {"properties": {"x": {"type": "number"}, "y": {}}})
    assert sorted(row.job_version for row in await replica.rows(Job.__table__)) == [1, 2, 3]
    for worker in (new, newest):
        while (task := await replica.claim(worker.worker_id)) is not None:
            await end(replica, task)
    for worker in (old, new, newest):
        await replica.leave(worker.worker_id)
    await replica.execute(delete(Task.__table__))
    await replica.execute(delete(RoomCount.__table__))
    await replica.execute(delete(RoomQueue.__table__))
    await replica.execute(delete(QueueBlock.__table__))
    later = datetime.now(UTC) + timedelta(days=2)
    for _ in range(3):
        await replica.runtime.write(sql_jobs.prune, later, sql_jobs.FIRST, 100)
    rows = await replica.rows(Job.__table__)
    assert sorted(row.job_version for row in rows) == [1, 3]
    assert (await read(replica, old)).id == old.id
