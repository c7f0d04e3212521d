"""Jobs from functions."""

import os
import threading
from typing import Annotated, Any

from pydantic import Field

from zndraw_joblib import JobPolicy, NonRetryable, TaskContext, job


@job
def scale(value: float, *, factor: Annotated[float, Field(gt=0)] = 2.0) -> float:
    """Multiply a number.

    A second paragraph is for the reader of the code.

    Args:
        value: The number,
            of any size.
        factor (float): By how much.

    Returns:
        value: Not a parameter.
    """
    return value * factor


@job(name="Where", category="analysis", policy=JobPolicy(max_attempts=2))
def where(task: TaskContext, vis: Any = None, words: list[str] | None = None) -> dict[str, Any]:
    """Return what the worker adds, and where the function runs."""
    task.progress(1, 1, message="here")
    place = {"pid": os.getpid(), "thread": threading.current_thread().name}
    return {**place, "task": task.task_id, "room": task.room_id, "vis": vis, "words": words}


@job
async def later(text: str, *, task: TaskContext | None = None) -> list[str | None]:
    """Return the text on an event loop."""
    return [text, threading.current_thread().name, task.task_id if task else None]


@job(room="quiet")
def refuse(reason: str) -> None:
    """Fail for good."""
    raise NonRetryable(reason)
