"""A state machine: whatever happens to tasks on two servers, a group ends once, with its last task.

And retention deletes nothing that a group needs.
"""

from datetime import timedelta
from typing import Any, ClassVar
from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule
from replica import SUBMITTER

from model.machines import ENDS, JOB, KILLS, SERVERS, OneWorker, RunMachine, runs
from zndraw_joblib.server.admin import rules_searches
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.process.settings import JobLibSettings
from zndraw_joblib.server.queue import rules_groups, rules_task_retention, rules_tasks
from zndraw_joblib.server.queue.rules_groups import GroupToMake
from zndraw_joblib.server.queue.rules_task_retention import TaskPruning
from zndraw_joblib.wire.groups import GroupResponse, NewGroup, OnEndState
from zndraw_joblib.wire.messages import TaskResponse, TaskSubmitRequest
from zndraw_joblib.wire.names import GLOBAL, JobName
from zndraw_joblib.wire.operators import BulkAction, TaskFilter
from zndraw_joblib.wire.policy import Keep
from zndraw_joblib.wire.problems import GroupSealed
from zndraw_joblib.wire.statuses import TERMINAL, TaskStatus

AFTER, GROUPS = JobName(GLOBAL, "modifiers", "Report"), st.integers(0, 3)
# For how many seconds ended tasks are kept, by their status; None for ever, or of a job as in the settings.
Kept = dict[str, float | None]
KEEPS: st.SearchStrategy[Kept] = st.fixed_dictionaries(
    {status: st.sampled_from([None, 1, 30, 200]) for status in ("completed", "failed", "cancelled")}
)


async def seal_due(tx: Transaction) -> None:
    """Seal all groups that are due."""
    for group in await rules_groups.due(tx, None):
        await rules_groups.seal_due(tx, group.id)


