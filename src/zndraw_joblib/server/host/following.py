"""Follow the events of a room or of a task in the host's own process."""

from collections.abc import AsyncGenerator, Iterator
from uuid import UUID

from zndraw_joblib.contract.messages import TaskResponse
from zndraw_joblib.contract.streams import Resync, RoomSnapshot, StreamEvent
from zndraw_joblib.server.ports import Identity
from zndraw_joblib.server.runtime import Runtime
from zndraw_joblib.server.service.streams import Part
from zndraw_joblib.server.streams.streams import Streams

HostEvent = TaskResponse | RoomSnapshot | Resync | StreamEvent
# An event ends the wait at once; this bounds the time after which a lost one is found.
_WAIT_SECONDS = 15.0


async def follow(
    streams: Streams,
    runtime: Runtime,
    caller: Identity,
    *,
    room_id: str | None = None,
    task_id: UUID | None = None,
    after: int | None = None,
) -> AsyncGenerator[HostEvent]:
    """Yield what happens to the tasks of a room, or to one task until it ends."""
    if task_id is not None:
        room_id = (await runtime.get_task(task_id)).room_id
    if room_id is None:
        raise TypeError("events: pass task_id or room")
    async with streams.reader(caller, room_id, task_id) as reader:
        while True:
            part = await streams.read(reader, room_id, after)
            for each in _items(part):
                yield each
            if part.ended or reader.is_closed:
                return
            after = part.next
            if part.is_last:
                await reader.wait(_WAIT_SECONDS)


def _items(part: Part) -> Iterator[HostEvent]:
    if part.resync is not None:
        yield part.resync
    if part.snapshot is not None:
        yield part.snapshot
    for item in part.events:
        yield StreamEvent.model_validate_json(item.json)
