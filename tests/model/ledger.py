"""A model of the queue in dicts and lists: the effect of each request, as simple as possible."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from zndraw_joblib.server.process.ports import Identity
from zndraw_joblib.wire.names import INTERNAL, JobName
from zndraw_joblib.wire.problems import (
    Forbidden,
    InvalidTaskTransition,
    JobNotFound,
    ProblemException,
    StaleReport,
    WorkerNotFound,
)

TIMEOUT = timedelta(seconds=60)
STUCK = timedelta(seconds=3600)
INTERVAL = timedelta(seconds=15)
JITTER = timedelta(seconds=5)
ENDED = {"completed", "failed", "cancelled"}
# A copy of the transition table, independent of the code.
TRANSITIONS = {
    "pending": {"cancelled"},
    "claimed": {"pending", "running", "failed", "cancelled"},
    "running": {"pending", "completed", "failed", "cancelled"},
}

Refusal = type[ProblemException]


@dataclass(frozen=True)
class Policy:
    """The retry policy of a job."""

    attempts: int = 1
    after_errors: bool = False
    after_losses: bool = True
    crashes: int = 3
    pause: float = 0
    start: float = 60


@dataclass
class Job:
    """A job with its counts and its workers."""

    schema: dict[str, Any]
    policy: Policy
    is_deleted: bool = False
    queue: list[UUID] = field(default_factory=list)
    scheduled: dict[UUID, datetime] = field(default_factory=dict)
    workers: set[UUID] = field(default_factory=set)


@dataclass
class Worker:
    """A worker with its owner and its last heartbeat."""

    owner: str
    heartbeat: datetime


@dataclass
class Task:
    """A task with its status and its holder."""

    job: JobName
    submitter: str
    status: str
    created: datetime
    order: int
    holder: UUID | None = None
    owner: str | None = None
    attempt: int = 0
    started: datetime | None = None
    ended: datetime | None = None
    error: str | None = None
    result: Any = None
    claimed: datetime | None = None
    claim_id: UUID | None = None
    failures: int = 0
    crashes: int = 0
    reason: str | None = None


class Ledger:
    """The state of the queue. Each method applies one request, or returns the class of its problem."""

    def __init__(self, now: datetime, policies: dict[JobName, Policy]) -> None:
        self.now = now
        self.policies = policies
        self.jobs: dict[JobName, Job] = {}
        self.workers: dict[UUID, Worker] = {}
        self.tasks: dict[UUID, Task] = {}
        self.published: list[tuple[UUID, str]] = []

    def _move(self, task_id: UUID, status: str, error: str | None = None) -> None:
        task = self.tasks[task_id]
        if task.status == "pending":
            job = self.jobs[task.job]
            job.queue = [one for one in job.queue if one != task_id]
            job.scheduled.pop(task_id, None)
        task.status = status
        if status == "running":
            task.started = self.now
        if status in ENDED:
            task.ended, task.error, task.reason = self.now, error, None
        self.published.append((task_id, status))

    def _return_to_queue(
        self, task_id: UUID, reason: str, error: str | None = None, pause: float = 0
    ) -> None:
        task, job = self.tasks[task_id], self.jobs[self.tasks[task_id].job]
        task.status, task.reason, task.error, task.result = "pending", reason, error, None
        task.holder = task.claimed = task.started = task.ended = task.claim_id = None
        if pause:
            job.scheduled[task_id] = self.now + timedelta(seconds=pause)
        else:
            self._queue(task_id)
        job.is_deleted = False
        self.published.append((task_id, "pending"))

    def _queue(self, task_id: UUID) -> None:
        job = self.jobs[self.tasks[task_id].job]
        job.queue = sorted([*job.queue, task_id], key=lambda one: self.tasks[one].order)

    def _fail_attempt(self, task_id: UUID, error: str | None, *, is_loss: bool) -> None:
        task, policy = self.tasks[task_id], self.jobs[self.tasks[task_id].job].policy
        task.crashes, task.failures = task.crashes + is_loss, task.failures + (not is_loss)
        is_on = policy.after_losses if is_loss else policy.after_errors
        has_more = task.crashes < policy.crashes if is_loss else task.failures < policy.attempts
        if policy.attempts > 1 and is_on and has_more:
            self._return_to_queue(task_id, "lost" if is_loss else "error", error, policy.pause)
        else:
            self._move(task_id, "failed", error)

    def _delete_orphan(self, name: JobName) -> None:
        job = self.jobs[name]
        if name.room_id != INTERNAL and not job.workers and not job.queue and not job.scheduled:
            job.is_deleted = True

    def check_registration(
        self, by: Identity, name: JobName, schema: dict[str, Any], worker: UUID | None
    ) -> Refusal | None:
        """Return the problem of a registration, or None."""
        known = self.workers.get(worker) if worker else None
        if worker and (known is None or known.owner != by.id):
            return WorkerNotFound
        return None

    def register(self, by: Identity, name: JobName, schema: dict[str, Any], worker: UUID | None) -> bool:
        """Register a worker for a job. Return whether the job is new or restored."""
        is_new = name not in self.jobs or self.jobs[name].is_deleted
        job = self.jobs.setdefault(name, Job(schema, self.policies.get(name, Policy())))
        job.is_deleted, job.schema = False, schema
        if worker is not None:
            self.workers.setdefault(worker, Worker(by.id, self.now))
            job.workers.add(worker)
        return is_new

    def check_submission(self, name: JobName, room: str) -> Refusal | None:
        """Return the problem of a submission, or None."""
        job = self.jobs.get(name)
        is_visible = name.room_id.startswith("@") or name.room_id == room
        return None if job and not job.is_deleted and is_visible else JobNotFound

    def submit(self, by: Identity, name: JobName, task_id: UUID) -> int | None:
        """Insert a task. Return its position."""
        task = Task(name, by.id, "pending", self.now, len(self.tasks))
        self.tasks[task_id] = task
        if name.room_id == INTERNAL:
            task.status, task.attempt = "claimed", 1
            self.published.append((task_id, "claimed"))
            return None
        self.jobs[name].queue.append(task_id)
        self.published.append((task_id, "pending"))
        return len(self.jobs[name].queue)

    def claim(
        self, by: Identity, worker_id: UUID, claim_id: UUID | None, most: int = 1, *, start: bool = False
    ) -> list[UUID] | Refusal:
        """Claim the oldest tasks that a worker may have, or return those that it holds by this claim id."""
        worker = self.workers.get(worker_id)
        if worker is None:
            return WorkerNotFound
        if worker.owner != by.id:
            return Forbidden
        if worker.heartbeat < self.now - INTERVAL / 4:
            worker.heartbeat = self.now
        held = [id_ for id_, task in self.tasks.items() if task.holder == worker_id and task.ended is None]
        same = [id_ for id_ in held if claim_id is not None and self.tasks[id_].claim_id == claim_id]
        if same:
            return same
        queued = [
            task_id
            for name, job in self.jobs.items()
            if worker_id in job.workers and name.room_id != INTERNAL
            for task_id in job.queue
        ]
        oldest = sorted(queued, key=lambda task_id: self.tasks[task_id].order)[:most]
        for task_id in oldest:
            self._move(task_id, "running" if start else "claimed")
            task = self.tasks[task_id]
            task.holder, task.owner, task.attempt = worker_id, worker.owner, task.attempt + 1
            task.claimed, task.claim_id = self.now, claim_id
        return oldest

    def report(self, by: Identity, task_id: UUID, status: str, fields: dict[str, Any]) -> Refusal | None:
        """Apply a report to a task; a repeat changes nothing."""
        task = self.tasks[task_id]
        if refusal := self._check_report(by, task, status, fields):
            return None if refusal is StaleReport and self._has_requeued(task, status, fields) else refusal
        if self._has_requeued(task, status, fields):
            return None
        if status == task.status and status not in {"pending", "claimed"}:
            is_same = status != "failed" or fields.get("error") == task.error
            return None if is_same else InvalidTaskTransition
        if status not in TRANSITIONS.get(task.status, ()):
            return InvalidTaskTransition
        was_pending = task.status == "pending"
        self._apply_report(task_id, status, fields)
        if was_pending:
            self._delete_orphan(task.job)
        return None

    def _apply_report(self, task_id: UUID, status: str, fields: dict[str, Any]) -> None:
        if status == "failed":
            self._fail_attempt(task_id, fields.get("error"), is_loss=False)
        elif status == "pending":
            self._return_to_queue(task_id, "released")
        else:
            self._move(task_id, status, fields.get("error"))
        if status == "completed":
            self.tasks[task_id].result = fields.get("result")

    def _has_requeued(self, task: Task, status: str, fields: dict[str, Any]) -> bool:
        is_same = fields.get("attempt") == task.attempt and fields.get("error") == task.error
        reason = {"failed": "error", "pending": "released"}.get(status)
        return reason is not None and (task.status, task.reason) == ("pending", reason) and is_same

    def release(self, by: Identity, task_id: UUID) -> Refusal | None:
        """Release a held task."""
        task = self.tasks[task_id]
        is_internal = task.job.room_id == INTERNAL
        if not by.is_superuser and (task.owner != by.id or (is_internal and task.ended is None)):
            return Forbidden
        if task.status not in {"claimed", "running"}:
            return InvalidTaskTransition
        self._return_to_queue(task_id, "released")
        return None

    def retry(self, by: Identity, task_id: UUID) -> Refusal | None:
        """Requeue a failed or cancelled task."""
        task = self.tasks[task_id]
        is_internal = task.job.room_id == INTERNAL
        if not by.is_superuser and (task.submitter != by.id or (is_internal and task.ended is None)):
            return Forbidden
        if task.status not in {"failed", "cancelled"}:
            return InvalidTaskTransition
        task.failures = task.crashes = 0
        self._return_to_queue(task_id, "retried")
        return None

    def _check_report(self, by: Identity, task: Task, status: str, fields: dict[str, Any]) -> Refusal | None:
        is_holder, is_submitter = task.owner == by.id, task.submitter == by.id
        if not (is_holder or is_submitter or by.is_superuser):
            return Forbidden
        if is_submitter and not is_holder and not by.is_superuser and status != "cancelled":
            return Forbidden
        present = {"worker_id": task.holder, "attempt": task.attempt}
        if any(fields.get(name, value) != value for name, value in present.items()):
            return StaleReport
        return None

    def heartbeat(self, by: Identity, worker_id: UUID) -> Refusal | None:
        """Record a heartbeat of a worker."""
        worker = self.workers.get(worker_id)
        if worker is None:
            return WorkerNotFound
        if worker.owner != by.id:
            return Forbidden
        worker.heartbeat = self.now
        return None

    def _check_removal(self, by: Identity, worker_id: UUID) -> Refusal | None:
        worker = self.workers.get(worker_id)
        if worker is None:
            return WorkerNotFound
        return None if by.is_superuser or worker.owner == by.id else Forbidden

    def remove_worker(self, by: Identity, worker_id: UUID) -> Refusal | None:
        """Remove a worker."""
        if refusal := self._check_removal(by, worker_id):
            return refusal
        self._remove(worker_id)
        return None

    def _remove(self, worker_id: UUID) -> None:
        del self.workers[worker_id]
        for task_id, task in self.tasks.items():
            if task.holder == worker_id and task.status in {"claimed", "running"}:
                self._fail_attempt(task_id, "Worker disconnected", is_loss=True)
        for name, job in self.jobs.items():
            if worker_id in job.workers:
                job.workers.remove(worker_id)
                self._delete_orphan(name)

    def unlink_job(self, by: Identity, worker_id: UUID, name: JobName) -> Refusal | None:
        """Unregister a worker from one job."""
        if refusal := self._check_removal(by, worker_id):
            return refusal
        if name not in self.jobs or worker_id not in self.jobs[name].workers:
            return JobNotFound
        self.jobs[name].workers.remove(worker_id)
        self.workers[worker_id].heartbeat = self.now
        self._delete_orphan(name)
        return None

    def sweep(self) -> None:
        """Retire stale workers, clamp future heartbeats, and enqueue due tasks."""
        for worker_id, worker in list(self.workers.items()):
            if worker.heartbeat > self.now + JITTER:
                worker.heartbeat = self.now
            if worker.heartbeat < self.now - TIMEOUT:
                self._remove(worker_id)
        self._apply_time_limits()
        for job in self.jobs.values():
            for task_id, at in list(job.scheduled.items()):
                if at <= self.now:
                    del job.scheduled[task_id]
                    self._queue(task_id)

    def _apply_time_limits(self) -> None:
        for task_id, task in self.tasks.items():
            is_held = task.status in {"claimed", "running"}
            if task.job.room_id == INTERNAL and is_held and (task.started or task.created) < self.now - STUCK:
                self._move(task_id, "failed", "Internal worker timeout")
        for task_id, task in self.tasks.items():
            start = self.jobs[task.job].policy.start
            if task.job.room_id == INTERNAL or task.status != "claimed" or not start:
                continue
            if task.claimed and task.claimed + timedelta(seconds=start) <= self.now:
                self._return_to_queue(task_id, "slow", f"The task was not started within {start:g} s")
