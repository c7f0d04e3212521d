"""`scale slurm --rest` with a real slurmrestd, and each version of its API."""

import asyncio
import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from waiting import wait_until

from slurm.batch import JOB, SECONDS, Batch
from slurm.cluster import PARTITION, RELEASES, Cluster
from slurm.test_scaling import COMMAND, Scaler
from zndraw_joblib.worker.launchers import LauncherError
from zndraw_joblib.worker.slurm import BatchJob, ListedJob
from zndraw_joblib.worker.slurm_rest import VERSIONS, SlurmRest, SlurmToken

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(500)]

NEWEST = pytest.mark.parametrize("rest_cluster", RELEASES[-1:], indirect=True)
# The options that have a field, and what Slurm shows of them.
OPTIONS = {
    f"--partition={PARTITION}": {"Partition": PARTITION},
    "--account=someone": {"Account": "someone"},
    "--time=1-02:03:04": {"TimeLimit": "1-02:04:00"},
    "--nodes=1": {"NumNodes": "1-1"},
    "--ntasks=1": {"NumTasks": "1"},
    "--cpus-per-task=2": {"CPUs/Task": "2"},
    "--mem=1M": {"MinMemoryNode": "1M"},
    "--gres=gpu:1": {"TresPerNode": "gres/gpu:1"},
    "--gpus=1": {"TresPerJob": "gres/gpu:1"},
    "--nodelist=n2": {"ReqNodeList": "n2"},
    "--exclude=n1": {"ExcNodeList": "n1"},
    "--nice=5": {"Nice": "5"},
    "--comment=a": {"Comment": "a"},
    "--exclusive": {"OverSubscribe": "NO"},
}


class Operator:
    """An operator of a queue with a URL and a token of slurmrestd, and without Slurm's programs."""

    def __init__(self, batch: Batch) -> None:
        self.batch, self.cluster = batch, batch.cluster
        self.path = batch.folder / "slurm-token"
        self.path.write_text(self.cluster.run("scontrol", "token", "lifespan=3600"))
        variables = {"ZNDRAW_JOBLIB_URL", "ZNDRAW_JOBLIB_TOKEN"}
        self.environment = {**os.environ, **{name: batch.environment[name] for name in variables}}

    @property
    def options(self) -> list[str]:
        """The options of the command."""
        return ["--rest", self.cluster.rest_url, "--rest-token-file", str(self.path)]

    def scale(self, *options: str) -> Scaler:
        """Start the command."""
        return Scaler(self.batch, *self.options, "--idle", "2", *options, environment=self.environment)

    def expire(self) -> None:
        """Replace the token by one that has expired; Slurm takes it a few seconds more."""
        self.path.write_text(self.cluster.token(1))
        rest = SlurmRest(self.cluster.rest_url, token=SlurmToken(self.path))

        def is_refused() -> bool:
            try:
                asyncio.run(rest.states({"1": ""}))
            except LauncherError as error:
                return "has expired at 20" in str(error)
            return False

        wait_until(is_refused, SECONDS, interval=0.5)


def state_of(rest: SlurmRest, number: str) -> str | None:
    """Return the state of a batch job by the API, which is asked for one more that it does not know."""
    return asyncio.run(rest.states({number: "", "99999": ""})).get(number)


def is_served(rest: SlurmRest) -> bool:
    """Return whether slurmrestd has a version of the API; another one is refused with its name."""
    try:
        asyncio.run(rest.states({"1": ""}))
    except LauncherError as error:
        if "none of the supported versions of its API: v0" not in str(error):
            raise
        return False
    return True


def test_each_version_of_the_api(rest_cluster: Cluster, tmp_path: Path) -> None:
    """Check, submit, list, signal and cancel. Each option of sbatch that has a field arrives."""
    for name, user in (("token", ""), ("other", "daemon")):
        (tmp_path / name).write_text(rest_cluster.token(user=user))

    def rest_of(version: str, *options: str, token: str = "token") -> SlurmRest:
        options = (*options, f"--chdir={tmp_path}")
        return SlurmRest(rest_cluster.rest_url, options, Path(), SlurmToken(tmp_path / token), [version])

    served = [version for version in VERSIONS if is_served(rest_of(version))]
    assert len(served) >= 2
    job = BatchJob("scale-x", ["sh", "-c", "echo $HOME $WORD; exec sleep 300"], {"WORD": "a=b c"})
    change = ["scontrol", "update", f"PartitionName={PARTITION}"]
    rest_cluster.run(*change, "State=DOWN")
    try:
        for version in served:
            for option, shown in OPTIONS.items():
                rest = rest_of(version, option)
                number = asyncio.run(rest.submit(job))
                assert rest_cluster.job(number).items() >= shown.items(), version
                asyncio.run(rest.drain(number))
                assert state_of(rest, number) == "CANCELLED"
    finally:
        rest_cluster.run(*change, "State=UP")
    for version in served:
        other = rest_of(version, token="other")
        run_until_drained(rest_of(version), job._replace(name=f"scale-{version}"), other)


