"""The table of operations: it is what the server serves, and no path is written a second time."""

import ast
from pathlib import Path
from uuid import UUID

import pytest
from fastapi import Response

from zndraw_joblib.server.http import endpoints
from zndraw_joblib.server.http.routing import serves
from zndraw_joblib.server.process.ports import Identity
from zndraw_joblib.wire.messages import WorkerInfo
from zndraw_joblib.wire.operations import DRAIN_WORKER, LIST_WORKERS, OPERATIONS, SUBMIT_TASK

PACKAGE = Path(__file__).parents[2] / "src" / "zndraw_joblib"
TABLE = PACKAGE / "wire" / "operations.py"


def test_the_server_serves_the_table() -> None:
    """Each row has the function of its name, in the order of the table."""
    assert [endpoint.work.__name__ for endpoint in endpoints] == [row.name for row in OPERATIONS]
    assert [endpoint.operation for endpoint in endpoints] == list(OPERATIONS)


def test_a_function_must_fit_its_row() -> None:
    """A function without the key, or with a body that the row has not, is refused at import."""

    async def drain_worker(caller: Identity, worker_id: UUID) -> Response:
        return Response()

    async def list_workers(caller: Identity, body: WorkerInfo) -> Response:
        return Response()

    with pytest.raises(TypeError, match="drain_worker: the key of the row is True"):
        serves(DRAIN_WORKER)(drain_worker)
    with pytest.raises(TypeError, match="list_workers: the body of the row is None"):
        serves(LIST_WORKERS)(list_workers)


def test_parts_of_paths_are_quoted() -> None:
    """A part of a path stays one part, whatever it contains."""
    assert SUBMIT_TASK.path(room_id="a/b", name="..") == "/rooms/a%2Fb/tasks/%2E%2E"
    with pytest.raises(KeyError):
        SUBMIT_TASK.path(room_id="lab")


def test_no_path_is_written_twice() -> None:
    """Outside the table, no text in the code begins as one of its paths does.

    But in the conformance kit: it knows the protocol of workers as its page does, and not from the code.
    """
    nouns = {row.template.split("/")[1] for row in OPERATIONS}
    paths = [path for path in PACKAGE.rglob("*.py") if path != TABLE and path.parent.name != "conformance"]
    texts = {
        f"{path.relative_to(PACKAGE)}:{node.lineno}: {node.value}"
        for path in paths
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if node.value.startswith("/") and node.value.split("/")[1] in nouns
    }
    assert texts == set()
