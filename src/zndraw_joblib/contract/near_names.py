"""Name the jobs that a caller may have meant."""

from collections.abc import Sequence
from difflib import get_close_matches

from zndraw_joblib.contract.names import JobName

_MAX_NAMES = 10


def missing_text(what: str, name: str, room: str, seen: Sequence[JobName]) -> str:
    """Return the text of an error for a job that a room does not see, with the nearest names that it sees."""
    if not seen:
        return (
            f"{what}: no worker has registered a job that room {room!r} sees. "
            "Start a worker with 'zndraw-joblib worker FILE', or name another room"
        )
    by_name = {job.name: str(job) for job in reversed(seen)}
    near = [by_name[each] for each in get_close_matches(name.rpartition(":")[2], by_name, n=3)]
    more = ", ..." if len(seen) > _MAX_NAMES else ""
    known = f"Room {room!r} sees {', '.join(map(str, seen[:_MAX_NAMES]))}{more}"
    hint = f"Did you mean {' or '.join(near)}?" if near else f"{known}."
    return f"{what}. {hint} Check the name, start a worker that serves the job, or name another room"
