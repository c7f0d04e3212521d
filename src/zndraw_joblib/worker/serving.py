"""Run a worker until a signal ends it."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from zndraw_joblib.worker.api import ApiManager
from zndraw_joblib.worker.loops import Execute
from zndraw_joblib.worker.manager import JobManager
from zndraw_joblib.worker.tasks import ClaimedTask


def serve(
    api: ApiManager,
    extensions: Sequence[type[Any]],
    *,
    room: str,
    context: Callable[..., Any] | None = None,
    concurrency: int = 1,
) -> None:
    """Register `extensions` as jobs of `room` and run their tasks, until SIGINT or SIGTERM.

    `context` makes what each task's `run` gets as `vis`; it is called with the task, if it takes an
    argument. What the server refuses at registration is raised.
    """
    with JobManager(api, execute=runner(context), concurrency=concurrency) as manager:

        def register() -> None:
            for cls in extensions:
                manager.register(cls, room=room)

        manager.wait(register)


def runner(context: Callable[..., Any] | None = None) -> Execute:
    """Return what runs a task: its extension's `run`, with what `context` makes, else with None."""
    takes_task = context is not None and _takes_argument(context)

    def execute(task: ClaimedTask) -> Any:
        if context is None:
            return task.extension.run(None)
        return task.extension.run(context(task) if takes_task else context())

    return execute


def _takes_argument(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind(None)
    except (TypeError, ValueError):  # a builtin may tell no signature
        return False
    return True
