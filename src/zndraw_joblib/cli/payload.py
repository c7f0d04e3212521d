"""Parse a task's payload and submit options as typed on the command line."""

import json
import re
import sys
from datetime import datetime
from typing import Any

from zndraw_joblib.cli.errors import UsageError
from zndraw_joblib.client.calls import validated
from zndraw_joblib.contract.idempotency import IDEMPOTENCY_KEY, format_key
from zndraw_joblib.contract.messages import TaskSubmitRequest
from zndraw_joblib.contract.outcomes import encode

_OPTIONS = {
    "delay_seconds": "--delay",
    "expires_in_seconds": "--expires-in",
    "max_attempts": "--max-attempts",
    "priority": "--priority",
    "run_at": "--run-at",
}


def parse_object(text: str | None) -> dict[str, Any]:
    """Return the JSON object in `text`, or in standard input for "-". Raises `UsageError`."""
    if text is None:
        return {}
    try:
        payload = json.loads(sys.stdin.read() if text == "-" else text)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f'--payload {text[:100]!r} is not valid JSON: {error}. Pass an object like {{"key": 1}}'
        ) from error
    if not isinstance(payload, dict):
        raise UsageError(
            f'--payload must be an object, not {type(payload).__name__}. Pass an object like {{"key": 1}}'
        )
    return payload


def parse_values(values: list[str]) -> dict[str, Any]:
    """Return the payload given as KEY=VALUE arguments; a value is JSON, else text. Raises `UsageError`."""
    payload: dict[str, Any] = {}
    for pair in values:
        key, equals, value = pair.partition("=")
        if pair.startswith("{"):
            raise UsageError("The payload as a JSON object needs --payload: pass --payload '{...}'")
        if not equals or not key:
            raise UsageError(f"{pair!r} is not of the form KEY=VALUE. Pass each payload field as key=value")
        if key in payload:
            raise UsageError(f"The payload field {key!r} is given twice. Remove one of them")
        payload[key] = _parse_value(value)
    return payload


def parse_options(*, run_at: str | None, **options: Any) -> dict[str, Any]:
    """Return the submit options that were given. Raises `UsageError`.

    A `run_at` without a time zone is local time.
    """
    try:
        moment = datetime.fromisoformat(run_at).astimezone() if run_at else None
    except (ValueError, OverflowError) as error:
        raise UsageError(
            f"--run-at {run_at!r} is not a time: {error}. Pass a time like 2030-01-31T18:00"
        ) from error
    given = {name: value for name, value in {**options, "run_at": moment}.items() if value is not None}
    try:
        validated(TaskSubmitRequest, given)
    except ValueError as error:
        text = re.sub("|".join(_OPTIONS), lambda field: _OPTIONS[field[0]], str(error))
        raise UsageError(text) from error
    return given


def check_payload(payload: dict[str, Any]) -> None:
    """Raise `UsageError` with the name of a field that is not JSON, such as a number that is too large."""
    try:
        encode(payload)
    except ValueError as error:
        raise UsageError(f"The payload field {error}. Change its value") from error


def check_key(key: str | None) -> None:
    """Raise `UsageError` for an invalid `Idempotency-Key`."""
    try:
        if key is not None:
            format_key(key)
    except ValueError as error:
        raise UsageError(str(error).replace(f"header.{IDEMPOTENCY_KEY}", "--idempotency-key")) from error


def _parse_value(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_reject_constant)
    except (ValueError, RecursionError):
        return text


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is not valid JSON")
