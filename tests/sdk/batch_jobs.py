"""Jobs that take a batch."""

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, field_validator

from zndraw_joblib import Batch, BatchExtension, JobPolicy, NonRetryable, Retry, RetryOn, TaskContext, job
from zndraw_joblib.wire.policy import Backoff

RETRIES = JobPolicy(
    max_attempts=3, retry_on=(RetryOn.ERROR, RetryOn.WORKER_LOST), backoff=Backoff(base_seconds=0)
)


class Word(BaseModel):
    """A word, and what becomes of it."""

    text: str
    model: str = "small"
    how: str = ""

    @field_validator("text")
    @classmethod
    def _check(cls, text: str) -> str:
        if text == "unclean":  # the job's schema does not say so
            raise ValueError("this word is not accepted")
        return text


def touch(path: str) -> None:
    """Make a file."""
    Path(path).touch()


def result_of(word: Word, size: int) -> Any:
    """Return the length of a word and of its batch, or what is wrong with it."""
    errors = {"wrong": ValueError, "final": NonRetryable}
    if word.how in errors:
        return errors[word.how](word.text)
    if word.how == "later":
        return Retry(0, word.text)
    return object() if word.how == "object" else [len(word.text), size, word.model]


@job(batch=Batch(max=8, wait_seconds=0), policy=RETRIES)
def measure(words: list[Word], tasks: list[TaskContext]) -> list[Any]:
    """Measure words together.

    Args:
        words: What to measure.
    """
    print("a batch of", len(words))
    for number, (word, task) in enumerate(zip(words, tasks, strict=True)):
        task.progress(number, len(words), message=word.text)
        task.log(f"this is {word.text}")
    return [result_of(word, len(words)) for word in words]


@job(batch=Batch(max=8, wait_seconds=0))
async def measure_later(words: list[Word]) -> list[Any]:
    """Measure words on an event loop."""
    await asyncio.sleep(0)
    return [result_of(word, len(words)) for word in words]


@job(batch=Batch(max=8, wait_seconds=0))
def add(a: list[int], b: list[int]) -> list[int]:
    """Add numbers, each list of one parameter."""
    return [one + other for one, other in zip(a, b, strict=True)]


@job(batch=Batch(max=8, wait_seconds=0, key="/model"))
def of_one_model(words: list[Word]) -> list[Any]:
    """Return which models were in the batch."""
    return [sorted({word.model for word in words})] * len(words)


class Measure(BatchExtension):
    """The same from a class, with a gate."""

    job_batch: ClassVar[Batch] = Batch(max=8, wait_seconds=0)
    policy: ClassVar[JobPolicy] = RETRIES
    text: str
    gate: str = ""
    how: str = ""

    @classmethod
    def run_batch(cls, inputs: list["Measure"], tasks: list[TaskContext]) -> Any:
        """Wait at the gate, and end as the first input says."""
        first = inputs[0]
        if first.gate:
            touch(f"{first.gate}.reached")
        while first.gate and not Path(first.gate).exists():
            time.sleep(0.01)
        if first.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if first.how == "raise":
            raise ValueError("all of them")
        if first.how == "few":
            return ["one"]
        if first.how == "none":
            return None
        if first.how == "text":
            return "".join(one.text[0] for one in inputs)
        cancelled = [task.cancelled.is_set() for task in tasks]
        return [[one.text, len(inputs), cancelled] for one in inputs]


class WaitTogether(BatchExtension):
    """Waits on the event loop until it is cancelled."""

    job_batch: ClassVar[Batch] = Batch(max=8, wait_seconds=0)
    gate: str

    @classmethod
    async def run_batch(cls, inputs: list["WaitTogether"]) -> list[str]:
        """Wait, and write when the coroutine was cancelled."""
        gate = inputs[0].gate
        try:
            touch(f"{gate}.reached")
            await asyncio.sleep(600)
        finally:
            touch(gate)
        return [""] * len(inputs)
