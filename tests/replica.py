"""`Replica`, one server process without HTTP and with short methods for requests, and a manual clock."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Executable, insert, select, text
from sqlalchemy.ext.asyncio import AsyncEngine
from waiting import until

from zndraw_joblib.server.admin import rules_capacity, rules_overview
from zndraw_joblib.server.background.loops import Scheduler
from zndraw_joblib.server.background.schedules import Schedules
from zndraw_joblib.server.db.database import Database
from zndraw_joblib.server.db.tables import Task
from zndraw_joblib.server.internal.dispatcher import Dispatcher
from zndraw_joblib.server.internal.registry import InternalRegistry
from zndraw_joblib.server.process.ports import Identity
from zndraw_joblib.server.process.settings import JobLibSettings
from zndraw_joblib.server.process.waiters import CallerAccess, Disconnected
from zndraw_joblib.server.queue import (
    rules_history,
    rules_jobs,
    rules_pauses,
    rules_schedules,
    rules_sweep,
    rules_workers,
    sql_recount,
)
from zndraw_joblib.server.queue.rules_tasks import Report
from zndraw_joblib.server.runtime.event_queue import Publish
from zndraw_joblib.server.runtime.runtime import Runtime
from zndraw_joblib.wire.events import Emission, TaskStatusEvent
from zndraw_joblib.wire.messages import (
    JobRegisterRequest,
    JobResponse,
    NamedTask,
    TaskActionRequest,
    TaskClaimRequest,
    TaskClaimResponse,
    TaskResponse,
    TaskSubmitRequest,
    TaskUpdateRequest,
    Verdict,
    WorkerInfo,
    WorkerResponse,
)
from zndraw_joblib.wire.names import GLOBAL, INTERNAL, JobName, parse_job_name
from zndraw_joblib.wire.operators import Overview, PauseState
from zndraw_joblib.wire.schedules import ScheduleRequest, ScheduleResponse
from zndraw_joblib.wire.statuses import TERMINAL, TaskStatus

OWNER = Identity("owner", is_superuser=False)
SUBMITTER = Identity("submitter", is_superuser=False)
STRANGER = Identity("stranger", is_superuser=False)
ADMIN = Identity("admin", is_superuser=True)

# The longest duration of one request, also on a busy machine.
TIMEOUT = 40.0


class ManualClock:
    """A clock that shows the same time until a test advances it."""

    def __init__(self) -> None:
        self.now = datetime(2030, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        """Return the current time of the clock."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Advance the time; a negative number sets it back."""
        self.now += timedelta(seconds=seconds)


class Statement(NamedTuple):
    """A statement that ran, and whether it was a transaction of its own."""

    sql: str
    is_alone: bool


