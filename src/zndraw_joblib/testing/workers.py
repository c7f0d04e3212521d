"""The workers and the internal jobs of a test, whose tasks run when the test says so."""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import UUID

from fastapi import FastAPI

from zndraw_joblib.jobs.extensions import PolicyOptions, class_policy, job_name_of, job_room_of, policy_of
from zndraw_joblib.jobs.failures import error_text
from zndraw_joblib.jobs.results import Content
from zndraw_joblib.jobs.run import Outcome
from zndraw_joblib.server.host.mount import JobLib
from zndraw_joblib.server.internal.executor import GuardedExecutor
from zndraw_joblib.server.internal.registry import InternalRegistry, offer_of
from zndraw_joblib.server.process.ports import Identity
from zndraw_joblib.server.queue import rules_internal, rules_jobs
from zndraw_joblib.server.queue.rules_results import Upload
from zndraw_joblib.server.queue.rules_tasks import Report
from zndraw_joblib.server.results.inputs import Inputs
from zndraw_joblib.server.runtime.runtime import Runtime
from zndraw_joblib.testing import job_runs
from zndraw_joblib.testing.job_runs import class_of, is_job, shown
from zndraw_joblib.wire.messages import TaskClaimRequest, TaskResponse, TaskUpdateRequest
from zndraw_joblib.wire.names import INTERNAL, JobName
from zndraw_joblib.wire.problems import ProblemException
from zndraw_joblib.wire.statuses import TaskStatus
from zndraw_joblib.worker.registrations import JobRegistration
from zndraw_joblib.worker.reporter import TaskReports
from zndraw_joblib.worker.tasks import ClaimedTask, prepared

Result = TypeVar("Result")


class AppLoop:
    """Awaits coroutines in the loop of the app's lifespan while it runs, otherwise in the current loop.

    Starlette's `TestClient` runs a lifespan in a loop of another thread.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._waiters = runtime.waiters

    async def __call__(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Return the result of a coroutine."""
        loop = self._waiters.loop
        if loop is None or not loop.is_running() or loop is asyncio.get_running_loop():
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))


# Internal jobs of a test: their tasks wait until the test runs them.


@dataclass
class _Handle:
    """In place of a broker's task: keeps the calls that the app sends."""

    cls: type[Any]
    calls: deque[dict[str, Any]] = field(default_factory=deque)

    async def kiq(self, *, task_id: str, room_id: str, payload: dict[str, Any], **_: Any) -> None:
        self.calls.append({"task_id": task_id, "room_id": room_id, "payload": payload})


class InternalTasks:
    """Offers internal jobs in an app beside those that it has, and runs their tasks as the app's executor.

    The app's own jobs are among them: until `close`, no task of theirs runs by itself.
    """

    def __init__(self, app: FastAPI, joblib: JobLib) -> None:
        self._app, self._joblib, self._own_offer = app, joblib, joblib.internal_jobs
        self._handles = {offer_of(cls).name: _Handle(cls) for cls in joblib.own_jobs}
        self._restore: Callable[[], None] | None = None
        if self._handles:
            joblib.internal_jobs = self._offered
        if joblib.own_jobs and getattr(app.state, "internal_registry", None) is not None:
            self._replace_registry()

    @asynccontextmanager
    async def _offered(self, runtime: Runtime, _: Callable[[], None]) -> AsyncIterator[InternalRegistry]:
        await runtime.write(rules_internal.register, [offer_of(cls) for cls in self._joblib.own_jobs])
        yield self._with_handles(InternalRegistry({}))

    async def register(self, cls: type[Any]) -> None:
        """Register a class as an internal job. Raises ValueError for one that cannot be a job."""
        offer = offer_of(cls)
        await self._joblib.runtime.write(rules_internal.register, [offer])
        self._handles.setdefault(offer.name, _Handle(cls))
        self._replace_registry()

    def _replace_registry(self) -> None:
        # A host that names the queue has its registry there.
        holder: Any = self._app.state if self._joblib.internal_registry is None else self._joblib
        before = getattr(holder, "internal_registry", None)
        if self._restore is None:
            self._restore = lambda: setattr(holder, "internal_registry", before)
        holder.internal_registry = self._with_handles(before or InternalRegistry({}))

    def _with_handles(self, registry: InternalRegistry) -> InternalRegistry:
        tasks: dict[str, Any] = {str(name): handle for name, handle in self._handles.items()}
        classes = {str(name): handle.cls for name, handle in self._handles.items()}
        executor = getattr(registry, "executor", None) or GuardedExecutor(self._joblib.runtime)
        known = getattr(registry, "extensions", {})
        return InternalRegistry({**registry.tasks, **tasks}, {**known, **classes}, executor)

    async def run_next(self, name: JobName, vis: Any) -> UUID | None:
        """Run the next task of a job; return its id, None if none may start now."""
        await self._joblib.dispatcher.dispatch()
        handle = self._handles[name]
        if not handle.calls:
            return None
        call = handle.calls.popleft()
        executor = GuardedExecutor(
            self._joblib.runtime,
            context=lambda context: context if vis is None else vis,
            capture_output=False,
            uses_loop=handle.cls in self._joblib.own_jobs,
        )
        await executor.start()
        try:
            await executor(handle.cls, call["payload"], call["room_id"], call["task_id"])
        finally:
            await executor.stop()
        return UUID(call["task_id"])

    def close(self) -> None:
        """Give the app its own internal jobs back."""
        self._joblib.internal_jobs = self._own_offer
        if self._restore is not None:
            self._restore()


