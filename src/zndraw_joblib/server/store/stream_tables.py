"""The tables of the event logs of watched rooms."""

from datetime import datetime
from typing import Any, ClassVar
from uuid import UUID

from sqlalchemy import BigInteger, Column, Index, Text
from sqlmodel import Field

from zndraw_joblib.server.store.column_types import Uuid
from zndraw_joblib.server.store.table_base import Base, moment


def _number(*, is_key: bool = False) -> Any:
    return Field(sa_column=Column(BigInteger, primary_key=is_key, autoincrement=False, nullable=False))


class RoomStream(Base, table=True):
    """A room whose events are recorded, because a client watches it or has watched it until lately.

    Events have the numbers after `last_n`; those up to `first_n` were deleted. `size` is the bytes of all
    events that are kept; writers delete the oldest beyond `max_events` and `max_bytes`. A writer locks the
    row with its last statements, so that numbers follow the order of the commits.
    """

    __tablename__ = "joblib_room_stream"

    room_id: str = Field(primary_key=True, max_length=128)
    first_n: int = _number()
    last_n: int = _number()
    size: int = _number()
    max_events: int
    max_bytes: int = _number()
    watched_until: datetime = moment()
    # The user for whose share the room counts.
    watched_by: str | None = Field(default=None, sa_column=Column(Text, nullable=True))


class RoomEvent(Base, table=True):
    """An event of a watched room: `data` is a JSON object of `size` bytes."""

    __tablename__ = "joblib_room_event"
    __table_args__: ClassVar[Any] = (Index("ix_joblib_room_event_task", "task_id", "n"),)

    room_id: str = Field(primary_key=True, max_length=128)
    n: int = _number(is_key=True)
    task_id: UUID = Field(sa_column=Column(Uuid, nullable=False))
    at: datetime = moment()
    kind: str = Field(max_length=16)
    size: int
    data: str = Field(sa_column=Column(Text, nullable=False))
