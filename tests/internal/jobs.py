"""Internal jobs that write down what they do, for processes of their own."""

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any, ClassVar

from zndraw_joblib import Category, Extension, JobPolicy
from zndraw_joblib.contract.policy import Backoff, RetryOn

QUICKLY = Backoff(base_seconds=0.1, factor=1)
_turns = threading.Lock()


def note(journal: str, *words: object) -> None:
    """Add a line to a journal, as a whole."""
    with _turns, Path(journal).open("a") as lines:
        lines.write(" ".join(map(str, words)) + "\n")


class Count(Extension):
    """Writes down that it begins and that it ends, and may be tried again."""

    category: ClassVar[Category] = Category.ANALYSIS
    policy: ClassVar[JobPolicy] = JobPolicy(max_attempts=3, start_timeout_seconds=2, backoff=QUICKLY)
    journal: str
    seconds: float = 0.02

    def run(self, vis: Any, **kwargs: Any) -> int:
        """Take a moment; return the process."""
        note(self.journal, "begin", vis.task_id, vis.attempt, os.getpid())
        time.sleep(self.seconds)
        note(self.journal, "end", vis.task_id, vis.attempt, os.getpid())
        return os.getpid()


class Once(Count):
    """The same, with the policy that a job has by default."""

    policy: ClassVar[JobPolicy] = JobPolicy()


class Burn(Once):
    """Computes, and never lets go by itself."""

    def run(self, vis: Any, **kwargs: Any) -> int:
        """Count for some seconds."""
        until, count = time.monotonic() + self.seconds, 0
        while time.monotonic() < until:
            count += 1
        return count


class Heed(Extension):
    """Runs until it hears that nobody waits for it any more."""

    category: ClassVar[Category] = Category.MODIFIER
    policy: ClassVar[JobPolicy] = JobPolicy(max_attempts=2, retry_on=(RetryOn.ERROR,), backoff=QUICKLY)
    journal: str

    def run(self, vis: Any, **kwargs: Any) -> str:
        """Say whether it was heard."""
        note(self.journal, "begin", vis.task_id, vis.attempt, os.getpid())
        heard = vis.cancelled.wait(30)
        note(self.journal, "heard" if heard else "deaf", vis.task_id, vis.attempt, os.getpid())
        return "late"


class Twist(Extension):
    """Ends as it is told."""

    category: ClassVar[Category] = Category.SELECTION
    policy: ClassVar[JobPolicy] = JobPolicy(max_attempts=2, retry_on=(RetryOn.ERROR,), backoff=QUICKLY)
    how: str = "well"

    def run(self, vis: Any, **kwargs: Any) -> Any:
        """Return something, or raise."""
        if self.how == "exit":
            sys.exit(3)
        if self.how == "interrupt":
            raise KeyboardInterrupt
        if self.how == "give up":
            from zndraw_joblib import GiveUp

            raise GiveUp("no use")
        if self.how == "large":
            return "x" * 1024 * 1024
        if self.how == "strange":
            return object()
        if self.how == "nan":
            return float("nan")
        return {"how": self.how, "room": vis.room_id}
