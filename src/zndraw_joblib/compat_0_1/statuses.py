"""The state machine of version 0.1.x: the changes of status that a client could see."""

from zndraw_joblib.wire.statuses import TERMINAL, TaskStatus, targets

TERMINAL_STATUSES = set(TERMINAL)
# A claim is no report, so it is not among the targets.
VALID_TRANSITIONS = {source: set(targets(source)) for source in TaskStatus}
VALID_TRANSITIONS[TaskStatus.PENDING].add(TaskStatus.CLAIMED)
