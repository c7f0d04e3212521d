"""A state machine: whatever happens to tasks on two servers, a task runs once, after its predecessors."""

import asyncio
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

from databases import empty
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from invariants import broken_invariants
from replica import ADMIN, OWNER, SUBMITTER, ManualClock

from model.test_groups import Killed
from model.test_queue import profile
from zndraw_joblib.server.admin import rules_searches
from zndraw_joblib.server.db.engine import open_database
from zndraw_joblib.server.process.settings import JobLibSettings
from zndraw_joblib.server.queue import (
    rules_groups,
    rules_jobs,
    rules_sweep,
    rules_task_actions,
    rules_task_retention,
    rules_tasks,
    rules_waves,
    rules_workers,
)
from zndraw_joblib.server.queue.rules_groups import GroupToMake
from zndraw_joblib.server.queue.rules_task_retention import TaskPruning
from zndraw_joblib.server.runtime.runtime import Runtime
from zndraw_joblib.wire.groups import GroupResponse, NewGroup
from zndraw_joblib.wire.messages import (
    JobRegisterRequest,
    TaskActionRequest,
    TaskClaimRequest,
    TaskResponse,
    TaskSubmitRequest,
    TaskUpdateRequest,
)
from zndraw_joblib.wire.names import GLOBAL, JobName
from zndraw_joblib.wire.operators import BulkAction, TaskFilter
from zndraw_joblib.wire.policy import Backoff
from zndraw_joblib.wire.problems import ProblemException
from zndraw_joblib.wire.statuses import TERMINAL, TaskStatus

JOB = JobName(GLOBAL, "modifiers", "Rotate")
SERVERS, INDEXES = st.sampled_from([0, 1]), st.integers(0, 9)
KILLS = st.sampled_from([None, None, None, 0, 1, 2, 3, 4, 5, 6, 8, 10, 12])
ENDS = st.sampled_from([TaskStatus.COMPLETED, TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED])
POLICIES = st.sampled_from(["fail", "fail", "run", "hold"])


