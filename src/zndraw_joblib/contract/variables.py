"""Environment variables with the prefix of the settings: which of them no setting has."""

import os
from collections.abc import Collection
from difflib import get_close_matches

PREFIX = "ZNDRAW_JOBLIB_"
# What clients and workers read; a server in the same environment reads its settings too.
CLIENT_NAMES = frozenset({"URL", "TOKEN", "CREDENTIALS", "LOG_FORMAT", "RUN_SPANS"})


def unknown_variables(known: Collection[str]) -> dict[str, str | None]:
    """Return the variables that are no setting, each with the nearest known name or None."""
    names = {name.upper() for name in known} | CLIENT_NAMES
    found = sorted(name for name in os.environ if name.upper().startswith(PREFIX))
    return {name: _nearest(name, names) for name in found if name.upper().removeprefix(PREFIX) not in names}


def describe(name: str, nearest: str | None) -> str:
    """Return what is wrong with a variable, and what to do."""
    meant = f"Did you mean {nearest}?" if nearest else "Remove it, or see the list of settings"
    return f"The variable {name} has no effect, because there is no such setting. {meant}"


def _nearest(name: str, known: Collection[str]) -> str | None:
    matches = get_close_matches(name.upper().removeprefix(PREFIX), known, n=1, cutoff=0.72)
    return PREFIX + matches[0] if matches else None
