"""Does a payload fit the schema of its job? And how much work is it to find out?"""

from functools import lru_cache
from itertools import islice
from math import inf
from typing import Any

import jsonschema_rs
from pydantic_core import from_json, to_json

from zndraw_joblib.contract.problems import InvalidPayload, InvalidSchema

MAX_LISTED_ERRORS = 100
# Subschemas times bytes of payload: what is surely done within some tens of milliseconds.
MAX_EFFORT = 2_000_000
# The same times bytes again, for all faults are listed, each with its place: that is as soon done.
MAX_LISTING = 100_000_000
_BYTES_A_FAULT = 1000
# What a pattern costs a byte, in subschemas: it may be in as many states, which its size bounds.
_PATTERN_EFFORT = 1000
_PATTERN_BYTES = 1_000_000


class ExpensiveValidation(Exception):
    """To check a payload against `schema`, given as JSON, may take longer than an event loop can stand."""

    def __init__(self, schema: str) -> None:
        super().__init__("the payload is to be checked where it holds up nobody")
        self.schema = schema


def check_schema(schema: str) -> None:
    """Raise `InvalidSchema` where payloads could not be checked against `schema`, given as JSON."""
    _validator(schema)


def check(schema: str, payload: dict[str, Any], validated_schema: str | None = None) -> None:
    """Raise `InvalidPayload` with every fault of `payload` by `schema`, given as JSON, or `MuchWork`.

    `validated_schema` is a schema that the payload is known to fit.
    """
    if schema == validated_schema:
        return
    size = len(to_json(payload))
    work = estimate_effort(schema) * size
    if work > MAX_EFFORT:
        raise ExpensiveValidation(schema)
    if is_valid(schema, payload):
        return
    if work * (size + _BYTES_A_FAULT) > MAX_LISTING:
        raise ExpensiveValidation(schema)
    raise_if_invalid(list_errors(schema, payload))


def is_valid(schema: str, payload: Any) -> bool:
    """Tell whether a payload has no fault."""
    return _validator(schema).is_valid(payload)


def first_error(schema: str, payload: Any) -> dict[str, str]:
    """Return the first fault of a payload that has one, without looking for more."""
    try:
        _validator(schema).validate(payload)
    except jsonschema_rs.ValidationError as fault:
        return _said(fault)
    raise AssertionError("the payload fits")


def list_errors(schema: str, payload: Any) -> list[dict[str, str]]:
    """Return the first hundred faults of a payload, each with its JSON pointer.

    All are found before the first is returned, so this takes as long as there are many.
    """
    return [_said(fault) for fault in islice(_validator(schema).iter_errors(payload), MAX_LISTED_ERRORS)]


def _said(fault: jsonschema_rs.ValidationError) -> dict[str, str]:
    pointer = "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in fault.instance_path)
    return {"pointer": pointer[:1000], "message": fault.message[:1000]}


def raise_if_invalid(found: list[dict[str, str]]) -> None:
    """Raise `InvalidPayload` with these faults, if there are any."""
    if found:
        first, more = found[0], len(found) - 1
        raise InvalidPayload(
            f"payload{first['pointer']}: {first['message']}" + (f" (and {more} more)" if more else ""),
            errors=found,
        )


@lru_cache(maxsize=512)
def estimate_effort(schema: str) -> float:
    """Return how many subschemas there are once every reference is replaced by what it refers to.

    A list counts as what it holds, for a value may be compared with all of it, and a pattern as a thousand.
    Infinite for a schema that contains itself, or refers to anything but a place of its own.
    """
    root = from_json(schema)
    known: dict[int, float] = {}

    def count(node: Any) -> float:
        if not isinstance(node, dict | list):
            return 0
        if id(node) not in known:
            known[id(node)] = inf  # what is met again on the way down contains itself
            inner = list(node.values()) if isinstance(node, dict) else list(node)
            if isinstance(node, dict):
                inner += [_referred(root, node[key]) for key in _REFERENCES if key in node]
            known[id(node)] = 1 + _by_itself(node) + sum(map(count, inner))
        return known[id(node)]

    try:
        return count(root)
    except (AttributeError, LookupError, ValueError, TypeError, RecursionError):
        return inf


def _by_itself(node: dict[str, Any] | list[Any]) -> int:
    if isinstance(node, list):
        return len(node)
    patterns = node.get("patternProperties", ())
    return _PATTERN_EFFORT * (len(patterns) + ("pattern" in node))


_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


def _referred(root: Any, reference: str) -> Any:
    found, (start, _, path) = root, reference.partition("/")
    if start != "#":
        raise ValueError("not a place of this document")
    for part in path.split("/") if path else ():
        name = part.replace("~1", "/").replace("~0", "~")
        found = found[int(name)] if isinstance(found, list) else found[name]
    return found


@lru_cache(maxsize=512)
def _validator(schema: str) -> jsonschema_rs.Validator:
    # Offline, and with a linear-time regex engine: a schema comes from anybody who may register.
    try:
        return jsonschema_rs.validator_for(
            from_json(schema),
            offline=True,
            pattern_options=jsonschema_rs.RegexOptions(size_limit=_PATTERN_BYTES),
        )
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        raise InvalidSchema(f"schema: {str(error)[:1000]}") from error
