"""The commands for the demand: one shows it, and scale starts workers for it."""

import asyncio
import json
import logging
import re
import shlex
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from zndraw_joblib.cli.client import find_access, open_client
from zndraw_joblib.cli.display import (
    CommandError,
    ItemTable,
    TyperException,
    UsageError,
    counted,
    print_json,
    print_note,
)
from zndraw_joblib.cli.options import AsJson, Format, Log, Url, check_room, with_options
from zndraw_joblib.cli.times import parse_duration
from zndraw_joblib.client.async_rest import AsyncRest
from zndraw_joblib.client.calls import validated
from zndraw_joblib.client.connection import (
    DEFAULT_URL,
    TOKEN_VARIABLE,
    URL_VARIABLE,
    AsyncConnection,
    ServerAccess,
)
from zndraw_joblib.client.retry import describe, is_missing
from zndraw_joblib.jobs.logs import LogConfig, LogFormat, LogThreshold
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.messages import WorkerInfo
from zndraw_joblib.wire.names import parse_job_name
from zndraw_joblib.wire.operators import MAX_FILTER_VALUES, Demand
from zndraw_joblib.wire.problems import Forbidden, JobNotFound, NoTokens, ProblemException, TooManyRequests
from zndraw_joblib.wire.requirements import parsed_label, shown
from zndraw_joblib.wire.worker_tokens import MAX_PATTERNS, MAX_TOKEN_SECONDS, WorkerTokenRequest
from zndraw_joblib.worker.launchers import Launcher, LauncherError, LocalLauncher, worker_command
from zndraw_joblib.worker.scale_plan import Bounds
from zndraw_joblib.worker.scaler import Safety, Scaler, Subject, unknown_job
from zndraw_joblib.worker.slurm import SlurmCommands, SlurmLauncher, SlurmTransport, slurm_worker
from zndraw_joblib.worker.slurm_rest import SlurmRest, SlurmToken

log = logging.getLogger(__name__)

# sbatch asks the cluster's controller, which all users share.
_SUBMIT_SECONDS = 1.0
_LOCAL_SUBMIT_SECONDS = 0.1
# Workers need the variables of this command, it needs their names, and their output explains failures.
_OWN_SBATCH_OPTIONS = {
    *("--export", "--job-name", "-J", "--output", "-o", "--array", "-a", "--wrap", "--parsable"),
    *("--test-only", "--requeue"),
}

app = typer.Typer(help="Start workers while tasks wait, and let them leave.")

