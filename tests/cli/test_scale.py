"""The commands demand and scale: workers start while tasks wait, and leave when they are idle."""

import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_until

from cli.program import TIMEOUT, Program, RunningServer
from zndraw_joblib.client.queue import Queue
from zndraw_joblib.client.rest import TaskRest
from zndraw_joblib.jobs.loading import load_extensions
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.operators import Demand

pytestmark = pytest.mark.processes

JOBS = """
import time
from pathlib import Path
from zndraw_joblib import job


@job
def hold(gate: str) -> int:
    while not Path(gate).exists():
        time.sleep(0.02)
    return 1
"""
JOB = "@global:jobs:hold"


class Cluster:
    """A server with a job, and scalers in a folder."""

    def __init__(self, folder: Path, program: Program, server: RunningServer) -> None:
        self.folder, self.program, self.server = folder, program, server
        self.queue = Queue(server.url, server.token, room="lab")
        (folder / "jobs.py").write_text(JOBS)
        program.env["ZNDRAW_JOBLIB_URL"] = server.url
        [extension] = load_extensions(str(folder / "jobs.py"))
        self.queue.operator.register_job(JOB, extension.model_json_schema())

    def submit(self, gate: str, count: int) -> list[Any]:
        """Submit tasks that run until a file is there."""
        return [self.queue.submit(JOB, {"gate": str(self.folder / gate)}) for _ in range(count)]

    def open(self, gate: str) -> None:
        """Let these tasks end."""
        (self.folder / gate).touch()

    def demand(self) -> Demand:
        """Return the demand."""
        with self.server.connect() as connection:
            return TaskRest(connection).send(ops.GET_JOB_DEMAND, name=JOB)

    def workers(self) -> list[tuple[str | None, int | None]]:
        """Return the names and process ids of the workers."""
        with self.server.connect() as connection:
            return [(one.name, one.pid) for one in TaskRest(connection).send(ops.LIST_WORKERS).items]


