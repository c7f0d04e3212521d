"""The methods of `JobLib` for groups of tasks."""

import math
import time
from collections.abc import Mapping
from typing import Any, Literal, cast
from uuid import UUID

from pydantic import ValidationError

from zndraw_joblib.jobs import codecs
from zndraw_joblib.server.host.operators import identity_of, job_name
from zndraw_joblib.server.host.webhooks import WebhookApi
from zndraw_joblib.server.http.access import QueueState
from zndraw_joblib.server.http.groups import checked_group
from zndraw_joblib.server.queue import rules_groups
from zndraw_joblib.server.runtime.problem_responses import invalid_part
from zndraw_joblib.wire.groups import GroupResponse, NewGroup
from zndraw_joblib.wire.names import validate_room_id
from zndraw_joblib.wire.problems import InvalidRequest, ServiceUnavailable


class GroupApi(WebhookApi):
    """What a host's code calls for groups. `identity` and `session` are as in `HostApi`.

    Submit tasks to a group with ``submit(…, group=group.id)`` or ``submit_many(…, group=group.id)``.
    """

    async def create_group(  # noqa: PLR0913 - one keyword for each field
        self,
        room: str,
        name: str | None = None,
        *,
        on_end: Any = None,
        payload: Mapping[str, Any] | None = None,
        when: Literal["ended", "completed"] = "ended",
        expires_in_seconds: float | None = None,
        job_room: str | None = None,
        identity: Any = None,
        session: Any = None,
    ) -> GroupResponse:
        """Create a group in a room, and return it. Seal it after its last task with `seal_group`.

        `on_end` is the job of the task that is submitted at the end of the group, as the user `identity`: a
        full name, or an `Extension` class; or an instance, which is its own payload. `payload` may have
        ``{"$group": "results"}`` and ``{"$group": "counts"}``. The job must be there before the `session`.
        Raises the problems of ``POST /groups``.
        """
        caller, room_id = identity_of(identity), validate_room_id(room)
        fields: dict[str, Any] = {"name": name, "expires_in_seconds": expires_in_seconds}
        if on_end is not None:
            fields["on_end"] = {**_on_end(on_end, payload, self._room_of(on_end, job_room)), "when": when}
        elif payload is not None:
            raise TypeError("payload: it is that of the task of on_end; pass on_end too")
        try:
            new = NewGroup.model_validate({key: value for key, value in fields.items() if value is not None})
        except ValidationError as error:
            raise invalid_part(error) from error
        item = await checked_group(cast("QueueState", self), caller, room_id, new)
        if session is None:
            return await self.runtime.write(rules_groups.create, item)
        return cast("GroupResponse", await self._write(session, rules_groups.create, item))

    async def seal_group(self, group_id: UUID | str, *, session: Any = None) -> GroupResponse:
        """Let no more tasks be added, and return the group. It ends when all its tasks have ended.

        One whose tasks have all ended, or that has none, ends at once. Raises `GroupNotFound`.
        """
        if session is None:
            return await self.runtime.write(rules_groups.seal, _id(group_id))
        return cast("GroupResponse", await self._write(session, rules_groups.seal, _id(group_id)))

    async def get_group(self, group_id: UUID | str, *, session: Any = None) -> GroupResponse:
        """Return a group with its counts, progress and first failures. Raises `GroupNotFound`."""
        if session is None:
            return await self.runtime.get_group(_id(group_id))
        return cast("GroupResponse", await self._read(session, rules_groups.get, _id(group_id)))

    async def wait_for_group(self, group_id: UUID | str, timeout: float | None = None) -> GroupResponse:
        """Wait for the end of a group, and return it. It holds no database session while it waits.

        Raises TimeoutError if it has not ended after `timeout` seconds, by default never, `GroupNotFound`,
        and `ServiceUnavailable` if the server stops. It does not count as a waiting request.
        """
        deadline = time.monotonic() + (math.inf if timeout is None else timeout)
        group = await self.runtime.get_group(_id(group_id), deadline - time.monotonic())
        if rules_groups.has_ended(group):
            return group
        if time.monotonic() < deadline:
            raise ServiceUnavailable("The server is stopping: it no longer waits for the group")
        raise TimeoutError(f"Group {group_id} has not ended after {timeout:g} s")


def _on_end(job: Any, payload: Mapping[str, Any] | None, job_room: str | None) -> dict[str, Any]:
    name = job_name(job, job_room)
    if isinstance(job, str | type):
        return {"job": str(name), "payload": codecs.plain_payload(payload)}
    if payload is not None:
        raise TypeError(
            f"payload: the instance of {type(job).__name__} is its own payload; leave payload out"
        )
    return {"job": str(name), "payload": codecs.payload_of(job)}


def _id(group_id: UUID | str) -> UUID:
    try:
        return group_id if isinstance(group_id, UUID) else UUID(group_id)
    except ValueError as error:
        raise InvalidRequest(f"group_id: {group_id!r:.100} is not a UUID") from error
