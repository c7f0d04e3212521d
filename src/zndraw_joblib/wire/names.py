"""Room ids, full names of jobs and providers (``room:category:name``), and the header `Idempotency-Key`."""

import re
from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches
from functools import lru_cache
from typing import NamedTuple

from zndraw_joblib.wire.problems import (
    InvalidIdempotencyKey,
    InvalidRoomId,
    JobNotFound,
    NotFound,
    ProviderNotFound,
)

GLOBAL = "@global"
INTERNAL = "@internal"
RESERVED = frozenset({GLOBAL, INTERNAL})
# The id of the caller where a host's own code calls the queue for no user.
HOST = "@host"
# No user has one of these ids.
RESERVED_IDS = frozenset({INTERNAL, HOST})
# The category of jobs that are functions, unless they name another.
DEFAULT_CATEGORY = "jobs"
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


def short_name(full_name: str) -> str:
    """Return the name of a job without the room that serves all rooms and the category of functions."""
    return full_name.removeprefix(f"{GLOBAL}:").removeprefix(f"{DEFAULT_CATEGORY}:")


def task_room(room: str | None, job: JobName) -> str:
    """Return the room of a task: the given one, or the job's own, or `DEFAULT_ROOM` for a common job."""
    return room or (DEFAULT_ROOM if job.room_id in RESERVED else job.room_id)


def is_name(text: str) -> bool:
    """Return whether `text` may be a category or the last part of a full name."""
    return len(text) <= MAX_NAME_LENGTH and _NAME.fullmatch(text) is not None


@lru_cache(maxsize=1024)
def split_name(full_name: str) -> JobName:
    """Split the full name of a job that exists."""
    return JobName(*full_name.split(":", 2))


@lru_cache(maxsize=1024)
def parse_job_name(full_name: str) -> JobName:
    """Split the full name of a job. Raises `JobNotFound` if no job can have that name."""
    return _parse(full_name, "Job", JobNotFound)


def parse_reference(text: str) -> JobName | tuple[str | None, str]:
    """Return the job that a full name names, or the category and name of ``category:name`` or ``name``.

    Raises `JobNotFound` if no job can have that name.
    """
    if text.count(":") > 1:
        return parse_job_name(text)
    category, _, name = text.rpartition(":")
    return category or None, name


def parse_provider_name(full_name: str) -> JobName:
    """Split the full name of a provider. Raises `ProviderNotFound` if no provider can have that name."""
    return _parse(full_name, "Provider", ProviderNotFound)


def rooms_with_frames(full_names: Iterable[str]) -> set[str]:
    """Return the rooms of the providers that have the category ``frames``."""
    return {name.room_id for name in map(parse_provider_name, full_names) if name.category == _FRAMES}


def _parse(full_name: str, what: str, missing: type[NotFound]) -> JobName:
    parts = full_name.split(":", 2)
    if len(parts) != len(JobName._fields):
        text = f"Invalid {what.lower()} name format: {full_name[:200]!r} is not room:category:name"
        example = f"{GLOBAL}:{DEFAULT_CATEGORY}:{full_name}"
        raise missing(f"{text}, such as {example}" if is_name(full_name) else text)
    name = JobName(*parts)
    if not (_is_room(name.room_id) and is_name(name.category) and is_name(name.name)):
        raise missing(f"{what} {full_name[:400]!r} not found")
    return name


@lru_cache(maxsize=1024)
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


# Name the jobs and the fields that a caller may have meant.

_MAX_NAMES = 10


def missing_text(what: str, name: str, room: str, seen: Sequence[JobName]) -> str:
    """Return the text of an error for a job that a room does not see, with the nearest names that it sees."""
    if not seen:
        return (
            f"{what}: no worker serves a job that room {room!r} sees. "
            "Start a worker with 'zndraw-joblib worker FILE', or name another room"
        )
    by_name = {job.name: str(job) for job in reversed(seen)}
    near = [by_name[match] for match in get_close_matches(name.rpartition(":")[2], by_name, n=3)]
    more = ", ..." if len(seen) > _MAX_NAMES else ""
    visible = f"Room {room!r} sees {', '.join(map(str, seen[:_MAX_NAMES]))}{more}"
    hint = f"Did you mean {' or '.join(near)}?" if near else f"{visible}."
    return f"{what}. {hint} Check the name, start a worker that serves the job, or name another room"