class Scaler:
    """A running `scale local`."""

    def __init__(self, cluster: Cluster, *options: str) -> None:
        self._log = cluster.folder / f"scaler-{len(list(cluster.folder.glob('scaler-*')))}.log"
        arguments = [
            "scale",
            "local",
            "jobs.py",
            "--interval",
            "0.2",
            "--output",
            str(cluster.folder / "output"),
        ]
        with self._log.open("w") as output:
            self.process = cluster.program.start(*arguments, *options, output=output)

    @property
    def text(self) -> str:
        """What it has written."""
        return self._log.read_text()

    @property
    def submissions(self) -> int:
        """How many allocations it has submitted."""
        return len(re.findall(r"Allocation \S+ is submitted", self.text))

    def stop(self) -> str:
        """Stop it with Ctrl-C, and return what it has written."""
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(TIMEOUT) == 0
        return self.text

    def kill(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait(TIMEOUT)


@pytest.fixture
def cluster(tmp_path: Path, program: Program) -> Iterator[Cluster]:
    """Return a server with a job that no worker serves."""
    with RunningServer(program) as server:
        cluster = Cluster(tmp_path, program, server)
        with cluster.queue:
            yield cluster
        for _, pid in cluster.workers() if server.process.poll() is None else ():
            assert pid is not None
            with suppress(ProcessLookupError):  # it was idle
                os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
def test_workers_start_under_load_and_leave_when_they_are_idle(cluster: Cluster) -> None:
    """As many as tasks wait, at most `--max-workers`; the token is in no argument. New load starts others."""
    tasks = cluster.submit("first", 5)
    scaler = Scaler(cluster, "--max-workers", "2", "--idle", "1", "--job", JOB)
    wait_until(lambda: cluster.demand().running == 2)
    assert re.search(
        r"queued=\d running=\d slots=\d desired=5 .*: .*--max-workers 2 allows no more", scaler.text
    )
    names, pids = zip(*cluster.workers(), strict=True)
    assert len(set(names)) == 2
    for pid in pids:
        assert b"--idle-exit" in (arguments := Path(f"/proc/{pid}/cmdline").read_bytes())
        token = re.search(rb"ZNDRAW_JOBLIB_TOKEN=([^\0]+)", Path(f"/proc/{pid}/environ").read_bytes())
        assert token is not None
        assert token[1] != str(cluster.server.token).encode()
        assert token[1] not in arguments
        assert not re.search(rb"\b(zj|jlt)_", arguments)
        assert token[1].decode() not in scaler.text
    cluster.open("first")
    assert [task.result(timeout=TIMEOUT) for task in tasks] == [1] * 5
    wait_until(lambda: not cluster.workers())
    [task] = cluster.submit("second", 1)
    cluster.open("second")
    assert task.result(timeout=TIMEOUT) == 1
    wait_until(lambda: "ended" in scaler.text)
    assert "Paused" not in scaler.stop()


@pytest.mark.slow
def test_a_restarted_scaler_counts_the_workers_of_a_killed_one(cluster: Cluster) -> None:
    """They go on, and leave when they are idle; the new one starts only what is missing."""
    tasks = cluster.submit("gate", 2)
    first = Scaler(cluster, "--max-workers", "4", "--backlog", "4", "--idle", "2", "--job", JOB)
    wait_until(lambda: cluster.demand().running == 2)
    first.kill()
    before = set(cluster.workers())
    second = Scaler(cluster, "--max-workers", "4", "--backlog", "4", "--idle", "2", "--job", JOB)
    wait_until(lambda: "desired=2" in second.text)
    more = cluster.submit("gate", 1)
    wait_until(lambda: cluster.demand().running == 3)
    assert before < set(cluster.workers())
    assert second.submissions == 1
    note = second.stop()
    assert "Leaving 1 allocation" in note
    cluster.open("gate")
    assert [task.result(timeout=TIMEOUT) for task in (*tasks, *more)] == [1] * 3
    wait_until(lambda: not cluster.workers())


@pytest.mark.slow
def test_failed_starts_pause_the_scaler_until_it_is_resumed(cluster: Cluster) -> None:
    """With the last line of the output. A dead server is no failed start: nothing is submitted."""
    cluster.submit("gate", 3)
    options = ("--max-workers", "1", "--idle", "60", "--job", JOB)
    scaler = Scaler(cluster, *options, "--", "--context", "jobs.py:nothing")
    wait_until(lambda: "Paused" in scaler.text)
    [line] = [line for line in scaler.text.splitlines() if "Paused" in line]
    assert re.search(r"3 allocations in succession .*exit code 1: Error: 'jobs.py' has no 'nothing'", line)
    assert scaler.submissions == 3
    scaler.process.send_signal(signal.SIGUSR1)
    wait_until(lambda: scaler.submissions == 4)
    cluster.server.process.kill()
    wait_until(lambda: "No demand is known, so nothing is submitted" in scaler.text)
    assert scaler.process.poll() is None
    scaler.stop()


def test_what_cannot_work_is_an_error_before_anything_starts(cluster: Cluster) -> None:
    """Jobs that cannot be loaded, options that contradict each other; a dry run starts nothing."""
    run = cluster.program.error_of
    cluster.submit("gate", 3)
    (cluster.folder / "broken.py").write_text("import no_such_library\n")
    token = cluster.program.ok("token", "create", "lab", "--role", "operator", "--rooms", "lab").strip()
    here = ("scale", "local", "jobs.py", "--max-workers", "2", "--dry-run")
    assert f"rights in lab only, and the workers would register {JOB}" in run(*here, TOKEN=token)
    assert "no_such_library" in run("scale", "local", "broken.py", "--max-workers", "2")
    options = ("--max-workers", "1", "--per-allocation", "2")
    assert "--per-allocation 2 is more than" in run("scale", "local", "jobs.py", *options, code=2)
    assert "not both" in run(
        "scale", "local", "jobs.py", "--max-workers", "2", "--job", JOB, "--room", "x", code=2
    )
    done = cluster.program.run(
        *("scale", "local", "jobs.py", "--max-workers", "2", "--backlog", "3", "--job", JOB, "--dry-run")
    )
    assert done.code == 0
    assert re.search(r"Would start 2 allocations .*--max-workers 2 allows no more.*worker jobs\.py", done.err)
    # A token that is no operator's issues none for workers, and is not given to them unless that is wanted.
    issued = cluster.queue.operator.issue_worker_token([JOB], ["@global"], expires_in_seconds=600)
    done = cluster.program.run("scale", "local", "jobs.py", "--max-workers", "1", TOKEN=issued.token)
    assert (done.code, "or --own-token to give" in done.err, issued.token in done.err) == (1, True, False)
    assert cluster.workers() == []
    shown = json.loads(cluster.program.ok("demand", JOB, "--json"))
    assert (shown["queued"], shown["slots"], shown["desired_slots"]) == (3, 0, 3)
    assert cluster.program.ok("demand", "--label", "gpu=a100").splitlines()[1].split("\t")[:3] == [
        "-",
        "",
        "3",
    ]


def test_what_keeps_tasks_from_being_counted_is_named(cluster: Cluster) -> None:
    """Labels that the workers lack, a job that was never registered, an option that workers do not have."""
    cluster.queue.submit(JOB, {"gate": ""}, requires={"gpu": "a100"})
    (cluster.folder / "new.py").write_text(JOBS.replace("hold", "new"))
    options = ("--max-workers", "2", "--dry-run")
    labelled = cluster.program.run("scale", "local", "jobs.py", *options, "--label", "gpu=t4")
    text = "it is enough; not counted: 1 that require gpu=a100, and the workers have gpu=t4 (--label)"
    assert (labelled.code, text in " ".join(labelled.err.split())) == (0, True), labelled.err
    text = "no worker serves it. Until it is registered, no task of it can be submitted. Register it once"
    assert text in cluster.program.error_of("scale", "local", "new.py", *options)
    wrong = ("--", "--exekutor", "process")
    refused = cluster.program.error_of("scale", "local", "jobs.py", *options, *wrong, code=2)
    assert "The options of worker: No such option: --exekutor" in refused


def test_slurmrestd_that_cannot_be_used_is_named(cluster: Cluster) -> None:
    """A wrong URL, no token, no slurmrestd there, and another server; the token is in no message."""
    program = cluster.program
    options = ("scale", "slurm", "jobs.py", "--max-workers", "1", "--dry-run")
    assert "so add --rest URL" in program.error_of(*options, "--rest-token-file", "token", code=2)
    assert "must be like http://host:6820" in program.error_of(*options, "--rest", "host:6820", code=2)
    rest = (*options, "--rest", "http://127.0.0.1:9")
    assert "SLURM_JWT has no token for Slurm: put the one of" in program.error_of(*rest, code=2)
    program.env["SLURM_JWT"] = "e30.e30.secret"
    assert "The token in SLURM_JWT names no user (claim sun)" in program.error_of(*rest)
    program.env["SLURM_JWT"] = "e30.eyJzdW4iOiJ4In0.secret"
    assert "--rest: --wait cannot be sent" in program.error_of(*rest, "--", "--wait", code=2)
    down = program.error_of(*rest)
    assert "No allocation can be started: slurmrestd at http://127.0.0.1:9 cannot be reached" in down
    program.env["SLURM_RESTD_URL"] = cluster.server.url
    other = program.error_of(*options)
    assert (
        f"slurmrestd at {cluster.server.url} has none of the supported versions of its API: v0.0.45," in other
    )
    assert "secret" not in down + other
