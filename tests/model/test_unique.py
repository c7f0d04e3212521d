"""A state machine: whatever happens to tasks on two servers, a key is held as long as its rule says."""

from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule
from replica import ADMIN, OWNER, SUBMITTER

from model.machines import JOB, RETRIES, SERVERS, RunMachine, TwoServers, runs
from zndraw_joblib.server.queue import rules_sweep, rules_tasks, rules_unique, rules_workers, sql_unique
from zndraw_joblib.wire.messages import TaskClaimRequest, TaskResponse, TaskSubmitRequest, TaskUpdateRequest
from zndraw_joblib.wire.operators import BulkAction, TaskFilter
from zndraw_joblib.wire.problems import DuplicateTask, ProblemException
from zndraw_joblib.wire.statuses import TERMINAL, TaskStatus
from zndraw_joblib.wire.unique import Unique

SPANS: list[dict[str, Any]] = [{"until": "ended"}, {"until": "started"}, {"for_seconds": 30}]
SUBMITS = st.builds(
    lambda key, span, conflict: {"key": key, "on_conflict": conflict, **span},
    st.sampled_from("ab"),
    st.sampled_from(SPANS),
    st.sampled_from(["return", "reject", "replace"]),
)
STATUSES = st.sampled_from([status for status in TaskStatus if status is not TaskStatus.PENDING])


class Holder(NamedTuple):
    """The task that holds a key by the model, its rule, and when the rule's time is over."""

    task: UUID
    rule: dict[str, Any]
    over_at: Any


