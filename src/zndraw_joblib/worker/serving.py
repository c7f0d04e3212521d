"""Serve extensions until a signal, from this process or from others that are replaced when they crash."""

import asyncio
import inspect
import json
import logging
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, Unpack

from zndraw_joblib.client.connection import ApiManager, Connection, connect, find_access
from zndraw_joblib.jobs.extensions import PolicyOptions, class_policy, policy_of
from zndraw_joblib.jobs.loading import (
    CannotLoad,
    load_context,
    load_executor,
    load_extensions,
    load_jobs,
    location_of,
)
from zndraw_joblib.jobs.logs import LogConfig
from zndraw_joblib.jobs.task_context import call_run
from zndraw_joblib.jobs.traces import RunSpans
from zndraw_joblib.wire.policy import WithoutWorkers
from zndraw_joblib.wire.problems import ProblemException
from zndraw_joblib.worker.allocations import Allocation
from zndraw_joblib.worker.manager import Executor, JobManager
from zndraw_joblib.worker.reloading import while_watching
from zndraw_joblib.worker.remote import ExecutorSource, ExecutorUnavailable
from zndraw_joblib.worker.supervisor import ChildExit, Next, Parent, Supervisor
from zndraw_joblib.worker.tasks import ClaimedTask

MODULE = "zndraw_joblib.worker.serving"  # each child process runs it, as __main__
log = logging.getLogger(MODULE)

REFUSED = 2
# How long running tasks may go on when the code has changed. Then they return to their queues.
DRAIN_SECONDS = 10.0


class RunOptions(TypedDict, total=False):
    """The options of a `JobManager` but for `execute`."""

    tsio: Any
    heartbeat_interval: float | None
    polling_interval: float
    long_poll: float
    concurrency: int
    prefetch: int
    executor: Executor | ExecutorSource
    read_concurrency: int
    max_tasks: int | None
    capture_output: bool
    run_spans: RunSpans
    name: str | None
    max_unreachable_seconds: float | None
    max_startup_retries: int | None
    cancel_grace: float
    allocation: Allocation
    labels: Mapping[str, Any]


def serve(  # noqa: PLR0913 - the options of the command
    api: ApiManager,
    extensions: Sequence[type[Any]],
    *,
    room: str | None = None,
    context: Callable[..., Any] | None = None,
    policy: PolicyOptions | None = None,
    on_start: Callable[[], object] | None = None,
    parent: Parent | None = None,
    **options: Unpack[RunOptions],
) -> None:
    """Register `extensions` as jobs, and run their tasks until SIGINT or SIGTERM.

    They are jobs of `room`, by default each of its `job_room`.
    `context` returns the `vis` of each task's `run`; it is called with the task if it takes an argument.
    `policy` sets fields of the policies of all jobs. Tasks wait while no worker serves a job, unless
    `without_workers` is set.
    `on_start` is called after the registration. `parent` may drain the worker for its replacement.
    `options` are those of `JobManager`. A refusal of the server at registration is raised.
    """
    with JobWorker(api, context=context, **options) as manager:

        def register() -> None:
            if parent is not None:
                parent.on_drain = partial(manager.disconnect, DRAIN_SECONDS, requeue=True)
            for cls in extensions:
                manager.register(cls, room=room, **_completed(cls, policy or {}))
            if on_start is not None:
                on_start()

        manager.wait(register)


def _completed(cls: type[Any], policy: PolicyOptions) -> PolicyOptions:
    """Return the options; tasks wait for a worker unless they or the class set `without_workers`."""
    if "without_workers" in class_policy(cls, policy_of(policy)).model_fields_set:
        return policy
    return {**policy, "without_workers": WithoutWorkers.QUEUE}


class Runner:
    """Calls the `run` of a task's extension with what `context` returns, or None, and with `task`.

    It passes the task to a `run` with an argument of the name `task`.
    """

    def __init__(self, context: Callable[..., Any] | None = None) -> None:
        self._context = context
        self._takes_task = context is not None and _takes_argument(context)

    def __call__(self, task: ClaimedTask) -> Any:
        """Return what `run` returns: a result, or a coroutine."""
        context = None
        if self._context is not None:
            context = self._context(task) if self._takes_task else self._context()
        return call_run(task.extension, context, task)


