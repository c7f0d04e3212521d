"""Tasks: the only package that writes a task's status, each time with a guard in the WHERE clause."""

from zndraw_joblib.server.store.tasks.read import (
    AttemptRecord,
    attempts_of,
    by_claims,
    by_id,
    finished,
    lock,
    states,
)
from zndraw_joblib.server.store.tasks.records import Condition, Move, Place, TaskRecord, TaskState
from zndraw_joblib.server.store.tasks.write import add, claim, delete_ended, move, prune

__all__ = [
    "AttemptRecord",
    "Condition",
    "Move",
    "Place",
    "TaskRecord",
    "TaskState",
    "add",
    "attempts_of",
    "by_claims",
    "by_id",
    "claim",
    "delete_ended",
    "finished",
    "lock",
    "move",
    "prune",
    "states",
]
