"""Output about one job: its parameters from the JSON Schema, its policy, and an example call."""

import json
import shlex
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import typer

from zndraw_joblib.cli.display import format_duration, print_fields, print_rows
from zndraw_joblib.cli.table import Layout
from zndraw_joblib.contract.messages import JobResponse
from zndraw_joblib.contract.policy import JobPolicy
from zndraw_joblib.contract.terminal import clean_line

Schema = Mapping[str, Any]
_NO_EXAMPLE = {"string": "text", "integer": 1, "number": 1.0, "boolean": True, "array": [], "object": {}}
_MAX_DEPTH = 5


def print_job(job: JobResponse) -> None:
    """Print a job: its state, its parameters, its policy and an example call."""
    schema = job.schema_
    summary = str(schema.get("description") or "").split("\n\n")[0] or None
    print_fields(
        {"job": job.full_name, "about": summary, "paused": job.paused, "workers": len(job.workers)}
        | _policy(job)
    )
    rows = [_parameter(schema, name, field) for name, field in _fields(schema).items()]
    if rows:
        layout = Layout(wide=["type", "default", "description"], optional=["description"])
        typer.echo()
        print_rows(rows, ["parameter", "type", "default", "description"], layout)
    typer.echo(f"\nExample: {clean_line(example_call(job))}")


def example_call(job: JobResponse) -> str:
    """Return a submit with a value for each required parameter, or for the first one."""
    fields = _fields(job.schema_)
    required = [name for name in fields if name in job.schema_.get("required", ())] or list(fields)[:1]
    values = [f"{name}={_written(_example(job.schema_, fields[name]))}" for name in required]
    return shlex.join(["zndraw-joblib", "submit", job.full_name, *values, "--wait"])


def _policy(job: JobResponse) -> dict[str, Any]:
    """Return the fields of the policy that the job has set, with durations to read."""
    given = job.model_dump(include=set(JobPolicy.model_fields), exclude_defaults=True)
    shown: dict[str, Any] = {}
    for name, value in given.items():
        if name.endswith("_seconds") and value:
            shown[name.removesuffix("_seconds")] = format_duration(timedelta(seconds=value))
        else:
            shown[name] = ", ".join(map(str, value)) if isinstance(value, tuple) else value
    return shown


def _fields(schema: Schema) -> Mapping[str, Schema]:
    fields = schema.get("properties")
    return {str(name): _mapping(field) for name, field in fields.items()} if isinstance(fields, dict) else {}


def _parameter(schema: Schema, name: str, field: Schema) -> dict[str, Any]:
    is_required = name in schema.get("required", ())
    default = "(required)" if is_required else json.dumps(field.get("default"), ensure_ascii=False)
    return {
        "parameter": name,
        "type": _type(schema, field),
        "default": default,
        "description": field.get("description") or _resolved(schema, field).get("description"),
    }


def _type(schema: Schema, field: Schema, depth: int = 0) -> str:
    """Return a type like "integer", "array of number", "'a' or 'b'"."""
    field = _resolved(schema, field)
    values = (
        field["enum"] if isinstance(field.get("enum"), list) else [field[k] for k in ("const",) if k in field]
    )
    if values:
        return " or ".join(map(_written, values))
    choices = field.get("anyOf") or field.get("oneOf")
    if isinstance(choices, list) and depth < _MAX_DEPTH:
        return " or ".join(dict.fromkeys(_type(schema, _mapping(each), depth + 1) for each in choices))
    found = field.get("type", "any")
    text = " or ".join(map(str, found)) if isinstance(found, list) else str(found)
    items = field.get("items")
    if text == "array" and isinstance(items, dict) and depth < _MAX_DEPTH:
        text = f"array of {_type(schema, items, depth + 1)}"
    bounds = [f"{sign} {field[key]}" for key, sign in _BOUNDS.items() if key in field]
    return " ".join([text, *bounds])


_BOUNDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}


def _example(schema: Schema, field: Schema, depth: int = 0) -> Any:
    """Return a value for a parameter: one of its examples, its default, or one of its type."""
    field = _resolved(schema, field)
    for found in (field.get("examples"), field.get("enum")):
        if isinstance(found, list) and found:
            return found[0]
    for key in ("default", "const", "minimum"):
        if field.get(key) is not None:
            return field[key]
    choices = field.get("anyOf") or field.get("oneOf")
    if isinstance(choices, list) and choices and depth < _MAX_DEPTH:
        return _example(schema, _mapping(choices[0]), depth + 1)
    found = field.get("type")
    return _NO_EXAMPLE.get(found[0] if isinstance(found, list) and found else str(found), "text")


def _resolved(schema: Schema, field: Schema) -> Schema:
    """Follow references inside the schema."""
    for _ in range(_MAX_DEPTH):
        reference = field.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#/"):
            return field
        found: Any = schema
        for part in reference[2:].split("/"):
            found = _mapping(found).get(part)
        field = {**_mapping(found), **{key: value for key, value in field.items() if key != "$ref"}}
    return field


def _mapping(value: Any) -> Schema:
    return value if isinstance(value, dict) else {}


def _written(value: Any) -> str:
    """Return a value as it is typed after KEY=."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
