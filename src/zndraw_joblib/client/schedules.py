"""The schedules of a queue.

Made from `client.async_schedules` by `make generate`; do not edit.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Unpack

from zndraw_joblib.client import calls
from zndraw_joblib.client.calls import call_reading, check_empty, validated
from zndraw_joblib.client.flows import read, send_once
from zndraw_joblib.client.rest import TaskRest
from zndraw_joblib.client.retry import RetryRule
from zndraw_joblib.client.submits import NewTask, Submits
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.messages import MAX_PAGE, TaskResponse
from zndraw_joblib.wire.names import DEFAULT_ROOM, is_name, task_room
from zndraw_joblib.wire.schedules import ScheduleFields, ScheduleRequest, ScheduleResponse, ScheduleUpdate


class Schedules:
    """The schedules of rooms; `room` is by default that of the queue."""

    def __init__(self, rest: TaskRest, rule: RetryRule, submits: Submits) -> None:
        self._rest, self._rule, self._submits = rest, rule, submits
        self._room = submits.room or DEFAULT_ROOM

    def put(
        self,
        name: str,
        job: Any,
        payload: Mapping[str, Any] | None = None,
        *,
        room: str | None = None,
        paused: bool | None = None,
        **times: Unpack[ScheduleFields],
    ) -> ScheduleResponse:
        """Create or replace a schedule: `put("nightly", "relax", {"steps": 50}, cron="0 3 * * *")`.

        The job is that of a submit, and `room` too. `times` are the fields of `ScheduleTimes`. Raises
        ValueError for invalid fields, and `JobNotFound`.
        """
        task = NewTask(job, payload, room=room)
        full_name, values = self._rest.run(self._submits.name_and_payload(task))
        if not is_name(name):
            raise ValueError(f"name: {name!r:.100} may have letters, digits, '_', '-' and '.', up to 128")
        fields = {"job": str(full_name), "payload": values, **times}
        if paused is not None:
            fields["paused"] = paused
        body = validated(ScheduleRequest, fields)
        room_id = task_room(room or self._submits.room, full_name)

        def make(key: str) -> calls.Call[ScheduleResponse]:
            return calls.call(ops.PUT_SCHEDULE, body, key=key, room_id=room_id, schedule=name)

        return self._rest.run(send_once(f"Writing schedule {name}", make, None, self._rule))

    def all(self, room: str | None = None) -> list[ScheduleResponse]:
        """Return the schedules of a room, by name."""
        schedules: list[ScheduleResponse] = []
        while True:
            query = {"limit": MAX_PAGE, "offset": len(schedules)}
            call = calls.call(ops.LIST_SCHEDULES, query=query, room_id=room or self._room)
            page = self._rest.run(read(call, "Listing schedules", self._rule))
            schedules += page.items
            if not page.items or len(schedules) >= page.total:
                return schedules

    def get(self, name: str, *, room: str | None = None, next: int = 0) -> ScheduleResponse:
        """Return a schedule, with its `next` following due times. Raises `ScheduleNotFound`."""
        room_id = room or self._room
        call = calls.call(ops.GET_SCHEDULE, query={"next": next}, room_id=room_id, schedule=name)
        return self._rest.run(read(call, f"Reading schedule {name}", self._rule))

    def next(self, name: str, count: int = 5, *, room: str | None = None) -> list[datetime]:
        """Return the next due times of a schedule, at most 100. Raises `ScheduleNotFound`."""
        schedule = self.get(name, room=room, next=count)
        return schedule.next or []

    def pause(self, name: str, *, room: str | None = None) -> ScheduleResponse:
        """Pause a schedule. Raises `ScheduleNotFound`."""
        return self._update(name, room, paused=True)

    def resume(self, name: str, *, room: str | None = None) -> ScheduleResponse:
        """Resume a schedule; what was due meanwhile follows its `catch_up`. Raises `ScheduleNotFound`."""
        return self._update(name, room, paused=False)

    def run(self, name: str, *, room: str | None = None) -> TaskResponse:
        """Submit a task of a schedule now, and return it. Raises `ScheduleNotFound`."""
        room_id = room or self._room

        def make(key: str) -> calls.Call[TaskResponse]:
            return calls.call(ops.RUN_SCHEDULE, key=key, room_id=room_id, schedule=name)

        return self._rest.run(send_once(f"Running schedule {name}", make, None, self._rule))

    def delete(self, name: str, *, room: str | None = None) -> None:
        """Delete a schedule; its tasks stay. Raises `ScheduleNotFound`."""
        room_id = room or self._room

        def make(key: str) -> calls.Call[None]:
            return call_reading(ops.DELETE_SCHEDULE, check_empty, key=key, room_id=room_id, schedule=name)

        self._rest.run(send_once(f"Deleting schedule {name}", make, None, self._rule))

    def _update(self, name: str, room: str | None, *, paused: bool) -> ScheduleResponse:
        body = ScheduleUpdate(paused=paused)
        room_id = room or self._room

        def make(key: str) -> calls.Call[ScheduleResponse]:
            return calls.call(ops.UPDATE_SCHEDULE, body, key=key, room_id=room_id, schedule=name)

        what = f"{'Pausing' if paused else 'Resuming'} schedule {name}"
        return self._rest.run(send_once(what, make, None, self._rule))
