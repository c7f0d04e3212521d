"""The frame of the state machines: two servers on one database, and tests that run a machine on each kind."""

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar
from uuid import UUID

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from invariants import broken_invariants
from replica import ADMIN, OWNER, ManualClock

from zndraw_joblib.server.admin import rules_searches
from zndraw_joblib.server.db.engine import open_database
from zndraw_joblib.server.process.settings import JobLibSettings
from zndraw_joblib.server.queue import rules_jobs, rules_sweep, rules_task_actions, rules_tasks, rules_workers
from zndraw_joblib.server.runtime.runtime import Runtime
from zndraw_joblib.wire.messages import (
    JobRegisterRequest,
    TaskActionRequest,
    TaskClaimRequest,
    TaskUpdateRequest,
)
from zndraw_joblib.wire.names import GLOBAL, JobName
from zndraw_joblib.wire.operators import BulkAction, TaskFilter
from zndraw_joblib.wire.policy import Backoff
from zndraw_joblib.wire.problems import ProblemException
from zndraw_joblib.wire.statuses import TaskStatus

SERVERS, INDEXES = st.sampled_from([0, 1]), st.integers(0, 9)
SOME = st.sets(INDEXES, min_size=1, max_size=4)
ENDS = st.sampled_from([TaskStatus.COMPLETED, TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED])
# After how many statements a server is killed.
KILLS = st.sampled_from([None, None, None, *range(13)])
JOB = JobName(GLOBAL, "modifiers", "Rotate")
RETRIES: dict[str, Any] = {"timeout_seconds": 60, "backoff": Backoff(base_seconds=5, factor=1)}


class Killed(Exception):
    """The process is gone."""


class TwoServers(RuleBasedStateMachine):
    """Two servers on one database and with one clock. A rule may kill one after any statement."""

    def __init__(self, url: str, options: JobLibSettings | None = None) -> None:
        super().__init__()
        self.url, self.clock, self.runner = url, ManualClock(), asyncio.Runner()
        self.runtimes = [
            Runtime(open_database(url, self.clock), options or JobLibSettings()) for _ in range(2)
        ]
        self.kill_after: int | None = None
        for runtime in self.runtimes:
            runtime.database.on_statement = self._kill

    async def _kill(self, connection: Any, *_: Any) -> None:
        # SQLite's transactions end with their process as a whole.
        if self.kill_after is not None and hasattr(connection, "is_in_transaction"):
            self.kill_after -= 1
            if self.kill_after < 0:
                raise Killed

    def teardown(self) -> None:
        """Close the databases and check their invariants from outside."""
        for runtime in self.runtimes:
            self.runner.run(runtime.database.close())
        self.runner.close()
        assert broken_invariants(self.url) == []

    def run(self, work: Any) -> Any:
        """Wait for the work of a server; return its result, or the problem."""
        try:
            return self.runner.run(work)
        except (ProblemException, Killed) as problem:
            return problem
        finally:
            self.kill_after = None

    def write(self, server: int, work: Any, *args: Any, **options: Any) -> Any:
        """Run a transaction on a server; return its result, or the problem."""
        return self.run(self.runtimes[server].write(work, *args, **options))

    def register_job(self, name: JobName, **fields: Any) -> Any:
        """Register a job, with a new worker unless `worker_id` names one; return the job."""
        request = JobRegisterRequest(category=name.category, name=name.name, **fields)
        job, _ = self.write(0, rules_jobs.register, item=rules_jobs.JobToRegister(OWNER, GLOBAL, request))
        return job

    def act_on(self, server: int, what: str, task_id: UUID) -> Any:
        """Release, retry or fail a task by hand; return it, or the problem."""
        return self.write(server, getattr(rules_task_actions, what), ADMIN, task_id, TaskActionRequest())

    def change_all(self, server: int, action: BulkAction, task_filter: TaskFilter) -> None:
        """Change all tasks that a filter finds."""
        runtime, confirmed = (
            self.runtimes[server],
            rules_searches.Confirmed(ADMIN, action, task_filter, 2**60),
        )
        self.run(rules_searches.apply(runtime.database.read, runtime.write, confirmed, None))

    def sweep(self, server: int, *works: Any) -> None:
        """Let a server do what is due."""
        for work in works:
            while self.write(server, work):
                pass


class OneWorker(TwoServers):
    """Two servers with a job whose worker claims all tasks."""

    # The ids of the tasks, oldest first.
    tasks: Any
    policy: ClassVar[dict[str, Any]] = {"max_attempts": 2, **RETRIES}

    @initialize()
    def register(self) -> None:
        """Register the job with a new worker."""
        self.worker = self.register_job(JOB, **self.policy).worker_id

    def task(self, index: int) -> UUID | None:
        """Return one of the newest tasks."""
        return list(self.tasks)[-1 - index % len(self.tasks)] if self.tasks else None

    def chosen(self, indexes: set[int]) -> list[UUID]:
        """Return some of the newest tasks."""
        return sorted({task for index in indexes if (task := self.task(index)) is not None})

    @rule(server=SERVERS, number=st.integers(1, 4), start=st.booleans())
    def claim(self, server: int, number: int, *, start: bool) -> None:
        """Claim tasks, perhaps with their start."""
        request = TaskClaimRequest(worker_id=self.worker, start=start, max=number)
        self.run(self.runtimes[server].claim(OWNER, request))

    @rule(server=SERVERS, end=ENDS, indexes=SOME, tree=st.booleans(), kill_after=KILLS)
    def report(
        self, server: int, end: TaskStatus, indexes: set[int], kill_after: int | None, *, tree: bool
    ) -> None:
        """Report starts and ends of tasks in one batch, perhaps with a kill of the server."""
        also = {"tree": tree} if end is TaskStatus.CANCELLED else {}
        reports = [
            rules_tasks.Report(OWNER, task, TaskUpdateRequest(status=status, **fields))
            for task in self.chosen(indexes)
            for status, fields in ((TaskStatus.RUNNING, {}), (end, also))
        ]
        if reports:
            self.kill_after = kill_after
            self.run(self.runtimes[server].report_many(reports))

    @rule(server=SERVERS, seconds=st.sampled_from([1, 10, 40, 100]))
    def time_passes(self, server: int, seconds: int) -> None:
        """The sweeper retries and fails what is overdue, and queues what is due."""
        self.clock.advance(seconds)
        self.sweep(server, rules_sweep.recover_overdue, rules_sweep.fail_expired, rules_sweep.enqueue_due)

    @rule(server=SERVERS, kill_after=KILLS)
    def worker_leaves(self, server: int, kill_after: int | None) -> None:
        """Its tasks are retried or fail; another worker comes."""
        self.kill_after = kill_after
        for _ in range(2):
            self.write(server, rules_workers.remove, caller=OWNER, worker_id=self.worker)
        self.register()


Counts = tuple[int, int]


def runs(*, sqlite: list[Counts], postgresql: list[Counts]) -> pytest.MarkDecorator:
    """Run a test on each database, with a number of examples and of steps; the second pair in a slow test."""
    cases = [
        pytest.param(kind, *counts, id=f"{kind}-{name}", marks=[pytest.mark.slow] * (name == "long"))
        for kind, pairs in (("sqlite", sqlite), ("postgresql", postgresql))
        for name, counts in zip(("short", "long"), pairs, strict=False)
    ]
    return pytest.mark.parametrize(("kind", "examples", "steps"), cases)


# Run a state machine, whose argument is the URL of a migrated database without rows.
RunMachine = Callable[[Callable[[str], RuleBasedStateMachine]], None]
