"""Labels of workers and what tasks require of them.

A worker has labels, like ``gpu=a100`` or ``memory_gb=80``. A job's policy, and a submit, may have
requirements: for some labels a value or conditions. A task runs only on a worker whose labels meet all.
"""

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

MAX_LABELS = 32
MAX_REQUIREMENTS = 16
MAX_VALUES = 32
MAX_VALUE = 256
# JSON numbers are exact up to here, in every language.
_MAX_NUMBER = 2**53
_KEY = r"^[A-Za-z0-9_.-]{1,64}$"


def _key(key: str) -> str:
    if re.fullmatch(_KEY, key) is None:
        raise ValueError(
            f"{key[:100]!r} is no key of a label: write 1 to 64 letters, digits, '_', '-' and '.'"
        )
    return key


def _text(value: str) -> str:
    if not value.isprintable():
        raise ValueError("the value of a label has printable characters only")
    return value


LabelKey = Annotated[str, Field(json_schema_extra={"pattern": _KEY}), AfterValidator(_key)]
LabelValue = (
    Annotated[int, Field(strict=True, ge=-_MAX_NUMBER, le=_MAX_NUMBER)]
    | Annotated[float, Field(strict=True, allow_inf_nan=False)]
    | Annotated[str, Field(min_length=1, max_length=MAX_VALUE), AfterValidator(_text)]
)


def _sorted_labels(labels: dict[str, Any]) -> dict[str, Any]:
    return {key: _number(labels[key]) for key in sorted(labels)}


Labels = Annotated[dict[LabelKey, LabelValue], Field(max_length=MAX_LABELS), AfterValidator(_sorted_labels)]

Operator = Literal["==", "!=", ">=", "<=", ">", "<", "in"]
_ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_OPERATORS = ("==", "!=", *_ORDERS, "in")
Values = Annotated[list[LabelValue], Field(min_length=1, max_length=MAX_VALUES)]
Condition = Annotated[dict[Operator, LabelValue | Values], Field(min_length=1, max_length=len(_OPERATORS))]


def _number(value: Any) -> Any:
    """Return a whole number as an integer, so that equal requirements have equal texts."""
    return (
        int(value) if isinstance(value, float) and value.is_integer() and abs(value) <= _MAX_NUMBER else value
    )


def _sort_key(value: Any) -> tuple[bool, Any]:
    return isinstance(value, str), value


def _operand(key: str, name: str, value: Any) -> Any:
    if (name == "in") != isinstance(value, list):
        what = "a list of values" if name == "in" else "one value"
        raise ValueError(f"{key}: {name!r} takes {what}")
    if name in _ORDERS and isinstance(value, str):
        raise ValueError(f"{key}: {name!r} compares numbers, and {value!r} is text")
    if isinstance(value, list):
        return sorted({_sort_key(_number(one)): _number(one) for one in value}.values(), key=_sort_key)
    return _number(value)


def _checked(requires: dict[str, Any]) -> dict[str, Any]:
    """Return requirements in the one form that equal ones have. Raises ValueError."""
    checked = {}
    for key in sorted(requires):
        value = requires[key]
        if not isinstance(value, dict):
            checked[key] = _number(value)
            continue
        condition = {name: _operand(key, name, value[name]) for name in _OPERATORS if name in value}
        checked[key] = condition["=="] if condition.keys() == {"=="} else condition
    return checked


Requires = Annotated[
    dict[LabelKey, LabelValue | Condition], Field(max_length=MAX_REQUIREMENTS), AfterValidator(_checked)
]
AnyLabels = Mapping[str, Any] | None


