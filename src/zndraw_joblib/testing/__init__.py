"""Helpers for the tests of hosts and of worker authors. The names are loaded on first use."""

from importlib import import_module
from typing import Any

_MODULE_OF = {
    "AsyncTestQueue": "queue",
    "JobRun": "job_runs",
    "TestQueue": "queue",
    "check_result_backend": "result_backends",
    "run_batch": "job_runs",
    "run_job": "job_runs",
}

__all__ = sorted(_MODULE_OF)  # noqa: PLE0605 - derived, so that each name stands in one place


def __getattr__(name: str) -> Any:
    """Load a name on first use: the pytest plugin imports this package in every run."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return __all__
