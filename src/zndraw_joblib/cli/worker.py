"""The commands for workers: worker and share run one, workers and drain are for all."""

import logging
import time
from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Unpack, cast

import typer

from zndraw_joblib.cli.client import AdminClient, find_access, open_client, open_connection
from zndraw_joblib.cli.display import (
    CommandError,
    ItemTable,
    UsageError,
    counted,
    print_fields,
    print_json,
    print_note,
    usage_errors,
    warn_of_unknown,
)
from zndraw_joblib.cli.options import AsJson, Format, Limit, Log, Url, WorkerId, check_room
from zndraw_joblib.cli.tasks import TASKS
from zndraw_joblib.cli.times import parse_duration
from zndraw_joblib.client.calls import validated
from zndraw_joblib.client.connection import DEFAULT_URL, ServerAccess
from zndraw_joblib.client.job_client import JobClient
from zndraw_joblib.client.rest import TaskRest
from zndraw_joblib.client.retry import is_unreachable
from zndraw_joblib.jobs.extensions import PolicyOptions, job_room_of, policy_of
from zndraw_joblib.jobs.loading import (
    CannotLoad,
    load_context,
    load_executor,
    load_extensions,
    location_of,
    missing_file_text,
)
from zndraw_joblib.jobs.logs import LogConfig, LogFormat, LogThreshold
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.messages import MAX_BATCH, MAX_WORKER_NAME, WorkerInfo
from zndraw_joblib.wire.names import GLOBAL, is_name
from zndraw_joblib.wire.operators import WorkerSummary
from zndraw_joblib.wire.policy import RetryOn, WithoutWorkers
from zndraw_joblib.wire.requirements import parsed_label, shown_labels
from zndraw_joblib.worker.allocations import Allocation, end_of_allocation
from zndraw_joblib.worker.engines import ENGINES, engine_function
from zndraw_joblib.worker.folders import Folder, share_folder
from zndraw_joblib.worker.launchers import NAME_VARIABLE
from zndraw_joblib.worker.manager import DEFAULT_PREFETCH, EXECUTORS, JobManager, check_cancel_grace
from zndraw_joblib.worker.reloading import CannotWatch, folders_of, import_watchfiles
from zndraw_joblib.worker.remote import ExecutorUnavailable
from zndraw_joblib.worker.serving import ProcessConfig, RunOptions, serve, serve_processes
from zndraw_joblib.worker.task_process import DEFAULT_CANCEL_GRACE

log = logging.getLogger(__name__)


Target = Annotated[
    str, typer.Argument(metavar="MODULE_OR_FILE", help="The module or .py file that defines the extensions.")
]
Processes = Annotated[
    int, typer.Option("--processes", metavar="N", min=1, help="The number of worker processes.")
]
Concurrency = Annotated[
    int,
    typer.Option("--concurrency", metavar="N", min=1, help="The number of tasks each process runs at once."),
]
Prefetch = Annotated[
    int,
    typer.Option(
        "--prefetch",
        metavar="N",
        min=0,
        max=MAX_BATCH,
        help="The most tasks that each process claims ahead; it claims fewer if they take long.",
    ),
]


class RunSpansName(StrEnum):
    """How the spans of runs relate to those of their submits."""

    LINK = "link"
    CHILD = "child"


