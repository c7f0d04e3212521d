"""Estimate the effort of validating payloads against a schema, without compiling the schema."""

import re
from math import inf
from typing import Any, NamedTuple

from pydantic_core import from_json

from zndraw_joblib.server.service.schema_cache import SchemaCache

# The event loop can afford a check below the first effort, which takes at most about 3 ms; one below the
# second takes at most some tens of milliseconds.
MAX_QUICK_EFFORT = 100_000
MAX_EFFORT = 2_000_000
# The event loop compiles schemas of at most this length, which takes at most about 5 ms.
_MAX_QUICK_LENGTH = 8_192
_MAX_LENGTH, _MAX_NODES = 65_536, 3_000
_MAX_CACHED_BYTES = 1 << 22
# The effort of some keywords per byte, in subschemas. The size limit of patterns bounds their states.
_PATTERN_EFFORT = 1000
_DECIMAL_EFFORT = 1000
_FORMAT_EFFORT = 10
_MAX_SMALL_INTEGER = 1_000_000
# `uniqueItems` compares all pairs of items in the worst case: a comparison is as much effort as this number
# of bytes of the payload.
_BYTES_PER_COMPARISON = 50
# References of other forms may be resolved in another way by the validator than by this module.
_POINTER = re.compile(r"#(/[\w.~$-]*)*", re.ASCII)
# What a schema with one of these keywords refers to, or how often a value is checked, is not estimated.
_UNESTIMATED = frozenset(
    {"$anchor", "$dynamicAnchor", "$dynamicRef", "$recursiveAnchor", "$recursiveRef"}
    | {"unevaluatedItems", "unevaluatedProperties"}
)
# Allowed in the root of a schema only. Below it, they change what a reference means.
_ROOT_KEYWORDS = frozenset({"$id", "$schema"})
_DEFAULT_DRAFT = "https://json-schema.org/draft/2020-12/schema"
# In drafts before the default one, formats are checked, and a schema's own lists may have to be unique.
_KNOWN_DRAFTS = frozenset(
    {_DEFAULT_DRAFT, "https://json-schema.org/draft/2019-09/schema"}
    | {f"http://json-schema.org/draft-0{number}/schema{end}" for number in (6, 7) for end in ("", "#")}
)


class Effort(NamedTuple):
    """The effort of validating payloads against a schema.

    `subschemas` is the number of subschemas once every reference is replaced by its target; a keyword that
    takes more work counts as several. Of these, `unique` require that the items of a list differ. The event
    loop may compile the schema if `is_quick`.
    """

    subschemas: float
    unique: float = 0
    is_quick: bool = False

    def of(self, size: int) -> float:
        """Return the effort for a payload of `size` bytes."""
        # A schema without subschemas checks the payload only as a whole.
        per_byte = self.subschemas + self.unique * size / _BYTES_PER_COMPARISON
        return per_byte * size if self.subschemas > 1 else 0


_UNKNOWN = Effort(inf)


class _Unestimated(Exception):
    """The schema contains something whose effort this module does not estimate."""


def _estimate(schema: str) -> Effort:
    try:
        root = from_json(schema)
        subschemas, unique, patterns = _Counter(root).count(root)
    except (_Unestimated, AttributeError, LookupError, ValueError, TypeError, RecursionError):
        return _UNKNOWN
    draft = root.get("$schema", _DEFAULT_DRAFT) if isinstance(root, dict) else _DEFAULT_DRAFT
    effort = Effort(subschemas, unique)
    is_short = len(schema) <= _MAX_QUICK_LENGTH and effort.of(len("{}")) <= MAX_QUICK_EFFORT
    return effort._replace(is_quick=is_short and not patterns and draft == _DEFAULT_DRAFT)


_EFFORTS = SchemaCache(_MAX_CACHED_BYTES, _estimate, lambda schema: 500 + len(schema))


def estimate(schema: str) -> Effort:
    """Return the effort of a schema, given as JSON.

    A list counts as its length, because a value may be compared with each item. A pattern, and a `multipleOf`
    that is not a small integer, count as a thousand, a format as ten. The effort is infinite for a recursive
    schema, for a reference that is not a plain pointer inside the schema, for `unevaluatedItems` and
    `unevaluatedProperties`, for embedded ids, and for a very long schema.
    """
    return _EFFORTS.get(schema) if len(schema) <= _MAX_LENGTH else _UNKNOWN


class _Counter:
    """Counts the subschemas of a schema, of these the ones with `uniqueItems`, and the patterns."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._known: dict[int, tuple[float, float, float]] = {}

    def count(self, node: Any) -> tuple[float, float, float]:
        """Return the three numbers for a node, with its references replaced by their targets."""
        if not isinstance(node, dict | list):
            return 0, 0, 0
        counts = self._known.get(id(node))
        if counts is None:
            if len(self._known) >= _MAX_NODES:
                raise _Unestimated
            # A node that is found again below itself is recursive.
            self._known[id(node)] = inf, 0, 0
            counts = self._known[id(node)] = self._count(node)
        return counts

    def _count(self, node: dict[str, Any] | list[Any]) -> tuple[float, float, float]:
        inner = list(node.values()) if isinstance(node, dict) else node
        patterns = 0
        if isinstance(node, list):
            subschemas, unique = 1.0 + len(node), 0.0
        else:
            self._check_keywords(node)
            if "$ref" in node:
                inner.append(_target_of(self._root, node["$ref"]))
            patterns = len(node.get("patternProperties", ())) + ("pattern" in node)
            subschemas, unique = 1.0 + _own_effort(node) + _PATTERN_EFFORT * patterns, 0.0
            unique += node.get("uniqueItems") is True
        counts = subschemas, unique, float(patterns)
        for item in inner:
            if isinstance(item, dict | list):
                more = self.count(item)
                counts = counts[0] + more[0], counts[1] + more[1], counts[2] + more[2]
        return counts

    def _check_keywords(self, node: dict[str, Any]) -> None:
        if not _UNESTIMATED.isdisjoint(node) or node.get("format") == "regex":
            raise _Unestimated
        if node is not self._root and not _ROOT_KEYWORDS.isdisjoint(node):
            raise _Unestimated
        if node is self._root and node.get("$schema", _DEFAULT_DRAFT) not in _KNOWN_DRAFTS:
            raise _Unestimated


def _own_effort(node: dict[str, Any]) -> int:
    # A factor that is not an integer needs arithmetic of arbitrary precision.
    factor = node.get("multipleOf", 1)
    decimals = not isinstance(factor, int) or factor > _MAX_SMALL_INTEGER
    return _DECIMAL_EFFORT * decimals + _FORMAT_EFFORT * ("format" in node)


def _target_of(root: Any, reference: str) -> Any:
    if not _POINTER.fullmatch(reference):
        raise _Unestimated
    found = root
    for part in reference.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        found = found[int(name)] if isinstance(found, list) else found[name]
    return found
