"""Compare the schemas of a job: which are the same, which one accepts all that another accepts.

Users send the schemas, so all work is bounded. What is not understood counts as different.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from zndraw_joblib.server.queue.rules_payloads import target_of

MAX_DIFFERENCES = 20
# A step takes some microseconds.
_MAX_STEPS = 10_000
_MAX_DEPTH = 64
_MAX_VALUE = 200
_DRAFT = "https://json-schema.org/draft/2020-12/schema"
# They do not change what a schema accepts, nor do keywords that begin with "x-".
_ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly"}
    | {"$comment", "discriminator"}
)
# What is found only by references.
_DEFINITIONS = frozenset({"$defs", "definitions"})
_SCHEMAS = frozenset(
    {"additionalProperties", "items", "contains", "not", "if", "then", "else", "propertyNames"}
    | {"unevaluatedItems", "unevaluatedProperties", "additionalItems"}
)
_SCHEMA_MAPS = frozenset({"properties", "patternProperties", "dependentSchemas"}) | _DEFINITIONS
_SCHEMA_LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_SETS = frozenset({"required", "enum", "type"})
# With one of these, a reference may mean something else.
_SCOPES = frozenset(
    {"$id", "$anchor", "$dynamicAnchor", "$dynamicRef", "$recursiveAnchor", "$recursiveRef", "$vocabulary"}
)
_OBJECT = frozenset({"properties", "patternProperties", "additionalProperties"})
# What says something about properties without a schema of their own.
_CLOSING = frozenset({"additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames"})
_ARRAY = frozenset({"items", "prefixItems"})
_ALL_TYPES = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})
# Keywords that say something about values of these types only.
_TYPES_OF = {
    **dict.fromkeys(("minLength", "maxLength", "pattern"), frozenset({"string"})),
    **dict.fromkeys(
        ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
        frozenset({"integer", "number"}),
    ),
    **dict.fromkeys(
        (*_ARRAY, "minItems", "maxItems", "uniqueItems", "contains", "minContains", "maxContains"),
        frozenset({"array"}),
    ),
    **dict.fromkeys(
        (*_OBJECT, "required", "minProperties", "maxProperties", "propertyNames", "dependentRequired"),
        frozenset({"object"}),
    ),
}
# They are compared by the parts that they refer to.
_RESOLVED = frozenset({"$ref", "allOf", "$schema"})
# One of these changes what the others mean.
_TOGETHER = (("if", "then", "else"), ("contains", "minContains", "maxContains"))
_ABSENT = object()


class _NotUnderstood(Exception):
    """A schema has something that this module does not compare, or takes too long."""


def are_same(schema: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two schemas differ in annotations and in the order of their parts only."""
    try:
        return _text(schema, _Steps()) == _text(other, _Steps())
    except _NotUnderstood:
        return bool(schema == other)


def accepts(
    schema: Mapping[str, Any],
    other: Mapping[str, Any],
    *,
    strict: bool = False,
    steps: "_Steps | None" = None,
) -> bool:
    """Return whether a schema surely accepts what another one accepts.

    An object with `properties`, and nothing about others, is taken to have no others: `schema` may name more
    properties than `other`, unless these are required, but not fewer, because a worker would ignore them. If
    `strict` is set, such an object may have any others, as in JSON Schema.
    """
    try:
        return _Comparison(schema, other, steps or _Steps(), is_strict=strict).accepts(schema, [other], 0)
    except (
        _NotUnderstood,
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        ArithmeticError,
        RecursionError,
    ):
        return False


