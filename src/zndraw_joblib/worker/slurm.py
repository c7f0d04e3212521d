"""Workers in allocations of Slurm: sbatch starts them, squeue shows their states, and scancel drains them.

`worker.slurm_rest` does so by HTTP, for machines without these programs.
"""

import asyncio
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from zndraw_joblib.worker.launchers import (
    NAME_BYTES,
    NAME_VARIABLE,
    AllocationState,
    LauncherError,
    jobs_of,
    last_line,
    output_tail,
)

_COMMAND_SECONDS = 60.0
_WAITING = {
    "PENDING",
    "CONFIGURING",
    "REQUEUED",
    "REQUEUE_FED",
    "REQUEUE_HOLD",
    "RESV_DEL_HOLD",
    "SPECIAL_EXIT",
}
_ENDED = {"COMPLETED", "CANCELLED"}
_FAILED = {"FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE", "PREEMPTED", "REVOKED"}
OVER = _ENDED | _FAILED


def slurm_worker(
    target: str, arguments: Sequence[str] = (), *, idle: float, per_allocation: int = 1, python: str = ""
) -> list[str]:
    """Return the command of one allocation. Its workers leave before it ends, and requeue their tasks."""
    command = [python or sys.executable, "-m", "zndraw_joblib", "worker", target, *arguments]
    command += ["--idle-exit", f"{idle:g}", "--walltime", "auto", "--requeue"]
    return [*command, "--processes", str(per_allocation)] if per_allocation > 1 else command


class BatchJob(NamedTuple):
    """What a batch job runs: a command with variables, under a name. Its output goes to a file."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]


class ListedJob(NamedTuple):
    """A batch job in Slurm's list. `state` is a word of Slurm, like PENDING."""

    id: str
    state: str
    name: str


class SlurmTransport(Protocol):
    """Submits, lists and ends batch jobs of one user. Each method raises `LauncherError`."""

    @property
    def about(self) -> str:
        """How batch jobs are submitted, for the log, without secrets."""

    async def check(self, job: BatchJob) -> None:
        """Let Slurm check a batch job that does not run."""

    async def submit(self, job: BatchJob) -> str:
        """Submit a batch job, and return its number."""

    async def own_jobs(self) -> Iterable[ListedJob]:
        """Return the batch jobs of this user that wait or run."""

    async def states(self, names: Mapping[str, str]) -> Mapping[str, str]:
        """Return the states of batch jobs by their numbers, also soon after the end. `names` are theirs."""

    async def end_of(self, number: str) -> str:
        """Return the last state and the exit code of a batch job."""

    async def drain(self, number: str) -> None:
        """Cancel a batch job that waits; send SIGTERM to the workers of one that runs."""

    def output_of(self, name: str) -> Path:
        """Return the file with the output of a batch job; it may be on another machine."""


class SlurmLauncher:
    """Starts workers as batch jobs of Slurm.

    `command` runs the workers of one allocation, and `target` is the module or file with their jobs. No token
    is in the script or in arguments.
    """

    def __init__(
        self, command: Sequence[str], target: str, transport: SlurmTransport, room: str | None = None
    ) -> None:
        self._command, self._target, self._transport, self._room = list(command), target, transport, room
        self._jobs: Sequence[str] = ()
        self._names: dict[str, str] = {}

    @property
    def about(self) -> str:
        """How it submits, and the command of the workers."""
        return " ".join([f"{self._transport.about}:", "zndraw-joblib", *self._command[3:]])

    @property
    def jobs(self) -> Sequence[str]:
        """The jobs of the target."""
        return self._jobs

    async def check(self) -> None:
        """Load the jobs, and let Slurm check an allocation that does not run."""
        self._jobs = await asyncio.to_thread(jobs_of, self._target, self._room)
        await self._transport.check(BatchJob("scale-check", self._command, {NAME_VARIABLE: "scale-check"}))

    async def submit(self, environment: Mapping[str, str]) -> str:
        """Submit a batch job, and return its number."""
        name = environment[NAME_VARIABLE]
        allocation = await self._transport.submit(BatchJob(name, self._command, environment))
        self._names[allocation] = name
        return allocation

    async def earlier(self, prefix: str) -> Mapping[str, tuple[str, AllocationState]]:
        """Return the batch jobs of this user that wait or run, and whose names an earlier run has given."""
        is_own = re.compile(re.escape(prefix) + f"[0-9a-f]{{{2 * NAME_BYTES}}}").fullmatch
        earlier = {
            job.id: (job.name, _state(job.state))
            for job in await self._transport.own_jobs()
            if job.state != "COMPLETING" and is_own(job.name)
        }
        self._names |= {allocation: name for allocation, (name, _) in earlier.items()}
        return earlier

    async def states(self) -> Mapping[str, AllocationState]:
        """Return the states of its batch jobs. Slurm forgets one some minutes after its end."""
        if not self._names:
            return {}
        states = await self._transport.states(self._names)
        return {allocation: _state(states[allocation]) for allocation in self._names if allocation in states}

    async def reason(self, allocation: str) -> str:
        """Return the state and the exit code of a batch job, and the last line that it printed."""
        name = self._names.pop(allocation)
        text = await asyncio.to_thread(output_tail, self._transport.output_of(name))
        try:
            state = await self._transport.end_of(allocation)
        except LauncherError:
            return text
        return f"{state}: {text}" if text else state

    async def drain(self, allocation: str) -> None:
        """Cancel a batch job that waits; send SIGTERM to the workers of one that runs."""
        await self._transport.drain(allocation)