def run_until_drained(rest: SlurmRest, job: BatchJob, other: SlurmRest) -> None:
    """Check and submit a batch job, and drain it while it runs. Another user neither lists nor drains it."""
    asyncio.run(rest.check(job))
    number = asyncio.run(rest.submit(job))
    wait_until(lambda: state_of(rest, number) == "RUNNING", SECONDS, interval=0.2)
    output = rest.output_of(job.name)
    wait_until(lambda: output.exists() and output.read_text(), SECONDS, interval=0.2)
    # A profile may print something too.
    assert output.read_text().endswith(f"{Path.home()} a=b c\n")
    assert ListedJob(number, "RUNNING", job.name) in asyncio.run(rest.own_jobs())
    assert asyncio.run(other.own_jobs()) == []
    asyncio.run(other.drain(number))
    assert state_of(rest, number) == "RUNNING"
    asyncio.run(rest.drain(number))
    wait_until(lambda: state_of(rest, number) == "FAILED", SECONDS, interval=0.2)
    assert asyncio.run(rest.end_of(number)) == "FAILED, killed by signal 15"


@NEWEST
def test_batch_jobs_follow_the_load(rest_batch: Callable[..., Batch]) -> None:
    """Also over a kill of the command. Neither Slurm, `ps` nor the log shows a token."""
    operator = Operator(queue := rest_batch())
    sbatch = ["--", f"--partition={PARTITION}", "--time=10"]
    with operator.scale(*sbatch) as first:
        tasks = [queue.submit("first") for _ in range(3)]
        wait_until(lambda: sum(task.refresh().status == "running" for task in tasks) == 2, SECONDS)
        wait_until(lambda: first.text.count("is submitted") == 2, SECONDS, interval=0.2)
        assert_no_secrets(operator, first.text)
    with operator.scale("--drain", *sbatch) as second:
        wait_until(lambda: "allocations=2 waiting=0 start=0" in second.text, SECONDS, interval=0.2)
        queue.end("first")
        assert all(task.result(SECONDS).startswith("n") for task in tasks)
        wait_until(lambda: second.text.count("has ended (COMPLETED, exit code 0") == 2, SECONDS, interval=0.2)
        assert "is submitted" not in second.text
        task = queue.submit("last")
        wait_until(lambda: task.refresh().status == "running", SECONDS, interval=0.2)
        second.stop()
        queue.end("last")
        assert task.result(SECONDS).startswith("n")
        wait_until(lambda: not queue.command(["squeue", "--noheader"]), SECONDS, interval=0.2)
        assert "Paused" not in second.text


def assert_no_secrets(operator: Operator, log: str) -> None:
    """Check what Slurm shows of the batch jobs that run, and the arguments of their programs."""
    batch = operator.batch
    shown = [log]
    for job in batch.command(["squeue", "--noheader", "--states=RUNNING", "--format=%A"]).split():
        shown += [batch.command(["scontrol", "show", "job", job])]
        shown += [batch.command(["scontrol", "write", "batch_script", job, "-"])]
    programs = subprocess.run(["ps", "axww"], capture_output=True, text=True, check=True).stdout
    shown += [line for line in programs.splitlines() if "jobs.py" in line]
    text = "\n".join(shown)
    assert text.count("worker jobs.py") >= 4
    for secret in (batch.token, SlurmToken(operator.path).read(), "ZNDRAW_JOBLIB_"):
        assert secret not in text
    assert not re.search(r"\b(zj|jlt)_[\w-]{20}", text)


