"""The batch script of the page about Slurm, in a real Slurm: its workers, their ends, and lost nodes."""

import re
import shlex
from collections.abc import Callable

import pytest
from waiting import wait_until

from slurm.batch import PAGE, SECONDS, Batch
from slurm.cluster import Cluster
from zndraw_joblib.client.queue import TaskHandle
from zndraw_joblib.wire.statuses import TaskStatus

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(500)]


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
    job = queue.sbatch("--time=3", "--signal=B:TERM@140")
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
