"""Validate payloads against the schemas of jobs, and estimate the effort beforehand."""

from functools import lru_cache
from itertools import islice
from math import inf
from typing import Any, NamedTuple

import jsonschema_rs
from pydantic_core import from_json, to_json

from zndraw_joblib.contract.problems import InvalidPayload, InvalidSchema

# The schema of jobs that were registered without one.
ANY_PAYLOAD = "{}"
MAX_LISTED_ERRORS = 100
# Subschemas times bytes of payload. A validation below the first takes at most about 3 ms, which the event
# loop can afford; one below the second takes at most some tens of milliseconds.
MAX_QUICK_EFFORT = 100_000
MAX_EFFORT = 2_000_000
# Effort times bytes. Below these values, listing all errors with their pointers takes about as long.
MAX_QUICK_LISTING = 10_000_000
MAX_LISTING = 100_000_000
_BYTES_PER_ERROR = 1000
_MAX_MESSAGE = 1000
_MAX_REASONS = 3
_MAX_ALTERNATIVES = 4
# The effort of some keywords per byte, in subschemas. The size limit of patterns bounds their states.
_PATTERN_EFFORT = 1000
_DECIMAL_EFFORT = 1000
_FORMAT_EFFORT = 10
_MAX_SMALL_INTEGER = 1_000_000
_MAX_PATTERN_BYTES = 1_000_000


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
    """Raise `InvalidSchema` if payloads cannot be validated against `schema`, given as JSON."""
    _validator(schema)


def check_quickly(schema: str, payload: dict[str, Any]) -> Check:
    """Validate a payload against a schema, given as JSON, if that takes at most some milliseconds."""
    size, subschemas = len(to_json(payload)), estimate_effort(schema)
    # A schema without subschemas checks the payload only as a whole.
    effort = subschemas * size if subschemas > 1 else 0
    listing = effort * (size + _BYTES_PER_ERROR)
    if effort > MAX_QUICK_EFFORT:
        return Check(effort, listing, None)
    if is_valid(schema, payload):
        return Check(effort, listing, [])
    return Check(effort, listing, list_errors(schema, payload) if listing <= MAX_QUICK_LISTING else None)


def is_valid(schema: str, payload: Any) -> bool:
    """Return whether a payload matches a schema."""
    return _validator(schema).is_valid(payload)


def first_error(schema: str, payload: Any) -> dict[str, str]:
    """Return the first error of a payload that has one, without listing the others."""
    try:
        _validator(schema).validate(payload)
    except jsonschema_rs.ValidationError as error:
        return _error(error)
    raise AssertionError("the payload matches its schema")


def list_errors(schema: str, payload: Any) -> list[dict[str, str]]:
    """Return the first hundred errors of a payload, each with its JSON pointer.

    The validator finds all errors before it returns the first one.
    """
    return [_error(error) for error in islice(_validator(schema).iter_errors(payload), MAX_LISTED_ERRORS)]


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


@lru_cache(maxsize=512)
def estimate_effort(schema: str) -> float:
    """Return the number of subschemas once every reference is replaced by its target.

    A list counts as its length, because a value may be compared with each item. A pattern, and a `multipleOf`
    that is not a small integer, count as a thousand, a format as ten.
    The result is infinite for a recursive schema and for one that refers to anything outside itself.
    """
    root = from_json(schema)
    known: dict[int, float] = {}

    def count(node: Any) -> float:
        if not isinstance(node, dict | list):
            return 0
        if id(node) not in known:
            known[id(node)] = inf  # a node that is found again below itself is recursive
            inner = list(node.values()) if isinstance(node, dict) else list(node)
            if isinstance(node, dict):
                inner += [_target_of(root, node[key]) for key in _REFERENCES if key in node]
            known[id(node)] = 1 + _own_effort(node) + sum(map(count, inner))
        return known[id(node)]

    try:
        return count(root)
    except (AttributeError, LookupError, ValueError, TypeError, RecursionError):
        return inf


def _own_effort(node: dict[str, Any] | list[Any]) -> int:
    if isinstance(node, list):
        return len(node)
    patterns = len(node.get("patternProperties", ())) + ("pattern" in node)
    # A factor that is not an integer needs arithmetic of arbitrary precision.
    factor = node.get("multipleOf", 1)
    decimals = not isinstance(factor, int) or factor > _MAX_SMALL_INTEGER
    return _PATTERN_EFFORT * patterns + _DECIMAL_EFFORT * decimals + _FORMAT_EFFORT * ("format" in node)


_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


def _target_of(root: Any, reference: str) -> Any:
    found, (start, _, path) = root, reference.partition("/")
    if start != "#":
        raise ValueError("not a reference inside this document")
    for part in path.split("/") if path else ():
        name = part.replace("~1", "/").replace("~0", "~")
        found = found[int(name)] if isinstance(found, list) else found[name]
    return found


@lru_cache(maxsize=512)
def _validator(schema: str) -> jsonschema_rs.Validator:
    # Offline, and with a linear-time regex engine: any user who may register a job sends schemas.
    try:
        return jsonschema_rs.validator_for(
            from_json(schema),
            offline=True,
            pattern_options=jsonschema_rs.RegexOptions(size_limit=_MAX_PATTERN_BYTES),
        )
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        raise InvalidSchema(f"schema: {str(error)[:1000]}") from error
