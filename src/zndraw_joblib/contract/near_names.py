"""Name the jobs and the fields that a caller may have meant."""

from collections.abc import Collection, Iterable, Sequence
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


def unknown_text(what: str, unknown: Iterable[str], known: Collection[str]) -> str:
    """Return the text of an error for keywords that something does not have, with the nearest known ones."""
    near = {name: _near_text(name, known) for name in sorted(unknown)}
    named = "; ".join(f"{name!r}{text}" for name, text in near.items())
    return f"{what} has no {named}" + ("" if all(near.values()) else f". It has {', '.join(known)}")


def _near_text(name: str, known: Collection[str]) -> str:
    near = [each for each in known if name.startswith(each) or each.startswith(name)]
    near = near or get_close_matches(name, known, n=1)
    return f" (did you mean {' or '.join(map(repr, near))}?)" if near else ""
