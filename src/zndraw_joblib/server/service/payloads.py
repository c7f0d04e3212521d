"""Validate payloads against the schemas of jobs."""

import re
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

import jsonschema_rs
from pydantic_core import from_json, to_json

from zndraw_joblib.contract.problems import InvalidPayload, InvalidSchema
from zndraw_joblib.server.service import schema_effort
from zndraw_joblib.server.service.schema_cache import SchemaCache

# The schema of jobs that were registered without one.
ANY_PAYLOAD = "{}"
MAX_LISTED_ERRORS = 100
# Effort times bytes. Below these values, listing all errors with their pointers takes about as long.
MAX_QUICK_LISTING = 10_000_000
MAX_LISTING = 100_000_000
_BYTES_PER_ERROR = 1000
_MAX_MESSAGE = 1000
_MAX_REASONS = 3
_MAX_ALTERNATIVES = 4
# Of the patterns of one schema: their number, the characters of each, and the repetitions that it may count.
MAX_PATTERNS = 100
MAX_PATTERN_CHARACTERS = 2_000
MAX_REPETITIONS = 1_000
_MAX_PATTERN_BYTES = 1_000_000
_MAX_CACHED_BYTES = 1 << 28
# About what a compiled schema needs: for each of its characters, and for each pattern.
_BYTES_PER_CHARACTER, _BYTES_PER_PATTERN = 32, 2 * _MAX_PATTERN_BYTES
_REPETITION = re.compile(r"\{(\d+)?(?:,(\d*))?\}")
# Values, which are no schemas.
_VALUES = frozenset({"const", "default", "enum", "examples"})


class UnvalidatedPayload(Exception):
    """A payload must be validated against `schema`, given as JSON, before its task is submitted."""

    def __init__(self, schema: str) -> None:
        super().__init__("the payload must be validated against the job's current schema")
        self.schema = schema


class Check(NamedTuple):
    """The result of a quick check: the errors, None if another process must finish the check.

    `effort` and `listing` estimate the work of a validation and of listing its errors.
    """

    effort: float
    listing: float
    errors: list[dict[str, str]] | None


def check_schema(schema: str) -> None:
    """Raise `InvalidSchema` if payloads cannot be validated against `schema`, given as JSON.

    Compiling may take seconds and hundreds of megabytes, unless the effort of the schema is quick.
    """
    for number, pattern in enumerate(_patterns(from_json(schema))):
        if number == MAX_PATTERNS:
            raise InvalidSchema(f"schema: it has more than {MAX_PATTERNS} patterns; use fewer")
        _check_pattern(pattern)
    _VALIDATORS.get(schema)


def _patterns(node: Any, values: frozenset[str] = _VALUES) -> Iterator[str]:
    """Return the patterns of a schema, but not those in lists of `values`."""
    if isinstance(node, list):
        for item in node:
            yield from _patterns(item, values)
    if isinstance(node, dict):
        if isinstance(node.get("pattern"), str):
            yield node["pattern"]
        if isinstance(node.get("patternProperties"), dict):
            yield from node["patternProperties"]
        for key, value in node.items():
            if key not in values or isinstance(value, dict):
                yield from _patterns(value, values)


def _check_pattern(pattern: str) -> None:
    if len(pattern) > MAX_PATTERN_CHARACTERS:
        raise InvalidSchema(
            f"schema: the pattern {pattern[:100]!r}… has {len(pattern)} characters; at most "
            f"{MAX_PATTERN_CHARACTERS} are allowed"
        )
    counts = [int(count) for found in _REPETITION.finditer(pattern) for count in found.groups() if count]
    if max(counts, default=0) > MAX_REPETITIONS:
        raise InvalidSchema(
            f"schema: the pattern {pattern[:100]!r} repeats a part more than {MAX_REPETITIONS} times; use "
            "`minLength` and `maxLength`"
        )


