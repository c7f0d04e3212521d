"""A worker's install has no server library, and its commands load none."""

import subprocess
import sys

from cli.program import Program

HEAVY = ("alembic", "fastapi", "sqlalchemy", "sqlmodel", "starlette", "uvicorn", "zndraw_joblib.server")


def _run(program: Program, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(
        command, env=program.env, cwd=program.folder, text=True, capture_output=True, check=False
    )


def test_client_commands_load_no_server(program: Program) -> None:
    """Importing the command line, or running a client command, loads nothing of the server."""
    done = _run(
        program,
        f"import sys\nfrom zndraw_joblib import cli\ntry:\n    cli.main()\nexcept SystemExit: pass\n"
        f"print([name for name in {HEAVY} if name in sys.modules])",
        *("jobs", "--url", "http://127.0.0.1:1"),
    )
    assert done.stdout == "[]\n"
    assert "cannot be reached" in done.stderr


def test_without_the_server_its_commands_say_how_to_get_it(program: Program) -> None:
    """Where the server's libraries are missing, the refusal names the extra."""
    for command in (("serve",), ("token", "list"), ("db", "current")):
        done = _run(
            program,
            "import sys\nsys.modules['sqlalchemy'] = None\nfrom zndraw_joblib import cli\ncli.main()",
            *command,
        )
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.count("\n") == 1
        assert "pip install 'zndraw-joblib[server]'" in done.stderr


def test_the_version_is_told(program: Program) -> None:
    """By `--version`; without any command the help is shown."""
    told, *helps = program.each([["--version"], [], ["token"], ["db"]])
    assert told.out.startswith("zndraw-joblib ")
    assert all(done.code == 0 and done.out.startswith("Usage: zndraw-joblib") for done in helps)
