"""A worker's install has no server library, and its commands load none."""

import subprocess
import sys

from cli.program import Program

HEAVY = ("alembic", "fastapi", "sqlalchemy", "sqlmodel", "starlette", "uvicorn", "zndraw_joblib.server")


def test_client_commands_load_no_server(program: Program) -> None:
    """Running a client command loads nothing of the server."""
    code = (
        "import sys\nfrom zndraw_joblib import cli\ntry:\n    cli.main()\nexcept SystemExit: pass\n"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    command = [sys.executable, "-c", code, "jobs", "--url", "http://127.0.0.1:1"]
    done = subprocess.run(command, env=program.env, text=True, capture_output=True, check=True)
    assert done.stdout == "[]\n"
    assert "cannot be reached" in done.stderr


def test_without_the_server_its_commands_say_how_to_get_it(program: Program) -> None:
    """Where the server's libraries are missing, the refusal names the extra."""
    for done in program.each([["serve"], ["token", "list"], ["db", "current"]], hidden=["sqlalchemy"]):
        assert (done.code, done.is_refusal) == (1, True)
        assert "pip install 'zndraw-joblib[server]'" in done.err


def test_the_version_is_told(program: Program) -> None:
    """By `--version`; without any command the help is shown."""
    told, *helps = program.each([["--version"], [], ["token"], ["db"]])
    assert told.out.startswith("zndraw-joblib ")
    assert all(done.code == 0 and done.out.startswith("Usage: zndraw-joblib") for done in helps)
