"""The secret values of payloads, by the schemas of their jobs, and payloads without them.

A schema marks a value with ``writeOnly: true`` or ``format: password``. Answers have `MASK` in its place. The
paths to such values are found once for each schema, and kept as JSON: a list of steps for each path, each a
name, the index of an item, or null for all names and items.

What the search does not understand, or what takes it too long, hides more: a value whose schema refers to
itself is hidden as a whole if it has a secret, and a schema with other references hides all values. So is a
value to which many paths lead, because each part of it would be compared with all of them.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from typing import Any

from zndraw_joblib.wire.pointers import Way, beginning_of

# As pydantic shows a `SecretStr`.
MASK = "**********"
_Path = tuple[str | int | None, ...]
_ALL: _Path = (None,)
# The paths that hide all values.
ALL_PATHS = "[[null]]"
_MAX_STEPS, _MAX_DEPTH, _MAX_PATHS = 20_000, 32, 500
# Of several schemas together, as those of the versions of a job; and the characters of all names in paths.
_MAX_JOINED, _MAX_CHARACTERS = 5_000, 256 * 1024
# A value to which more paths lead is secret as a whole.
_MAX_TREES = 8
# The most places of the mask in a payload that are named.
_MAX_PLACES = 100
_SAME_VALUE = ("if", "then", "else", "not")
_SAME_VALUE_LISTS = ("allOf", "anyOf", "oneOf")
_LISTS = (*_SAME_VALUE_LISTS, "prefixItems")
# The steps to the schemas of maps; those of `properties` are the names.
_MAPS: dict[str, _Path] = {
    "dependentSchemas": (),
    "dependencies": (),
    "properties": (),
    "patternProperties": _ALL,
}
_PARTS = (
    *("items", "additionalItems", "unevaluatedItems", "contains"),
    *("additionalProperties", "unevaluatedProperties"),
)
# References of these kinds are not followed.
_SCOPES = frozenset({"$dynamicRef", "$recursiveRef"})


class _NotUnderstood(Exception):
    """A schema has something that the search does not understand, or takes it too long."""


def masked_paths(schema: Any) -> str | None:
    """Return the paths to the secret values of payloads with this schema, as JSON; None without any."""
    if not _mentions_secret(schema):
        return None
    search = _Search(schema)
    try:
        search.find(schema, (), ("#",))
        paths = search.paths
    except (_NotUnderstood, AttributeError, LookupError, TypeError, ValueError, RecursionError):
        paths = {_ALL}
    size = sum(len(step) for path in paths for step in path if isinstance(step, str))
    if () in paths or size > _MAX_CHARACTERS:
        paths = {_ALL}
    return json.dumps(sorted(paths, key=json.dumps)) if paths else None


def joined_paths(texts: Iterable[str | None]) -> str | None:
    """Return the paths of several schemas together; None if none has any."""
    distinct = {text for text in texts if text is not None}
    if len(distinct) < 2:
        return next(iter(distinct), None)
    paths = {json.dumps(path) for text in distinct for path in json.loads(text)}
    if len(paths) > _MAX_JOINED or sum(map(len, paths)) > 2 * _MAX_CHARACTERS:
        return ALL_PATHS
    return f"[{', '.join(sorted(paths))}]"


def paths_without(text: str | None, other: str | None) -> str | None:
    """Return those of some paths that `other` has not; None without any."""
    if text is None or other is None or text == other:
        return None if text == other else text
    paths = {json.dumps(path) for path in json.loads(text)} - {json.dumps(path) for path in json.loads(other)}
    return f"[{', '.join(sorted(paths))}]" if paths else None


def without_secrets(payload: Any, paths: str | None) -> Any:
    """Return a payload with the mask in the place of each secret value that it has, except null.

    It is the same object if it has none.
    """
    return payload if paths is None else _masked(payload, [_tree(paths)])


def places_of_mask(payload: Any, paths: str | None) -> list[str]:
    """Return the JSON pointers of secret values that are the mask, which an answer had in their place.

    They are the first hundred; of a long one it is about the first thousand characters.
    """
    if paths is None:
        return []
    ways = (way for way, value in _secrets(payload, [_tree(paths)], None) if value == MASK)
    return list(map(beginning_of, islice(ways, _MAX_PLACES)))


def _is_secret(node: Mapping[str, Any]) -> bool:
    return node.get("writeOnly") is True or node.get("format") == "password"


def _mentions_secret(schema: Any) -> bool:
    nodes = [schema]
    while nodes:
        node = nodes.pop()
        if isinstance(node, dict):
            if _is_secret(node):
                return True
            nodes += node.values()
        elif isinstance(node, list):
            nodes += node
    return False


class _Search:
    """Finds the paths to the secret values of a schema."""

    def __init__(self, root: Any) -> None:
        self.paths: set[_Path] = set()
        self._root = root
        self._steps = 0

    def find(self, node: Any, path: _Path, references: tuple[str, ...]) -> None:
        """Add the paths below a part of the schema, which `references` have led to."""
        self._steps += 1
        if self._steps > _MAX_STEPS or len(path) > _MAX_DEPTH or len(self.paths) > _MAX_PATHS:
            raise _NotUnderstood
        if not isinstance(node, dict):
            return
        if _is_secret(node):
            self.paths.add(path)
            return
        if not _SCOPES.isdisjoint(node) or ("$id" in node and node is not self._root):
            raise _NotUnderstood
        if "$ref" in node:
            self._follow(node["$ref"], path, references)
        for part, more in _parts(node):
            self.find(part, (*path, *more), references)

    def _follow(self, reference: str, path: _Path, references: tuple[str, ...]) -> None:
        target = self._target(reference)
        if reference not in references:
            self.find(target, path, (*references, reference))
        elif self._has_secret(target):
            self.paths.add(path)

    def _target(self, reference: str) -> Any:
        if reference != "#" and not reference.startswith("#/"):
            raise _NotUnderstood
        target = self._root
        for part in reference.split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            target = target[int(name)] if isinstance(target, list) else target[name]
        return target

    def _has_secret(self, node: Any) -> bool:
        """Return whether a part of the schema, with what it refers to, has a secret value."""
        nodes, known = [node], set[int]()
        while nodes:
            part = nodes.pop()
            self._steps += 1
            if self._steps > _MAX_STEPS:
                raise _NotUnderstood
            if id(part) in known or not isinstance(part, dict):
                continue
            known.add(id(part))
            if _is_secret(part):
                return True
            if "$ref" in part:
                nodes.append(self._target(part["$ref"]))
            nodes += [below for below, _ in _parts(part)]
        return False


def _parts(node: Mapping[str, Any]) -> Iterator[tuple[Any, _Path]]:
    """Yield the schemas below a schema, each with the steps from its value to theirs."""
    for keyword, value in node.items():
        if keyword in _SAME_VALUE:
            yield value, ()
        elif keyword in _LISTS or (keyword == "items" and isinstance(value, list)):
            is_same = keyword in _SAME_VALUE_LISTS
            yield from ((part, () if is_same else (index,)) for index, part in enumerate(value))
        elif keyword in _MAPS:
            is_named, steps = keyword == "properties", _MAPS[keyword]
            yield from ((part, (name,) if is_named else steps) for name, part in value.items())
        elif keyword in _PARTS:
            yield value, _ALL


# Apply the paths. A tree has the steps of all paths; at the end of one it is empty.

_Tree = dict[Any, Any]


@lru_cache(maxsize=1024)
def _tree(paths: str) -> _Tree:
    tree: _Tree = {}
    ends = set[_Path]()
    # A value that is secret as a whole has no other paths below it: where its path ends, the tree is empty.
    for path in sorted(map(tuple, json.loads(paths)), key=len):
        if any(path[:length] in ends for length in range(len(path))):
            continue
        ends.add(path)
        node = tree
        for step in path:
            node = node.setdefault(step, {})
    return tree


def _is_whole(trees: list[_Tree]) -> bool:
    """Return whether a value to which these trees lead is secret as a whole."""
    return len(trees) > _MAX_TREES or not all(trees)


def _masked(value: Any, trees: list[_Tree]) -> Any:
    if _is_whole(trees):
        return None if value is None else MASK
    changed: Any = None
    for key, part, below in _below(value, trees):
        new = _masked(part, below)
        if new is not part:
            changed = value.copy() if changed is None else changed
            changed[key] = new
    return value if changed is None else changed


def _secrets(value: Any, trees: list[_Tree], way: Way) -> Iterator[tuple[Way, Any]]:
    """Yield the secret values, each with the way to it."""
    if _is_whole(trees):
        yield way, value
        return
    for key, part, below in _below(value, trees):
        yield from _secrets(part, below, (way, key))


def _below(value: Any, trees: list[_Tree]) -> Iterator[tuple[Any, Any, list[_Tree]]]:
    """Yield the parts of a value to which paths lead, by name or index, with the trees of these paths."""
    if isinstance(value, dict):
        keys = value if any(None in tree for tree in trees) else {key for tree in trees for key in tree}
        parts = [(key, value[key]) for key in keys if key in value]
    elif isinstance(value, list):
        parts = list(enumerate(value))
    else:
        return
    for key, part in parts:
        below = [tree[step] for tree in trees for step in (key, None) if step in tree]
        if below:
            yield key, part, below
