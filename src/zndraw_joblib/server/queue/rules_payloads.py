"""Check schemas of jobs, estimate what a check of a payload costs, and validate payloads."""

import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import islice
from math import inf
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from pydantic_core import from_json, to_json

from zndraw_joblib.wire.masks import MASK, masked_paths, places_of_mask
from zndraw_joblib.wire.names import near_text
from zndraw_joblib.wire.problems import InvalidPayload, InvalidSchema

if TYPE_CHECKING:
    import jsonschema_rs

Value = TypeVar("Value")


class SchemaCache(Generic[Value]):
    """Keeps the values that `make(schema)` returned last, up to `max_bytes` of them.

    `size_of` estimates the bytes of a schema and its value. A larger value than all of them is not kept.
    """

    def __init__(
        self, max_bytes: int, make: Callable[[str], Value], size_of: Callable[[str], int] = len
    ) -> None:
        self._make, self._size_of = make, size_of
        self._max_bytes, self._bytes = max_bytes, 0
        self._values: OrderedDict[str, tuple[Value, int]] = OrderedDict()
        self._lock = Lock()

    def get(self, schema: str) -> Value:
        """Return the value for a schema. Raises what `make` raises."""
        with self._lock:
            entry = self._values.get(schema)
            if entry is not None:
                self._values.move_to_end(schema)
                return entry[0]
        value, size = self._make(schema), self._size_of(schema)
        with self._lock:
            if size <= self._max_bytes and schema not in self._values:
                self._values[schema] = value, size
                self._bytes += size
                while self._bytes > self._max_bytes:
                    self._bytes -= self._values.popitem(last=False)[1][1]
        return value


# Estimate the effort of validating payloads against a schema, without compiling the schema.

# The event loop can afford a check below the first effort, which takes at most about 3 ms; one below the
# second takes at most some tens of milliseconds.
MAX_QUICK_EFFORT = 100_000
MAX_EFFORT = 2_000_000
# The event loop compiles schemas of at most this length, which takes at most about 5 ms.
_MAX_QUICK_LENGTH = 8_192
_MAX_LENGTH, _MAX_NODES = 65_536, 3_000
_MAX_ESTIMATED_BYTES = 1 << 22
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


_EFFORTS = SchemaCache(_MAX_ESTIMATED_BYTES, _estimate, lambda schema: 500 + len(schema))


def estimate_effort(schema: str) -> Effort:
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
                inner.append(target_of(self._root, node["$ref"]))
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


def target_of(root: Any, reference: str) -> Any:
    """Return what a plain reference refers to. Raises LookupError or ValueError for any other."""
    if not _POINTER.fullmatch(reference):
        raise LookupError(reference)
    target = root
    for part in reference.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        target = target[int(name)] if isinstance(target, list) else target[name]
    return target


# Validate payloads against the schemas of jobs.

# The schema of jobs that were registered without one.
ANY_PAYLOAD = "{}"
MAX_LISTED_ERRORS = 100
# Effort times bytes. Below these values, listing all errors with their pointers takes about as long.
MAX_QUICK_LISTING = 10_000_000
MAX_LISTING = 100_000_000
_BYTES_PER_ERROR = 1000
_MAX_MESSAGE = 1000
_MAX_REASONS = 3
# The most names of the schema that an unknown field is compared with, and the most characters of each.
_MAX_COMPARED = 50
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
    counts = [int(count) for match in _REPETITION.finditer(pattern) for count in match.groups() if count]
    if max(counts, default=0) > MAX_REPETITIONS:
        raise InvalidSchema(
            f"schema: the pattern {pattern[:100]!r} repeats a part more than {MAX_REPETITIONS} times; use "
            "`minLength` and `maxLength`"
        )


