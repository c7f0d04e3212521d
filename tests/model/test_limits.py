"""A state machine: on two servers no limit is exceeded, and no task waits that all limits allow."""

from collections import Counter
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule
from replica import ADMIN, OWNER

from model.machines import RETRIES, SERVERS, RunMachine, TwoServers, runs
from zndraw_joblib.server.process.ports import Identity
from zndraw_joblib.server.queue import rules_sweep, rules_tasks, rules_workers
from zndraw_joblib.wire.messages import TaskClaimRequest, TaskResponse, TaskSubmitRequest, TaskUpdateRequest
from zndraw_joblib.wire.names import GLOBAL, JobName
from zndraw_joblib.wire.operators import BulkAction, TaskFilter
from zndraw_joblib.wire.policy import JobLimit, Rate
from zndraw_joblib.wire.problems import ProblemException
from zndraw_joblib.wire.statuses import HELD, TERMINAL, TaskStatus

NAMES = ("Slots", "Rates", "Plain")
RATE = Rate(count=2, per_seconds=20, burst=2)
LIMITS: dict[str, list[list[dict[str, Any]]]] = {
    "Slots": [
        [{"max_in_flight": 3}, {"key": "/user", "max_in_flight": 1}, {"key": "room", "max_in_flight": 2}],
        [{"key": "/user", "max_in_flight": 2}, {"key": "room", "max_in_flight": 1}],
        [],
    ],
    "Rates": [[{"key": "/user", "rate": RATE}, {"key": "submitter", "max_in_flight": 2}]],
    "Plain": [[]],
}
STATUSES = st.sampled_from([status for status in TaskStatus if status is not TaskStatus.PENDING])
SUBMITS = st.lists(
    st.tuples(st.sampled_from(NAMES), st.sampled_from("abc"), st.sampled_from("rs"), st.sampled_from("uv")),
    min_size=1,
    max_size=6,
)


