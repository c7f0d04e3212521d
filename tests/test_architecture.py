"""Layers, sizes of files and functions, and the one package that writes the status of a task."""

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "zndraw_joblib"
FILES = sorted(PACKAGE.rglob("*.py"))
MAX_FILE, MAX_FUNCTION = 400, 40
# Functions that may be longer, each with the reason.
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
    """Return the path of a file inside the package."""
    return path.relative_to(PACKAGE).as_posix()


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """Return the functions of a file with their numbers of lines, docstrings included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{name_of(path)}:{node.name}", node.end_lineno - node.lineno + 1


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter on the sources in a folder with the contracts of its pyproject.toml."""
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache"]
    environment = {**os.environ, "PYTHONPATH": str(folder / "src"), "COLUMNS": "200"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_the_import_contracts_are_kept() -> None:
    """import-linter finds no broken contract of pyproject.toml."""
    done = lint_imports(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


def test_an_import_of_sqlalchemy_is_noticed_in_every_package(tmp_path: Path) -> None:
    """With `import sqlalchemy` added to each module outside the store, import-linter reports each of them."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    changed = []
    for path in sorted((tmp_path / "src" / "zndraw_joblib").rglob("*.py")):
        name = path.relative_to(tmp_path / "src").as_posix()
        # The migrations are no part of the import graph.
        if not name.startswith(("zndraw_joblib/server/store/", "zndraw_joblib/server/alembic/")):
            with path.open("a", encoding="utf-8") as source:
                source.write("\nimport sqlalchemy\n")
            changed.append(name.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
    done = lint_imports(tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    reported = set(re.findall(r"^-?\s*(\S+) -> sqlalchemy\b", done.stdout, re.MULTILINE))
    assert {name for name in changed if name not in reported} == set()


def test_a_worker_loads_no_server_library() -> None:
    """A worker imports the package, connects and creates a manager without importing a server library.

    It loads Socket.IO only on request.
    """
    command = [sys.executable, "-c", BUILD_A_MANAGER, ",".join(SERVER_LIBRARIES + SOCKET_LIBRARIES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["", "[]"]


def tables_written(path: Path) -> Iterator[tuple[str, str]]:
    """Return the statement and the table of every `insert(…)`, `update(…)` and `delete(…)` in a file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and node.args:
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in {"insert", "update", "delete"}:
                yield called, ast.unparse(node.args[0])


def test_five_modules_write_the_status_of_a_task() -> None:
    """Only `store/tasks` inserts, updates or deletes tasks; moves, plain claims and steps update them.

    `end_hooks` updates columns of its own alone, and `recount` a count of claims.
    """
    is_task = {"tasks", "Task", "Task.__table__", "tables.Task", "store.tasks", "tasks.tasks"}
    writers = {
        (name_of(path), what) for path in FILES for what, table in tables_written(path) if table in is_task
    }
    assert {(path.removeprefix("server/store/tasks/"), what) for path, what in writers} == {
        ("write.py", "insert"),
        ("write.py", "delete"),
        ("moving.py", "update"),
        ("steps.py", "update"),
        ("end_hooks.py", "update"),
        ("append.py", "insert"),
        ("plain_claims.py", "update"),
        ("server/store/recount.py", "update"),
    }


def test_no_sql_is_written_as_text_outside_the_store() -> None:
    """The test above would not find a status that is written as SQL text."""
    for path in FILES:
        if not name_of(path).startswith("server/store/"):
            found = path.read_text(encoding="utf-8")
            assert "exec_driver_sql" not in found, path
            assert "joblib_task" not in found, path
    for path in (PACKAGE / "server" / "store").rglob("*.py"):
        strings = [
            node.value
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
        assert not [
            text for text in strings if text.startswith(("UPDATE ", "INSERT ", "update ", "insert "))
        ], path


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_files_and_functions_are_short(path: Path) -> None:
    """No file has more than 400 lines and no function more than 40, except those listed with a reason."""
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_FILE
    long = [f"{name} ({lines})" for name, lines in functions(path) if lines > MAX_FUNCTION]
    assert [entry for entry in long if entry.split(" ")[0] not in LONG_FUNCTIONS] == []


def test_every_exception_is_still_needed() -> None:
    """The list of exceptions has no function that is short enough."""
    long = {name for path in FILES for name, lines in functions(path) if lines > MAX_FUNCTION}
    assert set(LONG_FUNCTIONS) <= long


def test_most_files_are_small() -> None:
    """The median file has fewer than 150 lines."""
    sizes = sorted(len(path.read_text(encoding="utf-8").splitlines()) for path in FILES)
    assert sizes[len(sizes) // 2] < 150
