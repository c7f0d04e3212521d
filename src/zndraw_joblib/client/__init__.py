"""Clients of the queue: they submit tasks, follow them and read their results, and register nothing.

The public names are loaded on first use.
"""

from importlib import import_module
from typing import Any

_MODULES = {
    "connection": ("ServerUnreachable",),
    "async_queue": ("AsyncTaskHandle", "AsyncQueue"),
    "submits": ("NewTask",),
    "watching": ("TaskEvent",),
    "flows": ("AmbiguousJob", "TaskCancelled", "TaskFailed"),
    "queue": ("TaskHandle", "Queue"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = sorted(_MODULE_OF)  # noqa: PLE0605 - derived, so that each name stands in one place


def __getattr__(name: str) -> Any:
    """Load a public name on first use (PEP 562); names of version 0.1.x with a warning."""
    if name in _MODULE_OF:
        return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    if not name[:1].isupper():  # such as a submodule that is not imported yet
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module("zndraw_joblib").old_name("client", name)