def check_quickly(schema: str, payload: dict[str, Any]) -> Check:
    """Validate a payload against a schema, given as JSON, if that takes at most some milliseconds."""
    size, estimate = len(to_json(payload)), schema_effort.estimate(schema)
    effort = estimate.of(size)
    listing = effort * (size + _BYTES_PER_ERROR)
    if effort > schema_effort.MAX_QUICK_EFFORT or not estimate.is_quick:
        return Check(effort, listing, None)
    if is_valid(schema, payload):
        return Check(effort, listing, [])
    return Check(effort, listing, list_errors(schema, payload) if listing <= MAX_QUICK_LISTING else None)


def is_valid(schema: str, payload: Any) -> bool:
    """Return whether a payload matches a schema."""
    return _VALIDATORS.get(schema).is_valid(payload)


def first_error(schema: str, payload: Any) -> dict[str, str]:
    """Return the first error of a payload that has one, without listing the others."""
    try:
        _VALIDATORS.get(schema).validate(payload)
    except jsonschema_rs.ValidationError as error:
        return _error(error)
    raise AssertionError("the payload matches its schema")


def list_errors(schema: str, payload: Any) -> list[dict[str, str]]:
    """Return the first hundred errors of a payload, each with its JSON pointer.

    The validator finds all errors before it returns the first one.
    """
    return [
        _error(error) for error in islice(_VALIDATORS.get(schema).iter_errors(payload), MAX_LISTED_ERRORS)
    ]


def _error(error: jsonschema_rs.ValidationError) -> dict[str, str]:
    pointer = "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in error.instance_path)
    return {"pointer": pointer[:1000], "message": _shortened(_message(error), _MAX_MESSAGE)}


def _message(error: jsonschema_rs.ValidationError) -> str:
    """Return why a value is refused; of alternatives, like `anyOf`, why each of the first ones is."""
    alternatives = islice(getattr(error.kind, "context", None) or (), _MAX_ALTERNATIVES)
    reasons = [_reason(faults[0], len(error.instance_path)) for faults in alternatives if faults]
    return f"no alternative fits: {'; or '.join(reasons)}" if reasons else error.message


def _reason(error: jsonschema_rs.ValidationError, depth: int) -> str:
    place = "/".join(map(str, error.instance_path[depth:]))
    text = _shortened(error.message, _MAX_MESSAGE // _MAX_ALTERNATIVES - len(place[:100]))
    return f"{place[:100]}: {text}" if place else text


def _shortened(text: str, length: int) -> str:
    """Return a message of at most `length` characters: it begins with the value, and the reason follows."""
    begin = length // 4
    return text if len(text) <= length else f"{text[:begin]} … {text[begin + 3 - length :]}"


def raise_if_invalid(found: list[dict[str, str]]) -> None:
    """Raise `InvalidPayload` with these errors, if there are any."""
    if found:
        listed = [f"payload{error['pointer']}: {error['message']}" for error in found[:_MAX_REASONS]]
        more = len(found) - _MAX_REASONS
        raise InvalidPayload("; ".join(listed) + (f" (and {more} more)" if more > 0 else ""), errors=found)


def _compiled(schema: str) -> jsonschema_rs.Validator:
    # Offline, and with a linear-time regex engine: any user who may register a job sends schemas.
    try:
        return jsonschema_rs.validator_for(
            from_json(schema),
            offline=True,
            pattern_options=jsonschema_rs.RegexOptions(size_limit=_MAX_PATTERN_BYTES),
        )
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        raise InvalidSchema(f"schema: {str(error)[:1000]}") from error


def _compiled_bytes(schema: str) -> int:
    has_patterns = '"pattern' in schema
    patterns = sum(1 for _ in _patterns(from_json(schema), frozenset())) if has_patterns else 0
    return _BYTES_PER_CHARACTER * len(schema) + _BYTES_PER_PATTERN * patterns


_VALIDATORS = SchemaCache(_MAX_CACHED_BYTES, _compiled, _compiled_bytes)
