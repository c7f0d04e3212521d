"""The options of a worker: checks, and what follows from them."""

from typing import Any, Literal, get_args

from zndraw_joblib.client.calls import validated
from zndraw_joblib.jobs.traces import RUN_SPANS
from zndraw_joblib.wire.messages import MAX_BATCH, HeartbeatRequest
from zndraw_joblib.worker.task_process import check_importable

Executor = Literal["thread", "process"]
EXECUTORS: tuple[Executor, ...] = get_args(Executor)
_REGISTER_SECONDS, _FIRST_PAUSE_SECONDS, _MANY_RETRIES = 30.0, 0.25, 20


def register_seconds(max_unreachable_seconds: float | None, max_startup_retries: int | None) -> float:
    """Return how long a registration is repeated. Raises ValueError for an option out of its range."""
    if max_unreachable_seconds is not None and max_unreachable_seconds <= 0:
        raise ValueError(f"max_unreachable_seconds must be positive, not {max_unreachable_seconds}")
    if max_startup_retries is None:
        return _REGISTER_SECONDS
    if max_startup_retries < 0:
        raise ValueError(f"max_startup_retries must not be negative, not {max_startup_retries}")
    # The sum of the pauses, each twice as long as the one before.
    return _FIRST_PAUSE_SECONDS * (2.0 ** min(max_startup_retries, _MANY_RETRIES) - 1)


def limits(max_tasks: int | None, name: str | None) -> dict[str, Any]:
    """Return the limits of a worker's heartbeats. Raises ValueError for invalid ones, or an invalid name."""
    limits = {} if max_tasks is None else {"max_tasks": max_tasks}
    validated(HeartbeatRequest, {**limits, "worker": {"name": name}})
    return limits


def check_options(
    execute: Any, concurrency: int, read_concurrency: int, prefetch: int, executor: str, run_spans: str
) -> None:
    """Raise ValueError for an option out of its range, and for what another process cannot import."""
    for name, number in (("concurrency", concurrency), ("read_concurrency", read_concurrency)):
        if number < 1:
            raise ValueError(f"{name} must be at least 1, not {number}")
    if not 0 <= prefetch <= MAX_BATCH:
        raise ValueError(f"prefetch must be between 0 and {MAX_BATCH}, not {prefetch}")
    if executor not in EXECUTORS:
        raise ValueError(f"executor must be one of {', '.join(EXECUTORS)}, not {executor!r}")
    if run_spans not in RUN_SPANS:
        raise ValueError(f"run_spans must be one of {', '.join(RUN_SPANS)}, not {run_spans!r}")
    if executor == "process":
        check_importable(execute)
