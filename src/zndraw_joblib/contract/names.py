"""Rooms and the full names of jobs: ``room:category:name``."""

import re
from typing import NamedTuple

from zndraw_joblib.contract.problems import InvalidRoomId, JobNotFound

GLOBAL = "@global"
INTERNAL = "@internal"
RESERVED = frozenset({GLOBAL, INTERNAL})

MAX_NAME_LENGTH = 128
# What a class, a module or a version may be called; no separator of a path, a URL or a full name.
NAME_PATTERN = r"^\w[\w.\-]*$"
_NAME = re.compile(NAME_PATTERN)


class JobName(NamedTuple):
    """The three parts of a job's full name."""

    room_id: str
    category: str
    name: str

    def __str__(self) -> str:
        """Return ``room:category:name``."""
        return f"{self.room_id}:{self.category}:{self.name}"


def is_name(text: str) -> bool:
    """Tell whether `text` may be a category or a job's own name."""
    return len(text) <= MAX_NAME_LENGTH and _NAME.fullmatch(text) is not None


def parse_job_name(full_name: str) -> JobName:
    """Split a full name into its parts.

    Raises `JobNotFound` where the text cannot be the name of any job.
    """
    parts = full_name.split(":", 2)
    if len(parts) != len(JobName._fields):
        raise JobNotFound(f"Invalid job name format: {full_name[:200]!r} is not room:category:name")
    job = JobName(*parts)
    if not (_is_room(job.room_id) and is_name(job.category) and is_name(job.name)):
        raise JobNotFound(f"Job {full_name[:400]!r} not found")
    return job


def validate_room_id(room_id: str) -> str:
    """Return `room_id` unchanged if it may name a room, else raise `InvalidRoomId`.

    A room is ``@global``, ``@internal``, or 1-128 printable characters without ``@``, ``:`` and ``/``.
    """
    if room_id in RESERVED:
        return room_id
    if not room_id or "@" in room_id or ":" in room_id:
        raise InvalidRoomId(f"Room ID '{room_id[:200]}' contains invalid characters (@ or :)")
    if not _is_room(room_id):
        raise InvalidRoomId(
            f"Room ID {room_id[:200]!r} needs 1 to {MAX_NAME_LENGTH} printable characters, no "
            "slash, and not dots alone"
        )
    return room_id


def _is_room(room_id: str) -> bool:
    if room_id in RESERVED:
        return True
    if not room_id.strip("."):
        # A proxy would take "." and ".." for steps in a path.
        return False
    return len(room_id) <= MAX_NAME_LENGTH and room_id.isprintable() and not set(room_id) & set("@:/")
