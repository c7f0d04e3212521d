"""What `@job` makes of a function: its schema, its tasks, and its errors."""

import asyncio
import functools
import inspect
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Optional, cast

import pytest
from pydantic import BaseModel, Field, ValidationError

from sdk.function_jobs import later, refuse, scale, where
from zndraw_joblib import Extension, JobFunction, JobPolicy, RetryOn, TaskContext, job
from zndraw_joblib.wire.problems import InvalidRoomId


class Point(BaseModel):
    x: float
    y: float = 0


def test_a_job_is_still_its_function() -> None:
    """A call runs it, with all that Python knows of it; a class of extensions is what the queue sees."""
    assert scale(3, factor=4) == 12
    assert asyncio.run(later("hi"))[0] == "hi"
    assert (scale.__name__, scale.__doc__) == ("scale", scale.__wrapped__.__doc__)
    assert inspect.signature(scale) == inspect.signature(scale.__wrapped__)
    assert repr(scale) == "<job sdk.function_jobs.scale>"
    assert isinstance(scale, JobFunction)
    assert issubclass(cast(Any, scale), Extension)
    assert (scale.category, scale.job_room, refuse.job_room) == ("jobs", "@global", "quiet")
    assert (where.__name__, where.category, where.policy.max_attempts) == ("Where", "analysis", 2)


def test_the_schema_has_the_parameters_and_the_docstring() -> None:
    """The first paragraph describes the job; what the worker adds is no field."""
    assert scale.model_json_schema() == {
        "title": "scale",
        "description": "Multiply a number.",
        "type": "object",
        "additionalProperties": False,
        "required": ["value"],
        "properties": {
            "value": {"title": "Value", "type": "number", "description": "The number, of any size."},
            "factor": {
                "title": "Factor",
                "type": "number",
                "exclusiveMinimum": 0,
                "default": 2.0,
                "description": "By how much.",
            },
        },
    }
    assert list(where.model_json_schema()["properties"]) == ["words"]


def test_parameters_are_described_in_the_style_of_numpy_too() -> None:
    """A description in the annotation wins; entries may share a text."""

    @job
    def mix(a: int, b: int, c: Annotated[int, Field(description="own")], d: int = 0) -> None:
        """Mix.

        Parameters
        ----------
        a, b : int
            The parts:
            each a number.
        c
            Not this.

        Returns
        -------
        d : int
            Nor this.
        """

    texts = {name: field.get("description") for name, field in mix.model_json_schema()["properties"].items()}
    assert texts == {
        "a": "The parts: each a number.",
        "b": "The parts: each a number.",
        "c": "own",
        "d": None,
    }


def test_annotations_may_be_text_models_and_optional_contexts() -> None:
    """Names of the module are found, and a task has values of the annotated types."""

    @job
    def locate(point: "Point", path: Path, task: Optional["TaskContext"] = None, vis=None) -> Any:  # type: ignore[no-untyped-def]
        return point, path, task, vis

    task: Any = locate.task(point={"x": 1}, path="/a")
    assert (task.point, task.path) == (Point(x=1), Path("/a"))
    assert task.run("context") == (Point(x=1), Path("/a"), None, "context")
    assert "description" not in locate.model_json_schema()


def test_tasks_take_the_arguments_of_the_function() -> None:
    """By position or name, checked as a call and as a payload; tasks and jobs are pickled by reference."""
    task = scale.task(3, factor=4)
    assert type(task) is scale
    assert task == scale.model_validate({"value": 3, "factor": 4})
    assert pickle.loads(pickle.dumps((task, scale))) == (task, scale)  # noqa: S301 - our own
    for wrong, error in (
        (scale.task, r"scale\.task\(\): missing a required argument: 'value'"),
        (lambda: scale.task(1, fctor=2), r"scale\.task\(\): got an unexpected keyword argument 'fctor'"),
        (lambda: job(max_atempts=4), r"^@job has no 'max_atempts' \(did you mean 'max_attempts'\?\)$"),  # type: ignore[call-overload]
        (lambda: job(categry="a"), r"^@job has no 'categry' \(did you mean 'category'\?\)$"),  # type: ignore[call-overload]
        (lambda: job(max_retries=4), r"^@job has no 'max_retries' \(did you mean 'max_attempts'\?\)$"),  # type: ignore[call-overload]
        (lambda: where.task(task=None), r"where\.task\(\): got an unexpected keyword argument 'task'"),
    ):
        with pytest.raises(TypeError, match=error):
            wrong()
    with pytest.raises(ValidationError, match="factor"):
        scale.task(1, factor=-1)
    with pytest.raises(AttributeError, match=r"has no 'delay'.*Queue\(\)\.submit\(scale\.task\(…\)\)"):
        scale.delay(1)  # type: ignore[attr-defined]