def unknown_text(what: str, unknown: Iterable[str], names: Collection[str]) -> str:
    """Return the text of an error for keywords that something does not have, with the nearest known ones."""
    near = {name: near_text(name, names) for name in sorted(unknown)}
    named = "; ".join(f"{name!r}{text}" for name, text in near.items())
    return f"{what} has no {named}" + ("" if all(near.values()) else f". It has {', '.join(names)}")


# The options of other queues (Celery, RQ, Dramatiq, arq) whose names are not near to ours.
_ELSEWHERE = {
    **dict.fromkeys(("acks_late", "max_retries", "max_tries", "retries", "retry"), "max_attempts"),
    **dict.fromkeys(("job_timeout", "soft_time_limit", "time_limit"), "timeout_seconds"),
    **dict.fromkeys(("countdown", "defer_by"), "delay_seconds"),
    **dict.fromkeys(("defer_until", "eta"), "run_at"),
    **dict.fromkeys(("expires", "ttl"), "expires_in_seconds"),
    **dict.fromkeys(("cron", "crontab"), "schedule"),
    **dict.fromkeys(("queue", "queue_name"), "requires"),
    "default_retry_delay": "backoff",
    "depends_on": "after",
    "rate_limit": "limits",
    "retry_backoff": "backoff",
}


def near_text(name: str, names: Collection[str]) -> str:
    """Return a question that names what may be meant, in parentheses; "" if nothing is near."""
    near = [_ELSEWHERE[name]] if _ELSEWHERE.get(name) in names else []
    near = near or get_close_matches(name, names, n=1, cutoff=0.9)
    near = near or [other for other in names if name.startswith(other) or other.startswith(name)]
    near = near or get_close_matches(name, names, n=1)
    return f" (did you mean {' or '.join(map(repr, near))}?)" if near else ""


# The header `Idempotency-Key`: the server applies requests with the same key once.

IDEMPOTENCY_KEY = "Idempotency-Key"
MAX_KEY_LENGTH = 255
# A quoted string of RFC 8941, and a token without quotes, such as a UUID.
_STRING = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"')
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~:/=-]+")
_TEXT = re.compile(r"[ -~]+")


def parse_key(text: str) -> str:
    """Return the key in a header's value. Raises `InvalidIdempotencyKey`."""
    stripped = text.strip(" \t")
    quoted = _STRING.fullmatch(stripped)
    if quoted is None and not _TOKEN.fullmatch(stripped):
        raise InvalidIdempotencyKey(
            f"header.{IDEMPOTENCY_KEY}: {text[:100]!r} is not a quoted string like "
            '"8e03978e-40d5-43e8-bc93-6894a57f9324", nor a token like a UUID'
        )
    key = stripped if quoted is None else re.sub(r"\\(.)", r"\1", quoted[1])
    _check_length(key)
    return key


def format_key(key: str) -> str:
    """Return the header's value for a key. Raises `InvalidIdempotencyKey`."""
    _check_length(key)
    if not _TEXT.fullmatch(key):
        raise InvalidIdempotencyKey(
            f"header.{IDEMPOTENCY_KEY}: {key[:100]!r} has characters other than printable ASCII; remove them"
        )
    return '"' + re.sub(r'(["\\])', r"\\\1", key) + '"'


def _check_length(key: str) -> None:
    if not 0 < len(key) <= MAX_KEY_LENGTH:
        raise InvalidIdempotencyKey(
            f"header.{IDEMPOTENCY_KEY}: the key has {len(key)} characters; send 1 to {MAX_KEY_LENGTH}"
        )
