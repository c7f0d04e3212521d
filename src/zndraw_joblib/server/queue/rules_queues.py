"""Queues of a job: one for each version of its schema, and for each set of requirements that tasks have.

A worker is linked to the queues that it can serve when it registers, when its labels or the job's policy
change, and when a queue appears. So a claim reads the queues of its worker, and compares no labels.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple
from uuid import UUID

from pydantic_core import from_json, to_json

from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.process.ports import QUEUES, slot_key, version_of, worker_key
from zndraw_joblib.server.queue import sql_jobs, sql_queues, sql_workers
from zndraw_joblib.server.queue.sql_jobs import OWN_COST, JobRecord, cost_of
from zndraw_joblib.server.queue.sql_task_rows import TaskRecord, TaskRow
from zndraw_joblib.wire.names import INTERNAL, JobName
from zndraw_joblib.wire.policy import JobPolicy
from zndraw_joblib.wire.problems import InvalidRequest, ProblemException, TooManyRequests
from zndraw_joblib.wire.requirements import AnyLabels, loosened, matches, missing

# The most queues of a job for tasks with requirements of their own.
MAX_QUEUES = 100
# The most idle queues that are examined for one that can be used again.
_EXAMINED = 8
_RETRY_SECONDS = "30"
# The most queues that a re-check of waiting claims looks at though none of them waits for it.
_MAX_OTHERS = 200
# The most workers with labels that are looked at, and the most that are woken first as a task prefers them.
_MAX_LABELED, _MAX_PREFERRED = 2000, 100
# The most different preferences in one transaction; tasks with others wake any worker.
_MAX_PREFERENCES = 32


@lru_cache(maxsize=4096)
def needs_of(stored: str | None) -> "Needs":
    """Return what the tasks of a queue need, from the text in its row."""
    requires = {} if stored is None else from_json(stored)
    cost = requires.pop(OWN_COST, None)
    return Needs(requires or None, cost)


def requires_of(stored: str | None) -> Mapping[str, Any]:
    """Return the labels that the tasks of a queue require, from the text in its row."""
    return needs_of(stored).requires or {}


class Needs(NamedTuple):
    """What a submit says that a task needs of its worker, besides its job: labels, and slots."""

    requires: AnyLabels = None
    cost: int | None = None

    @classmethod
    def of(cls, options: Any) -> "Needs":
        """Return what a submit or a schedule says; a cost of 1 is that of all tasks."""
        return cls(options.requires or None, options.cost if options.cost != 1 else None)

    @property
    def text(self) -> str | None:
        """The text in the row of the queue of such tasks; None for that of the job."""
        if not self.requires and self.cost is None:
            return None
        own = {} if self.cost is None else {OWN_COST: self.cost}
        return to_json({**own, **(self.requires or {})}).decode()


def fault(options: Any, name: JobName, policy: JobPolicy) -> ProblemException | None:
    """Return why a task of a job cannot have these requirements and this cost; None if it can."""
    return _cost_fault(options.cost, name, policy) or _label_fault(options.requires, name, policy)


def _cost_fault(cost: int | None, name: JobName, policy: JobPolicy) -> ProblemException | None:
    if cost is None:
        return None
    if name.room_id == INTERNAL and cost > 1:
        detail = f"cost: {str(name)!r} runs in the server, whose slots have no cost; leave cost out"
        return _refusal(detail, "cost")
    if cost >= policy.cost:
        return None
    detail = (
        f"cost: a task of job {str(name)!r} takes {policy.cost} slots, and {cost} is less. A submit may only "
        "raise the cost of the job: change it, or leave it out"
    )
    return _refusal(detail, "cost")


def _label_fault(requires: AnyLabels, name: JobName, policy: JobPolicy) -> ProblemException | None:
    if not requires:
        return None
    if name.room_id == INTERNAL:
        detail = f"requires: {str(name)!r} runs in the server, which has no labels; leave requires out"
        return _refusal(detail, "requires")
    key = loosened(policy.requires, requires)
    if key is None:
        return None
    own, of_job = to_json(requires[key]).decode(), to_json(policy.requires[key]).decode()
    detail = (
        f"requires.{key}: job {str(name)!r} requires {of_job}, and {own} allows other workers. A submit may "
        "only narrow what the job requires: change it, or leave it out"
    )
    return _refusal(detail, "requires", key)


def _refusal(detail: str, *loc: str) -> InvalidRequest:
    return InvalidRequest(detail, errors=[{"loc": ["body", *loc], "message": detail, "type": loc[0]}])


async def required(tx: Transaction, tasks: Iterable[TaskRow]) -> dict[UUID, Needs]:
    """Return what those of these tasks need that need something, by id. Of others, nothing is read."""
    rows = [task for task in tasks if task.job_version >= QUEUES]
    if not rows:
        return {}
    names, numbers = [task.job_name for task in rows], [task.job_version for task in rows]
    stored = await sql_queues.by_numbers(tx, names, numbers)
    return {task.id: needs_of(stored.get((task.job_name, task.job_version))) for task in rows}


class Queues:
    """The queues of the current versions of some jobs, which are locked, for tasks with requirements."""

    def __init__(self, records: Iterable[JobRecord] = ()) -> None:
        self._records = {(record.name, record.requires): record for record in records}
        self._refused: dict[tuple[JobName, str | None], ProblemException] = {}

    @property
    def records(self) -> list[JobRecord]:
        """The rows of the queues."""
        return list(self._records.values())

    async def open(self, tx: Transaction, name: JobName, job: JobRecord, needs: Needs) -> None:
        """Make the queue for these needs of an active job, which is locked, unless it exists."""
        key = name, needs.text
        if key[1] is None or key in self._records or key in self._refused:
            return
        try:
            self._records[key] = await _opened(tx, job, key[1])
        except ProblemException as problem:
            self._refused[key] = problem

    def get(self, name: JobName, job: JobRecord, needs: Needs) -> JobRecord:
        """Return the queue for a task. Raises the problem of one that cannot be made."""
        key = name, needs.text
        if key in self._refused:
            raise self._refused[key]
        return job if key[1] is None else self._records[key]


async def preferred(
    tx: Transaction, submitted: Iterable[tuple[TaskRecord, AnyLabels]]
) -> dict[UUID, tuple[UUID, ...]]:
    """Return, by the ids of new tasks, which workers they or their jobs prefer; of most, nothing is read."""
    workers: dict[UUID, list[tuple[UUID, Mapping[str, Any]]]] = {}
    ids_of: dict[tuple[UUID, bytes], tuple[UUID, ...]] = {}
    found: dict[UUID, tuple[UUID, ...]] = {}
    for task, own in submitted:
        prefer = {**task.policy.prefer, **(own or {})}
        if not prefer or not task.is_queued:
            continue
        key = task.job_id, to_json(prefer)
        if key not in ids_of:
            if len(ids_of) >= _MAX_PREFERENCES:
                continue
            if task.job_id not in workers:
                workers[task.job_id] = await sql_queues.labeled(tx, task.job_id, _MAX_LABELED)
            ids = [worker_id for worker_id, labels in workers[task.job_id] if matches(labels, prefer)]
            ids_of[key] = tuple(ids[:_MAX_PREFERRED])
        found[task.id] = ids_of[key]
    return found


class ToClaim(NamedTuple):
    """Queues with pending tasks that claims wait for, and how many of these may be claimed.

    `linked` are workers with tasks in other queues, which they serve since their claims wait.
    """

    pending: Mapping[str, int]
    linked: Sequence[UUID]


async def to_claim(tx: Transaction, names: Sequence[str], worker_ids: Sequence[UUID]) -> ToClaim:
    """Return what the claims of these workers, which wait for the queues of these names, may take."""
    counts = await sql_jobs.claimable_counts(tx)
    others = sorted(counts.keys() - set(names))[:_MAX_OTHERS]
    linked = await sql_queues.linked_to(tx, others, worker_ids) if others else []
    return ToClaim({name: counts[name] for name in names if name in counts}, linked)


class Nearest(NamedTuple):
    """Of the `workers` that are registered for a task's version, the one that lacks the fewest labels."""

    workers: int
    worker_id: UUID
    labels: AnyLabels
    missing: Sequence[str]
    requirements: tuple[AnyLabels, AnyLabels]
    cost: int
    slots: int


