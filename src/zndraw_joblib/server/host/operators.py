"""The methods of `JobLib` for jobs, rooms, limits and schedules."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Concatenate, ParamSpec, TypeVar, Unpack

from pydantic import ValidationError
from pydantic_core import to_json

from zndraw_joblib.jobs import codecs
from zndraw_joblib.jobs.extensions import job_name_of, job_room_of
from zndraw_joblib.server.admin import sql_searches
from zndraw_joblib.server.admin.rules_searches import Confirmed
from zndraw_joblib.server.db.database import Clock, Transaction
from zndraw_joblib.server.db.host_sessions import read_in, write_in
from zndraw_joblib.server.http.access import QueueState
from zndraw_joblib.server.http.admin import apply_confirmed
from zndraw_joblib.server.http.identity import NotABoolean, is_superuser
from zndraw_joblib.server.http.jobs import job_to_put
from zndraw_joblib.server.http.schedules import checked_schedule
from zndraw_joblib.server.process.ports import Identity, Page
from zndraw_joblib.server.queue import (
    rules_audit,
    rules_jobs,
    rules_limits,
    rules_pauses,
    rules_schedules,
    rules_versions,
)
from zndraw_joblib.server.queue.rules_schedules import NewSchedule
from zndraw_joblib.server.runtime.problem_responses import invalid_part
from zndraw_joblib.wire.messages import MAX_PAGE, JobPutRequest, JobResponse, TaskResponse
from zndraw_joblib.wire.names import (
    HOST,
    INTERNAL,
    JobName,
    is_name,
    parse_job_name,
    task_room,
    validate_room_id,
)
from zndraw_joblib.wire.operators import BulkAction, BulkResult, LimitEntry, PauseState, TaskFilter
from zndraw_joblib.wire.policy import JobPolicy, LimitValues, Rate, checked_limit_name
from zndraw_joblib.wire.problems import Conflict, InvalidPayload, InvalidRequest, JobNotFound
from zndraw_joblib.wire.schedules import ScheduleFields, ScheduleRequest, ScheduleResponse

P = ParamSpec("P")
Result = TypeVar("Result")
# The caller of a host's calls without an identity: no user of a request can have its id.
HOST_IDENTITY = Identity(HOST, is_superuser=True)


def identity_of(user: Any) -> Identity:
    """Return the identity of a host's user, any object with `id` and `is_superuser`; None is the host."""
    if user is None:
        return HOST_IDENTITY
    try:
        return Identity(str(user.id), is_superuser(user))
    except NotABoolean as error:
        raise TypeError(f"identity: {error}") from error
    except AttributeError as error:
        raise TypeError(
            f"identity: {type(user).__name__} has no attribute {error.name!r}. Pass your user object, "
            "zndraw_joblib.Identity(id, is_superuser), or nothing to act as the host"
        ) from error


def job_name(job: Any, job_room: str | None = None) -> JobName:
    """Return the full name of a job: a text, or a class in `job_room`, by default its own room."""
    if isinstance(job, str):
        if job_room is not None:
            raise TypeError(f"job_room: the full name {job!r} has the room of its job; leave job_room out")
        return parse_job_name(job)
    cls = job if isinstance(job, type) else type(job)
    if getattr(cls, "category", None) is None:
        raise TypeError(
            f"job: {job!r:.100} is neither a full name room:category:name, nor an Extension or a function "
            "with @job, nor an instance of one"
        )
    return job_name_of(cls, job_room or job_room_of(cls))


def _limit_name(name: str) -> str:
    try:
        return checked_limit_name(name)
    except ValueError as error:
        raise InvalidRequest(f"name: {error}") from error