ExecutorOption = Annotated[
    str,
    typer.Option(
        "--executor",
        metavar="|".join(("thread", "process", *ENGINES, "MODULE:FUNCTION")),
        help="Run tasks in threads, in processes of their own, on a cluster of an installed engine, or "
        "on the executor that the function makes.",
    ),
]
CancelGrace = Annotated[
    float,
    typer.Option(
        "--cancel-grace",
        metavar="DURATION",
        parser=parse_duration,
        help="With --executor process: how long a process may go on after its task was cancelled. Then it "
        "gets SIGTERM, and after as long again SIGKILL.",
    ),
]
_RELOADING = "While you write the jobs"
Reload = Annotated[
    bool,
    typer.Option(
        "--reload",
        help="Start anew when a Python file in the folder of the jobs changes. Tasks that still run 10 s "
        "later return to their queues. Needs the extra 'reload'.",
        rich_help_panel=_RELOADING,
    ),
]
ReloadDir = Annotated[
    list[Path] | None,
    typer.Option(
        "--reload-dir",
        metavar="DIR",
        exists=True,
        file_okay=False,
        help="Another folder to watch, with --reload; repeatable.",
        rich_help_panel=_RELOADING,
    ),
]
_LEAVING = "When the worker leaves by itself"
Walltime = Annotated[
    str | None,
    typer.Option(
        "--walltime",
        metavar="auto|DURATION",
        help="How much time is left, like 12h, or auto for that of a job of Slurm, PBS or LSF. The worker "
        "gets only tasks that are expected to fit, and leaves 30 s before the end.",
        rich_help_panel=_LEAVING,
    ),
]
IdleExit = Annotated[
    float | None,
    typer.Option(
        "--idle-exit",
        metavar="DURATION",
        parser=parse_duration,
        help="Leave after this time without a task.",
        rich_help_panel=_LEAVING,
    ),
]
MaxTasks = Annotated[
    int | None,
    typer.Option(
        "--max-tasks",
        metavar="N",
        min=1,
        help="Leave after this many tasks; each of several processes counts its own.",
        rich_help_panel=_LEAVING,
    ),
]
Requeue = Annotated[
    bool,
    typer.Option(
        "--requeue",
        help="At the end of --walltime, put the tasks that still run back into their queues: it costs no "
        "attempt. Without it their policy decides, as for a lost worker.",
        rich_help_panel=_LEAVING,
    ),
]
JobRoom = Annotated[
    str | None,
    typer.Option(
        "--room",
        callback=check_room,
        metavar="ROOM",
        help="The room to register the jobs in; by default the room that each job sets, or @global.",
    ),
]
Context = Annotated[
    str | None,
    typer.Option(
        "--context", metavar="MODULE:FUNCTION", help="The function that returns the `vis` argument of `run`."
    ),
]
_POLICY = "Retries and time limits"
MaxAttempts = Annotated[
    int | None,
    typer.Option(
        "--max-attempts",
        metavar="N",
        min=1,
        max=1000,
        help="How many attempts of a task may fail or exceed its time limit; above 1, it is retried.",
        rich_help_panel=_POLICY,
    ),
]
RetryOnOption = Annotated[
    list[RetryOn] | None,
    typer.Option(
        "--retry-on",
        help="Why a task is tried again; may be repeated. By default it is any of these.",
        rich_help_panel=_POLICY,
    ),
]
NonRetryableOption = Annotated[
    list[str] | None,
    typer.Option(
        "--non-retryable",
        metavar="EXCEPTION",
        help="The name of an exception after which a task is not tried again; may be repeated.",
        rich_help_panel=_POLICY,
    ),
]
Timeout = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        metavar="DURATION",
        parser=parse_duration,
        help="The time limit of an attempt, like 90s or 1h.",
        rich_help_panel=_POLICY,
    ),
]
ExpectedTime = Annotated[
    float | None,
    typer.Option(
        "--expected-time",
        metavar="DURATION",
        parser=parse_duration,
        help="How long a task runs: a worker with less time left (--walltime) gets none. By default the time "
        "limit, or that of 95 % of the runs of the last day.",
        rich_help_panel=_POLICY,
    ),
]
StartTimeout = Annotated[
    float | None,
    typer.Option(
        "--start-timeout",
        metavar="DURATION",
        parser=parse_duration,
        help="A claimed task that has not started by then returns to its queue; 0 for never.",
        rich_help_panel=_POLICY,
    ),
]
WithoutWorkersOption = Annotated[
    WithoutWorkers | None,
    typer.Option(
        "--without-workers",
        help="What happens to the jobs while no worker serves them: tasks wait (queue, the default), submits "
        "are refused (reject), or the job is forgotten.",
        rich_help_panel=_POLICY,
    ),
]
Capture = Annotated[
    bool, typer.Option("--capture/--no-capture", help="Write what a job prints to the log of its task.")
]
Quiet = Annotated[
    bool, typer.Option("--quiet", help="Do not log the start and the end of each task, only failures.")
]
RunSpansOption = Annotated[
    RunSpansName,
    typer.Option(
        "--run-spans",
        envvar="ZNDRAW_JOBLIB_RUN_SPANS",
        help="With OpenTelemetry, link the span of each run to its submit, or make it a child.",
    ),
]
WorkerName = Annotated[
    str | None,
    typer.Option(
        "--name",
        envvar=NAME_VARIABLE,
        metavar="NAME",
        help="The worker's name in lists; by default that of the host.",
    ),
]
LabelOption = Annotated[
    list[str] | None,
    typer.Option(
        "--label", metavar="KEY=VALUE", help="What tasks may require of this worker, as gpu=a100; repeatable."
    ),
]
SharedFolder = Annotated[str, typer.Argument(metavar="DIR", help="A folder, or a URL that fsspec supports.")]
Name = Annotated[str, typer.Option("--name", metavar="NAME", help="The name of the shared folder.")]
ReadersRoom = Annotated[
    str,
    typer.Option("--room", callback=check_room, metavar="ROOM", help="The room that may read the folder."),
]

