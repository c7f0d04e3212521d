"""The first start creates a superuser's token and saves it for this user and this URL."""

import asyncio
import json
import signal
import socket
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import TypeVar

import pytest
from servers import free_port

from cli.conftest import Stack
from cli.program import TIMEOUT, Program, RunningServer
from zndraw_joblib.cli.server import tokens
from zndraw_joblib.cli.server.tokens import BootstrapToken
from zndraw_joblib.server.admin import sql_operators
from zndraw_joblib.server.db import schema
from zndraw_joblib.server.db.database import Database
from zndraw_joblib.server.db.engine import open_database
from zndraw_joblib.server.queue.rules_tokens import digest

Result = TypeVar("Result")
URL = "http://127.0.0.1:9999"
JOB = """
from zndraw_joblib import Extension

class Early(Extension):
    category = "analysis"
    def run(self, vis): ...
"""


async def _in_database(file: Path, work: Callable[[Database], Awaitable[Result]]) -> Result:
    database = open_database(f"sqlite:///{file}")
    try:
        return await work(database)
    finally:
        await database.close()


def _add_token(file: Path, token: str) -> None:
    """Create a database with a superuser's token, as an earlier start does."""

    async def add(database: Database) -> None:
        await schema.prepare(database)
        await database.write(sql_operators.add_token, "earlier", digest(token), is_superuser=True)

    asyncio.run(_in_database(file, add))


def _start(file: Path) -> BootstrapToken:
    """Prepare a database as `serve` does."""
    return asyncio.run(_in_database(file, partial(tokens.prepare, url=URL)))


def _save(program: Program, tokens: dict[str, str]) -> None:
    program.credentials.parent.mkdir()
    program.credentials.write_text(json.dumps(tokens))


def test_the_commands_find_the_token_of_a_first_start(stack: Stack) -> None:
    """The server prints it once, only this user can read the file, and it is a superuser's."""
    program, server = stack.program, stack.server
    token = program.saved_tokens()[server.url]
    assert program.credentials.stat().st_mode & 0o777 == 0o600
    assert program.credentials.parent.stat().st_mode & 0o777 == 0o700
    assert [file.name for file in program.credentials.parent.iterdir()] == ["credentials.json"]
    assert server.stderr.count(token) == 1
    assert f"zndraw-joblib worker my_jobs.py --url {server.url}\n" in server.stderr
    assert token.encode() not in (program.folder / "zndraw-joblib.db").read_bytes()
    assert program.ok("workers", "--url", f"http://localhost:{server.port}/").startswith("worker\t")


def test_a_later_start_finds_the_saved_token(program: Program) -> None:
    """The same database on another port gets no new token, and no log line has the token."""
    _add_token(program.folder / "zndraw-joblib.db", "a-token")
    _save(program, {"http://127.0.0.1:1": "another", "http://127.0.0.1:2": "a-token"})
    everywhere = "0.0.0.0"  # noqa: S104
    with RunningServer(program, "--host", everywhere, "--access-log", "--log-level", "debug") as server:
        assert program.saved_tokens() == {
            "http://127.0.0.1:1": "another",
            "http://127.0.0.1:2": "a-token",
            f"http://127.0.0.1:{server.port}": "a-token",
        }
        program.ok("jobs", "--url", server.url)
        assert f"  network   http://{socket.gethostname().lower()}:{server.port} from other" in server.stderr
        done = server.stop()
    assert "GET /v1/joblib/rooms/default/jobs" in done.err
    assert "a-token" not in done.err


def test_a_fresh_database_replaces_the_token_of_its_url(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new database replaces the saved token of its URL, and keeps those of other URLs."""
    monkeypatch.setenv("ZNDRAW_JOBLIB_CREDENTIALS", str(program.credentials))
    _save(program, {URL: "of-another-database", "http://127.0.0.1:1": "another"})
    token = _start(program.folder / "fresh.db")
    assert token.created
    assert token.created.startswith("zj_")
    assert program.saved_tokens() == {URL: token.created, "http://127.0.0.1:1": "another"}


def test_a_token_that_cannot_be_saved_is_still_returned(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the credentials file."""
    (program.folder / "file").touch()
    monkeypatch.setenv("ZNDRAW_JOBLIB_CREDENTIALS", str(program.folder / "file" / "credentials.json"))
    token = _start(program.folder / "fresh.db")
    assert token.created
    assert token.problem
    assert "could not be saved" in token.problem


def test_a_token_is_sent_only_to_its_own_url(program: Program) -> None:
    """Another port or path of the same machine may belong to another user."""
    seen: list[str | None] = []

    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers["Authorization"])
            self.send_error(404)

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Other) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{other.server_port}"
        _save(program, {"http://127.0.0.1:1": "mine", url: "other's"})
        addresses = (f"{url}/behind/a/path", f"http://localhost:{other.server_port}")
        done = program.run_all([["jobs", "--url", address] for address in addresses])
        other.shutdown()
    assert ["answered 404" in one.err for one in done] == [True, True]
    assert seen == [None, "Bearer other's"]


def test_a_configured_token_replaces_the_first_token(program: Program) -> None:
    """With ZNDRAW_JOBLIB_ADMIN_TOKEN no token is created, printed or saved. SIGTERM acts like Ctrl-C."""
    secret = "a-token-of-the-operator"
    with RunningServer(program, ADMIN_TOKEN=secret) as server:
        jobs = ["jobs", "--url", server.url]
        allowed, refused = program.run_all([[f"ZNDRAW_JOBLIB_TOKEN={secret}", *jobs], jobs])
        assert (allowed.code, refused.code) == (0, 1)
        assert "requires a token" in refused.err
        done = server.stop(signal.SIGTERM)
    assert done.code == 0
    assert "first start" not in done.err
    assert not program.credentials.exists()


def test_a_worker_started_before_the_first_start_gets_its_token(program: Program) -> None:
    """It finds the token of the new server, as users start both at the same time. A signal then stops it."""
    (program.folder / "early.py").write_text(JOB)
    port = free_port()
    with program.start("worker", "early.py", "--url", f"http://127.0.0.1:{port}") as worker:
        assert worker.stderr is not None
        assert worker.stderr.readline().startswith("No answer from")
        with RunningServer(program, port=port):
            assert worker.stderr.readline().startswith("Serving Early in @global")
            worker.send_signal(signal.SIGTERM)
            worker.communicate(timeout=TIMEOUT)
    assert worker.returncode == 0
