"""Rooms, the modules that may use SQL, sizes of functions, and who writes the status of a task."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, TypeGuard

import pytest
from sqlalchemy import TextualSelect

from zndraw_joblib.server.db.statements import TEXT, statement
from zndraw_joblib.wire.statuses import TaskStatus

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "zndraw_joblib"
FILES = sorted(PACKAGE.rglob("*.py"))
MAX_FUNCTION = 45
WRITE = re.compile(r"\b(INSERT INTO|INSERT OR \w+ INTO|UPDATE|DELETE FROM) (joblib_\w+)")
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


def imported(path: Path) -> set[str]:
    """Return the absolute names of the modules that a file imports anywhere, with the names that it takes."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def may_use_sql(path: Path) -> bool:
    """Return whether a module may import SQLAlchemy: those of `db`, and `sql_*` of each room."""
    return name_of(path).startswith(("server/db/", "server/alembic/")) or path.name.startswith("sql_")


def test_only_modules_of_sql_import_sqlalchemy() -> None:
    """Rules, HTTP and flows decide; `sql_*` and `db` read and write."""
    users = {
        path for path in FILES for name in imported(path) if name.split(".")[0] in {"sqlalchemy", "sqlmodel"}
    }
    assert [name_of(path) for path in sorted(users) if not may_use_sql(path)] == []
    assert {"server/db/tables.py", "server/queue/sql_transitions.py"} <= {name_of(path) for path in users}


def test_http_calls_rules_and_never_sql() -> None:
    """No module of `http` imports a module `sql_*`."""
    for path in FILES:
        if name_of(path).startswith("server/http/"):
            assert [name for name in imported(path) if name.rsplit(".", 1)[-1].startswith("sql_")] == [], path


def test_a_worker_loads_no_server_library() -> None:
    """A worker imports the package, connects and creates a manager without importing a server library.

    It loads Socket.IO only on request.
    """
    command = [sys.executable, "-c", BUILD_A_MANAGER, ",".join(SERVER_LIBRARIES + SOCKET_LIBRARIES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["", "[]"]


def texts(path: Path) -> list[str]:
    """Return the string constants of a file, and the constant parts of its f-strings."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def tables_written(path: Path) -> Iterator[tuple[str, str]]:
    """Return the statement and the table of every write in a file, built by SQLAlchemy or written as SQL."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and node.args:
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in {"insert", "update", "delete"}:
                yield called, ast.unparse(node.args[0])
    for text in texts(path):
        for words, table in WRITE.findall(text):
            yield words.split()[0].lower(), table


def static_statements() -> Iterator[tuple[str, str]]:
    """Return the name of the module and the SQL of every statement that a module `sql_*` keeps."""
    for path in FILES:
        if path.name.startswith("sql_"):
            module = import_module("zndraw_joblib." + name_of(path).removesuffix(".py").replace("/", "."))
            for value in vars(module).values():
                for kept in value.values() if isinstance(value, dict) else [value]:
                    if isinstance(kept, TextualSelect):
                        yield path.name, str(kept.element.text)  # type: ignore[attr-defined]


def test_the_queue_alone_writes_tasks() -> None:
    """Only seven modules insert, update or delete tasks.

    `sql_details` and `sql_unique` update columns of their own alone, and `sql_recount` a count of claims.
    """
    is_task = {
        "joblib_task",
        "tasks",
        "Task",
        "Task.__table__",
        "tables.Task",
        "store.tasks",
        "tasks.tasks",
        "sql_tasks.tasks",
    }
    files = [path for path in FILES if not name_of(path).startswith("server/alembic/")]
    writers = {
        (name_of(path), what) for path in files for what, table in tables_written(path) if table in is_task
    }
    assert {(path.removeprefix("server/queue/"), what) for path, what in writers} == {
        ("sql_transitions.py", "insert"),
        ("sql_transitions.py", "delete"),
        ("sql_transitions.py", "update"),
        ("sql_reports.py", "update"),
        ("sql_details.py", "update"),
        ("sql_submit.py", "insert"),
        ("sql_claim_statements.py", "update"),
        ("sql_recount.py", "update"),
        ("sql_unique.py", "update"),
        ("sql_successors.py", "update"),
    }


def test_a_statement_that_sets_a_status_has_a_guard() -> None:
    """Each UPDATE of a task's status compares the status that the row has."""
    setting = {
        (name, sql)
        for name, sql in static_statements()
        if re.search(r"UPDATE joblib_task SET[^;]*?\bstatus = ", sql)
    }
    assert {name for name, _ in setting} == {
        "sql_claim_statements.py",
        "sql_reports.py",
        "sql_transitions.py",
    }
    for _, sql in setting:
        assert re.search(r"joblib_task\.status (= |IN \()", sql), sql


def test_a_column_with_several_types_needs_the_one_that_is_meant() -> None:
    """In parameters and results; without a type, a statement would silently get that of another table."""
    for sql, columns in (("SELECT 1 WHERE 1 = :key", ()), ("SELECT key FROM joblib_result", ("key",))):
        with pytest.raises(TypeError, match=r"columns key of several types: .* key="):
            statement(sql, *columns)
        statement(sql, *columns, key=TEXT)


def test_statuses_in_sql_have_names() -> None:
    """Statements take statuses from `TaskStatus`; only the schema writes them out."""
    literal = re.compile("|".join(f"'{status}'" for status in TaskStatus))
    for path in FILES:
        if path.name.startswith("sql_"):
            assert not [text for text in texts(path) if literal.search(text)], path


def test_no_request_builds_sql_as_text() -> None:
    """`statement` is called when a module is loaded, and not in a coroutine with the values of a request."""
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.AsyncFunctionDef):
                called = {call.func.id for call in ast.walk(node) if is_named_call(call)}
                assert "statement" not in called, f"{path}: {node.name}"


def is_named_call(node: ast.AST) -> TypeGuard[Any]:
    """Return whether a node calls a function by its name."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name)


def test_no_sql_is_written_as_text_elsewhere() -> None:
    """The tests above would not find a status that another module writes."""
    for path in FILES:
        if not may_use_sql(path):
            text = path.read_text(encoding="utf-8")
            assert "exec_driver_sql" not in text, path
            assert not re.search(r"\b(FROM|INTO|JOIN|UPDATE|USING) joblib_", text), path


def test_functions_are_short() -> None:
    """No function has more than 45 lines."""
    long = [f"{name} ({lines})" for path in FILES for name, lines in functions(path) if lines > MAX_FUNCTION]
    assert long == []
