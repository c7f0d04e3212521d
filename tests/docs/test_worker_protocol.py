"""The page of the protocol of workers: its examples fit the operations, and it has all scenarios."""

import json
import re
from typing import Any

import jsonschema
import pytest
from sitegen import ROOT

from docs.code import Code, code
from zndraw_joblib.testing.conformance.scenarios import SCENARIOS
from zndraw_joblib.wire.operations import OPERATIONS, PREFIX, Operation

PAGE = ROOT / "docs/reference/worker-protocol.md"


def _row_of(block: Code) -> Operation[Any]:
    method, path = block.text.split(maxsplit=2)[:2]
    return next(
        row
        for row in OPERATIONS
        if row.method == method and re.fullmatch(PREFIX + re.sub(r"\{\w+\}", "[^/]+", row.template), path)
    )


def _exact(schema: Any, *, is_answer: bool) -> Any:
    """Return a schema that allows no other fields; examples of answers may leave fields out."""
    if isinstance(schema, list):
        return [_exact(item, is_answer=is_answer) for item in schema]
    if not isinstance(schema, dict):
        return schema
    exact = {name: _exact(value, is_answer=is_answer) for name, value in schema.items()}
    if is_answer and isinstance(exact.get("required"), list):
        del exact["required"]
    if isinstance(exact.get("properties"), dict):
        exact["additionalProperties"] = False
    return exact


def test_the_examples_have_the_fields_of_the_operations(subtests: pytest.Subtests) -> None:
    """A request has a body of its operation, and the JSON after it is an answer of it."""
    row = None
    blocks = [block for block in code("http", "json") if block.page == PAGE]
    assert len(blocks) > 12
    for block in blocks:
        with subtests.test(block.name):
            is_answer = block.language == "json"
            if not is_answer:
                row = _row_of(block)
            assert row is not None
            model = row.answer if is_answer else row.body
            schema = model.model_json_schema(mode="serialization" if is_answer else "validation")
            value = json.loads(block.text if is_answer else block.text.partition("\n\n")[2])
            jsonschema.validate(value, _exact(schema, is_answer=is_answer))


def test_the_report_has_every_scenario() -> None:
    """The table of the page names the scenarios of the kit, in their order."""
    text = PAGE.read_text()
    assert re.findall(r"^\| `([a-z-]+)` \| (?:minimal|full) \|", text, re.MULTILINE) == [
        scenario.name for scenario in SCENARIOS
    ]
    assert f"{len(SCENARIOS)} scenarios" in text
