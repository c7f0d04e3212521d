"""Times and durations as users type them."""

from datetime import UTC, datetime, timedelta

import pytest

from zndraw_joblib.cli.display import UsageError
from zndraw_joblib.cli.times import future_time, past_time


def around(**shift: int) -> datetime:
    """Return a time of a day near this one."""
    return datetime.now().astimezone() + timedelta(**shift)


def test_a_time_of_day_is_its_last_or_next_occurrence() -> None:
    """It is less than a day away, whatever the time is now."""
    for clock in ("00:00", "09:30", "18:00:30", "23:59"):
        before, past, future = around(), past_time(clock, "--since"), future_time(clock, "--run-at")
        assert past is not None
        assert future is not None
        assert before - timedelta(hours=25) < past <= around()
        assert before <= future < around(hours=25)
        shown = f"{clock}:00"[:8]
        assert f"{past:%H:%M:%S}" == f"{future:%H:%M:%S}" == shown


@pytest.mark.parametrize(
    ("text", "days", "clock"),
    [("tomorrow", 1, "00:00"), ("Tomorrow 9:05", 1, "09:05"), ("today 23:59", 0, "23:59")],
)
def test_a_day_has_a_name(text: str, days: int, clock: str) -> None:
    """Without a time it begins at midnight."""
    date = around(days=days).date()
    moment = future_time(text, "--run-at")
    assert moment is not None
    assert moment.date() in {date, around(days=days).date()}
    assert f"{moment:%H:%M}" == clock


def test_a_duration_counts_from_now() -> None:
    """Back for a time of the past, on for one of the future."""
    for text, seconds in (("90s", 90), ("5m", 300), ("1.5h", 5400), ("1w", 604800)):
        past, future = past_time(text, "--since"), future_time(text, "--run-at")
        assert past is not None
        assert future is not None
        assert (future - past).total_seconds() == pytest.approx(2 * seconds, abs=5)


def test_a_whole_time_is_local_unless_it_has_a_zone() -> None:
    """No text gives no time."""
    local, utc = future_time("2030-01-31T18:00", "--run-at"), past_time("2030-01-31T18:00Z", "--since")
    assert local == datetime(2030, 1, 31, 18).astimezone()
    assert utc == datetime(2030, 1, 31, 18, tzinfo=UTC)
    assert (past_time(None, "--since"), future_time(None, "--run-at")) == (None, None)


@pytest.mark.parametrize("text", ["", "soon", "25:00", "9", "tomorrowish", "tomorrow 9", "9999999w"])
def test_other_texts_are_refused(text: str) -> None:
    """The error names the option and what it takes."""
    with pytest.raises(UsageError, match=r"--run-at '.*' is not a time\. .* 'tomorrow 9:00'"):
        future_time(text, "--run-at")
