"""Client commands work without the server's libraries, and do not import them."""

import subprocess
import sys

import pytest

from cli.program import Program

HEAVY = ("alembic", "fastapi", "sqlalchemy", "sqlmodel", "starlette", "uvicorn", "zndraw_joblib.server")


def test_client_commands_import_no_server(program: Program) -> None:
    """A client command imports no server library."""
    code = (
        "import sys\nfrom zndraw_joblib import cli\ntry:\n    cli.main()\nexcept SystemExit: pass\n"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    command = [sys.executable, "-c", code, "jobs", "--url", "http://127.0.0.1:1"]
    done = subprocess.run(command, env=program.env, text=True, capture_output=True, check=True)
    assert done.stdout == "[]\n"
    assert "cannot be reached" in done.stderr


def test_completion_imports_no_server(program: Program) -> None:
    """A shell completes commands and options without the server's libraries."""
    code = (
        "import sys\nfrom zndraw_joblib import cli\ntry:\n    cli.main()\nexcept SystemExit: pass\n"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    asked = {"_ZNDRAW_JOBLIB_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "zndraw-joblib tasks --s"}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**program.env, **asked}, text=True, capture_output=True, check=True
    )
    assert "--status" in done.stdout
    assert "--since" in done.stdout
    assert done.stdout.endswith("[]\n")


def test_server_commands_name_the_missing_extra(program: Program) -> None:
    """Without the server's libraries, the error names the extra to install."""
    for done in program.run_all([["serve"], ["token", "list"], ["db", "current"]], hidden=["sqlalchemy"]):
        assert (done.code, done.is_error_line) == (1, True)
        expected = "This command needs the extra 'server': the module 'sqlalchemy"
        assert expected in done.err


def test_version_and_help(program: Program) -> None:
    """`--version` prints the version; a group without a command prints its help."""
    version, *helps = program.run_all([["--version"], [], ["token"], ["db"]])
    assert version.out.startswith("zndraw-joblib ")
    assert all(done.code == 0 and done.out.startswith("Usage: zndraw-joblib") for done in helps)


def modules_of(code: str, program: Program) -> set[str]:
    """Return the names of the modules that are loaded after code has run."""
    code = f"import sys\n{code}\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=program.env, text=True, capture_output=True, check=True
    )
    return set(done.stdout.split())


_COMMAND = "from zndraw_joblib.cli import load\nload({!r})"
# What a start must not load: it is used by few processes, or later.
UNUSED = {
    "import zndraw_joblib": ("asyncio", "importlib.metadata", "pydantic"),
    "from zndraw_joblib import JobManager": (
        "httpx",
        "numpy",
        "rich",
        "socketio",
        "typer",
        "zndraw_joblib.server",
    ),
    "from zndraw_joblib import cli": (
        "httpx",
        "pydantic",
        "rich",
        "zndraw_joblib.client",
        "zndraw_joblib.wire",
    ),
    _COMMAND.format("worker"): (*HEAVY, "httpx", "numpy", "rich", "socketio"),
    _COMMAND.format("submit"): (*HEAVY, "httpx", "rich", "socketio", "zndraw_joblib.worker"),
    "import zndraw_joblib.cli.server.serve": (
        *(
            "alembic",
            "asyncpg",
            "fastapi",
            "httpx",
            "jsonschema_rs",
            "rich",
            "socketio",
            "taskiq",
            "zndraw_joblib.server.process.redis",
        ),
        *("zndraw_joblib.client.queue", "zndraw_joblib.worker.manager"),
    ),
}


_SERVED = """
from zndraw_joblib.cli.server.processes import load_app
from zndraw_joblib.server.process.settings import ServerSettings
load_app(ServerSettings(database_url="sqlite://", internal_extensions={!r}))
"""
_OF_SOCKETIO = {"aiohttp", "redis", "requests"}


def test_a_server_loads_no_libraries_of_socketio(program: Program) -> None:
    """They can be imported later, and code of internal jobs finds all of Socket.IO."""
    loaded = modules_of(_SERVED.format([]), program)
    assert "socketio" in loaded
    assert not (_OF_SOCKETIO | {"httpx", "rich"}) & loaded
    later = f"{_SERVED.format([])}import aiohttp, redis, requests"
    assert loaded | _OF_SOCKETIO <= modules_of(later, program)
    with_jobs = (
        f"{_SERVED.format(['jobs:Render'])}import engineio.async_client\nassert engineio.async_client.aiohttp"
    )
    assert _OF_SOCKETIO & modules_of(with_jobs, program)


def test_a_start_loads_only_what_it_needs(program: Program, subtests: pytest.Subtests) -> None:
    """Libraries that few processes use, or only later, are loaded when they are used."""
    for code, unused in UNUSED.items():
        with subtests.test(code):
            assert modules_of(code, program).intersection(unused) == set()
