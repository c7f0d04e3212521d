"""Demand: how many tasks wait for a slot of a worker, and how many slots would run all of them at once.

It is read from kept counts, so that an autoscaler may ask every few seconds. A task that a pause, a limit or
a time holds back needs no worker now, so it is not part of the demand.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple
from uuid import UUID

from pydantic_core import from_json, to_json

from zndraw_joblib.server.admin import sql_demand
from zndraw_joblib.server.admin.rules_overview import SILENT_HEARTBEATS
from zndraw_joblib.server.admin.sql_demand import Chosen, Held, Queue
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.queue import rules_limits, sql_counts, sql_pauses
from zndraw_joblib.server.queue.rules_queues import requires_of
from zndraw_joblib.server.queue.sql_jobs import cost_of, policy_of
from zndraw_joblib.wire.names import JobName
from zndraw_joblib.wire.operators import MAX_DEMANDS, Demand, RequirementDemand
from zndraw_joblib.wire.problems import JobNotFound
from zndraw_joblib.wire.requirements import AnyLabels, matches


class Wanted(NamedTuple):
    """Whose demand: of these jobs, of the jobs of these rooms, or of all.

    With `labels`, it is that of workers with these labels, and only tasks count that such a worker may run.
    """

    jobs: Sequence[JobName] = ()
    rooms: Sequence[str] = ()
    labels: AnyLabels = None

    @property
    def chosen(self) -> Chosen:
        """The jobs."""
        return Chosen(sorted(set(map(str, self.jobs))), self.rooms)

    def counts_worker(self, labels: AnyLabels) -> bool:
        """Return whether a worker with these labels is one of those that are asked for."""
        return self.labels is None or self.labels.items() <= (labels or {}).items()

    def counts_task(self, requires: AnyLabels) -> bool:
        """Return whether a task with these requirements can run on such a worker."""
        return self.labels is None or matches(self.labels, requires)


@dataclass
class _Entry:
    requires: Mapping[str, Any]
    cost: int = 1
    queued: int = 0
    held_back: int = 0
    running: int = 0
    slots: int = 0
    oldest_at: datetime | None = None
    job_ids: set[UUID] = field(default_factory=set)

    def response(self, now: datetime) -> RequirementDemand:
        oldest = 0.0 if self.oldest_at is None else max(0.0, (now - self.oldest_at).total_seconds())
        return RequirementDemand(
            requires=dict(self.requires),
            cost=self.cost,
            queued=self.queued,
            held_back=self.held_back,
            running=self.running,
            slots=self.slots,
            oldest_seconds=oldest,
            desired_slots=self.cost * (self.running + self.queued),
        )


@lru_cache(maxsize=4096)
def _labels_of(stored: str | None) -> Mapping[str, Any]:
    return {} if stored is None else from_json(stored)


def _requires_of(queue: Queue) -> Mapping[str, Any]:
    """Return what a worker must have for the tasks of a queue: a submit narrows what its job requires."""
    return {**policy_of(queue.policy).requires, **requires_of(queue.requires)}


async def read(tx: Transaction, wanted: Wanted, heartbeat_seconds: float) -> Demand:
    """Return the demand. Call it in a snapshot. Raises `JobNotFound` if no job was ever registered.

    Of several jobs those that exist count: their tasks need workers, which also register the others.
    """
    names = {str(name) for name in wanted.jobs}
    unknown = names - await _known(tx, wanted)
    if unknown and unknown == names:
        raise JobNotFound(f"Job {min(unknown)!r} not found: no worker serves it")
    demand = await _read(tx, wanted, heartbeat_seconds)
    demand.unknown_jobs = sorted(unknown) or None
    return demand


async def _read(tx: Transaction, wanted: Wanted, heartbeat_seconds: float) -> Demand:
    now = await tx.now()
    since = now - timedelta(seconds=SILENT_HEARTBEATS * heartbeat_seconds)
    held = await sql_demand.held(tx, since)
    queues = await sql_demand.queues(tx, wanted.chosen, sorted({row.job_id for row in held}))
    # The limits of a job count for the tasks that are asked for first: others may run elsewhere.
    runnable = [queue for queue in queues if wanted.counts_task(_requires_of(queue))]
    claimable = await _claimable(tx, runnable, _held_of_jobs(queues, held))
    entries: dict[bytes, _Entry] = {}
    entry_of = {}
    for queue in queues:
        requires = _requires_of(queue)
        cost = cost_of(policy_of(queue.policy), queue.requires)
        entry = entries.setdefault(to_json([requires, cost]), _Entry(requires, cost))
        entry_of[queue.id] = entry
        if (number := claimable.get(queue.id)) is not None:
            entry.queued += number
            entry.held_back += queue.pending - number
            if number:
                entry.job_ids.add(queue.id)
    for row in held:
        if row.job_id in entry_of and row.is_active and wanted.counts_worker(_labels_of(row.labels)):
            entry_of[row.job_id].running += row.running
    await _add_oldest(tx, entries.values(), everything=wanted.chosen.kind == "all")
    slots = [
        (_labels_of(labels), number)
        for labels, number in await sql_demand.slots(tx, wanted.chosen, since)
        if wanted.counts_worker(_labels_of(labels))
    ]
    for entry in entries.values():
        entry.slots = sum(number for labels, number in slots if matches(labels, entry.requires))
    return _response(entries.values(), sum(number for _, number in slots), now)


async def _known(tx: Transaction, wanted: Wanted) -> set[str]:
    return await sql_demand.known(tx, wanted.chosen.jobs) if wanted.jobs else set()


def _response(entries: Iterable[_Entry], slots: int, now: datetime) -> Demand:
    rows = [entry.response(now) for entry in entries]
    rows = [row for row in rows if row.queued or row.held_back or row.running]
    rows.sort(key=lambda row: (-row.desired_slots, -row.held_back))
    return Demand(
        queued=sum(row.queued for row in rows),
        held_back=sum(row.held_back for row in rows),
        running=sum(row.running for row in rows),
        slots=slots,
        oldest_seconds=max((row.oldest_seconds for row in rows), default=0.0),
        desired_slots=sum(row.desired_slots for row in rows),
        by_requirement=rows[:MAX_DEMANDS],
    )


def _held_of_jobs(queues: Iterable[Queue], held: Iterable[Held]) -> Counter[str]:
    """Return how many tasks of each job workers hold."""
    names = {queue.id: queue.full_name for queue in queues}
    numbers: Counter[str] = Counter()
    for row in held:
        if row.job_id in names:
            numbers[names[row.job_id]] += row.held
    return numbers


async def _claimable(tx: Transaction, queues: Sequence[Queue], held: Mapping[str, int]) -> dict[UUID, int]:
    """Return how many tasks of each queue workers could claim now, if they had slots.

    `held` has how many tasks of each job they hold.
    """
    pauses = await sql_pauses.active(tx)
    numbers = {queue.id: 0 if queue.is_paused or pauses.is_all else queue.pending for queue in queues}
    if pauses.rooms and (open_ids := [id for id, number in numbers.items() if number]):
        _, paused = await sql_counts.pending(tx, open_ids, sorted(pauses.rooms))
        behind: Counter[UUID] = Counter()
        for (job_id, _), number in paused.items():
            behind[job_id] += number
        for queue in queues:
            # What is pending in a room includes scheduled tasks: as many others may all be of open rooms.
            others = queue.pending + queue.scheduled - behind[queue.id]
            numbers[queue.id] = max(0, min(numbers[queue.id], others))
    by_job: dict[str, list[Queue]] = {}
    for queue in queues:
        by_job.setdefault(queue.full_name, []).append(queue)
    for name, of_job in by_job.items():
        await _limit(tx, of_job, numbers, held.get(name, 0))
    return numbers


async def _limit(tx: Transaction, queues: Sequence[Queue], numbers: dict[UUID, int], held: int) -> None:
    """Reduce the numbers of the queues of one job to what its limits allow, beside its `held` tasks."""
    if (limit := queues[0].max_in_flight) is not None:
        free = max(0, limit - held)
        for queue in queues:
            numbers[queue.id] = min(numbers[queue.id], free)
            free -= numbers[queue.id]
    waiting = {queue.id: numbers[queue.id] for queue in queues if numbers[queue.id]}
    if queues[0].limits is not None and waiting:
        numbers.update(await rules_limits.allowed(tx, queues[0].limits, waiting))


async def _add_oldest(tx: Transaction, entries: Iterable[_Entry], *, everything: bool) -> None:
    """Add since when the first task of each entry waits."""
    entry_of = {job_id: entry for entry in entries for job_id in entry.job_ids}
    if not entry_of:
        return
    for task in await sql_counts.of_queues(tx, None if everything else sorted(entry_of)):
        if (entry := entry_of.get(task.job_id)) is not None:
            entry.oldest_at = min(task.since, entry.oldest_at or task.since)
