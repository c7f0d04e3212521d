"""The job of the conformance kit of workers: `docs/reference/worker-protocol.md` says what it does.

python -m zndraw_joblib.testing.conformance --command "zndraw-joblib worker examples/conformance.py"
"""

from typing import Any

from zndraw_joblib import NonRetryable, TaskContext, job


@job
def conformance(  # noqa: PLR0913, PLR0917 - one parameter for each field of the payload
    task: TaskContext,
    value: Any = None,
    seconds: float = 0,
    size: int = 0,
    error: str = "",
    final: bool = False,
    steps: int = 0,
    log: str = "",
) -> Any:
    """Do what the payload says."""
    if log:
        task.log(log)
    for step in range(1, steps + 1):
        task.progress(step, steps)
    if task.cancelled.wait(seconds):
        return None
    if error:
        raise NonRetryable(error) if final else RuntimeError(error)
    return b"x" * size if size else value
