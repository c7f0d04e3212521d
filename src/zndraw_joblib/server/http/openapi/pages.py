"""The pages of lists, with names that generators of types can use."""

from zndraw_joblib.contract.messages import JobSummary, PaginatedResponse, TaskResponse
from zndraw_joblib.contract.operations import WorkerSummary
from zndraw_joblib.contract.providers import ProviderResponse


class TaskPage(PaginatedResponse[TaskResponse]):
    """One page of a list of tasks, newest first; `total` counts the whole list."""


class JobPage(PaginatedResponse[JobSummary]):
    """One page of a list of jobs, newest first; `total` counts the whole list."""


class WorkerPage(PaginatedResponse[WorkerSummary]):
    """One page of a list of workers, newest first; `total` counts the whole list."""


class ProviderPage(PaginatedResponse[ProviderResponse]):
    """One page of a list of providers, newest first; `total` counts the whole list."""
