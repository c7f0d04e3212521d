"""A job that submits others, for `zndraw-joblib worker examples/trees.py`.

zndraw-joblib submit campaign parts=4 --tag tuesday --wait
zndraw-joblib tasks --root TASK
zndraw-joblib tasks --tag campaign
zndraw-joblib cancel TASK --tree
"""

from zndraw_joblib import TaskContext, job


@job
def part(number: int) -> int:
    """Compute one part."""
    return number**2


@job
def campaign(task: TaskContext, parts: int = 3) -> list[str]:
    """Submit a task for each part, below this one; they run after it, or beside it on other workers."""
    return [task.submit("part", {"number": number}, tags=["campaign"]) for number in range(parts)]
