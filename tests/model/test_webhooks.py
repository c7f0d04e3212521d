"""A state machine: whatever happens on two servers, each committed end is delivered, and no other."""

from collections import Counter
from datetime import datetime
from typing import Any, ClassVar
from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule
from receiver import Received, receiving
from replica import ADMIN, SUBMITTER
from sqlalchemy import select

from model.machines import JOB, KILLS, SERVERS, OneWorker, RunMachine, runs
from zndraw_joblib.server.background.webhooks import Webhooks
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.tables import OutboxRow, Task, TaskWebhook, Webhook
from zndraw_joblib.server.process.settings import JobLibSettings
from zndraw_joblib.server.queue import rules_webhooks
from zndraw_joblib.wire.messages import TaskResponse, TaskSubmitRequest
from zndraw_joblib.wire.operators import BulkAction, TaskFilter
from zndraw_joblib.wire.statuses import TERMINAL, TaskStatus
from zndraw_joblib.wire.webhooks import WebhookRequest

EVENTS = {
    TaskStatus.COMPLETED: "task.completed",
    TaskStatus.FAILED: "task.failed",
    TaskStatus.CANCELLED: "task.cancelled",
}
ROOM, OF_TASKS = ("/room-0", "/room-1"), ("/task-0", "/task-1")
WANTED = st.sets(st.sampled_from(sorted(EVENTS.values())), min_size=1).map(sorted)


class Deliveries(OneWorker):
    """Compares the outbox and what receivers accepted with the ends that were committed."""

    policy: ClassVar[dict[str, Any]] = {**OneWorker.policy, "retry_on": ("worker_lost",)}

    def __init__(self, url: str) -> None:
        self.settings = JobLibSettings(
            webhook_http=True, webhook_ports=["1-65535"], webhook_networks=["127.0.0.0/8"]
        )
        super().__init__(url, self.settings)
        self.webhooks = [Webhooks(runtime) for runtime in self.runtimes]
        self.receiver = self.runner.run(self._open())
        self.accepted: dict[str, list[str]] = {}
        self.tasks: list[UUID] = []
        # When and how each task has ended, None for one that has not.
        self.ends: dict[UUID, tuple[TaskStatus, datetime | None] | None] = {}
        # The events that were due for each URL, and the webhooks that get them, as they were before.
        self.expected: Counter[tuple[str, UUID, str]] = Counter()
        self.targets: list[Any] = []

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
            self.runner.run(self.server.__aexit__(None, None, None))
            super().teardown()

    def rows(self, table: Any) -> list[Any]:
        """Return the rows of a table by their numbers."""
        key = table.__table__.c["seq" if "seq" in table.__table__.c else next(iter(table.__table__.c.keys()))]

        async def read(tx: Transaction) -> list[Any]:
            return list(await tx.execute(select(table.__table__).order_by(key)))

        rows: list[Any] = self.run(self.runtimes[0].database.read(read))
        return rows

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

    @rule(server=SERVERS, index=st.integers(0, 9), what=st.sampled_from(["retry", "fail"]), kill_after=KILLS)
    def act(self, server: int, index: int, what: str, kill_after: int | None) -> None:
        """Retry or fail a task by hand."""
        if (task := self.task(index)) is not None:
            self.kill_after = kill_after
            self.act_on(server, what, task)

    @rule(server=SERVERS, kill_after=KILLS)
    def cancel_all(self, server: int, kill_after: int | None) -> None:
        """Cancel all tasks with one action."""
        self.kill_after = kill_after
        self.change_all(server, BulkAction.CANCEL, TaskFilter(room=["lab"]))

    @rule(path=st.sampled_from([*ROOM, *OF_TASKS]), answer=st.sampled_from([204, 204, 500, "reset", 410]))
    def answer(self, path: str, answer: int | str) -> None:
        """Decide how a receiver answers from now on."""
        self.receiver.answers[path] = answer

    @rule(server=SERVERS, kill_after=KILLS)
    def deliver(self, server: int, kill_after: int | None) -> None:
        """Deliver what is due, perhaps with a kill of the server between a request and its record."""
        self.kill_after = kill_after
        self.run(self.webhooks[server].deliver_due())


@runs(sqlite=[(6, 20), (60, 40)], postgresql=[(4, 20), (40, 40)])
def test_each_committed_end_is_delivered(run_machine: RunMachine) -> None:
    """Whatever happens to the servers and the receivers."""
    run_machine(Deliveries)