class LimitedTasks(TwoServers):
    """Compares what claims get with the limits, by the statuses of all tasks."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.tasks: dict[UUID, TaskResponse] = {}
        self.limits = {name: choices[0] for name, choices in LIMITS.items()}
        self.keyless: set[UUID] = set()
        # When the next token of a user is due without a burst.
        self.next_at: dict[str, datetime] = {}
        # The same if a claim has looked at the limit at once after the clock was set back.
        self.first_at: dict[str, datetime] = {}
        self.order = 0

    @initialize(order=st.sampled_from(["fifo", "fair"]), cap=st.sampled_from([None, 3]))
    def start(self, order: Any, cap: int | None) -> None:
        """Register the jobs with a worker."""
        for runtime in self.runtimes:
            runtime.settings.claim_order, runtime.settings.room_max_in_flight = order, cap
        self.cap = cap
        self.worker: UUID | None = None
        for name in NAMES:
            self.register(name)

    def register(self, name: str) -> None:
        """Register a job with its limits."""
        policy = {"max_attempts": 3, "retry_on": ("error", "worker_lost"), **RETRIES}
        self.worker = self.register_job(
            JobName(GLOBAL, "modifiers", name), worker_id=self.worker, limits=self.limits[name], **policy
        ).worker_id

    def read(self) -> None:
        """Read all tasks."""
        for id in list(self.tasks):
            task = self.write(0, rules_tasks.get, id)
            if isinstance(task, ProblemException):
                del self.tasks[id]
            else:
                self.tasks[id] = task

    def keys(self, task: TaskResponse) -> list[tuple[str, Any, JobLimit]]:
        """Return the keys of a task: the job, the value, and the limit."""
        name = task.job_name.split(":")[2]
        values = {
            None: None,
            "room": task.room_id,
            "submitter": task.created_by,
            "/user": None if task.id in self.keyless else (task.payload or {}).get("user"),
        }
        if task.id in self.keyless:
            values["submitter"] = None
        limits = [JobLimit.model_validate(limit) for limit in self.limits[name]]
        return [(f"{name} {limit.key}", values[limit.key], limit) for limit in limits]

    def held(self) -> Counter[tuple[str, Any]]:
        """Count the held tasks of each key."""
        held = [task for task in self.tasks.values() if task.status in HELD]
        counts = Counter((kind, value) for task in held for kind, value, _ in self.keys(task))
        counts.update(("room", task.room_id) for task in held)
        return counts

    def ready_at(self, user: str, times: dict[str, datetime]) -> datetime:
        """Return when the rate allows the next task of a user, by `next_at` or `first_at`."""
        interval = timedelta(seconds=RATE.interval)
        if (at := times.get(user)) is not None:
            times[user] = at = min(at, self.clock.now + RATE.burst * interval)
            return at - (RATE.burst - 1) * interval
        return self.clock.now

    def is_allowed(self, task: TaskResponse, held: Counter[tuple[str, Any]]) -> bool:
        """Return whether all limits allow a task now."""
        for kind, value, limit in self.keys(task):
            if limit.max_in_flight is not None and held[kind, value] >= limit.max_in_flight:
                return False
            if limit.rate is not None and self.ready_at(value, self.next_at) > self.clock.now:
                return False
        return self.cap is None or held["room", task.room_id] < self.cap

    @rule(server=SERVERS, submits=SUBMITS, priority=st.sampled_from([0, 0, 0, 5]))
    def submit(self, server: int, submits: list[tuple[str, str, str, str]], priority: int) -> None:
        """Submit tasks in one batch."""
        items = [
            self.runtimes[server].submission(
                Identity(submitter, is_superuser=False),
                room,
                JobName(GLOBAL, "modifiers", name),
                TaskSubmitRequest(payload={"user": user}, priority=priority),
            )
            for name, user, room, submitter in submits
        ]
        for result in self.runner.run(self.runtimes[server].submit_many(items)):
            assert isinstance(result, TaskResponse), result
            self.tasks[result.id] = result
            if not self.limits[result.job_name.split(":")[2]]:
                self.keyless.add(result.id)

    @rule(server=SERVERS, start=st.booleans(), count=st.sampled_from([1, 1, 2, 9]))
    def claim(self, server: int, *, start: bool, count: int) -> None:
        """Claim tasks: within all limits, and as many as they allow."""
        self.read()
        before = self.held()
        request = TaskClaimRequest(worker_id=self.worker, start=start, max=count)
        claimed = self.runner.run(self.runtimes[server].claim(OWNER, request)).tasks or []
        self.check_claimed(claimed, before)
        if len(claimed) < count:
            assert self.left() == []

    def check_claimed(self, claimed: list[TaskResponse], before: Counter[Any]) -> None:
        """Check that claimed tasks are within all limits."""
        for task in claimed:
            for _, value, limit in self.keys(task):
                if limit.rate is not None:
                    assert self.ready_at(value, self.first_at) <= self.clock.now
                    for times in (self.first_at, self.next_at):
                        self.ready_at(value, times)
                        at = max(times.get(value, self.clock.now), self.clock.now)
                        times[value] = at + timedelta(seconds=RATE.interval)
        self.read()
        self.check_slots(claimed, before, self.held())

    def left(self) -> list[TaskResponse]:
        """Return the tasks in their queues that all limits allow."""
        held = self.held()
        waiting = [task for task in self.tasks.values() if task.queue_position is not None]
        return [task for task in waiting if self.is_allowed(task, held)]

    def check_slots(self, claimed: list[TaskResponse], before: Counter[Any], after: Counter[Any]) -> None:
        """Check that claimed tasks are within the limits of concurrency."""
        for task in claimed:
            for kind, value, limit in self.keys(task):
                if limit.max_in_flight is not None:
                    assert after[kind, value] <= max(limit.max_in_flight, before[kind, value])
            if self.cap is not None:
                assert after["room", task.room_id] <= max(self.cap, before["room", task.room_id])

    @rule(server=SERVERS)
    def claim_all(self, server: int) -> None:
        """Claim until no claim gets a task."""
        self.claim(server, start=False, count=9)
        self.claim(1 - server, start=True, count=9)

    @rule(server=SERVERS, index=st.integers(0, 9), status=STATUSES)
    def report(self, server: int, index: int, status: TaskStatus) -> None:
        """Report any status of a task, as an operator may."""
        live = [task.id for task in self.tasks.values() if task.status not in TERMINAL]
        if live:
            report = rules_tasks.Report(ADMIN, live[index % len(live)], TaskUpdateRequest(status=status))
            self.run(self.runtimes[server].report(report))

    @rule(server=SERVERS)
    def finish_all(self, server: int) -> None:
        """Complete all that runs, each with a plain report."""
        self.read()
        for task in self.tasks.values():
            if task.status is TaskStatus.RUNNING:
                update = TaskUpdateRequest(status=TaskStatus.COMPLETED)
                self.runner.run(self.runtimes[server].report(rules_tasks.Report(OWNER, task.id, update)))

    @rule(server=SERVERS, index=st.integers(0, 9), what=st.sampled_from(["release", "retry", "fail"]))
    def act(self, server: int, index: int, what: str) -> None:
        """Release, retry or fail a task by hand."""
        if self.tasks:
            id = list(self.tasks)[-1 - index % len(self.tasks)]
            self.act_on(server, what, id)

    @rule(server=SERVERS, action=st.sampled_from([BulkAction.RELEASE, BulkAction.CANCEL, BulkAction.PURGE]))
    def bulk(self, server: int, action: BulkAction) -> None:
        """Change all tasks of a room."""
        self.change_all(server, action, TaskFilter(room=["r"]))

    @rule(server=SERVERS, seconds=st.sampled_from([1, 10, 40, 100, 3600, -3600]))
    def time_passes(self, server: int, seconds: int) -> None:
        """The sweeper retries, fails and queues what is due; the clock may be set back."""
        self.clock.advance(seconds)
        for user in self.first_at:
            self.ready_at(user, self.first_at)
        self.sweep(
            server, rules_sweep.recover_overdue, rules_sweep.recover_abandoned, rules_sweep.enqueue_due
        )
        self.write(server, rules_sweep.next_due)

    @rule(server=SERVERS)
    def worker_leaves(self, server: int) -> None:
        """Its tasks are retried or fail; another worker comes."""
        self.write(server, rules_workers.remove, caller=OWNER, worker_id=self.worker)
        self.worker = None
        for name in NAMES:
            self.register(name)

    @rule(choice=st.integers(0, 2))
    def change_limits(self, choice: int) -> None:
        """Change the limits of a job whose tasks wait, while none is held."""
        self.read()
        if any(task.status in HELD for task in self.tasks.values()):
            return
        self.limits["Slots"] = LIMITS["Slots"][choice]
        self.register("Slots")


@runs(sqlite=[(20, 30), (60, 30)], postgresql=[(6, 30), (30, 30)])
def test_limits_hold(run_machine: RunMachine) -> None:
    """Limits of jobs, of keys and of rooms, on two servers."""
    run_machine(LimitedTasks)