def _takes_argument(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind(None)
    except (TypeError, ValueError):  # a builtin may have no signature
        return False
    return True


class JobWorker(JobManager):
    """A worker that calls the `run` of each task's job, or its function, and reports what that returns.

    `context` returns the `vis` of each `run`; it is called with the task if it takes an argument. Without
    `api` the worker has a connection of its own, with the URL and the token that `Queue` uses, and closes it
    at the end of its `with` block. `options` are those of `JobManager`, which hands each task to an `execute`
    of yours instead.
    """

    def __init__(
        self,
        api: ApiManager | None = None,
        *,
        context: Callable[..., Any] | None = None,
        **options: Unpack[RunOptions],
    ) -> None:
        self._own: Connection | None = None
        if api is None:
            access = find_access(None, None)
            api = self._own = connect(access.url, access.token)
        super().__init__(api, execute=Runner(context), **options)

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        if self._own is not None:
            self._own.close()


@dataclass(frozen=True, slots=True)
class ProcessConfig:
    """What each process loads and serves, and where; `target`, `context` and `executor` as in `loading`.

    With `jobs`, as ``module:name``, or ``:name`` for one of `target`, it serves only these.
    """

    target: str
    url: str
    token: str | None = field(repr=False)
    room: str | None = None
    context: str | None = None
    options: RunOptions = field(default_factory=RunOptions)
    policy: PolicyOptions = field(default_factory=PolicyOptions)
    executor: str | None = None
    log: LogConfig = field(default_factory=LogConfig)
    is_reloaded: bool = False
    jobs: Sequence[str] = ()


def serve_processes(
    config: ProcessConfig,
    count: int,
    on_start: Callable[[], object] | None = None,
    folders: Sequence[Path] = (),
) -> int:
    """Serve from `count` processes, each a worker of its own, until SIGINT or SIGTERM; return the exit code.

    The first signal lets running tasks end, the second does not. A process that crashes is replaced, see
    `Supervisor`; one whose worker has left, because an operator drained it, is not. When the server or
    `loading` refuses a process, all end, and the exit code is 2. `on_start` is called
    once signals are handled. With `folders`, a change of a Python file in them replaces the processes, and
    a refused one is started again after the next change. Call it on the main thread.
    """
    supervisor = supervisor_of(config, count, on_start=on_start)
    work = supervisor.run()
    refused = asyncio.run(while_watching(supervisor, folders, work) if folders else work)
    if refused is None:
        return 0
    log.error("%s", refused)
    return REFUSED


def supervisor_of(config: ProcessConfig, count: int, **options: Any) -> Supervisor:
    """Return the parent of `count` processes that serve; `options` are those of `Supervisor`."""
    return Supervisor(
        (sys.executable, "-P", "-m", MODULE),
        json.dumps(asdict(config)),
        count,
        partial(_after, is_reloaded=config.is_reloaded),
        second_signal=signal.SIGTERM,
        drain_seconds=DRAIN_SECONDS,
        **options,
    )


def _after(ended: ChildExit, *, is_reloaded: bool) -> Next:
    if ended.answer:
        # The next change of the code may correct it.
        return Next.WAIT if is_reloaded else Next.ABORT
    return Next.RESTART if ended.code else Next.DONE


def _serve_in_child() -> None:
    parent = Parent()
    values = json.loads(parent.config)
    config = ProcessConfig(**{**values, "log": LogConfig.of(values["log"])})
    config.log.apply(with_pid=True)
    # JSON has made a list of it.
    config.options["allocation"] = Allocation(*config.options.get("allocation", ()))
    try:
        extensions = load_jobs(config.target, config.jobs) if config.jobs else load_extensions(config.target)
        context = load_context(config.context) if config.context else None
        if config.executor:
            config.options["executor"] = load_executor(config.executor)
        with connect(config.url, config.token, realtime=True) as api:
            run = partial(serve, room=config.room, context=context, policy=config.policy, **config.options)
            run(api, extensions, parent=parent if config.is_reloaded else None)
    except (ProblemException, CannotLoad, ExecutorUnavailable) as error:
        parent.report(f"{error}{location_of(error)}")
        sys.exit(REFUSED)


if __name__ == "__main__":
    _serve_in_child()
