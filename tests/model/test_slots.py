"""A state machine: on two servers no worker holds more than its slots, and no costly task waits for ever."""

import asyncio
from typing import Any, NamedTuple
from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule
from replica import ADMIN, OWNER, SUBMITTER
from sqlalchemy import select

from model.machines import SERVERS, RunMachine, TwoServers, runs
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.tables import Task
from zndraw_joblib.server.queue import rules_pauses, rules_tasks, rules_workers
from zndraw_joblib.wire.messages import (
    TaskClaimRequest,
    TaskResponse,
    TaskSubmitRequest,
    TaskUpdateRequest,
    WorkerInfo,
)
from zndraw_joblib.wire.names import GLOBAL, JobName
from zndraw_joblib.wire.statuses import HELD, TaskStatus

# The costs of the policies of the jobs, and the slots of the workers.
JOBS = {"Small": 1, "Large": 2}
SLOTS = (4, 4, 2, 1)
WORKERS = st.integers(0, len(SLOTS) - 1)
SUBMITS = st.lists(
    st.tuples(st.sampled_from(list(JOBS)), st.sampled_from([None, None, 2, 3, 4]), st.sampled_from("rrs")),
    min_size=1,
    max_size=5,
)
COLUMNS = ("id", "status", "worker_id", "lane", "seq", "room_id")


class Row(NamedTuple):
    """A task as it is stored."""

    id: UUID
    status: TaskStatus
    worker_id: UUID | None
    lane: int
    seq: int
    room_id: str


