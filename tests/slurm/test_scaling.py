"""`scale slurm` in a real Slurm: it submits batch jobs under load, and they end when they are idle."""

import re
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest
from waiting import wait_until

from slurm.batch import JOB, SECONDS, Batch
from slurm.cluster import PARTITION
from zndraw_joblib.jobs.loading import load_extensions

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(500)]


class Scaler:
    """A running `scale slurm` in the folder of a queue, whose job is registered."""

    def __init__(self, batch: Batch, *options: str, environment: dict[str, str] | None = None) -> None:
        self.batch, self._log = batch, batch.folder / "scaler.log"
        [extension] = load_extensions(str(batch.folder / "jobs.py"))
        batch.queue.operator.register_job(JOB, extension.model_json_schema())
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [*COMMAND, "--interval", "0.5", *options],
                cwd=batch.folder,
                env=environment or batch.environment,
                stdout=log,
                stderr=log,
            )

    @property
    def text(self) -> str:
        """What it has written."""
        return self._log.read_text()

    def stop(self) -> None:
        """Stop it with Ctrl-C."""
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(SECONDS) == 0, self.text

    def __enter__(self) -> "Scaler":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


COMMAND = [sys.executable, "-m", "zndraw_joblib", "scale", "slurm", "jobs.py", "--max-workers", "2"]


def running(batch: Batch) -> list[str]:
    """Return the numbers of the batch jobs that run."""
    return batch.command(["squeue", "--noheader", "--states=RUNNING", "--format=%A"]).split()


def test_batch_jobs_follow_the_load(batch: Callable[..., Batch]) -> None:
    """No more than `--max-workers` run, and idle ones end. Neither Slurm nor `ps` shows a token."""
    queue = batch()
    with Scaler(queue, "--idle", "2", "--", f"--partition={PARTITION}", "--time=10") as scaler:
        tasks = [queue.submit("first") for _ in range(3)]
        wait_until(lambda: sum(task.refresh().status == "running" for task in tasks) == 2, SECONDS)
        ids = running(queue)
        assert len(ids) == 2
        shown = [queue.command(["scontrol", "show", "job", job]) for job in ids]
        shown += [queue.command(["scontrol", "write", "batch_script", job, "-"]) for job in ids]
        shown += [
            scaler.text,
            subprocess.run(["ps", "axww"], capture_output=True, text=True, check=True).stdout,
        ]
        assert "worker jobs.py" in "".join(shown)
        assert queue.token not in "".join(shown)
        # Nor those that were issued for the batch jobs, or the token of a task. Other programs may run here.
        ours = [line for line in "\n".join(shown).splitlines() if "jobs.py" in line or "JobId" in line]
        assert not re.search(r"\b(zj|jlt)_[\w-]{20}", "\n".join([*shown[:-1], *ours]))
        assert "ZNDRAW_JOBLIB_" not in "".join(shown)
        queue.end("first")
        assert all(task.result(SECONDS).startswith("n") for task in tasks)
        wait_until(lambda: scaler.text.count("has ended") == 2, SECONDS, interval=0.2)
        assert {queue.state(job) for job in ids} == {"COMPLETED"}
        assert "Paused" not in scaler.text


def test_a_restart_submits_no_second_set(batch: Callable[..., Batch]) -> None:
    """It counts the batch jobs of a killed scaler that wait in Slurm, unless its name is another one."""
    queue = batch()
    change = ["scontrol", "update", f"PartitionName={PARTITION}"]
    waiting = ["squeue", "--noheader", "--states=PENDING", "--format=%A"]
    queue.command([*change, "State=DOWN"])
    try:
        with Scaler(queue, "--idle", "2") as first:
            tasks = [queue.submit("first") for _ in range(2)]
            wait_until(lambda: first.text.count("is submitted") == 2, SECONDS, interval=0.2)
        jobs = queue.command(waiting).split()
        with Scaler(queue, "--idle", "2", "--job", JOB, "--dry-run") as other:
            other.process.wait(SECONDS)
            assert "Would start 2 allocations" in other.text
        with Scaler(queue, "--idle", "2") as second:
            wait_until(lambda: "waiting=2 start=0" in second.text, SECONDS, interval=0.2)
            queue.command([*change, "State=UP"])
            queue.end("first")
            assert all(task.result(SECONDS).startswith("n") for task in tasks)
            wait_until(lambda: second.text.count("has ended") == 2, SECONDS, interval=0.2)
            assert {queue.state(job) for job in jobs} == {"COMPLETED"}
            assert "is submitted" not in second.text
    finally:
        queue.command([*change, "State=UP"])


def test_drained_batch_jobs_finish_their_tasks(batch: Callable[..., Batch]) -> None:
    """Ctrl-C with `--drain` lets those that run end without loss."""
    queue = batch()
    with Scaler(queue, "--drain", "--worker-options", "--executor process --concurrency 2") as scaler:
        task = queue.submit("end")
        wait_until(lambda: task.refresh().status == "running", SECONDS, interval=0.2)
        [job] = running(queue)
        scaler.stop()
        [output] = queue.folder.glob("scale-*.out")
        wait_until(lambda: "waiting for 1 running task" in output.read_text(), SECONDS, interval=0.2)
        queue.end("end")
        assert task.result(SECONDS).startswith("n")
        wait_until(lambda: queue.state(job) == "COMPLETED", SECONDS, interval=0.2)


def test_slurm_refuses_an_allocation_before_it_is_needed(batch: Callable[..., Batch]) -> None:
    """With its reason; options that the workers need are refused too. A dry run submits nothing."""
    queue = batch()
    dry = [*COMMAND, "--dry-run", "--job", JOB, "--"]
    for options, code, text in (
        (["--partition=none"], 1, "No allocation can be started: allocation failure: Invalid partition"),
        (["--export=NONE"], 2, "--export is set by this command"),
        (
            ["--executor=process"],
            1,
            "No allocation can be started: sbatch: unrecognized option '--executor=process'",
        ),
        (["--time=2"], 1, "not found: no worker serves it"),
    ):
        done = subprocess.run(
            [*dry, *options],
            cwd=queue.folder,
            env=queue.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, text in " ".join(done.stderr.split())) == (code, True), done.stderr
    assert not queue.command(["squeue", "--noheader", "--states=all", "--name=scale-check"])


def test_refused_submissions_pause_the_scaler(batch: Callable[..., Batch]) -> None:
    """With the reason of sbatch. It submits again once the partition is up and it is resumed."""
    queue = batch()
    change = ["scontrol", "update", f"PartitionName={PARTITION}"]
    with Scaler(queue, "--idle", "2") as scaler:
        wait_until(lambda: "queued=0" in scaler.text, SECONDS, interval=0.2)
        queue.command([*change, "State=INACTIVE"])
        try:
            task = queue.submit("end")
            queue.end("end")
            wait_until(lambda: "Paused, nothing is submitted: 5 sub" in scaler.text, SECONDS, interval=0.2)
            assert "partition" in scaler.text.rpartition("succession failed: ")[2]
        finally:
            queue.command([*change, "State=UP"])
        scaler.process.send_signal(signal.SIGUSR1)
        assert task.result(SECONDS)
        scaler.stop()
