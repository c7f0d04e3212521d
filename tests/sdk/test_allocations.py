"""A worker leaves by itself: before its allocation ends, when it is idle, or after some tasks."""

import os
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from waiting import wait_until

from sdk.executors import Process
from sdk.jobs import Add
from sdk.live import TOKEN, LiveServer
from sdk.stuck_jobs import Stuck
from sdk.test_killed_processes import has_ended, pids_in
from zndraw_joblib.client.connection import Connection, connect
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.messages import JobResponse
from zndraw_joblib.wire.problems import Unauthorized
from zndraw_joblib.wire.statuses import TaskStatus
from zndraw_joblib.wire.worker_tokens import WorkerTokenRequest, WorkerTokenResponse
from zndraw_joblib.worker import allocations, session
from zndraw_joblib.worker.allocations import UNLIMITED, Allocation, end_of_allocation
from zndraw_joblib.worker.manager import JobManager
from zndraw_joblib.worker.rest import RestApi
from zndraw_joblib.worker.serving import Runner
from zndraw_joblib.worker.tasks import ClaimedTask

Make = Callable[..., JobManager]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an allocation end two seconds before its time, and check it often."""
    monkeypatch.setattr(allocations, "END_SECONDS", 2.0)
    monkeypatch.setattr(allocations, "_LAST_SECONDS", 1.0)
    monkeypatch.setattr(allocations, "_CHECK_SECONDS", 0.05)
    monkeypatch.setattr(allocations, "_NO_JOB_SECONDS", 0.1)


def has_left(manager: JobManager) -> bool:
    """Return whether a worker has left by itself."""
    return manager.worker_id is None


def set_end(manager: JobManager, seconds: float) -> None:
    """Let the allocation of a worker end after so many seconds, however slow its start was."""
    set_allocation(manager, ends_at=time.time() + seconds)


def set_allocation(manager: JobManager, **fields: float) -> None:
    """Change the allocation of a worker that runs."""
    assert manager._session is not None
    watch = manager._session.watch
    watch._allocation = watch._allocation._replace(**fields)


@pytest.mark.parametrize("requeue", [True, False])
def test_the_end_of_an_allocation_loses_no_task(
    worker: Make, room: str, tmp_path: Path, *, requeue: bool
) -> None:
    """What runs goes back to its queue, also with one attempt, or its policy decides; its process ends."""
    caller = worker()
    caller.register(Stuck, room=room, max_attempts=1)
    running = caller.submit(Stuck(folder=str(tmp_path), once=True), room=room)
    waiting = caller.submit(Stuck(folder=str(tmp_path), once=True), room=room)
    allocation = Allocation(ends_at=time.time() + 3600, requeue=requeue)
    manager = worker(Runner(), executor="process", cancel_grace=0.1, allocation=allocation)
    manager.register(Stuck, room=room)
    pids = pids_in(tmp_path)
    set_end(manager, 2)
    wait_until(lambda: has_left(manager), 30)
    wait_until(lambda: all(map(has_ended, pids)), 30)
    # The worker does not wait for long until the server has removed it.
    after = TaskStatus.PENDING if requeue else TaskStatus.FAILED
    wait_until(lambda: caller.get_task(running).status == after)
    assert caller.get_task(waiting).status == TaskStatus.PENDING
    other = worker(Runner())
    other.register(Stuck, room=room)
    expected = {running: "well" if requeue else None, waiting: "well"}
    assert {task: caller.wait_for(task, 60).result for task in expected} == expected


def test_a_worker_gets_only_tasks_that_fit(worker: Make, room: str) -> None:
    """It runs the others, and leaves when it has no time for any of its jobs."""
    manager = worker(Runner(), allocation=Allocation(ends_at=time.time() + 600), long_poll=1)
    manager.register(Add, room=room, expected_seconds=60, timeout_seconds=3600)
    manager.register(Process, room=room, timeout_seconds=3600)
    long = manager.submit(Process(), room=room)
    assert manager.wait_for(manager.submit(Add(a=1, b=2), room=room), 30).result == 3
    assert "no_worker_with_enough_time" in {reason.code for reason in manager.explain(long).reasons}
    [summary] = manager.workers(room).items
    assert summary.ends_at is not None
    assert abs(summary.ends_at.timestamp() - time.time() - 600) < 60
    set_end(manager, 50)
    wait_until(lambda: has_left(manager), 30)
    assert manager.get_task(long).status == TaskStatus.PENDING


def issue_token(server: LiveServer, room: str) -> WorkerTokenResponse:
    """Return a token for workers of a room that is valid for 10 minutes."""
    request = WorkerTokenRequest(jobs=[f"{room}:*"], rooms=[room], expires_in_seconds=600)
    with server.connect() as operator:
        return RestApi(operator).send(ops.CREATE_WORKER_TOKEN, request)


@pytest.mark.parametrize("allocation", [Allocation(ends_at=time.time() + 36_000), UNLIMITED])
def test_a_worker_leaves_before_its_token_ends(
    server: LiveServer, worker: Make, room: str, allocation: Allocation
) -> None:
    """It gets only tasks that fit, and what still runs goes back to its queue, also with one attempt."""
    running = threading.Event()

    def execute(task: ClaimedTask) -> bool:
        running.set()
        return task.cancelled.wait(40)

    caller = worker()
    with connect(server.url, issue_token(server, room).token) as own:
        manager = worker(execute, at=own, allocation=allocation)
        manager.register(Process, room=room, expected_seconds=60, max_attempts=1)
        manager.register(Add, room=room, expected_seconds=900)
        long = caller.submit(f"{room}:modifiers:Add", {"a": 1}, room=room)
        short = caller.submit(Process(), room=room, job_room=room)
        assert "no_worker_with_enough_time" in {reason.code for reason in caller.explain(long).reasons}
        [summary] = caller.workers(room).items
        assert summary.ends_at is not None
        assert abs(summary.ends_at.timestamp() - time.time() - 600) < 60
        assert running.wait(30)
        set_end(manager, 2)
        wait_until(lambda: has_left(manager), 30)
        assert caller.get_task(short).status == TaskStatus.PENDING


def test_a_worker_reads_the_end_of_its_token_again(
    server: LiveServer, worker: Make, room: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator may move it while the worker runs."""
    monkeypatch.setattr(allocations, "_LATEST_READ_SECONDS", 0.05)
    issued = issue_token(server, room)
    with connect(server.url, issued.token) as own:
        manager = worker(Runner(), at=own)
        manager.register(Add, room=room)
        assert manager._session is not None
        remaining = manager._session.watch.seconds_for_tasks
        assert 0 < (remaining() or 0) < 600
        # An end that is more than a week away limits no claim.
        end = str(datetime.now(UTC).replace(tzinfo=None) + timedelta(days=8))
        write(server, "UPDATE joblib_token SET expires_at = ? WHERE name = ?", end, issued.name)
        wait_until(lambda: remaining() is None, 30)


