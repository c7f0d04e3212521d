"""Jobs that stay without workers: however their workers leave, no task of theirs is lost or refused."""

import random
from uuid import UUID

from databases import every_kind
from replica import ADMIN, ManualClock, OpenReplica, Replica

from zndraw_joblib.server.db.tables import Job
from zndraw_joblib.server.queue import rules_jobs
from zndraw_joblib.wire.messages import JobResponse
from zndraw_joblib.wire.names import parse_job_name

STEPS = 60


class Crowd:
    """The workers of a job, what they hold, and the tasks that wait, by the order of their submits."""

    def __init__(self, job: JobResponse) -> None:
        self.job, self.workers = job, [job.worker_id]
        self.order: list[UUID] = []
        self.waiting: list[UUID] = []
        self.held: dict[UUID | None, list[UUID]] = {}

    async def submit(self, server: Replica, _: UUID | None) -> None:
        """Submit a task."""
        self.order.append((await server.submit(self.job)).id)
        self.waiting.append(self.order[-1])

    async def come(self, server: Replica, _: UUID | None) -> None:
        """Register a further worker: the job is the same."""
        job = await server.register()
        assert (job.id, job.without_workers) == (self.job.id, "queue")
        self.workers.append(job.worker_id)

    async def claim(self, server: Replica, worker: UUID | None) -> None:
        """Claim the first task that waits."""
        if worker is not None:
            task = await server.claim(worker)
            assert (None if task is None else task.id) == next(iter(self.waiting), None)
            self.held.setdefault(worker, []).extend(self.waiting[:1])
            del self.waiting[:1]

    async def leave(self, server: Replica, worker: UUID | None) -> None:
        """Remove a worker, as the sweeper removes one that was killed: its tasks wait again."""
        if worker is not None:
            self.workers.remove(worker)
            await server.leave(worker)
            self.waiting = sorted(self.held.pop(worker, []) + self.waiting, key=self.order.index)


@every_kind
async def test_any_order_of_workers_and_tasks(replica: Replica, open_replica: OpenReplica) -> None:
    """Workers come and leave on two servers: each task is claimed in the order of submits, none is lost."""
    servers, chance = [replica, open_replica()], random.Random(7)
    options = {"max_attempts": 100, "max_crashes": 100, "backoff": {"base_seconds": 0}}
    crowd = Crowd(await replica.register(without_workers="queue", **options))
    for _ in range(STEPS):
        step = chance.choice([crowd.submit, crowd.submit, crowd.come, crowd.claim, crowd.leave, crowd.leave])
        await step(chance.choice(servers), chance.choice(crowd.workers) if crowd.workers else None)
    [row] = await replica.rows(Job.__table__)
    assert (row.deleted, row.unserved_since is None) == (False, bool(crowd.workers))
    last = await replica.register()
    response = await replica.claim_response(last.worker_id, max=1000)
    assert [task.id for task in response.tasks] == crowd.waiting


async def test_a_job_without_a_worker_is_forgotten_by_hand(timed: Replica, clock: ManualClock) -> None:
    """Not by time while a task waits."""
    job = await timed.register(without_workers="queue")
    await timed.leave(job.worker_id)
    task = await timed.submit(job)
    clock.advance(1e7)
    assert (await timed.get(task.id)).status == "pending"
    await timed.report(task.id, "cancelled", by=ADMIN)
    await timed.runtime.write(rules_jobs.delete, parse_job_name(job.full_name))
    [row] = await timed.rows(Job.__table__)
    assert row.deleted
