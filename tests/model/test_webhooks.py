"""A state machine: whatever happens on two servers, each committed end is delivered, and no other."""

import asyncio
import shutil
from collections import Counter
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from databases import empty
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from invariants import broken_invariants
from receiver import Received, receiving
from replica import ADMIN, OWNER, SUBMITTER, ManualClock
from sqlalchemy import select

from model.test_queue import profile
from zndraw_joblib.server.admin import rules_searches
from zndraw_joblib.server.background.webhooks import Webhooks
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.engine import open_database
from zndraw_joblib.server.db.tables import OutboxRow, Task, TaskWebhook, Webhook
from zndraw_joblib.server.process.settings import JobLibSettings
from zndraw_joblib.server.queue import (
    rules_jobs,
    rules_sweep,
    rules_task_actions,
    rules_tasks,
    rules_webhooks,
    rules_workers,
)
from zndraw_joblib.server.runtime.runtime import Runtime
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
from zndraw_joblib.wire.webhooks import WebhookRequest

JOB = JobName(GLOBAL, "modifiers", "Rotate")
SERVERS, KILLS = st.sampled_from([0, 1]), st.sampled_from([None, None, None, *range(12)])
ENDS = st.sampled_from([TaskStatus.COMPLETED, TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED])
EVENTS = {
    TaskStatus.COMPLETED: "task.completed",
    TaskStatus.FAILED: "task.failed",
    TaskStatus.CANCELLED: "task.cancelled",
}
ROOM, OF_TASKS = ("/room-0", "/room-1"), ("/task-0", "/task-1")
WANTED = st.sets(st.sampled_from(sorted(EVENTS.values())), min_size=1).map(sorted)


class Killed(Exception):
    """The process is gone."""


