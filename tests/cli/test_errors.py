"""A failing command prints one error line; the exit code is 2 for wrong usage, 1 for any other failure."""

import socket
from pathlib import Path

from cli.conftest import Stack
from cli.program import Done, Program

Case = tuple[list[str], str]
NOWHERE = ("--url", "http://127.0.0.1:1")
USAGE_ERRORS: dict[str, Case] = {
    "command": (["nope"], "No such command 'nope'. See 'zndraw-joblib --help'"),
    "option": (["tasks", "--nope"], "No such option"),
    "token": (["tasks", "--token", "secret"], ". Set ZNDRAW_JOBLIB_TOKEN"),
    "status": (["tasks", "--status", "x"], "'x' is not one of 'pending'"),
    "argument": (["submit"], "JOB is missing"),
    "task id": (["task", "7"], "Invalid value for 'TASK'"),
    "since": (["tasks", "--since", "soon"], "--since 'soon' is not a time"),
    "rooms": (["tasks", "--all-rooms", "--room", "a"], "--all-rooms and --room cannot be combined"),
    "url": (
        ["jobs", "--url", "localhost:8000"],
        "'localhost:8000' is not the URL of a server: http:// or a host is missing. Set --url",
    ),
    "port": (["jobs", "--url", "http://localhost:80000"], "is not a URL: Port out of range"),
    "payload": (["submit", "A", "--payload", "[1]"], "--payload must be an object"),
    "json": (["submit", "A", "--json", "{}"], "needs --payload"),
    "value": (["submit", "A", "value"], "'value' is not of the form KEY=VALUE"),
    "too large": (
        ["submit", "A", "width=1e400"],
        "The payload field width: inf is not JSON: a number must be finite",
    ),
    "not a number": (
        ["submit", "A", "--payload", '{"a": [{"width": NaN}]}'],
        "The payload field a.0.width: nan is not JSON: a number must be finite",
    ),
    "surrogate": (
        ["submit", "A", "--payload", '{"a": "\\ud800"}'],
        "field a: the text is not JSON: it has half",
    ),
    "deep": (["submit", "A", "--payload", "[" * 100_000], "is not valid JSON: maximum recursion depth"),
    "delay": (["submit", "A", "--delay", "nan"], "--delay"),
    "run at": (["submit", "A", "--run-at", "9999-12-31T23:59:59-12:00"], "--run-at"),
    "key": (
        ["submit", "A", "--idempotency-key", "\u00fc"],
        "--idempotency-key: '\u00fc' has characters other than",
    ),
    "database": (
        ["serve", "--port", "0", "--database-url", "mysql://u:secret@h/x"],
        "type 'mysql' are not supported",
    ),
    "database port": (
        ["serve", "--port", "0", "--database-url", "postgresql://u:secret@h:x/x"],
        "database URL is invalid",
    ),
    "database text": (["token", "list", "--database-url", "secret"], "database URL is invalid"),
    "setting": (
        ["ZNDRAW_JOBLIB_ADMIN_TOKEN=secret", "db", "current"],
        "ZNDRAW_JOBLIB_ADMIN_TOKEN: admin_token",
    ),
    "several": (
        ["serve", "--port", "0", "--workers", "2"],
        "--processes 2 cannot use SQLite, which allows one server process. Set --database-url postgresql://",
    ),
    "test clock of several": (
        ["ZNDRAW_JOBLIB_REDIS_URL=redis://x", "serve", "--port", "0", "--workers", "2", "--test-clock"],
        "--test-clock cannot be used with --processes 2 and ZNDRAW_JOBLIB_REDIS_URL",
    ),
    "several in memory": (
        ["ZNDRAW_JOBLIB_WORKERS=2", "serve", "--port", "0", "--database-url", "sqlite://"],
        "--processes 2 cannot use SQLite",
    ),
    "name": (["share", ".", "--name", "a:b"], "--name 'a:b' is not a valid name"),
    "workers": (["ZNDRAW_JOBLIB_WORKERS=0", "serve"], "ZNDRAW_JOBLIB_WORKERS: Input should be greater"),
    "memory": (["serve", "--port", "0", "--database-url", "sqlite://"], "needs ZNDRAW_JOBLIB_ADMIN_TOKEN"),
}
FAILURES: dict[str, Case] = {
    "server": (
        ["jobs", *NOWHERE],
        "The server at http://127.0.0.1:1 cannot be reached: Connection refused. Start it",
    ),
    "submit": (["submit", "A", *NOWHERE], "cannot be reached"),
    "file": (["worker", "nope.py", *NOWHERE], "There is no file 'nope.py'"),
    "share": (
        ["share", "nope", "--name", "a", *NOWHERE],
        "The folder 'nope' cannot be shared: There is no folder",
    ),
    "module": (["worker", "nope", *NOWHERE], "There is no module 'nope'"),
    "folder": (["serve", "--port", "0", "--database-url", "sqlite:////no/x.db"], "The database /no/x.db "),
    "postgres": (
        ["serve", "--port", "0", "--database-url", "postgresql://u:secret@127.0.0.1:1/x"],
        "The database postgresql://u@127.0.0.1:1/x cannot be used: Connection refused",
    ),
    "postgres of several": (
        ["serve", "--port", "0", "--workers", "2", "--database-url", "postgresql://u:secret@127.0.0.1:1/x"],
        "The database postgresql://u@127.0.0.1:1/x cannot be used: Connection refused",
    ),
}


