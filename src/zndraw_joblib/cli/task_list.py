"""Lists of tasks, as rows of a table."""

from collections.abc import Sequence
from datetime import UTC, datetime

from zndraw_joblib.cli.display import Row, print_rows
from zndraw_joblib.cli.table import Layout
from zndraw_joblib.contract.messages import TaskResponse
from zndraw_joblib.contract.searches import FoundTask
from zndraw_joblib.contract.status import TaskStatus

LAYOUT = Layout(wide=["job", "error"], ids=["task"], optional=["took", "created", "room"])


def columns_of(*, with_rooms: bool) -> list[str]:
    """Return the columns of a list of tasks."""
    return ["task", "job", *(["room"] if with_rooms else []), "status", "created", "took", "error"]


def print_tasks(tasks: Sequence[TaskResponse | FoundTask], *, with_rooms: bool, caption: str) -> None:
    """Print a table of tasks."""
    print_rows([row_of(task) for task in tasks], columns_of(with_rooms=with_rooms), LAYOUT, caption=caption)


def row_of(task: TaskResponse | FoundTask) -> Row:
    """Return the cells of a task."""
    until = datetime.now(UTC) if task.status == TaskStatus.RUNNING else task.completed_at
    took = until - task.started_at if task.started_at and until else None
    return {
        "task": task.id,
        "job": task.job_name,
        "room": task.room_id,
        "status": task.status,
        "created": task.created_at,
        "took": took,
        "error": task.error,
    }
