"""Room ids, and the full names of jobs and providers: ``room:category:name``."""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from zndraw_joblib.contract.problems import InvalidRoomId, JobNotFound, NotFound, ProviderNotFound

GLOBAL = "@global"
INTERNAL = "@internal"
RESERVED = frozenset({GLOBAL, INTERNAL})
# The id of the caller where a host's own code calls the queue for no user.
HOST = "@host"
# No user has one of these ids.
RESERVED_IDS = frozenset({INTERNAL, HOST})
# The room of calls that name none: of the command line, the SDK and the clients.
DEFAULT_ROOM = "default"

# The category of providers whose rooms a host of version 0.1.x cleans up.
_FRAMES = "frames"

MAX_NAME_LENGTH = 128
# Names of classes, modules and versions match; separators of paths, URLs and full names do not.
NAME_PATTERN = r"^\w[\w.\-]*$"
_NAME = re.compile(NAME_PATTERN)


class JobName(NamedTuple):
    """The three parts of the full name of a job, or of a provider."""

    room_id: str
    category: str
    name: str

    def __str__(self) -> str:
        """Return ``room:category:name``."""
        return f"{self.room_id}:{self.category}:{self.name}"


def task_room(room: str | None, job: JobName) -> str:
    """Return the room of a task: the given one, or the job's own, or `DEFAULT_ROOM` for a common job."""
    return room or (DEFAULT_ROOM if job.room_id in RESERVED else job.room_id)


def is_name(text: str) -> bool:
    """Return whether `text` may be a category or the last part of a full name."""
    return len(text) <= MAX_NAME_LENGTH and _NAME.fullmatch(text) is not None


@lru_cache(maxsize=1024)
def parse_job_name(full_name: str) -> JobName:
    """Split the full name of a job. Raises `JobNotFound` if no job can have that name."""
    return _parse(full_name, "Job", JobNotFound)


def parse_provider_name(full_name: str) -> JobName:
    """Split the full name of a provider. Raises `ProviderNotFound` if no provider can have that name."""
    return _parse(full_name, "Provider", ProviderNotFound)


def rooms_with_frames(full_names: Iterable[str]) -> set[str]:
    """Return the rooms of the providers that have the category ``frames``."""
    return {name.room_id for name in map(parse_provider_name, full_names) if name.category == _FRAMES}


def _parse(full_name: str, what: str, missing: type[NotFound]) -> JobName:
    parts = full_name.split(":", 2)
    if len(parts) != len(JobName._fields):
        raise missing(f"Invalid {what.lower()} name format: {full_name[:200]!r} is not room:category:name")
    name = JobName(*parts)
    if not (_is_room(name.room_id) and is_name(name.category) and is_name(name.name)):
        raise missing(f"{what} {full_name[:400]!r} not found")
    return name


def validate_room_id(room_id: str) -> str:
    """Return `room_id` if it is valid. Raises `InvalidRoomId`.

    A room id is ``@global``, ``@internal``, or 1 to 128 printable characters without ``@``, ``:`` and ``/``.
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
    return len(room_id) <= MAX_NAME_LENGTH and _is_short_room(room_id)


@lru_cache(maxsize=1024)
def _is_short_room(room_id: str) -> bool:
    if room_id in RESERVED:
        return True
    if not room_id.strip("."):
        # A proxy would resolve "." and ".." in a path.
        return False
    return room_id.isprintable() and not set(room_id) & set("@:/")
