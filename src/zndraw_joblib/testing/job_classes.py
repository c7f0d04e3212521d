"""Which job a test means: a class, an instance, or a full name."""

import inspect
from typing import Any

from zndraw_joblib.contract.extensions import category_of, check_job
from zndraw_joblib.contract.names import JobName, parse_job_name
from zndraw_joblib.contract.problems import JobNotFound


def class_of(job: Any) -> type[Any]:
    """Return the class of a job, given as the class or an instance. Raises TypeError for anything else."""
    if inspect.isfunction(job):  # without @job, which the error says
        check_job(job)
    cls = job if isinstance(job, type) else type(job)
    check_job(cls)
    return cls


def is_job(name: JobName, job: Any) -> bool:
    """Return whether a job has this name. A class is the job of its category and name in any room."""
    if isinstance(job, str):
        return name == parsed(job)
    cls = class_of(job)
    return (name.category, name.name) == (category_of(cls), cls.__name__)


def parsed(full_name: str) -> JobName:
    """Return the parts of a full name. Raises ValueError for text that no job can have as its name."""
    try:
        return parse_job_name(full_name)
    except JobNotFound as error:
        raise ValueError(
            f"job: {error}; pass a class, or a full name like '@global:modifiers:Rotate'"
        ) from None


def shown(job: Any) -> str:
    """Return how a message names a job."""
    if isinstance(job, str):
        return job
    cls = class_of(job)
    return f"{category_of(cls)}:{cls.__name__}"
