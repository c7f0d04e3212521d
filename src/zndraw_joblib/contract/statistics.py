"""Statistics of tasks: counts of what happened in intervals of time, and histograms of durations."""

from datetime import datetime
from uuid import UUID

from pydantic import Field

from zndraw_joblib.contract.bodies import ResponseBody

# Upper bounds in seconds of all buckets but the last, which has none.
BUCKET_BOUNDS = (
    0.01,
    0.05,
    0.1,
    0.5,
    1.0,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
    600.0,
    1800.0,
    3600.0,
    21600.0,
    86400.0,
)
MINUTE = 60
HOUR = 3600


class Histogram(ResponseBody):
    """How many durations are in each bucket; `buckets` has one count more than `BUCKET_BOUNDS`.

    A bucket has the durations up to its bound that are in no bucket before it. `sum` is in seconds.
    """

    buckets: list[int] = Field(default_factory=lambda: [0] * (len(BUCKET_BOUNDS) + 1))
    sum: float = 0.0

    @property
    def count(self) -> int:
        """The number of durations."""
        return sum(self.buckets)


class Counters(ResponseBody):
    """What happened to tasks.

    `submitted` tasks were created; `completed`, `failed` and `cancelled` ones ended. `retried`: attempts that
    failed and whose tasks returned to their queues. `lost`: attempts that ended because the worker was lost
    or a time limit passed. `causes`: failed and lost attempts by error code. `waiting`: from the entry into
    the queue to the claim, `running`: from the start to the end, of attempts that ended.
    """

    submitted: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    retried: int = 0
    lost: int = 0
    causes: dict[str, int] = Field(default_factory=dict)
    waiting: Histogram = Field(default_factory=Histogram)
    running: Histogram = Field(default_factory=Histogram)


class Interval(Counters):
    """The counts of one interval, which begins at `start`."""

    start: datetime


class Statistics(ResponseBody):
    """Statistics of all jobs, or of one, oldest interval first. Intervals without any task are not in it.

    `resolution` is the length of an interval in seconds. The statistics include everything up to `until`, and
    the last interval may be incomplete.
    """

    job_id: UUID | None = None
    resolution: int
    until: datetime
    intervals: list[Interval]