def check_quickly(schema: str, payload: dict[str, Any]) -> Check:
    """Validate a payload against a schema, given as JSON, if that takes at most some milliseconds."""
    size, estimate = len(to_json(payload)), estimate_effort(schema)
    effort = estimate.of(size)
    listing = effort * (size + _BYTES_PER_ERROR)
    if effort > MAX_QUICK_EFFORT or not estimate.is_quick:
        return Check(effort, listing, None)
    if is_valid(schema, payload):
        return Check(effort, listing, [])
    return Check(effort, listing, list_errors(schema, payload) if listing <= MAX_QUICK_LISTING else None)


def is_valid(schema: str, payload: Any) -> bool:
    """Return whether a payload matches a schema."""
    return _VALIDATORS.get(schema).is_valid(payload)


def first_error(schema: str, payload: Any) -> dict[str, str]:
    """Return the first error of a payload that has one, without listing the others."""
    import jsonschema_rs  # noqa: PLC0415 - see `_compiled`

    try:
        _VALIDATORS.get(schema).validate(payload)
    except jsonschema_rs.ValidationError as error:
        return _explained([error], schema)[0]
    raise AssertionError("the payload matches its schema")


def list_errors(schema: str, payload: Any) -> list[dict[str, str]]:
    """Return the first hundred errors of a payload, each with its JSON pointer.

    The validator finds all errors before it returns the first one.
    """
    errors = islice(_VALIDATORS.get(schema).iter_errors(payload), MAX_LISTED_ERRORS)
    return _explained(list(errors), schema)


def _explained(errors: list["jsonschema_rs.ValidationError"], schema: str) -> list[dict[str, str]]:
    """Return the errors; the first unknown field has the name of one that may be meant."""
    explained = list(map(_error, errors))
    for error, fields in zip(errors, explained, strict=True):
        if unexpected := getattr(error.kind, "unexpected", ()):
            fields["message"] += _meant(unexpected[0], error, schema)
            break
    return explained


def _error(error: "jsonschema_rs.ValidationError") -> dict[str, str]:
    pointer = "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in error.instance_path)
    return {"pointer": pointer[:1000], "message": _shortened(_message(error), _MAX_MESSAGE)}


def _meant(name: str, error: "jsonschema_rs.ValidationError", schema: str) -> str:
    part = from_json(schema)
    try:
        for key in error.schema_path[:-1]:
            part = part[key]
    except (IndexError, KeyError, TypeError):  # the path begins at a schema with an `$id`
        return ""
    short = (other for other in part.get("properties", ()) if len(other) <= _MAX_COMPARED)
    return near_text(name, list(islice(short, _MAX_COMPARED))) if len(name) <= _MAX_COMPARED else ""


def _message(error: "jsonschema_rs.ValidationError") -> str:
    """Return why a value is refused; of alternatives, like `anyOf`, why each of the first ones is."""
    alternatives = islice(getattr(error.kind, "context", None) or (), _MAX_ALTERNATIVES)
    reasons = [_reason(faults[0], len(error.instance_path)) for faults in alternatives if faults]
    return f"no alternative fits: {'; or '.join(reasons)}" if reasons else error.message


