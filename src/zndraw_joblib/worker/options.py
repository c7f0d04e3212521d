"""Options of jobs and tasks, validated before they are sent."""

from collections.abc import Iterable, Mapping
from typing import Any, TypedDict, TypeVar

from pydantic import BaseModel, ValidationError

from zndraw_joblib.contract.policy import Backoff, JobPolicy, RetryOn

Model = TypeVar("Model", bound=BaseModel)


class PolicyOptions(TypedDict, total=False):
    """The fields of a `JobPolicy`, as keywords; the server keeps the value of a field that is not given."""

    max_attempts: int
    retry_on: Iterable[RetryOn | str]
    backoff: Backoff
    max_crashes: int
    timeout_seconds: float | None
    start_timeout_seconds: float
    max_in_flight: int | None
    priority: int


def policy_of(options: PolicyOptions) -> JobPolicy:
    """Return the policy in which only these fields are set. Raises TypeError, ValueError."""
    unknown = set(options) - set(JobPolicy.model_fields)
    if unknown:
        raise TypeError(
            f"register() got unknown policy options {', '.join(map(repr, sorted(unknown)))}; "
            f"the options are {', '.join(JobPolicy.model_fields)}"
        )
    return validated(JobPolicy, options)


def validated(model: type[Model], fields: Mapping[str, Any]) -> Model:
    """Return `fields` as a model. Raises ValueError that names each invalid field."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise ValueError(describe_errors(error)) from None


def describe_errors(error: ValidationError) -> str:
    """Return all errors of a validation in one line, each with its place."""
    return "; ".join(map(_describe_one, error.errors()))


def _describe_one(error: Any) -> str:
    place = ".".join(map(str, error["loc"]))
    text = error["msg"].removeprefix("Value error, ")
    return f"{place}: {text} (it is {error['input']!r})" if place else text
