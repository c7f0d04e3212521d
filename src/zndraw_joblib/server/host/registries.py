"""Find the internal jobs and providers of a queue: its own attributes, or those of the state of its app."""

from typing import Any

from fastapi import FastAPI

from zndraw_joblib.server.internal.registry import InternalRegistry


def find(joblib: Any, app: FastAPI | None, name: str) -> Any:
    """Return a registry of a queue; the first queue of an app has those of ``app.state``."""
    found = getattr(joblib, name)
    if found is None and app is not None and app.state.joblib is joblib:
        found = getattr(app.state, name, None)
    return found


def find_jobs(joblib: Any, app: FastAPI | None) -> InternalRegistry | None:
    """Return the internal jobs that this server runs."""
    found = find(joblib, app, "internal_registry")
    if found is None or isinstance(found, InternalRegistry):
        return found
    # A host may set any object with `tasks`, and perhaps `executor` and `free`.
    executor, free = getattr(found, "executor", None), getattr(found, "free", None)
    return InternalRegistry(found.tasks, executor=executor, free=free)


def check(registry: InternalRegistry | None) -> str:
    """Return `ok`, or the reason why the executor in this process runs no internal task."""
    check = getattr(registry.executor if registry else None, "check", None)
    return str(check()) if callable(check) else "ok"
