"""Which schemas are the same, and which one accepts all that another accepts."""

import os
import time
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zndraw_joblib.server.queue import rules_schemas

Schema = dict[str, Any]
# `make fuzz` generates others each time.
MANY = int(os.environ.get("FUZZ_EXAMPLES", "0"))
_NAMES = st.sampled_from(["a", "b", "c"])
_SCALARS = st.sampled_from([None, True, False, -1, 0, 1, 2, 1.5, 2.0, 7, "", "a", "ab", "abcd"])
VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES | st.just("d"), inner, max_size=4),
    max_leaves=6,
)
_SMALL = st.integers(-1, 4)
_SIZE = st.integers(0, 3)


def _optional(**keywords: Any) -> Any:
    return st.fixed_dictionaries({}, optional=keywords)


def _of_parts(inner: Any) -> Any:
    types = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])
    scalars = _optional(
        type=types | st.lists(types, min_size=1, max_size=3, unique=True),
        minimum=_SMALL,
        maximum=_SMALL,
        exclusiveMinimum=_SMALL,
        exclusiveMaximum=_SMALL,
        multipleOf=st.sampled_from([1, 2, 0.5]),
        minLength=_SIZE,
        maxLength=_SIZE,
        pattern=st.sampled_from(["^a", "b$"]),
        enum=st.lists(_SCALARS, min_size=1, max_size=4),
        const=_SCALARS,
        title=st.text(max_size=2),
    )
    objects = _optional(
        type=st.just("object"),
        properties=st.dictionaries(_NAMES, inner, max_size=3),
        required=st.lists(_NAMES, unique=True),
        additionalProperties=inner,
        patternProperties=st.dictionaries(st.sampled_from(["^a", "."]), inner, max_size=2),
        propertyNames=inner,
        minProperties=_SIZE,
        maxProperties=_SIZE,
    )
    arrays = _optional(
        type=st.just("array"),
        items=inner,
        prefixItems=st.lists(inner, min_size=1, max_size=2),
        minItems=_SIZE,
        maxItems=_SIZE,
        uniqueItems=st.booleans(),
        contains=inner,
    )
    several = st.lists(inner, min_size=1, max_size=3)
    combined = _optional(
        allOf=several,
        anyOf=several,
        oneOf=several,
        **{
            "not": inner,
            "if": inner,
            "then": inner,
            "else": inner,
            "$ref": st.sampled_from(["#/$defs/x", "#"]),
        },
    )
    return scalars | objects | arrays | combined | scalars | objects


PARTS = st.recursive(st.booleans() | st.just({}), _of_parts, max_leaves=8)
ROOTS = st.builds(lambda root, definition: {**root, "$defs": {"x": definition}}, _of_parts(PARTS), PARTS)


def _changes(schema: Any, draw: Any) -> Any:
    """Return a schema with a change somewhere."""
    if not isinstance(schema, dict) or not schema or draw(st.integers(0, 3)) == 0:
        return draw(PARTS)
    changed = dict(schema)
    key = draw(st.sampled_from(sorted(changed)))
    value = changed[key]
    kind = draw(st.integers(0, 3))
    if kind == 0:
        del changed[key]
    elif isinstance(value, dict):
        changed[key] = (
            _changes(value, draw)
            if key not in {"properties", "patternProperties", "$defs"}
            else {**value, draw(st.sampled_from([*value, "a", "b", "x"])): draw(PARTS)}
        )
    elif isinstance(value, list) and key not in {"type", "required"}:
        changed[key] = [*value, draw(_SCALARS if key == "enum" else PARTS)]
    elif isinstance(value, int) and not isinstance(value, bool):
        changed[key] = max(0, value + draw(st.integers(-1, 1))) if key != "multipleOf" else 1
    return changed


@st.composite
def pairs(draw: Any) -> tuple[Schema, Schema, list[Any]]:
    """Return two related schemas, and values."""
    old = draw(ROOTS)
    new = old
    for _ in range(draw(st.integers(1, 3))):
        new = _changes(new, draw)
    if not isinstance(new, dict):
        new = {}
    new = {**new, "$defs": new.get("$defs") if "x" in (new.get("$defs") or {}) else old["$defs"]}
    return old, new, draw(st.lists(VALUES, min_size=5, max_size=25))


def _validator(schema: Schema) -> Any:
    try:
        return jsonschema_rs.validator_for(schema, offline=True)
    except (ValueError, jsonschema_rs.ReferencingError):
        return None