class UniqueTasks(TwoServers):
    """Compares each submit with the holders that the statuses of all tasks imply."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.holders: dict[str, Holder] = {}
        # The rule of each task, and those that have started.
        self.tasks: dict[UUID, tuple[str, dict[str, Any]]] = {}
        self.started: set[UUID] = set()

    @initialize()
    def register(self) -> None:
        """Register the job with a worker."""
        self.worker = self.register_job(
            JOB, max_attempts=3, retry_on=("error", "worker_lost"), **RETRIES
        ).worker_id

    def observe(self) -> None:
        """Update the holders by the statuses of the tasks."""
        for id, (_, rule_) in self.tasks.items():
            task = self.write(0, rules_tasks.get, id)
            if isinstance(task, ProblemException) or task.started_at is not None:
                self.started.add(id)
            for key, holder in list(self.holders.items()):
                is_gone = isinstance(task, ProblemException)
                if holder.task == id and "until" in rule_:
                    has_ended = is_gone or task.status in TERMINAL
                    if has_ended or (rule_["until"] == "started" and id in self.started):
                        del self.holders[key]
                elif holder.task == id and is_gone:
                    del self.holders[key]

    @invariant()
    def check_holders(self) -> None:
        """The database has the holder of each key that the model has."""
        self.observe()
        ids = {rules_unique.key_of(Unique(), key, JOB, "lab").id: key for key in "ab"}
        stored = self.write(0, sql_unique.holders, list(ids))
        by_key = {ids[id]: task.id for id, task in stored.items()}
        assert by_key == {key: holder.task for key, holder in self.holders.items()}

    @rule(server=SERVERS, submits=st.lists(SUBMITS, min_size=1, max_size=3))
    def submit(self, server: int, submits: list[dict[str, Any]]) -> None:
        """Submit tasks with keys in one batch."""
        self.observe()
        items = [
            self.runtimes[server].submission(SUBMITTER, "lab", JOB, TaskSubmitRequest(unique=unique))
            for unique in submits
        ]
        results = self.runner.run(self.runtimes[server].submit_many(items))
        for unique, result in zip(submits, results, strict=True):
            rule_, key = dict(unique), unique["key"]
            holder = self.holders.get(key)
            if holder is not None and holder.over_at is not None and holder.over_at <= self.clock.now:
                holder = None
            if holder is None:
                assert isinstance(result, TaskResponse), result
                assert result.duplicate is None
                seconds = rule_.get("for_seconds")
                over_at = seconds and self.clock.now + timedelta(seconds=seconds)
                self.holders[key] = Holder(result.id, rule_, over_at)
                self.tasks[result.id] = key, rule_
            elif rule_["on_conflict"] == "reject":
                assert isinstance(result, DuplicateTask), result
                assert result.problem.model_extra == {"task_id": str(holder.task)}
            else:
                assert isinstance(result, TaskResponse), result
                assert (result.id, result.duplicate) == (holder.task, True)

    @rule(server=SERVERS, start=st.booleans())
    def claim(self, server: int, *, start: bool) -> None:
        """Claim a task, perhaps with its start."""
        request = TaskClaimRequest(worker_id=self.worker, start=start)
        self.runner.run(self.runtimes[server].claim(OWNER, request))
        self.observe()

    @rule(server=SERVERS, unique=SUBMITS)
    def submit_and_start_all(self, server: int, unique: dict[str, Any]) -> None:
        """Submit a task, and start all that wait; most of them fail once."""
        self.submit(server, [unique])
        request = TaskClaimRequest(worker_id=self.worker, start=True, max=5)
        for task in self.runner.run(self.runtimes[1 - server].claim(OWNER, request)).tasks:
            self.observe()
            self.check_holders()
            if task.attempt == 1:
                update = TaskUpdateRequest(status=TaskStatus.FAILED)
                self.runner.run(self.runtimes[server].report(rules_tasks.Report(OWNER, task.id, update)))

    @rule(server=SERVERS, index=st.integers(0, 9), status=STATUSES)
    def report(self, server: int, index: int, status: TaskStatus) -> None:
        """Report any status of a task, as an operator may."""
        if self.tasks:
            id = list(self.tasks)[-1 - index % len(self.tasks)]
            update = TaskUpdateRequest(status=status)
            self.run(self.runtimes[server].report(rules_tasks.Report(ADMIN, id, update)))
            self.observe()

    @rule(server=SERVERS, index=st.integers(0, 9), what=st.sampled_from(["release", "retry", "fail"]))
    def act(self, server: int, index: int, what: str) -> None:
        """Release, retry or fail a task by hand; a retried one may hold its key again."""
        if not self.tasks:
            return
        self.observe()
        id = list(self.tasks)[-1 - index % len(self.tasks)]
        result = self.act_on(server, what, id)
        key, rule_ = self.tasks[id]
        holder = self.holders.get(key)
        is_free = holder is None or (holder.over_at is not None and holder.over_at <= self.clock.now)
        holds_again = rule_.get("until") == "ended" or (
            rule_.get("until") == "started" and id not in self.started
        )
        if what == "retry" and isinstance(result, TaskResponse) and holds_again:
            assert is_free, "a retry took a key that another task holds"
            self.holders[key] = Holder(id, rule_, None)
        if isinstance(result, DuplicateTask):
            assert holds_again
            assert not is_free
        self.observe()

    @rule(
        server=SERVERS,
        action=st.sampled_from([BulkAction.RELEASE, BulkAction.RELEASE, BulkAction.CANCEL, BulkAction.PURGE]),
    )
    def bulk(self, server: int, action: BulkAction) -> None:
        """Change all tasks of the room."""
        self.change_all(server, action, TaskFilter(room=["lab"]))
        self.observe()

    @rule(server=SERVERS, seconds=st.sampled_from([1, 10, 40, 100]))
    def time_passes(self, server: int, seconds: int) -> None:
        """The sweeper retries, fails and queues what is due."""
        self.clock.advance(seconds)
        self.sweep(
            server, rules_sweep.recover_overdue, rules_sweep.recover_abandoned, rules_sweep.enqueue_due
        )
        self.observe()

    @rule(server=SERVERS)
    def worker_leaves(self, server: int) -> None:
        """Its tasks are retried or fail; another worker comes."""
        self.write(server, rules_workers.remove, caller=OWNER, worker_id=self.worker)
        self.register()
        self.observe()


@runs(sqlite=[(15, 30), (40, 30)], postgresql=[(6, 30), (30, 30)])
def test_keys_are_held_as_their_rules_say(run_machine: RunMachine) -> None:
    """Whatever happens to the tasks."""
    run_machine(UniqueTasks)
