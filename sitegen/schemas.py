"""Show JSON Schemas as tables."""

from collections.abc import Callable
from typing import Any


def fields_table(schema: dict[str, Any], link: Callable[[str], str] = lambda name: f"`{name}`") -> str:
    """Return a table of an object's properties, or an empty text; `link` shows another schema's name."""
    required = set(schema.get("required", ()))
    rows = [
        f"| `{name}` | {kind(one, link)} | {_default(one, name in required)} | {_text(one)} |"
        for name, one in schema.get("properties", {}).items()
    ]
    return "\n".join(["| field | type | default | |", "|---|---|---|---|", *rows, ""]) if rows else ""


def kind(schema: dict[str, Any], link: Callable[[str], str]) -> str:
    """Return the type of a value in words."""
    if "$ref" in schema:
        return link(schema["$ref"].rpartition("/")[2])
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            return " or ".join(dict.fromkeys(kind(one, link) for one in schema[key]))
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{one}`" for one in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"list of {kind(schema.get('items', {}), link)}"
    if schema.get("type") == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {kind(schema['additionalProperties'], link)}"
    name = schema.get("type", "any")
    return f"{name} ({schema['format']})" if "format" in schema else str(name)


def _default(schema: dict[str, Any], is_required: bool) -> str:
    if is_required:
        return "required"
    return f"`{str(schema['default']).lower()}`" if schema.get("default") not in (None, [], {}, "") else ""


def _text(schema: dict[str, Any]) -> str:
    return " ".join(schema.get("description", "").split()).replace("|", "\\|").replace("<", "&lt;")
