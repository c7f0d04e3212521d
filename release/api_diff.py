"""Compare the REST API and the public Python names with those of an earlier release: `make api-diff`.

Breaking is what a program that followed the documentation of the earlier release may notice: a removed
operation, parameter, field or name, a new required parameter or field, and another type. New fields, and new
values of an enum in a response, are not, because clients ignore what they do not know.
"""

import ast
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import griffe

from release import ROOT, ReleaseError
from release.commands import run
from release.files import version

Schema = dict[str, Any]
Use = Literal["request", "response"]
_DOCUMENT = "docs/reference/openapi.json"
_VERSION = re.compile(r"v?(\d+)\.\d+(?:\.\d+)?(\S*)")


def check(repository: Path, tag: str | None = None) -> list[str]:
    """Compare with a tag, the last one by default; raise `ReleaseError` for breaking changes.

    They are allowed, and returned, in a new major version and after a pre-release.
    """
    tag = tag or last_tag(repository)
    if tag is None:
        return ["no release is tagged yet: the API was NOT compared"]
    changes = changes_since(repository, tag)
    if not changes or is_allowed(tag, version()):
        return [f"since {tag}: {change}" for change in changes]
    raise ReleaseError("\n".join([f"breaking changes since {tag}:", *changes]))


def last_tag(repository: Path) -> str | None:
    """Return the last release before this commit, or None."""
    command = ["git", "describe", "--tags", "--abbrev=0", "--match", "v[0-9]*", "HEAD^"]
    done = subprocess.run(command, cwd=repository, check=False, capture_output=True, text=True)  # noqa: S603
    return done.stdout.strip() or None


def is_allowed(tag: str, version: str) -> bool:
    """Return whether a version may break what a tag promised."""
    old, new = _VERSION.fullmatch(tag), _VERSION.fullmatch(version)
    if old is None or new is None:
        raise ReleaseError(f"{tag} or {version} is no version of the form 1.2.3")
    return bool(old[2]) or int(new[1]) > int(old[1])


def changes_since(repository: Path, tag: str) -> list[str]:
    """Return the breaking changes of the files of a repository since a tag."""
    with tempfile.TemporaryDirectory() as scratch:
        archive = Path(scratch) / "old.tar"
        run(["git", "archive", "-o", archive, tag, "src", _DOCUMENT], repository)
        run(["tar", "-xf", archive.name], archive.parent)
        old = json.loads((archive.parent / _DOCUMENT).read_text())
        new = json.loads((repository / _DOCUMENT).read_text())
        return [*rest_changes(old, new), *python_changes(archive.parent / "src", repository / "src")]


def rest_changes(old: Schema, new: Schema) -> list[str]:
    """Return the breaking changes between two OpenAPI documents, each with the operation or schema."""
    found = []
    for path, methods in old["paths"].items():
        for method, operation in methods.items():
            name = f"{method.upper()} {path}"
            now = new["paths"].get(path, {}).get(method)
            if now is None:
                found.append(f"{name} was removed")
            else:
                found += [f"{name}: {change}" for change in _operation(operation, now)]
    for name, use in sorted(_uses(old)):
        before, after = (one["components"]["schemas"].get(name) for one in (old, new))
        if after is not None:
            found += [f"{name} ({use}): {change}" for change in _fields(before or {}, after, use)]
        elif (name, use) in _uses(new):
            found.append(f"{name} ({use}) was removed")
    return found


def _operation(old: Schema, new: Schema) -> Iterator[str]:
    yield from _parameters(old, new)
    for use, one, other in _contents(old, new):
        yield from _value(f"the {use} body", one, other, use)
    for status in sorted(old["responses"].keys() - new["responses"].keys()):
        if status.startswith("2"):
            yield f"the response {status} was removed"
    if new.get("requestBody", {}).get("required") and not old.get("requestBody", {}).get("required"):
        yield "the body is now required"


def _parameters(old: Schema, new: Schema) -> Iterator[str]:
    before, after = (
        {f"the {one['in']} parameter {one['name']}": one for one in operation.get("parameters", [])}
        for operation in (old, new)
    )
    for name in sorted(before.keys() - after.keys()):
        yield f"{name} was removed"
    for name, parameter in sorted(after.items()):
        if parameter.get("required") and not before.get(name, {}).get("required"):
            yield f"{name} is now required"
        elif name in before:
            yield from _value(name, before[name]["schema"], parameter["schema"], "request")


