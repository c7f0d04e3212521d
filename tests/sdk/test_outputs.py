"""What a submit waits for, and values of its payload that stand for results of other tasks."""

from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from pydantic import ConfigDict, Field, ValidationError, field_validator, model_validator

from zndraw_joblib import After, Extension, NewTask, Output, job
from zndraw_joblib.jobs import codecs
from zndraw_joblib.jobs.outputs import EarlierTasks, after_of

FIRST, SECOND = str(uuid4()), str(uuid4())


class Node(Extension):
    """A job with validators, with a field of its own kind, and with an alias."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    width: float = Field(gt=0)
    path: Path = Path("x")
    frames: list[float] = Field(default_factory=list)
    near: "Node | None" = None
    other: int = Field(default=0, alias="o")

    @field_validator("width")
    @classmethod
    def _is_small(cls, width: float) -> float:
        assert width < 10
        return width

    @model_validator(mode="after")
    def _fits(self) -> "Node":
        assert self.width < 5 + len(self.frames)
        return self

    def run(self, vis: Any, **kwargs: Any) -> None:
        """Do nothing."""


@job
def relax(steps: int, frames: list[int], scale: float = 1.0) -> int:
    """Return the number of steps."""
    return steps


def test_fields_of_a_job_take_outputs_beside_checked_values() -> None:
    """What is no output is converted to the type of its field, and has its default."""
    node = Node(width=Output(FIRST, "/w"), path="a/b", frames=[1, Output(SECOND)], near={"width": 2})  # type: ignore[list-item]
    assert codecs.payload_of(node) == {
        "width": {"$result": {"task": FIRST, "pointer": "/w"}},
        "path": "a/b",
        "frames": [1, {"$result": {"task": SECOND}}],
        "near": {"width": 2.0, "path": "x", "frames": [], "near": None, "other": 0},
        "other": 0,
    }
    task = relax.task("3", Output(FIRST))
    assert codecs.payload_of(task) == {"steps": 3, "scale": 1.0, "frames": {"$result": {"task": FIRST}}}
    # Without an output nothing changes.
    assert Node(width=1) == Node.model_validate({"width": 1})
    with pytest.raises(ValidationError, match="Assertion failed"):
        Node(width=7)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"width": -1}, "width\n  Input should be greater than 0"),
        ({"width": 11}, "width\n  Assertion failed"),
        ({}, "width\n  Field required"),
        ({"width": 1, "wdith": 2}, "wdith\n  Extra inputs are not permitted"),
        ({"width": 1, "o": "many"}, "other\n  Input should be a valid integer"),
    ],
)
def test_wrong_values_beside_an_output(fields: dict[str, Any], error: str) -> None:
    """They are errors as without one."""
    with pytest.raises(ValidationError, match=error):
        Node(frames=[Output(FIRST)], **fields)  # type: ignore[list-item]
    with pytest.raises(ValueError, match="no JSON pointer"):
        Output(FIRST, "x")


def test_what_a_submit_waits_for() -> None:
    """Each form of `after` names the tasks and groups, and an output its task."""
    build, group = NewTask("Build"), uuid4()
    earlier = EarlierTasks(is_atomic=True)
    earlier.add(NewTask("Other"))
    earlier.add(build)
    payload = codecs.plain_payload({"atoms": build.output("/atoms"), "all": [Output(FIRST)]})
    assert after_of([SECOND, build], payload, earlier) == {"tasks": [SECOND, 1, FIRST]}
    assert payload["atoms"] == {"$result": {"task": 1, "pointer": "/atoms"}}
    after = After(tasks=[UUID(FIRST)], groups=[group], on_failure="hold")
    expected = {"tasks": [FIRST], "groups": [str(group)], "on_failure": "hold"}
    assert after_of(after, {}, EarlierTasks()) == expected
    assert after_of(dict(after), {}, EarlierTasks()) == expected
    assert after_of(FIRST, {}, EarlierTasks()) == {"tasks": [FIRST]}
    assert after_of(None, {"a": [1, {"b": 2}]}, EarlierTasks()) is None
    later = NewTask("Later")
    for wrong, error in ((later, "has no id"), ([0], "atomic=True"), ("x", "'x' is not the id of a task")):
        with pytest.raises(ValueError, match=error):
            after_of(wrong, {}, EarlierTasks())
    with pytest.raises(TypeError, match="is no task or group"):
        after_of(3.5, {}, EarlierTasks())
