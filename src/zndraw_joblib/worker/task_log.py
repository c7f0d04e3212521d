"""Log the start and the end of each task of a worker, one line each."""

import logging

from zndraw_joblib.contract.failures import one_line
from zndraw_joblib.contract.logs import task_fields
from zndraw_joblib.worker.execution import Outcome
from zndraw_joblib.worker.tasks import ClaimedTask

log = logging.getLogger(__name__)


def log_start(task: ClaimedTask) -> None:
    """Log that a task starts."""
    if log.isEnabledFor(logging.INFO):
        log.info("Task %s of %s started", task.task_id, task.job_name, extra=task_fields(task))


def log_end(task: ClaimedTask, outcome: Outcome, seconds: float) -> None:
    """Log how a task ended here; a failure with the last line of the job's own code that it passed."""
    is_failure = outcome.error is not None and not task.cancelled.is_set()
    level = logging.ERROR if is_failure else logging.INFO
    if not log.isEnabledFor(level):
        return
    took = f"{seconds:.1f} s" if seconds >= 1 else f"{seconds:.2g} s"
    if task.cancelled.is_set():
        how = f"ended after {took}: it was cancelled"
    elif outcome.error is None:
        how = f"completed in {took}"
    else:
        how = f"failed after {took}: {one_line(outcome.error, outcome.failure)}"
    log.log(level, "Task %s of %s %s", task.task_id, task.job_name, how, extra=task_fields(task))
