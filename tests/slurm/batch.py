"""A queue whose workers are batch jobs of Slurm."""

import re
import shutil
from pathlib import Path

from servers import ServerProcess
from sitegen import ROOT
from waiting import wait_until

from slurm.cluster import Cluster
from zndraw_joblib import Queue
from zndraw_joblib.client.queue import TaskHandle

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
        self.token = str(server.token)
        variables = {"ZNDRAW_JOBLIB_URL": server.url, "ZNDRAW_JOBLIB_TOKEN": self.token}
        self.environment = {**cluster.environment, **variables}

    def sbatch(self, *options: str) -> str:
        """Submit the script, and return the number of its job."""
        return self.command(["sbatch", *options, "worker.sh"]).rpartition(" ")[2]

    def command(self, words: list[str]) -> str:
        """Run a command of the page, and return its output."""
        return self.cluster.run(*words, folder=self.folder, ZNDRAW_JOBLIB_TOKEN=self.token)

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