class SlurmCommands:
    """Submits by `sbatch`, with its options. Slurm passes the environment of this process on.

    What batch jobs print is in files of `folder`, which the nodes share; by default the working directory.
    """

    def __init__(self, options: Sequence[str] = (), folder: Path | None = None) -> None:
        self._options, self._folder = list(options), (folder or Path()).absolute()

    @property
    def about(self) -> str:
        """The command and its options."""
        return shlex.join(["sbatch", *self._options])

    async def check(self, job: BatchJob) -> None:
        """Let sbatch check a batch job without submitting it."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LauncherError(f"The folder for the output of workers cannot be made: {error}") from error
        await self._sbatch(job, "--test-only")

    async def submit(self, job: BatchJob) -> str:
        """Submit a batch job, and return its number."""
        # On several clusters the name of the cluster follows the number.
        return (await self._sbatch(job, "--parsable")).partition(";")[0]

    async def _sbatch(self, job: BatchJob, option: str) -> str:
        # A node that fails ends the allocation: the scaler decides whether another one is needed.
        command = [
            "sbatch",
            option,
            f"--job-name={job.name}",
            f"--output={self._folder}/%x.out",
            "--no-requeue",
        ]
        script = f"#!/bin/sh\nexec {shlex.join(job.command)}\n"
        return await _run([*command, "--export=ALL", *self._options], script, job.environment)

    async def own_jobs(self) -> Iterable[ListedJob]:
        """Return the batch jobs of this user that wait or run."""
        shown = await _run(["squeue", "--me", "--noheader", "--format=%A %T %j"])
        lines = (line.split(maxsplit=2) for line in shown.splitlines())
        return [ListedJob(*words) for words in lines if len(words) == 3]

    async def states(self, names: Mapping[str, str]) -> Mapping[str, str]:
        """Return the states of batch jobs. Unlike numbers, unknown names are no error."""
        option = f"--name={','.join(names.values())}"
        shown = await _run(["squeue", "--me", "--noheader", "--states=all", option, "--format=%A %T"])
        lines = (line.split() for line in shown.splitlines())
        return {words[0]: words[1] for words in lines if len(words) == 2}

    async def end_of(self, number: str) -> str:
        """Return the last state and the exit code of a batch job."""
        shown = await _run(["scontrol", "--oneliner", "show", "job", number])
        fields = dict(word.split("=", 1) for word in shown.split() if "=" in word)
        code, _, signal = fields.get("ExitCode", "?").partition(":")
        return end_text(fields.get("JobState", "ended"), code, signal)

    async def drain(self, number: str) -> None:
        """Cancel a batch job that waits; send SIGTERM to the workers of one that runs."""
        await _run(["scancel", "--quiet", "--state=PENDING", number])
        await _run(["scancel", "--quiet", "--state=RUNNING", "--batch", "--signal=TERM", number])

    def output_of(self, name: str) -> Path:
        """Return the file with the output of a batch job."""
        return self._folder / f"{name}.out"


def end_text(state: str, code: object, signal: object) -> str:
    """Return how a batch job has ended; without a signal, `signal` is empty or 0."""
    return f"{state}, " + (f"exit code {code}" if signal in {"", "0", 0} else f"killed by signal {signal}")


def _state(text: str) -> AllocationState:
    if text in _WAITING:
        return AllocationState.WAITING
    if text in _ENDED:
        return AllocationState.ENDED
    return AllocationState.FAILED if text in _FAILED else AllocationState.RUNNING


async def _run(command: Sequence[str], script: str = "", environment: Mapping[str, str] | None = None) -> str:
    """Run a command of Slurm, and return its output. Raises `LauncherError` with its last line."""

    def run() -> "subprocess.CompletedProcess[bytes]":
        return subprocess.run(  # noqa: S603 - Slurm's own command
            command,
            env={**os.environ, **(environment or {})},
            input=script.encode(),
            capture_output=True,
            timeout=_COMMAND_SECONDS,
            check=False,
        )

    try:
        done = await asyncio.to_thread(run)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LauncherError(f"{command[0]} fails: {error}") from error
    if done.returncode:
        # An unknown option is named in the line before the hint at the help.
        lines = [line for line in done.stderr.splitlines() if not line.startswith(b"Try ")]
        reason = last_line(b"\n".join(lines))
        raise LauncherError(reason or f"{command[0]} has exit code {done.returncode}")
    return done.stdout.decode(errors="replace").strip()
