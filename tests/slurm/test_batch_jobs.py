"""The batch script of the page about Slurm, in a real Slurm: its workers, their ends, and lost nodes."""

import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from servers import ServerProcess
from sitegen import ROOT
from waiting import wait_until

from slurm.cluster import Cluster
from zndraw_joblib import Queue
from zndraw_joblib.client.queue import TaskHandle
from zndraw_joblib.wire.statuses import TaskStatus

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(500)]
PAGE = (ROOT / "docs" / "how-to" / "slurm.md").read_text()
JOB = "@global:jobs:wait_for"
SECONDS = 240.0


class Batch:
    """A queue, and the folder from which its workers are submitted to Slurm."""

    def __init__(self, cluster: Cluster, folder: Path, server: ServerProcess) -> None:
        self.cluster, self.folder = cluster, folder
        [script] = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
        (folder / "worker.sh").write_text(script.replace("https://queue.example.org", server.url))
        shutil.copy(Path(__file__).with_name("jobs.py"), folder)
        self.queue = Queue(server.url, token=server.token)
        self._token = server.token

    def sbatch(self, *options: str) -> str:
        """Submit the script, and return the number of its job."""
        return self.command(["sbatch", *options, "worker.sh"]).rpartition(" ")[2]

    def command(self, words: list[str]) -> str:
        """Run a command of the page, and return its output."""
        return self.cluster.run(*words, folder=self.folder, ZNDRAW_JOBLIB_TOKEN=self._token)

    def submit(self, name: str) -> TaskHandle:
        """Submit a task that ends once the file exists; the worker registers the job first."""
        wait_until(lambda: [*self.queue.jobs("lab")], SECONDS, interval=0.2)
        return self.queue.submit(JOB, {"path": str(self.folder / name)}, room="lab")

    def end(self, name: str) -> None:
        """Let a task end."""
        (self.folder / name).touch()

    def output(self, job: str) -> str:
        """Return what a job of Slurm has printed."""
        return (self.folder / f"slurm-{job}.out").read_text()

    def state(self, job: str) -> str:
        """Return the state of a job of Slurm."""
        return self.cluster.job(job)["JobState"]


@pytest.fixture
def batch(cluster: Cluster, tmp_path: Path) -> Iterator[Callable[..., Batch]]:
    """Return a function that starts a queue; what is left in Slurm ends with the test."""
    with ExitStack() as stack:

        def start(**settings: Any) -> Batch:
            server = ServerProcess(f"sqlite+aiosqlite:///{tmp_path}/queue.db", **settings)
            stack.enter_context(server)
            made = Batch(cluster, tmp_path, server)
            stack.callback(made.queue.close)
            stack.callback(cluster.cancel_all)
            return made

        yield start


def statuses(*tasks: TaskHandle) -> list[TaskStatus]:
    """Return the statuses of tasks."""
    return [task.refresh().status for task in tasks]


def is_running(task: TaskHandle) -> bool:
    """Return whether a task runs."""
    return task.refresh().status == TaskStatus.RUNNING


def attempts(task: TaskHandle) -> int:
    """Return how many workers have claimed a task."""
    return sum(step.status == "claimed" for step in task.history().transitions)


def test_the_commands_of_the_page_serve_a_queue(batch: Callable[..., Batch]) -> None:
    """Two of the workers of an array run tasks; those that wait are cancelled, and the others drained."""
    queue = batch()
    submit, *ends = [
        line.removeprefix("$ ").partition(" #")[0]
        for line in re.findall(r"^\$ (?:sbatch|scancel) .*$", PAGE, re.MULTILINE)
    ]
    array = queue.command(shlex.split(submit)).rpartition(" ")[2]
    ended, running = queue.submit("first"), queue.submit("second")
    wait_until(lambda: is_running(ended) and is_running(running), SECONDS, interval=0.2)
    queue.end("first")
    assert ended.result(SECONDS).startswith("n")
    assert len(ends) == 2
    for command in ends:
        queue.command(shlex.split(command.replace("JOBID", array)))
    states = ["squeue", "--noheader", "--array", f"--jobs={array}", "--states=all", "--format=%T"]
    wait_until(lambda: "COMPLETED" in queue.command(states), SECONDS, interval=0.2)
    assert is_running(running)
    queue.end("second")
    assert running.result(SECONDS).startswith("n")
    wait_until(lambda: queue.command(states).count("COMPLETED") == 2, SECONDS, interval=0.2)
    assert set(queue.command(states).split()) == {"COMPLETED", "CANCELLED"}


