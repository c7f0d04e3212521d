"""Store the results of internal tasks that are too large, or not JSON, for a report."""

import asyncio
import logging
from collections.abc import AsyncIterator

from zndraw_joblib.contract.outcomes import error_text
from zndraw_joblib.contract.problems import InvalidTaskTransition, ProblemException, ServiceUnavailable
from zndraw_joblib.contract.results import Content
from zndraw_joblib.server.internal.runs import Outcome
from zndraw_joblib.server.runtime import Runtime
from zndraw_joblib.server.service.internal import EXECUTOR
from zndraw_joblib.server.service.task_results import Upload
from zndraw_joblib.server.store.tasks import TaskRecord
from zndraw_joblib.server.task_results.results import ContentInfo, TaskResults

logger = logging.getLogger(__name__)
_NO_STORE = (
    "The result cannot be stored: task_result_backend is 'memory', which only the server itself can read. "
    "Choose 'database', 'files' or 'redis'"
)


class InternalResults:
    """Stores results without HTTP. `is_server`: this process also answers requests for results."""

    def __init__(self, runtime: Runtime, *, is_server: bool) -> None:
        self._results = TaskResults(runtime)
        self._can_store = is_server or runtime.settings.task_result_backend != "memory"

    async def store(self, task: TaskRecord, content: Content) -> Outcome:
        """Store the content of a result; return what to report. Raises `ServiceUnavailable`: repeat it."""
        if not self._can_store:
            return Outcome(error=_NO_STORE)
        upload = Upload(EXECUTOR, task.id, task.attempt)
        info = ContentInfo(content.content_type, content.filename, content.size)
        outcome = Outcome()
        try:
            await self._results.upload(upload, info, _pieces(content))
        except ServiceUnavailable:
            raise
        except InvalidTaskTransition as problem:
            logger.info(
                "The result of task_id=%s is not needed: %s",
                task.id,
                problem,
                extra={"task_id": str(task.id)},
            )
        except (ProblemException, OSError) as error:
            outcome = Outcome(error=error_text(f"The result cannot be stored: {error}"))
        await asyncio.to_thread(content.discard)
        return outcome


async def _pieces(content: Content) -> AsyncIterator[bytes]:
    pieces = content.pieces()
    while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
        yield piece
