"""Run a job once in the test's thread, with the functions that a worker runs it with."""

import asyncio
import inspect
import os
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any
from uuid import UUID, uuid4

from pydantic_core import to_json

from zndraw_joblib.jobs import codecs
from zndraw_joblib.jobs.batches import BatchContext, await_batch, batch_of
from zndraw_joblib.jobs.batches import run_batch as run_batch_code
from zndraw_joblib.jobs.extensions import category_of, check_job, class_policy, job_name_of, job_room_of
from zndraw_joblib.jobs.results import decode_content
from zndraw_joblib.jobs.run import Outcome, Settled, await_job
from zndraw_joblib.jobs.run import run_job as run_code
from zndraw_joblib.jobs.task_channel import NO_WORKER, TaskChannel
from zndraw_joblib.jobs.task_context import call_run
from zndraw_joblib.wire.messages import TaskResponse
from zndraw_joblib.wire.names import JobName, parse_job_name, validate_room_id
from zndraw_joblib.wire.policy import JobPolicy
from zndraw_joblib.wire.problems import JobNotFound
from zndraw_joblib.wire.progress import Failure, LogLine, Progress
from zndraw_joblib.wire.statuses import TaskStatus
from zndraw_joblib.worker.tasks import ClaimedTask, prepared


def claimed(task: TaskResponse) -> ClaimedTask:
    """Return a claimed task as a worker has it, without its extension."""
    worker_id: UUID = task.worker_id or NO_WORKER
    return ClaimedTask(
        task_id=str(task.id),
        job_name=task.job_name,
        room_id=task.room_id,
        extension=None,
        attempt=task.attempt,
        payload=task.payload,
        worker_id=worker_id,
        channel=TaskChannel(str(task.id), task.attempt, worker_id),
        traceparent=task.traceparent,
    )


def run(task: ClaimedTask, vis: Any) -> Outcome | Coroutine[Any, Any, Outcome]:
    """Call `run` of a task's extension; return the outcome, or a coroutine of it if `run` is one."""
    extension, pid = task.extension, os.getpid()
    outcome = run_code(partial(call_run, extension, vis, task), task, extension, pid)
    return outcome if isinstance(outcome, Outcome) else await_job(outcome, task, extension, pid)


# Which job a test means: a class, an instance, or a full name.


def class_of(job: Any) -> type[Any]:
    """Return the class of a job, given as the class or an instance. Raises TypeError for anything else."""
    if inspect.isfunction(job):  # without @job, which the error says
        check_job(job)
    cls = job if isinstance(job, type) else type(job)
    check_job(cls)
    return cls


def is_job(name: JobName, job: Any) -> bool:
    """Return whether a job has this name. A class is the job of its category and name in any room."""
    if isinstance(job, str):
        return name == parsed(job)
    cls = class_of(job)
    return (name.category, name.name) == (category_of(cls), cls.__name__)


def parsed(full_name: str) -> JobName:
    """Return the parts of a full name. Raises ValueError for text that no job can have as its name."""
    try:
        return parse_job_name(full_name)
    except JobNotFound as error:
        raise ValueError(
            f"job: {error}; pass a class, or a full name like '@global:modifiers:Rotate'"
        ) from None


def shown(job: Any) -> str:
    """Return how a message names a job."""
    if isinstance(job, str):
        return job
    cls = class_of(job)
    return f"{category_of(cls)}:{cls.__name__}"


# Run a job once without a server: its result, progress and log.


@dataclass(frozen=True)
class JobRun:
    """One run of a job.

    - `result`: what a client reads as the result. Raises AssertionError if the job failed.
    - `error`: the text of the failure, as the task would have it; None after a success.
    - `retry`: whether a failure may be retried; false after `NonRetryable`, after an exception that
      `non_retryable` of the job's own policy names, and for a wrong payload. It does not count attempts.
    - `retry_after_seconds`: the pause that the job asked for with `Retry`, else None.
    - `failure`: the exception, with its traceback; None if the failure is not an exception.
    - `progress`: the last progress, None without any. `log`: the lines that the job logged, oldest first.
    - `content_type`: of a result that is stored as bytes (files, images, large values), else None.
    """

    error: str | None = None
    retry: bool = True
    retry_after_seconds: float | None = None
    failure: Failure | None = None
    progress: Progress | None = None
    lines: list[LogLine] = field(default_factory=list)
    content_type: str | None = None
    value: Any = field(default=None, repr=False)

    @property
    def result(self) -> Any:
        """The decoded result. Raises AssertionError if the job failed."""
        if self.error is not None:
            trace = "" if self.failure is None else f"\n{self.failure.full_traceback}"
            raise AssertionError(f"The job failed, so it has no result: {self.error}{trace}")
        return self.value

    @property
    def log(self) -> list[str]:
        """The texts of the log's lines; `lines` has their levels and times too."""
        return [line.text for line in self.lines]