def test_the_end_of_an_allocation_costs_no_attempt(batch: Callable[..., Batch]) -> None:
    """A task that runs then goes back to its queue; its job has one attempt. The next allocation runs it."""
    queue = batch()
    job = queue.sbatch("--time=2", "--signal=B:CONT@1")
    task = queue.submit("end")
    wait_until(lambda: is_running(task), SECONDS, interval=0.2)
    wait_until(lambda: task.refresh().status == TaskStatus.PENDING, SECONDS, interval=0.5)
    wait_until(lambda: queue.state(job) != "RUNNING", SECONDS, interval=0.5)
    assert queue.state(job) == "COMPLETED", queue.output(job)
    queue.end("end")
    queue.sbatch()
    assert task.result(SECONDS).startswith("n")
    assert attempts(task) == 2


def test_the_signal_before_the_end_drains(batch: Callable[..., Batch]) -> None:
    """The worker claims no more, and leaves once its task has ended."""
    queue = batch()
    job = queue.sbatch("--time=3", "--signal=B:TERM@170")
    running = queue.submit("running")
    wait_until(lambda: is_running(running), SECONDS, interval=0.2)
    wait_until(lambda: "waiting for 1 running task" in queue.output(job), SECONDS, interval=0.2)
    waiting = queue.submit("waiting")
    queue.end("running")
    wait_until(lambda: queue.state(job) != "RUNNING", SECONDS, interval=0.5)
    assert statuses(running, waiting) == [TaskStatus.COMPLETED, TaskStatus.PENDING]
    assert queue.state(job) == "COMPLETED", queue.output(job)


def test_a_lost_node_is_noticed(batch: Callable[..., Batch], cluster: Cluster) -> None:
    """The queue retries the task, which the worker that Slurm starts again on the other node completes."""
    queue = batch(worker_timeout_seconds=15, sweeper_interval_seconds=1)
    job = queue.sbatch()
    task = queue.submit("end")
    wait_until(lambda: is_running(task), SECONDS, interval=0.2)
    [line] = wait_until(task.logs, SECONDS)
    cluster.kill_node(line.text)
    try:
        wait_until(lambda: task.refresh().status == TaskStatus.PENDING, SECONDS, interval=0.2)
        queue.end("end")
        assert task.result(SECONDS) not in {line.text, None}
        assert attempts(task) == 2
        assert queue.cluster.job(job)["Restarts"] == "1"
    finally:
        cluster.start_node(line.text)


def test_auto_is_the_end_of_the_job_of_slurm(batch: Callable[..., Batch]) -> None:
    """Slurm 22.05 sets no variable; also the last job of an array, which has the array's number."""
    queue = batch()
    ends = "import time; from zndraw_joblib.worker.allocations import end_of_allocation as end"
    wrap = f"--wrap=python -c '{ends}; print(end() - time.time())'"
    limits = {"1": 60, "90": 5400, "3:00:00": 10_800, "2-00:10:00": 173_400}
    for limit, seconds in limits.items():
        array = queue.command(["sbatch", "--parsable", "--array=1-2", f"--time={limit}", wrap])
        wait_until(lambda job=array: queue.state(f"{job}_2") == "COMPLETED", SECONDS, interval=0.2)
        wait_until(lambda job=array: queue.state(f"{job}_1") == "COMPLETED", SECONDS, interval=0.2)
        for number in (1, 2):
            assert seconds - 30 < float(queue.output(f"{array}_{number}")) <= seconds + 1