def _check(done: list[Done], cases: dict[str, Case], code: int) -> None:
    for one, (arguments, text) in zip(done, cases.values(), strict=True):
        assert (one.code, one.is_error_line) == (code, True), (arguments, one)
        assert text in one.err
        assert "secret" not in one.err


def test_wrong_usage_is_one_error_line(program: Program) -> None:
    """A wrong option, URL or setting has exit code 2."""
    _check(program.run_all([arguments for arguments, _ in USAGE_ERRORS.values()]), USAGE_ERRORS, 2)


def test_a_failure_is_one_error_line(program: Program) -> None:
    """Other failures have exit code 1, and no command creates a file on the way."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        several = ["--workers", "2", "--database-url", "postgresql://u@127.0.0.1:1/x"]
        taken_by_another = f"Port {port} of 127.0.0.1 is taken"
        cases = FAILURES | {
            "port": (["serve", "--port", port], taken_by_another),
            "port of several": (["serve", "--port", port, *several], taken_by_another),
        }
        _check(program.run_all([arguments for arguments, _ in cases.values()]), cases, 1)
    assert not list(program.folder.iterdir())


def test_an_error_names_the_source_of_a_setting(program: Program) -> None:
    """The error line names the variable or the pyproject.toml entry of each wrong setting."""
    (program.folder / "pyproject.toml").write_text('[tool.zndraw.joblib]\nmax_waiting_requests = "many"\n')
    error = program.error_of("db", "current", code=2, WORKER_TIMEOUT_SECONDS="-1")
    assert "ZNDRAW_JOBLIB_WORKER_TIMEOUT_SECONDS: Input should be greater than 0 (it is '-1')" in error
    assert "max_waiting_requests in [tool.zndraw.joblib]" in error


def test_a_broken_module_is_an_error_with_its_line(program: Program) -> None:
    """The error line has the file and line where the import failed."""
    path: Path = program.folder / "broken.py"
    path.write_text("import json\n\nx = 1 / 0\n")
    error = program.error_of("worker", "broken.py", *NOWHERE)
    assert f"ZeroDivisionError: division by zero ({path}:3)" in error
    path.write_text("x = (\n")
    assert "'broken.py' is not valid Python" in program.error_of("worker", "broken.py", *NOWHERE)


def test_a_rejected_registration_is_printed_once(stack: Stack) -> None:
    """One or several processes register the same invalid job, and the command prints one error."""
    (stack.program.folder / "odd.py").write_text(
        "from zndraw_joblib import Extension\n\n\nclass Odd(Extension):\n    category = 'odd'\n\n"
        "    def run(self, vis, **kwargs): ...\n"
    )
    for count in ("1", "3"):
        done = stack.program.run("worker", "odd.py", "--processes", count)
        assert done.code == 1
        assert done.err.count("Category 'odd' is not allowed") == 1
        assert "Serving" not in done.err
