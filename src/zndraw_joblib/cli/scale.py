"""The commands for the demand: one shows it, and scale starts workers for it."""

import asyncio
import signal
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from zndraw_joblib.cli.client import find_access, open_client
from zndraw_joblib.cli.display import CommandError, ItemTable, UsageError, counted, print_json, print_note
from zndraw_joblib.cli.options import AsJson, Format, Log, Url, check_room
from zndraw_joblib.cli.times import parse_duration
from zndraw_joblib.client.async_rest import AsyncRest
from zndraw_joblib.client.connection import (
    DEFAULT_URL,
    TOKEN_VARIABLE,
    URL_VARIABLE,
    AsyncConnection,
    ServerAccess,
)
from zndraw_joblib.client.retry import describe
from zndraw_joblib.jobs.logs import LogConfig, LogFormat, LogThreshold
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.messages import WorkerInfo
from zndraw_joblib.wire.names import parse_job_name
from zndraw_joblib.wire.operators import MAX_FILTER_VALUES, Demand
from zndraw_joblib.wire.problems import JobNotFound, ProblemException
from zndraw_joblib.wire.requirements import parsed_label, shown
from zndraw_joblib.worker.launchers import Launcher, LauncherError, LocalLauncher, worker_command
from zndraw_joblib.worker.scale_plan import Bounds
from zndraw_joblib.worker.scaler import Safety, Scaler, Subject

app = typer.Typer(help="Start workers while tasks wait, and let them leave.")

Target = Annotated[
    str, typer.Argument(metavar="MODULE_OR_FILE", help="The module or .py file that the workers serve.")
]
PassedOn = Annotated[
    list[str] | None, typer.Argument(metavar="[-- ARGUMENTS]", help="More options of worker.")
]
MaxWorkers = Annotated[
    int, typer.Option("--max-workers", metavar="N", min=1, help="The most workers that this command starts.")
]
Backlog = Annotated[
    int,
    typer.Option(
        "--backlog", metavar="N", min=1, help="The most allocations in the queue of the cluster at once."
    ),
]
PerAllocation = Annotated[
    int, typer.Option("--per-allocation", metavar="N", min=1, help="The workers of one allocation.")
]
Idle = Annotated[
    float,
    typer.Option(
        "--idle", metavar="DURATION", parser=parse_duration, help="Workers leave when idle for this long."
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Check an allocation, print what would be started, and exit.")
]
Jobs = Annotated[
    list[str] | None,
    typer.Option("--job", metavar="JOB", help="room:category:Name of a job to count; may be repeated."),
]
Rooms = Annotated[
    list[str] | None,
    typer.Option(
        "--room", callback=check_room, metavar="ROOM", help="Count the jobs of this room; may be repeated."
    ),
]
ScaleLabels = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="KEY=VALUE", help="A label of the workers; may be repeated."),
]
Interval = Annotated[
    float,
    typer.Option(
        "--interval", metavar="DURATION", parser=parse_duration, help="How often to look at the demand."
    ),
]
Output = Annotated[
    Path | None,
    typer.Option("--output", metavar="DIR", help="The folder for what workers print; default: a new one."),
]
Drain = Annotated[
    bool, typer.Option("--drain", help="At the end drain all workers; otherwise they leave when idle.")
]


class ScaleOptions(NamedTuple):
    """The options that all launchers share."""

    max_workers: int
    backlog: int
    per_allocation: int
    idle: float
    jobs: list[str]
    rooms: list[str]
    labels: dict[str, Any]
    interval: float
    submit_seconds: float
    slots_per_worker: int = 1
    dry_run: bool = False
    drain: bool = False

    @property
    def bounds(self) -> Bounds:
        """How much may be started. Raises `UsageError`."""
        if self.per_allocation > self.max_workers:
            raise UsageError(
                f"--per-allocation {self.per_allocation} is more than --max-workers {self.max_workers}: no "
                "allocation could be started"
            )
        return Bounds(self.max_workers, self.backlog, self.per_allocation)

    @property
    def subject(self) -> Subject:
        """What the demand is asked of. Raises `UsageError`."""
        if self.jobs and self.rooms:
            raise UsageError("--room: give jobs or rooms, not both")
        for option, values in (("--job", self.jobs), ("--room", self.rooms)):
            if len(values) > MAX_FILTER_VALUES:
                raise UsageError(f"{option}: give at most {MAX_FILTER_VALUES}, not {len(values)}")
        try:
            jobs = tuple(str(parse_job_name(name)) for name in self.jobs)
        except JobNotFound as problem:
            raise UsageError(f"--job: {problem}") from problem
        return Subject(jobs, tuple(self.rooms), self.labels)


def labels_of(texts: list[str] | None) -> dict[str, Any]:
    """Return the labels. Raises `UsageError`."""
    try:
        return WorkerInfo(labels=dict(map(parsed_label, texts or ()))).labels or {}
    except ValueError as error:
        raise UsageError(f"--label: {error}") from error


