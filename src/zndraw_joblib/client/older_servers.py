"""Submits with `after` to servers of earlier releases, which ignore it."""

from collections.abc import Collection, Sequence
from functools import partial
from uuid import UUID

from zndraw_joblib.client import calls
from zndraw_joblib.client.calls import Results, SubmittedTask
from zndraw_joblib.client.flows import Flow, read, send_once
from zndraw_joblib.client.retry import RetryRule
from zndraw_joblib.wire.problems import ProblemException, TaskNotFound

_MAX_NAMED = 10


class AfterIgnored(RuntimeError):
    """The server has put tasks into their queues at once that were to wait for others.

    - `task_ids`: those tasks.
    - `running_ids`: those of them that could not be cancelled.
    """

    def __init__(self, task_ids: Sequence[UUID], running_ids: Sequence[UUID]) -> None:
        self.task_ids, self.running_ids = list(task_ids), list(running_ids)
        ends = "cancelled" if not running_ids else f"cancelled, except {_named(running_ids)}"
        super().__init__(
            f"after: the server is an older release, which ignores it: {_named(task_ids)} went into the "
            f"queue without waiting for others, and was {ends}. Update the server and submit again with "
            "another idempotency_key, or submit without after when the others have ended"
        )


def _named(ids: Sequence[UUID]) -> str:
    names = ", ".join(map(str, ids[:_MAX_NAMED]))
    return f"task {names}" + (f" and {len(ids) - _MAX_NAMED} more" if len(ids) > _MAX_NAMED else "")


def check_after(results: Results, waiting: Collection[int], rule: RetryRule) -> Flow[None]:
    """Check that the server has noticed which results, by their indexes, are of tasks that wait for others.

    Raises `AfterIgnored` after it has cancelled those of an older server.
    """
    tasks = [task for index in waiting if isinstance(task := results[index], SubmittedTask)]
    ids = [task.id for task in tasks if not (task.waits or task.is_duplicate)]
    if not ids:
        return
    try:
        first, _ = yield from read(calls.get_task(str(ids[0])), f"Reading task {ids[0]}", rule)
    except TaskNotFound:
        return  # it has ended and was deleted
    if first.after is not None:
        return
    running = []
    for id_ in ids:
        try:
            yield from send_once(f"Cancelling task {id_}", partial(calls.cancel_task, str(id_)), None, rule)
        except ProblemException:
            running.append(id_)
    raise AfterIgnored(ids, running)
