"""The end of a worker: when its allocation on a cluster ends, until it is idle, or for some tasks."""

import json
import logging
import math
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from zndraw_joblib.client.retry import is_transient
from zndraw_joblib.worker.registrations import Registrations

log = logging.getLogger(__name__)

# Before the end, for the last reports, and for processes that are ended.
END_SECONDS = 30.0
_LAST_SECONDS = 10.0
_CHECK_SECONDS = 1.0
# Another request for the end of the token follows after a quarter of the time that is left, within these.
_SOONEST_READ_SECONDS, _LATEST_READ_SECONDS = 10.0, 600.0
# A token that ends later limits no claim, so claims need not say how much time is left.
_FAR_SECONDS = 7 * 86400.0
_NO_JOB_SECONDS = 10.0
_SLURM_END = "SLURM_JOB_END_TIME"
_SLURM_JOB = "SLURM_JOB_ID"
_PBS_JOB = "PBS_JOBID"
_LSF_JOB, _LSF_INDEX = "LSB_JOBID", "LSB_JOBINDEX"
# How long squeue, qstat and bjobs may take.
_COMMAND_SECONDS = 60.0
_YEAR_SECONDS = 365 * 86_400.0
# [days-][hours:]minutes:seconds
_TIME_LEFT = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)")
# hours:minutes[:seconds] and what the time is of: L for a limit, E for an estimate
_LSF_TIME_LEFT = re.compile(r"(\d+):(\d+)(?::(\d+))?\s+[LE]")


class Allocation(NamedTuple):
    """When a worker leaves by itself; by default it does not.

    - `ends_at`: when its allocation ends, in seconds since the epoch. It gets only tasks that are expected to
      end 30 s before, and leaves then. It leaves jobs of an older server whose `timeout_seconds` are longer.
    - `idle_exit`: after how many seconds without a task it leaves.
    - `max_runs`: after how many tasks it leaves. The last batch may go beyond.
    - `requeue`: whether it puts the tasks that run at the end back into their queues, which costs no attempt.
      Otherwise they are lost with the worker, and their policy decides.
    """

    ends_at: float | None = None
    idle_exit: float | None = None
    max_runs: int | None = None
    requeue: bool = False

    def check(self) -> None:
        """Raise ValueError for a value out of its range."""
        if self.idle_exit is not None and not self.idle_exit > 0:
            raise ValueError(f"idle_exit must be above 0 s, not {self.idle_exit}")
        if self.max_runs is not None and self.max_runs < 1:
            raise ValueError(f"max_runs must be at least 1, not {self.max_runs}")
        if self.requeue and self.ends_at is None:
            raise ValueError("requeue needs ends_at: without it the worker does not know when to requeue")

    @property
    def is_watched(self) -> bool:
        """Whether the time decides when the worker leaves."""
        return self.ends_at is not None or self.idle_exit is not None


def end_of_allocation(environment: Mapping[str, str] | None = None) -> float:
    """Return when the allocation of this process on Slurm, PBS or LSF ends, in seconds since the epoch.

    Newer versions of Slurm set `SLURM_JOB_END_TIME` (sbatch(1), "output environment variables"); of others,
    like 22.05, `squeue` shows how much time is left. PBS sets only `PBS_JOBID` (qsub(1B)); `qstat` shows the
    start and the limit of the job. LSF sets `LSB_JOBID`, and `bjobs` shows how much time is left. An
    allocation without a time limit ends in a year, which is also the end that Slurm sets. Raises ValueError
    elsewhere.
    """
    variables = os.environ if environment is None else environment
    value, job = variables.get(_SLURM_END), variables.get(_SLURM_JOB)
    if value is None and job is None:
        return _end_elsewhere(variables)
    if value is None:
        return time.time() + _seconds_left(str(job))
    try:
        return float(int(value))
    except ValueError:
        raise ValueError(
            f"{_SLURM_END}={value[:50]!r} is no time in seconds. Pass a duration, like 12h"
        ) from None


def _end_elsewhere(variables: Mapping[str, str]) -> float:
    """Return when an allocation of another system than Slurm ends. Raises ValueError."""
    if (pbs_job := variables.get(_PBS_JOB)) is not None:
        return _end_of_pbs(pbs_job)
    if (lsf_job := variables.get(_LSF_JOB)) is not None:
        index = variables.get(_LSF_INDEX, "0")
        return time.time() + _seconds_left_of_lsf(lsf_job if index in {"", "0"} else f"{lsf_job}[{index}]")
    raise ValueError(
        f"{_SLURM_END} is not set, nor is {_SLURM_JOB}: this is no Slurm allocation, and without {_PBS_JOB} "
        f"and {_LSF_JOB} none of PBS or LSF. Pass how much time is left, like 12h"
    )