def _condition(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {"==": value}


def _holds(label: Any, name: str, value: Any) -> bool:
    """Return whether a label, None if there is none, meets one condition. Text is never equal to a number."""
    if name == "!=":
        return bool(label != value)
    if label is None:
        return False
    if name == "==":
        return bool(label == value)
    if name == "in":
        return label in value
    return not isinstance(label, str) and _ORDERS[name](label, value)


def missing(labels: AnyLabels, *requirements: AnyLabels) -> list[str]:
    """Return which conditions of these requirements the labels of a worker do not meet, as text."""
    own = labels or {}
    return [
        _shown(key, name, value)
        for requires in requirements
        for key, conditions in (requires or {}).items()
        for name, value in _condition(conditions).items()
        if not _holds(own.get(key), name, value)
    ]


def matches(labels: AnyLabels, *requirements: AnyLabels) -> bool:
    """Return whether a worker with these labels meets all requirements."""
    return not missing(labels, *requirements)


def _shown(key: str, name: str, value: Any) -> str:
    if name == "in":
        return f"{key} in {', '.join(map(str, value))}"
    return f"{key}{'=' if name == '==' else name}{value}"


def shown(*requirements: AnyLabels) -> str:
    """Return requirements as one line of text."""
    return " and ".join(missing({}, *requirements) + _absent(requirements))


def _absent(requirements: Iterable[AnyLabels]) -> list[str]:
    """Return the conditions that a worker without labels meets."""
    return [
        _shown(key, "!=", condition["!="])
        for requires in requirements
        for key, value in (requires or {}).items()
        if "!=" in (condition := _condition(value))
    ]


def shown_labels(labels: AnyLabels) -> str:
    """Return the labels of a worker as text, as the command line takes them."""
    return ", ".join(f"{key}={value}" for key, value in (labels or {}).items()) or "no labels"


def labels_text(labels: AnyLabels) -> str:
    """Return the labels of a worker as in a query, like ``gpu=a100,memory_gb=80``; empty without any."""
    return ",".join(f"{key}={value}" for key, value in (labels or {}).items())


def loosened(of_job: AnyLabels, of_submit: AnyLabels) -> str | None:
    """Return the first key whose condition in a submit is not as narrow as that of the job; None without one.

    A key that the submit does not name keeps the job's condition.
    """
    for key, value in (of_submit or {}).items():
        needed = _condition((of_job or {}).get(key, {}))
        own = _condition(value)
        if needed and not all(_implies(own, name, needed[name]) for name in needed):
            return key
    return None


def _implies(own: Mapping[str, Any], name: str, value: Any) -> bool:
    """Return whether every label that meets the conditions `own` meets one more."""
    if "==" in own or "in" in own:
        values = [own["=="]] if "==" in own else own["in"]
        allowed = [one for one in values if all(_holds(one, other, own[other]) for other in own)]
        return bool(allowed) and all(_holds(one, name, value) for one in allowed)
    if name == "!=":
        has_bound = any(other in own and not _holds(value, other, own[other]) for other in _ORDERS)
        return own.get("!=") == value or has_bound
    if name not in _ORDERS:
        return False
    strict, loose = name[0], f"{name[0]}="
    return (loose in own and _ORDERS[name](own[loose], value)) or (
        strict in own and _ORDERS[loose](own[strict], value)
    )


def parsed_label(text: str) -> tuple[str, Any]:
    """Return the label in a text like ``memory_gb=80``; a number is one. Raises ValueError."""
    key, separator, value = text.partition("=")
    if not separator or not value:
        raise ValueError(f"{text[:100]!r} is no label: write KEY=VALUE, like gpu=a100")
    return _key(key.strip()), parsed_value(value.strip())


def parsed_value(text: str) -> Any:
    """Return a number if the text is one, and the text otherwise."""
    if re.fullmatch(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,2})?", text):
        return _number(float(text)) if re.search(r"[.eE]", text) else int(text)
    return text


_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9_.-]{1,64})\s*(==|!=|>=|<=|=|>|<|\bin\b)\s*(.+)")


def parsed_requirements(texts: Iterable[str]) -> dict[str, Any]:
    """Return the requirements in texts like ``memory_gb>=40`` or ``gpu in a100,h100``. Raises ValueError."""
    requires: dict[str, Any] = {}
    for text in texts:
        match = _REQUIREMENT.fullmatch(text)
        if match is None:
            raise ValueError(
                f"{text[:100]!r} is no requirement: write gpu=a100, memory_gb>=40 or 'gpu in a100,h100'"
            )
        key, name, value = match[1], "==" if match[2] == "=" else match[2], match[3].strip()
        values = [parsed_value(part.strip()) for part in value.split(",")]
        requires.setdefault(key, {})[name] = values if name == "in" else parsed_value(value)
    return requires
