"""The state machine of a task: one table says who may move it from where to where.

Source: the life cycle of seed 002 (jobs and tasks), and the way back to the queue of seed 004. Nothing
outside this file decides a transition. Where only the server may, it does so by a rule (a clock, a job's
policy) or at the request of somebody who may ask for just that: release, retry, fail.
"""

from enum import StrEnum
from types import MappingProxyType


class TaskStatus(StrEnum):
    """Where a task stands. The value is what the wire and the database carry."""

    PENDING = "pending"
    CLAIMED = "claimed"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Role(StrEnum):
    """Who asks for a transition."""

    SUBMITTER = "submitter"
    WORKER = "worker"
    SUPERUSER = "superuser"
    SERVER = "server"


_PENDING, _CLAIMED, _RUNNING, _COMPLETED, _FAILED, _CANCELLED = TaskStatus
_ANYBODY = frozenset({Role.SUBMITTER, Role.WORKER, Role.SUPERUSER})
_SERVER = frozenset({Role.SERVER})
_HOLDER = frozenset({Role.WORKER, Role.SUPERUSER})

TERMINAL = frozenset({_COMPLETED, _FAILED, _CANCELLED})
HELD = frozenset({_CLAIMED, _RUNNING})

TRANSITIONS = MappingProxyType(
    {
        (_PENDING, _CLAIMED): _SERVER,
        (_PENDING, _CANCELLED): frozenset({Role.SUBMITTER, Role.SUPERUSER}),
        (_PENDING, _FAILED): _SERVER,
        (_CLAIMED, _PENDING): _SERVER,
        (_RUNNING, _PENDING): _SERVER,
        (_FAILED, _PENDING): _SERVER,
        (_CANCELLED, _PENDING): _SERVER,
        (_CLAIMED, _RUNNING): _HOLDER,
        (_CLAIMED, _FAILED): _HOLDER | {Role.SERVER},
        (_CLAIMED, _CANCELLED): _ANYBODY,
        (_RUNNING, _COMPLETED): _HOLDER,
        (_RUNNING, _FAILED): _HOLDER | {Role.SERVER},
        (_RUNNING, _CANCELLED): _ANYBODY,
    }
)


def targets(source: TaskStatus) -> list[TaskStatus]:
    """Return the states that a report can bring about after `source`, in the order of the life cycle."""
    return [target for target in TaskStatus if TRANSITIONS.get((source, target), _SERVER) != _SERVER]


def may_move(roles: frozenset[Role], source: TaskStatus, target: TaskStatus) -> bool:
    """Tell whether somebody with `roles` may move a task from `source` to `target`."""
    return not roles.isdisjoint(TRANSITIONS.get((source, target), ()))
