"""The header `Prefer`."""

from zndraw_joblib.server.http.requests import preferred_wait


def parse_prefer_wait(prefer: str | None) -> int | None:
    """Return the seconds of ``wait=N`` in a header `Prefer`; None without it."""
    seconds = preferred_wait([prefer or ""])
    return None if seconds is None else int(seconds)
