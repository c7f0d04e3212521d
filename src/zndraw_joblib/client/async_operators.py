"""Requests of operators: jobs, pauses, limits and rooms of a queue.

`client.operators` has the same for programs without an event loop; `make generate` writes it from it.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from zndraw_joblib.client import calls
from zndraw_joblib.client.async_rest import AsyncRest
from zndraw_joblib.client.calls import call_reading, check_empty, validated
from zndraw_joblib.client.flows import read, send_once
from zndraw_joblib.client.retry import RetryRule
from zndraw_joblib.client.submits import Submits
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.messages import MAX_PAGE, JobPutRequest, JobResponse
from zndraw_joblib.wire.names import unknown_text, validate_room_id
from zndraw_joblib.wire.operations import Operation
from zndraw_joblib.wire.operators import (
    BulkAction,
    BulkPreviewRequest,
    BulkRequest,
    BulkResult,
    Demand,
    LimitEntry,
    PauseEntry,
    PauseRequest,
    PauseState,
    TaskFilter,
)
from zndraw_joblib.wire.policy import JobPolicy, LimitValues, Rate, checked_limit_name
from zndraw_joblib.wire.requirements import labels_text
from zndraw_joblib.wire.worker_tokens import WorkerTokenRequest, WorkerTokenResponse


class AsyncOperator:
    """A client of a superuser, who operates the queue. A job is its full name, or a class."""

    def __init__(self, rest: AsyncRest, rule: RetryRule, submits: Submits) -> None:
        self._rest, self._rule, self._submits = rest, rule, submits

    async def register_job(
        self, job: Any, schema: Mapping[str, Any] | None = None, **policy: Any
    ) -> JobResponse:
        """Register a job without a worker, or change one, and return it. Tasks of it wait for a worker.

        `schema` is by default that of a class, or of the job that exists. `policy` are fields of `JobPolicy`;
        those that are left out keep their value. Raises `SchemaConflict` for another schema while the job has
        a worker or pending tasks.
        """
        names = list(JobPolicy.model_fields)
        if unknown := set(policy).difference(names):
            raise TypeError(unknown_text("The policy of register_job()", unknown, names))
        fields = dict(policy)
        content = schema if schema is not None or isinstance(job, str) else job.model_json_schema()
        if content is not None:
            fields["schema"] = dict(content)
        name, body = self._submits.job_name(job), validated(JobPutRequest, fields)

        def make(key: str) -> calls.Call[JobResponse]:
            return calls.call(ops.PUT_JOB, body, key=key, room_id=name.room_id, name=name)

        return await self._rest.run(send_once(f"Registering {name}", make, None, self._rule))

    async def job(self, job: Any) -> JobResponse:
        """Return a job. Its `versions` are the current one, and those with workers or waiting tasks."""
        name = self._submits.job_name(job)
        call = calls.call(ops.GET_JOB, room_id=name.room_id, name=name)
        return await self._rest.run(read(call, f"Reading {name}", self._rule))

    async def retarget(self, job: Any, versions: Iterable[int] = ()) -> BulkResult:
        """Move pending tasks of earlier versions of a job to its current version.

        By default those of all earlier versions. A task whose payload does not match the current schema stays
        and is in `refused`. Raises `InvalidRequest` for a version that the job does not have. At most 10,000
        tasks are moved; repeat the call until `is_complete`.
        """
        name = self._submits.job_name(job)
        filters = validated(TaskFilter, {"job": [str(name)], "version": list(versions)})
        request = BulkPreviewRequest(action=BulkAction.RETARGET, filter=filters)
        what = f"Retargeting {name}"
        preview = await self._rest.run(read(calls.call(ops.PREVIEW_BULK_ACTION, request), what, self._rule))
        body = BulkRequest(action=BulkAction.RETARGET, filter=filters, token=preview.token)

        def make(key: str) -> calls.Call[BulkResult]:
            return calls.call(ops.APPLY_BULK_ACTION, body, key=key)

        return await self._rest.run(send_once(what, make, None, self._rule))

    async def demand(
        self, *jobs: Any, rooms: Iterable[str] = (), labels: Mapping[str, Any] | None = None
    ) -> Demand:
        """Return how many slots of workers the tasks need: of jobs, of the jobs of rooms, or of all.

        With `labels`, count what a worker with these labels could run, and workers that have them. Raises
        `JobNotFound` for a job that was never registered.
        """
        names = [str(self._submits.job_name(job)) for job in jobs]
        query: dict[str, Any] = {"job": names, "room": list(map(validate_room_id, rooms))}
        if labels is not None:
            query["labels"] = labels_text(labels)
        return await self._rest.run(
            read(calls.call(ops.GET_DEMAND, query=query), "Reading the demand", self._rule)
        )

    async def forget_job(self, job: Any) -> None:
        """Forget a job; its tasks stay. Raises `Conflict` while it has a worker or a pending task."""
        name = self._submits.job_name(job)

        def make(key: str) -> calls.Call[None]:
            return call_reading(ops.DELETE_JOB, check_empty, key=key, room_id=name.room_id, name=name)

        await self._rest.run(send_once(f"Forgetting {name}", make, None, self._rule))

    async def pause_job(self, job: Any, until: datetime | None = None) -> JobResponse:
        """Stop claims of a job until a time, or until `resume_job`. Claimed and running tasks continue."""
        return await self._change_job(ops.PAUSE_JOB, job, PauseRequest(until=until))

    async def resume_job(self, job: Any) -> JobResponse:
        """Allow claims of a paused job again."""
        return await self._change_job(ops.RESUME_JOB, job, None)

    async def pause_room(self, room: str | None, until: datetime | None = None) -> PauseState:
        """Stop claims of a room's tasks, or of all with None, until a time or `resume_room`."""
        return await self._change_room(ops.PAUSE_ROOM, ops.PAUSE_ALL_ROOMS, room, PauseRequest(until=until))

    async def resume_room(self, room: str | None) -> PauseState:
        """End the pause of a room, or that of all with None. Rooms that are paused by themselves stay so."""
        return await self._change_room(ops.RESUME_ROOM, ops.RESUME_ALL_ROOMS, room, None)

    async def pauses(self) -> list[PauseEntry]:
        """Return the pauses of rooms, first that of all rooms."""
        entries: list[PauseEntry] = []
        cursor = None
        while True:
            call = calls.call(ops.LIST_PAUSES, query={"cursor": cursor} if cursor else None)
            part = await self._rest.run(read(call, "Listing pauses", self._rule))
            entries += part.items
            cursor = part.next
            if cursor is None:
                return entries

    async def put_limit(
        self, name: str, *, max_in_flight: int | None = None, rate: Rate | Mapping[str, Any] | None = None
    ) -> LimitEntry:
        """Define a limit that jobs share by its name, or replace both of its values.

        Raises ValueError for invalid values, and `InvalidRequest` for a limit without any.
        """
        limit = checked_limit_name(name)
        body = validated(LimitValues, {"max_in_flight": max_in_flight, "rate": rate})

        def make(key: str) -> calls.Call[LimitEntry]:
            return calls.call(ops.PUT_LIMIT, body, key=key, limit=limit)

        return await self._rest.run(send_once(f"Defining limit {limit}", make, None, self._rule))

    async def limits(self) -> list[LimitEntry]:
        """Return the limits that jobs share, by name."""
        limits: list[LimitEntry] = []
        while True:
            call = calls.call(ops.LIST_LIMITS, query={"limit": MAX_PAGE, "offset": len(limits)})
            page = await self._rest.run(read(call, "Listing limits", self._rule))
            limits += page.items
            if not page.items or len(limits) >= page.total:
                return limits

    async def get_limit(self, name: str) -> LimitEntry:
        """Return a limit that jobs share. Raises `LimitNotFound`."""
        call = calls.call(ops.GET_LIMIT, limit=checked_limit_name(name))
        return await self._rest.run(read(call, f"Reading limit {name}", self._rule))

    async def delete_limit(self, name: str) -> None:
        """Delete a limit. Raises `LimitNotFound`, and `Conflict` while a job has it."""
        limit = checked_limit_name(name)

        def make(key: str) -> calls.Call[None]:
            return call_reading(ops.DELETE_LIMIT, check_empty, key=key, limit=limit)

        await self._rest.run(send_once(f"Deleting limit {limit}", make, None, self._rule))

    async def issue_worker_token(
        self,
        jobs: Iterable[str],
        rooms: Iterable[str],
        *,
        expires_in_seconds: float,
        max_tasks: int | None = None,
        labels: Mapping[str, Any] | None = None,
    ) -> WorkerTokenResponse:
        """Issue a short-lived token of workers that serve only these jobs, or patterns, in these rooms.

        They claim at most `max_tasks` tasks together, and have these `labels`. Only the response has the
        `token`. Raises ValueError for invalid values, and `NoTokens` if the queue is part of an app with its
        own users.
        """
        fields = {
            "jobs": list(jobs),
            "rooms": list(rooms),
            "expires_in_seconds": expires_in_seconds,
            "max_tasks": max_tasks,
            "labels": None if labels is None else dict(labels),
        }
        call = calls.call(ops.CREATE_WORKER_TOKEN, validated(WorkerTokenRequest, fields))
        return await self._rest.run(read(call, "Issuing a token of workers", self._rule))

    async def _change_job(
        self, operation: Operation[JobResponse], job: Any, body: PauseRequest | None
    ) -> JobResponse:
        name = self._submits.job_name(job)

        def make(key: str) -> calls.Call[JobResponse]:
            return calls.call(operation, body, key=key, room_id=name.room_id, name=name)

        return await self._rest.run(send_once(f"{operation.name} {name}", make, None, self._rule))

    async def _change_room(
        self,
        of_room: Operation[PauseState],
        of_all: Operation[PauseState],
        room: str | None,
        body: PauseRequest | None,
    ) -> PauseState:
        def make(key: str) -> calls.Call[PauseState]:
            if room is None:
                return calls.call(of_all, body, key=key)
            return calls.call(of_room, body, key=key, room_id=validate_room_id(room))

        return await self._rest.run(send_once(f"{of_room.name} {room}", make, None, self._rule))
