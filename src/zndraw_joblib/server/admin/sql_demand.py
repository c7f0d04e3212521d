"""The parts of the demand: the counts of queues, the tasks that workers hold, and the slots of workers."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from zndraw_joblib.server.admin.sql_figures import SLOTS
from zndraw_joblib.server.db.bulk import padded
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.statements import BOOLEAN, INTEGER, TEXT, statement
from zndraw_joblib.server.queue.sql_pauses import is_job_paused
from zndraw_joblib.server.queue.sql_task_rows import TASK_IS_HELD
from zndraw_joblib.wire.names import INTERNAL

# The most queues that are read, longest first; no server has tasks of as many jobs at once.
_MAX_QUEUES = 10_000


class Queue(NamedTuple):
    """The row of a queue: of a version of a job, or of the tasks with requirements of their own."""

    id: UUID
    full_name: str
    pending: int
    scheduled: int
    is_paused: bool
    max_in_flight: int | None
    limits: str | None
    requires: str | None
    policy: str | None


class Held(NamedTuple):
    """How many tasks of a queue workers with these labels hold, and how many of them run.

    `is_active`: these workers are neither draining nor silent.
    """

    job_id: UUID
    labels: str | None
    is_active: bool
    held: int
    running: int


class Chosen(NamedTuple):
    """Which jobs the demand is of: of these names, of these rooms, or all but the internal ones."""

    jobs: Sequence[str] = ()
    rooms: Sequence[str] = ()

    @property
    def kind(self) -> str:
        """Which statements are for it."""
        return "jobs" if self.jobs else "rooms" if self.rooms else "all"

    @property
    def params(self) -> dict[str, Any]:
        """The parameters of these statements."""
        if self.jobs:
            return {"all_full_name": padded(sorted(self.jobs))}
        return {"all_room_id": padded(sorted(self.rooms))} if self.rooms else {}


_CONDITIONS: Mapping[str, str] = {
    "jobs": "joblib_job.full_name = ANY (:all_full_name)",
    "rooms": "joblib_job.room_id = ANY (:all_room_id)",
    "all": "true",
}
_QUEUES = {
    kind: statement(
        f"""
SELECT id, full_name, pending, scheduled, {is_job_paused(":now")}, max_in_flight, limits, requires, policy
FROM joblib_job
WHERE {condition} AND room_id <> '{INTERNAL}' AND (pending > 0 OR id = ANY (:all_id))
ORDER BY pending DESC, id LIMIT {_MAX_QUEUES}
""",
        *Queue._fields,
        is_paused=BOOLEAN,
    )
    for kind, condition in _CONDITIONS.items()
}
# With deleted ones: a job without workers may be forgotten, and is there again with its next worker.
_NAMES = statement(
    "SELECT DISTINCT full_name FROM joblib_job WHERE full_name = ANY (:all_full_name)", "full_name"
)
_IS_ACTIVE = "(NOT joblib_worker.draining AND joblib_worker.last_heartbeat >= :since)"
_LABELS = "CAST(joblib_worker.labels AS text)"
# The held tasks are in the order of their index, so that no other index and no scan has it.
_HELD = statement(
    f"""
SELECT busy.job_id, {_LABELS} AS worker_labels, {_IS_ACTIVE} AS is_active,
    CAST(sum(busy.held) AS integer), CAST(sum(busy.running) AS integer)
FROM (
    SELECT worker_id, job_id, count(*) AS held, count(started_at) AS running FROM (
        SELECT worker_id, job_id, started_at FROM joblib_task WHERE {TASK_IS_HELD}
        ORDER BY worker_id LIMIT {2**31}
    ) AS held_tasks
    GROUP BY worker_id, job_id
) AS busy JOIN joblib_worker ON joblib_worker.id = busy.worker_id
GROUP BY busy.job_id, worker_labels, is_active
""",
    *Held._fields,
    labels=TEXT,
    is_active=BOOLEAN,
    held=INTEGER,
    running=INTEGER,
)
_SERVES = """AND joblib_worker.id IN (
    SELECT joblib_worker_job.worker_id
    FROM joblib_job JOIN joblib_worker_job ON joblib_worker_job.job_id = joblib_job.id
    WHERE {}
)"""
_SLOTS_BY_LABELS = {
    kind: statement(
        f"""
SELECT {_LABELS} AS worker_labels, CAST(sum({SLOTS}) AS integer) FROM joblib_worker
WHERE {_IS_ACTIVE} {"" if kind == "all" else _SERVES.format(condition)}
GROUP BY worker_labels
""",
        *("labels", "slots"),
        labels=TEXT,
        slots=INTEGER,
    )
    for kind, condition in _CONDITIONS.items()
}


async def known(tx: Transaction, names: Sequence[str]) -> set[str]:
    """Return those of these names of jobs that are or were registered."""
    return set((await tx.execute(_NAMES, {"all_full_name": padded(sorted(names))})).scalars())


async def held(tx: Transaction, active_since: datetime) -> list[Held]:
    """Return how many tasks workers hold, by queue and by the labels of the workers."""
    return [Held(*row) for row in await tx.execute(_HELD, {"since": active_since})]


async def queues(tx: Transaction, chosen: Chosen, busy: Sequence[UUID]) -> list[Queue]:
    """Return the queues that have tasks or are among the `busy` ones, at most 10,000, the longest first."""
    params = {**chosen.params, "now": await tx.now(), "all_id": padded(sorted(busy) or [UUID(int=0)])}
    return [Queue(*row) for row in await tx.execute(_QUEUES[chosen.kind], params)]


async def slots(tx: Transaction, chosen: Chosen, active_since: datetime) -> list[tuple[str | None, int]]:
    """Return the slots of the active workers that serve the jobs, by the labels of the workers."""
    params = {**chosen.params, "since": active_since}
    return [(labels, number) for labels, number in await tx.execute(_SLOTS_BY_LABELS[chosen.kind], params)]