class Replica:
    """A runtime on a database. `events` has what it published; `engine` bypasses the code under test."""

    def __init__(
        self,
        database: Database,
        engine: AsyncEngine,
        settings: JobLibSettings | None = None,
        recheck_seconds: tuple[float, float] = (1.0, 5.0),
    ) -> None:
        self.engine = engine
        self.events: list[Any] = []  # emissions of events of many classes
        self.registry: InternalRegistry | None = None
        self.publish: Publish = self._record
        self.runtime = Runtime(
            database,
            settings or JobLibSettings(),
            publish=self._publish,
            on_due=self._schedule,
            recheck_seconds=recheck_seconds,
        )
        self.scheduler = Scheduler(self.runtime.write)
        self.dispatcher = Dispatcher(self.runtime, lambda: self.registry)
        self.schedules = Schedules(self.runtime, self.dispatcher.configure)

    async def _publish(self, emissions: Sequence[Emission]) -> None:
        await self.publish(emissions)

    def _schedule(self, seconds: float) -> None:
        self.scheduler.add(seconds)

    async def _record(self, emissions: Sequence[Emission]) -> None:
        self.events += emissions

    async def overview(self) -> Overview:
        """Return the state of the queue for operators."""
        limits = rules_capacity.limits_of(self.runtime.settings)
        return await self.runtime.database.read_snapshot(rules_overview.read_overview, 15.0, limits)

    async def metrics(self) -> rules_overview.QueueMetrics:
        """Return the figures of the queue."""
        limits = rules_capacity.limits_of(self.runtime.settings)
        return await self.runtime.database.read_snapshot(rules_overview.read_metrics, 15.0, limits)

    def statuses(self, task_id: UUID | None = None) -> list[TaskStatus]:
        """Return the statuses in the published events of one task, or of all tasks, in order."""
        events = [event for event, _ in self.events if isinstance(event, TaskStatusEvent)]
        return [event.status for event in events if task_id in (None, event.id)]

    def final_statuses(self, task_id: UUID) -> list[TaskStatus]:
        """Return the terminal statuses in the published events of a task."""
        return [status for status in self.statuses(task_id) if status in TERMINAL]

    def record_statements(self) -> list[Statement]:
        """Record the statements of later transactions. On PostgreSQL, those without BEGIN are `is_alone`."""
        statements: list[Statement] = []

        async def record(connection: Any, statement: Executable, _: object) -> None:
            is_alone = not getattr(connection, "is_in_transaction", bool)()
            statements.append(Statement(" ".join(str(statement).split()), is_alone))

        self.runtime.database.on_statement = record
        return statements

    async def execute(self, statement: Executable) -> Any:
        """Execute one statement directly in the database, and commit it."""
        async with self.engine.begin() as connection:
            return await connection.execute(statement)

    @asynccontextmanager
    async def missing(self, table: Any) -> AsyncIterator[None]:
        """Let a table be missing: each statement that uses it fails in the database."""
        name = table.name
        await self.execute(text(f"ALTER TABLE {name} RENAME TO {name}_away"))
        yield
        await self.execute(text(f"ALTER TABLE {name}_away RENAME TO {name}"))

    async def add(self, table: Any, rows: Sequence[dict[str, Any]]) -> None:
        """Insert rows directly into the database."""
        async with self.engine.begin() as connection:
            await connection.execute(insert(table), list(rows))
        if table is Task.__table__:
            await self.correct_counts()

    async def correct_counts(self) -> None:
        """Correct the kept counts after a test changed tasks directly."""
        await sql_recount.repair(self.runtime.database)

    async def rows(self, table: Any, *where: Any) -> list[Any]:
        """Return rows of a table."""
        async with self.engine.connect() as connection:
            return list(await connection.execute(select(table).where(*where)))

    async def register(
        self,
        name: str = "Rotate",
        room: str = GLOBAL,
        *,
        by: Identity = OWNER,
        worker: UUID | None = None,
        schema: dict[str, Any] | None = None,
        about: WorkerInfo | None = None,
        **policy: Any,
    ) -> JobResponse:
        """Register a job as user `by`, for `worker` or for a new worker, which says this about itself."""
        job, _ = await self.register_job(
            name, room, by=by, worker=worker, schema=schema, about=about, **policy
        )
        return job

    async def register_job(
        self,
        name: str = "Rotate",
        room: str = GLOBAL,
        *,
        by: Identity = OWNER,
        worker: UUID | None = None,
        schema: dict[str, Any] | None = None,
        about: WorkerInfo | None = None,
        **policy: Any,
    ) -> tuple[JobResponse, bool]:
        """Register a job. Return it, and whether it is new or restored."""
        request = JobRegisterRequest(
            category="modifiers", name=name, schema_=schema or {}, worker_id=worker, worker=about, **policy
        )
        item = rules_jobs.JobToRegister(by, room, request)
        async with asyncio.timeout(TIMEOUT):
            return await self.runtime.write(rules_jobs.register, item=item)

    async def put_schedule(
        self,
        job: JobResponse | str,
        name: str = "nightly",
        room: str = "lab",
        *,
        by: Identity = SUBMITTER,
        **times: Any,
    ) -> ScheduleResponse:
        """Create or replace a schedule of a job."""
        body = ScheduleRequest(job=job if isinstance(job, str) else job.full_name, **times)
        item = rules_schedules.NewSchedule(by, room, name, parse_job_name(body.job), body, body.paused)
        async with asyncio.timeout(TIMEOUT):
            schedule, _ = await self.runtime.write(rules_schedules.put, item=item)
        return schedule

    async def schedule(self, name: str = "nightly", room: str = "lab") -> ScheduleResponse:
        """Return a schedule."""
        return await self.runtime.database.read(rules_schedules.get, room, name)

    async def submit_due(self) -> float:
        """Submit the tasks of schedules that are due."""
        async with asyncio.timeout(TIMEOUT):
            return await self.schedules.submit_due()

    async def worker(self, by: Identity = OWNER) -> UUID:
        """Create a worker without jobs."""
        async with asyncio.timeout(TIMEOUT):
            worker_response: WorkerResponse = await self.runtime.write(
                rules_workers.create, caller=by, interval=15
            )
        return worker_response.id

    async def submit(
        self,
        job: JobResponse | str,
        payload: dict[str, Any] | None = None,
        *,
        room: str = "lab",
        by: Identity = SUBMITTER,
        **options: Any,
    ) -> TaskResponse:
        """Submit a task of a job."""
        name = parse_job_name(job if isinstance(job, str) else job.full_name)
        async with asyncio.timeout(TIMEOUT):
            request = TaskSubmitRequest(payload=payload or {}, **options)
            return await self.dispatcher.submit(self.runtime.submission(by, room, name, request))

    async def claim(
        self,
        worker: UUID | None,
        *,
        by: Identity = OWNER,
        wait: float = 0,
        disconnected: Disconnected = None,
        claim_id: UUID | None = None,
    ) -> TaskResponse | None:
        """Claim a task for a worker; return None if there is none."""
        return (
            await self.claim_response(worker, by=by, wait=wait, disconnected=disconnected, claim_id=claim_id)
        ).task

    async def claim_response(
        self,
        worker: UUID | None,
        *,
        by: Identity = OWNER,
        wait: float = 0,
        disconnected: Disconnected = None,
        **options: Any,
    ) -> TaskClaimResponse:
        """Claim a task for a worker; return the response, which has the reason if there is no task."""
        request = TaskClaimRequest(worker_id=worker, **options)
        async with asyncio.timeout(TIMEOUT):
            return await self.runtime.claim(by, request, wait, disconnected)

    async def act(self, what: Any, task_id: UUID, *, by: Identity = ADMIN, **action: Any) -> TaskResponse:
        """Release, retry or fail a task by hand."""
        work = partial(what, caller=by, task_id=task_id, action=TaskActionRequest(**action))
        async with asyncio.timeout(TIMEOUT):
            result: TaskResponse = await self.runtime.write(work)
            return result

    async def drain(self, worker: UUID | None, *, by: Identity = ADMIN) -> WorkerResponse:
        """Drain a worker."""
        assert worker is not None
        async with asyncio.timeout(TIMEOUT):
            return await self.runtime.write(rules_workers.drain, caller=by, worker_id=worker, interval=15)

    async def pause(
        self, job: JobResponse, *, paused: bool = True, until: datetime | None = None
    ) -> JobResponse:
        """Pause or resume a job."""
        name = parse_job_name(job.full_name)
        async with asyncio.timeout(TIMEOUT):
            return await self.runtime.write(rules_pauses.pause_job, ADMIN, name, paused=paused, until=until)

    async def pause_room(self, room: str | None = "lab", until: datetime | None = None) -> PauseState:
        """Pause a room; all rooms without one."""
        async with asyncio.timeout(TIMEOUT):
            return await self.runtime.write(rules_pauses.pause, ADMIN, room, until=until)

    async def resume_room(self, room: str | None = "lab") -> PauseState:
        """Resume a room; all rooms without one."""
        async with asyncio.timeout(TIMEOUT):
            return await self.runtime.write(rules_pauses.resume, ADMIN, room)

    async def explain(self, task_id: UUID) -> list[str]:
        """Return the codes of the reasons why a task has its status."""
        work = partial(rules_history.explain, task_id=task_id, order=self.runtime.order)
        return [why.code for why in (await self.runtime.database.read(work)).reasons]

    async def history(self, task_id: UUID) -> list[tuple[str, int, str | None]]:
        """Return a task's transitions: status, attempt, reason."""
        history = await self.runtime.database.read(rules_history.history, task_id=task_id)
        assert [each.at for each in history.transitions] == sorted(each.at for each in history.transitions)
        return [(each.status.value, each.attempt, each.reason) for each in history.transitions]

    async def report(
        self, task_id: UUID, status: TaskStatus | str, *, by: Identity = OWNER, **fields: Any
    ) -> TaskResponse:
        """Report on a task."""
        update = TaskUpdateRequest(status=TaskStatus(status), **fields)
        async with asyncio.timeout(TIMEOUT):
            return await self.runtime.report(Report(by, task_id, update))

    async def heartbeat(self, worker: UUID, *, by: Identity = OWNER) -> WorkerResponse:
        """Send a heartbeat."""
        async with asyncio.timeout(TIMEOUT):
            return await self.runtime.heartbeat(by, worker)

    async def verdicts(
        self, worker: UUID | None, *named: tuple[UUID, int], by: Identity = OWNER
    ) -> list[tuple[UUID, Verdict]]:
        """Send a heartbeat that names tasks by id and attempt; return their verdicts."""
        assert worker is not None
        tasks = [NamedTask(id=task_id, attempt=attempt) for task_id, attempt in named]
        async with asyncio.timeout(TIMEOUT):
            result = await self.runtime.heartbeat(by, worker, tasks)
        return [(task.id, task.verdict) for task in result.tasks]

    async def leave(self, worker: UUID | None, *, by: Identity = OWNER) -> None:
        """Remove a worker."""
        assert worker is not None
        async with asyncio.timeout(TIMEOUT):
            await self.runtime.write(rules_workers.remove, caller=by, worker_id=worker)

    async def unlink_job(self, worker: UUID | None, job: JobResponse, *, by: Identity = OWNER) -> None:
        """Remove a job from a worker."""
        assert worker is not None
        name = parse_job_name(job.full_name)
        async with asyncio.timeout(TIMEOUT):
            await self.runtime.write(rules_workers.unlink_job, caller=by, worker_id=worker, name=name)

    async def get(self, task_id: UUID, wait: float = 0, disconnected: Disconnected = None) -> TaskResponse:
        """Read a task."""
        async with asyncio.timeout(TIMEOUT):
            return await self.runtime.get_task(task_id, wait, disconnected, CallerAccess(SUBMITTER.id))

    async def retire_stale(self, seconds: float = 60) -> int:
        """Remove all workers that were silent for longer than `seconds`; return their number."""
        return await self._until_done(partial(rules_sweep.retire_stale, timeout=timedelta(seconds=seconds)))

    async def fail_stuck(self, seconds: float = 3600) -> int:
        """Fail the internal tasks that are held for longer than `seconds`."""
        return await self._until_done(partial(rules_sweep.fail_stuck, timeout=timedelta(seconds=seconds)))

    async def recover_abandoned(self) -> int:
        """Recover the held tasks whose worker does not exist."""
        return await self._until_done(rules_sweep.recover_abandoned)

    async def recover_overdue(self) -> int:
        """Recover the held tasks that were not started, or did not end, in time."""
        return await self._until_done(rules_sweep.recover_overdue)

    async def fail_expired(self) -> int:
        """Fail the tasks that no worker claimed in time."""
        return await self._until_done(rules_sweep.fail_expired)

    async def enqueue_due(self) -> int:
        """Enqueue the scheduled tasks that are due."""
        return await self._until_done(rules_sweep.enqueue_due)

    async def _until_done(self, batch: Any) -> int:
        count = 0
        async with asyncio.timeout(TIMEOUT):
            while done := await self.runtime.write(batch):
                count += done
        return count

    async def claim_task(self, worker: UUID | None, **options: Any) -> TaskResponse:
        """Claim a task, which must be available, for a worker."""
        claimed = await self.claim(worker, **options)
        assert claimed is not None
        return claimed

    async def start(self, worker: UUID | None, *, by: Identity = OWNER) -> TaskResponse:
        """Claim a task, which must be available, for a worker, and start it."""
        claimed = await self.claim_task(worker, by=by)
        return await self.report(claimed.id, TaskStatus.RUNNING, by=by, attempt=claimed.attempt)

    async def running(self, job: JobResponse, *, by: Identity = SUBMITTER) -> TaskResponse:
        """Submit a task of a job; claim and start it with the job's first worker."""
        await self.submit(job, by=by)
        return await self.start(job.worker_id)


OpenReplica = Callable[[], Replica]


class InternalExecutor:
    """A broker that records the dispatched tasks, and awaits `on_call` with the id of each."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.on_call: Any = None

    async def kiq(self, *, task_id: str, room_id: str, payload: dict[str, Any]) -> object:
        """Record one dispatched task."""
        self.calls.append({"task_id": task_id, "room_id": room_id, "payload": payload})
        if self.on_call is not None:
            await self.on_call(UUID(task_id))
        return None


async def wait_until_waiting(replica: Replica, count: int) -> None:
    """Wait until that many requests wait, and each would notice a wake-up."""
    waiters = replica.runtime.waiters

    def do_wait() -> bool:
        return len(waiters) == waiters.waiting_count >= count

    await until(do_wait)


def internal(name: str = "Render") -> JobName:
    """Return the name of an internal job."""
    return JobName(INTERNAL, "modifiers", name)