def run_job(
    job: Any,
    payload: Mapping[str, Any] | None = None,
    *,
    room: str = "test",
    attempt: int = 1,
    vis: Any = None,
) -> JobRun:
    """Run a job once in this thread, as a worker does, without a server.

    `job` is a class with a `payload`, or an instance, which is its own payload. `vis` is the first argument
    of `run`. The payload is validated first as a submit does; without the extra `server` only by the class.
    A failure of the job is in the returned `JobRun`. Raises `InvalidPayload`, `InvalidRoomId`, and TypeError
    for something that is not a job.
    """
    cls = class_of(job)
    if not isinstance(job, type) and payload is not None:
        raise TypeError(
            f"run_job() got a payload and an instance of {cls.__name__}, which is its own payload: "
            f"pass the class, or no payload"
        )
    plain = codecs.plain(dict(payload or {})) if isinstance(job, type) else codecs.payload_of(job)
    task, fault = _prepared(cls, plain, room, attempt)
    outcome = fault or _finished(run(task, vis))
    return _job_run(cls, task, outcome)


def run_batch(job: Any, payloads: Sequence[Mapping[str, Any]], *, room: str = "test") -> list[JobRun]:
    """Run a job that takes a batch once, with tasks of these payloads; return the run of each.

    As in a worker, a payload that the class refuses is left out of the call. `max` and `key` of the job's
    `Batch` do not split the tasks. Raises TypeError for a job that takes no batch.
    """
    cls = class_of(job)
    if batch_of(cls) is None:
        raise TypeError(f"{cls.__name__} takes no batch: use run_job(), or @job(batch=Batch(max=…))")
    every = [_prepared(cls, codecs.plain(dict(payload)), room, 1) for payload in payloads]
    tasks = [task for task, fault in every if fault is None]
    outcomes: list[Outcome] = []
    if tasks:
        batch, pid = BatchContext(tasks), os.getpid()
        ended = run_batch_code(batch, pid)
        outcomes = ended if isinstance(ended, list) else _in_loop(await_batch(ended, batch, pid))
    rest = iter(outcomes)
    return [_job_run(cls, task, fault or next(rest)) for task, fault in every]


def _prepared(
    cls: type[Any], payload: dict[str, Any], room: str, attempt: int
) -> tuple[ClaimedTask, Outcome | None]:
    _check_payload(cls, payload)
    task = claimed(
        TaskResponse(
            id=uuid4(),
            job_name=str(job_name_of(cls, job_room_of(cls))),
            room_id=validate_room_id(room),
            status=TaskStatus.RUNNING,
            created_at=datetime.now(UTC),
            payload=payload,
            attempt=attempt,
        )
    )
    return prepared(task, cls, {})


def _check_payload(cls: type[Any], payload: Any) -> None:
    """Raise `InvalidPayload` as the server does, if its libraries are installed."""
    try:
        from zndraw_joblib.server.queue import rules_payloads, rules_transitions  # noqa: PLC0415 - an extra
    except ModuleNotFoundError:
        return
    rules_transitions.check_size("payload", payload)
    schema = to_json(cls.model_json_schema()).decode()
    rules_payloads.raise_if_invalid(rules_payloads.list_errors(schema, payload))


def _finished(work: Outcome | Coroutine[Any, Any, Outcome]) -> Outcome:
    return work if isinstance(work, Outcome) else _in_loop(work)


def _in_loop(work: Coroutine[Any, Any, Settled]) -> Settled:
    """Return what a coroutine returns in an event loop of its own, as in a worker."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _run_in_loop(work)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_run_in_loop, work).result()


def _run_in_loop(work: Coroutine[Any, Any, Settled]) -> Settled:
    # With a factory, the runner leaves the event loop of this thread as it is.
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        return runner.run(work)


def _job_run(cls: type[Any], task: ClaimedTask, outcome: Outcome) -> JobRun:
    task.channel.finish()
    policy = class_policy(cls, JobPolicy())
    reports = [report.fields for report in task.channel.take_all()]
    progress = [report["progress"] for report in reports if "progress" in report]
    lines = [line for report in reports for line in report.get("log", {}).get("lines", ())]
    content, value = outcome.content, None
    if content is not None:
        value = decode_content(b"".join(content.pieces()), content.content_type)
        content.discard()
    elif outcome.error is None:
        value = codecs.decode_json(outcome.result)
    return JobRun(
        error=outcome.error,
        retry=outcome.retry and not policy.is_final(outcome.error_types),
        retry_after_seconds=outcome.retry_after_seconds,
        failure=outcome.failure,
        progress=Progress.model_validate(progress[-1]) if progress else None,
        lines=[LogLine.model_validate(line) for line in lines],
        content_type=None if content is None else content.content_type,
        value=value,
    )
