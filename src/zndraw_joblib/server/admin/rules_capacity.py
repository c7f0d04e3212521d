"""How much of the limits of the whole queue is used: of pending tasks, and of stored results."""

import math
from shlex import quote
from typing import NamedTuple

from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.process.settings import JobLibSettings
from zndraw_joblib.server.queue import sql_results
from zndraw_joblib.wire.operators import Finding, Severity

PENDING_TASKS, STORED_RESULTS = "max_pending_tasks", "max_stored_result_bytes"
# From these parts of a limit on it is a finding.
_NEAR, _ALMOST_REACHED = 0.8, 0.95
_MIB = 1024 * 1024


class Limits(NamedTuple):
    """The limits in the settings of a server; `user_result_bytes` is the share of one user."""

    pending_tasks: int
    result_bytes: int
    user_result_bytes: int


class Usage(NamedTuple):
    """How much is used of each limit. `user` has the most bytes of results, `user_result_bytes`."""

    pending_tasks: int
    result_bytes: int
    user: str | None = None
    user_result_bytes: int = 0


def limits_of(settings: JobLibSettings) -> Limits:
    """Return the limits that a server has now."""
    return Limits(
        settings.max_pending_tasks,
        settings.max_stored_result_bytes,
        settings.share_of_setting(STORED_RESULTS),
    )


async def read(tx: Transaction, pending: int) -> Usage:
    """Return how much is used, with the number of pending tasks that the caller has read."""
    user, size = await sql_results.largest_share(tx) or (None, 0)
    return Usage(pending, await sql_results.total(tx), user, size)


def ratios(usage: Usage, limits: Limits) -> dict[str, float]:
    """Return which part of each limit is used, by its setting."""
    return {
        PENDING_TASKS: usage.pending_tasks / limits.pending_tasks,
        STORED_RESULTS: usage.result_bytes / limits.result_bytes,
    }


def findings(usage: Usage, limits: Limits) -> list[Finding]:
    """Return which limits are reached or nearly so: of a user's results only if that of all is not."""
    used = ratios(usage, limits)
    listed = []
    if used[PENDING_TASKS] >= _NEAR:
        listed.append(_pending_tasks(used[PENDING_TASKS], usage, limits))
    if used[STORED_RESULTS] >= _NEAR:
        listed.append(_stored_results(used[STORED_RESULTS], usage, limits))
    elif (share := usage.user_result_bytes / limits.user_result_bytes) >= _NEAR:
        listed.append(_results_of_user(share, usage, limits))
    return listed


class UserShare(NamedTuple):
    """The user with the most pending tasks, how many these are, and how many one user may have."""

    user: str
    pending_tasks: int
    allowed: int


def near(share: int) -> int:
    """Return from which number on the share of a user is nearly used."""
    return math.ceil(_NEAR * share)


def share_findings(share: UserShare | None) -> list[Finding]:
    """Return that a user has nearly as many pending tasks as one user may have."""
    if share is None or share.pending_tasks < near(share.allowed):
        return []
    return [
        Finding(
            code="pending-tasks-near-limit",
            severity=Severity.WARNING,
            detail=f"User {share.user} has {share.pending_tasks:,} pending tasks: "
            f"{share.pending_tasks / share.allowed:.0%} of the {share.allowed:,} that one user may have "
            f"(max_share_per_user of {PENDING_TASKS}). Beyond it this user's submits get 429.",
            remedy=f"Ask the user, or cancel tasks that are not needed (zndraw-joblib tasks bulk cancel "
            f"--all-rooms --created-by {quote(share.user)} --status pending), or raise {PENDING_TASKS}.",
            count=share.pending_tasks,
        )
    ]


def _severity(ratio: float) -> Severity:
    return Severity.CRITICAL if ratio >= _ALMOST_REACHED else Severity.WARNING


def _pending_tasks(ratio: float, usage: Usage, limits: Limits) -> Finding:
    return Finding(
        code="pending-tasks-near-limit",
        severity=_severity(ratio),
        detail=f"{usage.pending_tasks:,} tasks are pending, with scheduled ones: {ratio:.0%} of the "
        f"{limits.pending_tasks:,} that {PENDING_TASKS} allows. Beyond it submits get 503.",
        remedy=f"Add workers, cancel tasks that are not needed, or raise {PENDING_TASKS}.",
        count=usage.pending_tasks,
    )


def _stored_results(ratio: float, usage: Usage, limits: Limits) -> Finding:
    return Finding(
        code="result-store-near-limit",
        severity=_severity(ratio),
        detail=f"Stored results have {_size(usage.result_bytes)}: {ratio:.0%} of the "
        f"{_size(limits.result_bytes)} that {STORED_RESULTS} allows. Beyond it uploads get 507, and "
        "their tasks fail.",
        remedy="Purge tasks whose results are not needed, lower task_result_days, or raise the limit.",
    )


def _results_of_user(ratio: float, usage: Usage, limits: Limits) -> Finding:
    return Finding(
        code="result-store-near-limit",
        severity=Severity.WARNING,
        detail=f"Stored results of user {usage.user} have {_size(usage.user_result_bytes)}: {ratio:.0%} of "
        f"the {_size(limits.user_result_bytes)} that one user may have (max_share_per_user of "
        f"{STORED_RESULTS}). Beyond it uploads of this user's tasks get 507, and the tasks fail.",
        remedy=f"Purge tasks of this user whose results are not needed, or raise {STORED_RESULTS}.",
    )


def _size(number: int) -> str:
    return f"{number:,} bytes" if number < 10 * _MIB else f"{number / _MIB:,.0f} MiB"