async def nearest(tx: Transaction, task: TaskRecord) -> Nearest | None:
    """Return which worker comes next to what a task requires; None if one meets it, or there are none."""
    own = (await required(tx, [task])).get(task.id, Needs())
    cost = max(task.policy.cost, own.cost or 1)
    rows = await sql_jobs.versions(tx, task.job_name)
    number = version_of(task.job_version)
    ids = [row.id for row in rows if row.requires is None and row.job_version == number]
    candidates = await sql_queues.candidates(tx, ids) if ids else []
    if not candidates:
        return None
    requirements = task.policy.requires, own.requires
    lacking = [
        ([*missing(worker.labels, *requirements), *_missing_slots(worker.slots, cost)], worker)
        for worker in candidates
    ]
    least, worker = min(lacking, key=lambda pair: (len(pair[0]), -(pair[1].slots or 1)))
    if not least:
        return None
    about = worker.id, worker.labels, least, requirements, cost, worker.slots or 1
    return Nearest(len(lacking), *about)


def _missing_slots(slots: int | None, cost: int) -> list[str]:
    return [] if (slots or 1) >= cost else [f"{cost} slots"]


def _fits(labels: AnyLabels, slots: int | None, row: JobRecord) -> bool:
    """Return whether a worker with these labels and slots can run the tasks of a queue."""
    is_large = (slots or 1) >= cost_of(row.policy, row.requires)
    return is_large and matches(labels, row.policy.requires, requires_of(row.requires))


