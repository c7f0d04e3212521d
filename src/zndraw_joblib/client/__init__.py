"""Clients of the queue: they submit tasks, follow them and read their results, and register nothing."""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    """Return a name that version 0.1.x had in its module `client`, with a warning."""
    return import_module("zndraw_joblib.compat_0_1.names").get_old_name("client", name)
