"""Requirements: one text for equal ones, and a submit only narrows those of its job."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from zndraw_joblib.wire.requirements import (
    Labels,
    Requires,
    loosened,
    matches,
    missing,
    parsed_label,
    parsed_requirements,
    shown,
)

REQUIRES: TypeAdapter[dict[str, Any]] = TypeAdapter(Requires)
LABELS: TypeAdapter[dict[str, Any]] = TypeAdapter(Labels)
VALUES = [0, 1, 2, 3, "a", "b"]
NUMBERS = st.integers(0, 3)
CONDITIONS = st.fixed_dictionaries(
    {},
    optional={
        "==": st.sampled_from(VALUES),
        "!=": st.sampled_from(VALUES),
        "in": st.lists(st.sampled_from(VALUES), min_size=1, max_size=3),
        **dict.fromkeys((">=", "<=", ">", "<"), NUMBERS),
    },
).filter(bool)

# However long a busy machine stops the test.
at_any_pace = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@at_any_pace
@given(of_job=CONDITIONS, of_submit=CONDITIONS)
def test_what_a_narrower_condition_allows_the_job_allows(
    of_job: dict[str, Any], of_submit: dict[str, Any]
) -> None:
    """A submit that is not refused meets the job's condition with each label that meets its own."""
    job, submit = REQUIRES.validate_python({"x": of_job}), REQUIRES.validate_python({"x": of_submit})
    if loosened(job, submit) is None:
        for value in (*VALUES, 0.5, 1.5, 2.5, 9, "z"):
            assert not matches({"x": value}, submit) or matches({"x": value}, job)
        assert not matches({}, submit) or matches({}, job)
    assert loosened(job, {"y": 1}) is None


@at_any_pace
@given(condition=CONDITIONS)
def test_equal_requirements_have_one_form(condition: dict[str, Any]) -> None:
    """The order of keys, and 1.0 for 1, make no other queue; the form is its own form."""
    as_floats = {name: float(value) if isinstance(value, int) else value for name, value in condition.items()}
    first = REQUIRES.dump_json(REQUIRES.validate_python({"b": condition, "a": 1}))
    second = REQUIRES.dump_json(REQUIRES.validate_python({"a": 1.0, "b": dict(reversed(as_floats.items()))}))
    assert first == second == REQUIRES.dump_json(REQUIRES.validate_json(first))


@pytest.mark.parametrize(
    ("requires", "reason"),
    [
        ({"x": {">=": "a"}}, "compares numbers"),
        ({"x": {"in": 1}}, "a list of values"),
        ({"x": {"==": [1]}}, "one value"),
        ({"x": {"like": "a"}}, "like"),
        ({"x": {}}, "at least 1"),
        ({"a b": 1}, "no key of a label"),
        ({"x": True}, "valid"),
        ({f"x{number}": 1 for number in range(17)}, "at most 16"),
    ],
)
def test_invalid_requirements_are_refused(requires: dict[str, Any], reason: str) -> None:
    """With what is wrong."""
    with pytest.raises(ValidationError, match=reason):
        REQUIRES.validate_python(requires)


def test_texts_of_the_command_line() -> None:
    """What looks like a number is one; a worker without a label meets only `!=`."""
    labels = dict(map(parsed_label, ("gpu=a100", "memory_gb=80", "price=1.5", "build=1e2", "id=0x10")))
    assert LABELS.validate_python(labels) == {
        "build": 100,
        "gpu": "a100",
        "id": "0x10",
        "memory_gb": 80,
        "price": 1.5,
    }
    requires = parsed_requirements(["gpu in a100,h100", "memory_gb >= 40", "memory_gb<100", "node!=n1"])
    assert matches(labels, REQUIRES.validate_python(requires))
    assert missing({"memory_gb": 120}, requires) == ["gpu in a100, h100", "memory_gb<100"]
    assert shown(requires) == "gpu in a100, h100 and memory_gb>=40 and memory_gb<100 and node!=n1"
    for text, parse in (
        ("gpu", parsed_label),
        ("=a", parsed_label),
        ("gpu", lambda text: parsed_requirements([text])),
    ):
        with pytest.raises(ValueError, match=r"no (label|key|requirement)"):
            parse(text)