def _contents(old: Schema, new: Schema) -> Iterator[tuple[Use, Schema, Schema]]:
    """Yield the schemas of bodies that both have, by their media type."""
    pairs: list[tuple[Use, Schema, Schema]] = [
        ("request", old.get("requestBody", {}), new.get("requestBody", {}))
    ]
    pairs += [
        ("response", one, new["responses"][status])
        for status, one in old["responses"].items()
        if status.startswith("2") and status in new["responses"]
    ]
    for use, before, after in pairs:
        for media, one in before.get("content", {}).items():
            if media in after.get("content", {}):
                yield use, one.get("schema", {}), after["content"][media].get("schema", {})


def _fields(old: Schema, new: Schema, use: Use) -> Iterator[str]:
    """Yield the breaking changes of a schema's fields."""
    before, after = old.get("properties", {}), new.get("properties", {})
    for name in sorted(before.keys() - after.keys()):
        yield f"the field {name} was removed"
    needed, needed_now = set(old.get("required", ())), set(new.get("required", ()))
    if use == "request":
        for name in sorted(needed_now - needed):
            yield f"the field {name} is now required"
    else:
        for name in sorted((needed - needed_now) & after.keys()):
            yield f"the field {name} may now be missing"
    for name in sorted(before.keys() & after.keys()):
        yield from _value(f"the field {name}", before[name], after[name], use)
    if not before:
        yield from _value("the value", old, new, use)


def _value(name: str, old: Schema, new: Schema, use: Use) -> Iterator[str]:
    """Yield whether values that were accepted are refused, or values that were not returned are."""
    before, after = _types(old), _types(new)
    lost = before - after if use == "request" else {one for one in after - before if not one.startswith("=")}
    if lost and "any" not in (after if use == "request" else before):
        verb = "no longer takes" if use == "request" else "may now be"
        yield f"{name} {verb} {', '.join(sorted(one.lstrip('=') for one in lost))}"


def _types(schema: Schema) -> set[str]:
    """Return the types of a value: JSON's types, names of schemas, and `=value` for each one of an enum."""
    if "$ref" in schema:
        return {schema["$ref"].rpartition("/")[2]}
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return set().union(*(_types(one) for one in schema[key]))
    if "enum" in schema or "const" in schema:
        return {f"={value}" for value in schema.get("enum", [schema.get("const")])}
    if schema.get("type") == "array":
        return {f"array of {one}" for one in _types(schema.get("items", {}))}
    kinds = schema.get("type", "any")
    return set(kinds) if isinstance(kinds, list) else {kinds}


def _uses(document: Schema) -> set[tuple[str, Use]]:
    """Return the names of the schemas that bodies reach, each with its use."""
    schemas = document["components"]["schemas"]
    found: set[tuple[str, Use]] = set()

    def add(value: Any, use: Use) -> None:
        for name in re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(value)):
            if (name, use) not in found:
                found.add((name, use))
                add(schemas.get(name, {}), use)

    for methods in document["paths"].values():
        for operation in methods.values():
            add([operation.get("requestBody"), operation.get("parameters")], "request")
            add(operation["responses"], "response")
    return found


def python_changes(old: Path, new: Path) -> list[str]:
    """Return the breaking changes of the public names between two folders of sources."""
    before, after = (public_names(one / "zndraw_joblib" / "__init__.py") for one in (old, new))
    packages = [
        griffe.load("zndraw_joblib", search_paths=[one], try_relative_path=False) for one in (old, new)
    ]
    found = [f"zndraw_joblib.{name} was removed" for name in sorted(before.keys() - after.keys())]
    for name in sorted(before.keys() & after.keys()):
        try:
            was, now = (
                one[f"{names[name]}.{name}"] for one, names in zip(packages, (before, after), strict=True)
            )
        except KeyError:  # made at run time, as the classes of problems
            continue
        found += [
            f"zndraw_joblib.{name}: {one.obj.path.rpartition(f'{name}.')[2]}: {_text(one)}"
            for one in griffe.find_breaking_changes(was, now)
        ]
    return found


def _text(change: griffe.Breakage) -> str:
    values = [_shown(one) for one in (change.old_value, change.new_value)]
    parts = [change.kind.value.lower(), change.details, " -> ".join(filter(None, values))]
    return ": ".join(part for part in parts if part)


def _shown(value: Any) -> str:
    if isinstance(value, griffe.Parameter):
        return value.name
    return str(value) if isinstance(value, str | griffe.Expr) else ""


def public_names(init: Path) -> dict[str, str]:
    """Return the module of each public name, from the table `_MODULES`."""
    for node in ast.walk(ast.parse(init.read_text())):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_MODULES":
            return {name: module for module, names in ast.literal_eval(node.value).items() for name in names}
    raise ReleaseError(f"{init} has no table _MODULES of public names")


def main(arguments: list[str]) -> int:
    """Print the breaking changes since a tag; return 1 if this version may not have them."""
    try:
        lines = check(ROOT, *arguments[:1])
    except ReleaseError as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join(lines) or "no breaking change")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