Target = Annotated[
    str, typer.Argument(metavar="MODULE_OR_FILE", help="The module or .py file that the workers serve.")
]
PassedOn = Annotated[
    list[str] | None, typer.Argument(metavar="[-- ARGUMENTS]", help="More options of worker.")
]
SbatchOptions = Annotated[
    list[str] | None,
    typer.Argument(metavar="[-- ARGUMENTS]", help="Options of sbatch, like --partition=p1 --time=2:00:00."),
]
WorkerOptions = Annotated[
    str,
    typer.Option(
        "--worker-options", metavar="TEXT", help="Options of worker in one word, like '--executor process'."
    ),
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
Lifetime = Annotated[
    float,
    typer.Option(
        "--lifetime",
        metavar="DURATION",
        parser=parse_duration,
        help="How long a worker may live; its token ends then, and its tasks return to their queues.",
    ),
]
_OUTPUT = "The folder for what workers print; default: {}."
Output = Annotated[Path | None, typer.Option("--output", metavar="DIR", help=_OUTPUT.format("a new one"))]
SlurmOutput = Annotated[
    Path | None, typer.Option("--output", metavar="DIR", help=_OUTPUT.format("the working directory"))
]
Name = Annotated[
    str | None,
    typer.Option(
        "--name",
        metavar="NAME",
        help="The batch jobs of an earlier run with the same name are its own; default: one for the server, "
        "the target, jobs, rooms and labels.",
    ),
]
OwnToken = Annotated[
    bool,
    typer.Option(
        "--own-token",
        help="Give workers the token of this command, if it may issue no other; it outlives them.",
    ),
]
Rest = Annotated[
    str | None,
    typer.Option(
        "--rest",
        envvar="SLURM_RESTD_URL",
        metavar="URL",
        help="Submit by slurmrestd, like http://host:6820, with the token in SLURM_JWT.",
    ),
]
RestToken = Annotated[
    Path | None,
    typer.Option("--rest-token-file", metavar="FILE", help="A file with the token, which may change."),
]
Python = Annotated[
    str, typer.Option("--python", metavar="PATH", help="Python on the nodes; default: that of this command.")
]
Drain = Annotated[
    bool, typer.Option("--drain", help="At the end drain all workers; otherwise they leave when idle.")
]


@dataclass(frozen=True, kw_only=True)
class ScaleOptions:
    """The options that all launchers share: those of their commands."""

    max_workers: MaxWorkers
    backlog: Backlog = 1
    per_allocation: PerAllocation = 1
    idle: Idle = 300.0
    dry_run: DryRun = False
    job: Jobs = None
    room: Rooms = None
    label: ScaleLabels = None
    interval: Interval = 5.0
    lifetime: Lifetime = 604_800.0
    output: Output = None
    drain: Drain = False
    own_token: OwnToken = False
    url: Url = DEFAULT_URL
    log_level: Log = LogThreshold.INFO
    log_format: Format = LogFormat.TEXT

    def apply_log(self) -> None:
        """Log as the options say."""
        LogConfig(self.log_level, self.log_format).apply()

    @property
    def bounds(self) -> Bounds:
        """How much may be started. Raises `UsageError`."""
        if self.per_allocation > self.max_workers:
            raise UsageError(
                f"--per-allocation {self.per_allocation} is more than --max-workers {self.max_workers}: no "
                "allocation could be started"
            )
        for option, seconds, most in (
            ("--idle", self.idle, MAX_TOKEN_SECONDS),
            ("--interval", self.interval, 3600.0),
            ("--lifetime", self.lifetime, MAX_TOKEN_SECONDS),
        ):
            if not 0 < seconds <= most:
                raise UsageError(f"{option}: {seconds:g} s is not above 0 and at most {most:g} s")
        return Bounds(self.max_workers, self.backlog, self.per_allocation)

    @property
    def subject(self) -> Subject:
        """What the demand is asked of. Raises `UsageError`."""
        names, rooms = self.job or [], self.room or []
        if names and rooms:
            raise UsageError("--room: give jobs or rooms, not both")
        if len(rooms) > MAX_FILTER_VALUES:
            raise UsageError(f"--room: give at most {MAX_FILTER_VALUES}, not {len(rooms)}")
        try:
            jobs = tuple(str(parse_job_name(name)) for name in names)
        except JobNotFound as problem:
            raise UsageError(f"--job: {problem}") from problem
        return Subject(jobs, tuple(rooms), self.labels)

    @property
    def labels(self) -> dict[str, Any]:
        """The labels of the workers. Raises `UsageError`."""
        try:
            return WorkerInfo(labels=dict(map(parsed_label, self.label or ()))).labels or {}
        except ValueError as error:
            raise UsageError(f"--label: {error}") from error

    @property
    def label_words(self) -> list[str]:
        """The labels as options of `worker`."""
        return [word for text in self.label or () for word in ("--label", text)]


@app.command("local")
@with_options(ScaleOptions)
def scale_local(target: Target, arguments: PassedOn = None, *, options: ScaleOptions) -> None:
    """Start workers as processes of this machine while tasks wait for them.

    Ctrl-C ends it; its workers go on, and leave when they are idle.
    """
    options.apply_log()
    own = arguments or []
    check_worker_options(target, own)
    command = worker_command(
        [target, *own, *options.label_words],
        idle=options.idle,
        per_allocation=options.per_allocation,
        lifetime=options.lifetime,
    )
    launcher = LocalLauncher(command, target, options.output, option_of(own, "--room"))
    run_scaler(launcher, options, Start("scale-", _LOCAL_SUBMIT_SECONDS, concurrency_of(own)))


@dataclass(frozen=True, kw_only=True)
class SlurmOptions(ScaleOptions):
    """The options for Slurm."""

    worker_options: WorkerOptions = ""
    name: Name = None
    python: Python = ""
    rest: Rest = None
    rest_token_file: RestToken = None

    def transport(self, arguments: list[str]) -> SlurmTransport:
        """Return how batch jobs with these options of sbatch are submitted. Raises `UsageError`."""
        if not self.rest:
            if self.rest_token_file is not None:
                raise UsageError("--rest-token-file: this token is for slurmrestd, so add --rest URL")
            return SlurmCommands(arguments, self.output)
        token = SlurmToken(self.rest_token_file)
        try:
            transport = SlurmRest(self.rest, arguments, self.output, token)
            token.read()
        except (LauncherError, ValueError) as error:
            raise UsageError(f"--rest: {error}") from error
        return transport


@app.command("slurm")
@with_options(SlurmOptions, backlog=2, interval=10.0, output=SlurmOutput)
def scale_slurm(target: Target, arguments: SbatchOptions = None, *, options: SlurmOptions) -> None:
    """Submit batch jobs with workers to Slurm while tasks wait for them.

    Slurm checks one first, and refuses what it cannot run. Ctrl-C ends the command; its batch jobs go on,
    and end when they are idle or when their time is over.
    """
    options.apply_log()
    own = _worker_options(options.worker_options)
    check_worker_options(target, own)
    command = slurm_worker(
        target,
        [*own, *options.label_words],
        idle=options.idle,
        per_allocation=options.per_allocation,
        python=options.python,
    )
    room = option_of(own, "--room")
    launcher = SlurmLauncher(command, target, options.transport(_sbatch_options(arguments)), room)
    prefix = _prefix(options.name, options, target, room)
    run_scaler(launcher, options, Start(prefix, _SUBMIT_SECONDS, concurrency_of(own)))


def _prefix(name: str | None, options: ScaleOptions, target: str, room: str | None) -> str:
    """Return the first part of the names of batch jobs; other scalers have another. Raises `UsageError`."""
    if name is None:
        path = Path(target)
        parts = [find_access(options.url).url, str(path.resolve() if path.exists() else target), room]
        parts += [json.dumps(sorted(words or ())) for words in (options.job, options.room, options.label)]
        name = sha256(json.dumps(parts).encode()).hexdigest()[:8]
    elif not re.fullmatch(r"[\w.-]{1,40}", name, re.ASCII):
        raise UsageError(f"--name {name!r}: use 1 to 40 letters, digits, and the characters . _ -")
    return f"scale-{name}-"


def _worker_options(text: str) -> list[str]:
    """Return the options of the workers. Raises `UsageError`."""
    try:
        options = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--worker-options {text!r}: {error}") from error
    for option in ("--walltime", "--idle-exit", "--processes"):
        if option_of(options, option) is not None:
            raise UsageError(
                f"--worker-options: {option} is set by this command, as by its --idle and --per-allocation"
            )
    return options


def check_worker_options(target: str, options: list[str]) -> None:
    """Let the command `worker` parse what is passed on to it. Raises `UsageError`."""
    from zndraw_joblib.cli.worker import worker  # noqa: PLC0415 - its module is not needed for `demand`

    parser = typer.Typer(add_completion=False)
    parser.command()(worker)
    try:
        typer.main.get_command(parser).make_context("worker", [target, *options])
    except TyperException as error:
        raise UsageError(f"The options of worker: {error.format_message()}") from error


def _sbatch_options(arguments: list[str] | None) -> list[str]:
    """Return the options of sbatch. Raises `UsageError` for those that this command needs itself."""
    for word in arguments or ():
        name = word.partition("=")[0]
        if not word.startswith("-"):
            continue
        if name in _OWN_SBATCH_OPTIONS:
            raise UsageError(f"{name} is set by this command, so it cannot be an option of sbatch here")
    return arguments or []


def concurrency_of(arguments: list[str]) -> int:
    """Return how many slots a worker with these options has; the first one that registers says it again."""
    value = option_of(arguments, "--concurrency") or ""
    return max(1, int(value)) if value.isdecimal() else 1


def option_of(arguments: list[str], option: str) -> str | None:
    """Return the value of an option in the arguments that are passed on. Raises `UsageError` for labels."""
    for position, word in enumerate(arguments):
        name, separator, value = word.partition("=")
        if name == "--label":
            raise UsageError("--label: write it before --, so that the demand counts it too")
        if name == option:
            return value if separator else next(iter(arguments[position + 1 :]), "")
    return None


class WorkerEnvironment:
    """Makes the variables of allocations: each gets a token of its own.

    They get that of this command from a server that has no such tokens, and with `--own-token` also where
    this command may issue none; the log says so once.
    """

    def __init__(
        self, rest: AsyncRest, access: ServerAccess, launcher: Launcher, options: ScaleOptions
    ) -> None:
        self._rest, self._access, self._launcher, self._options = rest, access, launcher, options
        self._has_warned = False

    async def make(self) -> Mapping[str, str]:
        """Return the variables of one allocation. Raises `LauncherError` if no token can be issued now.

        Raises `CommandError` if this command may issue none.
        """
        token = await self._issue()
        return {URL_VARIABLE: self._access.url, **({TOKEN_VARIABLE: token} if token else {})}

    async def _issue(self) -> str | None:
        jobs = [parse_job_name(job) for job in self._launcher.jobs]
        if not jobs:
            return self._own_if_allowed("the jobs of the workers are unknown")
        rooms = sorted({job.room_id for job in jobs})
        patterns = list(map(str, jobs))
        if len(patterns) > MAX_PATTERNS:
            patterns = [f"{room}:*" for room in rooms]
        fields = {"jobs": patterns, "rooms": rooms, "expires_in_seconds": self._options.lifetime}
        try:
            body = validated(WorkerTokenRequest, {**fields, "labels": self._options.labels})
            return (await self._rest.send(ops.CREATE_WORKER_TOKEN, body)).token
        except Forbidden as problem:
            return self._own_if_allowed(str(problem))
        except NoTokens as problem:
            return self._own(str(problem))
        except TooManyRequests as problem:
            raise LauncherError(f"No token can be issued: {problem}") from problem
        except Exception as error:
            if is_missing(error):
                return self._own("the server is an older release")
            raise

    def _own_if_allowed(self, reason: str) -> str | None:
        if not self._options.own_token:
            raise CommandError(
                f"No token can be issued for the workers: {reason}. Use a token with the role operator that "
                "may name the jobs, or --own-token to give them the token of this command, which lasts longer"
            )
        return self._own(reason)

    def _own(self, reason: str) -> str | None:
        if not self._has_warned:
            self._has_warned = True
            log.warning("Workers get the token of this command, because no other is issued: %s", reason)
        return self._access.token


class Start(NamedTuple):
    """How a launcher starts allocations.

    `prefix` begins their names, `submit_seconds` is the least time between two, and `slots_per_worker` is how
    many slots their workers seem to have.
    """

    prefix: str
    submit_seconds: float
    slots_per_worker: int


def run_scaler(launcher: Launcher, options: ScaleOptions, start: Start) -> None:
    """Run the scaler with a launcher until Ctrl-C. Raises `CommandError`."""
    bounds, subject = options.bounds, options.subject
    access = find_access(options.url)
    # A wrong URL or token fails here, with its explanation.
    with open_client(options.url) as client:
        client.read(ops.GET_VERSION, "the demand")

    def scaler(rest: AsyncRest, subject: Subject) -> Scaler:
        environment = WorkerEnvironment(rest, access, launcher, options)
        safety = Safety(submit_seconds=start.submit_seconds, poll_seconds=options.interval)
        made = Scaler(rest, launcher, bounds, subject, environment.make, options.idle, safety)
        made.slots_per_worker, made.prefix = start.slots_per_worker, start.prefix
        return made

    asyncio.run(_run(access, launcher, options, subject, scaler))


async def _run(
    access: ServerAccess,
    launcher: Launcher,
    options: ScaleOptions,
    subject: Subject,
    make: Callable[[AsyncRest, Subject], Scaler],
) -> None:
    try:
        await launcher.check()
    except LauncherError as error:
        raise CommandError(f"No allocation can be started: {error}") from error
    if not subject.jobs and not subject.rooms:
        subject = subject._replace(jobs=tuple(launcher.jobs))
    connection = AsyncConnection(access.url, access.token, 30.0)
    rest = AsyncRest(connection)
    scaler = make(rest, subject)
    try:
        await _check_rooms(rest, launcher.jobs)
        if options.dry_run:
            await _print_plan(scaler, launcher)
        else:
            await _scale(scaler, launcher, options)
    except ProblemException as problem:
        raise CommandError(str(problem)) from problem
    finally:
        await connection.aclose()


async def _check_rooms(rest: AsyncRest, jobs: Sequence[str]) -> None:
    """Raise `CommandError` if the token of this command has no rights in the room of one of the jobs."""
    rooms = (await rest.send(ops.GET_CALLER)).rooms
    other = [job for job in jobs if rooms is not None and parse_job_name(job).room_id not in rooms]
    if other:
        raise CommandError(
            f"The token has rights in {', '.join(rooms or ())} only, and the workers would register "
            f"{other[0]}. Pass the option of worker --room ROOM (--worker-options '--room ROOM', with local "
            "after --), or use a token with --rooms for this room"
        )


async def _print_plan(scaler: Scaler, launcher: Launcher) -> None:
    """Print what would be started now."""
    await scaler.find_earlier()
    try:
        decision = scaler.decide(await scaler.read_demand())
    except JobNotFound as problem:
        raise CommandError(unknown_job(problem)) from problem
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
        "cost": lambda row: row.cost if row.cost > 1 else None,
        "queued": "queued",
        "held back": "held_back",
        "running": "running",
        "slots": "slots",
        "desired": "desired_slots",
        "oldest": lambda row: timedelta(seconds=round(row.oldest_seconds)),
    },
    wide=["requires"],
    optional=["cost", "held back", "oldest"],
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
