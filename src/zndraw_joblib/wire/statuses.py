"""The state machine of a task: one table of transitions, and the roles that may request each.

No code outside this file decides which transitions exist. The server makes some of them alone: by a rule (a
timeout, the job's policy), or because a client requested the action `release`, `retry` or `fail`.
"""

from enum import StrEnum
from types import MappingProxyType

from zndraw_joblib.wire.bodies import ResponseBody


class TaskStatus(StrEnum):
    """The status of a task; the value is the one on the wire and in the database."""

    PENDING = "pending"
    CLAIMED = "claimed"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class StatusCounts(ResponseBody):
    """How many tasks have each status. They are kept counts, so reading them scans no tasks."""

    pending: int = 0
    claimed: int = 0
    running: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0


class Role(StrEnum):
    """A role that a client has towards a task."""

    SUBMITTER = "submitter"
    WORKER = "worker"
    SUPERUSER = "superuser"
    SERVER = "server"


_PENDING, _CLAIMED, _RUNNING, _COMPLETED, _FAILED, _CANCELLED = TaskStatus
_ANY_CLIENT = frozenset({Role.SUBMITTER, Role.WORKER, Role.SUPERUSER})
_SERVER = frozenset({Role.SERVER})
_HOLDER = frozenset({Role.WORKER, Role.SUPERUSER})

TERMINAL = frozenset({_COMPLETED, _FAILED, _CANCELLED})
HELD = frozenset({_CLAIMED, _RUNNING})

TRANSITIONS = MappingProxyType(
    {
        (_PENDING, _CLAIMED): _SERVER,
        (_PENDING, _CANCELLED): frozenset({Role.SUBMITTER, Role.SUPERUSER}),
        (_PENDING, _FAILED): _SERVER,
        (_CLAIMED, _PENDING): _HOLDER | {Role.SERVER},
        (_RUNNING, _PENDING): _HOLDER | {Role.SERVER},
        (_FAILED, _PENDING): _SERVER,
        (_CANCELLED, _PENDING): _SERVER,
        (_CLAIMED, _RUNNING): _HOLDER,
        (_CLAIMED, _FAILED): _HOLDER | {Role.SERVER},
        (_CLAIMED, _CANCELLED): _ANY_CLIENT,
        (_RUNNING, _COMPLETED): _HOLDER,
        (_RUNNING, _FAILED): _HOLDER | {Role.SERVER},
        (_RUNNING, _CANCELLED): _ANY_CLIENT,
    }
)


def targets(source: TaskStatus) -> list[TaskStatus]:
    """Return the statuses that a report can set after `source`, in the order of `TaskStatus`."""
    return [target for target in TaskStatus if TRANSITIONS.get((source, target), _SERVER) != _SERVER]


def may_move(roles: frozenset[Role], source: TaskStatus, target: TaskStatus) -> bool:
    """Return whether a client with `roles` may move a task from `source` to `target`."""
    return not roles.isdisjoint(TRANSITIONS.get((source, target), ()))