class OperatorApi(QueueState):
    """What a host's code calls to operate the queue. `identity` and `session` are as in `HostApi`."""

    clock: Clock | None
    # The jobs of `JobLib(jobs=…)`.
    own_jobs: Sequence[type[Any]] = ()

    def _job_name(self, job: Any, job_room: str | None = None) -> JobName:
        """Return the full name of a job. Without `job_room`, the app's own jobs are internal ones."""
        return job_name(job, self._room_of(job, job_room))

    def _room_of(self, job: Any, job_room: str | None) -> str | None:
        """Return the room of a job: without `job_room` that of the app's own jobs, if it is one of them."""
        if job_room is not None or isinstance(job, str):
            return job_room
        cls, registry = job if isinstance(job, type) else type(job), self.dispatcher.registry()
        is_own = cls in self.own_jobs or (registry is not None and cls in registry.extensions.values())
        return INTERNAL if is_own else None

    def _not_registered(self, name: JobName) -> str | None:
        """Return why the app's own job of this name is not there; None for other jobs."""
        if name not in [self._job_name(cls) for cls in self.own_jobs]:
            return None
        return (
            f"Job {str(name)!r} not found: the queue registers the app's own jobs at the end of the app's "
            "start, after the start of its own lifespan. Submit after that; a test has to run the lifespan "
            "or joblib_queue.register(job)"
        )

    async def register_job(
        self,
        job: Any,
        schema: Mapping[str, Any] | None = None,
        *,
        identity: Any = None,
        session: Any = None,
        **policy: Any,
    ) -> JobResponse:
        """Register a job without a worker, or change one, and return it. Tasks of it wait for a worker.

        `schema` is by default that of a class, or of the job that exists. `policy` are fields of `JobPolicy`;
        those that are left out keep their value. Raises `InvalidSchema`, and `SchemaConflict` for another
        schema while the job has a worker or pending tasks.
        """
        caller, name, fields = identity_of(identity), self._job_name(job), dict(policy)
        content = schema if schema is not None or isinstance(job, str) else job.model_json_schema()
        if content is not None:
            fields["schema"] = dict(content)
        try:
            body = JobPutRequest.model_validate(JobPolicy(**policy).model_dump(exclude_unset=True) | fields)
        except ValidationError as error:
            raise invalid_part(error) from error
        item = await job_to_put(self.runtime, caller, name, body)
        registered, _ = await self._change(session, rules_jobs.put, item)
        return registered

    async def get_job(self, job: Any, *, session: Any = None) -> JobResponse:
        """Return a job. Its `versions` are the current one, and those with workers or waiting tasks.

        Raises `JobNotFound`.
        """
        name = self._job_name(job)
        return await self._read(session, rules_jobs.get, name.room_id, name, cross_room=True)

    async def retarget(self, job: Any, versions: Iterable[int] = (), *, identity: Any = None) -> BulkResult:
        """Move pending tasks of earlier versions of a job to its current version.

        By default those of all earlier versions. A task whose payload does not match the current schema stays
        and is in `refused`. At most 10,000 tasks are moved, in several transactions; repeat the call until
        `is_complete`. The audit trail has the identity. Raises `InvalidRequest` for unknown versions.
        """
        caller, numbers = identity_of(identity)._replace(is_superuser=True), list(versions)
        read, name = self.runtime.database.read, str(self._job_name(job))
        await read(rules_versions.check, [name], numbers, earlier=True)
        try:
            filters = TaskFilter.model_validate({"job": [name], "version": numbers})
        except ValidationError as error:
            raise invalid_part(error) from error
        confirmed = Confirmed(caller, BulkAction.RETARGET, filters, await read(sql_searches.newest))
        return await apply_confirmed(self.runtime, confirmed, None)

    async def forget_job(self, job: Any, *, identity: Any = None, session: Any = None) -> None:
        """Forget a job; its tasks stay. Raises `JobNotFound`, and `Conflict` for one that is in use."""
        caller, name = identity_of(identity), self._job_name(job)
        work = rules_audit.recorded(rules_jobs.delete, caller, "job.delete", str(name), name.room_id)
        await self._change(session, work, name)

    async def pause_job(
        self, job: Any, *, until: datetime | None = None, identity: Any = None, session: Any = None
    ) -> JobResponse:
        """Stop claims of a job until a time, or until `resume_job`. Claimed and running tasks continue.

        Raises `JobNotFound`, and `InvalidRequest` for a past time. The identity is in the audit trail.
        """
        caller, name = identity_of(identity), self._job_name(job)
        return await self._change(session, rules_pauses.pause_job, caller, name, paused=True, until=until)

    async def resume_job(self, job: Any, *, identity: Any = None, session: Any = None) -> JobResponse:
        """Allow claims of a paused job again. Raises `JobNotFound`."""
        caller, name = identity_of(identity), self._job_name(job)
        return await self._change(session, rules_pauses.pause_job, caller, name, paused=False)

    async def pause_room(
        self, room: str | None, *, until: datetime | None = None, identity: Any = None, session: Any = None
    ) -> PauseState:
        """Stop claims of a room's tasks, or of all with None, until a time or `resume_room`.

        Claimed and running tasks continue. Raises `InvalidRequest` for a past time, and `Conflict` if too
        many rooms are paused. The identity is in the audit trail.
        """
        caller, room_id = identity_of(identity), None if room is None else validate_room_id(room)
        return await self._change(session, rules_pauses.pause, caller, room_id, until=until)

    async def resume_room(self, room: str | None, *, identity: Any = None, session: Any = None) -> PauseState:
        """End the pause of a room, or that of all with None. Rooms that are paused by themselves stay so."""
        caller, room_id = identity_of(identity), None if room is None else validate_room_id(room)
        return await self._change(session, rules_pauses.resume, caller, room_id)

    async def room_pause(self, room: str | None, *, session: Any = None) -> PauseState:
        """Return whether a room, or the whole queue with None, is paused now, and by which pauses."""
        room_id = None if room is None else validate_room_id(room)
        return await self._read(session, rules_pauses.get, room_id)

    async def put_limit(
        self,
        name: str,
        *,
        max_in_flight: int | None = None,
        rate: Rate | Mapping[str, Any] | None = None,
        identity: Any = None,
        session: Any = None,
    ) -> LimitEntry:
        """Define a limit that jobs share by its name, or replace both of its values.

        Raises `InvalidRequest`, and `Conflict` if there are too many. The identity is in the audit trail.
        """
        caller = identity_of(identity)
        try:
            values = LimitValues.model_validate({"max_in_flight": max_in_flight, "rate": rate})
        except ValidationError as error:
            raise invalid_part(error) from error
        limit, _ = await self._change(session, rules_limits.put, caller, _limit_name(name), values)
        return limit

    async def list_limits(self, *, session: Any = None) -> list[LimitEntry]:
        """Return the limits that jobs share, by name."""
        limits: list[LimitEntry] = []
        while True:
            page = await self._read(session, rules_limits.page, Page(MAX_PAGE, len(limits)))
            limits += page.items
            if not page.items or len(limits) >= page.total:
                return limits

    async def get_limit(self, name: str, *, session: Any = None) -> LimitEntry:
        """Return a limit that jobs share. Raises `LimitNotFound`."""
        return await self._read(session, rules_limits.get, _limit_name(name))

    async def delete_limit(self, name: str, *, identity: Any = None, session: Any = None) -> None:
        """Delete a limit. Raises `LimitNotFound`, and `Conflict` while a job has it."""
        await self._change(session, rules_limits.delete, identity_of(identity), _limit_name(name))

    async def put_schedule(  # noqa: PLR0913 - one keyword for each option
        self,
        name: str,
        job: Any,
        payload: Mapping[str, Any] | None = None,
        *,
        room: str | None = None,
        paused: bool | None = None,
        identity: Any = None,
        session: Any = None,
        **times: Unpack[ScheduleFields],
    ) -> ScheduleResponse:
        """Create or replace a schedule: `put_schedule("nightly", "lab:jobs:relax", cron="0 3 * * *")`.

        Its tasks are those of `identity`, from `room`, by default that of the job. `times` are the fields of
        `ScheduleTimes`. Raises `InvalidRequest`, `JobNotFound`, `InvalidPayload`, and `Conflict` for a room
        with too many.
        """
        caller, full_name = identity_of(identity), self._job_name(job)
        room_id, runtime = validate_room_id(task_room(room, full_name)), self.runtime
        if not is_name(name):
            raise InvalidRequest(f"name: {name!r:.100} may have letters, digits, '_', '-' and '.', up to 128")
        fields = {"job": str(full_name), "payload": codecs.plain_payload(payload), "paused": paused, **times}
        try:
            body = ScheduleRequest.model_validate(fields)
        except ValidationError as error:
            raise invalid_part(error) from error
        cross_room = runtime.settings.cross_room_jobs
        try:
            known = await self._read(session, rules_jobs.get, room_id, full_name, cross_room=cross_room)
        except JobNotFound as problem:
            raise JobNotFound(self._not_registered(full_name) or str(problem)) from problem
        item = NewSchedule(caller, room_id, name, full_name, body, paused, cross_room)
        item = await checked_schedule(runtime, item, to_json(known.schema_).decode())
        work = rules_audit.of_operator(rules_schedules.put, caller, "schedule.put", name, room_id)
        schedule, _ = await self._change(session, work, item=item)
        return schedule

    async def _put_schedules(self, jobs: Mapping[str, type[Any]]) -> None:
        """Write the schedules of internal jobs, in the room ``@internal``; each keeps its state.

        Raises ValueError for a schedule that the job cannot have, such as one with a wrong payload.
        """
        for full_name, cls in jobs.items():
            times = getattr(cls, "job_schedule", None)
            if times is None:
                continue
            item = NewSchedule(HOST_IDENTITY, INTERNAL, cls.__name__, parse_job_name(full_name), times)
            try:
                item = await checked_schedule(self.runtime, item, to_json(cls.model_json_schema()).decode())
                await self.runtime.write(rules_schedules.put, item=item)
            except (InvalidRequest, InvalidPayload, Conflict) as problem:
                raise ValueError(f"schedule of job {full_name!r}: {problem}") from problem

    async def list_schedules(self, room: str, *, session: Any = None) -> list[ScheduleResponse]:
        """Return the schedules of a room, by name."""
        items: list[ScheduleResponse] = []
        while True:
            part = Page(MAX_PAGE, len(items))
            page = await self._read(session, rules_schedules.page, validate_room_id(room), part)
            items += page.items
            if not page.items or len(items) >= page.total:
                return items

    async def get_schedule(
        self, name: str, room: str, *, next: int = 0, session: Any = None
    ) -> ScheduleResponse:
        """Return a schedule, with its `next` following due times. Raises `ScheduleNotFound`."""
        return await self._read(session, rules_schedules.get, validate_room_id(room), name, next)

    async def pause_schedule(
        self, name: str, room: str, *, paused: bool = True, identity: Any = None, session: Any = None
    ) -> ScheduleResponse:
        """Pause a schedule, or resume it; what was due meanwhile follows its `catch_up`."""
        caller, room_id = identity_of(identity), validate_room_id(room)
        action = "schedule.pause" if paused else "schedule.resume"
        work = rules_audit.of_operator(rules_schedules.pause, caller, action, name, room_id)
        return await self._change(session, work, room_id, name, paused=paused)

    async def run_schedule(self, name: str, room: str, *, identity: Any = None) -> TaskResponse:
        """Submit a task of a schedule now, as that of `identity`. Raises `ScheduleNotFound`."""
        record = await self.runtime.database.read(rules_schedules.record, validate_room_id(room), name)
        options = rules_schedules.options(record)
        item = self.runtime.submission(identity_of(identity), room, record.job, options)
        item.schedule = name
        return await self.dispatcher.submit(item)

    async def delete_schedule(
        self, name: str, room: str, *, identity: Any = None, session: Any = None
    ) -> None:
        """Delete a schedule; its tasks stay. Raises `ScheduleNotFound`."""
        caller, room_id = identity_of(identity), validate_room_id(room)
        work = rules_audit.of_operator(rules_schedules.delete, caller, "schedule.delete", name, room_id)
        await self._change(session, work, room_id, name)

    async def _change(
        self,
        session: Any,
        work: Callable[Concatenate[Transaction, P], Awaitable[Result]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Result:
        if session is None:
            return await self.runtime.write(work, *args, **kwargs)
        return await self._write(session, work, *args, **kwargs)

    async def _read(
        self,
        session: Any,
        work: Callable[Concatenate[Transaction, P], Awaitable[Result]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Result:
        if session is None:
            return await self.runtime.database.read(work, *args, **kwargs)
        return await read_in(session, self.clock, lambda tx: work(tx, *args, **kwargs))

    async def _write(
        self,
        session: Any,
        work: Callable[Concatenate[Transaction, P], Awaitable[Result]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Result:
        database, publish = self.runtime.database, self.runtime.publish
        return await write_in(session, self.clock, database, lambda tx: work(tx, *args, **kwargs), publish)