def write(server: LiveServer, sql: str, *values: str) -> None:
    """Write to the server's database, as the commands for tokens do."""
    with closing(sqlite3.connect(server.settings.database_url.partition(":///")[2])) as database, database:
        database.execute(sql, values)


class Refused(Connection):
    """A connection whose token the server refuses while `is_refused`."""

    is_refused, refusals = False, 0

    def raise_for_status(self, response: httpx.Response) -> None:
        """Count the refusals."""
        self.refusals += response.status_code == 401
        super().raise_for_status(response)

    def get_headers(self) -> dict[str, str]:
        """Return the header with the token, or with one that the server does not know."""
        return {"Authorization": "Bearer unknown"} if self.is_refused else super().get_headers()


def test_a_worker_ends_when_its_token_is_refused_for_long(
    server: LiveServer, worker: Make, room: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not at once: a server may have another secret for a moment. Its tasks see that they are lost."""
    running, cancelled = threading.Event(), threading.Event()

    def execute(task: ClaimedTask) -> str:
        running.set()
        if task.extension.a:
            assert task.cancelled.wait(40)
            cancelled.set()
        return "done"

    with Refused(server.url, TOKEN, 30) as own:
        manager, caller = worker(execute, at=own, long_poll=1, heartbeat_interval=0.1), worker()
        manager.register(Add, room=room)
        own.is_refused = True
        wait_until(lambda: own.refusals >= 3)
        own.is_refused = False
        assert caller.wait_for(caller.submit(f"{room}:modifiers:Add", {"a": 0}), 30).result == "done"
        running.clear()
        caller.submit(f"{room}:modifiers:Add", {"a": 1})
        assert running.wait(30)
        monkeypatch.setattr(session, "REFUSED_SECONDS", 1.5)
        own.is_refused = True
        with pytest.raises(Unauthorized, match=r"refused, with each response of 1.5 s: .*"):
            manager.wait()
        assert cancelled.wait(30)
        assert has_left(manager)


def test_a_worker_leaves_long_jobs_of_an_older_server(
    worker: Make, room: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a server does not know `expected_seconds`, and would give it their tasks."""
    register = RestApi.register

    def register_at_older(*args: Any) -> JobResponse:
        response = register(*args)
        return JobResponse.model_validate(response.model_dump(exclude={"expected_seconds"}, by_alias=True))

    monkeypatch.setattr(RestApi, "register", register_at_older)
    manager = worker(Runner(), allocation=Allocation(ends_at=time.time() + 600))
    manager.register(Add, room=room, timeout_seconds=60)
    manager.register(Process, room=room, timeout_seconds=3600)
    wait_until(lambda: len(manager.registry) == 1)
    assert next(iter(manager.registry)).endswith(":Add")


def test_an_idle_worker_leaves(worker: Make, room: str) -> None:
    """Not while a task runs, however long that takes."""
    running, may_end = threading.Event(), threading.Event()

    def execute(task: Any) -> str:
        running.set()
        assert may_end.wait(40)
        return "done"

    # On a slow machine half a second is over before the worker has its first task, or its next one.
    manager, caller = worker(execute, allocation=Allocation(idle_exit=3600)), worker()
    manager.register(Add, room=room)
    task_id = caller.submit(f"{room}:modifiers:Add", {})
    assert running.wait(30)
    set_allocation(manager, idle_exit=0.5)
    assert not manager._session.tasks.stopping.wait(1)  # type: ignore[union-attr]
    set_allocation(manager, idle_exit=3600)
    next_id = caller.submit(f"{room}:modifiers:Add", {})
    may_end.set()
    assert caller.wait_for(next_id, 30).result == "done"
    set_allocation(manager, idle_exit=0.5)
    wait_until(lambda: has_left(manager), 30)
    assert [caller.get_task(task).result for task in (task_id, next_id)] == ["done", "done"]


@pytest.mark.parametrize("slots", [1, 8])
def test_a_worker_leaves_after_some_tasks(worker: Make, room: str, slots: int) -> None:
    """It claims no more than it may run, also into free slots."""
    caller = worker()
    caller.register(Add, room=room)
    ids = [caller.submit(Add(a=n), room=room) for n in range(8)]
    manager = worker(Runner(), allocation=Allocation(max_runs=2), concurrency=slots)
    manager.register(Add, room=room)
    wait_until(lambda: has_left(manager), 30)
    claims = [sum(step.status == "claimed" for step in caller.history(task).transitions) for task in ids]
    assert sum(claims) == 2
    statuses = [caller.get_task(task).status for task in ids]
    assert set(statuses) == {TaskStatus.COMPLETED, TaskStatus.PENDING}


def test_the_end_of_a_pbs_job_is_its_start_and_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`qstat` of PBS prints the start in words; what it does not show is an error with the remedy."""
    qstat, started = tmp_path / "qstat", time.mktime((2030, 1, 2, 3, 4, 5, 0, 0, -1))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    limits = {'"walltime":"12:30:15"': 45015, '"walltime":"90"': 90, '"ncpus":1': 365 * 86_400}
    for limit, seconds in limits.items():
        job = f'{{"stime":"{time.ctime(started)}","Resource_List":{{{limit}}}}}'
        text = f'{{"timestamp":1,"Jobs":{{"12.head":{job}}}}}'
        qstat.write_text(f"#!/bin/sh\n[ \"$*\" = '-f -F json 12.head' ] && echo '{text}'\n")
        qstat.chmod(0o755)
        assert end_of_allocation({"PBS_JOBID": "12.head"}) == started + seconds
    with pytest.raises(ValueError, match=r"walltime of job 13.*Pass a duration"):
        end_of_allocation({"PBS_JOBID": "13"})


def test_the_end_of_an_lsf_job_is_its_run_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`bjobs` shows what is left in minutes; what it does not show is an error with the remedy."""
    bjobs, allocation = tmp_path / "bjobs", {"LSB_JOBID": "12", "LSB_JOBINDEX": "0"}
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def shows(text: str, job: str = "12") -> None:
        bjobs.write_text(f"#!/bin/sh\n[ \"$*\" = '-noheader -o time_left {job}' ] && {text}\n")
        bjobs.chmod(0o755)

    for text, seconds in {
        "2:05 L": 7440,
        "0:00 L": 0,
        "100:30:10 L": 361_810,
        "1:00 E": 3540,
        "-": 365 * 86_400,
    }.items():
        shows(f"echo '{text}'")
        assert end_of_allocation(allocation) == pytest.approx(time.time() + seconds, abs=20)
    shows("echo '2:05 L'", "12[3]")
    assert end_of_allocation({**allocation, "LSB_JOBINDEX": "3"}) > time.time() + 7000
    for text in ("echo '0:10 X'", "echo 'Job <12> is not found' >&2; exit 255", "true"):
        shows(text)
        with pytest.raises(ValueError, match=r"no limit of job 12.*Pass a duration"):
            end_of_allocation(allocation)
    monkeypatch.setattr("zndraw_joblib.worker.allocations._COMMAND_SECONDS", 0.2)
    shows("exec sleep 30")
    with pytest.raises(ValueError, match=r"bjobs fails.*timed out.*Pass a duration"):
        end_of_allocation(allocation)
    bjobs.unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match=r"bjobs fails.*No such file.*Pass a duration"):
        end_of_allocation(allocation)


def test_wrong_allocations_are_refused(worker: Make) -> None:
    """The error names the field, or the variable of Slurm."""
    assert end_of_allocation({"SLURM_JOB_END_TIME": "1767225600"}) == 1767225600
    for environment, text in (({}, "is not set"), ({"SLURM_JOB_END_TIME": "noon"}, "'noon' is no time")):
        with pytest.raises(ValueError, match=text):
            end_of_allocation(environment)
    for wrong, text in (
        (Allocation(idle_exit=0), "idle_exit must be above 0"),
        (Allocation(max_runs=0), "max_runs must be at least 1"),
        (Allocation(requeue=True), "requeue needs ends_at"),
    ):
        with pytest.raises(ValueError, match=text):
            worker(Runner(), allocation=wrong)