def accepted(schema: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> list[bool]:
    """Return which of other schemas a schema surely accepts. All of them together take a bounded time."""
    steps = _Steps()
    return [accepts(schema, other, steps=steps) or are_same(schema, other) for other in others]


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[dict[str, Any]]:
    """Return where two schemas differ, annotations aside: pointers with the `old` and the `new` value.

    A long value is the begin of its JSON.
    """
    listed: list[dict[str, Any]] = []
    steps = _Steps()
    try:
        for pointer, before, after in _differing(old, new, "", steps):
            values = {
                name: _shortened(value)
                for name, value in (("old", before), ("new", after))
                if value is not _ABSENT
            }
            listed.append({"pointer": pointer, **values})
            if len(listed) == MAX_DIFFERENCES:
                break
    except _NotUnderstood:
        pass
    return listed


class _Steps:
    """Counts steps. Raises `_NotUnderstood` beyond the limit of steps or of depth."""

    def __init__(self) -> None:
        self._number = 0

    def count(self, depth: int = 0, number: int = 1) -> None:
        self._number += number
        if self._number > _MAX_STEPS or depth > _MAX_DEPTH:
            raise _NotUnderstood


def _is_annotation(keyword: str) -> bool:
    return keyword in _ANNOTATIONS or keyword.startswith("x-")


def _text(schema: Any, steps: _Steps) -> str:
    return json.dumps(_normal(schema, steps, 0), sort_keys=True)


def _normal(schema: Any, steps: _Steps, depth: int) -> Any:
    """Return a schema without annotations, and with its sets in order."""
    steps.count(depth)
    if not isinstance(schema, Mapping):
        return schema
    return {
        keyword: _normal_value(keyword, value, steps, depth + 1)
        for keyword, value in schema.items()
        if not _is_annotation(keyword)
    }


def _normal_value(keyword: str, value: Any, steps: _Steps, depth: int) -> Any:
    if keyword in _SCHEMAS:
        return _normal(value, steps, depth)
    if keyword in _SCHEMA_MAPS and isinstance(value, Mapping):
        return {name: _normal(schema, steps, depth) for name, schema in value.items()}
    if keyword in _SCHEMA_LISTS and isinstance(value, list):
        return [_normal(schema, steps, depth) for schema in value]
    if keyword in _SETS and isinstance(value, list):
        steps.count(depth, len(value))
        return sorted(json.dumps(item, sort_keys=True) for item in value)
    return value


def _differing(old: Any, new: Any, pointer: str, steps: _Steps) -> Iterator[tuple[str, Any, Any]]:
    """Yield where two schemas differ: a pointer, and both values."""
    steps.count(pointer.count("/"))
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        if json.dumps(old, sort_keys=True) != json.dumps(new, sort_keys=True):
            yield pointer, old, new
        return
    for keyword in {**old, **new}:
        if not _is_annotation(keyword):
            before, after = old.get(keyword, _ABSENT), new.get(keyword, _ABSENT)
            place = f"{pointer}/{_escaped(keyword)}"
            if _ABSENT in (before, after):
                yield place, before, after
            else:
                yield from _differing_values(keyword, (before, after), place, steps)


def _differing_values(
    keyword: str, values: tuple[Any, Any], pointer: str, steps: _Steps
) -> Iterator[tuple[str, Any, Any]]:
    """Yield where the values of a keyword differ."""
    before, after = values
    if keyword in _SCHEMAS:
        yield from _differing(before, after, pointer, steps)
        return
    if keyword in _SCHEMA_LISTS and isinstance(before, list) and isinstance(after, list):
        before, after = dict(enumerate(before)), dict(enumerate(after))
    elif keyword not in _SCHEMA_MAPS or not isinstance(before, Mapping) or not isinstance(after, Mapping):
        if _value_text(keyword, before, steps) != _value_text(keyword, after, steps):
            yield pointer, before, after
        return
    for key in {**before, **after}:
        place = f"{pointer}/{_escaped(str(key))}"
        if key in before and key in after:
            yield from _differing(before[key], after[key], place, steps)
        else:
            yield place, before.get(key, _ABSENT), after.get(key, _ABSENT)


def _value_text(keyword: str, value: Any, steps: _Steps) -> str:
    return json.dumps(_normal_value(keyword, value, steps, 0), sort_keys=True)


def _escaped(part: str) -> str:
    return part.replace("~", "~0").replace("/", "~1")


def _shortened(value: Any) -> Any:
    text = json.dumps(value)
    return value if len(text) <= _MAX_VALUE else f"{text[:_MAX_VALUE]}…"


class _Comparison:
    """Compares parts of two schemas: `root` with `other_root`.

    `conjuncts` are schemas that a value meets, all of them. `depth` is how deep the value is in the payload.
    """

    def __init__(
        self, root: Mapping[str, Any], other_root: Mapping[str, Any], steps: _Steps, *, is_strict: bool
    ) -> None:
        self._root, self._other_root = root, other_root
        self._is_strict = is_strict
        self._steps = steps
        # Pairs that are being compared, each with the depth of the value.
        self._open: dict[tuple[int, ...], int] = {}
        for schema in (root, other_root):
            if schema.get("$schema", _DRAFT) != _DRAFT:
                raise _NotUnderstood

    def accepts(self, schema: Any, conjuncts: Sequence[Any], depth: int) -> bool:
        """Return whether a schema surely accepts each value that meets the conjuncts."""
        self._steps.count(depth)
        if schema is True or any(conjunct is False for conjunct in conjuncts):
            return True
        if schema is False:
            return False
        pair = (id(schema), *sorted(id(conjunct) for conjunct in conjuncts))
        if pair in self._open:
            # Inside a smaller value the comparison is the same again; for the same value it never ends.
            return self._open[pair] < depth
        self._open[pair] = depth
        try:
            required = self._flat(schema, self._root)
            met = [part for conjunct in conjuncts for part in self._flat(conjunct, self._other_root)]
            return all(self._meets(part, met, depth) for part in required)
        finally:
            del self._open[pair]

    def _flat(self, schema: Any, root: Any) -> list[Mapping[str, Any]]:
        """Return the parts of a schema that a value has to meet, without references and `allOf`."""
        parts: list[Mapping[str, Any]] = []
        rest, references = [schema], 0
        while rest:
            node = rest.pop()
            self._steps.count(references)
            if node is True:
                continue
            if node is False:
                parts.append({"enum": []})
                continue
            if not isinstance(node, Mapping) or not _SCOPES.isdisjoint(node):
                raise _NotUnderstood
            if "$schema" in node and node is not root:
                raise _NotUnderstood
            if "$ref" in node:
                references += 1
                rest.append(target_of(root, node["$ref"]))
            rest += node.get("allOf", ())
            parts.append(node)
        return parts

    def _meets(self, schema: Mapping[str, Any], met: Sequence[Mapping[str, Any]], depth: int) -> bool:
        """Return whether each value that meets all of `met` meets the keywords of a flat schema."""
        self._steps.count(depth)
        if self._meets_directly(schema, met, depth):
            return True
        # Otherwise each alternative must do so by itself.
        for index, part in enumerate(met):
            for keyword, branches in _alternatives(part):
                rest = {name: value for name, value in part.items() if name != keyword}
                others = [*met[:index], rest, *met[index + 1 :]]
                return all(
                    self._meets(schema, [*others, *self._flat(branch, self._other_root)], depth)
                    for branch in branches
                )
        return False

    def _meets_directly(
        self, schema: Mapping[str, Any], met: Sequence[Mapping[str, Any]], depth: int
    ) -> bool:
        values = _values(met)
        if values is not None and not values:
            return True
        self._steps.count(depth, len(met) + sum(len(_key(value)) // 50 + 1 for value in values or ()))
        types = _types(met)
        for keyword, value in schema.items():
            self._steps.count(depth, len(value) if isinstance(value, list) else 1)
            if _is_annotation(keyword) or keyword in _DEFINITIONS or keyword in _RESOLVED:
                continue
            if _TYPES_OF.get(keyword, _ALL_TYPES).isdisjoint(types):
                continue
            if not self._meets_keyword(keyword, schema, met, depth):
                return False
        return True

    def _meets_keyword(
        self, keyword: str, schema: Mapping[str, Any], met: Sequence[Mapping[str, Any]], depth: int
    ) -> bool:
        value = schema[keyword]
        if keyword in _OBJECT:
            return self._meets_object(keyword, schema, met, depth)
        if keyword in _ARRAY:
            return self._meets_array(keyword, schema, met, depth)
        if keyword in {"anyOf", "oneOf"}:
            is_possible = keyword == "anyOf" or self._are_exclusive(value)
            return is_possible and any(self._meets_branch(branch, met, depth) for branch in value)
        if keyword in _SIMPLE:
            return _SIMPLE[keyword](keyword, value, met)
        if keyword.startswith("unevaluated"):
            # It depends on all keywords beside it.
            raise _NotUnderstood
        together = next((names for names in _TOGETHER if keyword in names), [keyword])
        return any(all(self._is_equal(schema, part, name) for name in together) for part in met)

    def _meets_branch(self, branch: Any, met: Sequence[Mapping[str, Any]], depth: int) -> bool:
        return all(self._meets(part, met, depth) for part in self._flat(branch, self._root))

    def _is_equal(self, schema: Mapping[str, Any], part: Mapping[str, Any], keyword: str) -> bool:
        """Return whether a keyword has the same value in both, without references."""
        value, other = schema.get(keyword, _ABSENT), part.get(keyword, _ABSENT)
        if value is _ABSENT or other is _ABSENT:
            return value is other
        if _has_reference(value, self._steps) or _has_reference(other, self._steps):
            return False
        return _value_text(keyword, value, self._steps) == _value_text(keyword, other, self._steps)

    def _are_exclusive(self, branches: Sequence[Any]) -> bool:
        """Return whether no value meets two of these schemas: each requires another constant."""
        constants: list[dict[str, str]] = []
        for branch in branches:
            parts = self._flat(branch, self._root)
            required = _required(parts)
            if _types(parts) != {"object"}:
                return False
            constants.append(
                {
                    name: _key(schema["const"])
                    for part in parts
                    for name, schema in part.get("properties", {}).items()
                    if name in required and isinstance(schema, Mapping) and "const" in schema
                }
            )
        names = set(constants[0]).intersection(*constants)
        return any(len({of_branch[name] for of_branch in constants}) == len(branches) for name in names)

    def _meets_object(
        self, keyword: str, schema: Mapping[str, Any], met: Sequence[Mapping[str, Any]], depth: int
    ) -> bool:
        others = {name for part in met for name in part.get("properties", {})}
        others -= schema.get("properties", {}).keys()
        self._steps.count(depth, len(others))
        if keyword == "properties":
            is_named = self._is_strict or not _CLOSING.isdisjoint(schema)
            if not is_named and not all(False in _of_property(name, met) for name in others):
                return False
            return all(
                self._meets_property(name, value, met, depth) for name, value in schema["properties"].items()
            )
        if keyword == "patternProperties":
            return all(
                any(
                    self.accepts(value, [part["patternProperties"][pattern]], depth + 1)
                    for part in met
                    if pattern in part.get("patternProperties", {})
                )
                for pattern, value in schema["patternProperties"].items()
            )
        value = schema["additionalProperties"]
        return self.accepts(value, _of_property(None, met), depth + 1) and all(
            self.accepts(value, _of_property(name, met), depth + 1) for name in sorted(others)
        )

    def _meets_property(self, name: str, schema: Any, met: Sequence[Mapping[str, Any]], depth: int) -> bool:
        conjuncts = _of_property(name, met)
        is_new = any("properties" in part for part in met) and not any(
            name in part.get("properties", {}) or not _CLOSING.isdisjoint(part) for part in met
        )
        if is_new and not self._is_strict and name not in _required(met):
            return True
        return self.accepts(schema, conjuncts, depth + 1)

    def _meets_array(
        self, keyword: str, schema: Mapping[str, Any], met: Sequence[Mapping[str, Any]], depth: int
    ) -> bool:
        first = len(schema.get("prefixItems", ()))
        if keyword == "prefixItems":
            return all(
                self.accepts(value, _of_index(index, met), depth + 1)
                for index, value in enumerate(schema["prefixItems"])
            )
        last = max([first, *(len(part.get("prefixItems", ())) for part in met)])
        return all(
            self.accepts(schema["items"], _of_index(index, met), depth + 1)
            for index in range(first, last + 1)
        )


def _alternatives(part: Mapping[str, Any]) -> Iterator[tuple[str, Sequence[Any]]]:
    """Yield the keywords by which a value meets one of several schemas, with these schemas."""
    for keyword in ("anyOf", "oneOf"):
        if keyword in part:
            yield keyword, part[keyword]
    if isinstance(part.get("type"), list) and len(part["type"]) > 1:
        yield "type", [{"type": kind} for kind in part["type"]]


def _of_property(name: str | None, met: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return what a property meets, or each one without a schema of its own if `name` is None."""
    conjuncts = []
    for part in met:
        if name is not None and name in part.get("properties", {}):
            conjuncts.append(part["properties"][name])
        elif "additionalProperties" in part and "patternProperties" not in part:
            conjuncts.append(part["additionalProperties"])
    return conjuncts


def _of_index(index: int, met: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return what an item of a list meets."""
    conjuncts = []
    for part in met:
        first = part.get("prefixItems", ())
        if index < len(first):
            conjuncts.append(first[index])
        elif "items" in part:
            conjuncts.append(part["items"])
    return conjuncts


def _required(parts: Sequence[Mapping[str, Any]]) -> set[str]:
    return {name for part in parts for name in part.get("required", ())}


def _expanded(types: Any) -> frozenset[str]:
    """Return the types that `type` allows; an integer is a number too."""
    listed = frozenset([types] if isinstance(types, str) else types)
    return listed | {"integer"} if "number" in listed else listed


def _types(met: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """Return the types that values may have that meet all these schemas."""
    types = _ALL_TYPES
    for part in met:
        if "type" in part:
            types &= _expanded(part["type"])
    values = _values(met)
    return types if values is None else types & {kind for value in values for kind in _kinds(value)}


def _kinds(value: Any) -> Collection[str]:
    if value is None:
        return {"null"}
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, int | float):
        return {"integer"} if value == int(value) else {"number"}
    if isinstance(value, str):
        return {"string"}
    return {"array"} if isinstance(value, list) else {"object"}


def _values(met: Sequence[Mapping[str, Any]]) -> list[Any] | None:
    """Return values that contain all that meet these schemas, if one of these lists its values."""
    values = None
    for part in met:
        if "const" in part:
            values = [part["const"]]
        elif "enum" in part and (values is None or len(part["enum"]) < len(values)):
            values = part["enum"]
    return values


def _key(value: Any) -> str:
    """Return a text that is equal for equal values: 1.0 is 1."""
    if isinstance(value, float) and value == int(value):
        value = int(value)
    return json.dumps(value, sort_keys=True)


def _has_type(_: str, value: Any, met: Sequence[Mapping[str, Any]]) -> bool:
    return _types(met) <= _expanded(value)


def _is_listed(keyword: str, value: Any, met: Sequence[Mapping[str, Any]]) -> bool:
    values = _values(met)
    listed = {_key(item) for item in (value if keyword == "enum" else [value])}
    return values is not None and all(_key(item) in listed for item in values)


def _is_large_enough(keyword: str, value: Any, met: Sequence[Mapping[str, Any]]) -> bool:
    return value <= 0 or any(part[keyword] >= value for part in met if keyword in part)


def _is_small_enough(keyword: str, value: Any, met: Sequence[Mapping[str, Any]]) -> bool:
    return any(part[keyword] <= value for part in met if keyword in part)


def _has_required(_: str, value: Any, met: Sequence[Mapping[str, Any]]) -> bool:
    return set(value) <= _required(met)


def _are_unique(keyword: str, value: Any, met: Sequence[Mapping[str, Any]]) -> bool:
    return value is False or any(part.get(keyword) is True for part in met)


def _is_bounded(keyword: str, value: Any, met: Sequence[Mapping[str, Any]]) -> bool:
    is_lower, is_exclusive = keyword.lower().endswith("minimum"), keyword.startswith("exclusive")
    inclusive, exclusive = ("minimum", "exclusiveMinimum") if is_lower else ("maximum", "exclusiveMaximum")
    sign = 1 if is_lower else -1
    for part in met:
        if exclusive in part and sign * part[exclusive] >= sign * value:
            return True
        if inclusive in part:
            distance = sign * (part[inclusive] - value)
            if distance > 0 or (distance == 0 and not is_exclusive):
                return True
    return False


# What decides about the keywords that say something about one value, not about its parts.
_SIMPLE: dict[str, Callable[[str, Any, Sequence[Mapping[str, Any]]], bool]] = {
    "type": _has_type,
    **dict.fromkeys(("enum", "const"), _is_listed),
    **dict.fromkeys(("minLength", "minItems", "minProperties"), _is_large_enough),
    **dict.fromkeys(("maxLength", "maxItems", "maxProperties"), _is_small_enough),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _is_bounded),
    "required": _has_required,
    "uniqueItems": _are_unique,
}


def _has_reference(value: Any, steps: _Steps) -> bool:
    steps.count()
    if isinstance(value, Mapping):
        return "$ref" in value or any(_has_reference(item, steps) for item in value.values())
    return isinstance(value, list) and any(_has_reference(item, steps) for item in value)
