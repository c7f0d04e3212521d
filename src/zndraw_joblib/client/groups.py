"""The requests of groups, as flows without I/O."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from zndraw_joblib.client import calls
from zndraw_joblib.client.calls import validated
from zndraw_joblib.client.flows import Flow, group_results, read, send_once, wait_for_group
from zndraw_joblib.client.retry import RetryRule
from zndraw_joblib.client.submits import NewTask, Submits
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.groups import GroupRequest, GroupResponse, GroupUpdate
from zndraw_joblib.wire.problems import ProblemException

_MAX_SHOWN = 100
_SERVER_ERRORS = 500


def parse_group_id(group_id: str | UUID) -> UUID:
    """Return the id of a group. Raises ValueError for a text that is no whole id."""
    try:
        return UUID(str(group_id))
    except ValueError:
        shown = str(group_id)[:_MAX_SHOWN]
        raise ValueError(f"group_id: {shown!r} is not a UUID; pass the whole id of the group") from None


def raise_refused(results: Sequence[object]) -> None:
    """Raise the first problem among the results of submits, with a note that has its place."""
    for number, result in enumerate(results):
        if isinstance(result, ProblemException):
            refused = sum(isinstance(other, ProblemException) for other in results)
            result.add_note(f"It is item {number}; {len(results) - refused} of {len(results)} were submitted")
            raise result


def is_refusal(error: BaseException | None) -> bool:
    """Return whether the server, or the client for it, has refused a request for good."""
    return isinstance(error, ProblemException) and error.status < _SERVER_ERRORS


@dataclass(frozen=True, slots=True)
class NewGroupTask:
    """A group to make in a room, with the task to submit `on_end`, and the requests of one that exists."""

    rule: RetryRule
    room: str
    name: str | None = None
    on_end: Any = None
    when: str = "ended"
    expires_in_seconds: float | None = None

    def create(self, submits: Submits) -> Flow[GroupResponse]:
        """Make the group. Raises ValueError for invalid fields, and `JobNotFound`."""
        fields: dict[str, Any] = {"room": self.room, "name": self.name}
        fields["expires_in_seconds"] = self.expires_in_seconds
        if self.on_end is not None:
            task = self.on_end if isinstance(self.on_end, NewTask) else NewTask(self.on_end, room=self.room)
            name, payload = yield from submits.name_and_payload(task)
            fields["on_end"] = {"job": str(name), "payload": payload, "when": self.when}
        body = validated(GroupRequest, {key: value for key, value in fields.items() if value is not None})

        def make(key: str) -> calls.Call[GroupResponse]:
            return calls.call(ops.CREATE_GROUP, body, key=key)

        return (yield from send_once("Creating a group", make, None, self.rule))

    def seal(self, group_id: UUID) -> Flow[GroupResponse]:
        """Let no more tasks be added."""

        def make(key: str) -> calls.Call[GroupResponse]:
            return calls.call(ops.UPDATE_GROUP, GroupUpdate(sealed=True), key=key, group_id=group_id)

        return (yield from send_once(f"Sealing group {group_id}", make, None, self.rule))

    def seal_if_empty(self, group_id: UUID) -> Flow[None]:
        """Seal a group that has no tasks and no `on_end`: it ends. After an error it stays open."""
        with suppress(ProblemException, OSError):
            group = yield from self.read(group_id)
            if group.total == 0 and group.on_end is None:
                yield from self.seal(group_id)

    def read(self, group_id: UUID) -> Flow[GroupResponse]:
        """Return the group as it is now."""
        group, _ = yield from read(calls.get_group(group_id), f"Reading group {group_id}", self.rule)
        return group

    def wait(
        self, group_id: UUID, timeout: float | None, *, show: Callable[[GroupResponse], object] | None
    ) -> Flow[GroupResponse]:
        """Wait for the end of the group. `show` gets each change."""
        return (yield from wait_for_group(group_id, timeout, self.rule, show=show))

    def results(self, group: GroupResponse, *, return_exceptions: bool) -> Flow[list[Any]]:
        """Return the results of its tasks, in the order of submission. Raises `ResultExpired`."""
        return (yield from group_results(group, self.rule, return_exceptions=return_exceptions))
