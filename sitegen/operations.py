"""Generate the page of all REST operations from the OpenAPI document."""

from typing import Any

from generate.openapi import document

from sitegen.schemas import fields_table, kind

_INTRODUCTION = """\
# All REST operations

Generated from the server's OpenAPI document, which a server also returns at `/openapi.json`.
[REST API](rest.md) explains the operations and who may use them.
"""


def page() -> str:
    """Return a section for each operation, by tag, and one for each schema."""
    api = document()
    tags: dict[str, list[str]] = {}
    for path, methods in api["paths"].items():
        for method, operation in methods.items():
            [tag, *_] = operation.get("tags", ["other"])
            tags.setdefault(tag, []).append(_operation(method, path, operation))
    parts = [f"## {tag.capitalize()}\n\n" + "\n".join(sections) for tag, sections in tags.items()]
    schemas = [_schema(name, one) for name, one in sorted(api["components"]["schemas"].items())]
    return "\n".join([_INTRODUCTION, *parts, "## Schemas\n", *schemas])


def _link(name: str) -> str:
    return f"[{name}](#schema-{name.lower()})"


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    anchor = operation["operationId"].lower().replace("_", "-")
    parts = [
        f"### `{method.upper()} {path}` {{ #{anchor} }}\n",
        operation.get("description", operation["summary"]),
        "",
    ]
    rows = [
        f"| `{one['name']}` | {one['in']} | {kind(one['schema'], _link)} | {_required(one)} |"
        for one in operation.get("parameters", [])
    ]
    if rows:
        parts += ["| parameter | in | type | required |", "|---|---|---|---|", *rows, ""]
    if "requestBody" in operation:
        parts += [f"Body: {_contents(operation['requestBody']['content'])}", ""]
    parts += [
        f"- {status}: {one['description']}{_of(one.get('content', {}))}"
        for status, one in sorted(operation["responses"].items())
    ]
    return "\n".join([*parts, ""])


def _required(parameter: dict[str, Any]) -> str:
    return "yes" if parameter.get("required") else ""


def _of(content: dict[str, Any]) -> str:
    return f" ({_contents(content)})" if content else ""


def _contents(content: dict[str, Any]) -> str:
    return "; ".join(f"`{media}`: {kind(one.get('schema', {}), _link)}" for media, one in content.items())


def _schema(name: str, schema: dict[str, Any]) -> str:
    heading = f"### {name} {{ #schema-{name.lower()} }}\n\n{schema.get('description', '')}\n\n"
    return heading + (fields_table(schema, _link) or f"{kind(schema, _link)}\n")