class Deliveries(RuleBasedStateMachine):
    """Compares the outbox and what receivers accepted with the ends that were committed."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url, self.clock, self.runner = url, ManualClock(), asyncio.Runner()
        self.settings = JobLibSettings(
            webhook_http=True, webhook_ports=["1-65535"], webhook_networks=["127.0.0.0/8"]
        )
        self.runtimes = [Runtime(open_database(url, self.clock), self.settings) for _ in range(2)]
        self.webhooks = [Webhooks(runtime) for runtime in self.runtimes]
        self.receiver = self.runner.run(self._open())
        self.accepted: dict[str, list[str]] = {}
        self.tasks: list[UUID] = []
        # When and how each task has ended, None for one that has not.
        self.ends: dict[UUID, tuple[TaskStatus, datetime | None] | None] = {}
        # The events that were due for each URL, and the webhooks that get them, as they were before.
        self.expected: Counter[tuple[str, UUID, str]] = Counter()
        self.targets: list[Any] = []
        self.kill_after: int | None = None

    async def _open(self) -> Any:
        self.server = receiving()
        receiver = await self.server.__aenter__()
        receiver.decide = self.decide
        return receiver

    def decide(self, request: Received) -> int | str:
        """Answer a request, and record it if it is accepted."""
        answer = self.receiver.answers.get(request.path, 204)
        if answer == 204:
            self.accepted.setdefault(request.path, []).append(request.headers["webhook-id"])
        return answer

    def teardown(self) -> None:
        """Deliver what waits: the receivers have accepted all that was not given up, in order."""
        try:
            self.receiver.answers.clear()
            for _ in range(30):
                self.clock.advance(22_000 * 1.2)
                for server in (0, 1):
                    self.deliver(server, None)
            rows = self.rows(OutboxRow)
            urls = {webhook.n: webhook.url for webhook in self.rows(Webhook)}
            assert all(row.ended_at is not None for row in rows), "a delivery waits for ever"
            for path in (*ROOM, *OF_TASKS):
                own = [row for row in rows if urls[row.webhook_n] == self.receiver.url(path)]
                sent = [f"msg_{row.message.hex}" for row in own if row.delivered]
                accepted = list(dict.fromkeys(self.accepted.get(path, [])))
                assert [message for message in accepted if message in sent] == sent, "another order"
                given_up = [row for row in own if not row.delivered]
                assert all("disabled" in row.error or "410" in row.error for row in given_up)
        finally:
            for runtime in self.runtimes:
                self.runner.run(runtime.database.close())
            self.runner.run(self.server.__aexit__(None, None, None))
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

    def rows(self, table: Any) -> list[Any]:
        """Return the rows of a table by their numbers."""
        key = table.__table__.c["seq" if "seq" in table.__table__.c else next(iter(table.__table__.c.keys()))]

        async def read(tx: Transaction) -> list[Any]:
            return list(await tx.execute(select(table.__table__).order_by(key)))

        rows: list[Any] = self.run(self.runtimes[0].database.read(read))
        return rows

    @initialize()
    def register(self) -> None:
        """Register the job with a worker, and let a test kill a transaction after any statement."""
        request = JobRegisterRequest(
            category=JOB.category,
            name=JOB.name,
            backoff=Backoff(base_seconds=5, factor=1),
            **{"max_attempts": 2, "retry_on": ("worker_lost",), "timeout_seconds": 60},
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

    @invariant()
    def check(self) -> None:
        """The outbox has each committed end once for each webhook that wanted it, and nothing else."""
        tasks = {row.id: row for row in self.rows(Task)}
        links = {link.task_seq: link.webhook_n for link in self.rows(TaskWebhook)}
        for task_id in self.tasks:
            row = tasks[task_id]
            end = (TaskStatus(row.status), row.completed_at) if row.status in TERMINAL else None
            if end is not None and end != self.ends.get(task_id):
                event = EVENTS[end[0]]
                for target in self.targets:
                    is_own = target.name is not None or links.get(row.seq) == target.n
                    if is_own and target.disabled_at is None and event in target.events.split():
                        self.expected[target.url, task_id, event] += 1
            self.ends[task_id] = end
        self.targets = self.rows(Webhook)
        urls = {webhook.n: webhook.url for webhook in self.targets}
        written = Counter((urls[row.webhook_n], row.task_id, row.event) for row in self.rows(OutboxRow))
        assert written == self.expected
        for webhook in self.targets:
            is_gone = webhook.disabled_at is not None
            assert not is_gone or "410" in webhook.disabled_reason

    def task(self, index: int) -> UUID | None:
        """Return one of the newest tasks."""
        return self.tasks[-1 - index % len(self.tasks)] if self.tasks else None

    @rule(server=SERVERS, number=st.sampled_from([0, 1]), events=WANTED, kill_after=KILLS)
    def put(self, server: int, number: int, events: list[str], kill_after: int | None) -> None:
        """Create a webhook of the room, or replace and enable it."""
        request = WebhookRequest(url=self.receiver.url(ROOM[number]), events=events)
        item = rules_webhooks.NewWebhook(ADMIN, "lab", f"ci-{number}", request, self.settings)
        self.kill_after = kill_after
        self.write(server, rules_webhooks.put, item)

    @rule(server=SERVERS, paths=st.lists(st.sampled_from([None, *OF_TASKS]), min_size=1, max_size=3))
    def submit(self, server: int, paths: list[str | None]) -> None:
        """Submit tasks in one batch, some with webhooks of their own."""
        runtime = self.runtimes[server]
        webhooks = [None if path is None else {"url": self.receiver.url(path)} for path in paths]
        requests = [TaskSubmitRequest.model_validate({"webhook": webhook}) for webhook in webhooks]
        items = [runtime.submission(SUBMITTER, "lab", JOB, request) for request in requests]
        for result in self.run(runtime.submit_many(items)):
            assert isinstance(result, TaskResponse), result
            self.tasks.append(result.id)

    @rule(server=SERVERS, number=st.integers(1, 4), start=st.booleans())
    def claim(self, server: int, number: int, *, start: bool) -> None:
        """Claim tasks, perhaps with their start."""
        request = TaskClaimRequest(worker_id=self.worker, start=start, max=number)
        self.run(self.runtimes[server].claim(OWNER, request))

    @rule(
        server=SERVERS, end=ENDS, indexes=st.sets(st.integers(0, 9), min_size=1, max_size=4), kill_after=KILLS
    )
    def report(self, server: int, end: TaskStatus, indexes: set[int], kill_after: int | None) -> None:
        """Report starts and ends of tasks in one batch, perhaps with a kill of the server."""
        ids = sorted({task for index in indexes if (task := self.task(index)) is not None})
        reports = [
            rules_tasks.Report(OWNER, task, TaskUpdateRequest(status=status))
            for task in ids
            for status in (TaskStatus.RUNNING, end)
        ]
        if reports:
            self.kill_after = kill_after
            self.run(self.runtimes[server].report_many(reports))

    @rule(server=SERVERS, index=st.integers(0, 9), what=st.sampled_from(["retry", "fail"]), kill_after=KILLS)
    def act(self, server: int, index: int, what: str, kill_after: int | None) -> None:
        """Retry or fail a task by hand."""
        if (task := self.task(index)) is not None:
            self.kill_after = kill_after
            work = getattr(rules_task_actions, what)
            self.write(server, work, caller=ADMIN, task_id=task, action=TaskActionRequest())

    @rule(server=SERVERS, kill_after=KILLS)
    def cancel_all(self, server: int, kill_after: int | None) -> None:
        """Cancel all tasks with one action."""
        runtime, self.kill_after = self.runtimes[server], kill_after
        confirmed = rules_searches.Confirmed(ADMIN, BulkAction.CANCEL, TaskFilter(room=["lab"]), 2**60)
        self.run(rules_searches.apply(runtime.database.read, runtime.write, confirmed, None))

    @rule(server=SERVERS, seconds=st.sampled_from([1, 10, 40, 100]))
    def time_passes(self, server: int, seconds: int) -> None:
        """The sweeper retries, fails and queues what is due."""
        self.clock.advance(seconds)
        for work in (rules_sweep.recover_overdue, rules_sweep.fail_expired, rules_sweep.enqueue_due):
            while self.write(server, work):
                pass

    @rule(server=SERVERS, kill_after=KILLS)
    def worker_leaves(self, server: int, kill_after: int | None) -> None:
        """Its tasks are retried or fail; another worker comes."""
        self.kill_after = kill_after
        self.write(server, rules_workers.remove, caller=OWNER, worker_id=self.worker)
        with suppress(ProblemException):
            self.write(server, rules_workers.remove, caller=OWNER, worker_id=self.worker)
        self.register()

    @rule(path=st.sampled_from([*ROOM, *OF_TASKS]), answer=st.sampled_from([204, 204, 500, "reset", 410]))
    def answer(self, path: str, answer: int | str) -> None:
        """Decide how a receiver answers from now on."""
        self.receiver.answers[path] = answer

    @rule(server=SERVERS, kill_after=KILLS)
    def deliver(self, server: int, kill_after: int | None) -> None:
        """Deliver what is due, perhaps with a kill of the server between a request and its record."""
        self.kill_after = kill_after
        self.run(self.webhooks[server].deliver_due())


def run_model(url: Any, examples: int, steps: int) -> None:
    """Run the state machine on new databases."""
    run_state_machine_as_test(lambda: Deliveries(url()), settings=profile(examples=examples, steps=steps))


@pytest.mark.parametrize(
    ("examples", "steps"), [(6, 20), pytest.param(60, 40, marks=pytest.mark.slow)], ids=["short", "long"]
)
def test_each_committed_end_is_delivered_on_sqlite(
    sqlite_template: Path, tmp_path: Path, examples: int, steps: int
) -> None:
    """On two servers with one file."""
    run_model(lambda: f"sqlite:///{shutil.copy(sqlite_template, tmp_path / 'model.db')}", examples, steps)


@pytest.mark.parametrize(
    ("examples", "steps"), [(4, 20), pytest.param(40, 40, marks=pytest.mark.slow)], ids=["short", "long"]
)
def test_each_committed_end_is_delivered_on_postgresql(postgres_url: str, examples: int, steps: int) -> None:
    """On two servers with one database."""

    def fresh() -> str:
        empty(postgres_url)
        return postgres_url

    run_model(fresh, examples, steps)
