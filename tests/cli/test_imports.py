"""Client commands work without the server's libraries, and do not import them."""

import subprocess
import sys

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
