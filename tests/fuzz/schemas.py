"""Schemas and payloads whose validation, or whose compilation, may take very long."""

from typing import Any

from hypothesis import strategies as st

Schema = dict[str, Any]
_DRAFTS = [
    "https://json-schema.org/draft/2020-12/schema",
    "https://json-schema.org/draft/2019-09/schema",
    *(f"http://json-schema.org/draft-0{number}/schema#" for number in (4, 6, 7)),
]
_REFERENCES = [
    "#",
    "#/$defs/d0",
    "#/$defs/%640",
    "#d0",
    "http://a.test/b#/$defs/d0",
    "#/properties/a",
    "other",
]
_PATTERNS = [
    *("^(a+)+$", "[^/]{99}", r"\p{L}{20}", "(a{1000}){1000}", "(?i)é{0,900}", "x{1001}", "(", "(?=a)"),
    *("[ab]*a[ab]{800}c", "a" * 3000),
]
_FORMATS = ["regex", "idn-email", "idn-hostname", "uri-template", "date-time", "json-pointer"]
_EQUAL_HASHES = [10**30 + number for number in range(300)]
_DEPTHS = st.sampled_from([1, 3, 20, 60])

leaves: st.SearchStrategy[Schema] = st.one_of(
    st.sampled_from([*_PATTERNS, "b"]).map(lambda pattern: {"pattern": pattern}),
    st.sampled_from(_FORMATS).map(lambda name: {"format": name}),
    st.tuples(st.sampled_from(["$ref", "$dynamicRef", "$recursiveRef"]), st.sampled_from(_REFERENCES)).map(
        lambda pair: {pair[0]: pair[1]}
    ),
    st.sampled_from(
        [
            *({"enum": _EQUAL_HASHES}, {"required": _EQUAL_HASHES}, {"enum": [str(n) for n in range(9000)]}),
            *({"uniqueItems": True}, {"multipleOf": 1e-300}, {"minimum": 10**400}, {"type": "string"}, {}),
            *({"type": "nonsense"}, {"contentMediaType": "application/json"}, {"maxProperties": 0}),
        ]
    ),
)


def _nested(schema: Schema, depth: int, keyword: str) -> Schema:
    """Return a schema inside `depth` others, which check the same value."""
    for _ in range(depth):
        schema = {"allOf": [schema], keyword: False} if keyword.startswith("uneval") else {keyword: [schema]}
    return schema


def _doubled(schema: Schema, depth: int, prefix: str) -> Schema:
    """Return a schema whose references double `depth` times."""
    levels = {f"d{level}": {"allOf": [{"$ref": f"{prefix}{level + 1}"}] * 2} for level in range(depth)}
    decoys = {f"%64{level}": {} for level in range(depth + 1)}
    return {"$ref": "#/$defs/d0", "$defs": {**decoys, **levels, f"d{depth}": schema}}


def _around(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    one = st.sampled_from(
        ["not", "contains", "propertyNames", "additionalProperties", "items", "contentSchema"]
    )
    many = st.sampled_from(["allOf", "anyOf", "oneOf", "prefixItems"])
    named = st.sampled_from(["properties", "patternProperties", "dependentSchemas", "$defs"])
    nesting = st.sampled_from(["allOf", "anyOf", "unevaluatedProperties", "unevaluatedItems"])
    prefix = st.sampled_from(["#/$defs/d", "#/$defs/%64"])
    identity = st.sampled_from([{"$id": "http://a.test/b"}, {"$anchor": "d0"}, {"$dynamicAnchor": "d0"}])
    return st.one_of(
        st.builds(lambda keyword, schema: {keyword: schema}, one, inner),
        st.builds(lambda keyword, schemas: {keyword: schemas}, many, st.lists(inner, min_size=1, max_size=3)),
        st.builds(lambda keyword, schema: {keyword: {"a": schema}}, named, inner),
        st.builds(lambda a, b: {"if": a, "then": b, "else": b}, inner, inner),
        st.builds(_nested, inner, _DEPTHS, nesting),
        st.builds(_doubled, inner, _DEPTHS, prefix),
        st.builds(lambda schema, keyword: {**schema, **keyword}, inner, identity),
    )


schemas: st.SearchStrategy[Schema] = st.builds(
    lambda schema, draft: {**schema, **({"$schema": draft} if draft else {})},
    st.recursive(leaves, _around, max_leaves=8),
    st.sampled_from([None, None, *_DRAFTS]),
)


def _deep(depth: int) -> Any:
    value: Any = "a" * 100
    for level in range(depth):
        value = {"a": value} if level % 2 else [value]
    return value


payloads: st.SearchStrategy[dict[str, Any]] = st.dictionaries(
    st.sampled_from(["a", "b", "a" * 20_000]),
    st.one_of(
        st.sampled_from(["", "a" * 20_000, "ab" * 2000, r"\w{25}", None, True, 1e300, 10**300, [], {}]),
        st.sampled_from(
            [[10**30 + n for n in range(2000)], list(range(5000)), [["a"]] * 500, [r"\w{25}"] * 500]
        ),
        st.sampled_from([5, 100, 180, 300]).map(_deep),
    ),
    max_size=3,
)
