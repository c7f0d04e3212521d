"""Extensions that report progress, print and log."""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

from zndraw_joblib.jobs.extensions import Category, Extension
from zndraw_joblib.jobs.task_context import TaskContext, current_task
from zndraw_joblib.wire.policy import Backoff, JobPolicy, RetryOn


def wait_for(path: str) -> None:
    """Wait until a file exists."""
    while not Path(path).exists():
        time.sleep(0.01)


class Talk(Extension):
    """Reports what its payload says; a failure is retried at once."""

    category: ClassVar[Category] = Category.ANALYSIS
    policy: ClassVar[JobPolicy] = JobPolicy(
        max_attempts=2, retry_on=(RetryOn.ERROR,), backoff=Backoff(base_seconds=0)
    )
    name: str = "a"
    lines: int = 1
    then: str = ""
    gate: str = ""

    def run(self, vis: Any, *, task: TaskContext) -> str:
        """Print, wait at the gate, and end as `then` says."""
        for number in task.track(range(self.lines), unit="lines", message=self.name):
            print(f"{self.name} {number}")
        print(f"{self.name} error", file=sys.stderr)
        if self.gate:
            wait_for(self.gate)
        if self.then == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.then == "fail":
            raise ValueError(f"attempt {getattr(task, 'attempt', 0)}")
        return self.name


class TalkLater(Extension):
    """The same in a coroutine, which takes turns with others."""

    category: ClassVar[Category] = Category.ANALYSIS
    name: str = "a"

    async def run(self, vis: Any, **kwargs: Any) -> str:
        """Print twice."""
        task = current_task()
        assert task is not None
        task.log(f"{self.name} logs", level="warning")
        for number in range(3):
            await asyncio.sleep(0.01)
            print(f"{self.name} {number}")
        return self.name


def execute(task: Any) -> Any:
    """Run a task as the command line does, in another process too."""
    from zndraw_joblib.worker.serving import Runner

    return Runner()(task)