# Threads of earlier tests may use `random` while Hypothesis draws.
@pytest.mark.filterwarnings("ignore:Do not use the `random` module")
@settings(max_examples=max(MANY, 600), derandomize=not MANY, database=None, deadline=None)
@given(pairs())
def test_a_schema_that_accepts_another_one_accepts_each_of_its_values(
    case: tuple[Schema, Schema, list[Any]],
) -> None:
    """In the strict sense of JSON Schema, for generated schemas and values."""
    old, new, values = case
    before, after = _validator(old), _validator(new)
    if before is None or after is None or not rules_schemas.accepts(new, old, strict=True):
        return
    for value in values:
        try:
            is_valid = before.is_valid(value)
        except ValueError:  # the schema refers to itself for the same value
            continue
        assert not is_valid or after.is_valid(value), (old, new, value)


OLD: Schema = {
    "title": "Relax",
    "type": "object",
    "properties": {
        "steps": {"type": "integer", "minimum": 1, "maximum": 100},
        "mode": {"enum": ["fast", "slow"], "type": "string"},
        "atoms": {"items": {"$ref": "#/$defs/Atom"}, "type": "array"},
    },
    "required": ["steps"],
    "$defs": {"Atom": {"type": "object", "properties": {"z": {"type": "integer"}}, "required": ["z"]}},
}


def _with(**changes: Any) -> Schema:
    return {**OLD, "properties": {**OLD["properties"], **changes}}


