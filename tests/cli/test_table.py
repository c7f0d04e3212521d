"""Tables on terminals of several widths, and the parameters of a job from its schema."""

import json
from dataclasses import replace
from io import StringIO
from typing import Any
from uuid import uuid4

import pytest
from rich.console import Console

from zndraw_joblib.cli.client import parse_id
from zndraw_joblib.cli.display import ItemTable
from zndraw_joblib.cli.jobs import example_call
from zndraw_joblib.cli.tasks import TASKS
from zndraw_joblib.wire.messages import JobResponse

ID = "01a9b2c3-d4e5-7f60-8123-456789abcdef"
TWIN = "01a9b2c3-d4e5-7f60-8123-456789abcdee"


def shown(table: ItemTable, items: list[dict[str, Any]], width: int) -> list[str]:
    """Return the lines of a table of these items on a terminal."""
    # The texts of the cells, by column.
    of_texts = replace(table, cells={name: name for name in table.cells})
    output = StringIO()
    Console(file=output, width=width, force_terminal=False).print(of_texts.build(items, width))
    return [line for line in output.getvalue().splitlines() if line.strip()]


def test_id_job_and_error_stay_visible() -> None:
    """At 80 columns the job keeps its name and the error its beginning; less important columns give way."""
    row = {
        "task": ID,
        "job": "@global:modifiers:RelaxWithManyStepsAtOnce",
        "room": "chemistry-lab-3",
        "status": "failed",
        "created": "2 hours ago",
        "took": "1.25 s",
        "error": "ValueError: the structure has no cell, so it cannot be relaxed",
    }
    head, _, line = shown(TASKS, [row], 80)
    assert len(line) <= 80
    assert {"task", "job", "status", "error"} <= set(head.split())
    assert ID[:18] in line
    assert "ManyStepsAtOnce" in line
    assert "failed" in line
    assert "ValueError: the" in line
    narrow = shown(TASKS, [row], 60)[2]
    assert ID[:18] in narrow
    assert "AtOnce" in narrow
    assert "ValueErr" in narrow
    assert ID in shown(TASKS, [row], 200)[2]


def test_the_target_of_an_action_is_whole() -> None:
    """A filter takes several lines; other columns have their text in the first one."""
    target = '{"status":["failed"],"room":["chemistry-lab-3"],"text":"no cell"}'
    table = ItemTable(
        {name: name for name in ("at", "action", "target")}, wide=["target"], wrapped=["target"]
    )
    lines = shown(table, [{"at": "2 hours ago", "action": "bulk.retry", "target": target}], 60)
    first, *others = [line.strip() for line in lines[2:]]
    assert first.startswith("2 hours ago")
    assert "".join([first.split("bulk.retry")[1], *others]).replace(" ", "") == target.replace(" ", "")
    assert max(map(len, lines)) <= 60


def test_shortened_ids_name_each_row() -> None:
    """Ids that begin alike keep as many characters as distinguish them."""
    table = replace(TASKS, cells={"task": "task", "error": "error"})
    lines = shown(table, [{"task": ID, "error": "x" * 50}, {"task": TWIN, "error": "y" * 50}], 70)
    assert {line.split()[0] for line in lines[2:]} == {ID, TWIN}


def test_a_prefix_of_an_id_is_checked(subtests: pytest.Subtests) -> None:
    """A text that no id begins with is an error before any request."""
    for text in ("abc", "xyzw", ID + "0", "----"):
        with subtests.test(text=text):
            with pytest.raises(Exception, match="is not an id"):
                parse_id(text)
            assert parse_id(ID.replace("-", "")) == parse_id(ID.upper()) == ID
            assert parse_id("01a9b2c3d4") == "01a9b2c3-d4"


def test_the_example_call_fits_the_schema() -> None:
    """Each required parameter has an example of its type, quoted for a shell."""
    schema: dict[str, Any] = {
        "properties": {
            "steps": {"type": "integer", "minimum": 3},
            "mode": {"$ref": "#/$defs/Mode"},
            "cell": {"anyOf": [{"type": "array", "items": {"type": "number"}}, {"type": "null"}]},
            "note": {"type": "string", "examples": ["two words"]},
            "loop": {"$ref": "#/properties/loop"},
            "label": {"type": "string", "default": "a"},
        },
        "required": ["steps", "mode", "cell", "note", "loop"],
        "$defs": {"Mode": {"enum": ["fast", "slow"]}},
    }
    job = JobResponse(
        id=uuid4(), room_id="a", category="b", name="C", full_name="a:b:C", workers=[], schema_=schema
    )
    call = "zndraw-joblib submit a:b:C steps=3 mode=fast 'cell=[]' 'note=two words' loop=text --wait"
    assert example_call(job) == call
    assert json.loads(json.dumps(job.schema_)) == schema