@app.command("local")
def scale_local(  # noqa: PLR0913 - each is an option
    target: Target,
    arguments: PassedOn = None,
    *,
    max_workers: MaxWorkers,
    backlog: Backlog = 1,
    per_allocation: PerAllocation = 1,
    idle: Idle = 300.0,
    dry_run: DryRun = False,
    job: Jobs = None,
    room: Rooms = None,
    label: ScaleLabels = None,
    interval: Interval = 5.0,
    output: Output = None,
    drain: Drain = False,
    url: Url = DEFAULT_URL,
    log_level: Log = LogThreshold.INFO,
    log_format: Format = LogFormat.TEXT,
) -> None:
    """Start workers as processes of this machine while tasks wait for them.

    Ctrl-C ends it; its workers go on, and leave when they are idle.
    """
    LogConfig(log_level, log_format).apply()
    passed_on = [*(arguments or ()), *(word for text in label or () for word in ("--label", text))]
    command = worker_command([target, *passed_on], idle=idle, per_allocation=per_allocation)
    options = ScaleOptions(
        max_workers,
        backlog,
        per_allocation,
        idle,
        job or [],
        room or [],
        labels_of(label),
        interval,
        submit_seconds=0.1,
        slots_per_worker=concurrency_of(arguments or []),
        dry_run=dry_run,
        drain=drain,
    )
    run_scaler(url, LocalLauncher(command, target, output), options)


def concurrency_of(arguments: list[str]) -> int:
    """Return how many slots a worker with these options has; the first one that registers says it again."""
    for position, word in enumerate(arguments):
        name, separator, value = word.partition("=")
        if name == "--concurrency":
            value = value if separator else next(iter(arguments[position + 1 :]), "")
            return int(value) if value.isdecimal() and int(value) else 1
    return 1


def run_scaler(url: str, launcher: Launcher, options: ScaleOptions) -> None:
    """Run the scaler with a launcher until Ctrl-C. Raises `CommandError`."""
    bounds, subject = options.bounds, options.subject
    access = find_access(url)
    # A wrong URL or token fails here, with its explanation.
    with open_client(url) as client:
        client.read(ops.GET_VERSION, "the demand")
    asyncio.run(_run(access, launcher, options, bounds, subject))


async def _run(
    access: ServerAccess, launcher: Launcher, options: ScaleOptions, bounds: Bounds, subject: Subject
) -> None:
    try:
        await launcher.check()
    except LauncherError as error:
        raise CommandError(f"No allocation can be started: {error}") from error
    connection = AsyncConnection(access.url, access.token, 30.0)

    async def environment() -> Mapping[str, str]:
        return {URL_VARIABLE: access.url, **({TOKEN_VARIABLE: access.token} if access.token else {})}

    safety = Safety(submit_seconds=options.submit_seconds, poll_seconds=options.interval)
    scaler = Scaler(AsyncRest(connection), launcher, bounds, subject, environment, options.idle, safety)
    scaler.slots_per_worker = options.slots_per_worker
    try:
        if options.dry_run:
            await _print_plan(scaler, launcher)
        else:
            await _scale(scaler, launcher, options)
    except ProblemException as problem:
        raise CommandError(str(problem)) from problem
    finally:
        await connection.aclose()


async def _print_plan(scaler: Scaler, launcher: Launcher) -> None:
    """Print what would be started now."""
    try:
        decision = scaler.decide(await scaler.read_demand())
    except JobNotFound as problem:
        raise CommandError(str(problem)) from problem
    except Exception as error:
        if isinstance(error, ProblemException):
            raise
        raise CommandError(f"No demand is known: {describe(error)}") from error
    print_note(f"Would start {counted(decision.start, 'allocation')} ({decision.why}): {launcher.about}")


async def _scale(scaler: Scaler, launcher: Launcher, options: ScaleOptions) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for one in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(one, stopping.set)
    loop.add_signal_handler(signal.SIGUSR1, scaler.resume)
    print_note(f"Starting up to {counted(options.max_workers, 'worker')}: {launcher.about}; Ctrl-C ends it.")
    await scaler.run(stopping)
    if not scaler.own:
        return
    number = counted(len(scaler.own), "allocation")
    if options.drain:
        await scaler.drain_all()
        print_note(f"Draining {number}: their workers finish their tasks and leave.")
    else:
        print_note(
            f"Leaving {number}: their workers go on, and leave after {options.idle:g} s without a task."
        )


# The demand.

DemandJob = Annotated[
    str | None, typer.Argument(metavar="JOB", help="room:category:Name; by default of all jobs.")
]
Labels = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="KEY=VALUE", help="Count what a worker with this label could run."),
]
_DEMAND = ItemTable(
    {
        "requires": lambda row: shown(row.requires) or "-",
        "queued": "queued",
        "held back": "held_back",
        "running": "running",
        "slots": "slots",
        "desired": "desired_slots",
        "oldest": lambda row: timedelta(seconds=round(row.oldest_seconds)),
    },
    wide=["requires"],
    optional=["held back", "oldest"],
)


def demand(
    job: DemandJob = None,
    *,
    room: Rooms = None,
    label: Labels = None,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Show how many slots of workers the tasks need."""
    if job is not None and room:
        raise UsageError("--room: give a job or rooms, not both")
    labels = {"labels": ",".join(label)} if label else {}
    with open_client(url) as client:
        if job is not None:
            name = parse_job_name(job)
            answer = client.read(ops.GET_JOB_DEMAND, "demand", query=labels, name=name)
        else:
            answer = client.read(ops.GET_DEMAND, "demand", query={"room": room or [], **labels})
    if as_json:
        print_json(answer)
        return
    _print_demand(answer)


def _print_demand(answer: Demand) -> None:
    caption = f"{answer.desired_slots:,} slots desired, {answer.slots:,} present"
    _DEMAND.print(answer.by_requirement, caption=caption)
