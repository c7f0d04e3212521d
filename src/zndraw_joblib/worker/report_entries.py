"""What is to be reported of each task of the pipeline, as JSON for a batch or as single requests."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from zndraw_joblib.client.retry import RequestBackoff
from zndraw_joblib.contract.messages import TaskUpdateRequest
from zndraw_joblib.contract.status import TaskStatus
from zndraw_joblib.contract.task_channel import LiveReport
from zndraw_joblib.worker.execution import Outcome
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
    live_size: int = 0
    backoff: RequestBackoff = field(default_factory=RequestBackoff)

    def take(self) -> "Sent":
        """Return the reports that are due now. With an outcome goes what is left of progress and log."""
        live = self.task.channel.take_all() if self.outcome is not None else ()
        return Sent(self, self.outcome, not self.started, live)

    @property
    def size(self) -> int:
        """Return about how many bytes the report of the outcome has, 0 without one."""
        return 0 if self.outcome is None else size_of(self.outcome) + self.live_size


@dataclass(frozen=True, slots=True)
class Sent:
    """The reports of one task in one request; `outcome` is None if it only starts.

    `live` is the progress and the log that was not reported before; the last part goes with the outcome.
    """

    entry: Entry
    outcome: Outcome | None
    with_start: bool
    live: Sequence[LiveReport] = ()

    @property
    def size(self) -> int:
        """Return about how many bytes the reports have."""
        size = 200 + (size_of(self.outcome) if self.outcome else 0)
        return size + sum(len(live.json) for live in self.live) if self.live else size

    @property
    def count(self) -> int:
        """Return the number of reports."""
        return self.with_start + (len(self.live) or self.outcome is not None)

    def as_json(self) -> list[bytes]:
        """Return each report as JSON, for `RestApi.report_tasks`."""
        task = self.entry.task
        token = f'{{"id":"{task.task_id}","attempt":{task.attempt},'.encode()
        reports = [token + b'"status":"running"}'] if self.with_start else []
        reports += [token + live.json + b"}" for live in self.live[:-1]]
        if self.outcome is not None:
            last = self.live[-1].json + b"," if self.live else b""
            reports.append(token + last + _as_json(self.outcome))
        return reports

    def updates(self) -> Iterator[TaskUpdateRequest]:
        """Yield each report as the body of a request of its own."""
        task = self.entry.task
        token: dict[str, Any] = {"worker_id": task.worker_id, "attempt": task.attempt}
        if self.with_start:
            yield TaskUpdateRequest(status=TaskStatus.RUNNING, **token)
        if self.outcome is not None:
            last = self.live[-1].fields if self.live else {}
            yield TaskUpdateRequest(**token, **_fields(self.outcome), **last)


def size_of(outcome: Outcome) -> int:
    """Return about how many bytes the report of an outcome has."""
    size = len(outcome.result) + len(outcome.error or "")
    failure = outcome.failure
    return size + len(failure.traceback) + len(failure.full_traceback) if failure else size


def _as_json(outcome: Outcome) -> bytes:
    if outcome.error is None:
        return b'"status":"completed","result":%s}' % outcome.result
    more = b"" if outcome.retry else b',"retry":false'
    if outcome.failure is not None:
        more += b',"failure":' + outcome.failure.model_dump_json().encode()
    if outcome.error_code is not None:
        more += b',"error_code":"%s"' % outcome.error_code.encode()
    return b'"status":"failed","error":%s%s}' % (json.dumps(outcome.error).encode(), more)


def _fields(outcome: Outcome) -> dict[str, Any]:
    if outcome.error is None:
        return {"status": TaskStatus.COMPLETED, "result": json.loads(outcome.result)}
    return {
        "status": TaskStatus.FAILED,
        "error": outcome.error,
        **({} if outcome.retry else {"retry": False}),
        **({} if outcome.failure is None else {"failure": outcome.failure}),
        **({} if outcome.error_code is None else {"error_code": outcome.error_code}),
    }
