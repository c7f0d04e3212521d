"""The loop that submits the tasks of schedules when they are due. Each server runs it."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from uuid import UUID

from zndraw_joblib.jobs.logs import log_failed_work
from zndraw_joblib.server.process.ports import SCHEDULES_KEY, Identity
from zndraw_joblib.server.queue import rules_schedules
from zndraw_joblib.server.queue.rules_schedules import FireResult, Plan
from zndraw_joblib.server.queue.rules_tasks import Submission
from zndraw_joblib.server.runtime.runtime import Runtime
from zndraw_joblib.wire.problems import ProblemException, ServiceUnavailable, TooManyRequests

logger = logging.getLogger(__name__)

# Schedules that are submitted together, and due times of them: a transaction is bounded.
_MAX_SCHEDULES, _MAX_TASKS = 200, 1000
_RETRY_SECONDS = 1.0
# For how long a schedule whose tasks cannot be written is left out.
_PAUSE_SECONDS = 10.0
_MAX_LOGGED = 1000


class Schedules:
    """Submits the tasks that are due, and sleeps until the next schedule is.

    A change of a schedule on any server wakes it. It also looks after `poll_seconds`: a notification may be
    lost, and the database's clock may run differently. Where the tasks of several schedules cannot be written
    together, those of each job are written alone; a job that fails waits for 10 s, and stops no other. So
    does a schedule whose payload cannot be validated now, or whose job has no executor here, and all of them
    while there are too many tasks of all users.
    `configure` sets how a task of an internal job is dispatched.
    """

    def __init__(
        self, runtime: Runtime, configure: Callable[[Submission], object], *, poll_seconds: float = 15.0
    ) -> None:
        self._runtime, self._configure, self._poll_seconds = runtime, configure, poll_seconds
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken = asyncio.Event()
        # Until when schedules are left out, by the monotonic clock.
        self._failing: dict[UUID, float] = {}
        # Why the tasks of jobs could not be written, as it was logged last.
        self._logged: dict[str, str] = {}
        runtime.waiters.subscribe(SCHEDULES_KEY, self._wake)

    def _wake(self, _: str) -> None:
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._woken.set)

    async def run(self) -> None:
        """Submit due tasks until cancelled."""
        self._loop, self._woken = asyncio.get_running_loop(), asyncio.Event()
        while True:
            self._woken.clear()
            try:
                seconds = await self.submit_due()
            except Exception as error:
                log_failed_work(logger, error, "Schedules wait, and are tried again")
                seconds = _RETRY_SECONDS
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._woken.wait()

    async def submit_due(self) -> float:
        """Submit all tasks that are due. Return the seconds until it should look again."""
        while True:
            now = time.monotonic()
            self._failing = {id_: until for id_, until in self._failing.items() if until > now}
            waiting = await self._runtime.database.read(
                rules_schedules.waiting, limit=_MAX_SCHEDULES, but=set(self._failing)
            )
            if not waiting.plans:
                break
            self._leave_out_all((plan, waiting.faults.get(plan.schedule.id)) for plan in waiting.plans)
            if plans := [plan for plan in waiting.plans if plan.schedule.id not in waiting.faults]:
                await self._submit(_bounded(plans))
        if waiting.seconds is None:
            return self._poll_seconds
        return min(self._poll_seconds, max(waiting.seconds, _RETRY_SECONDS if self._failing else 0.001))

    async def _submit(self, plans: Sequence[Plan]) -> None:
        """Submit the tasks of schedules together; if that fails, those of each job alone."""
        try:
            await self._submit_together(plans)
        except Exception as error:
            jobs: dict[str, list[Plan]] = {}
            for plan in plans:
                jobs.setdefault(plan.schedule.job_name, []).append(plan)
            if len(jobs) == 1:
                self._leave_out(plans, error)
                return
            for own in jobs.values():
                try:
                    await self._submit_together(own)
                except Exception as problem:
                    self._leave_out(own, problem)

    def _leave_out_all(self, results: Iterable[tuple[Plan, Exception | None]]) -> None:
        """Leave out the schedules that have a problem."""
        faulty: dict[str, dict[UUID, tuple[Plan, Exception]]] = {}
        for plan, error in results:
            if error is not None:
                faulty.setdefault(plan.schedule.job_name, {})[plan.schedule.id] = plan, error
        for of_job in faulty.values():
            plans, errors = zip(*of_job.values(), strict=True)
            self._leave_out(plans, errors[0])

    def _leave_out(self, plans: Sequence[Plan], error: Exception) -> None:
        until = time.monotonic() + _PAUSE_SECONDS
        self._failing |= {plan.schedule.id: until for plan in plans}
        name = plans[0].schedule.job_name
        if self._logged.get(name) != type(error).__name__:
            if len(self._logged) >= _MAX_LOGGED:
                self._logged.clear()
            self._logged[name] = type(error).__name__
            text = f"Schedules of job {name!r} wait: their tasks cannot be written (logged once)"
            log_failed_work(logger, error, text, job=name)

    async def _submit_together(self, plans: Sequence[Plan]) -> None:
        plan_of = {plan.schedule.id: plan for plan in plans}
        await self._take_pending(plan_of)
        if idle := [plan for plan in plan_of.values() if not plan.times]:
            await self._runtime.write(rules_schedules.fire, idle, [])
        items = [(plan, self._submission(plan, due)) for plan in plan_of.values() for due in plan.times]
        if not items:
            return
        plan_of_item = {id(item): plan for plan, item in items}

        async def put(validated: Sequence[Submission]) -> list[FireResult]:
            own = list({id(plan): plan for item in validated if (plan := plan_of_item[id(item)])}.values())
            results: list[FireResult] = await self._runtime.write(rules_schedules.fire, own, validated)
            return results

        submissions = [item for _, item in items]
        await self._runtime.set_payload_keys(submissions)
        results = await self._runtime.payload_validator.submit(submissions, put)
        faults: dict[UUID, ProblemException] = {}
        busy: list[tuple[Plan, Exception]] = []
        for (plan, _), result in zip(items, results, strict=True):
            # Of a validation that has to wait, or of a job that has no executor here.
            if isinstance(result, ServiceUnavailable | TooManyRequests):
                busy.append((plan, result))
                continue
            self._logged.pop(plan.schedule.job_name, None)
            if isinstance(result, ProblemException):
                faults[plan.schedule.id] = result
        self._leave_out_all(busy)
        for schedule_id, problem in faults.items():
            # Unless the payload does not match, the schedule has moved on already: then this changes nothing.
            await self._runtime.write(rules_schedules.fail, [plan_of[schedule_id]], problem)

    async def _take_pending(self, plan_of: dict[UUID, Plan]) -> None:
        """Count the tasks for the limits of their users; leave out the schedules that exceed them."""
        limit = self._runtime.stored.pending_tasks
        for plan in list(plan_of.values()):
            try:
                await self._runtime.stored.take(limit, plan.schedule.owner_id, [None] * len(plan.times))
                continue
            except ServiceUnavailable as problem:
                self._leave_out_all([(plan, problem)])
            except ProblemException as problem:
                await self._runtime.write(rules_schedules.fail, [plan], problem)
            del plan_of[plan.schedule.id]

    def _submission(self, plan: Plan, due: datetime) -> Submission:
        schedule = plan.schedule
        caller = Identity(schedule.owner_id, is_superuser=False)
        options = rules_schedules.options(schedule, due)
        item = self._runtime.submission(caller, schedule.room_id, schedule.job, options)
        item.schedule, item.due_at, item.masked = schedule.name, due, schedule.masked
        self._configure(item)
        # The dispatcher sends a task of an internal job after the commit.
        item.is_deferred = item.is_configured
        return item


def _bounded(plans: Sequence[Plan]) -> list[Plan]:
    """Return the first plans, at least one, with a bounded number of due times together."""
    bounded, count = [plans[0]], len(plans[0].times)
    for plan in plans[1:]:
        count += len(plan.times)
        if count > _MAX_TASKS:
            break
        bounded.append(plan)
    return bounded