class Groups(OneWorker):
    """Compares groups with what the statuses of their tasks imply."""

    policy: ClassVar[dict[str, Any]] = {**OneWorker.policy, "retry_on": ("worker_lost",)}

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.groups: list[UUID] = []
        self.sealed: set[UUID] = set()
        # Each group that has ended: when, and what that submitted.
        self.ended: dict[UUID, tuple[Any, UUID | None, OnEndState | None]] = {}
        self.tasks: dict[UUID, UUID] = {}
        self.pruning = [TaskPruning(), TaskPruning()]

    @initialize()
    def register(self) -> None:
        """Register the job of the groups' tasks with a new worker, and that of their ends."""
        super().register()
        self.register_job(AFTER, without_workers="queue")

    def group(self, index: int) -> UUID | None:
        """Return one of the newest groups."""
        return self.groups[-1 - index % len(self.groups)] if self.groups else None

    def existing(self) -> dict[UUID, TaskResponse]:
        """Return the tasks of groups, and those that groups have submitted, that are not deleted."""
        ids = [*self.tasks, *[task for _, task, _ in self.ended.values() if task is not None]]
        tasks = [self.write(0, rules_tasks.get, task_id) for task_id in ids]
        return {task.id: task for task in tasks if isinstance(task, TaskResponse)}

    @invariant()
    def check(self) -> None:
        """A group has ended if, and only if, it was sealed while all its tasks had ended, and once."""
        for group_id in self.groups:
            group: GroupResponse = self.run(self.runtimes[0].get_group(group_id))
            tasks = [
                task
                for task_id, of_group in self.tasks.items()
                if of_group == group_id
                if isinstance(task := self.write(0, rules_tasks.get, task_id), TaskResponse)
            ]
            if group.ended_at is None:
                counts = [sum(task.status is status for task in tasks) for status in TaskStatus]
                assert [getattr(group.counts, status.value) for status in TaskStatus] == counts
                assert group.total == len(tasks)
                is_open = any(task.status not in TERMINAL for task in tasks)
                assert is_open or group_id not in self.sealed, "a sealed group did not end"
            end = (group.ended_at, group.on_end_task, group.on_end_state)
            if group_id in self.ended:
                assert end == self.ended[group_id], "a group ended twice"
            elif group.ended_at is not None:
                assert group_id in self.sealed
                assert all(task.status in TERMINAL for task in tasks), "a group ended too early"
                assert group.total == len(tasks)
                self.ended[group_id] = end
                is_skipped = group.on_end is not None and group.on_end.when == "completed"
                is_skipped = is_skipped and group.counts.completed < group.total
                assert group.on_end_state is (OnEndState.SKIPPED if is_skipped else OnEndState.SUBMITTED)
        found = self.run(self.runtimes[0].database.read(rules_searches.count, TaskFilter(room=["lab"])))
        assert sum(found.model_dump(exclude={"is_complete"}).values()) == len(self.existing()), (
            "on_end was not submitted once"
        )

    @rule(server=SERVERS, when=st.sampled_from(["ended", "completed"]), seconds=st.sampled_from([None, 50]))
    def create(self, server: int, when: str, seconds: int | None) -> None:
        """Create a group."""
        on_end = {"job": str(AFTER), "when": when}
        new = NewGroup.model_validate({"on_end": on_end, "expires_in_seconds": seconds})
        group = self.write(server, rules_groups.create, GroupToMake(SUBMITTER, "lab", new))
        self.groups.append(group.id)

    @rule(server=SERVERS, groups=st.lists(GROUPS, min_size=1, max_size=3))
    def submit(self, server: int, groups: list[int]) -> None:
        """Submit tasks to groups in one batch."""
        ids = [group for index in groups if (group := self.group(index)) is not None]
        runtime = self.runtimes[server]
        items = [runtime.submission(SUBMITTER, "lab", JOB, TaskSubmitRequest(group=group)) for group in ids]
        if not items:
            return
        for group, result in zip(ids, self.run(runtime.submit_many(items)), strict=True):
            if group in self.sealed:
                assert isinstance(result, GroupSealed)
            else:
                assert isinstance(result, TaskResponse), result
                self.tasks[result.id] = group

    @rule(server=SERVERS, index=GROUPS, kill_after=KILLS)
    def seal(self, server: int, index: int, kill_after: int | None) -> None:
        """Seal a group, perhaps with a kill of the server."""
        group = self.group(index)
        if group is not None:
            self.kill_after = kill_after
            if isinstance(self.write(server, rules_groups.seal, group), GroupResponse):
                self.sealed.add(group)

    @rule(server=SERVERS, index=st.integers(0, 9), what=st.sampled_from(["release", "retry", "fail"]))
    def act(self, server: int, index: int, what: str) -> None:
        """Release, retry or fail a task by hand."""
        if (task := self.task(index)) is not None:
            self.act_on(server, what, task)

    @rule(
        server=SERVERS,
        action=st.sampled_from([BulkAction.RETRY, BulkAction.CANCEL, BulkAction.PURGE]),
        index=GROUPS,
    )
    def bulk(self, server: int, action: BulkAction, index: int) -> None:
        """Change all tasks of a group."""
        if (group := self.group(index)) is not None:
            self.change_all(server, action, TaskFilter(room=["lab"], group=group))

    @rule(server=SERVERS, seconds=st.sampled_from([1, 10, 40, 100]))
    def time_passes(self, server: int, seconds: int) -> None:
        """The sweeper retries, fails and queues what is due, and seals groups that have expired."""
        super().time_passes(server, seconds)
        self.sweep(server, seal_due)
        for group_id in self.groups:
            if self.run(self.runtimes[0].get_group(group_id)).sealed:
                self.sealed.add(group_id)

    @rule(server=SERVERS, index=GROUPS)
    def end_the_last(self, server: int, index: int) -> None:
        """Fail the task that a group has submitted: then nothing needs the results of the group."""
        _, last, _ = self.ended.get(self.group(index), (None, None, None))
        if last is not None:
            self.act_on(server, "fail", last)

    @rule(server=SERVERS, keep=KEEPS, of_job=KEEPS, is_new=st.booleans())
    def prune(self, server: int, keep: Kept, of_job: Kept, *, is_new: bool) -> None:
        """Retention deletes what its job or the settings do not keep, but nothing that a group needs."""
        own = Keep.model_validate(of_job)
        of_job = own.model_dump()
        self.register_job(JOB, keep=own, worker_id=self.worker, **self.policy)
        settings = JobLibSettings.model_validate(
            {f"keep_{status}_days": (seconds or 0) / 86_400 for status, seconds in keep.items()}
        )
        before = self.existing()
        old = {task.id for task in before.values() if self.is_old(task, keep, of_job)}
        needed = {task_id for task_id in old if self.is_needed(task_id, before)}
        state, may_be_more = TaskPruning() if is_new else self.pruning[server], True
        while may_be_more:
            _, may_be_more, state = self.write(server, rules_task_retention.prune, settings, state)
        self.pruning[server] = state
        deleted = before.keys() - self.existing().keys()
        assert deleted <= old - needed, "retention deleted what is kept or needed"
        # One that goes on reads what was needed again once a day.
        assert not is_new or deleted == old - needed, "retention kept what is old"

    @rule(
        server=SERVERS,
        end=ENDS,
        is_sealed=st.booleans(),
        has_last=st.booleans(),
        indexes=st.sets(st.integers(0, 2), min_size=1),
        keep=KEEPS,
    )
    def prune_a_group(
        self, server: int, end: TaskStatus, indexes: set[int], keep: Kept, *, is_sealed: bool, has_last: bool
    ) -> None:
        """Retention runs long after tasks of a group of three have ended, and perhaps its last task."""
        self.create(server, "ended", None)
        self.submit(server, [0, 0, 0])
        self.claim(server, 9, start=False)
        self.report(server, end, indexes, None, tree=False)
        if is_sealed:
            self.seal(server, 0, None)
        self.check()
        if has_last:
            self.end_the_last(server, 0)
        self.clock.advance(300)
        self.prune(server, keep, {}, is_new=True)

    def is_old(self, task: TaskResponse, keep: Kept, of_job: Kept) -> bool:
        """Return whether a task has ended longer ago than it is kept."""
        own = of_job[task.status.value] if task.id in self.tasks and task.status in TERMINAL else None
        seconds = own or keep.get(task.status.value)
        if seconds is None or task.completed_at is None:
            return False
        return task.completed_at < self.clock.now - timedelta(seconds=seconds)

    def is_needed(self, task_id: UUID, tasks: dict[UUID, TaskResponse]) -> bool:
        """Return whether the group of a task has not ended, or its last task has not."""
        if task_id not in self.tasks:
            return False
        group = self.tasks[task_id]
        _, last, _ = self.ended.get(group, (None, None, None))
        return group not in self.ended or (last in tasks and tasks[last].status not in TERMINAL)


@runs(sqlite=[(15, 20)], postgresql=[(6, 20)])
def test_groups_end_once_with_their_last_task(run_machine: RunMachine) -> None:
    """Whatever happens to the tasks, and whatever retention deletes."""
    run_machine(Groups)
