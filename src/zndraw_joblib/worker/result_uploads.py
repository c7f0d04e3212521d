"""Upload results that do not fit into a report, before the report and in the thread of the task."""

import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from zndraw_joblib.client.retry import describe, is_missing, is_transient, problem_of, retry, status_of
from zndraw_joblib.contract.logs import task_fields
from zndraw_joblib.contract.outcomes import error_text
from zndraw_joblib.contract.problems import ResultStoreFull, TaskNotFound
from zndraw_joblib.contract.results import Content
from zndraw_joblib.worker.execution import Outcome
from zndraw_joblib.worker.rest import RestApi
from zndraw_joblib.worker.tasks import ClaimedTask

log = logging.getLogger(__name__)

# As long as a report: a result that does not arrive is work done twice.
_RETRY_SECONDS = 900.0
_CONFLICT = 409


class ResultUploads:
    """Uploads results, repeated for 15 minutes while the server does not respond, unless `stop` is set."""

    def __init__(self, rest: RestApi, stop: threading.Event) -> None:
        self._rest = rest
        self._stop = stop

    def upload(self, task: ClaimedTask, outcome: Outcome) -> Outcome:
        """Upload the content of an outcome; return what to report, a failure if it was not stored."""
        content = outcome.content
        if content is None:
            return outcome
        done = replace(outcome, content=None)
        try:
            if not task.cancelled.is_set():
                self._send(task, content)
        except Exception as error:
            if _is_lost(error):
                log.info(
                    "The result of task %s is not needed: %s",
                    task.task_id,
                    describe(error),
                    extra=task_fields(task),
                )
                return done
            log.warning(
                "The result of task %s was not stored: %s",
                task.task_id,
                describe(error),
                extra=task_fields(task),
            )
            return Outcome(error=error_text(_reason(error)))
        finally:
            content.discard()
        return done

    def _send(self, task: ClaimedTask, content: Content) -> None:
        def send() -> None:
            self._rest.upload_task_result(task.task_id, task.attempt, content, _pieces(content))

        retry(
            send,
            f"Upload of the result of task {task.task_id}",
            seconds=_RETRY_SECONDS,
            stop=self._stop,
            is_retryable=partial(_is_retryable, task),
        )


def _pieces(content: Content) -> Iterator[bytes]:
    """Yield exactly the announced bytes. Raises OSError if the file has become shorter."""
    left = content.size
    for piece in content.pieces():
        yield piece[:left]
        left -= min(left, len(piece))
    if left:
        raise OSError(f"the file {content.data!s:.200} has become {left:,} bytes shorter")


def _is_retryable(task: ClaimedTask, error: BaseException) -> bool:
    is_full = isinstance(problem_of(error), ResultStoreFull)
    return is_transient(error) and not is_full and not task.cancelled.is_set()


def _is_lost(error: Exception) -> bool:
    return status_of(error) == _CONFLICT or isinstance(problem_of(error), TaskNotFound)


def _reason(error: Exception) -> str:
    if is_missing(error):
        return (
            "This server stores no results: upgrade it, or return a JSON value of at most 1 MiB "
            f"({describe(error)})"
        )
    if status_of(error) is None:
        return f"The result could not be uploaded: {describe(error)}"
    return f"The server refused the result: {describe(error)}"
