"""Workers in allocations of Slurm: sbatch starts them, squeue shows their states, and scancel drains them."""

import asyncio
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

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


def slurm_worker(
    target: str, arguments: Sequence[str] = (), *, idle: float, per_allocation: int = 1
) -> list[str]:
    """Return the command of one allocation. Its workers leave before it ends, and requeue their tasks."""
    command = [sys.executable, "-m", "zndraw_joblib", "worker", target, *arguments]
    command += ["--idle-exit", f"{idle:g}", "--walltime", "auto", "--requeue"]
    return [*command, "--processes", str(per_allocation)] if per_allocation > 1 else command


class SlurmLauncher:
    """Starts workers as batch jobs of Slurm.

    `command` runs the workers of one allocation, `target` is the module or file with their jobs, and
    `options` are those of sbatch. What they print is in files of `folder`, which the nodes share; by default
    the working directory. Slurm passes the environment on: no token is in the script or in arguments.
    """

    def __init__(
        self,
        command: Sequence[str],
        target: str,
        options: Sequence[str] = (),
        folder: Path | None = None,
        room: str | None = None,
    ) -> None:
        self._command, self._target, self._options, self._room = list(command), target, list(options), room
        self._folder = (folder or Path()).absolute()
        self._jobs: Sequence[str] = ()
        self._names: dict[str, str] = {}

    @property
    def about(self) -> str:
        """The options of sbatch, and the command of the workers."""
        return " ".join([shlex.join(["sbatch", *self._options]) + ":", "zndraw-joblib", *self._command[3:]])

    @property
    def jobs(self) -> Sequence[str]:
        """The jobs of the target."""
        return self._jobs

    async def check(self) -> None:
        """Load the jobs, and let sbatch check an allocation without submitting it."""
        self._jobs = await asyncio.to_thread(jobs_of, self._target, self._room)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LauncherError(f"The folder for the output of workers cannot be made: {error}") from error
        await self._sbatch("scale-check", {}, "--test-only")

    async def submit(self, environment: Mapping[str, str]) -> str:
        """Submit a batch job, and return its number."""
        name = environment[NAME_VARIABLE]
        # On several clusters the name of the cluster follows the number.
        allocation = (await self._sbatch(name, environment, "--parsable")).partition(";")[0]
        self._names[allocation] = name
        return allocation

    async def _sbatch(self, name: str, environment: Mapping[str, str], option: str) -> str:
        # A node that fails ends the allocation: the scaler decides whether another one is needed.
        command = ["sbatch", option, f"--job-name={name}", f"--output={self._folder}/%x.out", "--no-requeue"]
        script = f"#!/bin/sh\nexec {shlex.join(self._command)}\n"
        return await _run([*command, "--export=ALL", *self._options], script, environment)

    async def earlier(self, prefix: str) -> Mapping[str, tuple[str, AllocationState]]:
        """Return the batch jobs of this user that wait or run, and whose names an earlier run has given."""
        shown = await _run(["squeue", "--me", "--noheader", "--format=%A %T %j"])
        is_own = re.compile(re.escape(prefix) + f"[0-9a-f]{{{2 * NAME_BYTES}}}").fullmatch
        lines = (line.split(maxsplit=2) for line in shown.splitlines())
        earlier = {
            words[0]: (words[2], _state(words[1]))
            for words in lines
            if len(words) == 3 and words[1] != "COMPLETING" and is_own(words[2])
        }
        self._names |= {allocation: name for allocation, (name, _) in earlier.items()}
        return earlier

    async def states(self) -> Mapping[str, AllocationState]:
        """Return the states of its batch jobs. Slurm forgets one some minutes after its end."""
        if not self._names:
            return {}
        names = f"--name={','.join(self._names.values())}"
        shown = await _run(["squeue", "--me", "--noheader", "--states=all", names, "--format=%A %T"])
        lines = (line.split() for line in shown.splitlines())
        states = {words[0]: _state(words[1]) for words in lines if len(words) == 2}
        return {allocation: states[allocation] for allocation in self._names if allocation in states}

    async def reason(self, allocation: str) -> str:
        """Return the state and the exit code of a batch job, and the last line that it printed."""
        name = self._names.pop(allocation)
        text = await asyncio.to_thread(output_tail, self._folder / f"{name}.out")
        try:
            shown = await _run(["scontrol", "--oneliner", "show", "job", allocation])
        except LauncherError:
            return text
        fields = dict(word.split("=", 1) for word in shown.split() if "=" in word)
        code, _, number = fields.get("ExitCode", "?").partition(":")
        end = f"exit code {code}" if number in {"", "0"} else f"killed by signal {number}"
        state = f"{fields.get('JobState', 'ended')}, {end}"
        return f"{state}: {text}" if text else state

    async def drain(self, allocation: str) -> None:
        """Cancel a batch job that waits; send SIGTERM to the workers of one that runs."""
        await _run(["scancel", "--quiet", "--state=PENDING", allocation])
        await _run(["scancel", "--quiet", "--state=RUNNING", "--batch", "--signal=TERM", allocation])


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
