"""A state machine: on two servers, each claim gets the first tasks that no pause stops, and all of them."""

from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule
from replica import ADMIN, OWNER, SUBMITTER

from model.machines import SERVERS, RunMachine, TwoServers, runs
from zndraw_joblib.server.queue import rules_history, rules_pauses, rules_sweep
from zndraw_joblib.wire.messages import EmptyReason, TaskClaimRequest, TaskSubmitRequest
from zndraw_joblib.wire.names import GLOBAL, JobName

JOBS = [JobName(GLOBAL, "modifiers", name) for name in ("Rotate", "Scale")]
ROOMS = st.sampled_from(["a", "b"])
PAUSED = st.sampled_from([*JOBS, "a", "b", None])
END_SECONDS = st.sampled_from([None, 5, 30])
FOREVER = datetime.max


class Waiting(NamedTuple):
    """A task that waits in its queue."""

    id: UUID
    job: JobName
    room: str


class Pauses(TwoServers):
    """Compares each claim with the tasks that wait and the pauses."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.waiting: list[Waiting] = []
        # When each pause ends, by what it pauses.
        self.ends: dict[Any, Any] = {}

    def run(self, work: Any) -> Any:
        """Wait for the work of a server: no request is refused."""
        return self.runner.run(work)

    @initialize()
    def register(self) -> None:
        """Register the jobs with one worker."""
        self.worker: UUID | None = None
        for name in JOBS:
            self.worker = self.register_job(name, worker_id=self.worker).worker_id

    def is_paused(self, task: Waiting) -> bool:
        """Return whether a pause stops a task."""
        ends = [self.ends.get(what) for what in (None, task.room, task.job)]
        return any(end is not None and end > self.clock.now.replace(tzinfo=None) for end in ends)

    @rule(server=SERVERS, job=st.sampled_from(JOBS), room=ROOMS, count=st.integers(1, 3))
    def submit(self, server: int, job: JobName, room: str, count: int) -> None:
        """Submit tasks."""
        runtime = self.runtimes[server]
        items = [runtime.submission(SUBMITTER, room, job, TaskSubmitRequest()) for _ in range(count)]
        tasks: list[Any] = self.run(runtime.submit_many(items))
        self.waiting += [Waiting(task.id, job, room) for task in tasks]

    @rule(server=SERVERS, what=PAUSED, seconds=END_SECONDS)
    def pause(self, server: int, what: Any, seconds: int | None) -> None:
        """Pause a job, a room or all rooms."""
        until = None if seconds is None else self.clock.now + timedelta(seconds=seconds)
        if isinstance(what, JobName):
            self.write(server, rules_pauses.pause_job, ADMIN, what, paused=True, until=until)
        else:
            self.write(server, rules_pauses.pause, ADMIN, what, until=until)
        self.ends[what] = FOREVER if until is None else until.replace(tzinfo=None)

    @rule(server=SERVERS, what=PAUSED)
    def resume(self, server: int, what: Any) -> None:
        """Resume a job, a room or all rooms."""
        if isinstance(what, JobName):
            self.write(server, rules_pauses.pause_job, ADMIN, what, paused=False)
        else:
            self.write(server, rules_pauses.resume, ADMIN, what)
        self.ends.pop(what, None)

    @rule(seconds=st.sampled_from([1, 5, 30]))
    def time_passes(self, seconds: int) -> None:
        """No server ends the pauses that are over."""
        self.clock.advance(seconds)

    @rule(server=SERVERS)
    def pauses_are_ended(self, server: int) -> None:
        """A server deletes the pauses that are over."""
        self.write(server, rules_sweep.next_due)

    @rule(server=SERVERS, count=st.integers(1, 4), start=st.booleans())
    def claim(self, server: int, count: int, *, start: bool) -> None:
        """The claim gets the first tasks that no pause stops; without one, it says why."""
        expected = [task for task in self.waiting if not self.is_paused(task)][:count]
        request = TaskClaimRequest(worker_id=self.worker, max=count, start=start)
        response = self.run(self.runtimes[server].claim(OWNER, request))
        assert [task.id for task in response.tasks] == [task.id for task in expected]
        if not expected:
            reason = EmptyReason.PAUSED if self.waiting else EmptyReason.EMPTY
            assert response.reason is reason
        self.waiting = [task for task in self.waiting if task not in expected]

    @rule(server=SERVERS)
    def explain(self, server: int) -> None:
        """Each task that waits is explained by its pauses alone."""
        runtime = self.runtimes[server]
        for task in self.waiting[:2]:
            work = runtime.database.read(rules_history.explain, task.id, runtime.order)
            codes = [reason.code for reason in self.run(work).reasons]
            assert ("paused" in codes) == self.is_paused(task)


@runs(sqlite=[(15, 30), (40, 30)], postgresql=[(6, 30), (30, 30)])
def test_claims_obey_pauses(run_machine: RunMachine) -> None:
    """Both servers see each pause, and each end of one."""
    run_machine(Pauses)
