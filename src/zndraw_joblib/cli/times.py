"""Durations like 5m and times like 18:00 or "tomorrow 9:00", as users type them."""

import re
from datetime import datetime, time, timedelta

import typer

from zndraw_joblib.cli.display import UsageError

_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_DAYS = {"yesterday": -1, "today": 0, "tomorrow": 1}
_DAY_AND_TIME = re.compile(rf"(?:({'|'.join(_DAYS)})\b *)?(\d\d?:\d\d(?::\d\d)?)?", re.IGNORECASE)
# For help texts.
TIME_FORMS = "like 2030-01-31T18:00, 18:00 or 'tomorrow 9:00' (local time)"


def local_now() -> datetime:
    """Return the time, with the zone of this machine."""
    return datetime.now().astimezone()


def parse_duration(text: float | str) -> float:
    """Return the seconds of a number, or of a text like 90s, 5m, 1h, 7d. Raises `BadParameter`."""
    if isinstance(text, float):
        return text
    try:
        return seconds if (seconds := _seconds(text)) is not None else float(text)
    except (ValueError, OverflowError) as error:
        raise typer.BadParameter(
            f"{text[:100]!r} is not a duration. Pass seconds, or 90s, 5m, 1h, 7d"
        ) from error


def past_time(text: str | None, option: str) -> datetime | None:
    """Return a time up to now: a duration counts back, and 18:00 is its last occurrence.

    One with a day may be in the future.
    """
    return None if text is None else _time(text, option, sign=-1)


def future_time(text: str | None, option: str) -> datetime | None:
    """Return a time from now on: a duration counts on, and 18:00 is its next occurrence.

    One with a day may be past.
    """
    return None if text is None else _time(text, option, sign=1)


def _seconds(text: str) -> float | None:
    match = _DURATION.fullmatch(text.strip())
    return match and timedelta(**{_UNITS[match[2]]: float(match[1])}).total_seconds()


def _time(text: str, option: str, *, sign: int) -> datetime:
    """Return a time with the zone of this machine, unless the text names another. Raises `UsageError`."""
    now = local_now()
    try:
        if (seconds := _seconds(text)) is not None:
            return now + sign * timedelta(seconds=seconds)
        words = _DAY_AND_TIME.fullmatch(text.strip())
        if words is None or not any(words.groups()):
            return datetime.fromisoformat(text).astimezone()
        day, clock = words.groups()
        hour, colon, rest = (clock or "0:00").partition(":")
        at = time.fromisoformat(f"{hour:0>2}{colon}{rest}")
        days = 0 if day is None else _DAYS[day.lower()]
        moment = datetime.combine(now.date() + timedelta(days), at).astimezone()
        if day is None and (moment - now) * sign < timedelta(0):
            moment = datetime.combine(now.date() + timedelta(sign), at).astimezone()
        return moment
    except (ValueError, OverflowError) as error:
        raise UsageError(
            f"{option} {text[:100]!r} is not a time. Pass a time {TIME_FORMS}, or a duration like 30m, 1h, 7d"
        ) from error