_POLICY_OPTIONS = (
    *("max_attempts", "retry_on", "non_retryable"),
    *("timeout_seconds", "expected_seconds", "start_timeout_seconds", "without_workers"),
)
_SERVER_START_SECONDS = 30.0
_RETRY_SECONDS = 0.5


def worker(  # noqa: PLR0913 - each is an option
    target: Target,
    *,
    reload: Reload = False,
    reload_dir: ReloadDir = None,
    processes: Processes = 1,
    concurrency: Concurrency = 1,
    prefetch: Prefetch = DEFAULT_PREFETCH,
    executor: ExecutorOption = "thread",
    cancel_grace: CancelGrace = DEFAULT_CANCEL_GRACE,
    room: JobRoom = None,
    context: Context = None,
    capture: Capture = True,
    max_attempts: MaxAttempts = None,
    retry_on: RetryOnOption = None,
    non_retryable: NonRetryableOption = None,
    timeout: Timeout = None,
    expected: ExpectedTime = None,
    start_timeout: StartTimeout = None,
    without_workers: WithoutWorkersOption = None,
    url: Url = DEFAULT_URL,
    log_level: Log = LogThreshold.INFO,
    log_format: Format = LogFormat.TEXT,
    quiet: Quiet = False,
    run_spans: RunSpansOption = RunSpansName.LINK,
    name: WorkerName = None,
    walltime: Walltime = None,
    idle_exit: IdleExit = None,
    max_tasks: MaxTasks = None,
    requeue: Requeue = False,
    label: LabelOption = None,
) -> None:
    """Run a worker for the extensions of a module or .py file.

    The options for retries and time limits hold for all its jobs, over the policy of each class.
    Ctrl-C lets the running tasks finish; a second Ctrl-C stops at once.
    """
    log = _applied_log(log_level, log_format, quiet=quiet)
    policy = _policy(max_attempts, retry_on, non_retryable, timeout, expected, start_timeout, without_workers)
    options = _labels(label) | _options(concurrency=concurrency, prefetch=prefetch, capture_output=capture)
    options |= _options(run_spans=run_spans.value, name=_checked(name), cancel_grace=_grace(cancel_grace))
    options["allocation"] = _allocation(walltime, idle_exit, max_tasks, requeue=requeue)
    made_by, folders = _executor(executor, options), _folders(target, reload_dir or [], is_reloaded=reload)
    config = ProcessConfig(target, url, None, room, context, options, policy, made_by, log, reload)
    _run(config, processes, folders)


def share(
    folder: SharedFolder,
    *,
    name: Name,
    room: ReadersRoom = GLOBAL,
    url: Url = DEFAULT_URL,
    log_level: Log = LogThreshold.INFO,
    log_format: Format = LogFormat.TEXT,
) -> None:
    """Let a room list and read a folder until Ctrl-C.

    Readers cannot write, and cannot read anything outside the folder.
    """
    _applied_log(log_level, log_format)
    if not is_name(name):
        raise UsageError(
            f"--name {name!r} is not a valid name. Use letters, digits, '_', '-' and '.', "
            "beginning with a letter"
        )
    try:
        shared = Folder(folder)
    except (ImportError, OSError, ValueError) as error:
        raise CommandError(f"The folder {folder!r} cannot be shared: {error}") from error
    access = _wait_for_server(url)
    with open_connection(access, realtime=True) as api, JobManager(api) as manager:

        def begin() -> None:
            print_note(f"Sharing {folder} as {name!r} in {room} at {access.shown_url}; Ctrl-C stops it.")
            share_folder(manager, shared, name=name, room=room)

        manager.wait(begin)


def _applied_log(level: LogThreshold, form: LogFormat, *, quiet: bool = False) -> LogConfig:
    """Return how to log, and log so in this process, with a note on unknown variables."""
    log = LogConfig(level, form, quiet=quiet)
    log.apply()
    warn_of_unknown()
    return log


