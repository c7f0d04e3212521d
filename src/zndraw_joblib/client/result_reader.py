"""Read the results of tasks, also those that are stored as bytes."""

import logging
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID, uuid4

from zndraw_joblib.client.rest import Download, TaskRest
from zndraw_joblib.client.retry import RetryRule, is_unreachable, retry
from zndraw_joblib.client.waiting import read_result
from zndraw_joblib.contract.progress import StoredResult

log = logging.getLogger(__name__)

T = TypeVar("T")


class ResultReader:
    """A client that reads the results of tasks. It repeats its requests while there is no server."""

    _rest: TaskRest
    _rule: RetryRule

    def result(self, task_id: str | UUID) -> Any:
        """Return the result of a task as the value that its job returned, where its encoding says so.

        Content that was uploaded is returned as bytes, except JSON and arrays (``application/x-npy``).
        Raises `ResultNotFound` for a task that has no result (yet), and `ResultExpired`.
        """
        return self._rest.run(read_result(str(task_id), self._rule))

    def download_result(self, task_id: str | UUID, path: str | os.PathLike[str]) -> StoredResult:
        """Write the result of a task to a file, without reading it into memory; return what it is.

        After an interruption it continues where it stopped. A file at `path` is replaced when all bytes are
        there. Raises as `result`.
        """
        target = Path(path)
        draft = target.with_name(f".{target.name}.{uuid4().hex[:8]}.part")
        try:
            with draft.open("wb") as file:
                load = partial(self._rest.load_task_result, str(task_id), Download(file))
                stored = self._retry(load, f"Downloading the result of task {task_id}")
            draft.replace(target)
        finally:
            draft.unlink(missing_ok=True)
        return stored

    def _retry(self, call: Callable[[], T], what: str) -> T:
        never = threading.Event()
        return retry(call, what, seconds=30.0, stop=never, is_retryable=is_unreachable)