def _seconds_left(job: str) -> float:
    """Return how long a running job of Slurm may go on, as `squeue` shows it. Raises ValueError."""
    # The number of the last job of an array is that of the array too, so that there are several lines.
    command = ["squeue", "--noheader", f"--jobs={job}", "--states=RUNNING,COMPLETING", "--format=%A %L"]
    try:
        done = subprocess.run(  # noqa: S603 - the number of this job
            command, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ValueError(
            f"{_SLURM_END} is not set, and squeue fails: {error}. Pass a duration, like 12h"
        ) from None
    times = dict(line.split() for line in done.stdout.splitlines() if len(line.split()) == 2)
    text = times.get(job, "")
    if text == "UNLIMITED":
        return _YEAR_SECONDS
    match = _TIME_LEFT.fullmatch(text)
    if match is None:
        shown = (done.stderr or done.stdout).strip()[:200]
        raise ValueError(
            f"{_SLURM_END} is not set, and squeue shows no time that is left of job {job}: {shown!r}. Pass a "
            "duration, like 12h"
        )
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _end_of_pbs(job: str) -> float:
    """Return when a job of PBS ends, by its attributes `stime` and `Resource_List.walltime`.

    `qstat -f -F json` (qstat(1B) of OpenPBS) has both: the start as text in local time, see
    pbs_job_attributes(7B), and the limit, see pbs_resources(7B). Raises ValueError.
    """
    command = ["qstat", "-f", "-F", "json", job]
    try:
        done = subprocess.run(  # noqa: S603 - the id of this job
            command, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False
        )
        [attributes] = json.loads(done.stdout, strict=False)["Jobs"].values()
        started = time.mktime(time.strptime(attributes["stime"]))
        limit = attributes.get("Resource_List", {}).get("walltime")
        parts = [] if limit is None else [int(part) for part in str(limit).split(":")]
    except (OSError, subprocess.TimeoutExpired, LookupError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(
            f"{_PBS_JOB} is set, but qstat -f -F json shows no start and walltime of job {job}: {error!r}. "
            "Pass a duration, like 12h"
        ) from None
    seconds = sum(part * 60**place for place, part in enumerate(reversed(parts)))
    return started + (_YEAR_SECONDS if limit is None else seconds)


def _seconds_left_of_lsf(job: str) -> float:
    """Return how long a running job of LSF may go on, by the field `time_left` of `bjobs`.

    It is like ``3:25 L`` (bjobs(1), "-o"), or ``-`` without a limit, in whole minutes, so a minute is taken
    off. With ``E`` it is what is left of an estimate, which LSF keeps below the limit. One that is exceeded
    (``X``) says nothing of the limit. Raises ValueError.
    """
    command = ["bjobs", "-noheader", "-o", "time_left", job]
    try:
        done = subprocess.run(  # noqa: S603 - the id of this job
            command, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ValueError(f"{_LSF_JOB} is set, but bjobs fails: {error}. Pass a duration, like 12h") from None
    text = done.stdout.strip()
    if done.returncode == 0 and text == "-":
        return _YEAR_SECONDS
    match = _LSF_TIME_LEFT.fullmatch(text)
    if match is None:
        shown = (text or done.stderr.strip())[:200]
        raise ValueError(
            f"{_LSF_JOB} is set, but bjobs -o time_left shows no limit of job {job}: {shown!r}. Pass a "
            "duration, like 12h"
        )
    hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return max(0.0, float((hours * 60 + minutes) * 60 + seconds - (60 if match[3] is None else 0)))


UNLIMITED = Allocation()


class Activity(NamedTuple):
    """What a worker does: how many tasks have begun since its start, and whether it holds some.

    `has_time`: for some of its jobs, as far as the server has said.
    """

    begun: int
    is_busy: bool
    has_time: bool = True


class AllocationWatch:
    """Ends a worker in time, in a thread of its own, also if none of its jobs fits into the rest.

    `drain` gets the reason; `end` gets how many seconds the rest may take. `token_seconds` asks the server
    for how long the worker's token is valid: if it ends before the allocation, or without one, the worker
    leaves before it. It is None for credentials that may change.
    """

    def __init__(
        self,
        allocation: Allocation,
        registrations: Registrations,
        activity: Callable[[], Activity],
        drain: Callable[[str], None],
        end: Callable[[float], None],
        token_seconds: Callable[[], float | None] | None,
    ) -> None:
        self._allocation = allocation
        self._own_end = allocation.ends_at
        self._token_seconds = token_seconds
        # Whether the token ends first.
        self.ends_with_token = False
        self._read_at = math.inf if token_seconds is None else -math.inf
        self._registrations = registrations
        self._activity = activity
        self._drain = drain
        self._end = end
        self._lock = threading.Lock()
        self._last = Activity(0, is_busy=False)
        self._active_at = self._served_at = time.monotonic()

    def run(self, closed: threading.Event) -> None:
        """Check until the worker is `closed`, or its allocation ends."""
        while not closed.wait(_CHECK_SECONDS):
            self.read_token()
            if self._is_over():
                return
            self.leave_jobs()
            self._check_idle()

    @property
    def is_needed(self) -> bool:
        """Whether the time decides, or may decide, when the worker leaves."""
        return self._allocation.is_watched or self._read_at < math.inf

    def read_token(self) -> None:
        """Let the worker leave before its token ends, if it does; an operator may move that end."""
        if self._token_seconds is None or time.monotonic() < self._read_at:
            return
        pause = _SOONEST_READ_SECONDS
        try:
            seconds = self._token_seconds()
        except Exception as error:  # an older server refuses it
            self._read_at = time.monotonic() + pause if is_transient(error) else math.inf
            return
        pause = math.inf if seconds is None else min(max(pause, seconds / 4), _LATEST_READ_SECONDS)
        self._read_at = time.monotonic() + pause
        self._set_end(seconds if seconds is not None and seconds <= _FAR_SECONDS else None)

    def _set_end(self, token_seconds: float | None) -> None:
        ends_at, ended_with_token = self._own_end, self.ends_with_token
        token_end = None if token_seconds is None else time.time() + token_seconds
        self.ends_with_token = token_end is not None and (ends_at is None or token_end < ends_at)
        if self.ends_with_token and not ended_with_token:
            log.info("The token ends in %.0f s: this worker leaves before that", token_seconds)
        self._allocation = self._allocation._replace(ends_at=token_end if self.ends_with_token else ends_at)

    def seconds_for_tasks(self) -> float | None:
        """Return how long a task that begins now may run, None for any time."""
        remaining = self._remaining()
        return None if remaining is None else max(0.0, remaining - END_SECONDS)

    def leave_jobs(self) -> None:
        """Leave the jobs of an older server whose tasks may run for longer than the allocation."""
        remaining = self._remaining()
        if remaining is None:
            return
        with self._lock:
            for name, seconds in self._registrations.time_limits().items():
                if seconds > remaining - END_SECONDS:
                    log.info(
                        "Leaving %s: its timeout_seconds (%g) is longer than the rest of this allocation "
                        "(%.0f s)",
                        *(name, seconds, remaining),
                    )
                    self._leave(name)

    def _leave(self, name: str) -> None:
        try:
            self._registrations.unregister(name)
        except KeyError:  # it was unregistered meanwhile
            pass
        except Exception as error:  # the next check repeats it
            log.warning("Leaving %s failed: %s", name, error)

    def _remaining(self) -> float | None:
        ends_at = self._allocation.ends_at
        return None if ends_at is None else ends_at - time.time()

    def _is_over(self) -> bool:
        remaining = self._remaining()
        if remaining is None or remaining > END_SECONDS:
            return False
        log.info("The %s ends in %.0f s", "token" if self.ends_with_token else "allocation", remaining)
        self._end(max(0.0, remaining - _LAST_SECONDS))
        return True

    def _check_idle(self) -> None:
        now, activity = time.monotonic(), self._activity()
        if activity.is_busy or activity.begun > self._last.begun:
            self._active_at = now
        self._last = activity
        if (self._registrations.jobs and activity.has_time) or self._registrations.providers:
            self._served_at = now
        idle_exit = self._allocation.idle_exit
        if idle_exit is not None and now - self._active_at >= idle_exit:
            self._drain(f"No task for {idle_exit:g} s (idle_exit): worker %s leaves")
        elif self._allocation.ends_at is not None and now - self._served_at >= _NO_JOB_SECONDS:
            what = "before the token ends" if self.ends_with_token else "into the rest of the allocation"
            self._drain(f"No job fits {what}: worker %s leaves")
