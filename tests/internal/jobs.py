"""Internal jobs that record what they do in a journal."""

import asyncio
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any, ClassVar

from endings import ENDINGS, RAISED_BY_VALIDATORS
from pydantic import field_validator

from zndraw_joblib import Category, Extension, JobPolicy
from zndraw_joblib.wire.policy import Backoff, RetryOn

QUICKLY = Backoff(base_seconds=0.1, factor=1)
_lock = threading.Lock()


def note(journal: str, *words: object) -> None:
    """Append one line to a journal."""
    with _lock, Path(journal).open("a") as lines:
        lines.write(" ".join(map(str, words)) + "\n")


class Count(Extension):
    """A job that records its begin and its end; its tasks may be retried and may wait for a file `gate`."""

    category: ClassVar[Category] = Category.ANALYSIS
    policy: ClassVar[JobPolicy] = JobPolicy(max_attempts=3, start_timeout_seconds=2, backoff=QUICKLY)
    journal: str
    seconds: float = 0.02
    gate: str = ""

    def run(self, vis: Any, **kwargs: Any) -> int:
        """Sleep; return the process id."""
        note(self.journal, "begin", vis.task_id, vis.attempt, os.getpid())
        time.sleep(self.seconds)
        deadline = time.monotonic() + 60
        while self.gate and not Path(self.gate).exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        note(self.journal, "end", vis.task_id, vis.attempt, os.getpid())
        return os.getpid()


class Once(Count):
    """The same job with the default policy."""

    policy: ClassVar[JobPolicy] = JobPolicy()


class Burn(Once):
    """A job that computes without releasing the interpreter by itself."""

    def run(self, vis: Any, **kwargs: Any) -> int:
        """Count for some seconds."""
        deadline, count = time.monotonic() + self.seconds, 0
        while time.monotonic() < deadline:
            count += 1
        return count


class WaitForCancel(Extension):
    """A job that runs until it is cancelled."""

    category: ClassVar[Category] = Category.MODIFIER
    policy: ClassVar[JobPolicy] = JobPolicy(max_attempts=2, retry_on=(RetryOn.ERROR,), backoff=QUICKLY)
    journal: str

    def run(self, vis: Any, **kwargs: Any) -> str:
        """Record whether the cancellation arrived."""
        note(self.journal, "begin", vis.task_id, vis.attempt, os.getpid())
        is_cancelled = vis.cancelled.wait(30)
        note(
            self.journal, "cancelled" if is_cancelled else "timed-out", vis.task_id, vis.attempt, os.getpid()
        )
        return "late"


class AwaitCancel(WaitForCancel):
    """A coroutine that runs until it is cancelled."""

    async def run(self, vis: Any, **kwargs: Any) -> None:
        """Record the cancellation."""
        note(self.journal, "begin", vis.task_id, vis.attempt, os.getpid())
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            note(self.journal, "cancelled", vis.task_id, vis.attempt, os.getpid())
            raise


class EndAs(Extension):
    """A job whose payload selects how it ends."""

    category: ClassVar[Category] = Category.SELECTION
    policy: ClassVar[JobPolicy] = JobPolicy(
        max_attempts=2, retry_on=(RetryOn.ERROR,), non_retryable=("LookupError",), backoff=QUICKLY
    )
    how: str = "well"

    def run(self, vis: Any, **kwargs: Any) -> Any:
        """Return a result or raise an exception."""
        from zndraw_joblib import GiveUp, Retry

        if self.how == "exit":
            sys.exit(3)
        errors = {
            "interrupt": KeyboardInterrupt(),
            "give up": GiveUp("no use"),
            "again": Retry(0, "busy"),
            "key": KeyError("no use"),
        }
        if self.how in errors:
            raise errors[self.how]
        if self.how == "large":
            return "x" * 1024 * 1024
        if self.how == "strange":
            return object()
        if self.how == "nan":
            return float("nan")
        return {"how": self.how, "room": vis.room_id}


class AnyEnd(Extension):
    """A job that ends as its payload says, in the validator or in the run."""

    category: ClassVar[Category] = Category.ANALYSIS
    how: str = "well"

    @field_validator("how")
    @classmethod
    def check(cls, how: str) -> str:
        """Raise as the payload says."""
        if how.startswith("validator: "):
            raise RAISED_BY_VALIDATORS[how.removeprefix("validator: ")]
        return how

    def run(self, vis: Any, **kwargs: Any) -> Any:
        """Return or raise."""
        if self.how == "nul":
            return "\x00"
        return "well" if self.how == "well" else ENDINGS[self.how][0]()
