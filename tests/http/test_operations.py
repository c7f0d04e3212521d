"""The table of operations: it is what the server serves, and no path is written a second time."""

import ast
from pathlib import Path

import pytest

from zndraw_joblib.server.http import routes
from zndraw_joblib.wire.operations import OPERATIONS, SUBMIT_TASK

PACKAGE = Path(__file__).parents[2] / "src" / "zndraw_joblib"
TABLE = PACKAGE / "wire" / "operations.py"


def test_the_server_serves_the_table() -> None:
    """Each row has one route, in the order of the table."""
    served = [(route.name, *route.methods, route.path.replace(":path", "")) for route in routes]
    assert served == [(row.name, row.method, row.template) for row in OPERATIONS]


def test_parts_of_paths_are_quoted() -> None:
    """A part of a path stays one part, whatever it contains."""
    assert SUBMIT_TASK.path(room_id="a/b", name="..") == "/rooms/a%2Fb/tasks/%2E%2E"
    with pytest.raises(KeyError):
        SUBMIT_TASK.path(room_id="lab")


def test_no_path_is_written_twice() -> None:
    """Outside the table, no text in the code begins as one of its paths does."""
    nouns = {row.template.split("/")[1] for row in OPERATIONS}
    paths = [path for path in PACKAGE.rglob("*.py") if path != TABLE and path.parts[-2] != "http"]
    texts = {
        f"{path.relative_to(PACKAGE)}:{node.lineno}: {node.value}"
        for path in paths
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if node.value.startswith("/") and node.value.split("/")[1] in nouns
    }
    assert texts == set()
