"""A task's payload and its caller's wishes, as they are typed."""

import json
import sys
from datetime import datetime
from typing import Any

from zndraw_joblib.cli.refusal import Misuse
from zndraw_joblib.contract.messages import TaskSubmitRequest
from zndraw_joblib.worker.options import validated


def read_object(text: str | None) -> dict[str, Any]:
    """Return a JSON object; - reads it from standard input. Raises `Misuse`."""
    if text is None:
        return {}
    try:
        payload = json.loads(sys.stdin.read() if text == "-" else text)
    except ValueError as error:
        raise Misuse(f"--json is not JSON: {error}") from error
    if not isinstance(payload, dict):
        raise Misuse('--json must be an object, like {"key": 1}')
    return payload


def read_values(values: list[str]) -> dict[str, Any]:
    """Return what KEY=VALUE pairs say; a value is JSON, else text. Raises `Misuse`."""
    payload: dict[str, Any] = {}
    for pair in values:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise Misuse(f"{pair!r} is not of the form KEY=VALUE")
        if key in payload:
            raise Misuse(f"{key!r} is given twice")
        payload[key] = _read_value(value)
    return payload


def read_wishes(*, run_at: str | None, **wishes: Any) -> dict[str, Any]:
    """Return the wishes that were given, the time with the zone of this machine. Raises `Misuse`."""
    try:
        moment = datetime.fromisoformat(run_at).astimezone() if run_at else None
        given = {name: value for name, value in {**wishes, "run_at": moment}.items() if value is not None}
        validated(TaskSubmitRequest, given)
    except (ValueError, OverflowError) as error:
        raise Misuse(str(error)) from error
    return given


def _read_value(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return text


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
