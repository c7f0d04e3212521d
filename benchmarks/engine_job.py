"""A job and a function that do nothing, for executors of other engines."""

from zndraw_joblib import job


@job
def nothing() -> None:
    """Return at once."""


def call() -> None:
    """Return at once."""
