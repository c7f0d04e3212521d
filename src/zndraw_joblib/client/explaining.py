"""Raise an error as one that says what to check."""

from collections.abc import Callable
from typing import NoReturn

Explain = Callable[[Exception], Exception]


def as_it_is(error: Exception) -> Exception:
    """Return an error unchanged."""
    return error


def raise_explained(error: Exception, explain: Explain) -> NoReturn:
    """Raise the error that `explain` returns for another one."""
    better = explain(error)
    if better is error:
        raise error
    raise better from error
