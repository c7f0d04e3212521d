"""The bodies of requests and responses for many tasks at once."""

from uuid import UUID

from pydantic import BaseModel, Field

from zndraw_joblib.contract.bodies import RequestBody, ResponseBody
from zndraw_joblib.contract.messages import MAX_BATCH, TaskResponse, TaskSubmitRequest, TaskUpdateRequest
from zndraw_joblib.contract.problems import Problem

MAX_BATCH_BYTES = 8 * 1024 * 1024


class TaskToSubmit(TaskSubmitRequest):
    """A task to submit from the room `room_id`; `job_name` is the full name of its job."""

    room_id: str
    job_name: str


class BatchSubmitRequest(RequestBody):
    """Submit tasks of any rooms and jobs, in order.

    With `atomic`, either all are submitted, in one transaction, or none.
    """

    tasks: list[TaskToSubmit] = Field(min_length=1, max_length=MAX_BATCH, fail_fast=True)
    atomic: bool = False


class TaskReport(TaskUpdateRequest):
    """A report of the task `id`, with the same fields as a report of a single task."""

    id: UUID


class BatchReportRequest(RequestBody):
    """Report on tasks. `worker_id` holds for each report that has none of its own."""

    worker_id: UUID | None = None
    reports: list[TaskReport] = Field(min_length=1, max_length=MAX_BATCH, fail_fast=True)


class BatchResult(BaseModel):
    """The result of one item: the `status` and the body that the request for it alone would have got.

    A success has the `id` of its task and, unless the request prefers ``return=minimal``, the `task`; a
    failure has a `problem`. Reported tasks beyond 8 MiB of payloads and results are left out.
    """

    status: int
    id: UUID | None = None
    task: TaskResponse | None = None
    problem: Problem | None = None


class BatchResponse(ResponseBody):
    """The results of the items, in their order."""

    results: list[BatchResult]