class TasksWithCosts(TwoServers):
    """Compares what claims get with the order of the tasks and with the free slots of all workers."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.costs: dict[UUID, int] = {}
        self.rows: list[Row] = []
        self.workers: list[UUID] = []
        self.has_pause = False
        self.urgency = 5

    @initialize()
    def start(self) -> None:
        """Register the workers."""
        self.workers = [self.register(slots) for slots in SLOTS]

    def register(self, slots: int) -> UUID:
        """Register a worker for all jobs."""
        worker_id = None
        for name, cost in JOBS.items():
            policy: dict[str, Any] = {"max_attempts": 2, "max_crashes": 99, "without_workers": "queue"}
            worker_id = self.register_job(
                JobName(GLOBAL, "modifiers", name),
                worker_id=worker_id,
                worker=WorkerInfo(slots=slots, labels={}),
                cost=cost,
                backoff={"base_seconds": 0, "factor": 1},
                **policy,
            ).worker_id
        assert worker_id is not None
        return worker_id

    def read(self) -> None:
        """Read all tasks, in the order of claims."""

        async def rows(tx: Transaction) -> list[Row]:
            columns = [Task.__table__.c[name] for name in COLUMNS]
            return [Row(*row) for row in await tx.execute(select(*columns))]

        self.rows = sorted(self.runner.run(self.runtimes[0].database.read(rows)), key=lambda row: row[3:5])

    def waiting(self, slots: int) -> list[Row]:
        """Return the tasks that a worker with so many slots may get some time, in their order."""
        open_rows = [row for row in self.rows if row.status == "pending" and self.costs[row.id] <= slots]
        return [row for row in open_rows if not (self.has_pause and row.room_id == "s")]

    def held(self, index: int) -> list[Row]:
        """Return the tasks that a worker holds."""
        return [row for row in self.rows if row.status in HELD and row.worker_id == self.workers[index]]

    def free(self, index: int) -> int:
        """Return how many slots of a worker are free."""
        return SLOTS[index] - sum(self.costs[row.id] for row in self.held(index))

    def keeper(self, cost: int) -> int | None:
        """Return which worker keeps its slots for a waiting task with a cost that does not fit there."""
        free = {index: self.free(index) for index in range(len(SLOTS)) if SLOTS[index] >= cost}
        too_few = [index for index, number in free.items() if number < cost]
        return min(too_few, key=lambda index: (-free[index], self.workers[index]), default=None)

    @invariant()
    def check_slots(self) -> None:
        """No worker that claims for its free slots holds tasks that take more than it has."""
        if self.workers:
            self.read()
            assert all(self.free(index) >= 0 for index in range(len(SLOTS)))

    @rule(server=SERVERS, submits=SUBMITS, priority=st.sampled_from([0, 0, 0, 5]))
    def submit(self, server: int, submits: list[tuple[str, int | None, str]], priority: int) -> None:
        """Submit tasks in one batch; some of them raise the cost of their job."""
        items = [
            self.runtimes[server].submission(
                SUBMITTER,
                room,
                JobName(GLOBAL, "modifiers", name),
                TaskSubmitRequest(payload={}, priority=priority, cost=cost),
            )
            for name, cost, room in submits
        ]
        results = self.runner.run(self.runtimes[server].submit_many(items))
        for result, (name, cost, _) in zip(results, submits, strict=True):
            assert isinstance(result, TaskResponse), result
            self.costs[result.id] = max(JOBS[name], cost or 1)

    def claim_some(self, server: int, index: int, count: int) -> list[UUID] | Exception:
        """Claim for a worker; return the ids of its new tasks."""
        reservations = self.runtimes[server]._plain_claims.sets.reservations
        reservations._workers.clear()
        reservations._first.clear()
        request = TaskClaimRequest(worker_id=self.workers[index], start=True, max=count)
        answer = self.run(self.runtimes[server].claim(OWNER, request))
        return answer if isinstance(answer, Exception) else [task.id for task in answer.tasks or ()]

    @rule(server=SERVERS, index=WORKERS, count=st.sampled_from([1, 1, 2, 4]))
    def claim(self, server: int, index: int, count: int) -> None:
        """A claim gets the first tasks that fit, and none behind a task for which its slots are kept."""
        self.read()
        free, waiting = self.free(index), self.waiting(SLOTS[index])
        if not free:
            return
        kept = [
            row for row in waiting if free < self.costs[row.id] and self.keeper(self.costs[row.id]) == index
        ]
        until = kept[0][3:5] if kept else (2**31, 0)
        fitting = [row.id for row in waiting if self.costs[row.id] <= free and row[3:5] < until]
        is_costly = any(self.costs[row_id] > 1 for row_id in fitting)
        count = min(count, free)
        claimed = self.claim_some(server, index, count)
        # Beside a costly task of the paused room a worker claims singly too.
        is_single = any(self.costs[row.id] > 1 for row in self.rows if row.status == "pending")
        assert claimed == fitting[: 1 if is_costly else count] or (is_single and claimed == fitting[:1])

    @rule(server=SERVERS, index=WORKERS, statements=st.integers(0, 12))
    def killed_claim(self, server: int, index: int, statements: int) -> None:
        """A server is killed after any statement of a claim."""
        if self.free(index) > 0:
            self.kill_after = statements
            self.claim_some(server, index, 1)

    @rule(server=SERVERS)
    def claim_at_once(self, server: int) -> None:
        """All workers claim at the same time, at both servers."""
        requests = [
            TaskClaimRequest(worker_id=worker_id, start=True)
            for index, worker_id in enumerate(self.workers)
            if self.free(index) > 0
        ]

        async def claims() -> None:
            runtimes = [self.runtimes[(server + number) % 2] for number in range(len(requests))]
            await asyncio.gather(
                *[one.claim(OWNER, request) for one, request in zip(runtimes, requests, strict=True)]
            )

        self.runner.run(claims())

    @rule(server=SERVERS, index=WORKERS)
    def end(self, server: int, index: int) -> None:
        """A worker completes its first task."""
        for row in self.held(index)[:1]:
            update = TaskUpdateRequest(status=TaskStatus.COMPLETED)
            self.runner.run(self.runtimes[server].report(rules_tasks.Report(OWNER, row.id, update)))

    @rule(server=SERVERS, index=st.integers(0, 9), what=st.sampled_from(["release", "retry", "fail"]))
    def act(self, server: int, index: int, what: str) -> None:
        """Release, retry or fail a task by hand."""
        if self.rows:
            task_id = self.rows[-1 - index % len(self.rows)].id
            self.act_on(server, what, task_id)

    @rule(server=SERVERS)
    def pause(self, server: int) -> None:
        """Pause one of the rooms, or resume it."""
        self.write(server, rules_pauses.resume if self.has_pause else rules_pauses.pause, ADMIN, "s")
        self.has_pause = not self.has_pause

    @rule(server=SERVERS, index=WORKERS)
    def worker_leaves(self, server: int, index: int) -> None:
        """Its tasks return to their queues; another worker comes."""
        self.write(server, rules_workers.remove, caller=OWNER, worker_id=self.workers[index])
        self.workers[index] = self.register(SLOTS[index])

    @rule(server=SERVERS, costs=st.lists(st.sampled_from([None, None, 3, 4]), min_size=2, max_size=5))
    def claim_of_each(self, server: int, costs: list[int | None]) -> None:
        """Each worker claims, with tasks of one and of several slots behind each other."""
        self.submit(server, [("Small", cost, "r") for cost in costs], 0)
        for index in range(len(SLOTS)):
            self.claim(server, index, 2)

    @rule(server=SERVERS, cost=st.sampled_from([3, 4]))
    def stream(self, server: int, cost: int) -> None:
        """A costly task gets its turn, although a cheaper one comes for each that ends."""
        self.urgency += 1  # the tasks of before come later
        self.submit(server, [("Small", None, "r")] * sum(SLOTS), self.urgency)
        for index in range(len(SLOTS)):
            for _ in range(SLOTS[index]):
                self.read()
                if self.free(index) > 0:
                    self.claim_some(server, index, 1)
        self.submit(server, [("Small", cost, "r")], self.urgency)
        costly = list(self.costs)[-1]
        for _ in range(20):
            for index in range(len(SLOTS)):
                self.end(server, index)
                self.submit(1 - server, [("Small", None, "r")], self.urgency)
                self.read()
                if self.free(index) > 0:
                    self.claim_some(server, index, 1)
                    self.read()
            if costly not in {row.id for row in self.waiting(4)}:
                return
        raise AssertionError("a costly task starves")


@runs(sqlite=[(5, 20), (60, 40)], postgresql=[(3, 20), (40, 40)])
def test_costs_hold(run_machine: RunMachine) -> None:
    """No claim exceeds the slots of a worker, and a costly task does not starve."""
    run_machine(TasksWithCosts)
