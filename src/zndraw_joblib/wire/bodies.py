"""The bases of the bodies of requests and responses: they decide which fields a JSON Schema requires."""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from operator import is_
from typing import Annotated, Any, Self

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field

from zndraw_joblib.wire.models import DeferredModel
from zndraw_joblib.wire.names import MAX_NAME_LENGTH, NAME_PATTERN, is_name, unknown_text


def _name(text: str) -> str:
    if not is_name(text):
        raise ValueError(
            f"a name has 1 to {MAX_NAME_LENGTH} letters, digits, '_', '-', '.', not starting with '-' or '.'"
        )
    return text


# Not a pydantic pattern: its regex engine and Python's disagree on which characters are letters.
Name = Annotated[
    str,
    AfterValidator(_name),
    Field(json_schema_extra={"minLength": 1, "maxLength": MAX_NAME_LENGTH, "pattern": NAME_PATTERN}),
]
JsonObject = dict[str, Any]


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("it may have printable characters only")
    return text


Printable = AfterValidator(_printable)

MAX_TAGS, MAX_TAG = 10, 64


def _distinct(tags: list[str]) -> list[str]:
    return list(dict.fromkeys(tags))


Tag = Annotated[str, Printable, Field(min_length=1, max_length=MAX_TAG)]
# Each tag counts once, in the order of the request.
Tags = Annotated[list[Tag], Field(max_length=MAX_TAGS), AfterValidator(_distinct)]


# asyncpg takes the last microsecond of the year for infinity.
_LAST_MOMENT = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


def _in_utc(moment: datetime) -> datetime:
    with suppress(OverflowError):
        if (utc := moment.astimezone(UTC)) <= _LAST_MOMENT:
            return utc
    raise ValueError(
        f"{moment.isoformat()} is outside the years 1 to 9999 in UTC, which the database can store"
    )


Moment = Annotated[AwareDatetime, AfterValidator(_in_utc)]

# Whether a field of a response is omitted: for `Field(exclude_if=is_none)`. It is called for each response.
is_none: Callable[[Any], bool] = partial(is_, None)


def _describe_defaults(schema: dict[str, Any]) -> None:
    """Move each default into the description of its field, and do not offer unknown fields.

    Generators of types read `default` as "always present", so a request would have to send the field.
    """
    if schema.get("additionalProperties") is True:
        del schema["additionalProperties"]
    for field in schema.get("properties", {}).values():
        if field.get("default") is not None:
            text = f"Default: `{json.dumps(field.pop('default'))}`."
            field["description"] = f"{field['description']} {text}" if "description" in field else text


class RequestBody(BaseModel):
    """A body, or a part of one, in which fields with a default may be omitted."""

    model_config = ConfigDict(json_schema_extra=_describe_defaults)


class CheckedKeywords(BaseModel):
    """A model that programs build: a keyword that is no field is a TypeError with the nearest field.

    Bodies of requests are validated without keywords, so unknown fields in them are ignored.
    """

    def __new__(cls, *_: Any, **values: Any) -> Self:
        """Build an instance after its keywords were checked, and those of models that are given as dicts."""
        _check_keywords(cls, values)
        return super().__new__(cls)


def _check_keywords(cls: type[BaseModel], values: Mapping[str, Any]) -> None:
    fields = cls.model_fields
    aliases = {alias for field in fields.values() for alias in (field.alias, field.validation_alias)}
    # The arguments of `BaseSettings` begin with an underscore.
    unknown = [name for name in values if not (name in fields or name in aliases or name.startswith("_"))]
    if unknown:
        raise TypeError(unknown_text(cls.__name__, unknown, list(fields)))
    for name, value in values.items():
        model = fields[name].annotation if name in fields else None
        if isinstance(model, type) and issubclass(model, CheckedKeywords) and isinstance(value, Mapping):
            _check_keywords(model, value)


class ResponseBody(DeferredModel):
    """A body, or a part of one, in which the server sends every field, also those with a default."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=True)