async def lock(
    tx: Transaction, wanted: Mapping[JobName, set[str]]
) -> tuple[dict[JobName, JobRecord], Queues]:
    """Lock the active jobs of these names and their queues for the requirements, in one order."""
    texts = set().union(*wanted.values())
    if not texts:
        return await sql_jobs.lock_by_names(tx, list(wanted)), Queues()
    jobs, records = await sql_queues.lock(tx, list(wanted), texts)
    return jobs, Queues(records)


async def _opened(tx: Transaction, job: JobRecord, requires: str) -> JobRecord:
    """Return the queue of the current version of a job for these requirements, with links to its workers."""
    rows = await sql_queues.of_job(tx, job.name)
    queue = None
    if len(rows) < MAX_QUEUES:
        queue = await sql_queues.add(tx, job, requires, [row.number for row in rows])
    else:
        idle = [row for row in rows if not row.pending and not row.scheduled]
        locked = set(await sql_queues.lock_idle(tx, [row.id for row in idle[:_EXAMINED]]))
        for row in idle:
            # A retried task must not get to other workers.
            if row.id in locked and not await sql_jobs.may_run(tx, row.id):
                queue = await sql_queues.reuse(tx, row, job, requires)
                break
    if queue is None:
        what = "requires" if requires_of(requires) else "cost"
        raise TooManyRequests(
            f"{what}: job {str(job.name)!r} has tasks with {MAX_QUEUES} different requirements, which is "
            "the limit; let some of them end, or use fewer different values",
            headers={"Retry-After": _RETRY_SECONDS},
        )
    await _link(tx, queue, await sql_queues.candidates(tx, [job.id]))
    return queue


async def _link(tx: Transaction, queue: JobRecord, candidates: Sequence[sql_queues.Candidate]) -> None:
    """Link those workers to a queue that have the labels and slots for its tasks, and no others."""
    ids = [worker.id for worker in candidates if _fits(worker.labels, worker.slots, queue)]
    await _changed(tx, await sql_queues.set_links(tx, queue.id, ids))


async def _changed(tx: Transaction, worker_ids: Sequence[UUID]) -> None:
    """Let claims of these workers see that their queues have changed."""
    # `sql_claims.lock_with_queues` sees by the heartbeat that a queue was unlinked.
    await sql_workers.heartbeat(tx, worker_ids)
    for worker_id in worker_ids:
        tx.wake(worker_key(worker_id))


async def link_worker(tx: Transaction, worker_id: UUID, rows: Sequence[JobRecord], served: set[int]) -> None:
    """Link a worker to the queues of a job that it can serve: it accepts the schemas of versions `served`.

    `rows` are all versions and queues of the job, locked.
    """
    labels, slots = await sql_workers.placement_of(tx, worker_id)
    linked, unfit = set[UUID](), set[UUID]()
    for row in rows:
        if version_of(row.job_version) not in served:
            continue
        if _fits(labels, slots, row):
            linked.add(row.id)
        elif row.requires is None:
            unfit.add(row.id)
    if await sql_workers.set_links(tx, worker_id, [row.id for row in rows], linked, unfit):
        # `sql_claims.lock_with_queues` sees by the heartbeat that a queue was unlinked.
        await sql_workers.heartbeat(tx, [worker_id])


async def relink(tx: Transaction, name: JobName, *, has_new_cost: bool = False) -> None:
    """Link the workers of a job to its queues again, after its policy, labels or slots have changed.

    With `has_new_cost`, wake claims of those workers too that waited for more free slots.
    """
    rows = await sql_jobs.lock_versions(tx, name)
    versions = {row.job_version: row for row in rows if row.requires is None}
    if not versions:
        return
    candidates = await sql_queues.candidates(tx, [row.id for row in versions.values()])
    for worker_id in {worker.id for worker in candidates} if has_new_cost else ():
        tx.wake(slot_key(worker_id))
    for row in versions.values():
        of_version = [worker for worker in candidates if worker.job_id == row.id]
        fit = [worker.id for worker in of_version if _fits(worker.labels, worker.slots, row)]
        is_fit = set(fit)
        unfit = [worker.id for worker in of_version if worker.id not in is_fit]
        changed = [worker.id for worker in of_version if worker.is_fit != (worker.id in is_fit)]
        await sql_queues.set_fit(tx, row.id, fit, unfit)
        await _changed(tx, changed)
    for row in rows:
        version = versions.get(version_of(row.job_version))
        if row.requires is not None and version is not None:
            await _link(tx, row, [worker for worker in candidates if worker.job_id == version.id])


async def relabel(tx: Transaction, worker_id: UUID, others: Sequence[JobName] = ()) -> None:
    """Link a worker, which is locked, to the queues of its jobs by its labels and slots. Lock `others`."""
    names = await sql_queues.jobs_of_worker(tx, worker_id)
    await sql_queues.lock_all(tx, [*names, *others])
    for name in sorted(names):
        await relink(tx, name)
    # Its links may be the same, but more of its slots may be free.
    tx.wake(worker_key(worker_id))
