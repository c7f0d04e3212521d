"""Jobs from functions, for `zndraw-joblib worker examples/functions.py`.

    zndraw-joblib submit area width=3 height=4 --wait
    zndraw-joblib submit estimate_pi samples=1000000 --wait

The parameters of a function are the fields of its payload, and its docstring describes them.
"""

import asyncio
import random
from typing import Annotated

from pydantic import Field

from zndraw_joblib import Category, TaskContext, job


@job
def area(width: float, height: float = 1.0) -> float:
    """Compute the area of a rectangle."""
    return width * height


@job(category=Category.ANALYSIS, timeout_seconds=60)
def estimate_pi(task: TaskContext, samples: Annotated[int, Field(ge=1, le=10_000_000)] = 10_000) -> float:
    """Estimate pi from random points in a square.

    Args:
        samples: How many points to draw.
    """
    inside = sum(random.random() ** 2 + random.random() ** 2 < 1 for _ in task.track(range(samples)))
    task.log(f"{inside} of {samples} points are in the circle")
    return 4 * inside / samples


@job(name="ask", max_attempts=3, retry_on=["error"])
async def ask_service(seconds: Annotated[float, Field(ge=0, le=60)] = 1.0) -> str:
    """Wait on the event loop, as for the answer of another service; the job's name is `ask`."""
    await asyncio.sleep(seconds)
    return f"answered after {seconds:g} s"
