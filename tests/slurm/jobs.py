"""The job of an allocation's worker. The tests copy this file beside the batch script."""

import os
import time
from pathlib import Path

from zndraw_joblib import JobPolicy, TaskContext, job
from zndraw_joblib.wire.policy import RetryOn


@job(policy=JobPolicy(max_attempts=2, retry_on=(RetryOn.WORKER_LOST,)))
def wait_for(task: TaskContext, path: str) -> str:
    """Wait until a file exists; return the node."""
    node = os.environ["SLURMD_NODENAME"]
    task.log(node)
    while not Path(path).exists() and not task.cancelled.is_set():
        time.sleep(0.05)
    return node
