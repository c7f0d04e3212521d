"""Submits and policies with `after`, `requires` or `cost` at older servers, which ignore these."""

from collections.abc import Collection, Sequence
from functools import partial
from uuid import UUID

from zndraw_joblib.client import calls
from zndraw_joblib.client.calls import Results, SubmittedTask
from zndraw_joblib.client.flows import Flow, read, send_once
from zndraw_joblib.client.retry import RetryRule
from zndraw_joblib.wire.problems import ProblemException, TaskNotFound

_MAX_NAMED = 10


class OptionIgnored(RuntimeError):
    """The server is an older release, and has submitted tasks without an option of theirs.

    - `task_ids`: those tasks.
    - `running_ids`: those of them that could not be cancelled.
    """

    option = ""
    effect = ""
    without = ""

    def __init__(self, task_ids: Sequence[UUID], running_ids: Sequence[UUID]) -> None:
        self.task_ids, self.running_ids = list(task_ids), list(running_ids)
        ends = "cancelled" if not running_ids else f"cancelled, except {_named(running_ids)}"
        super().__init__(
            f"{self.option}: the server is an older release, which ignores it: {_named(task_ids)} went "
            f"into the queue {self.effect}, and was {ends}. Update the server and submit again with "
            f"another idempotency_key, or submit without {self.without}"
        )


class AfterIgnored(OptionIgnored):
    """The server has put tasks into their queues at once that were to wait for others."""

    option = "after"
    effect = "without waiting for others"
    without = "after when the others have ended"


class RequirementsIgnored(OptionIgnored):
    """The server lets any worker of their job run tasks that require labels."""

    option = "requires"
    effect = "for any worker of its job"
    without = "requires if each worker of the job can run it"


class CostIgnored(OptionIgnored):
    """The server gives tasks that take several slots to workers as if they took one."""

    option = "cost"
    effect = "as if it took one slot"
    without = "cost if a worker may run it beside others"


class PolicyIgnored(RuntimeError):
    """The server is an older release, and ignores a field of the policy that a job was registered with."""


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
    if first.after is None:
        yield from _cancel(ids, AfterIgnored, rule)


def check_requirements(results: Results, required: Collection[int], rule: RetryRule) -> Flow[bool]:
    """Check that the server has noticed which results, by their indexes, are of tasks that require labels.

    Return whether that is sure now. Raises `RequirementsIgnored` after it has cancelled those of an older
    server.
    """
    return (yield from _check(results, required, rule, "requires", RequirementsIgnored))


def check_costs(results: Results, costly: Collection[int], rule: RetryRule) -> Flow[bool]:
    """Check that the server has noticed which results, by their indexes, are of tasks with a cost.

    Return whether that is sure now. Raises `CostIgnored` after it has cancelled those of an older server.
    """
    return (yield from _check(results, costly, rule, "cost", CostIgnored))


def _check(
    results: Results, indexes: Collection[int], rule: RetryRule, field: str, error: type[OptionIgnored]
) -> Flow[bool]:
    tasks = [task for index in indexes if isinstance(task := results[index], SubmittedTask)]
    ids = [task.id for task in tasks if not task.is_duplicate]
    if not ids:
        return False
    try:
        first, _ = yield from read(calls.get_task(str(ids[0])), f"Reading task {ids[0]}", rule)
    except TaskNotFound:
        return False
    if getattr(first, field) is None:
        yield from _cancel(ids, error, rule)
    return True


def _cancel(ids: Sequence[UUID], error: type[OptionIgnored], rule: RetryRule) -> Flow[None]:
    """Cancel these tasks, and raise the error."""
    running = []
    for id_ in ids:
        try:
            yield from send_once(f"Cancelling task {id_}", partial(calls.cancel_task, str(id_)), None, rule)
        except ProblemException:
            running.append(id_)
    raise error(ids, running)
