"""A state machine: on two servers, each claim gets the first tasks that no pause stops, and all of them."""

import asyncio
import shutil
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from databases import empty
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from invariants import broken_invariants
from replica import ADMIN, OWNER, SUBMITTER, ManualClock

from model.test_queue import profile, runs
from zndraw_joblib.server.db.engine import open_database
from zndraw_joblib.server.process.settings import JobLibSettings
from zndraw_joblib.server.queue import rules_history, rules_jobs, rules_pauses, rules_sweep
from zndraw_joblib.server.runtime.runtime import Runtime
from zndraw_joblib.wire.messages import EmptyReason, JobRegisterRequest, TaskClaimRequest, TaskSubmitRequest
from zndraw_joblib.wire.names import GLOBAL, JobName

JOBS = [JobName(GLOBAL, "modifiers", name) for name in ("Rotate", "Scale")]
SERVERS, ROOMS = st.sampled_from([0, 1]), st.sampled_from(["a", "b"])
PAUSED = st.sampled_from([*JOBS, "a", "b", None])
END_SECONDS = st.sampled_from([None, 5, 30])
FOREVER = datetime.max


class Waiting(NamedTuple):
    """A task that waits in its queue."""

    id: UUID
    job: JobName
    room: str


class Pauses(RuleBasedStateMachine):
    """Compares each claim with the tasks that wait and the pauses."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url, self.clock, self.runner = url, ManualClock(), asyncio.Runner()
        self.runtimes = [Runtime(open_database(url, self.clock), JobLibSettings()) for _ in range(2)]
        self.waiting: list[Waiting] = []
        # When each pause ends, by what it pauses.
        self.ends: dict[Any, Any] = {}

    def teardown(self) -> None:
        """Close the databases and check their invariants from outside."""
        for runtime in self.runtimes:
            self.runner.run(runtime.database.close())
        self.runner.close()
        assert broken_invariants(self.url) == []

    def write(self, server: int, work: Any, *args: Any, **options: Any) -> Any:
        """Run a transaction on a server; return its result."""
        return self.runner.run(self.runtimes[server].write(work, *args, **options))

    @initialize()
    def register(self) -> None:
        """Register the jobs with one worker."""
        self.worker: UUID | None = None
        for name in JOBS:
            request = JobRegisterRequest(category=name.category, name=name.name, worker_id=self.worker)
            item = rules_jobs.JobToRegister(OWNER, GLOBAL, request)
            job, _ = self.write(0, rules_jobs.register, item=item)
            self.worker = job.worker_id

    def is_paused(self, task: Waiting) -> bool:
        """Return whether a pause stops a task."""
        ends = [self.ends.get(what) for what in (None, task.room, task.job)]
        return any(end is not None and end > self.clock.now.replace(tzinfo=None) for end in ends)

    @rule(server=SERVERS, job=st.sampled_from(JOBS), room=ROOMS, count=st.integers(1, 3))
    def submit(self, server: int, job: JobName, room: str, count: int) -> None:
        """Submit tasks."""
        runtime = self.runtimes[server]
        items = [runtime.submission(SUBMITTER, room, job, TaskSubmitRequest()) for _ in range(count)]
        tasks: list[Any] = self.runner.run(runtime.submit_many(items))
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
        response = self.runner.run(self.runtimes[server].claim(OWNER, request))
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
            codes = [reason.code for reason in self.runner.run(work).reasons]
            assert ("paused" in codes) == self.is_paused(task)


@runs((15, 30), (40, 30))
def test_claims_obey_pauses_on_sqlite(
    sqlite_template: Path, tmp_path: Path, examples: int, steps: int
) -> None:
    """On two servers with one file."""

    def fresh() -> Pauses:
        return Pauses(f"sqlite:///{shutil.copy(sqlite_template, tmp_path / 'model.db')}")

    run_state_machine_as_test(fresh, settings=profile(examples, steps))


@runs((6, 30), (30, 30))
def test_claims_obey_pauses_on_postgresql(postgres_url: str, examples: int, steps: int) -> None:
    """On two servers with one database."""

    def fresh() -> Pauses:
        empty(postgres_url)
        return Pauses(postgres_url)

    run_state_machine_as_test(fresh, settings=profile(examples, steps))
