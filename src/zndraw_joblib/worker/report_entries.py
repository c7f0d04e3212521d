"""What is to be reported of each task of the pipeline, as JSON for a batch or as single requests."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from zndraw_joblib.contract.messages import TaskUpdateRequest
from zndraw_joblib.contract.status import TaskStatus
from zndraw_joblib.worker.execution import Outcome
from zndraw_joblib.worker.retry import RequestBackoff
from zndraw_joblib.worker.tasks import ClaimedTask


@dataclass(slots=True, eq=False)
class Entry:
    """The reports of one task: its start, unless it is `started`, and its outcome, once it has one.

    `due` is when a start is to be reported. After a refusal nothing is sent before `not_before`. `gone`: the
    task is not this worker's any more, or was given up.
    """

    task: ClaimedTask
    due: float = 0.0
    started: bool = False
    outcome: Outcome | None = None
    gone: bool = False
    is_replaced: bool = False
    not_before: float = 0.0
    failing_since: float | None = None
    backoff: RequestBackoff = field(default_factory=RequestBackoff)

    def take(self) -> "Sent":
        """Return the reports that are due now."""
        return Sent(self, self.outcome, with_start=not self.started)


@dataclass(frozen=True, slots=True)
class Sent:
    """The reports of one task in one request; `outcome` is None if it only starts."""

    entry: Entry
    outcome: Outcome | None
    with_start: bool

    @property
    def size(self) -> int:
        """Return about how many bytes the reports have."""
        return 200 + (size_of(self.outcome) if self.outcome else 0)

    def as_json(self) -> list[bytes]:
        """Return each report as JSON, for `RestApi.report_tasks`."""
        task = self.entry.task
        token = f'{{"id":"{task.task_id}","attempt":{task.attempt},"status":'
        reports = [f'{token}"running"}}'.encode()] if self.with_start else []
        if self.outcome is not None:
            reports.append(token.encode() + _as_json(self.outcome))
        return reports

    def updates(self) -> Iterator[TaskUpdateRequest]:
        """Yield each report as the body of a request of its own."""
        task = self.entry.task
        token: dict[str, Any] = {"worker_id": task.worker_id, "attempt": task.attempt}
        if self.with_start:
            yield TaskUpdateRequest(status=TaskStatus.RUNNING, **token)
        if self.outcome is not None:
            yield TaskUpdateRequest(**token, **_fields(self.outcome))


def size_of(outcome: Outcome) -> int:
    """Return about how many bytes the report of an outcome has."""
    return len(outcome.result) + len(outcome.error or "")


def _as_json(outcome: Outcome) -> bytes:
    if outcome.error is None:
        return b'"completed","result":%s}' % outcome.result
    final = b"" if outcome.retry else b',"retry":false'
    return b'"failed","error":%s%s}' % (json.dumps(outcome.error).encode(), final)


def _fields(outcome: Outcome) -> dict[str, Any]:
    if outcome.error is None:
        return {"status": TaskStatus.COMPLETED, "result": json.loads(outcome.result)}
    return {
        "status": TaskStatus.FAILED,
        "error": outcome.error,
        **({} if outcome.retry else {"retry": False}),
    }
