"""The house keeps its floors, its rooms are small, and a status is written in one place."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "zndraw_joblib"
FILES = sorted(PACKAGE.rglob("*.py"))
MAX_FILE, MAX_FUNCTION = 400, 40
# A function that is longer, and why.
LONG_FUNCTIONS: dict[str, str] = {}
SERVER_LIBRARIES = [
    "aiosqlite",
    "alembic",
    "asyncpg",
    "fastapi",
    "redis",
    "sqlalchemy",
    "sqlmodel",
    "starlette",
    "taskiq",
    "uvicorn",
]
SOCKET_LIBRARIES = ["engineio", "requests", "socketio", "websocket"]
BUILD_A_MANAGER = """
import sys
import zndraw_joblib
api = zndraw_joblib.connect("http://127.0.0.1:9", token="x" * 20)
manager = zndraw_joblib.JobManager(api)

class Rotate(zndraw_joblib.Extension):
    category = zndraw_joblib.Category.MODIFIER
    def run(self, vis, **kwargs):
        return None

loaded = {name.split(".")[0] for name in sys.modules}
print(",".join(sorted(loaded & set(sys.argv[1].split(",")))))
print([name for name in sys.modules if name.startswith("zndraw_joblib.server")])
"""


def name_of(path: Path) -> str:
    """Return a file's name inside the package."""
    return path.relative_to(PACKAGE).as_posix()


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """Return the functions of a file and how many lines each has, its docstring included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{name_of(path)}:{node.name}", node.end_lineno - node.lineno + 1


def test_the_floors_hold() -> None:
    """import-linter finds every contract of pyproject.toml kept."""
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


def test_a_worker_loads_no_server() -> None:
    """A fresh process imports the package, connects and builds a manager without any server library.

    Nor does it load Socket.IO, unless it asks for it.
    """
    command = [sys.executable, "-c", BUILD_A_MANAGER, ",".join(SERVER_LIBRARIES + SOCKET_LIBRARIES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["", "[]"]


def tables_written(path: Path) -> Iterator[tuple[str, str]]:
    """Return (function, table) of every `insert(…)`, `update(…)` and `delete(…)` of a file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and node.args:
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in {"insert", "update", "delete"}:
                yield called, ast.unparse(node.args[0])


def test_one_module_writes_the_status_of_a_task() -> None:
    """Only `store/tasks.py` inserts, updates or deletes tasks; and the check would find another."""
    is_task = {"tasks", "Task", "Task.__table__", "tables.Task", "store.tasks", "tasks.tasks"}
    writers = {name_of(path) for path in FILES for _, table in tables_written(path) if table in is_task}
    assert writers == {"server/store/tasks.py"}


def test_no_sql_is_written_as_text_outside_the_store() -> None:
    """Statements are built by the store's functions; a status in plain SQL would escape the check above."""
    for path in FILES:
        if not name_of(path).startswith("server/store/"):
            found = path.read_text(encoding="utf-8")
            assert "exec_driver_sql" not in found, path
            assert "joblib_task" not in found, path
    for path in (PACKAGE / "server" / "store").glob("*.py"):
        strings = [
            node.value
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
        assert not [text for text in strings if text.upper().startswith(("UPDATE ", "INSERT "))], path


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_files_and_functions_are_short(path: Path) -> None:
    """No file over 400 lines, no function over 40, but for those listed with a reason."""
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_FILE
    long = [f"{name} ({lines})" for name, lines in functions(path) if lines > MAX_FUNCTION]
    assert [entry for entry in long if entry.split(" ")[0] not in LONG_FUNCTIONS] == []


def test_every_exception_is_still_needed() -> None:
    """What was shortened meanwhile leaves the list."""
    long = {name for path in FILES for name, lines in functions(path) if lines > MAX_FUNCTION}
    assert set(LONG_FUNCTIONS) <= long


def test_most_files_are_small() -> None:
    """The median is under 150 lines."""
    sizes = sorted(len(path.read_text(encoding="utf-8").splitlines()) for path in FILES)
    assert sizes[len(sizes) // 2] < 150