def _checked(name: str | None) -> str | None:
    """Return the name of a worker. Raises `UsageError` for an invalid one."""
    try:
        return WorkerInfo(name=name).name
    except ValueError as error:
        raise UsageError(
            f"--name {name!r} is not a valid name. Use 1 to {MAX_WORKER_NAME} printable characters"
        ) from error


def _labels(texts: list[str] | None) -> RunOptions:
    """Return the option with the labels of a worker. Raises `UsageError` for an invalid one."""
    if not texts:
        return {}
    try:
        return {"labels": validated(WorkerInfo, {"labels": dict(map(parsed_label, texts))}).labels or {}}
    except ValueError as error:
        raise UsageError(f"--label: {error}") from error


def _options(**options: Unpack[RunOptions]) -> RunOptions:
    return options


def _executor(name: str, options: RunOptions) -> str | None:
    """Set where tasks run; return the name of the function that makes an executor. Raises `UsageError`."""
    if ":" in name:
        return name
    if name in ENGINES:
        try:
            return engine_function(name)
        except LookupError as error:
            raise UsageError(f"--executor: {error}") from error
    if name not in EXECUTORS:
        names = ", ".join((*EXECUTORS, *ENGINES))
        raise UsageError(f"--executor {name!r} is none. Use {names} or MODULE:FUNCTION")
    options["executor"] = name
    return None


def _allocation(
    walltime: str | None, idle_exit: float | None, max_tasks: int | None, *, requeue: bool
) -> Allocation:
    """Return when the worker leaves by itself. Raises `UsageError` for an invalid option."""
    if requeue and walltime is None:
        raise UsageError("--requeue needs --walltime: without it the worker does not know when to requeue")
    try:
        ends_at = None
        if walltime is not None:
            ends_at = end_of_allocation() if walltime == "auto" else time.time() + parse_duration(walltime)
        allocation = Allocation(ends_at, idle_exit, max_tasks, requeue)
        allocation.check()
    except ValueError as error:
        raise UsageError(str(error).replace("idle_exit", "--idle-exit")) from error
    return allocation


def _grace(seconds: float) -> float:
    """Return how long cancelled tasks may go on. Raises `UsageError` for an invalid time."""
    try:
        check_cancel_grace(seconds)
    except ValueError as error:
        raise UsageError(str(error).replace("cancel_grace", "--cancel-grace")) from error
    return seconds


def _policy(*values: Any) -> PolicyOptions:
    """Return the options of a policy that are given. Raises `UsageError` for an invalid one."""
    options = zip(_POLICY_OPTIONS, values, strict=True)
    policy = cast("PolicyOptions", {name: value for name, value in options if value is not None})
    with usage_errors():
        policy_of(policy)
    return policy


def _folders(target: str, more: list[Path], *, is_reloaded: bool) -> list[Path]:
    """Return the folders to watch. Raises `CommandError` where nothing can be watched or loaded."""
    if not is_reloaded:
        if more:
            raise UsageError("--reload-dir needs --reload: without it nothing is reloaded")
        return []
    if target.endswith(".py") and not Path(target).is_file():
        raise CommandError(missing_file_text(target))
    try:
        import_watchfiles()
    except CannotWatch as error:
        raise CommandError(str(error)) from error
    return folders_of(target, more)


def _run(config: ProcessConfig, processes: int, folders: list[Path]) -> None:
    """Run a worker; with `folders`, its processes are replaced when the code in these changes."""
    if processes == 1 and not folders:
        _run_one(config)
        return
    access = _wait_for_server(config.url)
    place = f" in {config.room}" if config.room else ""
    served = f"{config.target}{place} at {access.shown_url}"
    which = f"{processes} processes serve" if processes > 1 else "Serving"
    watched = f", reloaded at changes in {', '.join(map(str, folders))}" if folders else ""
    note = partial(
        print_note, f"{which} {served}{watched}; Ctrl-C stops {'them' if processes > 1 else 'it'}."
    )
    if serve_processes(replace(config, url=access.url, token=access.token), processes, note, folders):
        raise typer.Exit(1)


def _run_one(config: ProcessConfig) -> None:
    """Run a worker in this process. Raises `CommandError`."""
    try:
        extensions = load_extensions(config.target)
        context = load_context(config.context) if config.context else None
        if config.executor:
            config.options["executor"] = load_executor(config.executor)
    except CannotLoad as error:
        raise CommandError(f"{error}{location_of(error)}") from error
    access = _wait_for_server(config.url)
    names = ", ".join(cls.__name__ for cls in extensions)
    rooms = ", ".join(sorted({config.room or job_room_of(cls) for cls in extensions}))
    note = partial(print_note, f"Serving {names} in {rooms} at {access.shown_url}; Ctrl-C stops it.")
    options: dict[str, Any] = {"room": config.room, "context": context, "policy": config.policy}
    with open_connection(access, realtime=True) as api:
        try:
            serve(api, extensions, on_start=note, **options, **config.options)
        except ExecutorUnavailable as error:
            raise CommandError(str(error)) from error


