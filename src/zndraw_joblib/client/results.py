"""Read the results of tasks without an event loop, also those that are stored as bytes."""

import os
import threading
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import IO, Any
from uuid import UUID, uuid4

from zndraw_joblib.client import calls
from zndraw_joblib.client.flows import read_result
from zndraw_joblib.client.rest import TaskRest
from zndraw_joblib.client.retry import RetryRule, is_unreachable, retry
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.progress import StoredResult


@dataclass(slots=True)
class Download:
    """A file for a result. `etag` is that of the result whose first bytes the file has."""

    file: IO[bytes]
    etag: str = ""

    def load(self, rest: TaskRest, task_id: str) -> StoredResult:
        """Load the result of a task into the file; go on if it has the first bytes of the same result."""
        start = self.file.seek(0, os.SEEK_END)
        headers = {"Accept-Encoding": "identity"}
        if start and self.etag:
            headers |= {"Range": f"bytes={start}-", "If-Range": self.etag}
        call = calls.call_reading(ops.READ_TASK_RESULT, lambda _: None, headers=headers, task_id=task_id)
        with rest.stream(call) as response:
            if response.status_code != HTTPStatus.PARTIAL_CONTENT:
                self.file.truncate(0)
                self.file.seek(0)
                self.etag = response.headers.get("ETag", "")
            for piece in response.iter_bytes():
                self.file.write(piece)
        return calls.stored_of(response, self.file.tell())


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
                stored = self._download(str(task_id), file, f"Downloading the result of task {task_id}")
            draft.replace(target)
        finally:
            draft.unlink(missing_ok=True)
        return stored

    def _download(self, task_id: str, file: IO[bytes], what: str) -> StoredResult:
        load = partial(Download(file).load, self._rest, task_id)
        return retry(load, what, seconds=30.0, stop=threading.Event(), is_retryable=is_unreachable)
