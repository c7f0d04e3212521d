"""The scaler: it asks the server for the demand, and lets a launcher start allocations of workers for it.

Its rules of safety are those of HyperQueue's automatic allocation: the system checks an allocation before the
first one is submitted; failed submissions and failed starts pause it; submissions have a rate; and no worker
with tasks is ever killed.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import quote

from zndraw_joblib.client.async_rest import AsyncRest
from zndraw_joblib.client.retry import describe, is_transient
from zndraw_joblib.jobs.logs import ExponentialBackoff
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.messages import MAX_PAGE
from zndraw_joblib.wire.operators import MAX_DEMAND_JOBS, Demand, WorkerSummary
from zndraw_joblib.wire.problems import JobNotFound
from zndraw_joblib.wire.requirements import AnyLabels, labels_text, shown, shown_labels
from zndraw_joblib.worker.launchers import NAME_BYTES, NAME_VARIABLE, AllocationState, Launcher, LauncherError
from zndraw_joblib.worker.scale_plan import Bounds, Plan, Present, plan

log = logging.getLogger(__name__)

_OVER = {AllocationState.ENDED, AllocationState.FAILED}
# Workers of an allocation that have not registered so long after the first one are no longer expected.
_REST_SECONDS = 60.0
# Waiting allocations are taken back when they have not been needed for so long.
_PATIENCE_SECONDS = 60.0
_LONGEST_PAUSE_SECONDS = 300.0
_MAX_DOWN_SECONDS = 60.0
# Of the names of jobs in the query of one request: proxies take 8 KiB of its first line.
_QUERY_BYTES = 4000
_SHOWN_PARTS, _SHOWN_JOBS = 3, 5
_MAX_REASON = 500


def unknown_job(problem: JobNotFound) -> str:
    """Return the text for a job that was never registered, with the remedy."""
    return (
        f"{problem}. Until it is registered, no task of it can be submitted. Register it once: run "
        "'zndraw-joblib worker' with the same file and --room until it serves, or 'zndraw-joblib register'"
    )


def _sum(demands: Sequence[Demand], missing: Sequence[str]) -> Demand:
    """Return the demand of all jobs from those of its parts.

    The workers of the scaler serve all jobs, so each part has counted their slots.
    """
    unknown = [job for demand in demands for job in demand.unknown_jobs or ()]
    parts = [part for demand in demands for part in demand.by_requirement]
    return Demand(
        queued=sum(demand.queued for demand in demands),
        held_back=sum(demand.held_back for demand in demands),
        running=sum(demand.running for demand in demands),
        slots=max(demand.slots for demand in demands),
        oldest_seconds=max(demand.oldest_seconds for demand in demands),
        desired_slots=sum(demand.desired_slots for demand in demands),
        by_requirement=sorted(parts, key=lambda part: -part.desired_slots),
        unknown_jobs=sorted([*missing, *unknown]) or None,
    )


class Safety(NamedTuple):
    """When the scaler pauses, and how fast it submits.

    `starts` counts allocations in succession that ended before a worker of them had registered. At most one
    allocation is submitted each `submit_seconds`; after a failure that doubles, up to 5 minutes.
    """

    submissions: int = 5
    starts: int = 3
    submit_seconds: float = 1.0
    poll_seconds: float = 5.0


class Subject(NamedTuple):
    """What the demand is asked of: jobs, or the jobs of rooms, or all; and the labels of the workers."""

    jobs: tuple[str, ...] = ()
    rooms: tuple[str, ...] = ()
    labels: AnyLabels = None

    def query(self, *, any_labels: bool = False) -> dict[str, object]:
        """Return the query of a request, of workers with these labels or with any."""
        query: dict[str, object] = {"job": self.jobs, "room": self.rooms}
        # An empty `labels` would stand for workers without labels.
        return query if any_labels else {**query, "labels": labels_text(self.labels)}

    @property
    def parts(self) -> list["Subject"]:
        """The subjects of the requests: of many jobs several, each of which the server and proxies accept."""
        parts: list[list[str]] = [[]]
        for job in self.jobs:
            if len(parts[-1]) == MAX_DEMAND_JOBS or len(quote("".join([*parts[-1], job]))) > _QUERY_BYTES:
                parts.append([])
            parts[-1].append(job)
        return [self._replace(jobs=tuple(part)) for part in parts]


@dataclass
class Own:
    """An allocation that the scaler has started. `registered` is the most workers of it that were seen.

    One that `is_cancelled` was taken back while it waited. One that `was_running` when it was found is of an
    earlier run: its workers may have registered and left before this run began.
    """

    id: str
    name: str
    state: AllocationState = AllocationState.WAITING
    began_at: float | None = None
    registered: int = 0
    registered_at: float = 0.0
    is_cancelled: bool = False
    was_running: bool = False


@dataclass
class Scaler:
    """Keeps as many allocations as the demand needs.

    `environment` makes the variables of each new one, and `idle` is after how many seconds its workers leave.
    The names of its allocations begin with `prefix`; those of an earlier run that wait or run are its own.
    """

    rest: AsyncRest
    launcher: Launcher
    bounds: Bounds
    subject: Subject
    environment: Callable[[], Awaitable[Mapping[str, str]]]
    idle: float = 300.0
    safety: Safety = field(default_factory=Safety)
    slots_per_worker: int = 1
    prefix: str = "scale-"
    paused: str | None = field(default=None, init=False)
    own: dict[str, Own] = field(default_factory=dict, init=False)
    _has_earlier: bool = field(default=False, init=False)
    _failed_submissions: int = field(default=0, init=False)
    _failed_starts: int = field(default=0, init=False)
    _has_registered: bool = field(default=False, init=False)
    _surplus_since: float | None = field(default=None, init=False)
    _last_line: str = field(default="", init=False)
    _last_unknown: str = field(default="", init=False)
    _unmatched: str = field(default="", init=False)
    _next_submit: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._down = ExponentialBackoff(self.safety.poll_seconds, _MAX_DOWN_SECONDS)
        self._pause = ExponentialBackoff(self.safety.submit_seconds, _LONGEST_PAUSE_SECONDS, jitter=0.0)

    async def run(self, stopping: asyncio.Event) -> None:
        """Look at the demand and act, until the event is set."""
        while not stopping.is_set():
            seconds = await self.step()
            with suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), seconds)

    async def step(self) -> float:
        """Do one round. Return for how many seconds to wait before the next one."""
        if not await self.find_earlier():
            return self.safety.poll_seconds
        await self._read_states()
        try:
            demand = await self.read_demand()
        except Exception as error:
            if not is_transient(error) and not isinstance(error, JobNotFound):
                raise
            seconds = self._down.next()
            reason = unknown_job(error) if isinstance(error, JobNotFound) else describe(error)
            self._log_line(f"No demand is known, so nothing is submitted: {reason}", logging.WARNING)
            return seconds
        self._down.reset()
        decision = self.decide(demand)
        await self._take_back(decision.surplus)
        await self._submit(decision.start)
        return self.safety.poll_seconds

    async def find_earlier(self) -> bool:
        """Take over the allocations of an earlier run, once. Return whether they are known."""
        if self._has_earlier:
            return True
        try:
            earlier = await self.launcher.earlier(self.prefix)
        except LauncherError as error:
            line = f"Nothing is submitted, because allocations of an earlier run may wait: {error}"
            self._log_line(line, logging.WARNING)
            return False
        self._has_earlier = True
        for allocation, (name, state) in earlier.items():
            self.own[allocation] = Own(allocation, name, state, was_running=state == AllocationState.RUNNING)
        if earlier:
            log.info("Allocations of an earlier run are counted: %s", ", ".join(earlier))
        return True

    async def read_demand(self) -> Demand:
        """Return the demand. Workers are read before it: one that registers meanwhile counts twice."""
        workers = (await self.rest.send(ops.LIST_WORKERS, query={"limit": MAX_PAGE})).items
        self._see(workers)
        demand = await self._ask(self.subject)
        names = demand.unknown_jobs or []
        unknown = ", ".join(names[:_SHOWN_JOBS]) + (", …" if len(names) > _SHOWN_JOBS else "")
        if unknown and unknown != self._last_unknown:
            log.warning("No worker has registered %s yet: only the tasks of the other jobs count", unknown)
        self._last_unknown = unknown
        self._unmatched = "" if demand.queued else await self._read_unmatched()
        return demand

    async def _ask(self, subject: Subject, *, any_labels: bool = False) -> Demand:
        """Return the demand of all jobs. Raises `JobNotFound` if none of them was ever registered."""
        demands, missing = list[Demand](), list[str]()
        for part in subject.parts:
            try:
                demands.append(await self.rest.send(ops.GET_DEMAND, query=part.query(any_labels=any_labels)))
            except JobNotFound:
                missing += part.jobs
                if len(missing) == len(subject.jobs):
                    raise
        return _sum(demands, missing)

    async def _read_unmatched(self) -> str:
        """Return which tasks wait that workers with these labels may not run; empty without any."""
        of_any = await self._ask(self.subject, any_labels=True)
        parts = [part for part in of_any.by_requirement if part.queued and part.requires]
        if not parts:
            return ""
        required = ", or ".join(dict.fromkeys(shown(part.requires) for part in parts[:_SHOWN_PARTS]))
        number = sum(part.queued for part in parts)
        labels = shown_labels(self.subject.labels)
        return f"; not counted: {number} that require {required}, and the workers have {labels} (--label)"

    def resume(self) -> None:
        """End a pause."""
        if self.paused is not None:
            log.info("Resumed; it was paused: %s", self.paused)
        self.paused, self._failed_submissions, self._failed_starts = None, 0, 0
        self._pause.reset()

    def decide(self, demand: Demand) -> Plan:
        """Return what to do about a demand, and log it if it is another line than the last one."""
        decision = plan(demand.desired_slots, self._present(demand.slots), self.bounds)
        # The first worker shows that the command works, how many slots it has and which jobs it serves.
        if not self._has_registered and not self.subject.jobs and decision.start:
            is_first = not self.own
            decision = Plan(
                int(is_first), 0, decision.why + ("" if is_first else "; the first one is awaited")
            )
        if self.paused is not None:
            decision = Plan(0, decision.surplus, "paused")
        waiting = self._count(AllocationState.WAITING)
        self._log_line(
            f"queued={demand.queued} running={demand.running} slots={demand.slots} desired="
            f"{demand.desired_slots} allocations={len(self.own)} waiting={waiting} start={decision.start}: "
            f"{decision.why}{self._unmatched}"
        )
        return decision

    def _present(self, slots: int) -> Present:
        coming, now = 0, time.monotonic()
        for one in self.own.values():
            is_young = not one.registered or now < one.registered_at + _REST_SECONDS
            if one.state == AllocationState.RUNNING and is_young:
                coming += max(0, self.bounds.per_allocation - one.registered)
        waiting = self._count(AllocationState.WAITING)
        slots_of_coming = coming * self.slots_per_worker
        return Present(slots, len(self.own), waiting, slots_of_coming, self.slots_per_worker)

    def _count(self, state: AllocationState) -> int:
        return sum(one.state == state for one in self.own.values())

    def _see(self, workers: list[WorkerSummary]) -> None:
        """Record which allocations have registered workers, and what these have and serve."""
        by_name = {one.name: one for one in self.own.values()}
        numbers: dict[str, list[WorkerSummary]] = {}
        for worker in workers:
            if worker.name in by_name:
                numbers.setdefault(worker.name, []).append(worker)
        for name, registered in numbers.items():
            one = by_name[name]
            if not one.registered:
                one.registered_at = time.monotonic()
            one.registered = max(one.registered, len(registered))
            self._has_registered, self._failed_starts = True, 0
            self.slots_per_worker = registered[0].slots or self.slots_per_worker
            if not self.subject.jobs and not self.subject.rooms and registered[0].jobs:
                self.subject = self.subject._replace(jobs=tuple(registered[0].jobs))
                log.info("The demand counts the jobs of these workers: %s", ", ".join(self.subject.jobs))

    async def _read_states(self) -> None:
        """Record the states of the allocations, and count those that ended before a worker had registered."""
        try:
            states = await self.launcher.states()
        except LauncherError as error:
            self._log_line(f"The states of the allocations are unknown: {error}", logging.WARNING)
            return
        ended = []
        for one in list(self.own.values()):
            one.state = states.get(one.id, AllocationState.ENDED)
            if one.state == AllocationState.RUNNING and one.began_at is None:
                one.began_at = time.monotonic()
            if one.state in _OVER:
                ended.append(self.own.pop(one.id))
        for one in ended:
            await self._record_end(one)

    async def _record_end(self, one: Own) -> None:
        reason = (await self.launcher.reason(one.id))[:_MAX_REASON]
        if one.is_cancelled and not one.registered:
            return
        if one.registered or one.was_running:
            level = logging.WARNING if one.state == AllocationState.FAILED else logging.INFO
            log.log(level, "Allocation %s has %s%s", one.id, one.state, f" ({reason})" if reason else "")
            return
        # Workers may register and leave between two rounds, but not before they were idle for so long.
        seconds = 0.0 if one.began_at is None else time.monotonic() - one.began_at
        if one.state == AllocationState.ENDED and seconds + self.safety.poll_seconds >= self.idle:
            log.info("Allocation %s has ended", one.id)
            return
        self._failed_starts += 1
        log.warning("Allocation %s ended before a worker of it had registered (%s)", one.id, reason)
        self._delay()
        if self._failed_starts >= self.safety.starts:
            self._pause_for(
                f"{self._failed_starts} allocations in succession ended before their workers had registered, "
                f"the last one with {reason or 'an unknown reason'}"
            )

    async def _take_back(self, surplus: int) -> None:
        """Cancel allocations that wait, the newest first, after they were not needed for a while."""
        now = time.monotonic()
        if not surplus:
            self._surplus_since = None
            return
        self._surplus_since = self._surplus_since or now
        if now < self._surplus_since + _PATIENCE_SECONDS:
            return
        waiting = [one for one in self.own.values() if one.state == AllocationState.WAITING]
        for one in waiting[::-1][:surplus]:
            log.info("Allocation %s waits and is no longer needed: it is cancelled", one.id)
            one.is_cancelled = True
            await self._drain(one)

    async def _drain(self, one: Own) -> None:
        try:
            await self.launcher.drain(one.id)
        except LauncherError as error:
            log.warning("Allocation %s is not drained: %s", one.id, error)

    async def _submit(self, number: int) -> None:
        for _ in range(number):
            seconds = self._next_submit - time.monotonic()
            if seconds > self.safety.submit_seconds or self.paused is not None:
                return
            await asyncio.sleep(max(0.0, seconds))
            name = f"{self.prefix}{secrets.token_hex(NAME_BYTES)}"
            try:
                environment = {**await self.environment(), NAME_VARIABLE: name}
                allocation = await self.launcher.submit(environment)
            except LauncherError as error:
                self._failed_submissions += 1
                self._delay()
                log.warning("An allocation was refused: %s", error)
                if self._failed_submissions >= self.safety.submissions:
                    self._pause_for(f"{self._failed_submissions} submissions in succession failed: {error}")
                return
            except Exception as error:
                if not is_transient(error):
                    raise
                log.warning("Nothing is submitted, because the server issues no token: %s", describe(error))
                return
            self._failed_submissions = 0
            self._next_submit = time.monotonic() + self.safety.submit_seconds
            self.own[allocation] = Own(allocation, name)
            log.info("Allocation %s is submitted", allocation)

    def _delay(self) -> None:
        self._next_submit = time.monotonic() + self._pause.next()

    def _pause_for(self, reason: str) -> None:
        if self.paused is None:
            self.paused = reason
            log.error("Paused, nothing is submitted: %s. Repair it, then resume with SIGUSR1", reason)

    def _log_line(self, line: str, level: int = logging.INFO) -> None:
        """Log a decision, unless it is the same as the last one."""
        if line != self._last_line:
            self._last_line = line
            log.log(level, "%s", line)

    async def drain_all(self) -> None:
        """Drain all allocations: those that wait are cancelled, and workers finish their tasks."""
        for one in list(self.own.values()):
            await self._drain(one)
