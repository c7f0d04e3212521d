"""Jobs that run regularly, and not too fast, for `zndraw-joblib worker examples/regular.py`.

    zndraw-joblib schedules --room @global
    zndraw-joblib schedules next clean --room @global
    zndraw-joblib submit call_api user=ada text=hello --wait

The schedules are stored in the database: they submit tasks also while this worker is away.
"""

from zndraw_joblib import JobLimit, JobPolicy, Rate, ScheduleTimes, job


@job(schedule=ScheduleTimes(cron="0 3 * * *", time_zone="Europe/Berlin", payload={"days": 30}))
def clean(days: int = 30) -> str:
    """Delete old files, each night at 3 in Berlin."""
    return f"files of more than {days} days are deleted"


@job(schedule=ScheduleTimes(every_seconds=60, overlap="skip", unique={"key": "poll"}))
def poll() -> str:
    """Read new messages each minute; no second task is made, by hand either, while one has not ended."""
    return "no new messages"


@job(
    policy=JobPolicy(
        limits=(
            JobLimit(rate=Rate(count=60, per_seconds=60, burst=5)),
            JobLimit(key="/user", max_in_flight=1),
        ),
        max_pending=1000,
    )
)
def call_api(user: str, text: str) -> str:
    """Call a service that allows a call a second, one user at a time; a queue of 1,000 calls is full."""
    return f"{user} said {text}"
