"""When schedules are due: cron in time zones, intervals, single times, and what is missed."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from time import process_time
from typing import Any
from uuid import uuid4

import pytest

from zndraw_joblib.server.queue import rules_schedules
from zndraw_joblib.server.queue.sql_schedules import ScheduleRecord
from zndraw_joblib.wire.problems import InvalidRequest
from zndraw_joblib.wire.schedules import ScheduleTimes

BERLIN, NEW_YORK = "Europe/Berlin", "America/New_York"
MINUTE = timedelta(minutes=1)


def utc(*parts: int) -> datetime:
    """Return a time in UTC."""
    return datetime(*parts, tzinfo=UTC)  # type: ignore[arg-type,misc]


def first(times: ScheduleTimes, since: datetime, count: int) -> list[datetime]:
    """Return the first due times from `since` on."""
    return list(islice(rules_schedules.due_times(times, since, since), count))


CASES: list[tuple[str, dict[str, Any], datetime, list[datetime]]] = [
    (
        "Berlin, clocks go forward: 02:30 does not exist on 29 March, and runs at 03:00",
        {"cron": "30 2 * * *", "time_zone": BERLIN},
        utc(2026, 3, 28),
        [utc(2026, 3, 28, 1, 30), utc(2026, 3, 29, 1), utc(2026, 3, 30, 0, 30)],
    ),
    (
        "two times that do not exist run once",
        {"cron": "0,30 2 * * *", "time_zone": BERLIN},
        utc(2026, 3, 28, 23),
        [utc(2026, 3, 29, 1), utc(2026, 3, 30, 0)],
    ),
    (
        "Berlin, clocks go back: 02:30 exists twice on 25 October, and runs once",
        {"cron": "30 2 * * *", "time_zone": BERLIN},
        utc(2026, 10, 24),
        [utc(2026, 10, 24, 0, 30), utc(2026, 10, 25, 0, 30), utc(2026, 10, 26, 1, 30)],
    ),
    (
        "also for one that starts in the second of the two hours",
        {"cron": "30 2 * * *", "time_zone": BERLIN},
        utc(2026, 10, 25, 1, 10),
        [utc(2026, 10, 26, 1, 30)],
    ),
    (
        "New York, clocks go forward",
        {"cron": "30 2 * * *", "time_zone": NEW_YORK},
        utc(2026, 3, 7),
        [utc(2026, 3, 7, 7, 30), utc(2026, 3, 8, 7), utc(2026, 3, 9, 6, 30)],
    ),
    (
        "New York, clocks go back",
        {"cron": "30 1 * * *", "time_zone": NEW_YORK},
        utc(2026, 10, 31),
        [utc(2026, 10, 31, 5, 30), utc(2026, 11, 1, 5, 30), utc(2026, 11, 2, 6, 30)],
    ),
    (
        "each hour: by elapsed time, also in the hour that is repeated",
        {"cron": "0 * * * *", "time_zone": BERLIN},
        utc(2026, 10, 24, 23),
        [utc(2026, 10, 24, 23), utc(2026, 10, 25, 0), utc(2026, 10, 25, 1), utc(2026, 10, 25, 2)],
    ),
    ("29 February", {"cron": "0 0 29 2 *"}, utc(2026, 3, 1), [utc(2028, 2, 29), utc(2032, 2, 29)]),
    (
        "six fields begin with the second",
        {"cron": "*/20 0 0 * * *"},
        utc(2026, 1, 1),
        [utc(2026, 1, 1), utc(2026, 1, 1, 0, 0, 20), utc(2026, 1, 1, 0, 0, 40), utc(2026, 1, 2)],
    ),
    (
        "an interval, counted from its anchor, where it is not due",
        {"every_seconds": 90},
        utc(2026, 1, 1),
        [utc(2026, 1, 1, 0, 1, 30), utc(2026, 1, 1, 0, 3)],
    ),
    (
        "from starts_at, where it is, to ends_at, where it may be",
        {"every_seconds": 60, "starts_at": utc(2026, 1, 2), "ends_at": utc(2026, 1, 2, 0, 2)},
        utc(2026, 1, 1),
        [utc(2026, 1, 2), utc(2026, 1, 2, 0, 1), utc(2026, 1, 2, 0, 2)],
    ),
    ("once", {"at": utc(2026, 1, 2)}, utc(2026, 1, 1), [utc(2026, 1, 2)]),
]


def test_due_times(subtests: pytest.Subtests) -> None:
    """Due times exist, come in order, and each once."""
    for why, fields, since, expected in CASES:
        with subtests.test(why):
            count = len(expected) + ("ends_at" in fields or "at" in fields)
            assert first(ScheduleTimes(**fields), since, count) == expected


def test_reading_on_finds_the_same_times(subtests: pytest.Subtests) -> None:
    """From each due time on, the following ones are the same: a schedule reads on from the next one."""
    for why, fields, since, _ in CASES:
        with subtests.test(why):
            times = ScheduleTimes(**fields)
            anchor = times.starts_at or since
            due = list(islice(rules_schedules.due_times(times, anchor, since), 200))
            for index, moment in enumerate(due[:100]):
                assert next(rules_schedules.due_times(times, anchor, moment)) == moment
                rest = rules_schedules.due_times(times, anchor, moment + timedelta(microseconds=1))
                assert next(rest, None) == (due[index + 1] if index + 1 < len(due) else None)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"cron": "x"}, "cron: 'x'"),
    ({"cron": "61 * * * *"}, "Bad minute"),
    ({"cron": "0 0 30 2 *"}, "Bad day-of-month"),
    ({"cron": "@daily"}, "as in '0 3 * * *'"),
    ({"cron": "0 3 * * *", "time_zone": "Mars/Olympus"}, "time_zone: 'Mars/Olympus'"),
    ({"cron": "0 3 * * *", "time_zone": "../../etc/passwd"}, "IANA"),
    ({"every_seconds": 5, "time_zone": "Europe"}, "time_zone"),
]


def test_what_is_never_due_is_refused(subtests: pytest.Subtests) -> None:
    """The error names the field and what to write."""
    for fields, text in WRONG:
        with subtests.test(text), pytest.raises(InvalidRequest, match="(?s)" + text.replace("*", r"\*")):
            rules_schedules.check(ScheduleTimes(**fields))


def record(next_due_at: datetime, anchor: datetime, **fields: Any) -> ScheduleRecord:
    """Return a schedule."""
    spec = ScheduleTimes(**fields).model_dump_json(exclude_defaults=True)
    return ScheduleRecord(
        *(uuid4(), "lab", "nightly", "owner", "lab:c:n", spec, False),
        *(anchor, anchor, anchor, next_due_at, None, None, None, None),
    )


def numbers(count: int, until: int) -> Iterator[int]:
    """Return the last `count` minutes up to `until`."""
    return iter(range(until - count + 1, until + 1))


def test_catching_up(subtests: pytest.Subtests) -> None:
    """What is older than a minute is missed: none of it, the last one, or up to `max_catch_up` run."""
    start = utc(2026, 1, 1)
    now = start + 600.5 * MINUTE
    at_600 = start + 600 * MINUTE
    for catch_up, expected in (
        ({"catch_up": "none"}, [at_600]),
        ({"catch_up": "last"}, [at_600]),
        ({"catch_up": "all", "max_catch_up": 5}, [start + n * MINUTE for n in numbers(6, 600)]),
        ({"catch_up": "all", "max_catch_up": 1000}, [start + n * MINUTE for n in range(1, 601)]),
    ):
        for times in ({"every_seconds": 60}, {"cron": "* * * * *"}):
            with subtests.test(str((catch_up, times))):
                due = rules_schedules.due_now(record(start + MINUTE, start, **times, **catch_up), now)
                assert due == (expected, at_600 + MINUTE)
    nightly = {"cron": "0 3 * * *", "time_zone": BERLIN}
    for catch_up, count in (("none", 0), ("last", 1), ("all", 2)):
        with subtests.test(catch_up):
            schedule = record(utc(2026, 3, 28, 2), start, **nightly, catch_up=catch_up)
            due = rules_schedules.due_now(schedule, utc(2026, 3, 29, 12))
            missed = [utc(2026, 3, 28, 2), utc(2026, 3, 29, 1)]
            assert due == (missed[2 - count :], utc(2026, 3, 30, 1))


def test_a_clock_that_goes_back_makes_nothing_due(subtests: pytest.Subtests) -> None:
    """The next due time stays, so that none runs twice."""
    schedule = record(utc(2026, 1, 1, 12), utc(2026, 1, 1), every_seconds=3600)
    assert rules_schedules.due_now(schedule, utc(2026, 1, 1, 11)) == ([], utc(2026, 1, 1, 12))


def test_long_downtime_is_bounded() -> None:
    """A schedule of each second that was missed for years finds its last times without reading all."""
    start = utc(2000, 1, 1)
    schedule = record(start, start, every_seconds=1, catch_up="all", max_catch_up=1000)
    times, following = rules_schedules.due_now(schedule, utc(2026, 1, 1))
    assert (len(times), times[-1], following) == (1060, utc(2026, 1, 1), utc(2026, 1, 1, 0, 0, 1))


def test_an_end_long_ago_is_bounded() -> None:
    """The times after the end are not read."""
    start, end = utc(2000, 1, 1), utc(2025, 1, 1)
    schedule = record(start, start, every_seconds=1, ends_at=end)
    begin = process_time()
    assert rules_schedules.due_now(schedule, utc(2026, 1, 1)) == ([end], None)
    assert process_time() - begin < 2
