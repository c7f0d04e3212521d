"""What the author of a job and the caller of a task may choose, checked before it is sent."""

from collections.abc import Iterable, Mapping
from typing import Any, TypedDict, TypeVar

from pydantic import BaseModel, ValidationError

from zndraw_joblib.contract.policy import Backoff, JobPolicy, RetryOn

Model = TypeVar("Model", bound=BaseModel)


class PolicyWishes(TypedDict, total=False):
    """The fields of a `JobPolicy`, as keywords; what is not given is left as the server has it."""

    max_attempts: int
    retry_on: Iterable[RetryOn | str]
    backoff: Backoff
    max_crashes: int
    timeout_seconds: float | None
    start_timeout_seconds: float
    max_in_flight: int | None
    priority: int


def policy_of(wishes: PolicyWishes) -> JobPolicy:
    """Return the policy in which these fields alone are set. Raises TypeError, ValueError."""
    unknown = set(wishes) - set(JobPolicy.model_fields)
    if unknown:
        raise TypeError(f"A job's policy has no {', '.join(map(repr, sorted(unknown)))}")
    return checked(JobPolicy, wishes)


def checked(model: type[Model], fields: Mapping[str, Any]) -> Model:
    """Return `fields` as a model. Raises ValueError, which names each field that does not fit."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise ValueError(faults_of(error)) from None


def faults_of(error: ValidationError) -> str:
    """Return what does not fit, and where, in one line."""
    return "; ".join(map(_said, error.errors()))


def _said(fault: Any) -> str:
    place = ".".join(map(str, fault["loc"]))
    text = fault["msg"].removeprefix("Value error, ")
    return f"{place}: {text} (it is {fault['input']!r})" if place else text
