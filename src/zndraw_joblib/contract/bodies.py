"""The bases of the bodies of requests and responses: they decide which fields a JSON Schema requires."""

import json
from typing import Any

from pydantic import BaseModel, ConfigDict


def is_none(value: object) -> bool:
    """Return whether a field of a response is omitted; for `Field(exclude_if=is_none)`."""
    return value is None


def _describe_defaults(schema: dict[str, Any]) -> None:
    """Move each default into the description of its field.

    Generators of types read `default` as "always present", so a request would have to send the field.
    """
    for field in schema.get("properties", {}).values():
        if field.get("default") is not None:
            text = f"Default: `{json.dumps(field.pop('default'))}`."
            field["description"] = f"{field['description']} {text}" if "description" in field else text


class RequestBody(BaseModel):
    """A body, or a part of one, in which fields with a default may be omitted."""

    model_config = ConfigDict(json_schema_extra=_describe_defaults)


class ResponseBody(BaseModel):
    """A body, or a part of one, in which the server sends every field, also those with a default."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=True)
