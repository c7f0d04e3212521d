"""The queue and a simple model have the same results and rows after any sequence of requests."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule
from invariants import broken_invariants
from replica import ADMIN, OWNER, STRANGER, SUBMITTER, ManualClock
from sqlalchemy import select

from model.ledger import ENDED, STUCK, TIMEOUT, Ledger, Policy
from model.machines import RunMachine, runs
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.engine import open_database
from zndraw_joblib.server.db.tables import Job, Task, Worker, WorkerJobLink
from zndraw_joblib.server.process.ports import Identity, Page
from zndraw_joblib.server.process.settings import JobLibSettings
from zndraw_joblib.server.queue import (
    rules_claims,
    rules_jobs,
    rules_sweep,
    rules_task_actions,
    rules_tasks,
    rules_workers,
)
from zndraw_joblib.server.runtime.runtime import Runtime
from zndraw_joblib.wire.events import Emission, TaskStatusEvent
from zndraw_joblib.wire.messages import JobRegisterRequest, TaskActionRequest, TaskUpdateRequest
from zndraw_joblib.wire.names import GLOBAL, INTERNAL, JobName
from zndraw_joblib.wire.problems import ProblemException
from zndraw_joblib.wire.statuses import TaskStatus

A, B = JobName(GLOBAL, "modifiers", "A"), JobName(GLOBAL, "modifiers", "B")
C = JobName("lab", "modifiers", "C")
INTERNAL_JOB = JobName(INTERNAL, "modifiers", "Render")
NAMES = st.sampled_from([A, A, B, C])
SUBMITTED_JOBS = st.sampled_from([A, A, A, B, B, C, C, INTERNAL_JOB])
SCHEMAS = st.sampled_from([{}, {}, {}, {"title": "another"}])
USERS = [OWNER, STRANGER, SUBMITTER, ADMIN]
OWNERS = st.sampled_from([OWNER, OWNER, STRANGER])
SUBMITTERS = st.sampled_from([SUBMITTER, SUBMITTER, *USERS])
# None means the permitted caller: the owner of the worker, or the holder of the task.
CALLERS = st.sampled_from([None, None, None, None, *USERS])
ROOMS = st.sampled_from(["lab", "lab", "lab", "other"])
# None means the next step of a successful task.
REPORTED = st.sampled_from([None, None, None, None, *TaskStatus])
TOKENS = st.sampled_from(["", "right", "right", "old", "other"])
# None means a claim without a claim id.
CLAIM_IDS = st.sampled_from([None, None, UUID(int=1), UUID(int=2)])
# How many tasks a claim asks for, and whether it starts them.
SIZES = st.sampled_from([(1, False), (1, False), (1, True), (2, False), (5, True)])
POLICIES = {
    B: Policy(attempts=2, after_errors=True, crashes=2),
    C: Policy(attempts=3, after_errors=True, after_losses=False, pause=10, start=0),
}
NEXT = {"claimed": TaskStatus.RUNNING, "running": TaskStatus.COMPLETED}


class QueueAgainstLedger(RuleBasedStateMachine):
    """Sends the same requests to the queue and to the ledger, and compares results, events and all rows."""

    known_workers = Bundle("known_workers")
    known_tasks = Bundle("known_tasks")

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url
        self.clock = ManualClock()
        self.ledger = Ledger(self.clock.now, POLICIES)
        self.published: list[tuple[UUID, str]] = []
        self.runner = asyncio.Runner()
        self.runtime = Runtime(open_database(url, self.clock), JobLibSettings(), publish=self._record_events)

    def teardown(self) -> None:
        """Close the database and check its invariants from outside."""
        self.runner.run(self.runtime.database.close())
        self.runner.close()
        assert broken_invariants(self.url) == []

    async def _record_events(self, emissions: Sequence[Emission]) -> None:
        events = [event for event, _ in emissions if isinstance(event, TaskStatusEvent)]
        self.published += [(event.id, event.status.value) for event in events]

    def run_in_transaction(self, work: Callable[..., Any], **options: Any) -> Any:
        """Run one request in a transaction; return its result, or the class of its problem."""
        try:
            return self.runner.run(self.runtime.write(work, **options))
        except ProblemException as problem:
            return type(problem)

    def run_batch(self, work: Callable[..., Any], items: Sequence[Any]) -> list[Any]:
        """Run a batch in one transaction; a problem is returned as its class."""
        answers = self.run_in_transaction(work, items=items)
        return [type(answer) if isinstance(answer, ProblemException) else answer for answer in answers]

    @initialize(target=known_workers)
    def set_up(self) -> Any:
        """Register the internal job, which has no worker, and two workers of two owners."""
        self._register(ADMIN, INTERNAL_JOB, {}, None)
        first, second = self._register(OWNER, A, {}, None), self._register(STRANGER, A, {}, None)
        self._register(OWNER, B, {}, first)
        return multiple(first, second)

    @rule(target=known_workers, by=OWNERS, name=NAMES, schema=SCHEMAS)
    def register_with_a_new_worker(self, by: Identity, name: JobName, schema: dict[str, Any]) -> Any:
        """Register a job with a new worker."""
        return self._register(by, name, schema, None)

    @rule(worker=known_workers, by=OWNERS, name=NAMES, schema=SCHEMAS)
    def register_one_more_job(
        self, worker: UUID, by: Identity, name: JobName, schema: dict[str, Any]
    ) -> None:
        """Register another job, or the same one again, for a known worker."""
        self._register(by, name, schema, worker)

    def _register(self, by: Identity, name: JobName, schema: dict[str, Any], worker: UUID | None) -> Any:
        refusal = self.ledger.check_registration(by, name, schema, worker)
        request = JobRegisterRequest(
            category=name.category, name=name.name, schema_=schema, worker_id=worker, **_policy_fields(name)
        )
        answer = self.run_in_transaction(
            rules_jobs.register, item=rules_jobs.JobToRegister(by, name.room_id, request)
        )
        if refusal is not None:
            assert answer is refusal
            return multiple()
        job, is_new = answer
        assert is_new == self.ledger.register(by, name, schema, job.worker_id)
        assert set(job.workers) == self.ledger.jobs[name].workers
        return job.worker_id

    @rule(target=known_tasks, by=SUBMITTERS, name=SUBMITTED_JOBS, room=ROOMS)
    def submit(self, by: Identity, name: JobName, room: str) -> Any:
        """Submit a task of a remote or an internal job."""
        refusal = self.ledger.check_submission(name, room)
        item = rules_tasks.Submission(by, room, name, {}, is_configured=True, validate_payload=False)
        [answer] = self.run_batch(rules_tasks.submit, [item])
        if refusal is not None:
            assert answer is refusal
            return multiple()
        assert answer.queue_position == self.ledger.submit(by, name, answer.id)
        return answer.id

    @rule(requests=st.lists(st.tuples(known_workers, CALLERS, CLAIM_IDS, SIZES), min_size=1, max_size=4))
    def claim(self, requests: list[tuple[UUID, Identity | None, UUID | None, tuple[int, bool]]]) -> None:
        """Claim for several workers at once, or repeat a claim, by their owners or by other users."""
        items = [
            rules_claims.Claim(by or self._owner(worker), worker, 15, claim_id, task_limit=most, start=start)
            for worker, by, claim_id, (most, start) in requests
        ]
        for item, answer in zip(items, self.run_batch(rules_claims.claim, items), strict=True):
            claimed = answer if isinstance(answer, type) else [task.id for task in answer.tasks]
            assert claimed == self.ledger.claim(
                item.caller, item.worker_id, item.claim_id, item.task_limit, start=item.start
            )

    @rule(target=known_tasks, worker=known_workers, name=SUBMITTED_JOBS, steps=st.sampled_from([1, 2, 3, 3]))
    def run_a_task(self, worker: UUID, name: JobName, steps: int) -> Any:
        """Submit a task, and report some steps of the oldest task of a worker."""
        task_id = self.submit(SUBMITTER, name, "lab")
        self.claim([(worker, None, None, (1, False))])
        held = [id_ for id_, task in self.ledger.tasks.items() if task.holder == worker]
        for _ in range(steps - 1):
            self.report([(id_, None, None, "right") for id_ in held[-1:]])
        return task_id

    @rule(worker=known_workers, steps=st.sampled_from([1, 2, 2]), is_retried=st.booleans())
    def fail_tasks(self, worker: UUID, steps: int, is_retried: bool) -> None:
        """Fail the tasks of a worker once or repeatedly, then retry the last one by hand."""
        for _ in range(steps):
            self.claim([(worker, None, None, (1, False))])
            held = [id_ for id_, task in self.ledger.tasks.items() if task.holder == worker]
            self.report([(id_, None, TaskStatus.FAILED, "right") for id_ in held[-1:]])
        for task_id in held[-1:] if is_retried else []:
            self.act(task_id, None, "retry")

    def _owner(self, worker: UUID | None) -> Identity:
        owners = {worker_id: known.owner for worker_id, known in self.ledger.workers.items()}
        return Identity(owners.get(worker, OWNER.id), is_superuser=False)

    @rule(reports=st.lists(st.tuples(known_tasks, CALLERS, REPORTED, TOKENS), min_size=1, max_size=3))
    def report(self, reports: list[tuple[UUID, Identity | None, TaskStatus | None, str]]) -> None:
        """Report on tasks with a current token, an old one, none, or another worker's id."""
        items = [self._report(*one) for one in reports]
        for item, answer in zip(items, self.run_batch(rules_tasks.report, items), strict=True):
            fields = item.update.model_dump(exclude_unset=True)
            refusal = self.ledger.report(item.caller, item.task_id, fields.pop("status").value, fields)
            assert (answer if isinstance(answer, type) else None) == refusal

    def _report(
        self, task_id: UUID, by: Identity | None, status: TaskStatus | None, token: str
    ) -> rules_tasks.Report:
        task = self.ledger.tasks[task_id]
        holder = ADMIN if task.job == INTERNAL_JOB else Identity(task.owner or OWNER.id, is_superuser=False)
        reported = status or NEXT.get(task.status, TaskStatus.CANCELLED)
        fields: dict[str, Any] = {"error": "oh"} if reported is TaskStatus.FAILED else {"result": 1}
        if token == "right":
            fields |= {"attempt": task.attempt, "worker_id": task.holder}
        elif token == "old":
            fields["attempt"] = task.attempt - 1
        elif token == "other":
            fields["worker_id"] = uuid4()
        return rules_tasks.Report(by or holder, task_id, TaskUpdateRequest(status=reported, **fields))

    @rule(task_id=known_tasks, by=CALLERS, what=st.sampled_from(["release", "release", "retry"]))
    def act(self, task_id: UUID, by: Identity | None, what: str) -> None:
        """Release or retry a task."""
        caller = by or ADMIN
        answer = self.run_in_transaction(
            getattr(rules_task_actions, what), caller=caller, task_id=task_id, action=TaskActionRequest()
        )
        refusal = getattr(self.ledger, what)(caller, task_id)
        assert (answer if isinstance(answer, type) else None) == refusal

    @rule(worker=known_workers, by=CALLERS)
    def heartbeat(self, worker: UUID, by: Identity | None) -> None:
        """Send a heartbeat."""
        caller = by or self._owner(worker)
        [answer] = self.run_batch(rules_workers.heartbeat, [rules_workers.Heartbeat(caller, worker, 15)])
        assert (answer if isinstance(answer, type) else None) == self.ledger.heartbeat(caller, worker)

    @rule(worker=known_workers, by=CALLERS)
    def remove_worker(self, worker: UUID, by: Identity | None) -> None:
        """Remove a worker."""
        caller = by or self._owner(worker)
        assert self.run_in_transaction(
            rules_workers.remove, caller=caller, worker_id=worker
        ) == self.ledger.remove_worker(caller, worker)

    @rule(worker=known_workers, by=CALLERS, name=NAMES)
    def unlink_job(self, worker: UUID, by: Identity | None, name: JobName) -> None:
        """Unregister a worker from one job."""
        caller = by or self._owner(worker)
        answer = self.run_in_transaction(rules_workers.unlink_job, caller=caller, worker_id=worker, name=name)
        assert answer == self.ledger.unlink_job(caller, worker, name)

    @rule(seconds=st.sampled_from([1, 10, 30, 61, 1800, 3601, -30]))
    def pass_time(self, seconds: float) -> None:
        """Advance the clock; sometimes set it back."""
        self.clock.advance(seconds)
        self.ledger.now = self.clock.now

    @rule()
    def sweep(self) -> None:
        """Run a sweeper cycle."""
        self.ledger.sweep()
        self.run_in_transaction(rules_sweep.retire_stale, timeout=TIMEOUT)
        assert self.run_in_transaction(rules_sweep.recover_abandoned) == 0
        self.run_in_transaction(rules_sweep.fail_stuck, timeout=STUCK)
        self.run_in_transaction(rules_sweep.recover_overdue)
        self.run_in_transaction(rules_sweep.enqueue_due)

    @invariant()
    def everything_matches_the_model(self) -> None:
        """Compare rows, positions, counts and events with the ledger."""
        found = self.runner.run(self.runtime.database.read(self._read_database))
        assert found == self._expected()
        assert Counter(self.published) == Counter(self.ledger.published)
        self.published.clear()
        self.ledger.published.clear()

    async def _read_database(self, tx: Transaction) -> dict[str, Any]:
        positions = {}
        for room in ("lab", "other"):
            page = await rules_tasks.page(tx, room, None, part=Page(500, 0))
            positions |= {item.id: item.queue_position for item in page.items}
        named = {row.id: row for row in await tx.execute(select(Job.__table__))}
        served: dict[UUID, set[UUID]] = {job_id: set() for job_id in named}
        for worker_id, job_id in await tx.execute(select(WorkerJobLink.__table__)):
            served[job_id].add(worker_id)
        return {
            "jobs": {
                (row.room_id, row.name): (row.schema, row.deleted, row.pending, row.scheduled, served[row.id])
                for row in named.values()
            },
            "workers": {
                row.id: (row.owner_id, row.last_heartbeat)
                for row in await tx.execute(select(Worker.__table__))
            },
            "tasks": {
                row.id: (
                    row.status,
                    row.worker_id,
                    row.attempt,
                    row.started_at,
                    row.completed_at,
                    row.error,
                    row.result,
                    positions[row.id],
                )
                for row in await tx.execute(select(Task.__table__))
            },
        }

    def _expected(self) -> dict[str, Any]:
        ledger = self.ledger
        ranks = {id_: rank for job in ledger.jobs.values() for rank, id_ in enumerate(job.queue, 1)}
        for task_id, task in ledger.tasks.items():
            is_waiting = task_id in ranks or task_id in ledger.jobs[task.job].scheduled
            assert (task.status == "pending") == is_waiting
            assert (task.status in ENDED) == (task.ended is not None)
        return {
            "jobs": {
                (name.room_id, name.name): (
                    job.schema,
                    job.is_deleted,
                    len(job.queue),
                    len(job.scheduled),
                    job.workers,
                )
                for name, job in ledger.jobs.items()
            },
            "workers": {id_: (worker.owner, worker.heartbeat) for id_, worker in ledger.workers.items()},
            "tasks": {
                id_: (
                    task.status,
                    task.holder,
                    task.attempt,
                    task.started,
                    task.ended,
                    task.error,
                    task.result,
                    ranks.get(id_),
                )
                for id_, task in ledger.tasks.items()
            },
        }


def _policy_fields(name: JobName) -> dict[str, Any]:
    """Return the policy fields of a registration."""
    policy = POLICIES.get(name, Policy())
    causes = [policy.after_losses and "worker_lost", policy.after_errors and "error"]
    return {
        "max_attempts": policy.attempts,
        "retry_on": [cause for cause in causes if cause],
        "max_crashes": policy.crashes,
        "backoff": {"base_seconds": policy.pause, "factor": 1},
        "start_timeout_seconds": policy.start,
    }


@pytest.mark.slow
@pytest.mark.timeout(600)
@runs(sqlite=[(50, 30)], postgresql=[(12, 30)])
def test_the_queue_matches_the_model(run_machine: RunMachine) -> None:
    """After each step of random sequences of requests, results, rows and events match the model."""
    run_machine(QueueAgainstLedger)