def _reason(error: "jsonschema_rs.ValidationError", depth: int) -> str:
    place = "/".join(map(str, error.instance_path[depth:]))
    text = _shortened(error.message, _MAX_MESSAGE // _MAX_ALTERNATIVES - len(place[:100]))
    return f"{place[:100]}: {text}" if place else text


def _shortened(text: str, length: int) -> str:
    """Return a message of at most `length` characters: it begins with the value, and the reason follows."""
    begin = length // 4
    return text if len(text) <= length else f"{text[:begin]} … {text[begin + 3 - length :]}"


def raise_if_invalid(errors: list[dict[str, str]]) -> None:
    """Raise `InvalidPayload` with these errors, if there are any."""
    if errors:
        listed = [f"payload{error['pointer']}: {error['message']}" for error in errors[:_MAX_REASONS]]
        more = len(errors) - _MAX_REASONS
        raise InvalidPayload("; ".join(listed) + (f" (and {more} more)" if more > 0 else ""), errors=errors)


def mask_fault(payload: Any, paths: str | None) -> InvalidPayload | None:
    """Return the problem of a payload with the mask in the place of a secret value, as answers have it."""
    if paths is None or not (places := places_of_mask(payload, paths)):
        return None
    text = f"{MASK} stands for a secret value in answers; give the value itself, or leave it out"
    errors = [{"pointer": place[:1000], "message": text} for place in places[:MAX_LISTED_ERRORS]]
    try:
        raise_if_invalid(errors)
    except InvalidPayload as problem:
        return problem
    return None


def without_places(fault: InvalidPayload, places: Collection[str]) -> InvalidPayload | None:
    """Return the problem of a payload without errors at these pointers: of values that are replaced later."""
    errors = (fault.problem.model_extra or {}).get("errors", [])
    if not places or not errors:
        return fault
    try:
        raise_if_invalid(errors_outside(errors, places))
    except InvalidPayload as problem:
        return problem
    return None


def errors_outside(errors: Iterable[Mapping[str, str]], places: Collection[str]) -> list[dict[str, str]]:
    """Return the errors of a payload that are at none of these JSON pointers, nor below."""
    # A payload may have ten thousands of places.
    within = frozenset(places)
    return [dict(error) for error in errors if within.isdisjoint(_pointers_above(error["pointer"]))]


def _pointers_above(pointer: str) -> Iterator[str]:
    """Yield a pointer, and those of all values that the value is in."""
    yield pointer
    while pointer:
        pointer = pointer.rpartition("/")[0]
        yield pointer


_MAX_SCHEMA_ERROR = 1000


def _compiled(schema: str) -> "jsonschema_rs.Validator":
    # It is loaded for the first schema: many servers have none, and it takes 3 MiB.
    import jsonschema_rs  # noqa: PLC0415

    # Offline, and with a linear-time regex engine: any user who may register a job sends schemas.
    try:
        parsed = from_json(schema)
        return jsonschema_rs.validator_for(
            parsed,
            offline=True,
            # Errors have no values of a payload with secrets: the value of an object has all inside it.
            mask=None if masked_paths(parsed) is None else "the value",
            pattern_options=jsonschema_rs.RegexOptions(size_limit=_MAX_PATTERN_BYTES),
        )
    except jsonschema_rs.ValidationError as error:
        if isinstance(error.kind, jsonschema_rs.ValidationErrorKind.Referencing):
            reason = error.message.partition(" and retrieving")[0][:_MAX_SCHEMA_ERROR]
            raise InvalidSchema(
                f"schema: a $ref refers to nothing inside the schema: {reason}. Put the definition into "
                "$defs, and refer to it as #/$defs/name; schemas elsewhere are not loaded"
            ) from error
        place = "".join(f"/{part}" for part in error.instance_path)
        raise InvalidSchema(f"schema{place}: {error.message}"[:_MAX_SCHEMA_ERROR]) from error
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        raise InvalidSchema(f"schema: {error}"[:_MAX_SCHEMA_ERROR]) from error


def _compiled_bytes(schema: str) -> int:
    has_patterns = '"pattern' in schema
    patterns = sum(1 for _ in _patterns(from_json(schema), frozenset())) if has_patterns else 0
    return _BYTES_PER_CHARACTER * len(schema) + _BYTES_PER_PATTERN * patterns


_VALIDATORS = SchemaCache(_MAX_CACHED_BYTES, _compiled, _compiled_bytes)


def _compiled_if_small(schema: str) -> "jsonschema_rs.Validator | None":
    effort = estimate_effort(schema)
    return _VALIDATORS.get(schema) if effort.is_quick and effort.subschemas <= 1 else None


_SMALL = SchemaCache(
    _MAX_ESTIMATED_BYTES, _compiled_if_small, lambda schema: _BYTES_PER_CHARACTER * len(schema)
)


def is_surely_valid(schema: str, payload: Any) -> bool:
    """Return whether a payload matches a small schema: checking it is faster than parsing the payload.

    False says nothing about a larger schema.
    """
    validator = _SMALL.get(schema)
    return validator is not None and validator.is_valid(payload)
