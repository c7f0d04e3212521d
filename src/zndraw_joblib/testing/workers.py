"""The workers of a test: one for each job, which runs the tasks of the job in the test's thread."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from zndraw_joblib.contract.extensions import job_name_of, job_room_of
from zndraw_joblib.contract.messages import TaskClaimRequest, TaskResponse, TaskUpdateRequest
from zndraw_joblib.contract.names import INTERNAL, JobName
from zndraw_joblib.contract.outcomes import error_text
from zndraw_joblib.contract.problems import ProblemException
from zndraw_joblib.contract.results import Content
from zndraw_joblib.contract.status import TaskStatus
from zndraw_joblib.server.mount import JobLib
from zndraw_joblib.server.ports import Identity
from zndraw_joblib.server.service import jobs
from zndraw_joblib.server.service.task_results import Upload
from zndraw_joblib.server.service.tasks import Report
from zndraw_joblib.server.task_results.results import ContentInfo
from zndraw_joblib.testing import execution
from zndraw_joblib.testing.app_loop import AppLoop
from zndraw_joblib.testing.internal_tasks import InternalTasks
from zndraw_joblib.testing.job_classes import class_of, is_job, shown
from zndraw_joblib.worker.execution import Outcome
from zndraw_joblib.worker.registrations import JobRegistration, PolicyOptions, class_policy, policy_of
from zndraw_joblib.worker.report_entries import Entry
from zndraw_joblib.worker.tasks import ClaimedTask

WORKER = Identity("joblib-test-worker", is_superuser=True)
# Another request has ended the task, or it is another attempt's by now: its holder's report is not needed.
_LOST = frozenset({404, 409})


@dataclass(frozen=True, slots=True)
class ServedJob:
    """A job, its class, and the worker that serves it; an internal job has none."""

    name: JobName
    cls: type[Any]
    worker_id: UUID | None


class Workers:
    """Registers jobs and runs their tasks."""

    def __init__(self, joblib: JobLib, internal: InternalTasks, call: AppLoop) -> None:
        self._joblib, self._runtime, self._call = joblib, joblib.runtime, call
        self._internal = internal
        self._served: dict[JobName, ServedJob] = {}

    async def register(self, cls: type[Any], room: str | None, policy: PolicyOptions) -> ServedJob:
        """Register a job with a new worker, or with the one that it has."""
        room = room or job_room_of(cls)
        name = job_name_of(cls, room)
        known = self._served.get(name)
        worker_id = known.worker_id if known else None
        if room == INTERNAL:
            await self._call(self._internal.register(cls))
        else:
            request = JobRegistration(cls, room, class_policy(cls, policy_of(policy))).request(worker_id, {})
            item = jobs.Registration(WORKER, room, request)
            schema = jobs.check(item, self._joblib.settings.allowed_categories)
            await self._call(self._runtime.payload_validator.check_schema(schema, WORKER.id))
            registered, _ = await self._call(self._runtime.write(jobs.register, item=item))
            worker_id = registered.worker_id
        self._served[name] = served = ServedJob(name, cls, worker_id)
        return served

    def name_of(self, cls: type[Any]) -> JobName:
        """Return the name under which a class was registered here first; by default one of ``@global``."""
        found = [each.name for each in self._served.values() if is_job(each.name, cls)]
        return found[0] if found else job_name_of(cls, job_room_of(cls))

    async def find(self, job: Any) -> list[ServedJob]:
        """Return the jobs that are registered here: all, or those that `job` means.

        A class that is not registered becomes a job of ``@global``. Raises ValueError for another name.
        """
        if job is None:
            return list(self._served.values())
        found = [each for each in self._served.values() if is_job(each.name, job)]
        if not found and isinstance(job, str):
            raise ValueError(
                f"job: {shown(job)} is not registered here, so its class is unknown: register it first"
            )
        return found or [await self.register(class_of(job), None, {})]

    async def keep_alive(self) -> None:
        """Send a heartbeat of each worker."""
        for each in self._served.values():
            if each.worker_id is not None:
                await self._call(self._runtime.heartbeat(WORKER, each.worker_id))

    async def run_next(self, served: Sequence[ServedJob], vis: Any) -> TaskResponse | None:
        """Run a task of one of these jobs, and return its state afterwards; None if none may start now."""
        for each in served:
            if each.worker_id is None:
                task_id = await self._call(self._internal.run_next(each.name, vis))
            else:
                task_id = await self._claim_and_run(each.cls, each.worker_id, vis)
            if task_id is not None:
                return await self._call(self._runtime.get_task(task_id))
        return None

    async def _claim_and_run(self, cls: type[Any], worker_id: UUID, vis: Any) -> UUID | None:
        got = await self._call(self._runtime.claim(WORKER, TaskClaimRequest(worker_id=worker_id)))
        if got.task is None:
            return None
        task, outcome = execution.prepared(cls, execution.claimed(got.task))
        if outcome is None:
            await self._call(self._report(task, {"status": TaskStatus.RUNNING}))
            ran = execution.run(task, vis)
            outcome = ran if isinstance(ran, Outcome) else await ran
        await self._call(self._end(task, outcome))
        return got.task.id

    async def _end(self, task: ClaimedTask, outcome: Outcome) -> None:
        task.channel.finish()
        try:
            if outcome.content is not None:
                outcome = await self._upload(task, outcome.content)
            for report in Entry(task, started=True, outcome=outcome).take().as_json():
                await self._report(task, json.loads(report))
        except ProblemException as problem:
            if problem.status not in _LOST:
                raise

    async def _upload(self, task: ClaimedTask, content: Content) -> Outcome:
        upload = Upload(WORKER, UUID(task.task_id), task.attempt)
        info = ContentInfo(content.content_type, content.filename, content.size)
        try:
            await self._joblib.task_results.upload(upload, info, _pieces(content))
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


async def _pieces(content: Content) -> AsyncIterator[bytes]:
    for piece in content.pieces():
        yield piece