# The workers of a test: one for each job, which runs the tasks of the job in the test's thread.

WORKER = Identity("joblib-test-worker", is_superuser=True)
# Another request has ended the task, or it is another attempt's by now: its holder's report is not needed.
_LOST = frozenset({404, 409})


@dataclass(frozen=True, slots=True)
class TestedJob:
    """A job, its class, and the worker that serves it; an internal job has none."""

    name: JobName
    cls: type[Any]
    worker_id: UUID | None


class Workers:
    """Registers jobs and runs their tasks."""

    def __init__(self, joblib: JobLib, internal: InternalTasks, call: AppLoop) -> None:
        self._joblib, self._runtime, self._call = joblib, joblib.runtime, call
        self._internal = internal
        names = {offer_of(cls).name: cls for cls in joblib.own_jobs}
        self._served = {name: TestedJob(name, cls, None) for name, cls in names.items()}

    async def register(self, cls: type[Any], room: str | None, policy: PolicyOptions) -> TestedJob:
        """Register a job with a new worker, or with the one that it has."""
        room = room or (INTERNAL if cls in self._joblib.own_jobs else job_room_of(cls))
        name = job_name_of(cls, room)
        earlier = self._served.get(name)
        worker_id = earlier.worker_id if earlier else None
        if room == INTERNAL:
            await self._call(self._internal.register(cls))
        else:
            request = JobRegistration(cls, room, class_policy(cls, policy_of(policy))).request(worker_id, {})
            item = rules_jobs.JobToRegister(WORKER, room, request)
            schema = rules_jobs.check(item, self._joblib.settings.allowed_categories)
            await self._call(self._runtime.payload_validator.check_schema(schema, WORKER.id))
            registered, _ = await self._call(self._runtime.write(rules_jobs.register, item=item))
            worker_id = registered.worker_id
        self._served[name] = served = TestedJob(name, cls, worker_id)
        return served

    def name_of(self, cls: type[Any]) -> JobName:
        """Return the name under which a class was registered here first; by default one of ``@global``."""
        names = [job.name for job in self._served.values() if is_job(job.name, cls)]
        return names[0] if names else job_name_of(cls, job_room_of(cls))

    async def find(self, job: Any) -> list[TestedJob]:
        """Return the jobs that are registered here: all, or those that `job` means.

        A class that is not registered becomes a job of ``@global``. Raises ValueError for another name.
        """
        if job is None:
            return list(self._served.values())
        jobs = [item for item in self._served.values() if is_job(item.name, job)]
        if not jobs and isinstance(job, str):
            raise ValueError(
                f"job: {shown(job)} is not registered here, so its class is unknown: register it first"
            )
        return jobs or [await self.register(class_of(job), None, {})]

    async def keep_alive(self) -> None:
        """Send a heartbeat of each worker."""
        for job in self._served.values():
            if job.worker_id is not None:
                await self._call(self._runtime.heartbeat(WORKER, job.worker_id))

    async def run_next(self, served: Sequence[TestedJob], vis: Any) -> TaskResponse | None:
        """Run a task of one of these jobs, and return its state afterwards; None if none may start now."""
        for job in served:
            if job.worker_id is None:
                task_id = await self._call(self._internal.run_next(job.name, vis))
            else:
                task_id = await self._claim_and_run(job.cls, job.worker_id, vis)
            if task_id is not None:
                return await self._call(self._runtime.get_task(task_id))
        return None

    async def _claim_and_run(self, cls: type[Any], worker_id: UUID, vis: Any) -> UUID | None:
        response = await self._call(self._runtime.claim(WORKER, TaskClaimRequest(worker_id=worker_id)))
        if response.task is None:
            return None
        claimed = response.task
        inputs = Inputs(self._runtime, self._joblib.task_results)
        claimed.payload = await self._call(inputs.fill(claimed.id, claimed.payload))
        task, outcome = prepared(job_runs.claimed(claimed), cls, {})
        if outcome is None:
            await self._call(self._report(task, {"status": TaskStatus.RUNNING}))
            ran = job_runs.run(task, vis)
            outcome = ran if isinstance(ran, Outcome) else await ran
        await self._call(self._end(task, outcome))
        return claimed.id

    async def _end(self, task: ClaimedTask, outcome: Outcome) -> None:
        task.channel.finish()
        try:
            if outcome.content is not None:
                outcome = await self._upload(task, outcome.content)
            for report in TaskReports(task, started=True, outcome=outcome).take().as_json():
                await self._report(task, json.loads(report))
        except ProblemException as problem:
            if problem.status not in _LOST:
                raise

    async def _upload(self, task: ClaimedTask, content: Content) -> Outcome:
        upload = Upload(WORKER, UUID(task.task_id), task.attempt)
        try:
            await self._joblib.task_results.upload_content(upload, content)
        except ProblemException as problem:
            if problem.status in _LOST:
                raise
            return Outcome(error=error_text(f"The server refused the result: {problem}"))
        finally:
            content.discard()
        return Outcome()

    async def _report(self, task: ClaimedTask, fields: Mapping[str, Any]) -> None:
        token = {"worker_id": task.worker_id, "attempt": task.attempt}
        update = TaskUpdateRequest.model_validate({**fields, **token})
        await self._runtime.report(Report(WORKER, UUID(task.task_id), update))