@NEWEST
def test_an_expired_token_pauses_the_scaler(rest_batch: Callable[..., Batch]) -> None:
    """With another token in the file it goes on once it is resumed. It names a slurmrestd that is down."""
    operator = Operator(queue := rest_batch())
    with operator.scale() as scaler:
        wait_until(lambda: "queued=0" in scaler.text, SECONDS, interval=0.2)
        operator.expire()
        task = queue.submit("end")
        queue.end("end")
        wait_until(lambda: "Paused, nothing is submitted: 5 sub" in scaler.text, SECONDS, interval=0.2)
        reason = scaler.text.rpartition("succession failed: ")[2]
        assert re.match(
            rf"The token in {operator.path} has expired at 20\S+ \S+: put another one, of", reason
        )
        operator.path.write_text(queue.cluster.token())
        queue.cluster.stop_rest()
        scaler.process.send_signal(signal.SIGUSR1)
        wait_until(lambda: "An allocation was refused: slurmrestd at http" in scaler.text, SECONDS)
        assert "cannot be reached" in scaler.text
        queue.cluster.start_rest()
        scaler.process.kill()
        scaler.process.wait()
    with operator.scale():
        assert task.result(SECONDS).startswith("n")


@NEWEST
def test_what_slurm_refuses(rest_batch: Callable[..., Batch]) -> None:
    """The command fails with the reason of Slurm before an allocation is needed, and leaves no batch job."""
    operator = Operator(queue := rest_batch())
    rest = operator.options
    good = operator.path.read_text()
    for token, options, code, text in (
        (good, ["--partition=none"], 1, "Batch job submission failed: Invalid partition name specified"),
        (
            good,
            ["--mem=100T"],
            1,
            "Batch job submission failed: Requested node configuration is not available",
        ),
        (good[:-5] + "AAAAA", [], 1, f"Slurm refuses the token in {operator.path}: put another one"),
        ("", [], 2, f"{operator.path} has no token for Slurm"),
        (good, ["--array=1-2"], 2, "--array is set by this command"),
        (good, ["--wait"], 2, "--wait cannot be sent to slurmrestd. Use only --partition, --account"),
        (good, ["--time=2"], 1, "not found: no worker serves it"),
    ):
        operator.path.write_text(token)
        done = subprocess.run(
            [*COMMAND, *rest, "--dry-run", "--job", JOB, "--", *options],
            cwd=queue.folder,
            env=operator.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, text in " ".join(done.stderr.split())) == (code, True), done.stderr
    assert not queue.command(["squeue", "--noheader"])


class Lossy(BaseHTTPRequestHandler):
    """Forwards requests to slurmrestd, and closes the connection instead of answering a submission."""

    target = ""

    def _forward(self) -> httpx.Response:
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {
            name: self.headers[name]
            for name in ("X-SLURM-USER-TOKEN", "Content-Type")
            if name in self.headers
        }
        return httpx.request(self.command, self.target + self.path, headers=headers, content=content)

    def do_GET(self) -> None:
        """Forward, and answer."""
        answer = self._forward()
        self.send_response(answer.status_code)
        self.end_headers()
        self.wfile.write(answer.content)

    def do_POST(self) -> None:
        """Forward."""
        assert self._forward().status_code == 200


@NEWEST
def test_a_submission_without_an_answer_is_taken_back(rest_cluster: Cluster, tmp_path: Path) -> None:
    """Before the next one: no batch job is there that the scaler does not count."""
    token = tmp_path / "token"
    token.write_text(rest_cluster.token())
    job = BatchJob("lost", ["sleep", "300"], {"WORD": "x"})
    with ThreadingHTTPServer(("127.0.0.1", 0), Lossy) as server:
        Lossy.target = rest_cluster.rest_url
        threading.Thread(target=server.serve_forever, daemon=True).start()
        rest = SlurmRest(
            f"http://127.0.0.1:{server.server_port}", [f"--chdir={tmp_path}"], None, SlurmToken(token)
        )
        with pytest.raises(LauncherError, match="gives no answer"):
            asyncio.run(rest.submit(job))
        server.shutdown()
    rest._url = rest_cluster.rest_url
    assert [one.name for one in asyncio.run(rest.own_jobs())] == ["lost"]
    kept = asyncio.run(rest.submit(job._replace(name="kept")))
    try:
        jobs = ["squeue", "--noheader", "--format=%A"]
        wait_until(lambda: rest_cluster.run(*jobs).split() == [kept], SECONDS, interval=0.2)
    finally:
        rest_cluster.cancel_all()