@pytest.mark.parametrize(
    "new",
    [
        _with(note={"type": "string", "default": ""}),
        _with(steps={"type": "integer", "minimum": 0, "maximum": 200}),
        _with(steps={"type": "number", "exclusiveMinimum": 0}),
        _with(steps={"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]}),
        _with(mode={"enum": ["slow", "fast", "best"]}),
        _with(mode={"type": ["string", "null"], "enum": ["fast", "slow", None]}),
        _with(atoms={"type": "array", "items": {"type": "object"}}),
        {**OLD, "required": []},
        {
            **OLD,
            "$defs": {
                "Atom": {"type": "object", "properties": {"z": {"type": "number"}, "x": {"type": "number"}}}
            },
        },
        {},
    ],
)
def test_a_schema_that_grows_accepts_the_old_one(new: Schema) -> None:
    """The old one does not accept the new one."""
    assert rules_schemas.accepts(new, OLD)
    assert not rules_schemas.accepts(OLD, new)
    assert not rules_schemas.are_same(OLD, new)


def test_a_property_that_disappears_is_a_difference() -> None:
    """A worker that does not name a property would ignore it, so it does not serve tasks that have it."""
    assert not rules_schemas.accepts(OLD, _with(note={"type": "string"}))
    assert rules_schemas.accepts(OLD, _with(note={"type": "string"}), strict=True)
    assert rules_schemas.accepts({**OLD, "additionalProperties": True}, _with(note={"type": "string"}))
    assert rules_schemas.accepts(OLD, _with(note=False))


@pytest.mark.parametrize(
    ("new", "pointers"),
    [
        (_with(steps={"type": "integer", "minimum": 2, "maximum": 100}), ["/properties/steps/minimum"]),
        (_with(steps={"type": "string"}), ["/properties/steps/type", "/properties/steps/minimum"]),
        ({**OLD, "properties": {"steps": {"type": "integer"}}}, ["/properties/steps/minimum"]),
        (_with(mode={"enum": ["fast"], "type": "string"}), ["/properties/mode/enum"]),
        ({**OLD, "required": ["steps", "note"]}, ["/required"]),
        ({**OLD, "additionalProperties": False}, ["/additionalProperties"]),
        ({**OLD, "$defs": {"Atom": {"type": "string"}}}, ["/$defs/Atom/type"]),
        ({**OLD, "unevaluatedProperties": False}, ["/unevaluatedProperties"]),
        (
            {**OLD, "$schema": "http://json-schema.org/draft-07/schema#", "required": []},
            ["/required", "/$schema"],
        ),
    ],
)
def test_a_schema_that_accepts_less_or_is_not_understood_differs(new: Schema, pointers: list[str]) -> None:
    """The differences begin with these."""
    assert not rules_schemas.accepts(new, OLD)
    listed = rules_schemas.differences(OLD, new)
    assert [item["pointer"] for item in listed][: len(pointers)] == pointers


def test_a_new_property_is_growth_only_beside_properties_that_may_have_others() -> None:
    """An explicit `additionalProperties` is taken as JSON Schema has it."""
    new = {"properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
    old = {"properties": {"a": {"type": "integer"}}}
    assert rules_schemas.accepts(new, old)
    assert not rules_schemas.accepts(new, old, strict=True)
    assert not rules_schemas.accepts(new, {})
    assert not rules_schemas.accepts(new, {**old, "additionalProperties": True})
    assert not rules_schemas.accepts(new, {**old, "required": ["b"]})
    assert rules_schemas.accepts(
        {**new, "additionalProperties": False}, {**old, "additionalProperties": False}
    )


def test_annotations_and_order_make_no_difference() -> None:
    """But only those of schemas."""
    new = {
        "$comment": "generated",
        "description": "Relax atoms",
        "required": ["steps"],
        "$defs": {
            "Atom": {
                "required": ["z"],
                "properties": {"z": {"title": "Z", "type": "integer"}},
                "type": "object",
            }
        },
        "properties": {
            "mode": {"type": "string", "enum": ["slow", "fast"], "default": "fast", "x-widget": "select"},
            "atoms": OLD["properties"]["atoms"],
            "steps": {**OLD["properties"]["steps"], "examples": [3]},
        },
        "type": "object",
    }
    assert rules_schemas.are_same(OLD, new)
    assert rules_schemas.differences(OLD, new) == []
    # The name of a property is no annotation, nor is a value that is listed.
    assert not rules_schemas.are_same({"properties": {"title": {}}}, {"properties": {}})
    assert not rules_schemas.are_same({"const": {"title": 1}}, {"const": {"title": 2}})
    assert not rules_schemas.are_same({"const": 1}, {"const": True})


def test_a_union_may_get_members_that_exclude_each_other() -> None:
    """As unions of pydantic with a discriminator do."""

    def union(*kinds: str) -> Schema:
        return {
            "oneOf": [
                {"type": "object", "properties": {"kind": {"const": kind}}, "required": ["kind"]}
                for kind in kinds
            ]
        }

    assert rules_schemas.accepts(union("cat", "dog"), union("cat"), strict=True)
    assert not rules_schemas.accepts(union("cat"), union("cat", "dog"))
    open_union = {"oneOf": [{"type": "object"}, {"type": "object", "properties": {"kind": {"const": "cat"}}}]}
    assert not rules_schemas.accepts(open_union, union("cat"))


def test_recursive_schemas_are_compared() -> None:
    """A comparison that never ends is a difference."""

    def tree(kind: str) -> Schema:
        return {
            "$ref": "#/$defs/Node",
            "$defs": {
                "Node": {
                    "type": "object",
                    "properties": {
                        "value": {"type": kind},
                        "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}},
                    },
                }
            },
        }

    assert rules_schemas.accepts(tree("number"), tree("integer"), strict=True)
    assert not rules_schemas.accepts(tree("integer"), tree("number"))
    endless = {"$ref": "#/$defs/x", "$defs": {"x": {"anyOf": [{"$ref": "#/$defs/x"}, {"type": "string"}]}}}
    assert not rules_schemas.accepts({"type": "integer"}, endless)


def _deep(depth: int) -> Schema:
    schema: Schema = {"type": "integer"}
    for _ in range(depth):
        schema = {"properties": {"a": schema}}
    return schema


_WIDE = {"properties": {f"p{number}": {"enum": [*range(300)]} for number in range(300)}}


@pytest.mark.parametrize(
    "schema",
    [
        _deep(400),
        {
            "anyOf": [
                {"anyOf": [{"type": "string", "maxLength": low + 100 * high} for low in range(100)]}
                for high in range(100)
            ]
        },
        _WIDE,
        {"enum": ["x" * 1000 + str(number) for number in range(900)]},
        {"allOf": [{"anyOf": [{"required": [f"{name}{part}"]} for part in range(3)]} for name in range(12)]},
    ],
)
def test_large_schemas_take_a_bounded_time(schema: Schema) -> None:
    """Users send schemas."""
    new = {**schema, "title": "new", "minProperties": 1}
    began = time.process_time()
    rules_schemas.accepts(new, schema)
    rules_schemas.are_same(new, schema)
    assert len(rules_schemas.differences({"enum": [1]}, schema)) <= rules_schemas.MAX_DIFFERENCES
    assert time.process_time() - began < 0.3
