"""Update the statistics of a replica, and read them."""

from collections.abc import Sequence
from datetime import timedelta

from replica import Replica

from zndraw_joblib.server.admin import rules_statistics
from zndraw_joblib.server.background.loops import Rollups
from zndraw_joblib.wire.operators import Counters, Interval

NOW = timedelta(0)


async def update(replica: Replica, settle: timedelta = NOW) -> int:
    """Run passes until the statistics are up to date; return how many occurrences they have read."""
    rollups = Rollups(replica.runtime)
    number = 0
    while True:
        done = await rollups.update(settle)
        number += done.number
        if not done.is_behind:
            return number


async def totals(replica: Replica, job: str | None = None) -> Counters:
    """Return the totals of a job, or of all jobs."""
    found = await replica.runtime.database.read(rules_statistics.totals)
    counters = found.get(job, Counters())
    return Counters.model_validate(counters.model_dump())


async def intervals(replica: Replica, resolution: int = 60) -> list[Interval]:
    """Return the intervals of all jobs."""
    read = await replica.runtime.database.read(rules_statistics.read, None, resolution, None, None)
    return read.intervals


def buckets(*places: int) -> list[int]:
    """Return a histogram with one value in each of these buckets."""
    return [places.count(place) for place in range(16)]


def summed(found: Sequence[Counters | Interval]) -> Counters:
    """Return the sum of intervals, without histograms and causes."""
    names = ("submitted", "completed", "failed", "cancelled", "retried", "lost")
    return Counters(**{name: sum(getattr(each, name) for each in found) for name in names})