class Successors(RuleBasedStateMachine):
    """Compares when tasks are claimed with the ends of their predecessors, as the model knows them."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url, self.clock, self.runner = url, ManualClock(), asyncio.Runner()
        self.runtimes = [Runtime(open_database(url, self.clock), JobLibSettings()) for _ in range(2)]
        # Each task with its predecessors and its policy, and those that may run whatever these did.
        self.tasks: dict[UUID, tuple[list[UUID], str]] = {}
        self.group: UUID | None = None
        self.freed: set[UUID] = set()
        self.has_run: set[UUID] = set()
        self.kill_after: int | None = None

    def teardown(self) -> None:
        """Handle all ends, close the databases and check their invariants from outside."""
        self.handle(0, None)
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

    @initialize()
    def register(self) -> None:
        """Register the job with a worker, and let a test kill a transaction after any statement."""
        request = JobRegisterRequest(
            category=JOB.category,
            name=JOB.name,
            max_attempts=2,
            timeout_seconds=60,
            backoff=Backoff(base_seconds=5, factor=1),
        )
        job, _ = self.write(0, rules_jobs.register, item=rules_jobs.JobToRegister(OWNER, GLOBAL, request))
        self.worker = job.worker_id

        async def kill(connection: Any, *_: Any) -> None:
            # SQLite's transactions end with their process as a whole.
            if self.kill_after is not None and hasattr(connection, "is_in_transaction"):
                self.kill_after -= 1
                if self.kill_after < 0:
                    raise Killed

        for runtime in self.runtimes:
            runtime.database.on_statement = kill

    def task(self, index: int) -> UUID | None:
        """Return one of the newest tasks."""
        return list(self.tasks)[-1 - index % len(self.tasks)] if self.tasks else None

    def chosen(self, indexes: set[int]) -> list[UUID]:
        """Return some of the newest tasks."""
        return sorted({task for index in indexes if (task := self.task(index)) is not None})

    def get(self, task_id: UUID) -> TaskResponse | None:
        """Return a task, None after it was deleted."""
        task = self.write(0, rules_tasks.get, task_id)
        return task if isinstance(task, TaskResponse) else None

    @invariant()
    def check(self) -> None:
        """A task that is claimed or has run had no predecessor left to wait for."""
        for task_id, (before, policy) in self.tasks.items():
            task = self.get(task_id)
            if task is None or not before or task_id in self.has_run:
                continue
            if task.status in {TaskStatus.CLAIMED, TaskStatus.RUNNING} or task.started_at is not None:
                self.has_run.add(task_id)
                states = [state for each in before if (state := self.get(each)) is not None]
                done = {TaskStatus.COMPLETED} if policy != "run" else TERMINAL
                assert task_id in self.freed or all(state.status in done for state in states), (
                    "a task ran before its predecessors"
                )

    @rule(
        server=SERVERS,
        indexes=st.sets(INDEXES, max_size=3),
        policy=POLICIES,
        in_group=st.booleans(),
        kill_after=KILLS,
    )
    def submit(
        self, server: int, indexes: set[int], policy: str, kill_after: int | None, *, in_group: bool
    ) -> None:
        """Submit a task that waits for others, and one that waits for it, in one batch."""
        before = [task for task in self.chosen(indexes) if self.get(task) is not None]
        runtime = self.runtimes[server]
        options = [
            {"after": {"tasks": before, "on_failure": policy}} if before else {},
            {"after": {"tasks": [0]}},
        ]
        if in_group and self.group is not None:
            options[0]["group"] = self.group
        items = [
            runtime.submission(SUBMITTER, "lab", JOB, TaskSubmitRequest.model_validate(each))
            for each in options
        ]
        self.kill_after = kill_after
        tasks = self.run(runtime.submit_all(items))
        if isinstance(tasks, list):
            self.tasks[tasks[0].id] = before, policy
            self.tasks[tasks[1].id] = [tasks[0].id], "fail"

    @rule(server=SERVERS, policy=POLICIES)
    def submit_after_group(self, server: int, policy: str) -> None:
        """Submit a task that waits for a group; make a group if there is none."""
        if self.group is None:
            group = self.write(server, rules_groups.create, GroupToMake(SUBMITTER, "lab", NewGroup()))
            self.group = group.id
        runtime, after = self.runtimes[server], {"groups": [self.group], "on_failure": policy}
        request = TaskSubmitRequest.model_validate({"after": after})
        [task] = self.run(runtime.submit_many([runtime.submission(SUBMITTER, "lab", JOB, request)]))
        if isinstance(task, TaskResponse):
            self.tasks[task.id] = [], policy

    @rule(server=SERVERS, kill_after=KILLS)
    def seal(self, server: int, kill_after: int | None) -> None:
        """Seal the group; the next one that is needed is new."""
        if self.group is not None:
            self.kill_after = kill_after
            if isinstance(self.write(server, rules_groups.seal, self.group), GroupResponse):
                self.group = None

    @rule(server=SERVERS, number=st.integers(1, 4), start=st.booleans())
    def claim(self, server: int, number: int, *, start: bool) -> None:
        """Claim tasks, perhaps with their start."""
        request = TaskClaimRequest(worker_id=self.worker, start=start, max=number)
        self.run(self.runtimes[server].claim(OWNER, request))

    @rule(
        server=SERVERS,
        end=ENDS,
        indexes=st.sets(INDEXES, min_size=1, max_size=4),
        tree=st.booleans(),
        kill_after=KILLS,
    )
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

    @rule(server=SERVERS, tasks=st.sampled_from([1, 2, 500]), kill_after=KILLS)
    def handle_some(self, server: int, tasks: int, kill_after: int | None) -> None:
        """A server handles some ends for which tasks wait, perhaps until it is killed."""
        self.kill_after = kill_after
        self.write(server, rules_waves.handle, rules_waves.Rules(tasks=tasks))

    @rule(server=SERVERS)
    def handle_all(self, server: int) -> None:
        """A server handles all ends: then each task that waits has a reason."""
        self.handle(server, None)

    def handle(self, server: int, kill_after: int | None) -> None:
        """Handle all ends for which tasks wait."""
        handled = rules_waves.Handled(may_be_more=True)
        while handled.may_be_more:
            self.kill_after = kill_after
            handled = self.write(server, rules_waves.handle)
        for task_id, (before, policy) in self.tasks.items():
            task = self.get(task_id)
            if task is None or not before or not task.waits:
                continue
            states = [state.status if (state := self.get(each)) else None for each in before]
            assert None not in states, "a predecessor was deleted"
            is_open = any(state not in TERMINAL for state in states)
            is_failed = any(state in {TaskStatus.FAILED, TaskStatus.CANCELLED} for state in states)
            assert is_open if policy == "run" else is_open or (policy == "hold" and is_failed), (
                "a task waits for ever"
            )

    @rule(
        server=SERVERS, index=INDEXES, what=st.sampled_from(["release", "retry", "retry", "fail", "run_now"])
    )
    def act(self, server: int, index: int, what: str) -> None:
        """Release, retry, fail or run a task by hand."""
        if (task := self.task(index)) is not None:
            work = getattr(rules_task_actions, what)
            done = self.write(server, work, caller=ADMIN, task_id=task, action=TaskActionRequest())
            # Its predecessors may be retried before it is claimed.
            if what == "retry" and isinstance(done, TaskResponse):
                self.freed |= {each for each, (before, _) in self.tasks.items() if task in before}
            if what in {"run_now", "retry"} and isinstance(done, TaskResponse) and not done.waits:
                self.freed.add(task)

    @rule(server=SERVERS, action=st.sampled_from([BulkAction.RETRY, BulkAction.CANCEL, BulkAction.PURGE]))
    def bulk(self, server: int, action: BulkAction) -> None:
        """Change all tasks."""
        runtime = self.runtimes[server]
        if action is BulkAction.RETRY:
            self.freed |= self.tasks.keys()
        confirmed = rules_searches.Confirmed(ADMIN, action, TaskFilter(room=["lab"]), 2**60)
        self.run(rules_searches.apply(runtime.database.read, runtime.write, confirmed, None))

    @rule(server=SERVERS, seconds=st.sampled_from([1, 10, 100]))
    def time_passes(self, server: int, seconds: int) -> None:
        """The sweeper retries and fails what is overdue, and queues what is due."""
        self.clock.advance(seconds)
        for work in (rules_sweep.recover_overdue, rules_sweep.fail_expired, rules_sweep.enqueue_due):
            while self.write(server, work):
                pass

    @rule(server=SERVERS)
    def prune(self, server: int) -> None:
        """Retention deletes what is old, but nothing that a task needs."""
        settings, state = JobLibSettings(keep_finished_days=1e-9), TaskPruning()
        may_be_more = True
        while may_be_more:
            _, may_be_more, state = self.write(server, rules_task_retention.prune, settings, state)

    @rule(server=SERVERS, kill_after=st.sampled_from([None, 1, 3, 5, 7]))
    def worker_leaves(self, server: int, kill_after: int | None) -> None:
        """Its tasks are retried or fail; another worker comes."""
        self.kill_after = kill_after
        self.write(server, rules_workers.remove, caller=OWNER, worker_id=self.worker)
        with suppress(ProblemException):
            self.write(server, rules_workers.remove, caller=OWNER, worker_id=self.worker)
        self.register()


def test_tasks_run_once_after_their_predecessors_on_sqlite(sqlite_template: Path, tmp_path: Path) -> None:
    """On two servers with one file."""

    def fresh() -> Successors:
        return Successors(f"sqlite:///{shutil.copy(sqlite_template, tmp_path / 'model.db')}")

    run_state_machine_as_test(fresh, settings=profile(examples=15, steps=25))


def test_tasks_run_once_after_their_predecessors_on_postgresql(postgres_url: str) -> None:
    """On two servers with one database."""

    def fresh() -> Successors:
        empty(postgres_url)
        return Successors(postgres_url)

    run_state_machine_as_test(fresh, settings=profile(examples=6, steps=25))
