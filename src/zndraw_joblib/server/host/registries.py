"""Find the internal jobs and providers of a queue: its own attributes, or those of the state of its app."""

from typing import Any

from fastapi import FastAPI

from zndraw_joblib.server.internal.registry import InternalRegistry


def find(joblib: Any, app: FastAPI | None, name: str) -> Any:
    """Return a registry of a queue; the first queue of an app has those of ``app.state``."""
    registry = getattr(joblib, name)
    if registry is None and app is not None and app.state.joblib is joblib:
        registry = getattr(app.state, name, None)
    return registry


def find_jobs(joblib: Any, app: FastAPI | None) -> InternalRegistry | None:
    """Return the internal jobs that this server runs."""
    registry = find(joblib, app, "internal_registry")
    if registry is None or isinstance(registry, InternalRegistry):
        return registry
    # A host may set any object with `tasks`, and perhaps `executor` and `free`.
    executor, free = getattr(registry, "executor", None), getattr(registry, "free", None)
    return InternalRegistry(registry.tasks, executor=executor, free=free)


def check(registry: InternalRegistry | None) -> str:
    """Return `ok`, or the reason why the executor in this process runs no internal task."""
    check = getattr(registry.executor if registry else None, "check", None)
    return str(check()) if callable(check) else "ok"
