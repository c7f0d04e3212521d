"""List all rooms for operators."""

from zndraw_joblib.contract.operations import RoomEntries, RoomEntry
from zndraw_joblib.server.ports import CursorPage
from zndraw_joblib.server.service import cursors
from zndraw_joblib.server.store import room_list as store
from zndraw_joblib.server.store.database import Transaction
from zndraw_joblib.server.store.tasks import heads, kept

_KIND = "rooms"


async def page(tx: Transaction, part: CursorPage) -> RoomEntries:
    """Return rooms by id, with their counts. Read it in a snapshot."""
    after = "" if part.cursor is None else cursors.decode(_KIND, part.cursor, [str])[0]
    found = await store.page(tx, after, part.limit + 1)
    rooms = found[: part.limit]
    if not rooms:
        return RoomEntries(items=[])
    jobs, (counts, held) = await store.job_counts(tx, rooms), await kept.of_rooms(tx, rooms)
    oldest = await heads.oldest_of_rooms(tx, rooms)
    items = []
    for room_id in rooms:
        of_room = counts.get(room_id, kept.NO_COUNTS)
        share = (of_room.claimed + of_room.running) / held if held else 0.0
        entry = RoomEntry(
            id=room_id,
            counts=of_room,
            jobs=jobs.get(room_id, 0),
            share=share,
            oldest_waiting_at=oldest.get(room_id),
        )
        items.append(entry)
    return RoomEntries(
        items=items, next=cursors.encode(_KIND, rooms[-1]) if len(found) > part.limit else None
    )
