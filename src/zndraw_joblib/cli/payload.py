"""A task's payload, as it is typed."""

import json
import sys
from typing import Any

from zndraw_joblib.cli.refusal import Misuse


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


def _read_value(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return text


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