def test_default_values_are_not_shared_between_tasks() -> None:
    """Each task gets a copy of a mutable default."""

    @job
    def collect(found: list[int] = []) -> list[int]:  # noqa: B006 - the subject of the test
        found.append(1)
        return found

    assert [collect.task().run(None) for _ in range(2)] == [[1], [1]]


def _bare(a, b=1): ...  # type: ignore[no-untyped-def]


def _starred(*args: int) -> None: ...
def _double_starred(**options: int) -> None: ...
def _positional(a: int, /) -> None: ...
def _reserved(schema: str) -> None: ...
def _private(_a: int) -> None: ...
def _field_default(a: int = Field(default=3)) -> None: ...
def _unknown_name(a: "Missing") -> None: ...  # type: ignore[name-defined]  # noqa: F821
def _no_schema(a: int, b: Callable[[], int]) -> None: ...
def _no_core_schema(a: "Plain") -> None: ...


class Plain:
    pass


def test_a_function_that_cannot_be_a_job_is_refused(subtests: pytest.Subtests) -> None:
    """The error names the function, the parameter and the remedy."""
    for function, text in [
        (_bare, r"'a' of _bare\(\) has no annotation.*write a: float"),
        (_starred, r"'\*args' of _starred\(\).*one list or dict"),
        (_double_starred, r"'\*\*options' of _double_starred\(\)"),
        (_positional, r"'a' of _positional\(\) is positional-only.*remove the '/'"),
        (_reserved, r"'schema' of _reserved\(\).*rename it, for example to schema_value"),
        (_private, r"'_a' of _private\(\).*a_value"),
        (_field_default, r"'a' of _field_default\(\).*write a: Annotated"),
        (_unknown_name, r"'a' of _unknown_name\(\).*'Missing' is not defined.*top level"),
        (_no_schema, r"'b' of _no_schema\(\) has the type .*Callable.*which has no JSON Schema"),
        (_no_core_schema, r"'a' of _no_core_schema\(\) has the type Plain"),
        (lambda: None, "a lambda has no name"),
        (functools.partial(_bare), "@job needs a function"),
        (Point, "Point is a class: derive it from Extension"),
    ]:
        with subtests.test(function=function, text=text), pytest.raises(TypeError, match=text):
            job(function)


def test_wrong_options_are_refused() -> None:
    """Each by its own error."""

    def plain() -> None: ...

    with pytest.raises(TypeError, match="'a b' cannot be the name"):
        job(name="a b")(plain)
    with pytest.raises(ValueError, match="category 'a:b'"):
        job(category="a:b")
    with pytest.raises(InvalidRoomId):
        job(room="a@b")
    with pytest.raises(TypeError, match="policy"):
        job(policy={"max_attempts": 3})  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="max_attempts: Input should be greater than"):
        job(max_attempts=0)
    with pytest.raises(TypeError, match=r"^@job: max_attempts is in the policy and a keyword: say it once$"):
        job(policy=JobPolicy(max_attempts=3), max_attempts=2)
    assert job(policy=JobPolicy())(plain).policy == JobPolicy(without_workers="queue")
    policy = job(policy=JobPolicy(max_attempts=3), timeout_seconds=5)(plain).policy
    assert policy == JobPolicy(max_attempts=3, timeout_seconds=5, without_workers="queue")
    assert set(policy.retry_on) == set(RetryOn)
