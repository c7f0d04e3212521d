"""A state machine: whatever happens to tasks on two servers, a task runs once, after its predecessors."""

from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule
from replica import SUBMITTER

from model.machines import INDEXES, JOB, KILLS, SERVERS, OneWorker, RunMachine, runs
from zndraw_joblib.server.process.settings import JobLibSettings
from zndraw_joblib.server.queue import rules_groups, rules_task_retention, rules_tasks, rules_waves
from zndraw_joblib.server.queue.rules_groups import GroupToMake
from zndraw_joblib.server.queue.rules_task_retention import TaskPruning
from zndraw_joblib.wire.groups import GroupResponse, NewGroup
from zndraw_joblib.wire.messages import TaskResponse, TaskSubmitRequest
from zndraw_joblib.wire.operators import BulkAction, TaskFilter
from zndraw_joblib.wire.statuses import TERMINAL, TaskStatus

POLICIES = st.sampled_from(["fail", "fail", "run", "hold"])


class Successors(OneWorker):
    """Compares when tasks are claimed with the ends of their predecessors, as the model knows them."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        # Each task with its predecessors and its policy, and those that may run whatever these did.
        self.tasks: dict[UUID, tuple[list[UUID], str]] = {}
        self.group: UUID | None = None
        self.freed: set[UUID] = set()
        self.has_run: set[UUID] = set()

    def teardown(self) -> None:
        """Handle all ends, close the databases and check their invariants from outside."""
        self.handle(0, None)
        super().teardown()

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
            done = self.act_on(server, what, task)
            # Its predecessors may be retried before it is claimed.
            if what == "retry" and isinstance(done, TaskResponse):
                self.freed |= {each for each, (before, _) in self.tasks.items() if task in before}
            if what in {"run_now", "retry"} and isinstance(done, TaskResponse) and not done.waits:
                self.freed.add(task)

    @rule(server=SERVERS, action=st.sampled_from([BulkAction.RETRY, BulkAction.CANCEL, BulkAction.PURGE]))
    def bulk(self, server: int, action: BulkAction) -> None:
        """Change all tasks."""
        if action is BulkAction.RETRY:
            self.freed |= self.tasks.keys()
        self.change_all(server, action, TaskFilter(room=["lab"]))

    @rule(server=SERVERS)
    def prune(self, server: int) -> None:
        """Retention deletes what is old, but nothing that a task needs."""
        settings, state = JobLibSettings(keep_finished_days=1e-9), TaskPruning()
        may_be_more = True
        while may_be_more:
            _, may_be_more, state = self.write(server, rules_task_retention.prune, settings, state)


@runs(sqlite=[(15, 25)], postgresql=[(6, 25)])
def test_tasks_run_once_after_their_predecessors(run_machine: RunMachine) -> None:
    """Whatever happens to the predecessors."""
    run_machine(Successors)
