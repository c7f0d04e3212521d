"""Parts of declarations: parameters that a request may omit, headers, and bodies of bytes."""

from typing import Any, TypeAlias, TypeVar

from pydantic.json_schema import SkipJsonSchema

Value = TypeVar("Value")
# None stands for an omitted parameter: no header or query has a null, so the OpenAPI document has none.
Omissible: TypeAlias = Value | SkipJsonSchema[None]
_BINARY = {"type": "string", "format": "binary"}
# A body of bytes. Generators of clients know no `*/*`, so a request declares the general type alone.
BYTES_SENT: dict[str, Any] = {
    "description": "The bytes, with any `Content-Type`, which is kept.",
    "required": True,
    "content": {"application/octet-stream": {"schema": _BINARY}},
}
BYTES_RETURNED: dict[str, Any] = {"application/octet-stream": {"schema": _BINARY}, "*/*": {"schema": _BINARY}}


def header_parameter(name: str, description: str) -> dict[str, Any]:
    """Return the declaration of a header that the endpoint reads from the request itself."""
    return {"in": "header", "name": name, "description": description, "schema": {"type": "string"}}


def event_stream(description: str) -> dict[str, Any]:
    """Return the declaration of a response that is a stream of Server-Sent Events."""
    return {"text/event-stream": {"schema": {"type": "string", "description": description}}}