def _wait_for_server(url: str) -> ServerAccess:
    """Wait until the server answers; return the access to it.

    A server that starts for the first time saves a token, which is then used. A wrong URL or token raises
    `CommandError`.
    """
    deadline = time.monotonic() + _SERVER_START_SECONDS
    is_first = True
    while True:
        access = find_access(url)
        with open_connection(access) as api:
            try:
                JobClient(TaskRest(api)).workers(limit=1)
            except Exception as error:
                may_succeed = is_unreachable(error) or find_access(url) != access
                if not may_succeed or time.monotonic() > deadline:
                    raise
            else:
                return access
        if is_first:
            print_note(f"No answer from {access.shown_url} yet; retrying for {_SERVER_START_SECONDS:g} s.")
            is_first = False
        time.sleep(_RETRY_SECONDS)


# Commands that list, show and drain workers.


WorkersRoom = Annotated[
    str | None,
    typer.Option(
        "--room",
        callback=check_room,
        metavar="ROOM",
        help="List only workers that serve a job this room sees.",
    ),
]
WorkerToShow = Annotated[
    str | None,
    typer.Argument(metavar="WORKER", help="The worker to show: its id, its beginning, or its name."),
]


RemoveNow = Annotated[
    bool, typer.Option("--now", help="Remove it at once: its tasks are lost, and retried under their policy.")
]


def _claimed(worker: WorkerSummary) -> int | None:
    """Return how many tasks a worker holds that do not run yet; an older server does not return it."""
    return None if worker.held is None or worker.running is None else worker.held - worker.running or None


WORKERS = ItemTable(
    {
        "worker": "id",
        "name": "name",
        "host": "host",
        "state": "state",
        "running": "running",
        "claimed": _claimed,
        "slots": "slots",
        "jobs": "job_count",
        "labels": lambda worker: worker.labels and shown_labels(worker.labels),
        "ends": "ends_at",
        "last heartbeat": "last_heartbeat",
    },
    wide=["name", "host"],
    ids=["worker"],
    optional=["jobs", "host", "slots", "claimed", "last heartbeat"],
    sparse=["labels", "ends"],
    paths=["host"],
)
_DRAINED = ItemTable({"worker": "id", "drain": "drain", "last heartbeat": "last_heartbeat"})


def workers(
    worker: WorkerToShow = None,
    *,
    room: WorkersRoom = None,
    limit: Limit = 20,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """List workers, newest first, or show one with its tasks."""
    with open_client(url) as client:
        if worker is not None:
            _show(client, worker, as_json=as_json)
            return
        page = client.workers(room, limit=limit)
    WORKERS.print(
        page.items, caption=f"{len(page.items):,} of {counted(page.total, 'worker')}", as_json=as_json
    )


def drain(
    worker_id: WorkerId, *, now: RemoveNow = False, as_json: AsJson = False, url: Url = DEFAULT_URL
) -> None:
    """Let a worker finish its tasks, claim no more, and leave."""
    with open_client(url) as client:
        found = client.find_worker(worker_id)
        if not now:
            _DRAINED.print_one(client.post(ops.DRAIN_WORKER, worker_id=found), as_json=as_json)
            return
        detail = client.read(ops.GET_WORKER, "details of workers", worker_id=found)
        client.delete(ops.REMOVE_WORKER, f"Removing the worker {found}", worker_id=found)
    if as_json:
        print_json(detail)
        return
    tasks = counted(len(detail.tasks), "task")
    print_note(
        f"Removed the worker {found}; {tasks} that it held follow their job's policy, as after a crash."
    )


def _show(client: AdminClient, worker: str, *, as_json: bool) -> None:
    detail = client.read(ops.GET_WORKER, "details of workers", worker_id=client.find_worker(worker))
    if as_json:
        print_json(detail)
        return
    print_fields({**detail.model_dump(exclude={"jobs", "tasks"}), "jobs": ", ".join(detail.jobs)})
    if detail.tasks:
        typer.echo()
        TASKS.print(detail.tasks, caption=counted(len(detail.tasks), "task"))
