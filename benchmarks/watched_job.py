"""A job that reports progress and writes a log line, for `zndraw-joblib worker`."""

from zndraw_joblib import TaskContext, job


@job(name="Work", category="modifiers")
def work(task: TaskContext, angle: float = 0.0, name: str = "") -> None:
    """Report progress and log a line."""
    task.progress(1, 2)
    task.log(f"half of {name}")
