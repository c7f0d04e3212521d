"""The payload of a command: a JSON object, and KEY=VALUE arguments, which the job's schema explains."""

import json
import sys
from contextlib import suppress
from typing import Any

from zndraw_joblib.cli.client import AdminClient
from zndraw_joblib.cli.display import CommandError, UsageError
from zndraw_joblib.jobs.failures import encode
from zndraw_joblib.wire.names import DEFAULT_ROOM, JobName
from zndraw_joblib.wire.problems import ProblemException

_MAX_REFERENCES = 16
_TYPES: dict[type, str] = {dict: "object", list: "array", str: "string", type(None): "null"}
_TYPES |= {bool: "boolean", int: "integer", float: "number"}


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
    """Return the payload given as KEY=VALUE arguments; a value is JSON, else text. Raises `UsageError`.

    `fitting` makes a text of what is JSON by chance.
    """
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


def check_payload(payload: dict[str, Any]) -> None:
    """Raise `UsageError` with the name of a field that is not JSON, such as a number that is too large."""
    try:
        encode(payload)
    except ValueError as error:
        raise UsageError(f"The payload field {error}. Change its value") from error


def fitting(
    client: AdminClient, job: JobName, room: str | None, payload: dict[str, Any], values: list[str] | None
) -> dict[str, Any]:
    """Return a payload with the text of those KEY=VALUE arguments for which the job's schema wants text.

    So ``month=2026`` is a text for a field of type string. The schema is read only if a value is JSON.
    """
    texts = {key: text for key, _, text in (pair.partition("=") for pair in values or [])}
    as_json = {key: text for key, text in texts.items() if payload[key] != text}
    schema: Any = {}
    if as_json:
        # The submit says what is wrong with the job.
        with suppress(ProblemException, CommandError):
            schema = client.job(job, room or DEFAULT_ROOM).schema_
    return payload | {key: text for key, text in as_json.items() if _needs_text(schema, key, payload[key])}


def _needs_text(schema: dict[str, Any], key: str, value: Any) -> bool:
    properties = schema.get("properties")
    types = _types(schema, properties.get(key) if isinstance(properties, dict) else None)
    if types is None or "string" not in types:
        return False
    kind = _TYPES[type(value)]
    return kind not in types and not (kind == "integer" and "number" in types)


def _types(schema: dict[str, Any], node: Any, references: int = 0) -> set[str] | None:
    """Return the types that a part of a schema accepts; None if it does not say."""
    if not isinstance(node, dict) or references > _MAX_REFERENCES:
        return None
    if isinstance(types := node.get("type"), (str, list)):
        return {types} if isinstance(types, str) else {str(name) for name in types}
    if isinstance(values := node.get("enum", [node["const"]] if "const" in node else None), list):
        return {_TYPES[type(value)] for value in values}
    if isinstance(reference := node.get("$ref"), str):
        return _types(schema, _at(schema, reference), references + 1)
    if isinstance(parts := node.get("anyOf", node.get("oneOf")), list):
        of_parts = [_types(schema, part, references + 1) for part in parts]
        return None if None in of_parts else {name for types in of_parts for name in types or ()}
    return None


def _at(schema: Any, reference: str) -> Any:
    """Return the part of a schema that a reference like ``#/$defs/Name`` names, None without one."""
    for name in reference.removeprefix("#/").split("/"):
        schema = schema.get(name) if isinstance(schema, dict) else None
    return schema


def _parse_value(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_reject_constant)
    except (ValueError, RecursionError):
        return text


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is not valid JSON")
